"""The send buffer of a connection, which several tasks fill and flush."""

import trio
import trio.testing

from trioha.net.outbox import Outbox


async def test_bytes_of_tasks_that_flush_at_the_same_time_go_out_in_the_order_they_were_put():
    """A stream that gets bytes of two tasks at once raises BusyResourceError, or mixes them."""
    near, far = trio.testing.lockstep_stream_pair()
    outbox = Outbox(near, timeout_s=20)
    received = bytearray()

    async def put_and_flush(data):
        outbox.put(data)
        await outbox.flush()

    async with trio.open_nursery() as nursery:
        for data in (b"handshake", b"rejection", b"heartbeat"):
            nursery.start_soon(put_and_flush, data)
            await trio.testing.wait_all_tasks_blocked()
        assert not outbox.is_empty
        while len(received) < 27:
            received += await far.receive_some(5)
    assert received == b"handshakerejectionheartbeat"
    assert outbox.is_empty

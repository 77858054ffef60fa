"""The send buffer of a connection, which several tasks fill and flush."""

import pytest
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


class Stalled(trio.abc.SendStream):
    """Takes a part of the first bytes, and then all that comes, but never says so."""

    def __init__(self):
        self.taken = bytearray()

    async def send_all(self, data):
        # As a socket that accepts bytes at once: no checkpoint before them.
        self.taken += data if self.taken else data[:4]
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def test_a_task_that_waits_for_its_turn_sends_nothing_after_a_send_that_ended_in_the_middle(
    autojump_clock,
):
    """It would begin with the chunk of which a part is sent: the peer would get that part twice."""
    stream = Stalled()
    outbox = Outbox(stream, timeout_s=20)
    outbox.put(b"record and its rest")

    async def flush(error):
        with pytest.raises(error):
            await outbox.flush()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flush, trio.TooSlowError)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(flush, trio.BrokenResourceError)
    assert stream.taken == b"reco"

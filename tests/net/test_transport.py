"""The stream over a socket: what it receives, and when it yields."""

import errno
import socket

import pytest
import trio
from trio.testing import memory_stream_pair

from trioha.net.transport import (
    BYTES_PER_CALL,
    CALLS_PER_TURN,
    PARTS_PER_CALL,
    SocketTransport,
    drop_sent,
    receive_into,
    send_all_parts,
    send_parts_now,
)


@pytest.fixture
async def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as far:
        near = SocketTransport(listener.accept()[0])
        yield near, far
        await near.aclose()


async def test_bytes_are_received_into_the_buffer_until_the_end(pair):
    near, far = pair
    buffer = bytearray(b"----------")
    far.sendall(b"abc")
    assert await receive_into(near, memoryview(buffer)) == 3
    assert buffer == b"abc-------"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, far.sendall, b"de")
        assert await receive_into(near, memoryview(buffer)[3:]) == 2
    assert buffer == b"abcde-----"
    far.close()
    assert await receive_into(near, memoryview(buffer)) == 0


async def test_a_reset_is_a_broken_resource(pair):
    near, far = pair
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    far.close()
    with pytest.raises(trio.BrokenResourceError):
        await receive_into(near, memoryview(bytearray(10)))


async def test_other_streams_are_received_from_with_a_copy():
    near, far = memory_stream_pair()
    await far.send_all(b"abc")
    buffer = bytearray(b"----")
    assert await receive_into(near, memoryview(buffer)) == 3
    assert buffer == b"abc-"


@pytest.mark.parametrize(
    ("size", "calls"), [(1, CALLS_PER_TURN), (BYTES_PER_CALL * 3, CALLS_PER_TURN // 4 + 1)]
)
async def test_a_receiver_that_never_waits_still_yields_and_sooner_for_many_bytes(pair, size, calls):
    near, _ = pair

    class Full:
        """A socket that always has `size` bytes."""

        def recv_into(self, buffer):
            return size

    near._socket, kept = Full(), near._socket
    received = 0
    with trio.CancelScope() as scope:
        scope.cancel()
        while True:
            await near.receive_into(memoryview(b""))
            received += 1
    near._socket = kept
    assert received == calls - 1


class ResetOnMac(socket.socket):
    """As macOS does: options of a socket that the peer has reset are refused."""

    def setsockopt(self, *args):
        raise OSError(errno.EINVAL, "Invalid argument")


async def test_a_socket_that_refuses_options_ends_at_its_next_receive():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as far:
        near = SocketTransport(ResetOnMac(fileno=listener.accept()[0].detach()))
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        far.close()
        with pytest.raises(trio.BrokenResourceError):
            await near.receive_some()
        await near.aclose()


def parts_of(data, sizes):
    """`data` cut into parts of these sizes: bytes and views in turn, the last with the rest."""
    parts = []
    for number, size in enumerate(sizes):
        part, data = data[:size], data[size:]
        parts.append(part if number % 2 else memoryview(part))
    return [*parts, memoryview(data)]


@pytest.mark.parametrize("sent", range(11))
def test_sent_bytes_leave_the_parts_and_their_views_are_released(sent):
    parts = parts_of(b"0123456789", [3, 0, 4, 1])
    views = [part for part in parts if isinstance(part, memoryview)]
    drop_sent(parts, sent)
    assert b"".join(parts) == b"0123456789"[sent:]
    # A view of which a part is left was replaced by one of the rest.
    for view, end in zip(views, (3, 7, 10), strict=True):
        if end <= sent:
            with pytest.raises(ValueError, match="released"):
                len(view)


@pytest.mark.parametrize("count", [1, 5, 3 * PARTS_PER_CALL])
async def test_parts_are_sent_in_order_beyond_what_the_socket_accepts_at_once(pair, count):
    near, far = pair
    data = bytes(range(256)) * 16_000
    sizes = [len(data) // count] * (count - 1)
    parts = parts_of(data, sizes)
    views = [part for part in parts if isinstance(part, memoryview)]
    received = bytearray()

    def receive():
        while len(received) < len(data):
            received.extend(far.recv(1 << 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, receive)
        send_parts_now(near, parts)
        await send_all_parts(near, parts)
    assert received == data
    assert parts == []
    for view in views:
        with pytest.raises(ValueError, match="released"):
            len(view)


async def test_a_cancelled_send_leaves_the_unsent_parts_to_its_caller(pair):
    near, _ = pair
    parts = parts_of(bytes(1 << 24), [1 << 20] * 8)
    with trio.move_on_after(0):
        await send_all_parts(near, parts)
    left = sum(map(len, parts))
    assert 0 < left <= 1 << 24


async def test_other_streams_are_sent_a_copy_of_the_parts():
    near, far = memory_stream_pair()
    parts = parts_of(b"0123456789", [3, 4])
    send_parts_now(near, parts)
    assert b"".join(parts) == b"0123456789"
    await send_all_parts(near, parts)
    assert parts == []
    assert await far.receive_some(100) == b"0123456789"

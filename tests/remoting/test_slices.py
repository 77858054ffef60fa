"""Slices in answers: sent without a copy, counted as memory of clients, released when they are sent."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.remoting.serving import PEER_ADDRESS, WITHIN_S, read_command, served_pipe, serving
from tests.remoting.streams import transport_pair
from tests.store.support import message, open_log
from trioha.net.transport import SocketTransport
from trioha.remoting.client import open_client
from trioha.remoting.codec import encode
from trioha.remoting.command import RemotingCommand, request, response_to
from trioha.remoting.in_flight import COPIED_BYTES_MAX
from trioha.remoting.server import RemotingServer

CODE = 11
SMALL = COPIED_BYTES_MAX // 4
LARGE = 4 * COPIED_BYTES_MAX


class Slices:
    """A handler that answers with slices of one buffer."""

    def __init__(self, *sizes):
        self.buffer = bytearray(index % 251 for index in range(sum(sizes)))
        self._sizes = sizes
        self.given: list[memoryview] = []

    def __call__(self, asked, _peer):
        at, slices = 0, []
        for size in self._sizes:
            slices.append(memoryview(self.buffer)[at : at + size])
            at += size
        self.given += slices
        return response_to(asked, 0, body=b"first;", slices=tuple(slices))

    @property
    def are_released(self):
        try:
            self.buffer.append(0)
        except BufferError:
            return False
        del self.buffer[-1]
        return True


def test_a_command_with_slices_is_encoded_with_its_whole_body():
    views = (memoryview(b"ab"), memoryview(b""), memoryview(b"cde"))
    command = RemotingCommand(CODE, 1, body=b"-", slices=views)
    assert (command.body_bytes, command.whole_body) == (6, b"-abcde")
    assert encode(command) == encode(RemotingCommand(CODE, 1, body=b"-abcde"))


@pytest.mark.parametrize("sizes", [(1, 2), (SMALL, SMALL), (LARGE,), (LARGE, 1, LARGE), (1000,) * 3000])
async def test_answers_with_slices_arrive_whole_and_in_their_order(sizes):
    handler, answers = Slices(*sizes), []

    async def ask(client):
        answers.append(await client.request(request(CODE)))

    async with (
        serving(handler) as (server, address),
        open_client(address) as client,
        trio.open_nursery() as asking,
    ):
        for _ in range(8):
            asking.start_soon(ask, client)
    assert [answer.body for answer in answers] == [b"first;" + handler.buffer] * 8
    assert handler.are_released
    assert server.statistics.held_bytes == 0


@pytest.mark.parametrize("transport", ["socket", "memory"])
async def test_slices_count_as_memory_while_the_peer_does_not_read(transport):
    handler = Slices(*(1 << 20,) * 8)
    server = RemotingServer(handler)
    async with trio.open_nursery() as nursery:
        if transport == "memory":
            ours, theirs = transport_pair(16 * 1024)
        else:
            near, far = trio.socket.socketpair()
            for end in (near, far):
                end.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 65536)
            theirs = SocketTransport.from_stream(trio.SocketStream(near))
            ours = trio.SocketStream(far)
        nursery.start_soon(server.serve_stream, theirs, PEER_ADDRESS)
        await ours.send_all(encode(request(CODE)))
        await wait_all_tasks_blocked(0.01)
        assert 8 << 20 <= server.statistics.held_bytes <= 9 << 20
        assert not handler.are_released
        # The end of the connection releases them.
        nursery.cancel_scope.cancel()
    await ours.aclose()
    await theirs.aclose()
    assert server.statistics.held_bytes == 0
    assert handler.are_released


async def test_a_deleted_log_file_stays_mapped_until_its_slice_is_sent(tmp_path):
    log, _ = open_log(tmp_path, file_bytes=1 << 22)
    log.append(message(b"x" * (3 << 20)))
    size = log.max_offset
    expected = bytes(log.read(0, size))
    mapping = log.files[0].view.obj
    server = RemotingServer(lambda asked, _peer: response_to(asked, 0, slices=(log.read(0, size),)))
    async with served_pipe(server, 16 * 1024) as stream:
        await stream.send_all(encode(request(CODE)))
        await wait_all_tasks_blocked()
        log.close()
        assert not mapping.closed
        with trio.fail_after(WITHIN_S):
            answer = await read_command(stream)
        assert bytes(answer.body) == expected
        await wait_all_tasks_blocked()
        mapping.close()  # which raises BufferError while there is a view of it

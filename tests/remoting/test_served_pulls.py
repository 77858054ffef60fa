"""How a server's connection answers pulls of known forms: at once, or as any other request."""

import socket
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import define, field
from structlog.testing import capture_logs

from tests.remoting.serving import PEER_ADDRESS, WITHIN_S, read_command, served_stream
from tests.remoting.test_pull_forms import pull
from tests.remoting.test_send_runs import send
from tests.remoting.test_served_runs import BY_ITSELF, Runs, answers, by_itself
from trioha.net.transport import SocketTransport
from trioha.remoting.codec import FrameDecoder, encode, encode_head
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, request
from trioha.remoting.connections import Connections
from trioha.remoting.pull_forms import PullForms
from trioha.remoting.server import RemotingServer, ServerLimits

AT_ONCE = 0


@define
class Pulls:
    """Answers with a body; None, or an exception, where a test plans that."""

    body: bytes = b"message"
    error: Exception | None = None
    leaves: bool = False
    seen: list[tuple[int, int, int]] = field(factory=list)
    views: list[memoryview] = field(factory=list)

    def answer_at_once(self, form, pull, fits):
        self.seen.append((pull.opaque, pull.queue_offset, pull.commit_offset))
        if self.error is not None:
            raise self.error
        if self.leaves or not fits(len(self.body)):
            return None
        views = memoryview(self.body)[:3], memoryview(self.body)[3:]
        self.views += views
        return encode_head(RemotingCommand(AT_ONCE, pull.opaque, 1, slices=views)), views


def server_with(pulls, *, runs=None, **limits):
    connections = Connections(ServerLimits(**limits))
    return RemotingServer(by_itself, connections, forms=PullForms(), pulls=pulls, runs=runs)


def pulled(numbers):
    """Pulls of one form."""
    return b"".join(pull(opaque=number, queueOffset=32 * number) for number in numbers)


@asynccontextmanager
async def served_socket(server):
    """Our end of a connection whose other end `server` serves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = await trio.open_tcp_stream(*listener.getsockname())
        theirs = SocketTransport(listener.accept()[0])

    async def run():
        async with theirs:
            await server.serve_stream(theirs, PEER_ADDRESS)

    async with trio.open_nursery() as nursery, ours:
        nursery.start_soon(run)
        yield ours
        nursery.cancel_scope.cancel()


async def check_over(server, requests):
    await trio.testing.wait_all_tasks_blocked()
    statistics = server.statistics
    assert (statistics.requests, statistics.responses, statistics.in_flight) == (requests, requests, 0)
    assert statistics.held_bytes == 0


async def test_the_first_pull_of_a_form_comes_to_the_handler_and_the_others_are_answered_at_once():
    pulls = Pulls()
    server = server_with(pulls)
    async with served_stream(server) as stream:
        await stream.send_all(pulled(range(5)))
        assert await answers(stream, 5) == [(0, BY_ITSELF), *((number, AT_ONCE) for number in range(1, 5))]
        assert pulls.seen == [(number, 32 * number, 0) for number in range(1, 5)]
    await check_over(server, 5)


async def test_the_messages_follow_the_head_and_their_views_are_released():
    pulls = Pulls(b"m" * 100_000)
    server = server_with(pulls)
    async with served_stream(server) as stream:
        await stream.send_all(pulled(range(3)))
        decoder = FrameDecoder()
        with trio.fail_after(WITHIN_S):
            found = [await read_command(stream, decoder) for _ in range(3)]
    assert [bytes(answer.body) for answer in found[1:]] == [pulls.body] * 2
    await check_over(server, 3)
    for view in pulls.views:
        with pytest.raises(ValueError, match="released"):
            view.tobytes()


async def test_other_requests_between_pulls_keep_their_places():
    pulls, runs = Pulls(), Runs()
    server = server_with(pulls, runs=runs)
    async with served_stream(server) as stream:
        await stream.send_all(
            pulled(range(2)) + send(opaque=2) + send(opaque=3) + pulled(range(4, 30))
            + encode(request(35), opaque=30) + pulled(range(31, 33)) + send(opaque=33)
        )  # fmt: skip
        codes = {0: BY_ITSELF, 30: BY_ITSELF}
        assert await answers(stream, 34) == [(number, codes.get(number, 0)) for number in range(34)]
        assert runs.seen == [[2, 3], [33]]
        assert [opaque for opaque, _, _ in pulls.seen] == [1, *range(4, 30), 31, 32]
    await check_over(server, 34)


@pytest.mark.parametrize("part_bytes", [1, 7, 300])
async def test_pulls_that_come_in_parts_are_all_answered(part_bytes):
    pulls = Pulls()
    server = server_with(pulls)
    data = pulled(range(4))
    async with served_stream(server) as stream:
        for at in range(0, len(data), part_bytes):
            await stream.send_all(data[at : at + part_bytes])
            await trio.testing.wait_all_tasks_blocked()
        assert [opaque for opaque, _ in await answers(stream, 4)] == [*range(4)]
    await check_over(server, 4)


async def test_a_pull_that_is_not_answered_at_once_comes_to_the_handler_once():
    seen = []

    def note(asked, peer):
        seen.append(asked)
        return by_itself(asked, peer)

    pulls = Pulls(leaves=True)
    server = server_with(pulls)
    server.handler = note
    async with served_stream(server) as stream:
        await stream.send_all(pulled(range(3)))
        assert await answers(stream, 3) == [(number, BY_ITSELF) for number in range(3)]
        pulls.leaves = False
        await stream.send_all(pulled(range(3, 5)))
        assert await answers(stream, 2) == [(3, AT_ONCE), (4, AT_ONCE)]
    assert [(asked.opaque, asked.ext_fields["queueOffset"]) for asked in seen] == [
        (number, str(32 * number)) for number in range(3)
    ]
    await check_over(server, 5)


async def test_a_refusal_is_the_answer():
    server = server_with(Pulls(error=BadRequestError("not so", code=ResponseCode.NO_PERMISSION)))
    async with served_stream(server) as stream:
        await stream.send_all(pulled(range(2)))
        assert await answers(stream, 2) == [(0, BY_ITSELF), (1, ResponseCode.NO_PERMISSION)]
        assert server.statistics.handler_errors == 0
    await check_over(server, 2)


async def test_a_bug_is_one_error_and_the_connection_goes_on():
    pulls = Pulls(error=ZeroDivisionError("planted"))
    server = server_with(pulls)
    async with served_stream(server) as stream:
        with capture_logs() as logs:
            await stream.send_all(pulled(range(2)))
            assert await answers(stream, 2) == [(0, BY_ITSELF), (1, ResponseCode.SYSTEM_ERROR)]
        assert server.statistics.handler_errors == 1
        assert any("planted" in str(entry) for entry in logs)
        pulls.error = None
        await stream.send_all(pulled(range(2, 3)))
        assert await answers(stream, 1) == [(2, AT_ONCE)]
    await check_over(server, 3)


async def test_without_room_for_the_messages_the_pull_is_left_to_the_handler():
    pulls = Pulls(bytes(3 << 20))
    server = server_with(pulls, frame_bytes_max=1 << 16, total_bytes_max=1 << 20)
    async with served_stream(server) as stream:
        await stream.send_all(pulled(range(3)))
        assert await answers(stream, 3) == [(number, BY_ITSELF) for number in range(3)]
    assert len(pulls.seen) == 2
    for view in pulls.views:
        with pytest.raises(ValueError, match="released"):
            view.tobytes()
    await check_over(server, 3)


async def test_beyond_the_requests_in_flight_a_pull_waits_for_room():
    pulls = Pulls(bytes(200_000))
    server = server_with(pulls, in_flight_max=2)
    async with served_stream(server) as stream:
        await stream.send_all(pulled(range(12)))
        assert [opaque for opaque, _ in await answers(stream, 12)] == [*range(12)]
    await check_over(server, 12)


async def test_a_pull_beyond_the_limits_of_a_frame_is_refused_as_any_other():
    pulls = Pulls()
    frame = pull(opaque=1)
    server = server_with(pulls, frame_bytes_max=len(frame) - 1)
    async with served_stream(server) as stream:
        with capture_logs():
            await stream.send_all(pulled(range(2)))
            with trio.fail_after(WITHIN_S):
                assert await stream.receive_some() == b""
    assert (server.statistics.protocol_errors, pulls.seen) == (1, [])


async def test_what_the_socket_does_not_accept_follows_when_the_client_reads():
    pulls = Pulls(bytes(range(256)) * 16384)
    server = server_with(pulls)
    async with served_socket(server) as stream:
        await stream.send_all(pulled(range(5)))
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.in_flight > 0
        assert server.statistics.held_bytes > 0
        decoder = FrameDecoder()
        with trio.fail_after(WITHIN_S):
            found = [await read_command(stream, decoder) for _ in range(5)]
    assert [answer.opaque for answer in found] == [*range(5)]
    assert all(bytes(answer.body) == pulls.body for answer in found[1:])
    await check_over(server, 5)
    for view in pulls.views:
        with pytest.raises(ValueError, match="released"):
            view.tobytes()


async def test_a_connection_that_is_broken_while_it_is_sent_to_releases_the_views(monkeypatch):
    def send_parts_now(transport, parts):
        raise trio.BrokenResourceError("planted")

    pulls = Pulls(bytes(100_000))
    server = server_with(pulls)
    async with served_socket(server) as stream:
        await stream.send_all(pulled(range(1)))
        assert await answers(stream, 1) == [(0, BY_ITSELF)]
        monkeypatch.setattr(SocketTransport, "send_parts_now", send_parts_now)
        await stream.send_all(pulled(range(1, 3)))
        with trio.fail_after(WITHIN_S):
            assert await stream.receive_some() == b""
    await trio.testing.wait_all_tasks_blocked()
    statistics = server.statistics
    assert (statistics.broken_connections, statistics.in_flight, statistics.held_bytes) == (1, 0, 0)
    assert len(pulls.views) == 2
    for view in pulls.views:
        with pytest.raises(ValueError, match="released"):
            view.tobytes()

"""Answers that wait without a task of their own: when they are sent, which go together, what ends them."""

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.remoting.serving import Later, connected, opaques, read_command, reset, served_stream, serving
from tests.remoting.streams import transport_pair
from tests.waiting import until
from trioha.net.transport import SocketTransport
from trioha.remoting.client import open_client
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.server import RemotingServer, ServerLimits
from trioha.remoting.serving import WaitingAnswer


class Answer(WaitingAnswer):
    """Comes when the test says so."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked
        self.error: Exception | None = None
        self.has_come = False
        self.looks = 0
        self.is_abandoned = False

    def come(self):
        self.has_come = True
        self.wake()

    def answer(self):
        self.looks += 1
        if self.error is not None:
            raise self.error
        return response_to(self.asked, 0, body=self.asked.body) if self.has_come else None

    def abandon(self):
        super().abandon()
        self.is_abandoned = True


class Answers(list[Answer]):
    """A handler that answers later, and the answers that it has begun."""

    def __call__(self, asked, peer):
        self.append(Answer(asked))
        return self[-1]


def ask(number, *, oneway=False):
    return encode(request(1, body=b"%d" % number, oneway=oneway), opaque=number)


async def until_asked(answers, count):
    await until(lambda: len(answers) >= count)
    await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def sends(monkeypatch):
    """Bytes of each send of a server."""
    sent: list[int] = []
    send_now, send_parts_now = SocketTransport.send_now, SocketTransport.send_parts_now

    def note(self, data):
        sent.append(send_now(self, data))
        return sent[-1]

    def note_parts(self, parts):
        sent.append(send_parts_now(self, parts))
        return sent[-1]

    monkeypatch.setattr(SocketTransport, "send_now", note)
    monkeypatch.setattr(SocketTransport, "send_parts_now", note_parts)
    return sent


async def test_an_answer_is_looked_at_once_for_all_calls_of_wake_and_waits_on_without_one(sends):
    answers = Answers()
    async with connected(RemotingServer(answers)) as (stream, decoder):
        await stream.send_all(ask(1))
        await until_asked(answers, 1)
        for looks in (1, 2):
            for _ in range(3):
                answers[0].wake()
            await trio.testing.wait_all_tasks_blocked()
            assert (answers[0].looks, sends) == (looks, [])
        answers[0].come()
        answer = await read_command(stream, decoder)
        assert (answer.opaque, answer.body, answers[0].looks) == (1, b"1", 3)


async def test_answers_that_come_together_are_sent_together(sends):
    answers = Answers()
    server = RemotingServer(answers)
    async with connected(server) as (stream, decoder):
        await stream.send_all(b"".join(map(ask, range(10))))
        await until_asked(answers, 10)
        for answer in (answers[4], *answers[:4], *answers[5:8]):
            answer.come()
        assert sends == []
        await trio.testing.wait_all_tasks_blocked()
        assert len(sends) == 1
        assert await opaques(stream, decoder, 8) == [4, 0, 1, 2, 3, 5, 6, 7]
        for answer in answers[8:]:
            answer.come()
        await trio.testing.wait_all_tasks_blocked()
        assert len(sends) == 2
    assert (server.statistics.requests, server.statistics.responses) == (10, 10)
    assert server.statistics.held_bytes == 0


async def test_what_an_answer_has_stored_is_waited_for_and_others_are_answered_meanwhile():
    stored: list[Later] = []

    class Storing(Answer):
        def answer(self):
            if not self.has_come or self.asked.body != b"1":
                return super().answer()
            stored.append(Later(lambda: response_to(self.asked, 0, body=b"stored"), "disk"))
            return stored[-1]

    answers = []

    def handle(asked, _peer):
        answers.append(Storing(asked))
        return answers[-1]

    server = RemotingServer(handle)
    async with connected(server) as (stream, decoder):
        await stream.send_all(ask(1) + ask(2))
        await until_asked(answers, 2)
        for answer in answers:
            answer.come()
        assert await opaques(stream, decoder, 1) == [2]
        stored[0].give()
        answer = await read_command(stream, decoder)
        assert (answer.opaque, answer.body) == (1, b"stored")
    assert server.statistics.held_bytes == 0


async def test_a_stream_that_is_no_socket_gets_its_answers_from_the_writer():
    answers = Answers()
    with trio.fail_after(60):
        async with served_stream(RemotingServer(answers)) as stream:
            await stream.send_all(ask(1) + ask(2))
            await until_asked(answers, 2)
            for answer in reversed(answers):
                answer.come()
            assert await opaques(stream, FrameDecoder(), 2) == [2, 1]


async def test_an_answer_that_is_there_at_once_is_sent_with_its_turn(sends):
    def at_once(asked, peer):
        answer = Answer(asked)
        answer.come()
        return answer

    async with connected(RemotingServer(at_once)) as (stream, decoder):
        await stream.send_all(ask(1) + ask(2))
        assert await opaques(stream, decoder, 2) == [1, 2]
        assert len(sends) == 1


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (BadRequestError("refused", code=ResponseCode.NO_PERMISSION), ResponseCode.NO_PERMISSION, "refused"),
        (ZeroDivisionError("planted"), ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: planted"),
    ],
    ids=["refusal", "bug"],
)
@pytest.mark.parametrize("count", [1, 2])
async def test_an_error_of_a_result_is_its_answer_and_the_next_request_is_served(error, code, remark, count):
    answers = Answers()
    server = RemotingServer(answers)
    async with connected(server) as (stream, decoder):
        with capture_logs():
            await stream.send_all(b"".join(map(ask, range(count))))
            await until_asked(answers, count)
            for answer in answers:
                answer.error = error
                answer.come()
            for _ in range(count):
                found = await read_command(stream, decoder)
                assert (found.code, found.remark) == (code, remark)
        await stream.send_all(ask(7))
        await until_asked(answers, count + 1)
        answers[-1].come()
        found = await read_command(stream, decoder)
        assert (found.opaque, found.code) == (7, 0)
    assert server.statistics.handler_errors == (count if code == ResponseCode.SYSTEM_ERROR else 0)


async def test_a_connection_that_ends_abandons_its_answers():
    answers = Answers()
    server = RemotingServer(answers)
    async with served_stream(server, transport_pair()) as stream:
        await stream.send_all(ask(1) + ask(2) + ask(3))
        await until_asked(answers, 3)
        answers[0].come()
        await stream.aclose()
        await until(lambda: not server.statistics.connections_open)
    assert [answer.is_abandoned for answer in answers[1:]] == [True, True]
    answers[1].come()
    assert server.statistics.held_bytes == 0


@pytest.mark.parametrize("in_flight_max", [1, 8], ids=["not reading", "reading"])
async def test_an_answer_for_a_peer_that_is_gone_ends_its_connection_and_hurts_nobody(in_flight_max):
    """Also where the server reads nothing meanwhile, since as many requests are in flight as may be."""
    answers = Answers()
    server = RemotingServer(answers, connections=Connections(ServerLimits(in_flight_max=in_flight_max)))
    async with connected(server) as (stream, _):
        await stream.send_all(ask(1) + ask(2))
        await until_asked(answers, min(in_flight_max, 2))
        reset(stream)
        # The server's task has not run since: its socket has been reset, and the send fails.
        answers[0].come()
        await until(lambda: not server.statistics.connections_open)
    assert len(answers) == min(in_flight_max, 2)
    assert (server.statistics.broken_connections, server.statistics.bugs) == (1, 0)
    assert server.statistics.held_bytes == 0


async def test_a_bug_in_sending_an_answer_ends_its_connection_and_no_other(monkeypatch):
    answers = Answers()
    server = RemotingServer(answers)
    async with connected(server) as (stream, decoder), connected(server) as (other, other_decoder):
        await stream.send_all(ask(1))
        await until_asked(answers, 1)
        await other.send_all(ask(2))
        await until_asked(answers, 2)
        with capture_logs() as logs, monkeypatch.context() as patched:

            def planted(*_):
                raise ZeroDivisionError("planted")

            patched.setattr(SocketTransport, "send_parts_now", planted)
            answers[0].come()
            assert await read_command(stream, decoder) is None
        assert [entry["log_level"] for entry in logs] == ["error"]
        answers[1].come()
        assert await opaques(other, other_decoder, 1) == [2]
    assert server.statistics.bugs == 1


async def test_a_oneway_request_is_not_answered_later_either():
    answers = Answers()
    server = RemotingServer(answers)
    async with connected(server) as (stream, decoder):
        await stream.send_all(ask(1, oneway=True))
        await until_asked(answers, 1)
        answers[0].come()
        await stream.send_all(ask(2))
        await until_asked(answers, 2)
        answers[1].come()
        assert await opaques(stream, decoder, 1) == [2]
    assert (server.statistics.oneway_requests, server.statistics.responses) == (1, 1)


async def test_draining_waits_for_answers_that_come_later(autojump_clock):
    answers = Answers()
    server = RemotingServer(answers)
    async with served_stream(server) as stream:
        await stream.send_all(ask(1))
        await until_asked(answers, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            await trio.sleep(1)
            assert server.statistics.connections_open == 1
            answers[0].come()
            assert await opaques(stream, FrameDecoder(), 2) == [1, None]
    assert server.statistics.cut_connections == 0


async def test_many_answers_in_any_order_reach_their_requests():
    waiting = Answers()

    async def answer_all():
        while True:
            await trio.lowlevel.checkpoint()
            if waiting:
                waiting.pop(len(waiting) // 2).come()

    async def one(client, number):
        found[number] = bytes((await client.request(request(1, body=b"%d" % number))).body)

    found = {}
    async with serving(waiting) as (server, address), open_client(address) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer_all)
            async with trio.open_nursery() as clients:
                for number in range(300):
                    clients.start_soon(one, client, number)
            nursery.cancel_scope.cancel()
        assert server.statistics.responses == 300
    assert found == {number: b"%d" % number for number in range(300)}

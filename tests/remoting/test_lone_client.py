"""A client that alone sends requests, one at a time: what is done before its answer comes, and polling."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import trio
from structlog.testing import capture_logs

from tests.remoting.serving import connected, opaques, read_command, reset
from tests.remoting.test_deferred_answers import Answer, Answers, ask, until_asked
from tests.waiting import until
from trioha.net.busy_poll import BusyPoll
from trioha.remoting import server_connection
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import RemotingServer, ServerLimits

POLLS = ServerLimits(busy_poll_s=0.001)


class ExpectedAnswer(Answer):
    """Knows its result before it comes; `other` replaces it."""

    def __init__(self, asked):
        super().__init__(asked)
        self.likely = response_to(asked, 0, body=asked.body, remark="as expected")
        self.other: RemotingCommand | None = None
        self.asked_for = 0

    def expected(self):
        self.asked_for += 1
        if self.error is not None:
            raise self.error
        return self.likely

    def result(self):
        super().result()
        return self.likely if self.other is None else self.other


class ExpectedAnswers(Answers):
    """A handler of such answers; `failing` makes each one a bug."""

    error: Exception | None = None

    def __call__(self, asked, peer):
        answer = ExpectedAnswer(asked)
        answer.error = self.error
        self.append(answer)
        return answer


@pytest.fixture
def encoded(monkeypatch):
    """The answers that were encoded, in order."""
    commands: list[RemotingCommand] = []
    encode_head = server_connection.encode_head

    def note(command):
        commands.append(command)
        return encode_head(command)

    monkeypatch.setattr(server_connection, "encode_head", note)
    return commands


async def test_the_only_answer_is_encoded_before_it_comes(encoded):
    answers, seen = ExpectedAnswers(), []
    server = RemotingServer(answers)

    def poll():
        seen.append(len(encoded))
        answers[-1].come()

    server.after_turn = lambda: poll
    async with connected(server) as (stream, decoder):
        for number in (1, 2):
            await stream.send_all(ask(number))
            found = await read_command(stream, decoder)
            assert (found.opaque, found.remark, found.body) == (number, "as expected", b"%d" % number)
    assert (seen, len(encoded)) == ([1, 2], 2)
    assert server.statistics.held_bytes == 0


async def test_an_answer_other_than_the_expected_one_is_sent_as_it_is(encoded):
    answers = ExpectedAnswers()
    server = RemotingServer(answers)

    def poll():
        answer = answers[-1]
        answer.other = response_to(answer.asked, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        answer.come()

    server.after_turn = lambda: poll
    async with connected(server) as (stream, decoder):
        await stream.send_all(ask(1))
        found = await read_command(stream, decoder)
        assert (found.opaque, found.code, found.remark) == (1, ResponseCode.FLUSH_SLAVE_TIMEOUT, None)
    assert len(encoded) == 2


async def test_an_expected_answer_that_cannot_be_made_is_one_error():
    answers = ExpectedAnswers()
    answers.error = ZeroDivisionError("planted")
    server = RemotingServer(answers)
    server.after_turn = lambda: answers[-1].come
    async with connected(server) as (stream, decoder):
        with capture_logs():
            await stream.send_all(ask(1))
            found = await read_command(stream, decoder)
        assert (found.code, found.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: planted")
        assert answers[0].asked_for == 1
    assert server.statistics.handler_errors == 1


async def test_nothing_is_expected_of_several_requests(encoded):
    answers = ExpectedAnswers()
    server = RemotingServer(answers)
    seen: list[int] = []
    server.after_turn = lambda: lambda: seen.append(len(encoded))
    async with connected(server) as (stream, decoder):
        await stream.send_all(ask(1) + ask(2))
        await until_asked(answers, 2)
        for answer in answers:
            answer.come()
        assert await opaques(stream, decoder, 2) == [1, 2]
    assert (seen, len(encoded)) == ([0], 2)


async def test_a_poll_does_not_hold_up_another_request_of_the_connection():
    answers = Answers()
    server = RemotingServer(answers)
    polled: list[int] = []
    to_send: list[Callable[[], int]] = []

    def after_turn():
        # The client sends its next request while the first one is handled.
        if to_send:
            to_send.pop()()
        return lambda: polled.append(len(answers))

    server.after_turn = after_turn
    async with connected(server) as (stream, decoder):
        to_send.append(lambda: stream.socket._sock.send(ask(2)))
        await stream.send_all(ask(1))
        await until_asked(answers, 2)
        assert polled == [2]
        for answer in answers:
            answer.come()
        assert await opaques(stream, decoder, 2) == [1, 2]


class Poll(BusyPoll):
    """Sends what the test has prepared for this moment, and polls for it; without any it fails."""

    prepared: list[Callable[[], object]]
    calls: int

    def until(self, poll):
        type(self).calls += 1
        if not self.prepared:
            return False
        self.prepared.pop(0)()
        while not poll():
            pass
        return True


@pytest.fixture
def polls(monkeypatch):
    """Polls of all connections of a server."""
    Poll.prepared, Poll.calls = [], 0
    monkeypatch.setattr(server_connection, "BusyPoll", Poll)
    return Poll


def at_once(asked, peer):
    return response_to(asked, 0, body=asked.body)


async def test_the_next_request_of_a_client_that_is_alone_is_polled_for(polls):
    server = RemotingServer(at_once, limits=POLLS)
    async with connected(server) as (stream, decoder):
        sock = stream.socket._sock
        polls.prepared += [lambda number=number: sock.send(ask(number)) for number in range(2, 6)]
        await stream.send_all(ask(1))
        assert await opaques(stream, decoder, 5) == [1, 2, 3, 4, 5]
        await trio.testing.wait_all_tasks_blocked()
        assert polls.calls == 5
        # After a poll that failed, the client is waited for.
        await stream.send_all(ask(6))
        assert await opaques(stream, decoder, 1) == [6]


async def test_other_tasks_run_between_the_requests_of_a_client_that_is_polled_for(polls):
    """Also where each is answered at once: slaves, dispatch and timers do not wait for 16 of them."""
    handled, seen, ready = 0, [], trio.Event()

    def note(asked, peer):
        nonlocal handled
        handled += 1
        ready.set()
        return at_once(asked, peer)

    async def look():
        nonlocal ready
        while True:
            await ready.wait()
            ready = trio.Event()
            seen.append(handled)

    server = RemotingServer(note, limits=POLLS)
    async with connected(server) as (stream, decoder), trio.open_nursery() as nursery:
        nursery.start_soon(look)
        sock = stream.socket._sock
        polls.prepared += [lambda number=number: sock.send(ask(number)) for number in range(2, 31)]
        await stream.send_all(ask(1))
        for _ in range(30):
            assert await read_command(stream, decoder) is not None
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    # Of two tasks of one turn either runs first, so it may be some; they were 16.
    assert max(later - earlier for earlier, later in pairwise([0, *seen])) <= 4


async def test_the_end_of_a_client_that_is_polled_for_is_seen(polls):
    server = RemotingServer(at_once, limits=POLLS)
    async with connected(server) as (stream, decoder):
        polls.prepared.append(lambda: stream.socket._sock.shutdown(trio.socket.SHUT_WR))
        await stream.send_all(ask(1))
        assert await read_command(stream, decoder) is not None
        assert await read_command(stream, decoder) is None
    assert polls.calls == 1
    assert server.statistics.broken_connections == 0


async def test_clients_that_send_in_turn_are_not_polled_for(polls):
    server = RemotingServer(at_once, limits=POLLS)
    async with connected(server) as (one, one_decoder):
        host, port = one.socket.getpeername()
        async with await trio.open_tcp_stream(host, port) as other:
            other_decoder = type(one_decoder)()
            # The first request of all finds no other client.
            await one.send_all(ask(0))
            assert await read_command(one, one_decoder) is not None
            await trio.testing.wait_all_tasks_blocked()
            assert polls.calls == 1
            for number in range(5):
                for stream, decoder in ((other, other_decoder), (one, one_decoder)):
                    await stream.send_all(ask(number))
                    assert await read_command(stream, decoder) is not None
            await trio.testing.wait_all_tasks_blocked()
            assert polls.calls == 1
            await one.send_all(ask(9))
            assert await read_command(one, one_decoder) is not None
            await trio.testing.wait_all_tasks_blocked()
            assert polls.calls == 2


@pytest.mark.parametrize("how", ["answered", "closed", "reset"])
async def test_a_request_of_another_client_that_is_in_flight_is_not_held_up_by_polls(polls, how):
    """It may be a put that waits for slaves, or a pull that waits for messages."""
    waiting: list[Answer] = []

    def handler(asked, peer):
        if asked.opaque < 100:
            return at_once(asked, peer)
        waiting.append(Answer(asked))
        return waiting[-1]

    server = RemotingServer(handler, limits=POLLS)

    async def polls_after(number):
        before = polls.calls
        await one.send_all(ask(number))
        assert await read_command(one, one_decoder) is not None
        await trio.testing.wait_all_tasks_blocked()
        return polls.calls - before

    async with connected(server) as (one, one_decoder):
        other = await trio.open_tcp_stream(*one.socket.getpeername())
        await other.send_all(ask(100) + ask(101))
        await trio.testing.wait_all_tasks_blocked()
        await until(lambda: len(waiting) == 2)
        assert server.statistics.in_flight == 2
        # After the first request the other's ones have come meanwhile; after these only theirs are in flight.
        assert [await polls_after(number) for number in range(3)] == [0, 0, 0]
        waiting[0].come()
        assert [await polls_after(number) for number in range(2)] == [0, 0]
        if how == "answered":
            waiting[1].come()
        elif how == "reset":
            reset(other)
        else:
            await other.aclose()
        await until(lambda: not server.statistics.in_flight)
        assert [await polls_after(number) for number in range(2)] == [1, 1]
        await other.aclose()
    assert server.statistics.in_flight == 0


async def test_several_requests_or_one_that_waits_are_not_polled_after(polls):
    answers = Answers()
    server = RemotingServer(answers, limits=POLLS)
    async with connected(server) as (stream, decoder):
        await stream.send_all(ask(1))
        await until_asked(answers, 1)
        assert polls.calls == 0
        answers[0].come()
        assert await read_command(stream, decoder) is not None
        await stream.send_all(ask(2) + ask(3))
        await until_asked(answers, 3)
        for answer in answers[1:]:
            answer.come()
        for _ in range(2):
            assert await read_command(stream, decoder) is not None
        assert polls.calls == 0


async def test_one_way_requests_are_not_polled_after(polls):
    server = RemotingServer(at_once, limits=POLLS)
    async with connected(server) as (stream, decoder):
        for count in (1, 2):
            await stream.send_all(ask(0, oneway=True))
            await until(lambda count=count: server.statistics.oneway_requests >= count)
            await trio.testing.wait_all_tasks_blocked()
        assert polls.calls == 0
        await stream.send_all(ask(3))
        assert await opaques(stream, decoder, 1) == [3]
        await trio.testing.wait_all_tasks_blocked()
        assert polls.calls == 1


async def test_without_a_limit_nothing_is_polled_and_all_is_answered(polls):
    async with connected(RemotingServer(at_once)) as (stream, decoder):
        for number in range(3):
            await stream.send_all(ask(number))
            assert await opaques(stream, decoder, 1) == [number]
    assert polls.calls == 0

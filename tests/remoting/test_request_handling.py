"""From bytes to handlers and from answers to bytes, without a connection: no trio runs here."""

import pytest
from structlog.testing import capture_logs

from tests.remoting.serving import PEER_ADDRESS
from trioha.errors import RemoteProtocolError, StoreError
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.in_flight import InFlight
from trioha.remoting.memory import ClientMemory
from trioha.remoting.request_handling import RequestHandling
from trioha.remoting.serving import Peer, PendingAnswer, ServerLimits, ServerStatistics

LIMITS = ServerLimits(in_flight_max=2, frame_bytes_max=1 << 16, total_bytes_max=1 << 20)
ANSWERED, WAITS, REFUSED, DISK, BUG, LARGE, UNSENDABLE = range(1, 8)


class Untouched(PendingAnswer):
    """The test says what comes of it."""

    marks = None

    def watch(self, event, now_s):
        raise AssertionError("nothing waits here")

    def unwatch(self):
        raise AssertionError("nothing waits here")

    def is_settled(self, now_s):
        raise AssertionError("nothing waits here")

    def answer(self):
        raise AssertionError("the test gives the answer")


def handler(asked, peer):
    match asked.code:
        case 2:
            return Untouched()
        case 3:
            raise BadRequestError("not for you", code=ResponseCode.NO_PERMISSION)
        case 4:
            raise StoreError("the disk is full", path="log")
        case 5:
            raise ZeroDivisionError("planted")
        case 6:
            return response_to(asked, 0, body=bytes(900_000))
        case 7:
            return response_to(asked, 0, ext_fields={"a": "x" * (1 << 24)})
    return response_to(asked, 0, body=asked.body)


class Acks:
    """Notes the runs that it gets; answers with the opaques in hexadecimal."""

    def __init__(self):
        self.runs = []

    def answer_run(self, requests, peer):
        self.runs.append([asked.opaque for asked in requests])
        if any(asked.ext_fields.get("bug") for asked in requests):
            raise ZeroDivisionError("planted")
        return b"".join(encode(response_to(asked, 0)) for asked in requests)


class Connection:
    """The books of a connection, fed by the test."""

    def __init__(self, limits=LIMITS):
        self.acks = Acks()
        self.memory = ClientMemory(
            LIMITS.total_bytes_max, connections_max=4, frame_bytes_max=1 << 16, room_timeout_s=2
        )
        self.account = self.memory.open_account(lambda: None)
        self.counters = ServerStatistics()
        self.decoder = FrameDecoder(frame_bytes_max=LIMITS.frame_bytes_max)
        self.in_flight = InFlight(limits, self.account, self.counters)
        self.boundary = ErrorBoundary("test")
        self.handling = RequestHandling(
            Peer(PEER_ADDRESS, 1),
            self.decoder,
            self.in_flight,
            self.account,
            handler=handler,
            runs=None,
            pulls=None,
            acks=self.acks,
            counters=self.counters,
            boundary=self.boundary,
        )

    def receive(self, *frames):
        data = b"".join(frames)
        self.account.receive(len(data))
        self.decoder.feed(data)

    def answers(self):
        """What was sent, as commands."""
        decoder = FrameDecoder()
        self.in_flight.take_outbox()
        decoder.feed(b"".join(self.in_flight.sending))
        self.in_flight.sending = []
        self.in_flight.sent()
        return list(iter(decoder.next_command, None))


@pytest.fixture
def connection():
    return Connection()


def ask(code, number=7, **options):
    return encode(request(code, **options), opaque=number)


def test_requests_are_handled_in_their_order_and_their_answers_are_sent_together(connection):
    first, second = ask(ANSWERED, 1, body=b"a"), ask(ANSWERED, 2, body=b"b")
    connection.receive(first + second[:9])
    assert [connection.handling.handle_next(16) for _ in range(2)] == [1, 0]
    connection.receive(second[9:])
    assert [connection.handling.handle_next(16) for _ in range(2)] == [1, 0]
    assert [(answer.opaque, answer.body) for answer in connection.answers()] == [(1, b"a"), (2, b"b")]
    assert connection.memory.held_bytes == 0


def test_a_request_that_waits_is_given_out_and_one_beyond_the_limit_is_blocked_until_it_is_answered(
    connection,
):
    handling = connection.handling
    connection.receive(ask(WAITS, 1), ask(WAITS, 2), ask(ANSWERED, 3))
    assert [handling.handle_next(16) for _ in range(4)] == [1, 1, 0, 0]
    assert handling.blocked is not None
    assert [wait.request.opaque for wait in handling.waits] == [1, 2]
    second = handling.waits[1]
    handling.done(second, response_to(second.request, 0))
    # An answer is in flight until it was sent.
    assert handling.handle_next(16) == 0
    assert [answer.opaque for answer in connection.answers()] == [2]
    assert (handling.handle_next(16), handling.blocked) == (1, None)
    assert [answer.opaque for answer in connection.answers()] == [3]


@pytest.mark.parametrize(
    ("code", "answered", "remark", "bugs"),
    [
        (REFUSED, ResponseCode.NO_PERMISSION, "not for you", 0),
        (DISK, ResponseCode.SYSTEM_ERROR, "the disk is full", 0),
        (BUG, ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: planted", 1),
        (LARGE, ResponseCode.SYSTEM_BUSY, "the memory for clients is used up", 0),
        (UNSENDABLE, ResponseCode.SYSTEM_ERROR, "", 1),
    ],
)
def test_what_a_handler_raises_and_what_cannot_be_sent_is_answered(connection, code, answered, remark, bugs):
    connection.receive(ask(code), ask(ANSWERED, 8))
    with capture_logs() as logs:
        assert [connection.handling.handle_next(16) for _ in range(3)] == [1, 1, 0]
    error, following = connection.answers()
    assert (error.code, error.opaque, following.opaque) == (answered, 7, 8)
    assert remark in error.remark
    assert (len(logs), connection.boundary.bugs, connection.counters.handler_errors) == (bugs, bugs, bugs)
    assert connection.memory.held_bytes == 0


def test_oneway_requests_and_responses_of_a_peer_leave_nothing_behind(connection):
    connection.receive(ask(ANSWERED, oneway=True), encode(response_to(request(1), 0)))
    assert [connection.handling.handle_next(16) for _ in range(2)] == [1, 0]
    assert (connection.counters.oneway_requests, connection.counters.unexpected_responses) == (1, 1)
    assert connection.in_flight.is_idle
    assert connection.memory.held_bytes == 0


def test_what_is_no_frame_is_an_error_of_the_peer_after_the_requests_before_it(connection):
    connection.receive(ask(ANSWERED), b"\xff" * 8)
    assert connection.handling.handle_next(16) == 1
    with pytest.raises(RemoteProtocolError):
        connection.handling.handle_next(16)


def test_acknowledgements_that_come_together_are_one_run_that_ends_before_any_other_request():
    connection = Connection(ServerLimits(in_flight_max=5, frame_bytes_max=1 << 16, total_bytes_max=1 << 20))
    ack, handling = RequestCode.ACK_MESSAGE, connection.handling
    connection.receive(ask(ack, 1), ask(ack, 2), ask(ANSWERED, 3), ask(ack, 4, oneway=True), ask(ack, 5)[:-1])
    assert [handling.handle_next(16) for _ in range(4)] == [2, 1, 1, 0]
    assert (connection.acks.runs, handling.blocked) == ([[1, 2]], None)
    assert [answer.opaque for answer in connection.answers()] == [1, 2, 3]
    # No more than may be handled now; none for which there is no room.
    connection.receive(ask(ack, 5)[-1:], *[ask(ack, number) for number in range(6, 11)])
    assert [handling.handle_next(most) for most in (2, 16, 16)] == [2, 3, 0]
    assert handling.blocked.command.opaque == 10
    assert [answer.opaque for answer in connection.answers()] == [5, 6, 7, 8, 9]
    assert (handling.handle_next(16), handling.blocked) == (1, None)
    assert connection.acks.runs[1:] == [[5, 6], [7, 8, 9], [10]]
    assert [answer.opaque for answer in connection.answers()] == [10]
    assert connection.memory.held_bytes == 0


def test_acknowledgements_before_what_is_no_frame_are_handled_and_a_bug_is_answered_to_each(connection):
    ack = RequestCode.ACK_MESSAGE
    connection.receive(ask(ack, 1, ext_fields={"bug": "1"}), ask(ack, 2), b"\0\0\0\1")
    with capture_logs():
        assert connection.handling.handle_next(16) == 2
    assert [(one.opaque, one.code) for one in connection.answers()] == [(1, 1), (2, 1)]
    with pytest.raises(RemoteProtocolError):
        connection.handling.handle_next(16)

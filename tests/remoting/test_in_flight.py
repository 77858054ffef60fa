"""What is in flight on a connection, without a connection: no trio runs here."""

import pytest

from trioha.remoting.in_flight import COPIED_BYTES_MAX, InFlight
from trioha.remoting.memory import ClientMemory
from trioha.remoting.serving import ServerLimits, ServerStatistics

LIMITS = ServerLimits(
    in_flight_max=4, in_flight_bytes_max=10_000, frame_bytes_max=1024, total_bytes_max=1 << 20
)


class Connection:
    """The books of a connection, which is played by the test."""

    def __init__(self, limits=LIMITS):
        self.memory = ClientMemory(
            limits.total_bytes_max, connections_max=4, frame_bytes_max=1024, room_timeout_s=2
        )
        self.account = self.memory.open_account(lambda: None)
        self.counters = ServerStatistics()
        self.in_flight = InFlight(limits, self.account, self.counters)

    def begin(self, requests=1, *, cost_bytes):
        self.account.change(cost_bytes)
        self.in_flight.begin(requests, cost_bytes)

    def send(self, sent_bytes=None):
        """Take the outbox, and send all of it or so many bytes; what was sent."""
        self.in_flight.take_outbox()
        data = b"".join(self.in_flight.sending)
        sent = data[:sent_bytes]
        self.in_flight.sending = [data[len(sent) :]] if len(sent) < len(data) else []
        if not self.in_flight.sending:
            self.in_flight.sent()
        return sent


@pytest.fixture
def connection():
    return Connection()


def test_a_request_is_in_flight_until_its_answer_was_sent(connection):
    in_flight, counters = connection.in_flight, connection.counters
    connection.begin(cost_bytes=5000)
    assert (in_flight.requests, counters.in_flight, connection.memory.held_bytes) == (1, 1, 5000)
    in_flight.answer((b"head", b"body"), 8, cost_bytes=5000)
    assert (in_flight.requests, in_flight.answered, connection.memory.held_bytes) == (1, 1, 8)
    assert not in_flight.is_idle
    assert connection.send() == b"headbody"
    assert in_flight.is_idle
    assert (counters.requests, counters.responses, counters.in_flight) == (1, 1, 0)
    assert connection.memory.held_bytes == 0


def test_answers_that_come_during_a_send_wait_for_its_end(connection):
    in_flight = connection.in_flight
    for number in range(3):
        connection.begin(cost_bytes=100)
        in_flight.answer((b"%d" % number,), 1, cost_bytes=100)
    assert connection.send(1) == b"0"
    connection.begin(cost_bytes=100)
    in_flight.answer((b"3",), 1, cost_bytes=100)
    assert (in_flight.requests, in_flight.answered, in_flight.sending) == (4, 1, [b"12"])
    assert connection.memory.held_bytes == 4
    in_flight.sending.clear()
    in_flight.sent()
    assert (in_flight.requests, connection.memory.held_bytes) == (1, 1)
    assert connection.send() == b"3"
    assert in_flight.is_idle


def test_a_run_counts_as_its_sends_and_a_oneway_run_leaves_without_an_answer(connection):
    in_flight, counters = connection.in_flight, connection.counters
    connection.begin(3, cost_bytes=900)
    in_flight.answer((b"abc",), 3, requests=3, cost_bytes=900)
    connection.begin(1, cost_bytes=300)
    in_flight.end(1, 300)
    assert (counters.requests, counters.responses, in_flight.requests) == (4, 3, 3)
    assert connection.memory.held_bytes == 3


def test_limits_are_of_requests_and_of_bytes_and_one_request_is_always_allowed(connection):
    in_flight = connection.in_flight
    assert in_flight.allows(1, 1_000_000)
    assert not in_flight.allows(5, 0)
    connection.begin(cost_bytes=4000)
    assert (in_flight.allows(3, 6000), in_flight.allows(4, 0), in_flight.allows(1, 6001)) == (
        True,
        False,
        False,
    )
    in_flight.answer((bytes(9000),), 9000, cost_bytes=4000)
    # An answer counts until it was sent, also while it is.
    assert (in_flight.allows(1, 1000), in_flight.allows(1, 1001)) == (True, False)
    connection.send(8999)
    assert (in_flight.allows(1, 1000), in_flight.allows(1, 1001)) == (True, False)
    in_flight.sending.clear()
    in_flight.sent()
    assert in_flight.allows(4, 10_000)


def test_a_pushed_frame_is_sent_in_its_order_and_is_no_answer(connection):
    in_flight, counters = connection.in_flight, connection.counters
    in_flight.push(b"pushed")
    connection.begin(cost_bytes=10)
    in_flight.answer((b"answer",), 6, cost_bytes=10)
    assert (in_flight.requests, connection.memory.held_bytes, in_flight.has_outgoing) == (1, 12, True)
    assert connection.send() == b"pushedanswer"
    assert (counters.responses, in_flight.is_idle, connection.memory.held_bytes) == (1, True, 0)


@pytest.mark.parametrize("is_copied", [True, False])
def test_short_slices_are_copied_and_long_ones_are_sent_as_they_are(connection, is_copied):
    in_flight = connection.in_flight
    data = bytes(COPIED_BYTES_MAX - 1 if is_copied else COPIED_BYTES_MAX)
    view = memoryview(data)
    connection.begin(cost_bytes=100)
    in_flight.answer((b"h",), 1 + len(data), cost_bytes=100, slices=(view,))
    assert in_flight.has_slices is not is_copied
    in_flight.take_outbox()
    assert len(in_flight.sending) == (1 if is_copied else 2)
    assert b"".join(in_flight.sending) == b"h" + data
    in_flight.close()
    with pytest.raises(ValueError, match="released"):
        len(view)
    assert connection.counters.in_flight == 0


def test_an_answer_fits_if_it_is_no_longer_than_its_request_or_the_memory_has_room(connection):
    in_flight, memory = connection.in_flight, connection.memory
    connection.begin(cost_bytes=500)
    assert in_flight.fits(400_000, cost_bytes=500)
    memory.open_account(lambda: None).change(memory.shared_bytes - memory.held_bytes)
    assert in_flight.fits(500, cost_bytes=500)
    assert not in_flight.fits(400_000, cost_bytes=500)

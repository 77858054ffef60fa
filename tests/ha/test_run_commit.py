"""Runs of puts: appended together, answered as if each had waited for itself."""

from struct import pack

import pytest
import trio

from tests.ha.support import Events
from tests.ha.test_group_commit import acknowledge, made
from trioha.ha.meter import LagClock
from trioha.recording.events import Kind
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus

OK = PutStatus.PUT_OK
NO_SLAVE = PutStatus.SLAVE_NOT_AVAILABLE
SLAVE_LATE = PutStatus.FLUSH_SLAVE_TIMEOUT
DISK_LATE = PutStatus.FLUSH_DISK_TIMEOUT
STARTS = [100, 110, 130]
END = 160
PLACES = b"".join(pack(">qq", start, 0) for start in STARTS)


def run_of(commit):
    """Three puts that end at 110, 130 and 160, and the answers that were given."""
    appended = AppendResult(
        OK, physical_offset=STARTS[0], size=END - STARTS[0], batch_offsets=STARTS, places=PLACES
    )
    answers = []
    deferred = commit.begin_run(
        appended, request_id=7, answer=lambda statuses, _, now_s: (statuses, now_s), expected=lambda: "ok"
    )
    deferred.attach(lambda ready: answers.append(ready.result()))
    return deferred, answers


@pytest.fixture
def make(nursery):
    """Makes a group commit that runs, and one of its replicas, which holds 100 bytes."""

    def make(**options):
        commit, replicas, flushed, events = made(**options)
        acknowledge(replicas, "a", 100)
        nursery.start_soon(commit.run)
        return commit, replicas, flushed, events

    return make


async def test_all_puts_of_a_run_are_ok_when_the_last_one_is_replicated(make, autojump_clock):
    commit, replicas, *_ = make()
    deferred, answers = run_of(commit)
    assert deferred.expected() == "ok"
    assert commit._waiting == 3
    acknowledge(replicas, "a", 159)
    assert not answers
    acknowledge(replicas, "a", 160)
    assert answers == [(None, trio.current_time())]
    assert commit._waiting == 0


@pytest.mark.parametrize(
    ("ack_offset", "statuses"),
    [
        (100, [SLAVE_LATE, SLAVE_LATE, SLAVE_LATE]),
        (109, [SLAVE_LATE, SLAVE_LATE, SLAVE_LATE]),
        (110, [OK, SLAVE_LATE, SLAVE_LATE]),
        (159, [OK, OK, SLAVE_LATE]),
    ],
)
async def test_at_the_deadline_each_put_gets_the_status_that_it_had_alone(
    make, autojump_clock, ack_offset, statuses
):
    commit, replicas, _, events = make()
    _, answers = run_of(commit)
    acknowledge(replicas, "a", ack_offset)
    await trio.sleep(10)
    assert answers == [(statuses, 3.0)]
    assert [event[2:] for event in events.of(Kind.WAIT_END)] == [
        (end, 7 + number, 3_000_000, int(status))
        for number, (end, status) in enumerate(zip((110, 130, 160), statuses, strict=True))
    ]


async def test_a_late_disk_and_a_late_slave_are_told_apart_for_each_put(make, autojump_clock):
    commit, replicas, flushed, _ = make(sync_flush=True)
    _, answers = run_of(commit)
    acknowledge(replicas, "a", 130)
    flushed.advance(110)
    await trio.sleep(10)
    assert answers == [([OK, DISK_LATE, SLAVE_LATE], 5.0)]


async def test_copies_that_come_after_the_deadline_change_no_status(make, autojump_clock):
    commit, replicas, flushed, _ = make(sync_flush=True)
    _, answers = run_of(commit)
    await trio.sleep(4)
    acknowledge(replicas, "a", END)
    flushed.advance(END)
    assert answers == [([SLAVE_LATE] * 3, 4.0)]


async def test_puts_of_a_run_whose_bytes_were_cut_are_not_ok(make, autojump_clock):
    commit, _, flushed, _ = make(need=0, sync_flush=True)
    _, answers = run_of(commit)
    flushed.advance(130)
    flushed.rewind(0)
    assert answers == [([DISK_LATE] * 3, 0.0)]


async def test_a_run_without_an_eligible_slave_is_answered_at_once(make, autojump_clock):
    commit, replicas, _, events = made()
    replicas.acknowledge(1, replica="a", ack_offset=100, lag_clock=LagClock())
    replicas.forget(1)
    deferred, answers = run_of(commit)
    assert deferred.expected() is None
    assert answers == [([NO_SLAVE] * 3, 0.0)]
    assert isinstance(events, Events)
    assert [event[2:] for event in events.of(Kind.PUT)] == [(110, 7, 10, 0), (130, 8, 20, 0), (160, 9, 30, 0)]
    assert [event[2:5] for event in events.of(Kind.WAIT_BEGIN)] == [(110, 7, 2), (130, 8, 2), (160, 9, 2)]


async def test_an_abandoned_run_waits_no_more(make, autojump_clock):
    commit, replicas, flushed, _ = make(sync_flush=True)
    deferred, answers = run_of(commit)
    deferred.abandon()
    assert (replicas.copies(1).waiting, flushed.waiting, answers, commit._waiting) == (0, 0, [], 0)

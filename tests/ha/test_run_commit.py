"""Runs of puts: appended together, answered as if each had waited for itself."""

from struct import pack

import pytest
import trio

from tests.ha.test_group_commit import acknowledge, made
from trioha.recording.events import Kind
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus

OK = PutStatus.PUT_OK
NO_SLAVE = PutStatus.SLAVE_NOT_AVAILABLE
SLAVE_LATE = PutStatus.FLUSH_SLAVE_TIMEOUT
DISK_LATE = PutStatus.FLUSH_DISK_TIMEOUT
STARTS = [100, 110, 130]
END = 160
PUT_OFFSETS = b"".join(pack(">qq", start, 0) for start in STARTS)


def run_of(commit):
    """Three puts that end at 110, 130 and 160."""
    appended = AppendResult(
        OK, physical_offset=STARTS[0], size=END - STARTS[0], batch_offsets=STARTS, put_offsets=PUT_OFFSETS
    )
    return commit.begin(appended, request_id=7)


async def answers(commit, run):
    """The statuses of a run, and when they are known."""
    await run.settled()
    return commit.end(run), trio.current_time()


def with_replica(**options):
    """A group commit, and its replica, which holds 100 bytes."""
    commit, replicas, flushed, events = made(**options)
    acknowledge(replicas, "a", 100)
    return commit, replicas, flushed, events


async def test_all_puts_of_a_run_are_ok_when_the_last_one_is_replicated(autojump_clock):
    commit, replicas, *_ = with_replica()
    run = run_of(commit)
    acknowledge(replicas, "a", 159)
    assert not run.is_settled(trio.current_time())
    acknowledge(replicas, "a", 160)
    assert await answers(commit, run) == (None, 0.0)


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
    autojump_clock, ack_offset, statuses
):
    commit, replicas, _, events = with_replica()
    run = run_of(commit)
    acknowledge(replicas, "a", ack_offset)
    assert await answers(commit, run) == (statuses, 3.0)
    assert [event[2:] for event in events.of(Kind.WAIT_END)] == [
        (end, 7 + number, 3_000_000, int(status))
        for number, (end, status) in enumerate(zip((110, 130, 160), statuses, strict=True))
    ]


async def test_a_late_disk_and_a_late_slave_are_told_apart_for_each_put(autojump_clock):
    commit, replicas, flushed, _ = with_replica(sync_flush=True)
    run = run_of(commit)
    acknowledge(replicas, "a", 130)
    flushed.advance(110)
    assert await answers(commit, run) == ([OK, DISK_LATE, SLAVE_LATE], 5.0)


async def test_puts_of_a_run_whose_bytes_were_cut_are_not_ok(autojump_clock):
    commit, _, flushed, _ = with_replica(need=0, sync_flush=True)
    run = run_of(commit)
    flushed.advance(130)
    flushed.rewind(0)
    flushed.advance(END)
    assert await answers(commit, run) == ([DISK_LATE] * 3, 0.0)


async def test_a_run_without_an_eligible_slave_is_answered_at_once(autojump_clock):
    commit, _, _, events = made()
    assert await answers(commit, run_of(commit)) == ([NO_SLAVE] * 3, 0.0)
    assert [event[2:] for event in events.of(Kind.PUT)] == [(110, 7, 10, 0), (130, 8, 20, 0), (160, 9, 30, 0)]
    assert [event[2:5] for event in events.of(Kind.WAIT_BEGIN)] == [(110, 7, 2), (130, 8, 2), (160, 9, 2)]

"""Group commit: what puts wait for and how they are answered."""

from functools import partial
from struct import pack

import pytest
import trio
from attrs import evolve

from tests.ha.support import Events, connected, make_master, settled
from tests.store.support import message, open_log
from trioha.ha.group_commit import PUSHED_PUTS_MAX, GroupCommit, GroupCommitSettings
from trioha.ha.meter import LagClock
from trioha.ha.replicas import Replicas
from trioha.recording.events import Kind
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.watermark import Watermark


@pytest.fixture
def make(nursery):
    """Makes (a group commit that runs until the test ends, its replicas, the flushed mark, its events)."""

    def make(**options):
        commit, *rest = made(**options)
        nursery.start_soon(commit.run)
        return commit, *rest

    return make


def made(*, need=1, sync_flush=False, gap_bytes_max=1000, **options):
    replicas = Replicas(gap_bytes_max=gap_bytes_max)
    flushed = Watermark()
    events = Events()
    settings = GroupCommitSettings(
        copies_needed=need,
        slave_timeout_s=3.0,
        sync_flush=sync_flush,
        sync_flush_timeout_s=5.0,
        **options,
    )
    return GroupCommit(settings, replicas=replicas, flushed=flushed, sink=events), replicas, flushed, events


def acknowledge(replicas, replica, ack_offset, *, connection_id=None):
    replicas.acknowledge(
        connection_id or ord(replica), replica=replica, ack_offset=ack_offset, lag_clock=LagClock()
    )


def begin_in_task(commit, appended, **options):
    return commit.wait(appended, **options)


def begin_deferred(commit, appended, **options):
    deferred = commit.begin(appended, **options)
    commit.end_turn()
    return deferred


def begin_run(commit, appended, *, request_id, answer):
    """The put as a run of one."""
    appended = evolve(
        appended, batch_offsets=[appended.physical_offset], places=pack(">qq", appended.physical_offset, 0)
    )
    deferred = commit.begin_run(
        appended,
        request_id=request_id,
        answer=lambda statuses, appended, now_s: answer(
            PutStatus.PUT_OK if statuses is None else statuses[0], appended, now_s
        ),
    )
    commit.end_turn()
    return deferred


async def outcome(commit, end_offset, *, request_id=1, start_offset=None, begin=begin_deferred):
    started = trio.current_time()
    start = end_offset - 10 if start_offset is None else start_offset
    appended = AppendResult(PutStatus.PUT_OK, physical_offset=start, size=end_offset - start)
    status, now_s = await begin(
        commit, appended, request_id=request_id, answer=lambda status, _appended, now_s: (status, now_s)
    )
    assert now_s == trio.current_time()
    return status, now_s - started


async def after(seconds, action, *args):
    await trio.sleep(seconds)
    action(*args)


async def test_without_a_slave_a_put_is_answered_at_once(make, autojump_clock):
    commit, *_ = make()
    assert commit.waits
    assert await outcome(commit, 100) == (PutStatus.SLAVE_NOT_AVAILABLE, 0.0)


@pytest.mark.parametrize(
    ("acks", "expected"),
    [
        ([(1, 99), (2, 100)], (PutStatus.PUT_OK, 2.0)),
        ([(1, 99)], (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)),
        ([(1, None)], (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)),
    ],
    ids=["it has the put", "it has not", "it leaves"],
)
async def test_a_put_waits_for_a_slave_and_no_longer_than_3_s(make, acks, expected, autojump_clock):
    commit, replicas, _, _ = make()
    acknowledge(replicas, "a", 50)
    async with trio.open_nursery() as nursery:
        for at_s, offset in acks:
            action = (replicas.forget, ord("a")) if offset is None else (acknowledge, replicas, "a", offset)
            nursery.start_soon(after, at_s, *action)
        assert await outcome(commit, 100) == expected
    assert replicas.copies(1).waiting == 0


@pytest.mark.parametrize(
    ("ack_offset", "status"), [(100, "FLUSH_SLAVE_TIMEOUT"), (99, "SLAVE_NOT_AVAILABLE")]
)
async def test_a_slave_counts_only_if_its_lag_is_strictly_below_the_gap(
    make, ack_offset, status, autojump_clock
):
    commit, replicas, _, _ = make(gap_bytes_max=1001)
    acknowledge(replicas, "a", ack_offset)
    assert (await outcome(commit, 1100))[0] is PutStatus[status]


async def test_k_copies_need_k_distinct_replicas(make, autojump_clock):
    commit, replicas, _, _ = make(need=2)
    acknowledge(replicas, "a", 100, connection_id=1)
    acknowledge(replicas, "a", 100, connection_id=2)
    assert await outcome(commit, 100) == (PutStatus.SLAVE_NOT_AVAILABLE, 0.0)
    acknowledge(replicas, "b", 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "b", 100)
        assert await outcome(commit, 100) == (PutStatus.PUT_OK, 1.0)


async def test_a_replica_keeps_its_ack_while_one_of_its_connections_lives(make, autojump_clock):
    _, replicas, _, _ = make()
    acknowledge(replicas, "a", 70, connection_id=1)
    acknowledge(replicas, "a", 90, connection_id=2)
    replicas.forget(2)
    assert (replicas.copies(1).offset, replicas.eligible_count(100)) == (70, 1)
    replicas.forget(1)
    replicas.forget(1)
    assert (replicas.copies(1).offset, replicas.eligible_count(100)) == (0, 0)


async def test_one_stuck_put_delays_no_other(make, autojump_clock):
    commit, replicas, _, _ = make()
    acknowledge(replicas, "a", 50)
    results = {}

    async def put(end_offset):
        results[end_offset] = await outcome(commit, end_offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, 1000)
        nursery.start_soon(put, 100)
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 100)
    assert results == {1000: (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0), 100: (PutStatus.PUT_OK, 1.0)}


@pytest.mark.parametrize("begin", [begin_in_task, begin_deferred, begin_run])
@pytest.mark.parametrize(
    ("flushed_at", "acked_at", "expected"),
    [
        (1, 2, (PutStatus.PUT_OK, 2.0)),
        (2, 1, (PutStatus.PUT_OK, 2.0)),
        (4, 1, (PutStatus.PUT_OK, 4.0)),
        (9, 1, (PutStatus.FLUSH_DISK_TIMEOUT, 5.0)),
        (1, 9, (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)),
        (4, 9, (PutStatus.FLUSH_SLAVE_TIMEOUT, 4.0)),
        (9, 9, (PutStatus.FLUSH_SLAVE_TIMEOUT, 5.0)),
        # An ack after its deadline does not count, however long the disk takes.
        (4.5, 3.5, (PutStatus.FLUSH_SLAVE_TIMEOUT, 4.5)),
    ],
)
async def test_disk_and_replica_are_waited_for_side_by_side(
    *, make, flushed_at, acked_at, expected, begin, autojump_clock
):
    commit, replicas, flushed, events = make(sync_flush=True)
    acknowledge(replicas, "a", 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, flushed_at, flushed.advance, 100)
        nursery.start_soon(after, acked_at, acknowledge, replicas, "a", 100)
        assert await outcome(commit, 100, begin=begin) == expected
        nursery.cancel_scope.cancel()
    status, waited_s = expected
    assert [event[0] for event in events.seen] == [Kind.PUT, Kind.WAIT_BEGIN, Kind.WAIT_END]
    assert events.seen[-1][4:] == (round(waited_s * 1e6), status)


@pytest.mark.parametrize(("need", "status"), [(0, PutStatus.PUT_OK), (1, PutStatus.SLAVE_NOT_AVAILABLE)])
async def test_without_a_slave_sync_flush_still_waits_for_the_disk(make, need, status, autojump_clock):
    commit, _, flushed, _ = make(need=need, sync_flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, flushed.advance, 100)
        assert await outcome(commit, 100) == (status, 1.0)
    assert commit.waits
    assert not made(need=0)[0].waits


@pytest.mark.parametrize("begin", [begin_in_task, begin_deferred, begin_run])
async def test_every_wait_is_recorded_with_one_begin_and_one_end(make, begin, autojump_clock):
    commit, replicas, _, events = make()
    acknowledge(replicas, "a", 50)
    await outcome(commit, 100, request_id=7, begin=begin)
    await outcome(commit, 40, request_id=8, begin=begin)
    await outcome(commit, 5000, request_id=9, begin=begin)
    assert [(event[2], event[3], event[4]) for event in events.of(Kind.WAIT_BEGIN)] == [
        (100, 7, 2),
        (40, 8, 2),
        (5000, 9, 2),
    ]
    assert [event[2:] for event in events.of(Kind.WAIT_END)] == [
        (100, 7, 3_000_000, PutStatus.FLUSH_SLAVE_TIMEOUT),
        (40, 8, 0, PutStatus.PUT_OK),
        (5000, 9, 0, PutStatus.SLAVE_NOT_AVAILABLE),
    ]


async def test_below_the_minimum_in_sync_nothing_may_be_stored(make, autojump_clock):
    commit, replicas, _, _ = make(need=1, copies_min=1)
    assert commit.refusal(100) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    acknowledge(replicas, "a", 50)
    assert commit.refusal(100) is None
    assert commit.refusal(1050) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    without_minimum, *_ = make(need=1)
    assert without_minimum.refusal(100) is None


async def test_auto_mode_needs_what_is_in_sync_and_no_less_than_the_minimum(make, autojump_clock):
    commit, replicas, _, _ = make(need=2, lowers_need=True)
    assert await outcome(commit, 100) == (PutStatus.PUT_OK, 0.0)
    acknowledge(replicas, "a", 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 100)
        assert await outcome(commit, 100) == (PutStatus.PUT_OK, 1.0)
    with_minimum, *_ = make(need=2, lowers_need=True, copies_min=1)
    assert await outcome(with_minimum, 100) == (PutStatus.SLAVE_NOT_AVAILABLE, 0.0)


async def test_all_in_sync_waits_for_every_replica_that_is(make, autojump_clock):
    commit, replicas, _, _ = make(need=1, all_in_sync=True)
    for replica in "abc":
        acknowledge(replicas, replica, 5000)
    acknowledge(replicas, "d", 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 5100)
        nursery.start_soon(after, 2, acknowledge, replicas, "b", 5100)
        nursery.start_soon(after, 2.5, acknowledge, replicas, "c", 5100)
        assert await outcome(commit, 5100) == (PutStatus.PUT_OK, 2.5)


async def test_10_000_waiting_puts_are_released_by_one_ack_each_at_its_own_offset(make, autojump_clock):
    commit, replicas, _, _ = make(gap_bytes_max=1 << 30)
    acknowledge(replicas, "a", 0)
    results = {}

    async def put(end_offset):
        results[end_offset] = await outcome(commit, end_offset)

    async with trio.open_nursery() as nursery:
        for end_offset in range(1, 10_001):
            nursery.start_soon(put, end_offset)
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 4_000)
        nursery.start_soon(after, 2, acknowledge, replicas, "a", 9_000)
    ended = [results[end_offset] for end_offset in (1, 4_000, 4_001, 9_000, 9_001, 10_000)]
    ok, late = (PutStatus.PUT_OK, 1.0), (PutStatus.PUT_OK, 2.0)
    assert ended == [ok, ok, late, late, *[(PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)] * 2]


# -- observers and taps: they receive everything and acknowledge nothing ------------------------------------


def observe(replicas, connection_id, claim_offset):
    """First report of a connection that lags."""
    replicas.acknowledge(
        connection_id,
        replica=chr(connection_id),
        ack_offset=claim_offset,
        has_unsent=True,
        lag_clock=LagClock(),
    )


async def test_an_observer_holds_up_no_put_and_counts_for_no_minimum(make, autojump_clock):
    commit, replicas, _, _ = make(need=1, all_in_sync=True, copies_min=1)
    observe(replicas, 2, 10)
    assert commit.refusal(100) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    acknowledge(replicas, "a", 90)
    assert commit.refusal(100) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 100)
        assert await outcome(commit, 100) == (PutStatus.PUT_OK, 1.0)
    commit, replicas, _, _ = make(need=1, lowers_need=True)
    observe(replicas, 1, 10)
    assert await outcome(commit, 100) == (PutStatus.PUT_OK, 0.0)


async def test_a_slave_that_lags_is_in_sync_from_its_first_ack_on(make, autojump_clock):
    commit, replicas, _, _ = make(need=1, all_in_sync=True)
    acknowledge(replicas, "a", 100)
    observe(replicas, ord("b"), 10)
    assert replicas.in_sync_count(100) == 1
    acknowledge(replicas, "b", 20)
    assert replicas.in_sync_count(100) == 2
    assert await outcome(commit, 100) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)


@pytest.mark.parametrize("asked_every_s", [None, 0.1])
async def test_a_slave_whose_ack_is_due_for_15_s_is_not_eligible_until_its_next_ack(
    tmp_path, autojump_clock, asked_every_s
):
    log, _ = open_log(tmp_path)
    stored = log.append(message())
    master, replicas, _ = make_master(log)

    async def ask():
        while asked_every_s is not None:
            replicas.eligible_count(log.max_offset + 1)
            master.connections()
            await trio.sleep(asked_every_s)

    async def until(at_s):
        await trio.sleep_until(at_s)
        return replicas.eligible_count(log.max_offset)

    async with connected(master) as (peer, _), trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await peer.report(stored.end_offset)
        # No ack is due, however long it only repeats its report.
        for _ in range(100):
            await trio.sleep(10)
            await peer.report(stored.end_offset)
        assert replicas.eligible_count(log.max_offset) == 1
        first = log.append(message())
        appended_s = trio.current_time()
        # An ack is due since the append, whether it is checked meanwhile or not.
        assert await until(appended_s + 14.9) == 1
        second = log.append(message())
        assert await until(appended_s + 15) == 0
        await peer.report(first.end_offset)
        await settled()
        assert replicas.eligible_count(log.max_offset) == 1
        # The second append is as old, but an ack is due since the last one.
        assert await until(appended_s + 29.9) == 1
        assert await until(appended_s + 30) == 0
        await peer.report(second.end_offset)
        await settled()
        assert replicas.eligible_count(log.max_offset) == 1
        nursery.cancel_scope.cancel()


# -- claims: what a connection says before anything was sent on it -----------------------------------------


def claim(replicas, connection_id, ack_offset, *, replica=None):
    """First report of a connection, of a named replica or of one that is distinct by connection."""
    name = replica or f"connection {connection_id}"
    replicas.acknowledge(
        connection_id,
        replica=name,
        ack_offset=ack_offset,
        is_stable_identity=replica is not None,
        lag_clock=LagClock(),
    )


@pytest.mark.parametrize(
    ("connection", "expected"), [(2, (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)), (1, (PutStatus.PUT_OK, 2.0))]
)
async def test_a_claim_and_the_acks_after_it_release_no_put_that_was_already_waiting(
    make, connection, expected, autojump_clock
):
    commit, replicas, _, _ = make()
    claim(replicas, 1, 50)
    ack = partial(acknowledge, replicas, f"connection {connection}", 500, connection_id=connection)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, claim, replicas, 2, 100)
        nursery.start_soon(after, 2, ack)
        assert await outcome(commit, 100) == expected


async def test_a_new_connection_counts_for_puts_after_its_claim(make, autojump_clock):
    commit, replicas, _, _ = make()
    claim(replicas, 1, 50)
    results = {}

    async def put(end_offset, delay):
        await trio.sleep(delay)
        results[end_offset] = await outcome(commit, end_offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, 100, 0)
        nursery.start_soon(after, 1, claim, replicas, 2, 100)
        nursery.start_soon(put, 200, 1.5)
        nursery.start_soon(after, 2, partial(acknowledge, replicas, "connection 2", 200, connection_id=2))
    assert results == {100: (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0), 200: (PutStatus.PUT_OK, 0.5)}
    # No put waits any more: the next connection needs no view of its own.
    claim(replicas, 3, 200)
    assert len(replicas._quorum_views) == 1


async def test_a_known_slave_that_requests_the_bytes_again_releases_the_put_with_its_ack(
    make, autojump_clock
):
    commit, replicas, _, _ = make()
    claim(replicas, 1, 50, replica="10.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 0.5, replicas.forget, 1)
        nursery.start_soon(after, 1, partial(claim, replicas, 2, 80, replica="10.0.0.1"))
        nursery.start_soon(
            after,
            2,
            partial(claim, replicas, 2, 100, replica="10.0.0.1"),
        )
        assert await outcome(commit, 100, start_offset=90) == (PutStatus.PUT_OK, 2.0)


async def test_a_slave_distinct_by_connection_is_not_two_copies_while_its_old_connection_lasts(
    make, autojump_clock
):
    commit, replicas, _, _ = make(need=2)
    claim(replicas, 1, 50)
    claim(replicas, 2, 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 0.5, partial(acknowledge, replicas, "connection 1", 100, connection_id=1))
        # The same slave again: it requests from before the put, receives it, and acknowledges it.
        nursery.start_soon(after, 1, claim, replicas, 3, 20)
        nursery.start_soon(after, 2, partial(claim, replicas, 3, 100))
        assert await outcome(commit, 100) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)


async def test_quorum_views_without_waiting_puts_are_dropped(make, autojump_clock):
    commit, replicas, _, _ = make()
    claim(replicas, 1, 10**6)
    for number in range(1000):
        assert (await outcome(commit, 500 + number))[0] is PutStatus.PUT_OK
    assert replicas.current.waiting_from is None
    assert len(commit._replica_timeouts._waits) <= 1


# -- with a real connection below it ------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    return log


def commit_on(nursery, log, replicas, events, **options):
    settings = GroupCommitSettings(
        copies_needed=1, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0, **options
    )
    commit = GroupCommit(settings, replicas=replicas, flushed=log.flushed, sink=events)
    nursery.start_soon(commit.run)
    return commit


async def test_a_forged_ack_releases_no_put(log, nursery, autojump_clock):
    master, replicas, events = make_master(log)
    commit = commit_on(nursery, log, replicas, events)
    async with connected(master) as (peer, _):
        # A peer without a report is not a slave.
        assert (await outcome(commit, log.max_offset))[0] is PutStatus.SLAVE_NOT_AVAILABLE
        await peer.report(log.max_offset)
        await settled()
        await peer.report(10**9)
        await settled()
        stored = log.append(message())
        assert (await outcome(commit, stored.end_offset))[0] is PutStatus.SLAVE_NOT_AVAILABLE


async def test_several_sockets_of_one_host_are_one_copy_by_default(log, autojump_clock):
    for options, copies in (({}, 1), ({"distinct_by_connection": True}, 2)):
        master, replicas, _ = make_master(log, **options)
        remote = partial(connected, master, host="10.1.1.1")
        async with remote(port=1) as (one, _), remote(port=2) as (two, _):
            await one.report(log.max_offset)
            await two.report(log.max_offset)
            await settled()
            assert replicas.eligible_count(log.max_offset) == copies


# -- puts without a task -------------------------------------------------------------------------------------


async def test_puts_are_not_sent_one_by_one_while_many_others_wait(make, autojump_clock):
    commit, replicas, _, _ = make()
    acknowledge(replicas, "a", 0)
    pushes = []
    commit._push = lambda _unacked_bytes_max: pushes.append(None)
    async with trio.open_nursery() as writers:
        for first, last, ack_offset in ((1, 20, 10), (20, 40, 390)):
            for number in range(first, last):
                writers.start_soon(outcome, commit, number * 10)
            await settled()
            assert len(pushes) == PUSHED_PUTS_MAX
            acknowledge(replicas, "a", ack_offset)


def begun(commit, end_offset, **options):
    appended = AppendResult(PutStatus.PUT_OK, physical_offset=end_offset - 10, size=10)
    return commit.begin(appended, request_id=end_offset, answer=lambda status, *_: status, **options)


async def test_an_abandoned_put_waits_no_more(make, autojump_clock):
    commit, replicas, flushed, events = make(sync_flush=True)
    acknowledge(replicas, "a", 50)
    deferred, called = begun(commit, 100), []
    deferred.attach(called.append)
    deferred.abandon()
    assert (replicas.copies(1).waiting, flushed.waiting, called, commit._waiting) == (0, 0, [], 0)
    assert [kind for kind, *_ in events.of(Kind.WAIT_END)] == []


async def test_a_put_that_nobody_waits_for_ends_with_its_deadlines(make, autojump_clock):
    commit, replicas, _, _ = make()
    acknowledge(replicas, "a", 50)
    begun(commit, 100)
    assert commit._waiting == 1
    await trio.sleep(3.5)
    assert (replicas.copies(1).waiting, commit._waiting) == (0, 0)


class Slaves:
    """Counts pushes and polls; a poll acknowledges."""

    def __init__(self, replicas):
        self.replicas = replicas
        self.pushes = 0
        self.is_all_sent = True
        self.acks_all = False
        self.polled = []

    def push(self, unacked_bytes_max):
        self.pushes += 1
        self.unacked_bytes_max = unacked_bytes_max
        return self.is_all_sent

    def poll_acks(self, wait):
        self.polled.append(wait)
        acknowledge(self.replicas, "a", wait.start_offset + 10 if self.acks_all else 100)


@pytest.fixture
def pushing(nursery):
    replicas = Replicas(gap_bytes_max=1000)
    slaves = Slaves(replicas)
    settings = GroupCommitSettings(
        copies_needed=1, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
    )
    commit = GroupCommit(
        settings,
        replicas=replicas,
        flushed=Watermark(),
        sink=Events(),
        push=slaves.push,
        poll_acks=slaves.poll_acks,
    )
    nursery.start_soon(commit.run)
    acknowledge(replicas, "a", 50)
    return commit, slaves


async def test_a_lone_put_is_pushed_at_the_end_of_its_turn_and_its_ack_polled_for(pushing, autojump_clock):
    commit, slaves = pushing
    deferred = begun(commit, 100)
    assert slaves.pushes == 0
    poll = commit.end_turn()
    assert (slaves.pushes, slaves.polled) == (1, [])
    poll()
    assert await deferred is PutStatus.PUT_OK
    assert (len(slaves.polled), trio.current_time()) == (1, 0.0)


async def test_puts_of_one_turn_are_pushed_once_and_not_polled_for(pushing, autojump_clock):
    commit, slaves = pushing
    puts = [begun(commit, end_offset) for end_offset in (80, 90, 100)]
    assert commit.end_turn() is None
    assert commit.end_turn() is None
    assert (slaves.pushes, slaves.polled) == (1, [])
    acknowledge(slaves.replicas, "a", 100)
    assert [await put for put in puts] == [PutStatus.PUT_OK] * 3


async def test_a_put_that_another_one_follows_is_not_polled_for(pushing, autojump_clock):
    commit, slaves = pushing
    first = begun(commit, 90)
    poll = commit.end_turn()
    second = begun(commit, 100)
    assert commit.end_turn() is None
    poll()
    # A slave in step gets it at once, too.
    assert (slaves.pushes, slaves.polled) == (2, [])
    assert slaves.unacked_bytes_max > 0
    for put in (first, second):
        put.abandon()


async def test_a_lone_put_is_polled_for_only_if_a_client_waits_for_it(pushing, autojump_clock):
    commit, slaves = pushing
    ended = begun(commit, 90, is_awaited=False)
    assert commit.end_turn() is None
    assert (slaves.pushes, slaves.polled, commit._waiting) == (1, [], 1)
    assert commit.end_turn() is None
    ended.abandon()
    slaves.pushes = 0
    awaited = begun(commit, 100)
    poll = commit.end_turn()
    assert slaves.pushes == 1
    poll()
    assert await awaited is PutStatus.PUT_OK
    assert len(slaves.polled) == 1


def put_in_turn(nursery, commit, *, tasks, puts):
    """Tasks that put one after the other; returns the ends that were answered, as they come."""
    ends, answered = iter(range(60, 1000, 10)), []

    async def put():
        for _ in range(puts):
            end_offset = next(ends)
            appended = AppendResult(PutStatus.PUT_OK, physical_offset=end_offset - 10, size=10)
            await commit.wait(appended, request_id=end_offset, answer=lambda *_: None)
            answered.append(end_offset)

    for _ in range(tasks):
        nursery.start_soon(put)
    return answered


async def test_the_last_of_the_puts_that_an_ack_released_sends_and_polls_for_all(
    pushing, nursery, autojump_clock
):
    commit, slaves = pushing
    answered = put_in_turn(nursery, commit, tasks=3, puts=2)
    await trio.testing.wait_all_tasks_blocked()
    # The first one was alone and sent at once; others put while the slave worked, so nothing was polled for.
    assert (slaves.pushes, slaves.polled, answered) == (1, [], [])
    acknowledge(slaves.replicas, "a", 80)
    await trio.testing.wait_all_tasks_blocked()
    assert (slaves.pushes, len(slaves.polled)) == (2, 1)
    assert slaves.polled[0].start_offset == 100
    # The poll acknowledged 100: the last put waits on.
    assert sorted(answered) == [60, 70, 80, 90, 100]
    acknowledge(slaves.replicas, "a", 110)


async def test_puts_that_one_frame_does_not_hold_are_not_polled_for(pushing, nursery, autojump_clock):
    commit, slaves = pushing
    slaves.is_all_sent = False
    answered = put_in_turn(nursery, commit, tasks=2, puts=2)
    await trio.testing.wait_all_tasks_blocked()
    acknowledge(slaves.replicas, "a", 70)
    await trio.testing.wait_all_tasks_blocked()
    assert (slaves.pushes, slaves.polled, sorted(answered)) == (2, [], [60, 70])
    acknowledge(slaves.replicas, "a", 90)


@pytest.mark.parametrize("begin", [begin_in_task, begin_deferred, begin_run])
@pytest.mark.parametrize("acked_at", [0.5, None])
async def test_no_copy_counts_once_the_node_is_the_master_no_more(make, acked_at, begin, autojump_clock):
    commit, replicas, flushed, _ = make(sync_flush=True)
    acknowledge(replicas, "a", 0)
    async with trio.open_nursery() as nursery:
        if acked_at is not None:
            nursery.start_soon(after, acked_at, acknowledge, replicas, "a", 100)
        nursery.start_soon(after, 1, commit.end_replica_waits)
        nursery.start_soon(after, 2, flushed.advance, 100)
        # What the disk has to say is still waited for.
        assert await outcome(commit, 100, begin=begin) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 2.0)
    assert await outcome(commit, 100, begin=begin) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 0.0)


async def test_what_connected_slaves_hold_leaves_out_one_that_copies_a_long_log(autojump_clock):
    replicas = Replicas(gap_bytes_max=1000)
    near, far = LagClock(), LagClock()
    for connection, ack_offset, clock in ((1, 9_500, near), (2, 3_000, far)):
        clock.appended(10_000, trio.current_time())
        replicas.acknowledge(
            connection,
            replica=f"replica {connection}",
            ack_offset=ack_offset,
            is_stable_identity=True,
            has_unsent=False,
            lag_clock=clock,
        )
    assert replicas.held_offset(10_000) == 9_500
    replicas.forget(1)
    assert replicas.held_offset(10_000) == 10_000

"""Group commit: what puts wait for and how they are answered."""

from functools import partial
from struct import pack

import pytest
import trio

from tests.ha.support import Events, connected, make_master, settled, slave_commit
from tests.store.support import message, open_log
from trioha.ha.group_commit import GroupCommitSettings
from trioha.ha.meter import LagClock
from trioha.ha.replicas import Replicas
from trioha.recording.events import Kind
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.watermark import Watermark


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
    return slave_commit(settings, replicas=replicas, flushed=flushed, sink=events), replicas, flushed, events


def acknowledge(replicas, replica, ack_offset, *, connection_id=None):
    replicas.acknowledge(
        connection_id or ord(replica), replica=replica, ack_offset=ack_offset, lag_clock=LagClock()
    )


def append(end_offset, *, start_offset=None, is_run=False):
    """The result of an append that ends there, as of one message or as of a run of one."""
    start = end_offset - 10 if start_offset is None else start_offset
    run = {"batch_offsets": [start], "put_offsets": pack(">qq", start, 0)} if is_run else {}
    return AppendResult(PutStatus.PUT_OK, physical_offset=start, size=end_offset - start, **run)


async def outcome(commit, end_offset, *, request_id=1, **appended):
    started = trio.current_time()
    begun = commit.begin(append(end_offset, **appended), request_id=request_id)
    await begun.settled()
    assert begun.is_settled(trio.current_time())
    statuses = commit.end(begun)
    return PutStatus.PUT_OK if statuses is None else statuses[0], trio.current_time() - started


async def after(seconds, action, *args):
    await trio.sleep(seconds)
    action(*args)


async def test_without_a_slave_a_put_is_answered_at_once(autojump_clock):
    commit, *_ = made()
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
async def test_a_put_waits_for_a_slave_and_no_longer_than_3_s(acks, expected, autojump_clock):
    commit, replicas, _, _ = made()
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
async def test_a_slave_counts_only_if_its_lag_is_strictly_below_the_gap(ack_offset, status, autojump_clock):
    commit, replicas, _, _ = made(gap_bytes_max=1001)
    acknowledge(replicas, "a", ack_offset)
    assert (await outcome(commit, 1100))[0] is PutStatus[status]


async def test_k_copies_need_k_distinct_replicas(autojump_clock):
    commit, replicas, _, _ = made(need=2)
    acknowledge(replicas, "a", 100, connection_id=1)
    acknowledge(replicas, "a", 100, connection_id=2)
    assert await outcome(commit, 100) == (PutStatus.SLAVE_NOT_AVAILABLE, 0.0)
    acknowledge(replicas, "b", 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "b", 100)
        assert await outcome(commit, 100) == (PutStatus.PUT_OK, 1.0)


async def test_a_replica_keeps_its_ack_while_one_of_its_connections_lives(autojump_clock):
    _, replicas, _, _ = made()
    acknowledge(replicas, "a", 70, connection_id=1)
    acknowledge(replicas, "a", 90, connection_id=2)
    replicas.forget(2)
    assert (replicas.copies(1).offset, replicas.eligible_count(100)) == (70, 1)
    replicas.forget(1)
    replicas.forget(1)
    assert (replicas.copies(1).offset, replicas.eligible_count(100)) == (0, 0)


async def test_one_stuck_put_delays_no_other(autojump_clock):
    commit, replicas, _, _ = made()
    acknowledge(replicas, "a", 50)
    results = {}

    async def put(end_offset):
        results[end_offset] = await outcome(commit, end_offset)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put, 1000)
        nursery.start_soon(put, 100)
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 100)
    assert results == {1000: (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0), 100: (PutStatus.PUT_OK, 1.0)}


@pytest.mark.parametrize("is_run", [False, True])
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
        # What is true when the put is answered counts.
        (4.5, 3.5, (PutStatus.PUT_OK, 4.5)),
    ],
)
async def test_disk_and_replica_are_waited_for_side_by_side(
    *, flushed_at, acked_at, expected, is_run, autojump_clock
):
    commit, replicas, flushed, events = made(sync_flush=True)
    acknowledge(replicas, "a", 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, flushed_at, flushed.advance, 100)
        nursery.start_soon(after, acked_at, acknowledge, replicas, "a", 100)
        assert await outcome(commit, 100, is_run=is_run) == expected
        nursery.cancel_scope.cancel()
    status, waited_s = expected
    assert [event[0] for event in events.seen] == [Kind.PUT, Kind.WAIT_BEGIN, Kind.WAIT_END]
    assert events.seen[-1][4:] == (round(waited_s * 1e6), status)


@pytest.mark.parametrize(("need", "status"), [(0, PutStatus.PUT_OK), (1, PutStatus.SLAVE_NOT_AVAILABLE)])
async def test_without_a_slave_sync_flush_still_waits_for_the_disk(need, status, autojump_clock):
    commit, _, flushed, _ = made(need=need, sync_flush=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, flushed.advance, 100)
        assert await outcome(commit, 100) == (status, 1.0)
    assert commit.waits
    assert not made(need=0)[0].waits


@pytest.mark.parametrize("is_run", [False, True])
async def test_every_wait_is_recorded_with_one_begin_and_one_end(is_run, autojump_clock):
    commit, replicas, _, events = made()
    acknowledge(replicas, "a", 50)
    await outcome(commit, 100, request_id=7, is_run=is_run)
    await outcome(commit, 40, request_id=8, is_run=is_run)
    await outcome(commit, 5000, request_id=9, is_run=is_run)
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


async def test_below_the_minimum_in_sync_nothing_may_be_stored(autojump_clock):
    commit, replicas, _, _ = made(need=1, copies_min=1)
    assert commit.refusal(100) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    acknowledge(replicas, "a", 50)
    assert commit.refusal(100) is None
    assert commit.refusal(1050) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    without_minimum, *_ = made(need=1)
    assert without_minimum.refusal(100) is None


async def test_auto_mode_needs_what_is_in_sync_and_no_less_than_the_minimum(autojump_clock):
    commit, replicas, _, _ = made(need=2, lowers_need=True)
    assert await outcome(commit, 100) == (PutStatus.PUT_OK, 0.0)
    acknowledge(replicas, "a", 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 100)
        assert await outcome(commit, 100) == (PutStatus.PUT_OK, 1.0)
    with_minimum, *_ = made(need=2, lowers_need=True, copies_min=1)
    assert await outcome(with_minimum, 100) == (PutStatus.SLAVE_NOT_AVAILABLE, 0.0)


async def test_all_in_sync_waits_for_every_replica_that_is(autojump_clock):
    commit, replicas, _, _ = made(need=1, all_in_sync=True)
    for replica in "abc":
        acknowledge(replicas, replica, 5000)
    acknowledge(replicas, "d", 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 5100)
        nursery.start_soon(after, 2, acknowledge, replicas, "b", 5100)
        nursery.start_soon(after, 2.5, acknowledge, replicas, "c", 5100)
        assert await outcome(commit, 5100) == (PutStatus.PUT_OK, 2.5)


async def test_10_000_waiting_puts_are_released_by_one_ack_each_at_its_own_offset(autojump_clock):
    commit, replicas, _, _ = made(gap_bytes_max=1 << 30)
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


async def test_an_observer_holds_up_no_put_and_counts_for_no_minimum(autojump_clock):
    commit, replicas, _, _ = made(need=1, all_in_sync=True, copies_min=1)
    observe(replicas, 2, 10)
    assert commit.refusal(100) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    acknowledge(replicas, "a", 90)
    assert commit.refusal(100) is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, acknowledge, replicas, "a", 100)
        assert await outcome(commit, 100) == (PutStatus.PUT_OK, 1.0)
    commit, replicas, _, _ = made(need=1, lowers_need=True)
    observe(replicas, 1, 10)
    assert await outcome(commit, 100) == (PutStatus.PUT_OK, 0.0)


async def test_a_slave_that_lags_is_in_sync_from_its_first_ack_on(autojump_clock):
    commit, replicas, _, _ = made(need=1, all_in_sync=True)
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
    connection, expected, autojump_clock
):
    commit, replicas, _, _ = made()
    claim(replicas, 1, 50)
    ack = partial(acknowledge, replicas, f"connection {connection}", 500, connection_id=connection)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 1, claim, replicas, 2, 100)
        nursery.start_soon(after, 2, ack)
        assert await outcome(commit, 100) == expected


async def test_a_new_connection_counts_for_puts_after_its_claim(autojump_clock):
    commit, replicas, _, _ = made()
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


async def test_a_known_slave_that_requests_the_bytes_again_releases_the_put_with_its_ack(autojump_clock):
    commit, replicas, _, _ = made()
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
    autojump_clock,
):
    commit, replicas, _, _ = made(need=2)
    claim(replicas, 1, 50)
    claim(replicas, 2, 50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(after, 0.5, partial(acknowledge, replicas, "connection 1", 100, connection_id=1))
        # The same slave again: it requests from before the put, receives it, and acknowledges it.
        nursery.start_soon(after, 1, claim, replicas, 3, 20)
        nursery.start_soon(after, 2, partial(claim, replicas, 3, 100))
        assert await outcome(commit, 100) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 3.0)


async def test_quorum_views_without_waiting_puts_are_dropped(autojump_clock):
    commit, replicas, _, _ = made()
    claim(replicas, 1, 10**6)
    for number in range(1000):
        assert (await outcome(commit, 500 + number))[0] is PutStatus.PUT_OK
    assert replicas.current.waiting_from(trio.current_time()) is None
    assert len(replicas.current._waiting) == 0


# -- with a real connection below it ------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    return log


def commit_on(log, replicas, events, **options):
    settings = GroupCommitSettings(
        copies_needed=1, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0, **options
    )
    return slave_commit(settings, replicas=replicas, flushed=log.flushed, sink=events)


async def test_a_forged_ack_releases_no_put(log, autojump_clock):
    master, replicas, events = make_master(log)
    commit = commit_on(log, replicas, events)
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


@pytest.mark.parametrize("is_run", [False, True])
@pytest.mark.parametrize("acked_at", [0.5, None])
async def test_no_copy_counts_once_the_node_is_the_master_no_more(acked_at, is_run, autojump_clock):
    commit, replicas, flushed, _ = made(sync_flush=True)
    acknowledge(replicas, "a", 0)
    async with trio.open_nursery() as nursery:
        if acked_at is not None:
            nursery.start_soon(after, acked_at, acknowledge, replicas, "a", 100)
        nursery.start_soon(after, 1, commit.end_replica_waits)
        nursery.start_soon(after, 2, flushed.advance, 100)
        # What the disk has to say is still waited for.
        assert await outcome(commit, 100, is_run=is_run) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 2.0)
    assert await outcome(commit, 100, is_run=is_run) == (PutStatus.FLUSH_SLAVE_TIMEOUT, 0.0)


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

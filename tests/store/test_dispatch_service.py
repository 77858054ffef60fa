"""Dispatch beside a running store, in virtual time."""

import errno
import itertools
import os

import pytest
import trio
import trio.testing

from tests.store.support import FILE_BYTES, message, open_store
from trioha.errors import StoreError
from trioha.store import store_syncs
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch_service import (
    AWAITED_GATHER_S,
    BESIDE_RECORDS,
    BUSY_GATHER_S,
    BUSY_RECORDS,
    GATHER_S,
    PROGRESS_INTERVAL_S,
    RECHECK_S,
    DispatchService,
)
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.put_status import PutStatus
from trioha.store.queue_manifest import load_queue_manifest
from trioha.store.waiting_readers import WaitingReaders


async def at_once(work):
    work()


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


async def test_appended_records_are_dispatched_and_synced_soon(store, tmp_path, nursery, autojump_clock):
    reports = []
    service = DispatchService(store, on_dispatched=lambda *what: reports.append(what), sync=at_once)
    nursery.start_soon(service.run)
    for number in range(5):
        result = store.commit_log.append(message(bytes([number])))
        await store.dispatcher.dispatched.reached(result.end_offset)
        assert store.reads.max_offset("Orders", 0) == number + 1
    assert trio.current_time() < 0.1
    store.commit_log.flushed.advance(result.end_offset)
    await trio.sleep(2)
    assert store.syncs.queue_sync() is None
    # Not for every record, but finally for the last one.
    assert (reports[-1][0], sum(records for _, records in reports), len(reports)) == (result.end_offset, 5, 2)
    assert store.checkpoints.current.logics_msg_timestamp_ms == result.store_timestamp_ms


def waiting_reader():
    """A consumer waits all the time."""
    readers = WaitingReaders()
    readers.begin()
    return readers


async def dispatched_records(store, records):
    """Append records that are dispatched together at once; returns when that was."""
    for _ in range(records):
        result = store.commit_log.append(message())
    await trio.testing.wait_all_tasks_blocked()
    assert store.dispatcher.position == result.end_offset
    return trio.current_time()


@pytest.mark.parametrize(
    ("records", "gather_s"), [(1, GATHER_S), (BUSY_RECORDS - 1, GATHER_S), (BUSY_RECORDS, BUSY_GATHER_S)]
)
async def test_records_of_puts_that_keep_coming_are_dispatched_together_the_longer_the_more_there_were(
    store, nursery, autojump_clock, records, gather_s
):
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    await trio.sleep(1)
    began_s = await dispatched_records(store, records)
    first_offset = store.dispatcher.position
    while trio.current_time() < began_s + gather_s * 0.9:
        last = store.commit_log.append(message())
        await trio.sleep(GATHER_S * 0.3)
        assert store.dispatcher.position == first_offset
    await trio.sleep_until(began_s + gather_s * 1.1)
    assert store.dispatcher.position == last.end_offset


async def test_while_a_consumer_waits_lone_records_are_dispatched_at_once(store, nursery, autojump_clock):
    nursery.start_soon(DispatchService(store, readers=waiting_reader(), sync=at_once).run)
    await trio.sleep(1)
    for _ in range(3):
        await dispatched_records(store, 1)
    await dispatched_records(store, BUSY_RECORDS)
    await dispatched_records(store, 1)
    assert trio.current_time() == 1.0


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_records_that_keep_coming_are_gathered_for_less_time_while_a_consumer_waits(
    store, nursery, autojump_clock, is_awaited
):
    """With the consumer from the start, or one that begins to wait in the middle."""
    readers = waiting_reader() if is_awaited else WaitingReaders()
    nursery.start_soon(DispatchService(store, readers=readers, sync=at_once).run)
    await trio.sleep(1)
    began_s = await dispatched_records(store, 1)
    first_offset = store.dispatcher.position
    # Each turn of the scheduler has a put, and takes no time here.
    for _ in range(10):
        last = store.commit_log.append(message())
        await trio.lowlevel.checkpoint()
    assert store.dispatcher.position == first_offset
    if not is_awaited:
        await trio.sleep_until(began_s + 0.9 * GATHER_S)
        store.commit_log.append(message())
        assert store.dispatcher.position == first_offset
        readers.begin()
        await trio.testing.wait_all_tasks_blocked()
        assert store.dispatcher.position == store.commit_log.max_offset
        return
    await trio.sleep_until(began_s + AWAITED_GATHER_S * 0.9)
    assert store.dispatcher.position == first_offset
    await trio.sleep_until(began_s + AWAITED_GATHER_S * 1.1)
    assert store.dispatcher.position == last.end_offset


async def test_a_consumer_that_begins_to_wait_gets_a_lone_record_that_could_be_gathered(
    store, nursery, autojump_clock
):
    readers = WaitingReaders()
    nursery.start_soon(DispatchService(store, readers=readers, sync=at_once).run)
    await trio.sleep(1)
    await dispatched_records(store, 1)
    last = store.commit_log.append(message())
    await trio.testing.wait_all_tasks_blocked()
    assert store.dispatcher.position < last.end_offset
    readers.begin()
    await store.dispatcher.dispatched.reached(last.end_offset)
    assert trio.current_time() - 1.0 == pytest.approx(AWAITED_GATHER_S)
    # It waits in vain, and nothing is dispatched sooner for that.
    readers.begin()
    await trio.sleep(1)
    assert store.dispatcher.position == last.end_offset


async def test_what_is_gathered_is_dispatched_at_once_for_a_reader_of_it(store, nursery, autojump_clock):
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    await trio.sleep(1)
    store.commit_log.append(message())
    await trio.testing.wait_all_tasks_blocked()
    last = store.commit_log.append(message())
    store.dispatcher.catch_up()
    assert store.dispatcher.position == last.end_offset
    # What comes after it is gathered from then on.
    newest = store.commit_log.append(message())
    await trio.testing.wait_all_tasks_blocked()
    assert store.dispatcher.position == last.end_offset
    await store.dispatcher.dispatched.reached(newest.end_offset)


@pytest.fixture
def synced_store(tmp_path):
    """With SYNC_FLUSH."""
    store = open_store(tmp_path, dispatch=DispatchSettings(sync_flush=True))
    yield store
    store.close()


async def test_a_reader_does_not_make_dispatch_pass_the_disk(synced_store, nursery, autojump_clock):
    store = synced_store
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    first = store.commit_log.append(message())
    store.commit_log.append(message())
    store.commit_log.flushed.advance(first.end_offset)
    store.dispatcher.catch_up()
    assert store.dispatcher.position == first.end_offset


async def test_with_sync_flush_records_are_dispatched_after_they_are_on_disk(
    synced_store, nursery, autojump_clock
):
    store = synced_store
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    first = store.commit_log.append(message())
    second = store.commit_log.append(message())
    await trio.sleep(5)
    assert store.reads.max_offset("Orders", 0) == 0
    store.commit_log.flushed.advance(first.end_offset)
    await trio.sleep(1)
    assert store.reads.max_offset("Orders", 0) == 1
    store.commit_log.flushed.advance(second.end_offset)
    await trio.sleep(1)
    assert store.reads.max_offset("Orders", 0) == 2


async def test_a_disk_that_refuses_queue_files_stops_dispatch_until_it_accepts_them(
    store, nursery, autojump_clock, monkeypatch
):
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    written = os.pwrite
    with monkeypatch.context() as full:

        def refuse(fd, data, at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr("trioha.store.fixed_entry_files.os.pwrite", refuse)
        end_offset = store.commit_log.append(message()).end_offset
        await trio.sleep(5)
        assert store.dispatcher.position == 0
    assert os.pwrite is written
    await trio.sleep(2 * RECHECK_S)
    assert store.dispatcher.position == end_offset
    assert store.reads.max_offset("Orders", 0) == 1


async def test_a_master_that_starts_on_a_full_disk_accepts_puts_when_its_queues_are_complete(
    tmp_path, nursery, autojump_clock, monkeypatch
):
    store = open_store(tmp_path)
    for _ in range(30):
        store.commit_log.append(message())
    store.abort.mark_failed()
    store.close()
    write = os.pwrite

    def refuse(fd, data, at):
        if len(data) == len(b"lock"):
            return write(fd, data, at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("trioha.store.fixed_entry_files.os.pwrite", refuse)
        store = open_store(tmp_path)
        nursery.start_soon(DispatchService(store, sync=at_once).run)
        await trio.sleep(3)
        refused = store.commit_log.append(message())
        assert (refused.status, refused.reason) == (
            PutStatus.SERVICE_NOT_AVAILABLE,
            "consume queues are not at the log's end yet",
        )
    await trio.sleep(3)
    assert store.commit_log.append(message()).queue_offset == 30
    nursery.cancel_scope.cancel()
    store.close()


@pytest.mark.parametrize(("took_s", "interval_s"), [(0.0, 1), (0.004, 1), (0.018, 4), (3.0, 13)])
async def test_syncs_of_queues_that_take_long_are_rare(store, nursery, autojump_clock, took_s, interval_s):
    begun = []

    async def sync(work):
        begun.append(trio.current_time())
        work()
        await trio.sleep(took_s)

    nursery.start_soon(DispatchService(store, sync=sync).run)
    for _ in range(60):
        store.commit_log.append(message())
        await trio.sleep(1)
    between = {round(after - before) for before, after in itertools.pairwise(begun)}
    assert between == {interval_s}


async def test_a_failed_sync_of_queues_ends_the_node_and_a_close_leaves_abort(tmp_path, autojump_clock):
    store = open_store(tmp_path)
    store.commit_log.append(message())

    async def fail(work):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with trio.fail_after(10), pytest.raises(ExceptionGroup) as raised:
        await DispatchService(store, sync=fail).run()
    assert raised.group_contains(StoreError, match="fsync failed")
    store.close()
    assert (tmp_path / "abort").exists()


async def test_the_end_of_a_burst_is_reported_as_soon_as_the_interval_allows(store, nursery, autojump_clock):
    reports = []
    service = DispatchService(
        store,
        sync=at_once,
        on_dispatched=lambda offset, records: reports.append((offset, records, trio.current_time())),
    )
    nursery.start_soon(service.run)
    await trio.sleep(0.3)
    ends = []
    for _ in range(5):
        ends.append(store.commit_log.append(message()).end_offset)
        await trio.sleep(0.005)
    await trio.sleep(PROGRESS_INTERVAL_S)
    (first, last) = reports
    assert (first[:2], last[:2]) == ((ends[0], 1), (ends[-1], 4))
    assert last[2] - first[2] == pytest.approx(PROGRESS_INTERVAL_S)
    await trio.sleep(10)
    assert len(reports) == 2


async def test_an_archived_log_deletes_its_queues(store, tmp_path, nursery, autojump_clock):
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    for number in range(50):
        store.commit_log.append(message(properties=b"KEYS\x01k%d\x02" % number))
    await trio.sleep(3)
    assert store.reads.by_key("Orders", "k7")
    store.commit_log.archive(tmp_path / "commitlog.aside")
    assert (store.reads.max_offset("Orders", 0), store.reads.by_key("Orders", "k7")) == (0, ())
    assert not list((tmp_path / "consumequeue").glob("*"))
    store.commit_log.start_at(3 * FILE_BYTES)
    result = store.commit_log.append(message(topic="Other"))
    await trio.sleep(3)
    assert store.dispatcher.position == result.end_offset
    assert (store.reads.max_offset("Orders", 0), store.reads.max_offset("Other", 0)) == (0, 1)


async def test_queues_are_built_again_at_once_if_a_log_could_not_be_archived(
    store, tmp_path, nursery, autojump_clock
):
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    for _ in range(50):
        result = store.commit_log.append(message())
    await trio.sleep(10)
    with pytest.raises(OSError, match="No such file"):
        store.commit_log.archive(tmp_path / "no" / "folder" / "for-it")
    assert store.dispatcher.position == 0
    await trio.sleep(2 * GATHER_S)
    assert store.dispatcher.position == result.end_offset
    assert store.reads.max_offset("Orders", 0) == 50


@pytest.mark.parametrize("is_slave", [True, False])
async def test_only_a_slave_that_is_catching_up_dispatches_in_shorter_slices(
    tmp_path, nursery, autojump_clock, is_slave
):
    store = open_store(tmp_path, dispatch=DispatchSettings(is_slave=is_slave))
    for _ in range(5000):
        store.commit_log.append(message())
    before = store.commit_log.max_offset

    async def fill():
        while True:
            store.commit_log.append(message())
            await trio.lowlevel.checkpoint()

    nursery.start_soon(DispatchService(store, sync=at_once).run)
    nursery.start_soon(fill)
    # Enough turns for long slices, far too few for short ones.
    for _ in range(60):
        await trio.lowlevel.checkpoint()
    assert (store.dispatcher.position < before) is is_slave
    nursery.cancel_scope.cancel()
    store.close()


async def test_slices_beside_replication_are_short(tmp_path, nursery, autojump_clock, monkeypatch):
    store = open_store(tmp_path, dispatch=DispatchSettings(is_slave=True))
    slices = []
    dispatch = store.dispatcher.dispatch

    def count(until_offset, *, records_max):
        slices.append(records_max)
        return dispatch(until_offset, records_max=records_max)

    monkeypatch.setattr(store.dispatcher, "dispatch", count)

    async def fill():
        while True:
            store.commit_log.append(message())
            await trio.lowlevel.checkpoint()

    for _ in range(6000):
        store.commit_log.append(message())
    nursery.start_soon(fill)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    for _ in range(60):
        await trio.lowlevel.checkpoint()
    assert store.dispatcher.position < store.commit_log.max_offset
    # In its first turns the log may not have grown yet.
    assert set(slices[3:]) == {BESIDE_RECORDS}
    nursery.cancel_scope.cancel()
    store.close()


async def test_puts_are_accepted_as_soon_as_the_queues_can_be_read(
    tmp_path, nursery, autojump_clock, monkeypatch
):
    store = open_store(tmp_path)
    store.commit_log.append(message())
    store.close()
    real, calls = ConsumeQueues.correct_min_offsets, []

    def refuse(queues, offset):
        calls.append(trio.current_time())
        # The first read is the start's own, to find where the queues begin.
        if 1 < len(calls) < 5:
            raise StoreError("cannot be read: Too many open files", path=tmp_path)
        real(queues, offset)

    monkeypatch.setattr(ConsumeQueues, "correct_min_offsets", refuse)
    store = open_store(tmp_path)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    assert store.commit_log.append(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    await trio.sleep(3.5)
    assert len(calls) == 5
    assert store.commit_log.append(message()).queue_offset == 1
    store.close()


def test_a_queue_manifest_that_could_not_be_written_is_written_later(store, monkeypatch):
    refuse = [True]
    save = store_syncs.save_queue_manifest

    def refuse_once(root, names):
        if refuse:
            refuse.clear()
            raise OSError(errno.EMFILE, "Too many open files")
        save(root, names)

    monkeypatch.setattr(store_syncs, "save_queue_manifest", refuse_once)
    store.commit_log.append(message())
    store.dispatcher.dispatch(store.commit_log.max_offset)
    store.syncs.queue_sync()()
    assert load_queue_manifest(store.settings.root) == frozenset()
    store.syncs.queue_sync()()
    assert load_queue_manifest(store.settings.root) == {("Orders", 0)}
    assert store.syncs.queue_sync() is None


async def test_lone_records_are_reported_as_soon_as_a_report_is_due(store, nursery, autojump_clock):
    """While a consumer waits, each record is dispatched when it comes, and the last one is reported, too."""
    reports = []

    def report(offset, records):
        reports.append((trio.current_time(), offset, records))

    nursery.start_soon(
        DispatchService(store, readers=waiting_reader(), on_dispatched=report, sync=at_once).run
    )
    await trio.sleep(1)
    for _ in range(120):
        last = store.commit_log.append(message())
        await trio.testing.wait_all_tasks_blocked()
        assert store.dispatcher.position == last.end_offset
        await trio.sleep(0.001)
    await trio.sleep(0.5)
    assert [time_s for time_s, *_ in reports] == pytest.approx(
        [1.0 + PROGRESS_INTERVAL_S * number for number in range(4)]
    )
    assert reports[-1][1] == last.end_offset
    assert sum(records for *_, records in reports) == 120

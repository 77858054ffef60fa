"""Flush and preallocation in virtual time: tests replace the port to the disk."""

import errno
import threading

import pytest
import trio

from tests.store.support import FILE_BYTES, log_bytes, message, open_log, open_store
from trioha.errors import StoreError
from trioha.store.allocate import allocate_ahead
from trioha.store.checkpoint import Checkpoint
from trioha.store.flush import FlushService
from trioha.store.mapped_file import MappedFile


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


class Disk:
    """A disk whose syncs last a while and may fail."""

    def __init__(self, *, seconds=0.0, error=None):
        self.seconds = seconds
        self.error = error
        self.calls = []

    async def __call__(self, start_offset, end_offset, store_timestamp_ms, _on_step):
        self.calls.append((trio.current_time(), start_offset, end_offset))
        await trio.sleep(self.seconds)
        if self.error is not None:
            raise self.error


def service(store, disk, *, sync_flush, flushed=None):
    return FlushService(
        store,
        sync_flush=sync_flush,
        interval_s=0.5,
        on_flushed=lambda offset, duration_ns: None if flushed is None else flushed.append(offset),
        sync=disk,
    )


async def test_one_sync_serves_all_puts_that_came_during_the_one_before(store, autojump_clock):
    log, disk, seen = store.commit_log, Disk(seconds=1.0), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(store, disk, sync_flush=True, flushed=seen).run)
        first = log.append(message()).end_offset
        await trio.sleep(0.1)
        for _ in range(100):
            last = log.append(message()).end_offset
        await log.flushed.reached(last)
        assert [(start, end) for _, start, end in disk.calls] == [(0, first), (first, last)]
        assert seen == [first, last]
        nursery.cancel_scope.cancel()


async def test_async_flush_syncs_new_bytes_every_interval_and_nothing_else(store, autojump_clock):
    log, disk = store.commit_log, Disk()
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(store, disk, sync_flush=False).run)
        log.append(message())
        await trio.sleep(0.2)
        second = log.append(message()).end_offset
        await trio.sleep(10)
        third = log.append(message()).end_offset
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    times = [(round(at - started, 6), end) for at, _, end in disk.calls]
    assert times == [(0.5, second), (10.2, third)]


async def test_async_flush_syncs_a_log_that_grows_by_files_before_its_time(store, autojump_clock):
    log, disk = store.commit_log, Disk()
    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(store, disk, sync_flush=False).run)
        for _ in range(100):
            log.append(message(bytes(FILE_BYTES // 2)))
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    # A file holds one message: one sync for every second file, instead of none in this time.
    assert trio.current_time() - started < 0.5
    assert len(disk.calls) == 49
    assert log.max_offset - log.flushed.offset <= 3 * FILE_BYTES


async def test_no_byte_counts_as_flushed_before_the_sync_has_returned(store, autojump_clock):
    log = store.commit_log
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(store, Disk(seconds=3.0), sync_flush=True).run)
        end_offset = log.append(message()).end_offset
        await trio.sleep(2.9)
        assert log.flushed.offset == 0
        await trio.sleep(0.2)
        assert log.flushed.offset == end_offset
        nursery.cancel_scope.cancel()


async def test_a_failed_sync_ends_the_service_with_the_offset_and_promises_nothing(store, autojump_clock):
    log = store.commit_log
    log.append(message())
    disk = Disk(error=OSError(errno.EIO, "Input/output error"))
    with pytest.raises(StoreError, match=r"at offset 0: fsync failed: Input/output error"):
        await service(store, disk, sync_flush=True).run()
    assert log.flushed.offset == 0


async def test_the_real_disk_is_synced_in_a_thread_and_the_checkpoint_updated(store):
    log = store.commit_log
    stored = log.append(message())
    flush = FlushService(store, sync_flush=True, interval_s=0.5, on_flushed=lambda *_: None)
    with trio.fail_after(10):
        await flush.flush()
    assert log.flushed.offset == stored.end_offset
    found = Checkpoint.load(store.settings.root / "checkpoint")
    assert found.physic_msg_timestamp_ms == stored.store_timestamp_ms


async def test_the_confirm_offset_of_checkpoints_is_read_in_the_thread_of_the_loop(store):
    """The tasks of the loop move it."""
    stored = [store.commit_log.append(message()) for _ in range(4)]
    store.dispatcher.dispatch(store.commit_log.max_offset)
    offsets = [one.end_offset for one in stored]
    readers = []

    def confirm_offset():
        readers.append(threading.current_thread())
        return offsets[len(readers) - 1]

    store.checkpoints.follow_confirm_offset(confirm_offset)
    log_sync = store.syncs.log_sync(0, store.commit_log.max_offset, store_timestamp_ms=2**50)
    queue_sync = store.syncs.queue_sync()
    with trio.fail_after(10):
        await trio.to_thread.run_sync(queue_sync)
        assert store.checkpoints.current.confirm_physical_offset == offsets[1]
        # One that began earlier and ends later does not set it back.
        await trio.to_thread.run_sync(log_sync)
    assert store.checkpoints.current.confirm_physical_offset == offsets[1]
    assert readers == [threading.current_thread()] * 2


async def test_a_log_that_restarts_during_a_sync_does_not_count_as_flushed(store, autojump_clock):
    log = store.commit_log
    log.start_at(FILE_BYTES)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(store, Disk(seconds=2.0), sync_flush=True).run)
        log.append(message())
        await trio.sleep(1)
        log.archive(log.directory.with_name("aside"))
        await trio.sleep(2)
        assert (log.max_offset, log.flushed.offset) == (0, 0)
        nursery.cancel_scope.cancel()


async def test_a_log_that_restarted_is_flushed_from_its_first_record_on(store, autojump_clock):
    log, disk = store.commit_log, Disk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service(store, disk, sync_flush=True).run)
        for _ in range(10):
            log.append(message())
        await trio.sleep(10)
        log.archive(log.directory.with_name("aside"))
        await trio.sleep(10)
        stored = log.append(message())
        await trio.testing.wait_all_tasks_blocked()
        assert disk.calls[-1] == (trio.current_time(), 0, stored.end_offset)
        assert log.flushed.offset == stored.end_offset
        nursery.cancel_scope.cancel()


async def test_a_log_that_cannot_be_archived_stays_as_it_was(store, autojump_clock, monkeypatch):
    log = store.commit_log
    for _ in range(10):
        log.append(message())
    before, files = log_bytes(log), sorted(path.name for path in log.directory.iterdir())
    rewinds = log.appended.rewinds

    def refuse(directory):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("trioha.store.log_files.sync_directory", refuse)
    with pytest.raises(OSError, match="Too many"):
        log.archive(log.directory.with_name("aside"))
    assert (log_bytes(log), sorted(path.name for path in log.directory.iterdir())) == (before, files)
    assert not log.directory.with_name("aside").exists()
    # Dispatch has to begin anew.
    assert log.appended.rewinds == rewinds + 1


async def wait_for_offer(log):
    with trio.fail_after(10):
        while not log.has_preallocated:  # noqa: ASYNC110 - the log has no event for it
            await trio.sleep(0.01)


async def test_the_next_file_is_made_when_the_last_is_half_full(tmp_path):
    log, _ = open_log(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate_ahead, log)
        log.append(message(bytes(1000)))
        await trio.testing.wait_all_tasks_blocked()
        assert not log.has_preallocated
        log.append(message(bytes(FILE_BYTES // 2)))
        await wait_for_offer(log)
        assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}", f"{FILE_BYTES:020d}"]
        log.append(message(bytes(FILE_BYTES // 2)))
        assert not log.has_preallocated
        log.append(message(bytes(100)))
        await wait_for_offer(log)
        nursery.cancel_scope.cancel()
    log.close()


async def test_a_failed_preallocation_is_tried_again(tmp_path, monkeypatch, autojump_clock):
    log, _ = open_log(tmp_path)
    log.append(message(bytes(FILE_BYTES // 2)))
    create = MappedFile.create
    tries = []

    def refuse_twice(directory, *, start_offset, size):
        tries.append(start_offset)
        if len(tries) < 3:
            raise StoreError("no space left", path=directory)
        return create(directory, start_offset=start_offset, size=size)

    monkeypatch.setattr(MappedFile, "create", refuse_twice)

    async def run_in_place(function):
        await trio.lowlevel.checkpoint()
        return function()

    # Worker threads do not follow virtual time.
    monkeypatch.setattr("trioha.store.allocate.run_in_thread", run_in_place)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate_ahead, log)
        await trio.sleep(2.5)
        assert (tries, log.has_preallocated) == ([FILE_BYTES] * 3, True)
        nursery.cancel_scope.cancel()
    log.close()


@pytest.mark.parametrize("has_preallocated", [False, True])
async def test_a_log_that_restarted_gets_its_next_file_preallocated(
    tmp_path, monkeypatch, autojump_clock, has_preallocated
):
    log, _ = open_log(tmp_path / "commitlog")

    async def run_in_place(function):
        await trio.lowlevel.checkpoint()
        return function()

    # Worker threads do not follow virtual time.
    monkeypatch.setattr("trioha.store.allocate.run_in_thread", run_in_place)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate_ahead, log)
        await trio.testing.wait_all_tasks_blocked()
        while log.max_offset < 3 * FILE_BYTES:
            log.append(message(bytes(5000)))
        if has_preallocated:
            log.append(message(bytes(FILE_BYTES // 2)))
        await trio.testing.wait_all_tasks_blocked()
        assert log.has_preallocated is has_preallocated
        log.archive(tmp_path / "aside")
        assert not log.has_preallocated
        log.append(message(bytes(FILE_BYTES // 2)))
        await trio.testing.wait_all_tasks_blocked()
        assert log.has_preallocated
        nursery.cancel_scope.cancel()
    log.close()

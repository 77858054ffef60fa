"""Number of file descriptors that a store needs, and its behaviour without any."""

import errno
import fcntl
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.store.support import FILE_BYTES, HOST, log_bytes, message, open_log, open_store
from trioha.net.descriptors import lowest_free_descriptor
from trioha.store import opening
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_service import DispatchService
from trioha.store.flush import FlushService
from trioha.store.index_file import IndexShape
from trioha.store.log_files import READ_FILES_MAX
from trioha.store.put_status import PutStatus
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record
from trioha.store.store_settings import StoreSettings
from trioha.store.syncing import SharedDescriptor, sync_data, sync_directory, sync_whole


def open_descriptors(root):
    """Descriptors of this process for files below `root`."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            count += str(descriptor.readlink()).startswith(f"{root}/")
        except FileNotFoundError:
            # The descriptor of the listing itself.
            continue
    return count


def path_of(fd):
    """The path of the open file."""
    return str(Path(f"/proc/self/fd/{fd}").readlink())


@contextmanager
def descriptors_left(count):
    """The system gives this process about `count` more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = lowest_free_descriptor(0)
    assert free is not None
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_descriptors_left():
    """The system gives this process no more descriptors."""
    with descriptors_left(0):
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_RDONLY)
        yield


def many_files(root, *, open_files_max=16):
    """A store of some 60 log files, 300 queues and 25 index files."""
    store = opening.open_store(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=4096,
            message_bytes_max=4096,
            store_host=HOST,
            queues=ConsumeQueueSettings(file_bytes=400, batch_file_bytes=920, open_files_max=open_files_max),
            index=IndexShape(hash_slots=53, index_num=25),
        )
    )
    if store.commit_log.is_empty:
        for number in range(600):
            properties = f"KEYS\x01key{number}".encode()
            store.commit_log.append(message(bytes(300), queue_id=number % 300, properties=properties))
    return store


def test_a_log_holds_few_descriptors_for_files_that_are_only_read(tmp_path):
    store = many_files(tmp_path)
    log = store.commit_log
    store.dispatcher.dispatch(log.max_offset, records_max=10_000)
    assert (len(log.files), len(store.queues), len(store.index.files)) == (60, 300, 25)
    # Sixteen of queues; lock, checkpoint, the last index file, and log files that are not on disk yet.
    assert open_descriptors(tmp_path) == 16 + 3 + len(log.files)
    for _ in range(3):
        store.syncs.log_sync(log.flushed.offset, log.max_offset, store_timestamp_ms=0)()
        log.flushed.advance(log.max_offset)
        log.append(message(bytes(300)))
    assert open_descriptors(tmp_path) == 16 + 3 + 1
    before = log_bytes(log)
    store.close()
    assert open_descriptors(tmp_path) == 0
    # After the opening only the last log file has one, and some that are read.
    for clean in (True, False):
        (tmp_path / "abort").unlink(missing_ok=True) if clean else (tmp_path / "abort").touch()
        again = many_files(tmp_path)
        assert log_bytes(again.commit_log) == before
        assert open_descriptors(tmp_path) <= 16 + 2 + 1 + READ_FILES_MAX + (not clean)
        again.close()


def test_a_stored_log_is_read_without_descriptors(tmp_path):
    many_files(tmp_path).close()
    stored = ReadOnlyCommitLog.open(tmp_path)
    assert open_descriptors(tmp_path) == 0
    assert sum(isinstance(item, Record) for item in stored.records(0)) == 600
    with pytest.raises(TypeError, match="read-only"):
        stored._files[0][0] = 1


def test_a_sync_reaches_its_file_after_it_was_closed_moved_or_deleted(tmp_path, monkeypatch):
    log, _ = open_log(tmp_path / "log")
    log.append(message())
    path = log.files[0].path
    inode = path.stat().st_ino
    sync = log.sync_work(0, log.max_offset)
    log.archive(tmp_path / "aside")
    log.append(message())
    # Files that are opened now get other descriptors than the one that the sync holds.
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(10)]
    synced = []
    fdatasync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(os.fstat(fd).st_ino), fdatasync(fd)))
    sync.run()
    for fd in others:
        os.close(fd)
    assert synced == [inode]
    log.close()
    assert open_descriptors(tmp_path) == 0


def test_a_sync_that_never_ran_holds_no_descriptor_after_the_log_is_closed(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    log.sync_work(0, log.max_offset)
    log.close()
    assert open_descriptors(tmp_path) == 0


def test_a_shared_descriptor_is_closed_by_its_last_user(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    first = SharedDescriptor(fd)
    second = first.share()
    first.release()
    assert os.fstat(fd).st_ino == tmp_path.stat().st_ino
    second.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(AssertionError, match="released more often"):
        first.release()
    with pytest.raises(AssertionError, match="cannot be shared"):
        first.share()


# -- without descriptors ---------------------------------------------------------------------------------


async def flushed(store):
    await FlushService(store, sync_flush=True, interval_s=0.5, on_flushed=lambda *_: None).flush()


async def test_without_descriptors_what_is_stored_gets_on_disk_and_is_promised(tmp_path):
    store = open_store(tmp_path)
    store.commit_log.append(message())
    # Start a worker thread before.
    await trio.to_thread.run_sync(os.getpid)
    with no_descriptors_left():
        result = store.commit_log.append(message())
        await flushed(store)
    assert store.commit_log.flushed.offset == result.end_offset
    assert Checkpoint.load(tmp_path / "checkpoint").physic_msg_timestamp_ms == result.store_timestamp_ms
    store.close()


def test_without_descriptors_a_put_that_needs_a_file_is_refused_and_accepted_later(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message(bytes(FILE_BYTES // 2)))
    before = log_bytes(log)
    with no_descriptors_left():
        refused = log.append(message(bytes(FILE_BYTES // 2)))
        assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "Too many open files" in refused.reason
        assert log.append(message(bytes(100))).status is PutStatus.PUT_OK
    assert log_bytes(log).startswith(before)
    assert log.append(message(bytes(FILE_BYTES // 2))).status is PutStatus.PUT_OK
    log.close()


def test_a_log_that_is_not_on_disk_leaves_descriptors_for_queues_and_index(tmp_path):
    store = open_store(tmp_path)
    log = store.commit_log
    with descriptors_left(40):
        for number in range(100):
            properties = f"KEYS\x01key{number}".encode()
            result = log.append(message(bytes(FILE_BYTES // 2), properties=properties))
            if result.status is not PutStatus.PUT_OK:
                break
        assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "the last 8 file descriptors are kept for other files" in result.reason
        assert len(log.files) > 20
        store.dispatcher.dispatch(log.max_offset, records_max=1000)
        assert store.dispatcher.position == log.max_offset
        assert len(store.index.files) == 1
    store.close()


def test_a_file_whose_directory_could_not_be_synced_is_synced_when_it_is_tried_again(tmp_path, monkeypatch):
    log, _ = open_log(tmp_path)
    synced = []

    def fail_once(fd):
        found = os.fstat(fd)
        if not stat.S_ISDIR(found.st_mode):
            return
        synced.append(found.st_ino)
        if len(synced) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("trioha.store.mapped_file.sync_whole", fail_once)
    assert log.append(message()).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert log.append(message()).status is PutStatus.PUT_OK
    assert synced == [tmp_path.stat().st_ino] * 2
    log.close()


async def test_without_descriptors_dispatch_goes_on_with_the_open_queue_files(tmp_path):
    store = open_store(tmp_path)
    log = store.commit_log
    for queue_id in range(20):
        log.append(message(queue_id=queue_id))
    store.dispatcher.dispatch(log.max_offset)
    with no_descriptors_left():
        for queue_id in range(40):
            log.append(message(queue_id=queue_id))
        store.dispatcher.dispatch(log.max_offset)
        found = [store.reads.get("Orders", queue_id, 0).max_offset for queue_id in range(40)]
    assert found == [2] * 20 + [1] * 20
    store.close()


async def test_without_descriptors_queues_are_synced_later_and_the_checkpoint_waits(tmp_path, autojump_clock):
    store = many_files(tmp_path)
    log = store.commit_log
    store.dispatcher.dispatch(log.max_offset, records_max=10_000)
    store.syncs.log_sync(0, log.max_offset, store_timestamp_ms=log.last_store_timestamp_ms)()
    log.flushed.advance(log.max_offset)
    works = []

    async def sync(work):
        await trio.lowlevel.checkpoint()
        works.append(work)
        if len(works) == 1:
            with no_descriptors_left():
                work()
            assert Checkpoint.load(tmp_path / "checkpoint").logics_msg_timestamp_ms == 0
        else:
            work()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(DispatchService(store, sync=sync).run)
        await trio.sleep(1.5)
        assert len(works) == 1
        await trio.sleep(1)
        assert len(works) == 2
        nursery.cancel_scope.cancel()
    found = Checkpoint.load(tmp_path / "checkpoint").logics_msg_timestamp_ms
    assert found == log.last_store_timestamp_ms
    store.close()
    assert not (tmp_path / "abort").exists()


def test_a_queue_sync_that_never_ran_is_done_at_the_close(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    store.commit_log.append(message())
    store.dispatcher.dispatch(store.commit_log.max_offset)
    taken = store.syncs.queue_sync()
    assert taken is not None
    synced = set()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.add(path_of(fd)), fsync(fd)))
    store.close()
    assert str(tmp_path / "consumequeue/Orders/0" / f"{0:020d}") in synced


def test_a_close_without_descriptors_leaves_abort(tmp_path):
    store = many_files(tmp_path, open_files_max=4)
    store.dispatcher.dispatch(store.commit_log.max_offset, records_max=10_000)
    with no_descriptors_left():
        store.close()
    assert (tmp_path / "abort").exists()
    again = many_files(tmp_path)
    assert [again.reads.max_offset("Orders", queue_id) for queue_id in range(300)] == [2] * 300
    again.close()
    assert not (tmp_path / "abort").exists()


# -- F_FULLFSYNC --------------------------------------------------------------------------------------------


@pytest.fixture
def full_sync(monkeypatch):
    """A platform with F_FULLFSYNC: the calls it received, and its answer."""
    asked = []
    answers = {}

    def fake_fcntl(fd, command):
        assert command == 51
        asked.append(("F_FULLFSYNC", fd))
        if answers:
            raise OSError(answers["errno"], os.strerror(answers["errno"]))

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fake_fcntl)
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: asked.append((name, fd)), raising=False)
    return asked, answers


def test_where_there_is_f_fullfsync_it_is_asked_for_instead_of_fsync(full_sync):
    asked, _ = full_sync
    sync_data(7)
    sync_whole(8)
    assert asked == [("F_FULLFSYNC", 7), ("F_FULLFSYNC", 8)]


@pytest.mark.parametrize("refusal", [errno.ENOTSUP, errno.EINVAL])
def test_a_file_system_that_refuses_f_fullfsync_is_asked_for_fsync(full_sync, refusal):
    asked, answers = full_sync
    answers["errno"] = refusal
    sync_data(7)
    sync_whole(8)
    assert asked == [("F_FULLFSYNC", 7), ("fdatasync", 7), ("F_FULLFSYNC", 8), ("fsync", 8)]


def test_a_disk_that_fails_f_fullfsync_has_failed(full_sync):
    asked, answers = full_sync
    answers["errno"] = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        sync_data(7)
    assert asked == [("F_FULLFSYNC", 7)]


def test_all_syncs_of_a_store_go_through_one_module(tmp_path, full_sync):
    asked, _ = full_sync
    store = open_store(tmp_path)
    store.commit_log.append(message(properties=b"KEYS\x01key"))
    store.close()
    sync_directory(tmp_path)
    assert {what for what, _ in asked} == {"F_FULLFSYNC"}


# -- abort -----------------------------------------------------------------------------------------------


def test_abort_is_on_disk_before_queues_change_and_goes_when_all_else_is_on_disk(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    store.commit_log.append(message())
    store.close()
    for file in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    steps = []
    abort, entry = tmp_path / "abort", tmp_path / "consumequeue/Orders/0" / f"{0:020d}"

    def fsync(fd):
        path = path_of(fd).removeprefix(f"{tmp_path}").lstrip("/")
        steps.append((path, abort.exists(), entry.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    store = open_store(tmp_path)
    assert steps[:2] == [("abort", True, False), ("", True, False)]
    assert entry.exists()
    steps.clear()
    store.close()
    assert steps[-1] == ("", False, True)
    assert all(there for _, there, _ in steps[:-1])


def test_a_store_on_a_full_disk_can_be_opened(tmp_path, monkeypatch):
    pwrite = os.pwrite

    def full(fd, data, at):
        if path_of(fd).endswith("/abort"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    store = open_store(tmp_path)
    assert (tmp_path / "abort").exists()
    store.close()


def test_a_log_that_cannot_delete_its_first_file_is_as_it_was(tmp_path, monkeypatch):
    log, _ = open_log(tmp_path)
    while len(log.files) < 3:
        log.append(message(bytes(20_000)))
    before = log_bytes(log)
    unlink = Path.unlink

    def refuse(path, missing_ok=False):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(Exception, match="cannot be deleted: Permission denied"):
        log.delete_first_file()
    assert (log.min_offset, log_bytes(log), len(log.files)) == (0, before, 3)
    monkeypatch.setattr(Path, "unlink", unlink)
    log.delete_first_file()
    assert (log.min_offset, log_bytes(log)) == (FILE_BYTES, before[FILE_BYTES:])
    log.close()


def test_a_log_is_mapped_also_where_python_keeps_a_descriptor(tmp_path, monkeypatch):
    """Where a mapping cannot be put over another one, Python maps the file."""
    monkeypatch.setattr("trioha.store.mapping._MAP_NORESERVE", {})
    log, _ = open_log(tmp_path)
    assert isinstance(log, CommitLog)
    result = log.append(message())
    assert result.status is PutStatus.PUT_OK
    log.close()


def test_without_descriptors_a_store_that_is_on_disk_closes_cleanly(tmp_path):
    store = open_store(tmp_path)
    store.commit_log.append(message())
    store.dispatcher.dispatch(store.commit_log.max_offset)
    work = store.syncs.queue_sync()
    assert work is not None
    work()
    with no_descriptors_left():
        store.close()
    assert not (tmp_path / "abort").exists()

"""An index that cannot be written is behind the queues, holds nothing up, and is completed later."""

import errno
import os
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from tests.store.dispatching import files_below, parts_of
from tests.store.support import cut_store, message, open_log, open_store
from trioha.store.dispatch_service import REBUILD_INTERVAL_S, RECHECK_S, SYNC_INTERVAL_S, DispatchService
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.index_file import IndexFile, IndexShape
from trioha.store.put_status import PutStatus
from trioha.unwritten import Unwritten

SHAPE = IndexShape(hash_slots=7, index_num=9)


@contextmanager
def no_room_for_the_index():
    """Files of the index get no more space."""

    def refuse(fd, start, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as full:
        full.setattr("trioha.store.index_file._reserve", refuse)
        yield


@contextmanager
def syncs_of_the_index_fail(*, times=1 << 30):
    """That many syncs of files of the index fail, and of its folder; yields the paths that were tried."""
    tried = []
    real = os.fsync

    def fsync(fd):
        path = str(Path(f"/proc/self/fd/{fd}").readlink())
        if "/index" in path:
            tried.append(path)
            if len(tried) <= times:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    with pytest.MonkeyPatch.context() as failing:
        failing.setattr("os.fsync", fsync)
        yield tried


async def at_once(work):
    work()


def append(log, count, *, topic="Orders"):
    """Store messages, each with a key of its own; returns the log's end."""
    for number in range(count):
        properties = f"UNIQ_KEY\x01key{log.max_offset}\x02KEYS\x01k{number} other\x02".encode()
        end_offset = log.append(message(topic=topic, properties=properties)).end_offset
    return end_offset


def found(index, offset):
    """The records with the key of the message at this offset."""
    return list(index.candidates("Orders", f"key{offset}", begin_ms=0, end_ms=1 << 60))


def expected_index(log, folder, shape=SHAPE):
    """Content of the index files, in their order, of the whole log."""
    made = parts_of(log, folder, shape=shape)
    made.dispatch_all()
    made.close()
    return list(files_below(folder / "index").values())


@pytest.mark.parametrize("records_max", [1, 3, 512])
@pytest.mark.parametrize("before", [0, 2, 4])
def test_an_index_completed_later_equals_one_that_was_never_behind(tmp_path, before, records_max):
    """Without a file before it, with a part of one, with more than one."""
    log, _ = open_log(tmp_path / "log")
    if before:
        append(log, before)
    made = parts_of(log, tmp_path / "made", shape=SHAPE)
    made.dispatch_all()
    lacks_from = log.max_offset
    with no_room_for_the_index():
        append(log, 20)
        made.dispatch_all(records_max=records_max)
        assert made.dispatcher.position == log.max_offset
        assert not made.dispatcher.complete_index()
    assert made.queues.find("Orders", 0).max_offset == before + 20
    assert made.unwritten.failures["index"] >= 2
    assert "No space left on device" in made.unwritten.reasons["index"]
    assert made.dispatcher.index_lacks_from >= lacks_from
    while made.dispatcher.complete_index(records_max=records_max):
        assert made.dispatcher.position == log.max_offset
    assert (made.dispatcher.index_lacks_from, dict(made.unwritten.reasons)) == (None, {})
    append(log, 3)
    made.dispatch_all()
    made.close()
    assert list(files_below(tmp_path / "made/index").values()) == expected_index(log, tmp_path / "whole")
    log.close()


def test_completing_the_index_brings_no_deleted_queue_back(tmp_path):
    log, _ = open_log(tmp_path / "log")
    made = parts_of(log, tmp_path / "made", shape=SHAPE)
    with no_room_for_the_index():
        append(log, 3, topic="Gone")
        append(log, 3)
        made.dispatch_all()
    made.queues.delete("Gone", 0)
    made.dispatcher.forget_queues()
    while made.dispatcher.complete_index():
        pass
    assert made.queues.find("Gone", 0) is None
    assert made.index.end_physical_offset > 0
    made.close()
    log.close()


def test_records_that_dispatch_passed_over_do_not_end_the_completion(tmp_path):
    """A bad record whose length is wrong: dispatch goes on in the next file, and so does the index."""
    log, _ = open_log(tmp_path / "log")
    made = parts_of(log, tmp_path / "made", shape=SHAPE)
    with no_room_for_the_index():
        append(log, 2)
        bad = log.max_offset
        while len(log.files) < 2:
            append(log, 1)
        last = log.max_offset
        append(log, 1)
        log.files[0].view[bad : bad + 4] = (1 << 29).to_bytes(4, "big")
        made.dispatch_all()
        assert made.dispatcher.position == log.max_offset
    while made.dispatcher.complete_index(records_max=1):
        pass
    assert made.dispatcher.index_lacks_from is None
    assert found(made.index, 0) == [0]
    assert found(made.index, last) == [last]
    made.close()
    log.close()


async def test_a_disk_without_room_for_the_index_holds_no_queue_up(tmp_path, nursery, autojump_clock):
    store = open_store(tmp_path)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    with no_room_for_the_index():
        end_offset = append(store.commit_log, 5)
        await trio.sleep(10 * RECHECK_S)
        assert store.dispatcher.position == end_offset
        assert store.reads.max_offset("Orders", 0) == 5
        assert store.unwritten.failures["index"] > 5
        store.commit_log.flushed.advance(end_offset)
        await trio.sleep(2 * RECHECK_S)
        # A start after a crash builds from there.
        assert store.checkpoints.current.logics_physical_offset == 0
    await trio.sleep(2 * RECHECK_S)
    assert store.dispatcher.index_lacks_from is None
    assert dict(store.unwritten.reasons) == {}
    nursery.cancel_scope.cancel()
    store.close()


async def test_after_a_failed_sync_of_the_index_its_files_are_built_again(tmp_path, nursery, autojump_clock):
    """The kernel reports lost pages once: that a later sync succeeds says nothing of them."""
    store = open_store(tmp_path)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    # Files that are full and on disk stay.
    store.commit_log.flushed.advance(append(store.commit_log, 40))
    await trio.sleep(2.5 * SYNC_INTERVAL_S)
    kept = store.index.files[0].path
    assert store.index.files[0].is_full
    with syncs_of_the_index_fail(times=1):
        end_offset = append(store.commit_log, 2)
        await trio.sleep(SYNC_INTERVAL_S)
        # Its pages are lost.
        lost = store.index.files[-1]
        lost._view[len(lost._view) // 2 :] = bytes(len(lost._view) - len(lost._view) // 2)
        assert store.dispatcher.position == end_offset
        assert "Input/output error" in store.unwritten.reasons["index"]
        await trio.sleep(3 * SYNC_INTERVAL_S)
    assert (store.dispatcher.index_lacks_from, dict(store.unwritten.reasons)) == (None, {})
    assert store.unwritten.failures == {"index": 1}
    assert store.index.files[0].path == kept
    store.commit_log.flushed.advance(append(store.commit_log, 2))
    await trio.sleep(2 * SYNC_INTERVAL_S)
    assert store.checkpoints.current.logics_physical_offset == store.commit_log.max_offset
    assert list(files_below(tmp_path / "index").values()) == expected_index(
        store.commit_log, tmp_path / "whole", store.index.shape
    )
    nursery.cancel_scope.cancel()
    store.close()
    assert not (tmp_path / "abort").exists()


async def test_a_disk_that_syncs_no_index_holds_nothing_up_and_is_tried_once_a_minute(
    tmp_path, nursery, autojump_clock
):
    store = open_store(tmp_path)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    with syncs_of_the_index_fail() as tried:
        end_offset = append(store.commit_log, 5)
        store.commit_log.flushed.advance(end_offset)
        await trio.sleep(10 * REBUILD_INTERVAL_S)
        assert store.reads.max_offset("Orders", 0) == 5
        # Meanwhile its files are read.
        assert found(store.index, 0) == [0]
        assert 10 <= store.unwritten.failures["index"] == len(tried) <= 12
        # A start after a crash builds from there.
        assert store.checkpoints.current.logics_physical_offset == 0
    await trio.sleep(2 * REBUILD_INTERVAL_S)
    assert dict(store.unwritten.reasons) == {}
    assert store.checkpoints.current.logics_physical_offset == end_offset
    nursery.cancel_scope.cancel()
    store.close()


async def test_an_index_that_is_complete_asks_for_no_turn(tmp_path, nursery, autojump_clock, monkeypatch):
    store = open_store(tmp_path)
    looked = []
    monkeypatch.setattr(store.dispatcher, "complete_index", lambda **_: looked.append(trio.current_time()))
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    append(store.commit_log, 5)
    await trio.sleep(60)
    assert looked == []
    nursery.cancel_scope.cancel()
    store.close()


def test_a_stop_and_a_start_whose_syncs_of_the_index_fail_leave_it_to_the_next_start(tmp_path):
    store = open_store(tmp_path)
    append(store.commit_log, 5)
    with syncs_of_the_index_fail():
        store.close()
    assert "Input/output error" in store.unwritten.reasons["index"]
    assert (tmp_path / "abort").exists()
    with syncs_of_the_index_fail():
        again = open_store(tmp_path)
        assert again.commit_log.append(message()).status is PutStatus.PUT_OK
        assert again.index_rebuild.is_doubtful()
        again.close()
    last = open_store(tmp_path)
    assert found(last.index, 0) == [0]
    assert not last.index_rebuild.is_doubtful()
    last.close()
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_a_cut_whose_syncs_of_the_index_fail_is_completed(tmp_path, then):
    store = open_store(tmp_path)
    cut_at = append(store.commit_log, 3)
    append(store.commit_log, 3)
    dispatch_to_end(store.dispatcher, store.commit_log)
    with syncs_of_the_index_fail():
        cut_store(store, cut_at)
    assert store.commit_log.max_offset == cut_at
    assert store.index_rebuild.is_doubtful()
    if then == "is killed":
        store.release()
        store = open_store(tmp_path)
    else:
        for step in store.index_rebuild.drop_steps():
            step()
    dispatch_to_end(store.dispatcher, store.commit_log)
    while store.dispatcher.complete_index():
        pass
    assert not store.index_rebuild.is_doubtful()
    assert found(store.index, 0) == [0]
    assert found(store.index, cut_at) == []
    store.close()
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_the_next_start_completes_the_index_whatever_the_stop(tmp_path, stop):
    store = open_store(tmp_path)
    append(store.commit_log, 3)
    dispatch_to_end(store.dispatcher, store.commit_log)
    lacks_from = store.commit_log.max_offset
    with no_room_for_the_index(), pytest.MonkeyPatch.context() as full:
        full.setattr(IndexFile, "is_full", True)
        append(store.commit_log, 5)
        dispatch_to_end(store.dispatcher, store.commit_log)
        assert store.dispatcher.index_lacks_from == lacks_from
        if stop == "clean":
            store.close()
            assert not (tmp_path / "abort").exists()
        else:
            store.syncs.queue_sync()()
            store.release()
    again = open_store(tmp_path)
    if stop == "clean":
        assert again.dispatcher.index_lacks_from == lacks_from
        assert again.checkpoints.current.logics_physical_offset == lacks_from
    while again.dispatcher.complete_index():
        pass
    dispatch_to_end(again.dispatcher, again.commit_log)
    offset = again.index.end_physical_offset
    assert found(again.index, offset) == [offset]
    assert found(again.index, lacks_from) == [lacks_from]
    assert again.reads.max_offset("Orders", 0) == 8
    again.close()
    last = open_store(tmp_path)
    assert last.dispatcher.index_lacks_from is None
    last.close()


def test_a_cut_before_what_the_index_lacks_ends_the_backlog(tmp_path):
    store = open_store(tmp_path)
    cut_at = append(store.commit_log, 3)
    dispatch_to_end(store.dispatcher, store.commit_log)
    with no_room_for_the_index(), pytest.MonkeyPatch.context() as full:
        full.setattr(IndexFile, "is_full", True)
        append(store.commit_log, 3)
        dispatch_to_end(store.dispatcher, store.commit_log)
    assert store.dispatcher.index_lacks_from == cut_at
    cut_store(store, cut_at)
    assert store.dispatcher.index_lacks_from is None
    append(store.commit_log, 1)
    dispatch_to_end(store.dispatcher, store.commit_log)
    assert store.index.end_physical_offset == cut_at
    store.close()


def test_failures_are_a_line_a_minute_until_the_thing_is_written():
    now_s = 0.0
    unwritten = Unwritten(clock_s=lambda: now_s)
    with capture_logs() as lines:
        for _ in range(100):
            now_s += 1
            unwritten.fail("index", "full", consequence="queues go on")
        unwritten.succeed("index")
        unwritten.succeed("index")
        unwritten.succeed("recording")
        unwritten.fail("index", "full again", consequence="queues go on")
    assert [line["event"] for line in lines] == [
        "cannot be written: index",
        "cannot be written: index",
        "written again: index",
        "cannot be written: index",
    ]
    assert (dict(unwritten.reasons), dict(unwritten.failures)) == ({"index": "full again"}, {"index": 101})

"""Long syncs write piece by piece, and say so; those for which nobody waits rest in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from attrs import define, field

from tests.store.support import message, open_log, open_store
from trioha.store import syncing
from trioha.store.flush import FlushService
from trioha.store.syncing import PIECE_BYTES, SyncWork, pace, write_pieces

FILE_BYTES = 65536


@define
class Disk:
    """What it is asked for, in order."""

    folder: Path
    """Where its files are."""
    error: int = 0
    """Of `sync_file_range`."""
    calls: list[object] = field(factory=list)

    def write(self, fd, offset, length, flags):
        if flags == syncing._WRITE_AND_WAIT:
            self.calls.append((self._name_of(fd), offset, length))
        else:
            self.calls.append(f"pace {self._name_of(fd)} {offset} {length}")
        return self.error

    def sync(self, fd):
        self.calls.append(f"sync {self._name_of(fd)}")

    def step(self):
        self.calls.append("step")

    def _name_of(self, fd):
        opened = os.fstat(fd)
        return next(path.name for path in self.folder.rglob("*") if os.path.samestat(path.stat(), opened))


@pytest.fixture
def disk(tmp_path, monkeypatch):
    made = Disk(tmp_path)
    monkeypatch.setattr(syncing, "_sync_file_range", lambda: made.write)
    return made


@pytest.fixture
def no_holes(monkeypatch):
    """Files have bytes everywhere."""
    monkeypatch.setattr(syncing, "_next_data", lambda _fd, offset: offset)


def work_of(disk, *paths, span=None, grown_bytes=0):
    """Of files that have grown when it runs."""
    work = SyncWork(disk.sync)
    for path in paths:
        path.touch()
        work.add(path, span=span)
        os.truncate(path, (span[1] if span is not None else 0) + grown_bytes)
    return work


def test_a_long_span_is_written_in_pieces_before_its_sync(tmp_path, disk):
    end = 100 + 2 * PIECE_BYTES + 7
    work_of(disk, tmp_path / "a", span=(100, end)).run(disk.step)
    assert disk.calls == [
        ("a", 100, PIECE_BYTES),
        "step",
        ("a", 100 + PIECE_BYTES, PIECE_BYTES),
        "step",
        ("a", 100 + 2 * PIECE_BYTES, 7),
        "step",
        "sync a",
        "step",
    ]


def test_what_is_appended_meanwhile_is_written_in_pieces_too(tmp_path, disk):
    """The sync at the end would have it all to write, without a step."""
    span = (PIECE_BYTES, 2 * PIECE_BYTES + 1)
    work_of(disk, tmp_path / "a", span=span, grown_bytes=2 * PIECE_BYTES).run(disk.step)
    assert [call[1:] for call in disk.calls if isinstance(call, tuple)] == [
        (PIECE_BYTES, PIECE_BYTES),
        (2 * PIECE_BYTES, PIECE_BYTES),
        (3 * PIECE_BYTES, PIECE_BYTES),
        (4 * PIECE_BYTES, 1),
    ]


@pytest.mark.parametrize("span", [None, (5, 5), (0, PIECE_BYTES)])
def test_a_short_span_is_only_synced(tmp_path, disk, span):
    work_of(disk, tmp_path / "a", tmp_path / "b", span=span).run(disk.step)
    assert disk.calls == ["sync a", "step", "sync b", "step"]


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_where_a_file_system_writes_no_pieces_the_sync_does_all(tmp_path, disk, error):
    disk.error = error
    work_of(disk, tmp_path / "a", span=(0, 3 * PIECE_BYTES)).run(disk.step)
    assert disk.calls == [("a", 0, PIECE_BYTES), "sync a", "step"]


def test_where_a_system_writes_no_pieces_the_sync_does_all(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(syncing, "_sync_file_range", lambda: None)
    work_of(disk, tmp_path / "a", span=(0, 3 * PIECE_BYTES)).run(disk.step)
    assert disk.calls == ["sync a", "step"]


def test_a_piece_that_cannot_be_written_fails_the_sync(tmp_path, disk):
    """The kernel reports it once: a sync that follows would succeed."""
    disk.error = errno.EIO
    work = work_of(disk, tmp_path / "a", span=(0, 3 * PIECE_BYTES))
    with pytest.raises(OSError, match="Input/output error") as failed:
        work.run(disk.step)
    assert failed.value.errno == errno.EIO
    assert disk.calls == [("a", 0, PIECE_BYTES)]
    assert work.left == (tmp_path / "a",)


def test_the_pieces_of_a_log_are_those_of_its_new_bytes(tmp_path, disk, monkeypatch):
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    monkeypatch.setattr(syncing, "PIECE_BYTES", 40_000)
    monkeypatch.setattr(os, "fdatasync", disk.sync)
    start = log.append(message(bytes(1000))).end_offset
    while len(log.files) < 3:
        log.append(message(bytes(5000)))
    end = log.max_offset
    log.sync_work(start, end).run(disk.step)
    first, second, third = (f"{number * FILE_BYTES:020d}" for number in range(3))
    assert [call for call in disk.calls if call != "step"] == [
        (first, start, 40_000),
        (first, start + 40_000, FILE_BYTES - start - 40_000),
        f"sync {first}",
        (second, 0, 40_000),
        (second, 40_000, FILE_BYTES - 40_000),
        f"sync {second}",
        f"sync {third}",
    ]
    assert disk.calls.count("step") == 7


def test_the_system_writes_pieces(tmp_path):
    steps = []
    on_step = lambda: steps.append(None)  # noqa: E731
    write = syncing._sync_file_range()
    with (tmp_path / "a").open("wb") as file:
        file.write(bytes(2 * PIECE_BYTES + 1))
        file.flush()
        write_pieces(file.fileno(), 0, 2 * PIECE_BYTES + 1, on_step)
    assert len(steps) == (0 if write is None else 3)
    reading, writing = os.pipe()
    try:
        # Neither can be synced in pieces, nor fails.
        write_pieces(writing, 0, PIECE_BYTES, on_step)
    finally:
        os.close(reading)
        os.close(writing)
    assert len(steps) == (0 if write is None else 3)
    if write is not None:
        assert write(reading, 0, 1, 2) == errno.EBADF


# -- paced syncs ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_holes")
def test_a_paced_sync_writes_what_is_not_on_disk_in_small_pieces_before_it(tmp_path, disk):
    piece = syncing._PACED_BYTES
    work_of(disk, tmp_path / "a", span=(100, piece + 200), grown_bytes=PIECE_BYTES).run(disk.step, paced=True)
    work_of(disk, tmp_path / "b", grown_bytes=piece + 1).run(disk.step, paced=True)
    assert disk.calls == [
        f"pace a 100 {piece}", f"pace a {piece + 100} 100", "sync a", "step",
        f"pace b 0 {piece}", f"pace b {piece} 1", "sync b", "step",
    ]  # fmt: skip


def test_a_long_span_is_not_paced(tmp_path, disk):
    """There is load: the sync is needed before the next one is due."""
    work_of(disk, tmp_path / "a", span=(0, PIECE_BYTES + 1)).run(disk.step, paced=True)
    assert disk.calls == [("a", 0, PIECE_BYTES), "step", ("a", PIECE_BYTES, 1), "step", "sync a", "step"]


def test_a_failed_write_of_a_paced_sync_fails_it(tmp_path, disk):
    disk.error = errno.EIO
    work = work_of(disk, tmp_path / "a")
    (tmp_path / "a").write_bytes(b"bytes")
    with pytest.raises(OSError, match="Input/output error"):
        work.run(disk.step, paced=True)
    assert work.left == (tmp_path / "a",)
    disk.error = errno.ENOSYS
    work.run(disk.step, paced=True)
    assert not work.left


@pytest.mark.usefixtures("no_holes")
def test_a_paced_thread_rests_three_times_as_long_as_it_works_and_a_second_at_most(
    tmp_path, disk, monkeypatch
):
    work_s, rests_s = 0.0, []

    def work(*_):
        nonlocal work_s
        # Of a piece: too short for a rest, of the usual length, a stall.
        work_s += (0.00004, 0.0009, 2.0)[len(disk.calls) % 3]
        disk.calls.append("")
        return 0

    monkeypatch.setattr(syncing, "_sync_file_range", lambda: work)
    monkeypatch.setattr(syncing.time, "thread_time", lambda: work_s)
    monkeypatch.setattr(syncing.time, "sleep", rests_s.append)
    pace(0, 0, 6 * syncing._PACED_BYTES)
    assert rests_s == pytest.approx([3 * 0.00094, 0.005] * 2)
    pace(0, 0, 10_000 * syncing._PACED_BYTES)
    assert sum(rests_s[4:]) == pytest.approx(1.0, abs=0.005)


def test_where_the_system_has_no_such_call_nothing_is_paced(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(syncing, "_sync_file_range", lambda: None)
    work_of(disk, tmp_path / "a", grown_bytes=1).run(disk.step, paced=True)
    assert disk.calls == ["sync a", "step"]


def test_bytes_that_are_written_slowly_are_those_of_the_file(tmp_path):
    path = tmp_path / "a"
    data = os.urandom(300_000)
    path.write_bytes(data)
    with path.open("rb") as file:
        pace(file.fileno(), 0, len(data))
        pace(file.fileno(), 5, 5)
        pace(file.fileno(), 0, 2 * len(data))
    assert path.read_bytes() == data
    if syncing._sync_file_range() is not None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            pace(-1, 0, 1)


def test_holes_of_a_sparse_file_are_not_written(tmp_path, disk):
    path, far = tmp_path / "index", 400 * 1024 * 1024
    with path.open("wb") as file:
        os.truncate(file.fileno(), far + 100_000)
        os.pwrite(file.fileno(), b"slots", 0)
        os.pwrite(file.fileno(), b"entries", far)
    work = SyncWork(disk.sync)
    work.add(path)
    work.run(disk.step, paced=True)
    # Where the file system knows no holes all of it is written.
    assert len(disk.calls) < 10 or len(disk.calls) > 3000
    assert disk.calls[0].startswith("pace index 0 ")
    assert any(call.startswith(f"pace index {far} ") for call in disk.calls[1:])
    assert disk.calls[-2:] == ["sync index", "step"]


@pytest.mark.parametrize("sync_flush", [False, True])
async def test_syncs_that_nobody_waits_for_are_paced(tmp_path, monkeypatch, sync_flush):
    seen = []
    run = SyncWork.run

    def noted(self, *arguments, paced=False):
        seen.append(paced)
        run(self, *arguments, paced=paced)

    store = open_store(tmp_path)
    monkeypatch.setattr(SyncWork, "run", noted)
    store.commit_log.append(message())
    flush = FlushService(store, sync_flush=sync_flush, interval_s=0.5, on_flushed=lambda *_: None)
    await flush.flush()
    assert seen == [not sync_flush]
    store.dispatcher.dispatch(store.commit_log.max_offset)
    sync_queues = store.syncs.queue_sync(paced=True)
    assert sync_queues is not None
    seen.clear()
    sync_queues()
    assert seen == [True, True]
    store.commit_log.append(message())
    seen.clear()
    store.close()
    assert len(seen) >= 3
    assert not any(seen), "a node that stops is waited for"

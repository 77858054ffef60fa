"""Pages that are populated ahead of the log's end: stores into them fault no more, and no byte changes."""

from __future__ import annotations

import mmap
import resource
import sys
from pathlib import Path

import pytest

from tests.store.support import log_bytes, message, open_log
from trioha.store import mapped_file
from trioha.store.commit_log import POPULATED_BYTES, CommitLog
from trioha.store.mapped_file import MappedFile

FILE_BYTES = 1 << 20
PAGE = mmap.PAGESIZE


def can_populate(folder: Path) -> bool:
    file = MappedFile.create(folder, start_offset=0, size=16 * PAGE)
    try:
        return file.populate(0, PAGE)
    finally:
        file.remove()


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    if sys.platform != "linux" or not can_populate(tmp_path):
        pytest.skip("the kernel is older than MADV_POPULATE_WRITE")
    log, _ = open_log(tmp_path / "log", file_bytes=FILE_BYTES)
    log.append(message())
    return log


def faults() -> int:
    """Page faults of this process. A page of a file that was never read counts as a major one."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def faults_of(log: CommitLog, end_offset: int) -> int:
    """Page faults of stores into the log's file up to an offset, one in each page."""
    view, first = log.files[-1].view, log.files[-1].start_offset
    before = faults()
    for at in range(log.max_offset - first + PAGE, end_offset - first, PAGE):
        view[at] = 0
    return faults() - before


def test_stores_into_populated_pages_do_not_fault(log: CommitLog) -> None:
    pages = POPULATED_BYTES // PAGE
    before = log_bytes(log)
    end_offset = log.max_offset + POPULATED_BYTES
    log.populate_ahead()
    # The interpreter's own memory may fault once or twice.
    assert faults_of(log, end_offset) < pages // 2
    assert faults_of(log, end_offset + POPULATED_BYTES) >= pages - 1
    assert log_bytes(log) == before
    assert not any(log.files[-1].view[log.max_offset :])


def test_only_what_was_used_up_is_populated_again(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    populated: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "populate", lambda _, start, end: populated.append((start, end)))
    log.populate_ahead()
    first_end = log.max_offset + POPULATED_BYTES
    assert populated == [(log.max_offset, first_end)]
    log.append(message(bytes(PAGE // 2)))
    log.populate_ahead()
    assert len(populated) == 1
    log.append(message(bytes(PAGE)))
    log.populate_ahead()
    assert populated[1:] == [(first_end, log.max_offset + POPULATED_BYTES)]
    while log.max_offset < FILE_BYTES - POPULATED_BYTES:
        log.append(message(bytes(PAGE)))
    log.populate_ahead()
    log.populate_ahead()
    assert populated[2:] == [(log.max_offset, FILE_BYTES)]
    while len(log.files) == 1:
        log.append(message(bytes(PAGE)))
    log.populate_ahead()
    at = log.max_offset - FILE_BYTES
    assert populated[3:] == [(at, at + POPULATED_BYTES)]


def test_an_empty_log_has_nothing_to_populate(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    log.populate_ahead()


def test_after_a_cut_the_new_end_counts(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    start_offset = log.max_offset
    while log.max_offset < 2 * POPULATED_BYTES:
        log.append(message(bytes(PAGE)))
    log.populate_ahead()
    log.flushed.advance(log.max_offset)
    log.cut(start_offset, last_store_timestamp_ms=0)
    populated: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedFile, "populate", lambda _, start, end: populated.append((start, end)))
    log.populate_ahead()
    assert populated == [(start_offset, start_offset + POPULATED_BYTES)]


@pytest.mark.parametrize("advice", [9999, None])
def test_a_system_that_cannot_do_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, advice: int | None
) -> None:
    monkeypatch.setattr(mapped_file, "MADV_POPULATE_WRITE", advice)
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    log.append(message())
    assert not log.files[0].populate(0, PAGE)
    log.populate_ahead()
    assert log.append(message()).size

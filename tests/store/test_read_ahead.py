"""Where the kernel reads a log file ahead: before the bytes that are on disk, not where puts will write."""

import mmap
import re
import sys
from pathlib import Path

import pytest

from tests.store.support import HOST, message
from trioha.store import mapped_file
from trioha.store.checkpoint import Checkpoint
from trioha.store.mapped_file import ADVISED_BYTES, HUGE_PAGE_BYTES
from trioha.store.recovery import open_commit_log

FILE_BYTES = 4 * ADVISED_BYTES
BODY_BYTES = 64 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what it was advised")


def not_read_ahead(path):
    """The parts of a file that this process maps without read-ahead: first byte and end of each."""
    return parts_with("rr", path)


def parts_with(flag, path):
    """The parts of a file that this process maps with a flag: first byte and end. Neighbours are one."""
    parts = []
    # By its number: a file that was made without a name is shown as deleted.
    inode = path.stat().st_ino
    start = end = -1
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(rf"(\w+)-(\w+) \S+ (\w+) \S+ {inode}\b", line):
            first, last, offset = (int(number, 16) for number in found.groups())
            start, end = offset, offset + last - first
        elif line.startswith("VmFlags:"):
            if start >= 0 and flag in line.split():
                if parts and parts[-1][1] == start:
                    start = parts.pop()[0]
                parts.append((start, end))
            start = -1
    return parts


def page_of(offset):
    return offset - offset % mmap.PAGESIZE


def opened(folder):
    log, _ = open_commit_log(
        folder,
        file_bytes=FILE_BYTES,
        message_bytes_max=1 << 20,
        store_host=HOST,
        clean_exit=True,
        checkpoint=Checkpoint(),
    )
    return log


def append_until(log, offset):
    while log.max_offset < offset:
        assert log.append(message(bytes(BODY_BYTES))).size


def flush(log):
    end_offset = log.max_offset
    log.sync_work(log.flushed.offset, end_offset).run()
    log.flushed.advance(end_offset)


def test_new_file_is_not_read_ahead(tmp_path):
    log = opened(tmp_path)
    append_until(log, 1)
    assert not_read_ahead(log.files[0].path) == [(0, FILE_BYTES)]
    log.close()


def test_file_is_read_ahead_where_it_is_on_disk(tmp_path):
    log = opened(tmp_path)
    append_until(log, 2 * ADVISED_BYTES)
    flush(log)
    append_until(log, 3 * ADVISED_BYTES)
    flush(log)
    assert not_read_ahead(log.files[0].path) == [(2 * ADVISED_BYTES, FILE_BYTES)]
    log.close()


@pytest.mark.skipif(mapped_file.MADV_HUGEPAGE is None, reason="huge pages are too large")
def test_huge_pages_are_used_where_many_bytes_are_appended_and_not_for_reads(tmp_path):
    log = opened(tmp_path)
    append_until(log, 1)
    file = log.files[0]
    file.expect_many_appends(1, FILE_BYTES - 1)
    huge = (HUGE_PAGE_BYTES, FILE_BYTES - HUGE_PAGE_BYTES)
    assert parts_with("hg", file.path) == [huge]
    assert not_read_ahead(file.path) == [(0, FILE_BYTES)]
    for _ in range(2):
        append_until(log, log.max_offset + 2 * ADVISED_BYTES)
        flush(log)
    # All of the first sync's pages but the last one.
    assert parts_with("hg", file.path) == [(2 * HUGE_PAGE_BYTES, huge[1])]
    assert parts_with("nh", file.path) == [(0, 2 * HUGE_PAGE_BYTES)]
    log.close()


def test_a_part_of_a_huge_page_stays_small(tmp_path):
    log = opened(tmp_path)
    append_until(log, 1)
    file = log.files[0]
    for start, end in ((1, HUGE_PAGE_BYTES), (HUGE_PAGE_BYTES + 1, 3 * HUGE_PAGE_BYTES - 1), (5, 5)):
        file.expect_many_appends(start, end)
    assert parts_with("hg", file.path) == []
    log.close()


def test_full_file_is_read_ahead_once_it_is_on_disk(tmp_path):
    log = opened(tmp_path)
    append_until(log, FILE_BYTES + 1)
    full, last = log.files
    assert not_read_ahead(full.path) == [(0, FILE_BYTES)]
    flush(log)
    append_until(log, log.max_offset + 1)
    flush(log)
    assert not_read_ahead(full.path) == []
    assert not_read_ahead(last.path) == [(0, FILE_BYTES)]
    log.close()


def test_reopened_file_is_not_read_ahead_after_the_end_of_the_log(tmp_path):
    log = opened(tmp_path)
    append_until(log, ADVISED_BYTES)
    end_offset = log.max_offset
    flush(log)
    log.close()
    log = opened(tmp_path)
    assert log.max_offset == end_offset
    assert not_read_ahead(log.files[0].path) == [(page_of(end_offset), FILE_BYTES)]
    log.close()

"""Pages that are populated ahead of the log's end: stores into them fault no more, and no byte changes."""

import mmap
import resource
import sys
from functools import partial

import pytest
import trio

from tests.store.support import log_bytes, message, open_log
from tests.store.test_kernel import needs_kernel
from tests.store.test_read_ahead import flush, parts_with
from trioha.store import mapped_file, populate
from trioha.store.commit_log import POPULATED_BYTES
from trioha.store.mapped_file import HUGE_PAGE_BYTES, MappedFile
from trioha.store.messages import BatchItem, MessageBatch
from trioha.store.populate import AHEAD_BYTES, HUGE_WITHIN_S, SMALL_AFTER_S, populate_pages
from trioha.store.record import decode_record

FILE_BYTES = 1 << 20
PAGE = mmap.PAGESIZE


def can_populate(folder):
    file = MappedFile.create(folder, start_offset=0, size=16 * PAGE)
    try:
        return file.populate(0, PAGE)
    finally:
        file.remove()


@pytest.fixture
def log(tmp_path):
    if sys.platform != "linux" or not can_populate(tmp_path):
        pytest.skip("the kernel is older than MADV_POPULATE_WRITE")
    log, _ = open_log(tmp_path / "log", file_bytes=FILE_BYTES)
    log.append(message())
    return log


def faults():
    """Page faults of this process. A page of a file that was never read counts as a major one."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def faults_of(log, end_offset):
    """Page faults of stores into the log's file up to an offset, one in each page."""
    view, first = log.files[-1].view, log.files[-1].start_offset
    before = faults()
    for at in range(log.max_offset - first + PAGE, end_offset - first, PAGE):
        view[at] = 0
    return faults() - before


def test_only_what_was_used_up_is_populated_again(log, monkeypatch):
    populated = []
    monkeypatch.setattr(MappedFile, "populate", lambda _, start, end: not populated.append((start, end)))
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


@pytest.mark.parametrize("advice", [9999, None])
def test_a_system_that_cannot_do_it_goes_on(tmp_path, monkeypatch, *, advice):
    monkeypatch.setattr(mapped_file, "MADV_POPULATE_WRITE", advice)
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    log.append(message())
    assert not log.files[0].populate(0, PAGE)
    log.populate_ahead()
    assert (log.can_populate, log.populated_offset) == (False, 0)
    assert log.append(message()).size


# -- by a worker thread --------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path):
    if sys.platform != "linux" or not can_populate(tmp_path):
        pytest.skip("the kernel is older than MADV_POPULATE_WRITE")
    log, _ = open_log(tmp_path / "log", file_bytes=2 * AHEAD_BYTES)
    return log


async def run_here(call):
    """In place of a worker thread, which does not follow virtual time."""
    await trio.lowlevel.checkpoint()
    return call()


async def until_populated(log, offset):
    with trio.fail_after(20):
        while log.populated_offset < offset:  # noqa: ASYNC110 - the log has no event for it
            await trio.sleep(0.001)


@needs_kernel
async def test_pages_are_made_ready_once_half_of_them_are_used_up(large, nursery):
    log = large
    nursery.start_soon(populate_pages, log)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert log.populated_offset == 0, "a log without puts needs none"
    first_end = log.append(message()).end_offset
    await until_populated(log, first_end + AHEAD_BYTES)
    before = log_bytes(log)
    assert faults_of(log, log.populated_offset) < AHEAD_BYTES // PAGE // 2
    assert log_bytes(log) == before
    while log.max_offset < first_end + AHEAD_BYTES // 2 - PAGE:
        log.append(message(bytes(100_000)))
    await until_populated(log, log.max_offset + AHEAD_BYTES - 200_000)
    # To the end of the file, and then of the next one.
    while len(log.files) == 1:
        log.append(message(bytes(100_000)))
        await until_populated(log, min(log.max_offset + AHEAD_BYTES // 2, log.files[-1].end_offset))
    assert log.populated_offset > log.files[-1].start_offset


@needs_kernel
async def test_long_records_go_to_pages_that_are_ready_without_a_system_call(large, monkeypatch, nursery):
    log, written = large, []
    write = MappedFile.write

    def note(file, at, *chunks):
        written.append(at)
        write(file, at, *chunks)

    monkeypatch.setattr(MappedFile, "write", note)
    record = message(bytes(50_000))
    log.append(record)
    assert len(written) == 1
    nursery.start_soon(populate_pages, log)
    await trio.testing.wait_all_tasks_blocked(0.01)
    log.append(record)
    assert len(written) == 2
    await until_populated(log, log.max_offset + 100_000)
    for _ in range(2):
        log.append(record)
    batch = MessageBatch("Orders", 0, [BatchItem(bytes(10_000)) for _ in range(3)])
    appended = log.append_batch(batch)
    assert len(written) == 2
    for offset in appended.batch_offsets:
        found = decode_record(log.read(offset, 1 << 20))
        assert (found.body, found.physical_offset) == (bytes(10_000), offset)


@needs_kernel
@pytest.mark.parametrize(
    ("pause_s", "is_synced_often", "is_huge"),
    [
        (0.5 * HUGE_WITHIN_S, False, True),
        (2 * HUGE_WITHIN_S, False, False),
        (0.5 * HUGE_WITHIN_S, True, False),
    ],
)
async def test_pages_are_huge_under_load_where_each_sync_has_many_bytes(
    large, monkeypatch, nursery, autojump_clock, *, pause_s, is_synced_often, is_huge
):
    log, huge = large, []

    def note(file, start, end):
        huge.append((start, end))
        expect_many_appends(file, start, end)

    expect_many_appends = MappedFile.expect_many_appends
    monkeypatch.setattr(MappedFile, "expect_many_appends", note)
    monkeypatch.setattr(populate, "run_in_thread", run_here)
    nursery.start_soon(partial(populate_pages, log, is_synced_often=is_synced_often))
    await trio.testing.wait_all_tasks_blocked()
    first_end = log.append(message()).end_offset + AHEAD_BYTES
    await trio.testing.wait_all_tasks_blocked()
    assert (huge, log.populated_offset) == ([], first_end), "nothing is known of the load yet"
    await trio.sleep(pause_s)
    while log.max_offset < first_end - AHEAD_BYTES // 2:
        log.append(message(bytes(100_000)))
    await trio.testing.wait_all_tasks_blocked()
    assert log.populated_offset > first_end
    if is_huge:
        assert huge == [(first_end, log.populated_offset)]
        assert log.populated_offset % HUGE_PAGE_BYTES == 0
        assert log.max_offset + AHEAD_BYTES - HUGE_PAGE_BYTES < log.populated_offset
    else:
        assert huge == []


@needs_kernel
async def test_after_the_load_huge_pages_are_replaced_once_all_is_on_disk(
    large, monkeypatch, nursery, autojump_clock
):
    log = large
    monkeypatch.setattr(populate, "run_in_thread", run_here)
    nursery.start_soon(populate_pages, log)
    await trio.testing.wait_all_tasks_blocked()
    log.append(message())
    await trio.testing.wait_all_tasks_blocked()
    while log.max_offset < AHEAD_BYTES:
        log.append(message(bytes(100_000)))
        await trio.testing.wait_all_tasks_blocked()
    before, path = log_bytes(log), log.files[0].path
    last_page = log.max_offset - log.max_offset % HUGE_PAGE_BYTES
    start, end = parts_with("hg", path)[0]
    await trio.sleep(SMALL_AFTER_S + 1)
    assert parts_with("hg", path) == [(start, end)], "not all is on disk"
    flush(log)
    await trio.testing.wait_all_tasks_blocked()
    # Where a flush expects reads there are none, either.
    assert all(part_end <= last_page for _, part_end in parts_with("hg", path))
    assert parts_with("nh", path)[-1] == (last_page, end)
    assert log_bytes(log) == before
    assert not any(log.files[0].view[log.max_offset :])


@needs_kernel
async def test_the_worker_ends_where_the_system_cannot_do_it(large, monkeypatch):
    async def run(_call):
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(populate, "run_in_thread", run)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(populate_pages, large)
            await trio.testing.wait_all_tasks_blocked()
            large.append(message())
    assert not large.can_populate

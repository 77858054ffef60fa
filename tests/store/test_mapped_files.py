"""Which files of a log are mapped, and how the others are read."""

import ctypes
import re
import sys
from pathlib import Path
from struct import pack

import pytest
from structlog.testing import capture_logs

from tests.store.support import message, open_log
from trioha.errors import StoreError
from trioha.store import log_files
from trioha.store.log_files import READ_FILES_MAX
from trioha.store.read_faults import LOG_INTERVAL_S, ReadFaults

FILE_BYTES = 1 << 20
BODY_BYTES = 64 * 1024

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what is mapped")


def maps_of(log):
    """The numbers of the log's files that are mapped, and whether the kernel reads none of them ahead."""
    mapped, flags = [], []
    for number, file in enumerate(log.files):
        # By its number: a file that was made without a name is shown as deleted.
        inode = file.path.stat().st_ino
        is_it = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                is_it = line.split()[4] == str(inode)
                mapped += [number] * is_it
            elif is_it and line.startswith("VmFlags:"):
                flags.append("rr" in line.split())
    return mapped, all(flags)


def append_until(log, offset):
    while log.max_offset < offset:
        assert log.append(message(bytes(BODY_BYTES))).size


def flush(log):
    end_offset = log.max_offset
    log.sync_work(log.flushed.offset, end_offset).run()
    log.flushed.advance(end_offset)


def test_files_are_mapped_until_they_are_full_and_on_disk(tmp_path):
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    append_until(log, FILE_BYTES + 1)
    assert maps_of(log) == ([0, 1], True), "the first one is not on disk yet"
    flush(log)
    append_until(log, 2 * FILE_BYTES + 1)
    flush(log)
    assert maps_of(log) == ([1, 2], True), "the flush that is next ends the map of what is on disk"
    flush(log)
    assert maps_of(log) == ([2], True)
    log.close()
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    assert maps_of(log) == ([2], True)
    log.close()


def test_what_was_synced_long_ago_is_read_by_calls_with_few_descriptors(tmp_path):
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    append_until(log, (READ_FILES_MAX + 3) * FILE_BYTES)
    whole = [bytes(log.read(file.start_offset, FILE_BYTES)) for file in log.files]
    for _ in range(2):
        flush(log)
    views = [log.read(file.start_offset, FILE_BYTES) for file in log.files]
    assert [bytes(view) for view in views] == whole
    assert maps_of(log) == ([len(log.files) - 1], True)
    # They are copies: the file may go.
    first = log.files[0].path
    log.delete_first_file()
    assert not first.exists()
    assert views[0] == whole[0]


def cut(log):
    offset = log.starts.first_from(log.files[-1].start_offset + 1)
    log.cut(offset, last_store_timestamp_ms=log.starts.store_timestamp_before(offset))
    log.puts_blocked = False


def set_aside(log):
    log.archive(log.directory.with_name("aside"))


@pytest.mark.parametrize("end", [cut, set_aside])
def test_a_log_goes_on_while_a_thread_still_uses_the_map_of_a_file_that_ends(tmp_path, end):
    log, _ = open_log(tmp_path / "log", file_bytes=FILE_BYTES)
    append_until(log, 2 * FILE_BYTES + 3 * BODY_BYTES)
    flush(log)
    # What compiled code in a thread holds: not a slice, which never mattered, but the view of the whole file.
    used = [ctypes.c_char.from_buffer(file.view) for file in log.files if file.is_held]
    assert used
    end(log)
    before = log.max_offset
    append_until(log, before + 2 * FILE_BYTES)
    flush(log)
    assert log.max_offset > before
    del used


def entries_of(log, offsets):
    sizes = [int.from_bytes(log.read(offset, 4), "big") for offset in offsets]
    return b"".join(pack(">qiq", *entry, 0) for entry in zip(offsets, sizes, strict=True))


@pytest.mark.parametrize("bytes_max", [1, 1000, 20_000, 1 << 20])
def test_records_that_are_read_by_a_call_are_those_of_the_map(tmp_path, bytes_max):
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    offsets = [log.append(message(bytes(number * 37 % 2000))).physical_offset for number in range(200)]
    raws = [
        entries_of(log, chosen)
        for chosen in (
            offsets[:32],
            offsets[3:60:7],
            offsets[5:2:-1],
            [offsets[0], *offsets[9:12], offsets[40]],
        )
    ]
    mapped = [log.common_records(raw, bytes_max) for raw in raws]
    assert all(mapped) or bytes_max == 1
    append_until(log, FILE_BYTES + 1)
    for _ in range(2):
        flush(log)
    assert not log.files[0].is_held
    for raw, found in zip(raws, mapped, strict=True):
        read = log.common_records(raw, bytes_max)
        if read is None:
            # A first record of more bytes is left to plain code.
            assert bytes_max < 2000
        else:
            assert read == found
    damaged = bytearray(raws[0])
    damaged[8:12] = (1 << 30).to_bytes(4, "big")
    assert log.common_records(bytes(damaged), 1 << 30) is None
    log.files[0].path.write_bytes(log.files[0].path.read_bytes()[: offsets[20]])
    assert log.common_records(raws[0], 1 << 20) is None
    with pytest.raises(StoreError, match=rf"at offset {offsets[20]}: ends here, it had {FILE_BYTES} bytes"):
        log.read(offsets[18], FILE_BYTES - offsets[18])
    assert log.read_faults.count == 1
    assert len(log.read(offsets[18], offsets[20] - offsets[18])) == offsets[20] - offsets[18]


def test_what_is_not_on_disk_is_read_from_the_map_however_far_it_is_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(log_files, "MAPPED_BYTES", BODY_BYTES)
    log, _ = open_log(tmp_path, file_bytes=FILE_BYTES)
    append_until(log, FILE_BYTES // 4)
    flush(log)
    flushed = log.flushed.offset
    append_until(log, FILE_BYTES // 2)
    (file,) = log.files
    view, near = file.view.obj, log.max_offset - BODY_BYTES
    assert log.max_offset - flushed > BODY_BYTES
    assert [log.read(offset, 8).obj is view for offset in (0, flushed - 1, flushed, near)] == [
        False, False, True, True,
    ]  # fmt: skip
    flush(log)
    assert [log.read(offset, 8).obj is view for offset in (flushed, near)] == [False, True]


def test_faults_of_reads_are_counted_and_logged_now_and_then():
    now_s = 0.0
    faults = ReadFaults(clock_s=lambda: now_s)
    error = StoreError("cannot be read: Input/output error", path="/store/commitlog/0", offset=7)
    with capture_logs() as logs:
        for number in range(2001):
            now_s = number * LOG_INTERVAL_S / 1000
            faults.note(error)
    assert [(line["path"], line["offset"], line["reads"]) for line in logs] == [
        ("/store/commitlog/0", 7, number) for number in (1, 1000, 1000)
    ]
    assert (faults.count, faults.last) == (2001, str(error))

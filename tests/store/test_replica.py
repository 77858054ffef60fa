"""A replica's log equals its master's, however the bytes are cut, and never holds a part of a record."""

import os
import random
from contextlib import suppress
from errno import EIO, ENOSPC
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.store.support import FILE_BYTES, STORES, copy_store, log_bytes, message, open_log
from trioha.errors import StoreError
from trioha.store.record import RecordError
from trioha.store.replica import ReplicaAppender


@pytest.fixture(scope="module")
def master_bytes(tmp_path_factory):
    """Three files with blank ends, the last one part full, and one blank with a filler that is not zero."""
    with resources_closed():
        log, _ = open_log(tmp_path_factory.mktemp("master"))
        rng = random.Random(5)
        for number in range(120):
            log.append(message(rng.randbytes(rng.randrange(3000)), queue_id=number % 3))
        data = bytearray(log_bytes(log))
    assert len(data) > 2 * FILE_BYTES
    assert data[FILE_BYTES - 1] == 0
    data[FILE_BYTES - 5 : FILE_BYTES] = b"stale"
    return bytes(data)


def feed(appender, data, rng, start=0):
    """Append `data[start:]` in random chunks that do not cross a file's end."""
    offset = start
    while offset < len(data):
        size = min(rng.choice([1, 7, 100, 5000, 32768]), FILE_BYTES - offset % FILE_BYTES, len(data) - offset)
        assert appender.next_offset == offset
        appender.append(memoryview(data)[offset : offset + size])
        offset += size


@given(seed=st.integers(0, 2**32))
@resources_closed()
def test_bytes_cut_anywhere_make_the_same_log(tmp_path_factory, master_bytes, seed):
    directory = tmp_path_factory.mktemp("replica")
    log, _ = open_log(directory)
    feed(ReplicaAppender(log), master_bytes, random.Random(seed))
    assert log.max_offset == len(master_bytes)
    assert log_bytes(log) == master_bytes
    again, recovered = open_log(directory, clean_exit=False)
    assert (again.max_offset, recovered.cut_bytes) == (len(master_bytes), 0)
    log.close()


@given(stop=st.integers(0, 150_000), seed=st.integers(0, 2**32))
@resources_closed()
def test_a_replica_killed_anywhere_resumes_at_a_record_and_ends_equal(
    tmp_path_factory, master_bytes, stop, seed
):
    directory = tmp_path_factory.mktemp("replica")
    log, _ = open_log(directory)
    feed(ReplicaAppender(log), master_bytes[:stop], random.Random(seed))
    # No close, no flush: a kill -9 leaves the files as they are now.
    again, _ = open_log(directory, clean_exit=False)
    assert again.max_offset <= min(stop, len(master_bytes))
    assert again.max_offset == log.max_offset
    feed(ReplicaAppender(again), master_bytes, random.Random(seed), start=again.max_offset)
    assert log_bytes(again) == master_bytes
    log.close()
    again.close()


def test_the_end_is_always_after_a_whole_record(tmp_path, master_bytes):
    log, _ = open_log(tmp_path)
    appender = ReplicaAppender(log)
    ends = set()
    for offset in range(20000):
        appender.append(memoryview(master_bytes)[offset : offset + 1])
        ends.add(log.max_offset)
    assert appender.next_offset == 20000
    for end in ends:
        with resources_closed():
            cut, _ = open_log(tmp_path, clean_exit=False)
            assert end <= cut.max_offset
    appender.discard()
    assert appender.next_offset == log.max_offset == max(ends)


@pytest.mark.parametrize("name", STORES)
def test_the_log_of_a_real_broker_is_appended_unchanged(tmp_path, name):
    real, _ = open_log(copy_store(name, tmp_path) / "commitlog")
    log, _ = open_log(tmp_path / "replica")
    feed(ReplicaAppender(log), log_bytes(real), random.Random(1))
    assert log_bytes(log) == log_bytes(real)
    assert log.last_store_timestamp_ms == real.last_store_timestamp_ms


def test_a_bad_record_is_refused_with_its_offset_and_those_before_it_are_kept(tmp_path):
    reference, _ = open_log(tmp_path / "reference")
    first = reference.append(message(b"good" * 100))
    second = reference.append(message(b"bad!" * 100))
    reference.append(message(b"late" * 100))
    good = log_bytes(reference)
    for at in (0, 3, 4, 7, 28, 35, 88):
        data = bytearray(good)
        data[second.physical_offset + at] ^= 0x41
        log, _ = open_log(tmp_path / f"{at}")
        with pytest.raises(RecordError, match=f"offset {first.end_offset}:"):
            ReplicaAppender(log).append(memoryview(data))
        assert log.max_offset == first.end_offset, at


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([(FILE_BYTES + 1).to_bytes(4, "big") + bytes.fromhex("daa320a7")], "65537 bytes"),
        ([bytes.fromhex("00000009cbd43194")], "blank of 9 bytes"),
        ([b"\0\0\x10", b"\0GET "], "magic"),
    ],
)
def test_what_is_no_record_is_refused_at_its_header(tmp_path, parts, said):
    appender = ReplicaAppender(open_log(tmp_path)[0])
    for part in parts[:-1]:
        appender.append(memoryview(part))
    with pytest.raises(RecordError, match=said):
        appender.append(memoryview(parts[-1]))


def test_a_record_cut_by_frames_is_written_together_with_those_after_it(tmp_path, master_bytes, monkeypatch):
    log, _ = open_log(tmp_path)
    pwritev, calls = os.pwritev, []

    def write_some(fd, chunks, at):
        """A disk that writes 5000 bytes at a time."""
        calls.append(sum(map(len, chunks)))
        data = b"".join(chunks)[:5000]
        return pwritev(fd, [data], at)

    monkeypatch.setattr(os, "pwritev", write_some)
    appender = ReplicaAppender(log)
    for start in range(0, FILE_BYTES, FILE_BYTES // 2):
        appender.append(memoryview(master_bytes)[start : start + FILE_BYTES // 2])
    assert log_bytes(log) == master_bytes[:FILE_BYTES]
    # Each chunk at once, without its first eight bytes, in the disk's steps; then a blank's filler.
    wholes = [size for before, size in pairwise([0, *calls]) if before - 5000 != size]
    assert [size > FILE_BYTES // 3 for size in wholes] == [True, True, False]


def test_every_write_of_a_disk_that_refuses_each_one_once_is_repeated_whole(
    tmp_path, master_bytes, monkeypatch
):
    """Also a blank's filler, which is not zero in all files."""
    log, _ = open_log(tmp_path)
    pwritev, refused = os.pwritev, set()

    def refuse(fd, chunks, at):
        if any(b"".join(chunks)) and (at, log.max_offset) not in refused:
            refused.add((at, log.max_offset))
            pwritev(fd, [b"".join(chunks)[:100]], at)
            raise OSError(EIO, "Input/output error")
        return pwritev(fd, chunks, at)

    monkeypatch.setattr(os, "pwritev", refuse)
    appender = ReplicaAppender(log)
    while log.max_offset < len(master_bytes):
        # As a connection that ends with each refusal.
        appender.discard()
        with suppress(StoreError):
            while (start := appender.next_offset) < len(master_bytes):
                # No frame goes over a file's end.
                end = min(start + FILE_BYTES // 2, start - start % FILE_BYTES + FILE_BYTES)
                appender.append(memoryview(master_bytes)[start:end])
    assert len(refused) >= 6
    assert log_bytes(log) == master_bytes


def test_bytes_that_the_disk_refused_do_not_come_back_behind_another_masters(tmp_path, monkeypatch):
    masters = []
    for name in (b"a", b"b"):
        master, _ = open_log(tmp_path / name.decode())
        for _ in range(3):
            master.append(message(name * 5000))
        masters.append(memoryview(log_bytes(master)))
    record_bytes = len(masters[0]) // 3
    log, _ = open_log(tmp_path / "replica")
    pwritev = os.pwritev

    def refuse(fd, chunks, at):
        """A disk that has room for two records."""
        data = b"".join(chunks)[: max(2 * record_bytes - at, 0)]
        if not data:
            raise OSError(ENOSPC, "No space left on device")
        return pwritev(fd, [data], at)

    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(StoreError, match="No space left"):
        ReplicaAppender(log).append(masters[0])
    monkeypatch.undo()
    ReplicaAppender(log).append(masters[1][:record_bytes])
    again, _ = open_log(tmp_path / "replica", clean_exit=False)
    assert again.max_offset == record_bytes
    again.close()


@pytest.mark.parametrize("written_bytes", [0, 8000])
def test_a_disk_that_refuses_bytes_leaves_the_log_as_it_was(
    tmp_path, master_bytes, written_bytes, monkeypatch
):
    log, _ = open_log(tmp_path)
    first_bytes = int.from_bytes(master_bytes[:4], "big")
    ReplicaAppender(log).append(memoryview(master_bytes)[:first_bytes])
    pwritev, calls = os.pwritev, []

    def refuse(fd, chunks, at):
        calls.append(sum(map(len, chunks)))
        if len(calls) == 1 and written_bytes:
            return pwritev(fd, [chunks[0][:written_bytes]], at)
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", refuse)
    appender = ReplicaAppender(log)
    with pytest.raises(StoreError, match="No space left"):
        appender.append(memoryview(master_bytes)[first_bytes : first_bytes + 32768])
    monkeypatch.undo()
    assert calls[-1] == calls[0] - written_bytes > 16384
    assert log.max_offset == first_bytes
    again, _ = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == first_bytes
    again.close()
    appender.discard()
    appender.append(memoryview(master_bytes)[first_bytes : first_bytes + 32768])
    assert log_bytes(log) == master_bytes[: log.max_offset]
    assert log.max_offset > first_bytes + 16384

"""Entries that are read one stretch after the other: bytes are read ahead, and never are they old ones."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trioha.store.file_cache import FileCache
from trioha.store.fixed_entry_files import FixedEntryFiles

ENTRY_BYTES = 20
FILE_ENTRIES = 50


def files_in(folder, cache):
    return FixedEntryFiles(
        folder, entry_bytes=ENTRY_BYTES, file_bytes=FILE_ENTRIES * ENTRY_BYTES, cache=cache
    )


def entries(first, count):
    return b"".join(b"%020d" % number for number in range(first, first + count))


@pytest.fixture
def cache():
    cache = FileCache()
    yield cache
    cache.close()


@pytest.fixture
def calls(monkeypatch):
    """Sizes of the reads of the system."""
    sizes = []
    pread = os.pread

    def note(fd, size, at):
        sizes.append(size)
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", note)
    return sizes


def test_four_reads_that_follow_each_other_are_one_call(tmp_path, cache, calls):
    files = FixedEntryFiles(tmp_path, entry_bytes=20, file_bytes=20_000, cache=cache)
    files.append([entries(0, 1000)])
    for at in range(0, 12_800, 640):
        assert files.read_on(at, 640) == entries(at // 20, 32)
    assert calls == [640 * 4] * 5


def test_reads_here_and_there_bring_nothing_else(tmp_path, cache, calls):
    files = FixedEntryFiles(tmp_path, entry_bytes=20, file_bytes=20_000, cache=cache)
    files.append([entries(0, 1000)])
    for at in (6400, 640, 3200, 1280):
        assert files.read_on(at, 640) == entries(at // 20, 32)
    assert calls == [640] * 4


def test_other_reads_do_not_disturb_what_was_read_ahead(tmp_path, cache, calls):
    files = FixedEntryFiles(tmp_path, entry_bytes=20, file_bytes=20_000, cache=cache)
    files.append([entries(0, 1000)])
    for at in range(0, 2560, 640):
        assert files.read_on(at, 640) == entries(at // 20, 32)
        assert files.read(19_980, 20) == entries(999, 1)
    assert calls == [2560, 20, 20, 20, 20]


def test_long_reads_bring_little_more(tmp_path, cache, calls):
    files = FixedEntryFiles(tmp_path, entry_bytes=20, file_bytes=200_000, cache=cache)
    files.append([entries(0, 10_000)])
    for at in range(0, 160_000, 40_000):
        assert files.read_on(at, 40_000) == entries(at // 20, 2000)
    assert max(calls) <= 40_000 + 4096


class Reads(RuleBasedStateMachine):
    """A queue beside a model of its bytes."""

    @initialize()
    def begin(self):
        self.folder = TemporaryDirectory()
        self.cache = FileCache(open_files_max=2)
        self.files = files_in(Path(self.folder.name) / "0", self.cache)
        self.model = b""
        self.start = self.at = self.written = 0

    @rule(count=st.integers(1, 70))
    def append(self, count):
        data = entries(self.written, count)
        self.written += count
        self.files.append([data])
        self.model += data

    @rule(count=st.integers(1, 40))
    def read_on(self, count):
        self.check(self.files.read_on, self.at, count * ENTRY_BYTES)

    @rule(at=st.integers(0, 400), count=st.integers(0, 60), reads_on=st.booleans())
    def read_at(self, at, count, reads_on):
        read = self.files.read_on if reads_on else self.files.read
        self.check(read, at * ENTRY_BYTES, count * ENTRY_BYTES)

    def check(self, read, at, size):
        found = read(at, size)
        at = max(at, self.start)
        assert found == self.model[at : at + size]
        self.at = at + len(found)

    @precondition(lambda self: self.start < len(self.model))
    @rule(share=st.floats(0, 1))
    def cut(self, share):
        low = self.start // ENTRY_BYTES
        end = (low + round(share * (len(self.model) // ENTRY_BYTES - low))) * ENTRY_BYTES
        self.files.cut(end)
        self.model = self.model[:end]
        if self.files.is_empty:
            self.model, self.start = b"", 0

    @precondition(lambda self: len(self.files.file_starts()) > 1)
    @rule()
    def drop_first(self):
        self.files.drop_first_file()
        self.start = self.files.start

    @rule()
    def destroy(self):
        self.files.destroy()
        self.model, self.start = b"", 0

    @invariant()
    def ends_agree(self):
        assert (self.files.start, self.files.end) == (self.start, len(self.model))

    def teardown(self):
        self.cache.close()
        self.folder.cleanup()


TestReads = Reads.TestCase

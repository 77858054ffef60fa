"""The compiled search for the records of a pull finds those that the walk passes, and nothing else."""

from struct import pack

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from tests.store.guarded import run_guarded
from tests.store.support import VECTORS
from tests.store.test_kernel import Wanted, in_order, needs_kernel
from trioha.store import compiled
from trioha.store.reads import _stretches
from trioha.store.record import encode_record
from trioha.store.record_layout import is_records

pytestmark = needs_kernel

SHIFT = 5000
LOG = VECTORS / "store-5.3.3/store/commitlog" / f"{0:020}"


def stored(bodies):
    """A log of common records from offset SHIFT on, and offset and size of each."""
    data = b""
    entries = []
    for record in in_order([Wanted("T", 0, b"", 0, bytes(body), None, False, 1) for body in bodies]):
        encoded = encode_record(evolve(record, physical_offset=SHIFT + len(data)))
        entries.append((SHIFT + len(data), len(encoded)))
        data += encoded
    return data, entries


def raw_of(entries):
    return b"".join(pack(">qiq", offset, size, 7) for offset, size in entries)


DATA, STORED = stored([10, 100, 0, 55, 1000, 3, 3, 3])
OFFSETS = st.sampled_from([offset for offset, _ in STORED])
ENTRIES = st.lists(
    st.sampled_from(STORED)
    | st.tuples(OFFSETS | st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -1, 91, 103, 2**31 - 1])),
    max_size=12,
)


@given(
    entries=st.one_of(ENTRIES, st.lists(st.sampled_from(STORED), max_size=12), st.just(STORED)),
    bytes_max=st.integers(1, 3000) | st.just(2**62),
    end=st.integers(0, len(DATA)) | st.just(len(DATA)),
)
@example(entries=STORED, bytes_max=2**18, end=len(DATA))
@example(entries=[(0, 2**31 - 1)] * 3, bytes_max=2**18, end=len(DATA))
def test_it_finds_what_the_plain_code_finds(entries, bytes_max, end):
    raw = raw_of(entries)
    view = memoryview(DATA)
    wanted = _stretches(raw, bytes_max, None)
    found = compiled.records.find_records(raw, bytes_max, view, end, SHIFT)
    are_there = wanted and all(
        offset >= SHIFT
        and 0 < size <= end - (offset - SHIFT)
        and is_records(view[offset - SHIFT : offset - SHIFT + size], offset, count=count)
        for offset, size, count in wanted
    )
    # Records of other lengths than their entries say can fill a stretch all the same: not for this search.
    if are_there and all(entry in STORED for entry in entries):
        assert found is not None
    if found is not None:
        assert are_there
        records, stretches = found
        assert records == sum(count for _, _, count in wanted)
        assert [(at + SHIFT, stop - at) for at, stop in stretches] == [
            (offset, size) for offset, size, _ in wanted
        ]


def test_a_record_that_is_damaged_or_not_common_is_not_found():
    raw = raw_of(STORED)
    for at, damage in ((3, 1), (7, 1), (35, 1), (39, 0x10), (87, 1)):
        data = bytearray(DATA)
        data[STORED[2][0] - SHIFT + at] ^= damage
        assert compiled.records.find_records(raw, 2**18, data, len(data), SHIFT) is None
        found = compiled.records.find_records(raw[:40], 2**18, data, len(data), SHIFT)
        assert found == (2, [(0, STORED[2][0] - SHIFT)])


def test_entries_that_are_not_whole_count_for_nothing():
    assert compiled.records.find_records(b"", 10, DATA, len(DATA), SHIFT) is None
    assert compiled.records.find_records(raw_of(STORED)[:19], 10, DATA, len(DATA), SHIFT) is None
    found = compiled.records.find_records(raw_of(STORED)[:39], 2**18, DATA, len(DATA), SHIFT)
    assert found == (1, [(0, STORED[0][1])])


def test_what_does_not_fit_is_refused():
    raw = raw_of(STORED)
    for bytes_max, end, shift in ((0, 10, 0), (10, -1, 0), (10, 101, 0), (10, 10, -1), (10, 2**70, 0)):
        with pytest.raises((ValueError, OverflowError)):
            compiled.records.find_records(raw, bytes_max, bytes(100), end, shift)
    with pytest.raises(TypeError, match="entries are bytes"):
        compiled.records.find_records(bytearray(raw), 10, DATA, 10, 0)
    with pytest.raises(TypeError, match="5 arguments"):
        compiled.records.find_records(raw, 10, DATA, 10)
    with pytest.raises((TypeError, BufferError)):
        compiled.records.find_records(raw, 10, memoryview(bytes(100))[::2], 10, 0)


GUARDED = """
from pathlib import Path
from struct import pack

log = Path(sys.argv[1]).read_bytes()[: 3 * mmap.PAGESIZE]
entries = []
at = 0
while at + 91 <= len(log):
    size = int.from_bytes(log[at : at + 4], "big")
    entries.append((at, size))
    at += size
found = 0
for end in range(len(log)):
    # The bytes end where the page that nobody may read begins.
    shift = len(view) - end
    view[shift:] = log[:end]
    raw = b"".join(pack(">qiq", at, size, 0) for at, size in entries if at <= end)
    while raw and compiled.records.find_records(raw, 1 << 30, view[shift:], end, 0) is None:
        raw = raw[:-20]
    found += len(raw) // 20
print(found)
"""


def test_no_byte_after_the_end_is_read():
    assert run_guarded(GUARDED, str(LOG)) > 1000

"""The search for the records of a pull finds those that the walk passes, and nothing else."""

from struct import pack

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compiled_code import WAYS, compiled_code, needs_compiled, plain_copy
from tests.store.test_compiled_records import Wanted, in_order
from trioha.store import compiled_records, system
from trioha.store.reads import _stretches
from trioha.store.record import encode_record
from trioha.store.record_layout import is_records

SHIFT = 5000


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


def found(raw, bytes_max, data):
    """Number and bytes of the records that entries name in `data`, which begins at SHIFT; None without."""
    spans, size = compiled_records.find_spans(raw, bytes_max, SHIFT, SHIFT + len(data))
    joined = b"".join(bytes(data[at : at + length]) for at, length in spans)
    assert len(joined) == size
    count = compiled_records.count_records(joined, raw)
    return (count, joined) if count else None


@pytest.mark.parametrize("is_compiled", WAYS)
@given(
    entries=st.one_of(ENTRIES, st.lists(st.sampled_from(STORED), max_size=12), st.just(STORED)),
    bytes_max=st.integers(1, 3000) | st.just(2**62),
    end=st.integers(0, len(DATA)) | st.just(len(DATA)),
)
@example(entries=STORED, bytes_max=2**18, end=len(DATA))
@example(entries=[(0, 2**31 - 1)] * 3, bytes_max=2**18, end=len(DATA))
def test_it_finds_what_the_walk_passes(is_compiled, entries, bytes_max, end):
    raw = raw_of(entries)
    view = memoryview(DATA)[:end]
    wanted = _stretches(raw, bytes_max, None)
    with compiled_code(is_compiled=is_compiled):
        records = found(raw, bytes_max, view)
    are_there = wanted and all(
        offset >= SHIFT
        and 0 < size <= end - (offset - SHIFT)
        and is_records(view[offset - SHIFT : offset - SHIFT + size], offset, count=count)
        for offset, size, count in wanted
    )
    # Records of other lengths than their entries say can fill a stretch all the same: not for this search.
    # Nor is a first record that is longer than all records may be.
    if are_there and all(entry in STORED for entry in entries) and entries[0][1] <= bytes_max:
        assert records is not None
    if records is not None:
        assert are_there
        assert records[0] == sum(count for _, _, count in wanted)
        assert records[1] == b"".join(view[at - SHIFT : at - SHIFT + size] for at, size, _ in wanted)


def test_a_record_that_is_damaged_or_not_common_is_not_found():
    raw = raw_of(STORED)
    for at, damage in ((3, 1), (7, 1), (35, 1), (39, 0x10), (87, 1)):
        data = bytearray(DATA)
        data[STORED[2][0] - SHIFT + at] ^= damage
        assert found(raw, 2**18, data) is None
        assert found(raw[:40], 2**18, data) == (2, DATA[: STORED[2][0] - SHIFT])


def test_entries_that_are_not_whole_count_for_nothing():
    assert found(b"", 10, DATA) is None
    assert found(raw_of(STORED)[:19], 10, DATA) is None
    assert found(raw_of(STORED)[:39], 2**18, DATA) == (1, DATA[: STORED[0][1]])


def test_bytes_of_another_length_than_their_entries_say_are_no_records():
    raw = raw_of(STORED)
    assert compiled_records.count_records(DATA, raw) == len(STORED)
    assert compiled_records.count_records(DATA, raw[:40]) == 0
    assert compiled_records.count_records(DATA[:-1], raw) == 0
    assert compiled_records.count_records(DATA + bytes(100), raw) == 0


@pytest.mark.parametrize("read", [plain_copy(system).read_spans, system.read_spans])
def test_spans_of_a_file_are_read_in_one_call(read, tmp_path):
    data = bytes(range(256)) * 4
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        fd = file.fileno()
        assert read(fd, [(700, 4), (0, 3), (0, 3)], 10) == data[700:704] + 2 * data[:3]
        assert read(fd, [(0, 1024)], 1024) == data
        # The file ends before.
        assert read(fd, [(0, 3), (1020, 5)], 8) is None
    assert read(fd, [(0, 3)], 3) is None


@needs_compiled
def test_spans_that_do_not_fit_are_refused():
    for spans, size in (([(0, 4)], 3), ([(-1, 4)], 4), ([(0, -4)], 4), ([(2**70, 4)], 4), ([5], 4), ((), 4)):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            system.read_spans(0, spans, size)
    with pytest.raises(TypeError, match="3 arguments"):
        system.read_spans(0, [])

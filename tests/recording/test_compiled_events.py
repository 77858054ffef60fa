"""Events that compiled code writes: numbers and checks, and the runs of puts."""

from itertools import pairwise
from struct import Struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.store.guarded import run_guarded
from tests.store.test_kernel import needs_kernel
from trioha.recording import compiled
from trioha.recording.events import RECORD_BYTES
from trioha.recording.writer import check_records, number_records

EVENT = Struct("<qqqqqiI")
PLACE = Struct(">qq")
PUT, WAIT_BEGIN = 0x1234, -2

pytestmark = needs_kernel


def nearest(value, bits):
    """The nearest value of a signed field."""
    return max(-(1 << bits - 1), min(value, (1 << bits - 1) - 1))


@given(
    events=st.lists(st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES), max_size=6).map(b"".join),
    seq=st.integers(0, 2**62),
)
@example(events=b"\xff" * RECORD_BYTES, seq=2**32 - 1)
def test_events_get_the_numbers_and_checks_of_plain_python(events, seq):
    plain, found = bytearray(events), bytearray(events)
    number_records(memoryview(plain), seq)
    check_records(memoryview(plain))
    compiled.events.number_events(memoryview(found), seq)
    assert found == plain


I64 = st.integers(-(2**63), 2**63 - 1)


@given(
    starts=st.lists(I64, min_size=1, max_size=5),
    end=st.integers(-(2**65), 2**65),
    request_id=st.integers(0, 2**64),
    value=st.integers(-(2**65), 2**65),
    before=st.integers(0, 3),
    has_second=st.booleans(),
    time_ns=I64,
)
@example(starts=[-(2**63)], end=2**63 - 1, request_id=0, value=0, before=0, has_second=True, time_ns=0)
@example(
    starts=[2**63 - 1, -(2**63)], end=0, request_id=2**63 - 1, value=0, before=1, has_second=True, time_ns=0
)
def test_a_run_is_written_to_its_place_with_the_nearest_values_that_fit(  # noqa: PLR0917
    starts, end, request_id, value, before, has_second, time_ns
):
    places = b"".join(PLACE.pack(start, 7) for start in starts)
    wanted = b"\x55" * before * RECORD_BYTES
    for number, (start, put_end) in enumerate(pairwise([*starts, nearest(end, 64)])):
        aux = min(request_id + number, 2**63 - 1)
        size = put_end - start if has_second else value
        wanted += EVENT.pack(time_ns, 0, PUT, put_end, aux, nearest(size, 32), 0)
        if has_second:
            wanted += EVENT.pack(time_ns, 0, WAIT_BEGIN, put_end, aux, nearest(value, 32), 0)
    wanted += b"\x55" * RECORD_BYTES
    block = bytearray(b"\x55" * len(wanted))
    second = WAIT_BEGIN if has_second else 0
    run = (before * RECORD_BYTES, time_ns, PUT, second, places, end, request_id, value)
    compiled.events.fill_runs(block, [run])
    assert block == wanted


@given(st.lists(st.sampled_from([0, 1, 3, -1, -(2**63), 2**63 - 1, 7 << 32]), max_size=60))
def test_the_last_event_of_each_word_is_found(words):
    events = b"".join(EVENT.pack(1, 0, word, 5, 6, 7, 8) for word in words)
    assert compiled.events.last_events(memoryview(events)) == dict(zip(words, range(len(words)), strict=True))


GOOD = (0, 1, PUT, WAIT_BEGIN, PLACE.pack(0, 0), 10, 1, 2)


@pytest.mark.parametrize(
    ("run", "error"),
    [
        ((1, *GOOD[1:]), ValueError),
        ((-1, *GOOD[1:]), ValueError),
        ((2**63 - 1, *GOOD[1:]), ValueError),
        ((2**63, *GOOD[1:]), OverflowError),
        ((*GOOD[:4], PLACE.pack(0, 0) * 2, *GOOD[5:]), ValueError),
        ((*GOOD[:4], "text", *GOOD[5:]), TypeError),
        ((*GOOD[:6], "1", 2), TypeError),
        (GOOD[:7], TypeError),
        ([*GOOD], TypeError),
    ],
)
def test_a_run_that_does_not_fit_is_refused_and_the_block_stays(run, error):
    block = bytearray(2 * RECORD_BYTES)
    with pytest.raises(error):
        compiled.events.fill_runs(block, [run])
    assert block == bytes(2 * RECORD_BYTES)
    compiled.events.fill_runs(block, [GOOD])
    assert block != bytes(2 * RECORD_BYTES)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("fill_runs", (bytearray(48), ())),
        ("fill_runs", (bytes(48), [])),
        ("fill_runs", (bytearray(48), [], 1)),
        ("number_events", (bytearray(48),)),
        ("number_events", (bytearray(48), "1")),
        ("number_events", (bytes(48), 1)),
    ],
)
def test_wrong_arguments_are_refused(name, arguments):
    with pytest.raises((TypeError, BufferError)):
        getattr(compiled.events, name)(*arguments)


def test_no_byte_after_the_block_is_touched():
    code = """
from struct import pack
from trioha.recording import compiled as recording
block = view[len(view) - 96 - 5:]
recording.events.fill_runs(block, [(5, 1, 2, 3, pack(">qq", 0, 0), 10, 1, 2)])
recording.events.number_events(block[5:], 7)
recording.events.number_events(view[len(view) - 47:], 7)
try:
    recording.events.fill_runs(block, [(6, 1, 2, 3, pack(">qq", 0, 0), 10, 1, 2)])
except ValueError:
    print(sum(block[5:13]))
"""
    assert run_guarded(code) == 1

"""Events that compiled code writes: numbers and checks, and the runs of puts."""

from itertools import pairwise
from struct import Struct, iter_unpack

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compiled_code import WAYS, compiled_code
from trioha.recording import compiled_events
from trioha.recording.events import RECORD_BYTES
from trioha.recording.writer import Block, SessionWriter

EVENT = Struct("<qqqqqiI")
PLACE = Struct(">qq")
PUT, WAIT_BEGIN = 0x1234, -2


def nearest(value, bits):
    """The nearest value of a signed field."""
    return max(-(1 << bits - 1), min(value, (1 << bits - 1) - 1))


@pytest.mark.parametrize("is_compiled", WAYS)
@given(
    events=st.lists(st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES), max_size=6),
    seq=st.integers(0, 2**62),
)
@example(events=[b"\xff" * RECORD_BYTES], seq=2**32 - 1)
def test_events_get_their_numbers_and_checks_and_nothing_else_changes(is_compiled, events, seq):
    wanted = b""
    for number, event in enumerate(events):
        time_ns, _, word, offset, aux, size, _ = EVENT.unpack(event)
        numbered = EVENT.pack(time_ns, seq + number, word, offset, aux, size, 0)
        check = 0
        for (half,) in iter_unpack("<I", numbered):
            check ^= half
        wanted += numbered[:-4] + check.to_bytes(4, "little")
    with compiled_code(is_compiled=is_compiled):
        assert compiled_events.number_events(b"".join(events), seq) == wanted


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
    filled = Block(block, runs=[run])
    SessionWriter._fill(filled)
    assert (block, filled.runs) == (wanted, [])


@pytest.mark.parametrize("position", [49, 48, 97])
def test_a_run_that_does_not_fit_its_block_is_refused(position):
    block = Block(
        bytearray(2 * RECORD_BYTES), runs=[(position, 1, PUT, WAIT_BEGIN, PLACE.pack(0, 0), 10, 1, 2)]
    )
    with pytest.raises(AssertionError, match="of 96 bytes"):
        SessionWriter._fill(block)
    assert block.buffer == bytes(2 * RECORD_BYTES)

"""Events of a recording: the runs of puts, and the numbers and checks of all events.

Compiled by mypyc where that is possible (`trioha.compiled`). An event is six words of 64 bits, little-endian:
time; seq; kind, flags, node and connection; offset; aux; size and check.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_be, read_i64_le, write_i64_le
from mypy_extensions import i64

from trioha.compiled import use_compiled

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

EVENT_BYTES: Final = 48
PUT_OFFSETS_BYTES: Final = 16
"""Of a put: physical offset and queue offset, big-endian."""
I64_MIN: Final = -(1 << 63)
I64_MAX: Final = (1 << 63) - 1
I32_MIN: Final = -(1 << 31)
I32_MAX: Final = (1 << 31) - 1
MASK_32: Final = 0xFFFFFFFF


def encode_run(  # noqa: PLR0917 - as the tuple `writer.Run`
    time_ns: i64,
    word: i64,
    second_word: i64,
    put_offsets: bytes,
    end_offset: int,
    first_request_id: int,
    value: int,
) -> bytes:
    """The events of a run of puts, without seq and check.

    A word is kind, flags, node and connection. With a second word each put has two events: the first has its
    size, the second `value`; else one, with `value`. Values beyond a field are written as the nearest one
    that fits.
    """
    events = BytesWriter()
    last_end: i64 = _nearest(end_offset, I64_MIN, I64_MAX)
    request_id: i64 = _nearest(first_request_id, I64_MIN, I64_MAX)
    own: i64 = i64(_nearest(value, I32_MIN, I32_MAX)) & MASK_32
    at: i64 = 0
    offsets_end: i64 = len(put_offsets)
    while offsets_end - at >= PUT_OFFSETS_BYTES:
        start = read_i64_be(put_offsets, at)
        at += PUT_OFFSETS_BYTES
        end: i64 = read_i64_be(put_offsets, at) if offsets_end - at >= PUT_OFFSETS_BYTES else last_end
        if second_word != 0:
            # The difference of any two offsets is meant: it may need more than 64 bits.
            size: i64 = _nearest(int(end) - int(start), I32_MIN, I32_MAX)
            _put_event(events, time_ns, word, end, request_id, size & MASK_32)
            _put_event(events, time_ns, second_word, end, request_id, own)
        else:
            _put_event(events, time_ns, word, end, request_id, own)
        if request_id < I64_MAX:
            request_id += 1
    return events.getvalue()


def _nearest(value: int, low: int, high: int) -> int:
    return low if value < low else min(value, high)


def _put_event(  # noqa: PLR0917 - keywords would cost a call more
    events: BytesWriter, time_ns: i64, word: i64, offset: i64, aux: i64, size: i64
) -> None:
    write_i64_le(events, time_ns)
    write_i64_le(events, 0)
    write_i64_le(events, word)
    write_i64_le(events, offset)
    write_i64_le(events, aux)
    write_i64_le(events, size)


def number_events(events: bytes, seq: i64) -> bytes:
    """The events with the seq of each, from `seq` on, and its check: the xor of its other 32-bit words."""
    numbered = BytesWriter()
    at: i64 = 0
    end: i64 = len(events)
    while end - at >= EVENT_BYTES:
        time_ns = read_i64_le(events, at)
        word = read_i64_le(events, at + 16)
        offset = read_i64_le(events, at + 24)
        aux = read_i64_le(events, at + 32)
        size: i64 = read_i64_le(events, at + 40) & MASK_32
        mixed: i64 = time_ns ^ seq ^ word ^ offset ^ aux ^ size
        write_i64_le(numbered, time_ns)
        write_i64_le(numbered, seq)
        write_i64_le(numbered, word)
        write_i64_le(numbered, offset)
        write_i64_le(numbered, aux)
        check: i64 = (mixed >> 32 ^ mixed) & MASK_32
        if check > I32_MAX:
            # As a signed number.
            check -= 1 << 32
        write_i64_le(numbered, check << 32 | size)
        seq += 1
        at += EVENT_BYTES
    return numbered.getvalue()


use_compiled(__name__)

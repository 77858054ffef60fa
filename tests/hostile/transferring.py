"""A hostile HA master: frames that no slave may append.

See docs/protocol/ha.md#frames, docs/protocol/store.md#records.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from struct import pack, pack_into

from attrs import frozen

from trioha.ha.frames import HEADER
from trioha.store.record_layout import check_record

SIZES = (-1, -(2**31), 2**31 - 1, 4 << 20, (4 << 20) - 11)
NUMBERS32 = (-1, 0, 1, 90, 2**31 - 1, -(2**31), 65_536 * 4)


@frozen
class Place:
    """Where the slave's log ends on this connection, and what would be right there."""

    offset: int
    """The next byte that the slave expects."""
    record: bytes
    """The next whole record."""
    file_bytes: int
    """mappedFileSizeCommitLog."""


def draw_transfer(chance: random.Random, place: Place) -> tuple[str, str, bytes]:
    """Kind, detail and bytes of what the master sends; the connection ends after it."""
    kind, draw = chance.choices(_NAMED, cum_weights=_WEIGHTS)[0]
    detail, data = draw(chance, place)
    return kind, detail, data


def _size(chance: random.Random, place: Place) -> tuple[str, bytes]:
    size = chance.choice(SIZES)
    return f"size {size}", HEADER.pack(place.offset, size) + place.record


def _offset(chance: random.Random, place: Place) -> tuple[str, bytes]:
    offset = chance.choice(
        (-1, -(2**63), 0, place.offset - 1, place.offset + 1, place.offset + 8,
        place.offset + place.file_bytes,
         place.offset - len(place.record), 2**63 - 1, 2**40)
    )  # fmt: skip
    body = chance.choice((place.record, place.record[:1], b"x" * 100))
    if offset == place.offset:
        offset += 1
    return f"offset {offset}, expected {place.offset}", HEADER.pack(offset, len(body)) + body


def _record(chance: random.Random, place: Place) -> tuple[str, bytes]:
    """A record whose length, magic, CRC, position or inner lengths are wrong."""
    while True:
        data = bytearray(place.record)
        where = chance.choice((0, 4, 8, 28, 84, 88, 92))
        if where == 28:
            wrong = chance.choice(
                (-1, place.offset + 1, place.offset - 1, 2**63 - 1, 0 if place.offset else 1)
            )
            pack_into(">q", data, where, wrong)
        else:
            wrong = chance.choice((*NUMBERS32, len(data) - 1, len(data) + 1, chance.getrandbits(31)))
            pack_into(">i", data, where, wrong)
        view = memoryview(data)
        if check_record(view, 0, len(view), place.offset) < 0:
            break
    return f"record with {wrong} at byte {where}", HEADER.pack(place.offset, len(data)) + data


def _body(chance: random.Random, place: Place) -> tuple[str, bytes]:
    """Bytes that are no record."""
    size = chance.choice((1, 4, 7, 8, 90, 91, 1000, 20_000))
    body = chance.choice(
        (bytes(size), b"\xff" * size, chance.randbytes(size), b"GET / HTTP/1.1\r\n\r\n" * (size // 18 + 1))
    )
    return f"{len(body)} bytes that are no record", HEADER.pack(place.offset, len(body)) + body


def _blank(chance: random.Random, place: Place) -> tuple[str, bytes]:
    """The end of a file where there is none."""
    left = place.file_bytes - place.offset % place.file_bytes
    size = chance.choice((0, -1, 7, 8, left - 1, left + 1, 2**31 - 1))
    body = pack(">iI", size, 0xCBD43194) + bytes(chance.choice((0, 8, 100)))
    return f"blank of {size} bytes, {left} are left", HEADER.pack(place.offset, len(body)) + body


def _huge_record(chance: random.Random, place: Place) -> tuple[str, bytes]:
    """A record that claims more than a message may have."""
    size = chance.choice((place.file_bytes + 1, place.file_bytes - 1, 2**31 - 1, 200_000))
    body = pack(">i", size) + place.record[4:] + bytes(1000)
    return f"record of {size} bytes", HEADER.pack(place.offset, len(body)) + body


def _half(chance: random.Random, place: Place) -> tuple[str, bytes]:
    whole = HEADER.pack(place.offset, len(place.record)) + place.record
    cut = chance.choice((1, 11, 12, 13, 20, len(whole) - 1))
    return f"{cut} of {len(whole)} bytes", whole[:cut]


def _heartbeats(chance: random.Random, place: Place) -> tuple[str, bytes]:
    offset = chance.choice((place.offset, place.offset, place.offset - 1, place.offset + 1, -1, 2**62))
    number = chance.choice((1, 1000))
    return f"{number} heartbeats at {offset}", HEADER.pack(offset, 0) * number


def _foreign(chance: random.Random, place: Place) -> tuple[str, bytes]:
    data = chance.choice(
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", chance.randbytes(5000), bytes(5000))
    )
    return f"{data[:12]!r}", data


KINDS: tuple[tuple[str, Callable[[random.Random, Place], tuple[str, bytes]], float], ...] = (
    ("transfer-size", _size, 10),
    ("transfer-offset", _offset, 15),
    ("transfer-record", _record, 30),
    ("transfer-body", _body, 15),
    ("transfer-blank", _blank, 8),
    ("transfer-huge-record", _huge_record, 8),
    ("transfer-half", _half, 8),
    ("transfer-heartbeats", _heartbeats, 4),
    ("transfer-foreign", _foreign, 4),
)
"""Every kind of transfer, and how often it is drawn."""
_NAMED = [(name, draw) for name, draw, _ in KINDS]
_WEIGHTS = list(accumulate(weight for _, _, weight in KINDS))

"""KEYFRAME records: the state at the start of a segment, so that it can be read without earlier segments.

`KeyframeBuilder` sees the records as they are written and keeps, for each open connection and for the node,
the last record of each kind that has lasting state (of HEARTBEAT, the last of each direction). A new segment
repeats them as KEYFRAME records: `flags` is the kind it stands for; offset, aux and size are those of the
record, except that a STATE or HEARTBEAT, whose `flags` were in use, carries them in `size`.

A connection is open from its first STATE, REQUESTED, TRANSFER, HEARTBEAT, ACK, RECEIVED or REPORTED until it
is CLOSED or its state is READY or SHUTDOWN. Its number is not used again within a session.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trioha.recording.events import NO_CONNECTION, RECORD, RECORD_BYTES, Kind
from trioha.recording.state import ends_connection

_CONNECTION_KINDS: Final = frozenset(
    map(
        int,
        (
            *(Kind.STATE, Kind.REQUESTED, Kind.TRANSFER, Kind.HEARTBEAT),
            *(Kind.ACK, Kind.RECEIVED, Kind.REPORTED),
        ),
    )
)
_NODE_KINDS: Final = frozenset(map(int, (Kind.PUT, Kind.FLUSHED, Kind.DISPATCHED)))
FLAGS_IN_SIZE: Final = frozenset(map(int, (Kind.STATE, Kind.HEARTBEAT)))
"""Kinds whose flags a KEYFRAME carries in `size`."""
_WORD_MASK: Final = 2**64 - 1


class KeyframeBuilder:
    """The last records from which the state can be rebuilt."""

    def __init__(self) -> None:
        self._last: dict[int, dict[int, bytes]] = {}
        """Connection -> kind (and direction) -> record."""

    def add(self, records: memoryview) -> None:
        """Add `records`, whole ones, in their order.

        Kind, flags, node and conn are one 64-bit word, and a dict has the last index of each. Python loops
        over the few distinct words only.
        """
        words = records.cast("q")[2::6].tolist()
        last_index = dict(zip(words, range(len(words)), strict=True))
        for signed, index in sorted(last_index.items(), key=_by_index):
            word = signed & _WORD_MASK
            kind = word & 0xFF
            conn = word >> 32
            if conn == 0xFFFF_FFFF:
                if kind in _NODE_KINDS:
                    self._keep(NO_CONNECTION, kind, records, index)
            elif ends_connection(kind, flags=word >> 8 & 0xFF):
                self._last.pop(conn, None)
            elif kind in _CONNECTION_KINDS:
                # Heartbeats of both directions are kept: `flags` is part of their key.
                self._keep(conn, word & 0xFFFF if kind == Kind.HEARTBEAT else kind, records, index)

    def _keep(self, conn: int, key: int, records: memoryview, index: int) -> None:
        start = index * RECORD_BYTES
        self._last.setdefault(conn, {})[key] = bytes(records[start : start + RECORD_BYTES])

    def keyframes(self, ts_ns: int) -> bytearray:
        """The KEYFRAME records of the node and all open connections, stamped `ts_ns`; seq and check are 0."""
        kept = list(self._records())
        frames = bytearray(len(kept) * RECORD_BYTES)
        for index, record in enumerate(kept):
            _, _, kind, flags, node, conn, offset, aux, size, _ = RECORD.unpack(record)
            RECORD.pack_into(
                frames,
                index * RECORD_BYTES,
                ts_ns,
                0,
                Kind.KEYFRAME,
                kind,
                node,
                conn,
                offset,
                aux,
                flags if kind in FLAGS_IN_SIZE else size,
                0,
            )
        return frames

    def _records(self) -> Iterable[bytes]:
        for _, by_kind in sorted(self._last.items()):
            # In the order of the record's own kind, not of the key.
            yield from sorted(by_kind.values(), key=_kind_and_flags)


def _kind_and_flags(record: bytes) -> bytes:
    return record[16:18]


def _by_index(item: tuple[int, int]) -> int:
    return item[1]

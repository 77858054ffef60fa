"""Searches for a put in all records of a session, read once from the start, as arrays in their order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from attrs import frozen

from trioha.recording.events import NO_CONNECTION, Kind, PutStatus
from trioha_sessions.state_arrays import Array, reached_offsets

FRAMES_AND_ACKS: Final = {False: (Kind.TRANSFER, Kind.ACK), True: (Kind.RECEIVED, Kind.REPORTED)}
"""Kinds of a connection's frames and acks, by whether a slave recorded them."""
KINDS_OF_PUT: Final = (Kind.PUT, Kind.WAIT_BEGIN, Kind.WAIT_END)


def slowest_end(arrays: Iterable[Array], from_ns: int) -> np.void | None:
    """The WAIT_END of the put that waited longest, of several the first, at monotonic time `from_ns` or
    later."""
    slowest: np.void | None = None
    for records in arrays:
        ends = _ends(records, from_ns)
        if len(ends):
            end = ends[ends["size"].argmax()]
            if slowest is None or end["size"] > slowest["size"]:
                slowest = end.copy()
    return slowest


def first_failure(arrays: Iterable[Array], from_ns: int) -> np.void | None:
    """The first WAIT_END that is not PUT_OK, at monotonic time `from_ns` or later."""
    for records in arrays:
        ends = _ends(records, from_ns)
        failed = ends[ends["flags"] != PutStatus.PUT_OK]
        if len(failed):
            first: np.void = failed[0].copy()
            return first
    return None


def _ends(records: Array, from_ns: int) -> Array:
    ends: Array = records[(records["kind"] == Kind.WAIT_END) & (records["ts_ns"] >= from_ns)]
    return ends


def put_at(arrays: Iterable[Array], offset: int) -> np.void | None:
    """The first PUT whose record has the byte at a physical offset."""
    for records in arrays:
        puts = records[records["kind"] == Kind.PUT]
        inside = puts[(puts["offset"] > offset) & (puts["offset"] - puts["size"] <= offset)]
        if len(inside):
            first: np.void = inside[0].copy()
            return first
    return None


def records_of_put(arrays: Iterable[Array], request_id: int) -> dict[Kind, np.void]:
    """The first PUT, WAIT_BEGIN and WAIT_END of a request, as far as they are there.

    Reading ends with the wait's end: there is nothing of the request after it.
    """
    found: dict[Kind, np.void] = {}
    for records in arrays:
        same = records[records["aux"] == request_id]
        for record in same[np.isin(same["kind"], KINDS_OF_PUT)]:
            found.setdefault(Kind(int(record["kind"])), record.copy())
        if Kind.WAIT_END in found:
            break
    return found


@frozen(kw_only=True)
class ConnectionSpan:
    """Where the frames and acks of a connection are, and when it had a put's end."""

    first_seq: int
    """Of its first frame or ack."""
    start_offset: int | None = None
    """Start of its first frame in the log; None without frames."""
    end_offset: int = 0
    """Largest end of a frame."""
    taken_ns: int | None = None
    """Monotonic time of the first frame that has the last byte of the put."""
    acked_ns: int | None = None
    """Monotonic time of the first ack, or report, that covers the put."""

    def followed_by(self, later: ConnectionSpan) -> ConnectionSpan:
        """The span of these records and the ones after them."""
        return ConnectionSpan(
            first_seq=self.first_seq,
            start_offset=later.start_offset if self.start_offset is None else self.start_offset,
            end_offset=max(self.end_offset, later.end_offset),
            taken_ns=later.taken_ns if self.taken_ns is None else self.taken_ns,
            acked_ns=later.acked_ns if self.acked_ns is None else self.acked_ns,
        )


def connection_spans(
    arrays: Iterable[Array], *, is_slave: bool, put_end_offset: int
) -> dict[int, ConnectionSpan]:
    """The spans of all connections of a session, by connection; `is_slave`: whether a slave recorded it."""
    frame_kind, ack_kind = FRAMES_AND_ACKS[is_slave]
    spans: dict[int, ConnectionSpan] = {}
    for records in arrays:
        kind = records["kind"]
        some = records[((kind == frame_kind) | (kind == ack_kind)) & (records["conn"] != NO_CONNECTION)]
        for conn in np.unique(some["conn"]).tolist():
            own = some[some["conn"] == conn]
            is_frame = own["kind"] == frame_kind
            span = _span(own[is_frame], own[~is_frame], int(own["seq"][0]), put_end_offset)
            spans[conn] = spans[conn].followed_by(span) if conn in spans else span
    return spans


def _span(frames: Array, acks: Array, first_seq: int, put_end_offset: int) -> ConnectionSpan:
    reached = reached_offsets(frames)
    # A slave that had the bytes when it connected did not receive them in this session.
    taken = frames[(reached >= put_end_offset) & (frames["offset"] < put_end_offset)]
    acked = acks[reached_offsets(acks) >= put_end_offset]
    return ConnectionSpan(
        first_seq=first_seq,
        start_offset=int(frames["offset"][0]) if len(frames) else None,
        end_offset=int(reached.max()) if len(frames) else 0,
        taken_ns=int(taken["ts_ns"][0]) if len(taken) else None,
        acked_ns=int(acked["ts_ns"][0]) if len(acked) else None,
    )

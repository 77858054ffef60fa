"""Puts, waits and acks of a range of a master's recording, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.reader import Segment, Session, read_segments
from trioha.recording.records import read_segment, record_dtype
from trioha.recording.state_arrays import Array, Ints, covered_at

WINDOW_RECORDS: Final = 150_000
"""Records of a stretch: 7 MB."""
NO_END: Final = -1


@frozen(eq=False)
class Trace:
    """One stretch of a master's session. Times are ns of its monotonic clock."""

    records: Array
    """All of it, in the order of their seq."""
    put_ts_ns: Ints
    """Of each put that was stored, in their order."""
    put_bytes: Ints
    put_end_offset: Ints
    begin_ts_ns: Ints
    """Of the wait of each put; NO_END if it has none here."""
    end_ts_ns: Ints
    """End of the wait of each put; NO_END if it has none here."""
    status: Ints
    """`PutStatus` of each put whose wait has an end; NO_END of the others."""
    ack_ts_ns: Sequence[Ints]
    """Acks of each connection that has any, by its number."""
    ack_offset: Sequence[Ints]

    @property
    def puts(self) -> int:
        """How many puts there are."""
        return len(self.put_ts_ns)


def read_stretches(session: Session, *, count: int, window_records: int = WINDOW_RECORDS) -> list[Trace]:
    """At most `count` stretches of the session, evenly spread over it; one if it is not longer than that.

    Stretches without a put are left out.
    """
    segments = read_segments(session).segments
    total = sum(segment.records for segment in segments)
    if total <= window_records:
        starts = [0]
    else:
        # Long sessions are looked at in places; short ones are covered.
        needed = min(count, -(-total // window_records))
        starts = [(total - window_records) * index // max(1, needed - 1) for index in range(needed)]
    traces = [trace_of(_read(session, segments, start, window_records)) for start in starts]
    return [trace for trace in traces if trace.puts]


def _read(session: Session, segments: Sequence[Segment], first: int, count: int) -> Array:
    parts = [np.zeros(0, record_dtype(session))]
    for segment in segments:
        if first < segment.records and count > 0:
            part = read_segment(session, segment, first=first, count=count).array
            parts.append(part)
            count -= min(count, segment.records - first)
        first = max(0, first - segment.records)
    return np.concatenate(parts)


def trace_of(records: Array) -> Trace:
    """The trace of `records` of a master's session, in the order of their seq."""
    kind = records["kind"]
    puts = records[kind == Kind.PUT]
    requests = puts["aux"].astype(np.int64)
    begin, _ = _by_request(requests, records[kind == Kind.WAIT_BEGIN])
    end, status = _by_request(requests, records[kind == Kind.WAIT_END])
    acks = records[(kind == Kind.ACK) & (records["conn"] != NO_CONNECTION)]
    conns = np.unique(acks["conn"])
    return Trace(
        records=records,
        put_ts_ns=puts["ts_ns"].astype(np.int64),
        put_bytes=puts["size"].astype(np.int64),
        put_end_offset=puts["offset"].astype(np.int64),
        begin_ts_ns=begin,
        end_ts_ns=end,
        status=status,
        ack_ts_ns=[acks["ts_ns"][acks["conn"] == conn].astype(np.int64) for conn in conns],
        ack_offset=[acks["offset"][acks["conn"] == conn].astype(np.int64) for conn in conns],
    )


def _by_request(requests: Ints, waits: Array) -> tuple[Ints, Ints]:
    """Time and flags of each request's wait record, NO_END where it has none. Request ids only grow."""
    ts_ns = np.full(len(requests), NO_END, np.int64)
    flags = np.full(len(requests), NO_END, np.int64)
    if len(requests) and len(waits):
        place = np.minimum(np.searchsorted(requests, waits["aux"]), len(requests) - 1)
        known = requests[place] == waits["aux"]
        ts_ns[place[known]] = waits["ts_ns"][known]
        flags[place[known]] = waits["flags"][known]
    return ts_ns, flags


def ack_delays_s(trace: Trace) -> list[NDArray[np.float64]]:
    """For each connection the time in s from each put's append to its ack; nan where it has none here."""
    delays = []
    for ts_ns, offset in zip(trace.ack_ts_ns, trace.ack_offset, strict=True):
        acked_ns = covered_at(ts_ns.astype(np.float64), offset, trace.put_end_offset, never=np.nan)
        delays.append((acked_ns - trace.put_ts_ns) / 1e9)
    return delays

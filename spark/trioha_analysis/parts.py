"""Parts of a replay: aggregates of a range of records, of the node and of each connection, and their join.

A session is cut into ranges, which are aggregated in parallel; their parts are joined in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from trioha.recording.aggregate import ConnectionPart, aggregate_batch
from trioha.recording.counters import NodeCounters
from trioha.recording.events import Kind
from trioha.recording.invariants import Judgement, SessionSettings, combine, judge_batch
from trioha.recording.invariants.event_batch import EventBatch
from trioha.recording.packed import BLOCK_RECORDS
from trioha.recording.reader import Damage, Segment, Session
from trioha.recording.records import read_segment, record_dtype
from trioha.recording.time_series import TimeGrid
from trioha_analysis.causes import BEFORE_RECORDS, CauseTally, tally_causes

RANGE_RECORDS: Final = 2 * BLOCK_RECORDS
"""Records that are folded at a time: 12 MB, and whole row groups of what is packed. What is worked out of so
many stays in a processor's cache (of 500,000 it does not: a third slower on a busy machine)."""

EVENT_KINDS: Final = (Kind.STATE, Kind.REQUESTED, Kind.REFUSED, Kind.CLOSED, Kind.LINK, Kind.DROPPED)
"""What happens to connections and to the recording: seldom, but what an operator looks for."""
_IS_EVENT: Final = np.zeros(256, np.bool_)
_IS_EVENT[list(EVENT_KINDS)] = True
EVENTS_MAX: Final = 100_000
"""So many of them are kept of a session, the first ones."""


@frozen
class Range:
    """Some records of one segment: what is folded at a time."""

    session_index: int
    ordinal: int
    """Place among the ranges of the session."""
    session: Session
    segments: tuple[Segment, ...]
    """All of the session."""
    segment_index: int
    """Its own."""
    first: int
    count: int
    grid: TimeGrid
    is_first: bool
    """Whether nothing came before it."""

    @property
    def segment(self) -> Segment:
        """Its own."""
        return self.segments[self.segment_index]


@frozen(eq=False)
class NodePart:
    """What a range says of the node, and what was wrong with it."""

    counters: NodeCounters
    damage: tuple[Damage, ...]
    judgement: Judgement
    """Of all of the session's invariants, connections' too: some look at more than one."""
    causes: CauseTally
    events: tuple[NDArray[np.void], ...]
    """The records that say what happened to connections and to the recording, `EVENTS_MAX` at most."""
    probes: Mapping[int, int] = field(factory=dict)
    """Connections that began and ended here and never asked for the log, with their `CloseReason`: they have
    no part of their own, and no events."""


def ranges_of(
    session_index: int,
    session: Session,
    segments: Sequence[Segment],
    grid: TimeGrid,
    *,
    range_records: int = RANGE_RECORDS,
) -> list[Range]:
    """The ranges that cover all records of `segments`, at most `range_records` each."""
    ranges: list[Range] = []
    segments = tuple(segments)
    for segment_index, segment in enumerate(segments):
        for first in range(0, segment.records, range_records):
            ranges.append(
                Range(
                    session_index=session_index,
                    ordinal=len(ranges),
                    session=session,
                    segments=segments,
                    segment_index=segment_index,
                    first=first,
                    count=min(range_records, segment.records - first),
                    grid=grid,
                    is_first=not ranges,
                )
            )
    return ranges


def aggregate_range(work: Range) -> tuple[NodePart, dict[int, ConnectionPart]]:
    """What a range says of the node, and of each connection."""
    records = read_segment(work.session, work.segment, first=work.first, count=work.count)
    batch = EventBatch(records.array, SessionSettings.of(work.session), work.is_first)
    part = aggregate_batch(batch, work.grid)
    judgement = judge_batch(batch)
    causes = tally_causes(batch, before=partial(_before, work))
    events = records.array[np.flatnonzero(_IS_EVENT[records.array["kind"]])]
    if part.probes:
        events = events[~np.isin(events["conn"], list(part.probes))]
    node = NodePart(part.node, records.damage, judgement, causes, (events[:EVENTS_MAX],), part.probes)
    return node, dict(part.connections)


def join_node(parts: Sequence[NodePart]) -> NodePart:
    """What the parts of a node, in their order, say together."""
    return NodePart(
        reduce(NodeCounters.__add__, (part.counters for part in parts)),
        tuple(damage for part in parts for damage in part.damage),
        combine(part.judgement for part in parts),
        reduce(CauseTally.__add__, (part.causes for part in parts)),
        _first_events([events for part in parts for events in part.events]),
        {conn: reason for part in parts for conn, reason in part.probes.items()},
    )


def _first_events(parts: Sequence[NDArray[np.void]]) -> tuple[NDArray[np.void], ...]:
    kept: list[NDArray[np.void]] = []
    room = EVENTS_MAX
    for events in parts:
        kept.append(events[:room])
        room -= len(kept[-1])
    return tuple(kept)


def _before(work: Range) -> Iterator[NDArray[np.void]]:
    """More and more of the records before a range."""
    for wanted in BEFORE_RECORDS:
        found: list[NDArray[np.void]] = []
        index, last, missing = work.segment_index, work.first, wanted
        while missing and (last or index):
            if not last:
                index -= 1
                last = work.segments[index].records
            first = max(0, last - missing)
            segment = work.segments[index]
            found.append(read_segment(work.session, segment, first=first, count=last - first).array)
            missing -= last - first
            last = first
        yield np.concatenate([np.zeros(0, record_dtype(work.session)), *reversed(found)])


def join_connection(parts: Sequence[ConnectionPart], grid: TimeGrid) -> ConnectionPart:
    """What the parts of a connection, in their order, say together."""
    return reduce(lambda earlier, later: earlier.followed_by(later, grid), parts)

"""Parts of a replay: aggregates of a range of records, of the node and of each connection, and their join.

A session is cut into ranges, which are aggregated in parallel; their parts are joined in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from trioha.recording.events import Kind
from trioha.recording.reader import Segment, Session, open_session
from trioha_analysis.causes import BEFORE_RECORDS, CauseCounts, count_causes
from trioha_analysis.wait_history import WaitHistory
from trioha_sessions.aggregate import ConnectionPart, aggregate_batch
from trioha_sessions.counters import NodeCounters
from trioha_sessions.invariants import CheckState, SessionSettings, check_batch, combine
from trioha_sessions.invariants.event_batch import EventBatch
from trioha_sessions.packed import BLOCK_RECORDS
from trioha_sessions.records import read_segment, record_dtype
from trioha_sessions.role_lives import RoleEvents
from trioha_sessions.segments import Damage
from trioha_sessions.time_series import TimeGrid

RANGE_RECORDS: Final = 2 * BLOCK_RECORDS
"""Records of a range: 12 MB, and whole row groups of packed segments. Arrays of this length stay in a
processor's cache (with 500,000 they do not: a third slower on a busy machine)."""

EVENT_KINDS: Final = (Kind.STATE, Kind.REQUESTED, Kind.REFUSED, Kind.CLOSED, Kind.LINK, Kind.DROPPED)
"""Rare records about connections and the recording itself."""
_IS_EVENT: Final = np.zeros(256, np.bool_)
_IS_EVENT[list(EVENT_KINDS)] = True
EVENTS_MAX: Final = 100_000
"""Records of these kinds that are kept of a session: the first ones."""


PART_BYTES_MAX: Final = 127 << 20
"""Longest part, as Arrow values, that is passed on. What a part keeps for its join is bounded:
`EVENTS_MAX`, `trioha_sessions.progress.KEPT_MAX` events and frames in flight of a connection, and as many
records of each rule as `trioha_sessions.invariants` keeps."""


@frozen
class Range:
    """Records of one segment that are aggregated at a time."""

    session_index: int
    ordinal: int
    """Index among the ranges of the session."""
    session: Session
    segments: tuple[Segment, ...]
    """The segments of the session that it may read: its own, and enough before it for `BEFORE_RECORDS`."""
    segment_index: int
    """Its own one among `segments`."""
    first: int
    count: int
    grid: TimeGrid
    is_first: bool
    """Whether it starts the session."""

    @property
    def segment(self) -> Segment:
        """The segment of its records."""
        return self.segments[self.segment_index]


@frozen(eq=False)
class NodePart:
    """Aggregate of the node in a range or in several consecutive ones."""

    counters: NodeCounters
    damage: tuple[Damage, ...]
    invariants: CheckState
    """Of all invariants; those of connections are here too, because some compare connections."""
    causes: CauseCounts
    events: tuple[NDArray[np.void], ...]
    """Records of `EVENT_KINDS`, at most `EVENTS_MAX`."""
    probes: Mapping[int, int] = field(factory=dict)
    """`CloseReason` of the connections that opened and closed here and never requested the log: they have
    neither a part nor events."""
    roles: RoleEvents = field(factory=RoleEvents)
    """Of controller mode."""
    waits: WaitHistory = field(factory=WaitHistory)


@frozen
class Run:
    """Consecutive ranges of one session, which one task aggregates: all that the task needs to know.

    Its size does not grow with the session: it names the few segments that it reads.
    """

    session_index: int
    ordinal: int
    """Index among the runs of the session."""
    path: Path
    """Of the session."""
    grid: TimeGrid
    segments: tuple[Segment, ...]
    """Those of its records, and enough before them for `BEFORE_RECORDS`."""
    pieces: tuple[tuple[int, int, int], ...]
    """Of each range: index among `segments`, first record in that segment, and number of records."""

    @property
    def is_first(self) -> bool:
        """Whether it starts the session."""
        return self.ordinal == 0

    def ranges(self) -> Iterator[Range]:
        """Its ranges. Raises StoreError if the session is gone."""
        session = open_session(self.path)
        for index, (segment_index, first, count) in enumerate(self.pieces):
            yield Range(
                session_index=self.session_index,
                ordinal=index,
                session=session,
                segments=self.segments,
                segment_index=segment_index,
                first=first,
                count=count,
                grid=self.grid,
                is_first=self.is_first and index == 0,
            )


def runs_of(
    session_index: int,
    path: Path,
    segments: Sequence[Segment],
    grid: TimeGrid,
    *,
    range_records: int = RANGE_RECORDS,
    run_ranges: int = 1,
) -> Iterator[Run]:
    """Runs of at most `run_ranges` ranges of at most `range_records` records that cover `segments`.

    Time and memory grow with the number of ranges.
    """
    for ordinal, pieces in enumerate(_batched(_pieces(segments, range_records), run_ranges)):
        begin, before = pieces[0][:2]
        while begin and before < BEFORE_RECORDS[-1]:
            begin -= 1
            before += segments[begin].records
        yield Run(
            session_index,
            ordinal,
            path,
            grid,
            tuple(segments[begin : pieces[-1][0] + 1]),
            tuple((index - begin, first, count) for index, first, count in pieces),
        )


def _pieces(segments: Sequence[Segment], range_records: int) -> Iterator[tuple[int, int, int]]:
    for index, segment in enumerate(segments):
        for first in range(0, segment.records, range_records):
            yield index, first, min(range_records, segment.records - first)


def _batched(pieces: Iterator[tuple[int, int, int]], length: int) -> Iterator[list[tuple[int, int, int]]]:
    while batch := list(islice(pieces, length)):
        yield batch


def aggregate_run(run: Run) -> tuple[NodePart, dict[int, ConnectionPart]]:
    """Aggregate the ranges of a run one after the other: memory is that of one range and the result."""
    node: NodePart | None = None
    connections: dict[int, ConnectionPart] = {}
    for work in run.ranges():
        its_node, its_connections = aggregate_range(work)
        node = its_node if node is None else join_node([node, its_node])
        for conn, part in its_connections.items():
            known = connections.get(conn)
            connections[conn] = part if known is None else known.followed_by(part, work.grid)
    assert node is not None, "a run has a range"
    return node, connections


def aggregate_range(work: Range) -> tuple[NodePart, dict[int, ConnectionPart]]:
    """Aggregate a range: the node's part, and those of the connections by number."""
    records = read_segment(work.session, work.segment, first=work.first, count=work.count)
    batch = EventBatch(records.array, SessionSettings.of(work.session), work.is_first)
    part = aggregate_batch(batch, work.grid)
    state = check_batch(batch)
    causes = count_causes(batch, before=partial(_before, work))
    events = records.array[np.flatnonzero(_IS_EVENT[records.array["kind"]])]
    if part.probes:
        events = events[~np.isin(events["conn"], list(part.probes))]
    node = NodePart(
        part.node,
        records.damage,
        state,
        causes,
        (events[:EVENTS_MAX],),
        part.probes,
        RoleEvents.of(batch),
        WaitHistory.of(records.array, work.grid),
    )
    return node, dict(part.connections)


def join_node(parts: Sequence[NodePart]) -> NodePart:
    """Join consecutive parts of a node."""
    return NodePart(
        reduce(NodeCounters.__add__, (part.counters for part in parts)),
        tuple(damage for part in parts for damage in part.damage),
        combine(part.invariants for part in parts),
        reduce(CauseCounts.__add__, (part.causes for part in parts)),
        _first_events([events for part in parts for events in part.events]),
        {conn: reason for part in parts for conn, reason in part.probes.items()},
        reduce(RoleEvents.__add__, (part.roles for part in parts)),
        reduce(WaitHistory.__add__, (part.waits for part in parts)),
    )


def _first_events(parts: Sequence[NDArray[np.void]]) -> tuple[NDArray[np.void], ...]:
    kept: list[NDArray[np.void]] = []
    room = EVENTS_MAX
    for events in parts:
        kept.append(events[:room])
        room -= len(kept[-1])
    return tuple(kept)


def _before(work: Range) -> Iterator[NDArray[np.void]]:
    """Longer and longer sequences of the records before a range."""
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
    """Join consecutive parts of a connection."""
    return reduce(lambda earlier, later: earlier.followed_by(later, grid), parts)

"""Sessions on Spark: ranges of records are folded in parallel, and the parts joined for each connection.

A task folds some ranges that follow each other, one after the other, and joins them as it goes: its memory
is that of one range and of what it has found. Only that moves between processes: for each connection of a
task counts, histograms, the frames in flight at its begin, and curves, with 16 bytes for each step of time in
which something happened (all together 170 KB at most in a session of less than 25 minutes, 0.4 MB for each
hour of a longer one), whatever the number of events. Probes take a few bytes each. Workers read the segments
themselves, so on a cluster the sessions lie where every worker sees them under the same path.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import field, frozen
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from trioha.recording.aggregate import ConnectionPart, aggregate_batch
from trioha.recording.counters import NodeCounters
from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.invariants import Judgement, SessionSettings, combine, judge_batch
from trioha.recording.invariants.event_batch import EventBatch
from trioha.recording.packed import BLOCK_RECORDS
from trioha.recording.reader import Damage, Segment, Session
from trioha.recording.records import read_segment, record_dtype
from trioha.recording.time_series import TimeGrid
from trioha_spark.causes import BEFORE_RECORDS, CauseTally, tally_causes

RANGE_RECORDS: Final = 2 * BLOCK_RECORDS
"""Records that are folded at a time: 12 MB, and whole row groups of what is packed. What is worked out of so
many stays in a processor's cache (of 500,000 it does not: a third slower on a busy machine)."""
RUN_RANGES_MAX: Final = 8
"""Ranges of one task: half a second of work or so."""
RUNS_PER_CORE: Final = 4
"""At least so many tasks for each core, if there are so many ranges: none waits long for the last one."""

EVENT_KINDS: Final = (Kind.STATE, Kind.REQUESTED, Kind.REFUSED, Kind.CLOSED, Kind.LINK, Kind.DROPPED)
"""What happens to connections and to the recording: seldom, but what an operator looks for."""
_IS_EVENT: Final = np.zeros(256, np.bool_)
_IS_EVENT[list(EVENT_KINDS)] = True
EVENTS_MAX: Final = 100_000
"""So many of them are kept of a session, the first ones."""

PARTS_SCHEMA: Final = "session int, conn int, ordinal int, part binary"
"""A part: index of its session, connection (-1: the node), place of its first range there, and pickled."""
JOINED_SCHEMA: Final = "session int, conn int, part binary"

_PARTS: Final = pa.schema(
    [("session", pa.int32()), ("conn", pa.int32()), ("ordinal", pa.int32()), ("part", pa.binary())]
)
_JOINED: Final = pa.schema([("session", pa.int32()), ("conn", pa.int32()), ("part", pa.binary())])


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
    cold: bool
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
                    cold=not ranges,
                )
            )
    return ranges


def aggregate_ranges(spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
    """A DataFrame of parts (`PARTS_SCHEMA`), a partition for each run of `ranges`, which are not empty."""
    runs = runs_of(ranges, wanted=spark.sparkContext.defaultParallelism * RUNS_PER_CORE)
    numbers = spark.range(0, len(runs), 1, len(runs))
    return numbers.mapInArrow(partial(_aggregate_batches, runs), PARTS_SCHEMA)


def runs_of(ranges: Sequence[Range], *, wanted: int) -> list[list[Range]]:
    """`ranges` in their order as about `wanted` runs or more, each of one session."""
    length = min(RUN_RANGES_MAX, max(1, len(ranges) // wanted))
    runs: list[list[Range]] = []
    for work in ranges:
        if not runs or len(runs[-1]) == length or runs[-1][0].session_index != work.session_index:
            runs.append([])
        runs[-1].append(work)
    return runs


def _aggregate_batches(
    runs: Sequence[Sequence[Range]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield _aggregate_run(runs[number])


def _aggregate_run(run: Sequence[Range]) -> pa.RecordBatch:
    node, connections = aggregate_range(run[0])
    for work in run[1:]:
        its_node, its_connections = aggregate_range(work)
        node = join_node([node, its_node])
        for conn, part in its_connections.items():
            known = connections.get(conn)
            connections[conn] = part if known is None else known.followed_by(part, work.grid)
    rows: dict[int, object] = {NO_CONNECTION: node, **connections}
    return pa.RecordBatch.from_pydict(
        {
            "session": [run[0].session_index] * len(rows),
            "conn": list(rows),
            "ordinal": [run[0].ordinal] * len(rows),
            "part": [pickle.dumps(value) for value in rows.values()],
        },
        schema=_PARTS,
    )


def aggregate_range(work: Range) -> tuple[NodePart, dict[int, ConnectionPart]]:
    """What a range says of the node, and of each connection."""
    records = read_segment(work.session, work.segment, first=work.first, count=work.count)
    batch = EventBatch(records.array, SessionSettings.of(work.session), work.cold)
    part = aggregate_batch(batch, work.grid)
    judgement = judge_batch(batch)
    causes = tally_causes(batch, before=partial(_before, work))
    events = records.array[np.flatnonzero(_IS_EVENT[records.array["kind"]])]
    if part.probes:
        events = events[~np.isin(events["conn"], list(part.probes))]
    node = NodePart(part.node, records.damage, judgement, causes, (events[:EVENTS_MAX],), part.probes)
    return node, dict(part.connections)


def join_parts(parts: DataFrame, grids: Mapping[int, TimeGrid]) -> DataFrame:
    """Of a DataFrame of parts one row for each connection and node (`JOINED_SCHEMA`).

    `grids`: that of each session, by its index.
    """
    grids = dict(grids)

    # Spark goes by the type hints, which it does not find on a `partial`.
    def join(rows: pa.Table) -> pa.Table:
        return _join(grids, rows)

    return parts.groupBy("session", "conn").applyInArrow(join, JOINED_SCHEMA)


def _join(grids: Mapping[int, TimeGrid], rows: pa.Table) -> pa.Table:
    rows = rows.sort_by("ordinal")
    session, conn = rows["session"][0].as_py(), rows["conn"][0].as_py()
    # Pickled by a worker of the same job, as Spark itself does with every function that it sends.
    parts = [pickle.loads(part) for part in rows["part"].to_pylist()]  # noqa: S301
    joined = join_node(parts) if conn == NO_CONNECTION else join_connection(parts, grids[session])
    return pa.Table.from_pydict(
        {"session": [session], "conn": [conn], "part": [pickle.dumps(joined)]}, schema=_JOINED
    )


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


def joined_rows(joined: DataFrame) -> Iterator[tuple[int, int, NodePart | ConnectionPart]]:
    """Session index, connection and part of each row of `join_parts`, brought to the driver."""
    table = joined.toArrow()
    for row in table.to_pylist():
        yield row["session"], row["conn"], pickle.loads(row["part"])  # noqa: S301

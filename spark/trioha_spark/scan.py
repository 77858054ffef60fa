"""Sessions on Spark: ranges of records are folded in parallel, and the parts joined for each connection.

Only the parts move between processes: a few kilobytes for each connection of a range, whatever the number of
its events. Workers read the segments themselves, so on a cluster the sessions lie where every worker sees
them under the same path.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from trioha.recording.curves import Grid
from trioha.recording.events import NO_CONNECTION, Kind
from trioha.recording.fold import ConnectionPart, Part, fold
from trioha.recording.judging import Judgement, Setting, combine, judge_scene
from trioha.recording.judging.scene import Scene
from trioha.recording.reader import Damage, Segment, Session
from trioha.recording.records import read_segment
from trioha.recording.tallies import NodeTally
from trioha_spark.causes import CauseTally, tally_causes

RANGE_RECORDS: Final = 500_000
"""Records that one task folds at a time: 24 MB."""

EVENT_KINDS: Final = (Kind.STATE, Kind.REQUESTED, Kind.REFUSED, Kind.CLOSED, Kind.LINK, Kind.DROPPED)
"""What happens to connections and to the recording: seldom, but what an operator looks for."""
EVENTS_MAX: Final = 100_000
"""So many of them are kept of a session, the first ones."""
BEFORE_RECORDS: Final = (65_536, 1_000_000)
"""How far before a range the begins of waits are looked for."""

PARTS_SCHEMA: Final = "session int, conn int, ordinal int, part binary"
"""A part: index of its session, connection (-1: the node), place of its range there, and pickled."""
JOINED_SCHEMA: Final = "session int, conn int, part binary"

_PARTS: Final = pa.schema(
    [("session", pa.int32()), ("conn", pa.int32()), ("ordinal", pa.int32()), ("part", pa.binary())]
)
_JOINED: Final = pa.schema([("session", pa.int32()), ("conn", pa.int32()), ("part", pa.binary())])


@frozen
class Range:
    """Some records of one segment: what a task reads."""

    session_index: int
    ordinal: int
    """Place among the ranges of the session."""
    session: Session
    segment: Segment
    first: int
    count: int
    grid: Grid
    cold: bool
    """Whether nothing came before it."""
    previous: Segment | None
    """The segment before its own."""


@frozen(eq=False)
class NodePart:
    """What a range says of the node, and what was wrong with it."""

    tally: NodeTally
    damage: tuple[Damage, ...]
    judgement: Judgement
    """Of all of the session's invariants, connections' too: some look at more than one."""
    causes: CauseTally
    events: tuple[NDArray[np.void], ...]
    """The records that say what happened to connections and to the recording, `EVENTS_MAX` at most."""


def ranges_of(
    session_index: int,
    session: Session,
    segments: Sequence[Segment],
    grid: Grid,
    *,
    range_records: int = RANGE_RECORDS,
) -> list[Range]:
    """The ranges that cover all records of `segments`, at most `range_records` each."""
    ranges: list[Range] = []
    for previous, segment in zip((None, *segments), segments, strict=False):
        for first in range(0, segment.records, range_records):
            ranges.append(
                Range(
                    session_index=session_index,
                    ordinal=len(ranges),
                    session=session,
                    segment=segment,
                    first=first,
                    count=min(range_records, segment.records - first),
                    grid=grid,
                    cold=not ranges,
                    previous=previous,
                )
            )
    return ranges


def fold_ranges(spark: SparkSession, ranges: Sequence[Range]) -> DataFrame:
    """A DataFrame of parts (`PARTS_SCHEMA`), one partition for each range; `ranges` must not be empty."""
    numbers = spark.range(0, len(ranges), 1, len(ranges))
    return numbers.mapInArrow(partial(_fold_batches, list(ranges)), PARTS_SCHEMA)


def _fold_batches(ranges: Sequence[Range], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield _fold_range(ranges[number])


def _fold_range(work: Range) -> pa.RecordBatch:
    records = read_segment(work.session, work.segment, first=work.first, count=work.count)
    part: Part = fold(records.array, is_slave=work.session.is_slave, grid=work.grid, cold=work.cold)
    scene = Scene(records.array, Setting.of(work.session), work.cold)
    judgement = judge_scene(scene)
    causes = tally_causes(scene, before=partial(_before, work))
    events = records.array[np.isin(records.array["kind"], EVENT_KINDS)][:EVENTS_MAX]
    node = NodePart(part.node, records.damage, judgement, causes, (events,))
    rows: dict[int, object] = {NO_CONNECTION: node, **part.connections}
    return pa.RecordBatch.from_pydict(
        {
            "session": [work.session_index] * len(rows),
            "conn": list(rows),
            "ordinal": [work.ordinal] * len(rows),
            "part": [pickle.dumps(value) for value in rows.values()],
        },
        schema=_PARTS,
    )


def join_parts(parts: DataFrame, grids: Mapping[int, Grid]) -> DataFrame:
    """Of a DataFrame of parts one row for each connection and node (`JOINED_SCHEMA`).

    `grids`: that of each session, by its index.
    """
    grids = dict(grids)

    # Spark goes by the type hints, which it does not find on a `partial`.
    def join(rows: pa.Table) -> pa.Table:
        return _join(grids, rows)

    return parts.groupBy("session", "conn").applyInArrow(join, JOINED_SCHEMA)


def _join(grids: Mapping[int, Grid], rows: pa.Table) -> pa.Table:
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
        reduce(NodeTally.__add__, (part.tally for part in parts)),
        tuple(damage for part in parts for damage in part.damage),
        combine(part.judgement for part in parts),
        reduce(CauseTally.__add__, (part.causes for part in parts)),
        _first_events([events for part in parts for events in part.events]),
    )


def _first_events(parts: Sequence[NDArray[np.void]]) -> tuple[NDArray[np.void], ...]:
    kept: list[NDArray[np.void]] = []
    room = EVENTS_MAX
    for events in parts:
        kept.append(events[:room])
        room -= len(kept[-1])
    return tuple(kept)


def _before(work: Range) -> Iterator[NDArray[np.void]]:
    """More and more of the records before a range, its segment's or the one's before it."""
    for count in BEFORE_RECORDS:
        segment, last = work.segment, work.first
        if last == 0:
            if work.previous is None:
                return
            segment, last = work.previous, work.previous.records
        yield read_segment(work.session, segment, first=max(0, last - count), count=min(count, last)).array


def join_connection(parts: Sequence[ConnectionPart], grid: Grid) -> ConnectionPart:
    """What the parts of a connection, in their order, say together."""
    return reduce(lambda earlier, later: earlier.followed_by(later, grid), parts)


def joined_rows(joined: DataFrame) -> Iterator[tuple[int, int, NodePart | ConnectionPart]]:
    """Session index, connection and part of each row of `join_parts`, brought to the driver."""
    table = joined.toArrow()
    for row in table.to_pylist():
        yield row["session"], row["conn"], pickle.loads(row["part"])  # noqa: S301

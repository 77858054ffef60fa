"""Sessions on Spark: ranges of records are aggregated in parallel, and their parts joined by connection.

A task aggregates consecutive ranges one after the other and joins their parts: its memory is that of one
range and its result. A run of ranges is a row, which travels to its own task only. Only results move between
processes: for each connection counts, histograms, the frames in flight at its start, and time series with 16
bytes for each step that has an event (at most 170 KB for a session of less than 25 minutes, 0.4 MB for each
hour of a longer one), independent of the number of events. A probe takes a few bytes.

Parts of one connection join in a tree: a task joins `JOINED_MAX` consecutive parts at most, and a part has a
bound (`trioha_analysis.parts.PART_BYTES_MAX`), so that a task's rows stay below the 2 GB of an Arrow column.

Workers read the segments themselves, so on a cluster sessions have the same path on every worker.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from trioha.errors import TriohaError
from trioha.recording.events import NO_CONNECTION
from trioha.recording.reader import open_session
from trioha_analysis.arrow_tables import write_session_tables
from trioha_analysis.parts import (
    PART_BYTES_MAX,
    NodePart,
    Run,
    aggregate_run,
    join_connection,
    join_node,
)
from trioha_analysis.replay_result import Detail, ReplayPlan, SessionReplay, session_replay
from trioha_analysis.state_at import LastSeen
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.segments import Segments
from trioha_sessions.time_series import TimeGrid

RUN_RANGES_MAX: Final = 8
"""Ranges of one task: about half a second of work."""
RUNS_PER_CORE: Final = 4
"""Tasks for each core, if there are enough ranges: so that cores finish at about the same time."""
JOINED_MAX: Final = 32
"""Parts that one task joins at a time."""
assert JOINED_MAX * PART_BYTES_MAX < 2**31, "the parts that a task joins fit an Arrow column"

PARTS_SCHEMA: Final = "session int, conn int, ordinal int, part binary"
"""A part: index of its session, connection (-1: the node), place among the parts of the session, and the
pickled part with its grid."""
FINISHED_SCHEMA: Final = "session int, result binary"
_FINISHED: Final = pa.schema([("session", pa.int32()), ("result", pa.binary())])
_SIZE: Final = struct.Struct("<Q")
_PARTS: Final = pa.schema(
    [("session", pa.int32()), ("conn", pa.int32()), ("ordinal", pa.int32()), ("part", pa.binary())]
)


class ReplayError(TriohaError):
    """A recording that cannot be replayed."""


def aggregate_runs(spark: SparkSession, plan: ReplayPlan) -> tuple[DataFrame, int]:
    """A DataFrame of parts (`PARTS_SCHEMA`), a partition for each run of the plan's ranges, of which there is
    at least one; and the most parts that a session has."""
    context = spark.sparkContext
    wanted = context.defaultParallelism * RUNS_PER_CORE
    length = min(RUN_RANGES_MAX, max(1, plan.ranges // wanted))
    runs = []
    parts_max = 0
    for run in plan.runs(run_ranges=length):
        parts_max = max(parts_max, run.ordinal + 1)
        runs.append(pickle.dumps(run))
    parts = context.parallelize(runs, len(runs)).flatMap(_aggregated)
    return spark.createDataFrame(parts, PARTS_SCHEMA, verifySchema=False), parts_max


def _aggregated(pickled: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    # Pickled by the driver of the same job.
    run: Run = pickle.loads(pickled)  # noqa: S301
    node, connections = aggregate_run(run)
    yield run.session_index, NO_CONNECTION, run.ordinal, pack_part(node, run.grid)
    for conn, part in connections.items():
        yield run.session_index, conn, run.ordinal, pack_part(part, run.grid)


def pack_part(part: NodePart | ConnectionPart, grid: TimeGrid) -> bytes:
    """The pickled part and grid, compressed. Raises ReplayError if they are longer than a part may be."""
    packed = _compressed(pickle.dumps((part, grid)))
    if len(packed) > PART_BYTES_MAX:
        raise ReplayError(f"a part has {len(packed):,} bytes, more than {PART_BYTES_MAX:,}")
    return packed


def unpack_part(packed: bytes) -> tuple[NodePart | ConnectionPart, TimeGrid]:
    """A part of a row, and the grid of its time series."""
    # Pickled by a worker of the same job.
    part, grid = pickle.loads(_decompressed(packed))  # noqa: S301
    return part, grid


def _compressed(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return _SIZE.pack(len(data)) + compressed


def _decompressed(packed: bytes) -> bytes:
    (size_bytes,) = _SIZE.unpack_from(packed)
    data: bytes = pa.decompress(memoryview(packed)[_SIZE.size :], size_bytes, codec="zstd", asbytes=True)
    return data


def join_parts(parts: DataFrame, parts_max: int) -> DataFrame:
    """The parts joined to one row for each connection and node; a session has `parts_max` parts at most."""
    while parts_max > 1:
        groups = parts.selectExpr("session", "conn", f"ordinal div {JOINED_MAX} as place", "ordinal", "part")
        parts = groups.groupBy("session", "conn", "place").applyInArrow(_join, PARTS_SCHEMA)
        parts_max = -(-parts_max // JOINED_MAX)
    return parts


def _join(rows: pa.Table) -> pa.Table:
    rows = rows.sort_by("ordinal")
    session, conn, place = (rows[name][0].as_py() for name in ("session", "conn", "place"))
    found = [unpack_part(part) for part in rows["part"].to_pylist()]
    grid = found[0][1]
    joined: NodePart | ConnectionPart
    if conn == NO_CONNECTION:
        joined = join_node([part for part, _ in found if isinstance(part, NodePart)])
    else:
        joined = join_connection([part for part, _ in found if isinstance(part, ConnectionPart)], grid)
    return pa.Table.from_pydict(
        {"session": [session], "conn": [conn], "ordinal": [place], "part": [pack_part(joined, grid)]},
        schema=_PARTS,
    )


def finish(joined: DataFrame, plan: ReplayPlan, detail: Detail, tables: Path | None) -> DataFrame:
    """The result of each session that has records (`FINISHED_SCHEMA`), as much of it as `detail` says.

    With `tables` also its part of the long tables is written there. A task has the joined parts of a session.
    """
    sessions = [(session.path, seen) for session, seen in zip(plan.sessions, plan.seen, strict=True)]

    # Spark needs the type hints, which a `partial` does not have.
    def finish_session(rows: pa.Table) -> pa.Table:
        return _finish(rows, sessions, detail, tables)

    return (
        joined.select("session", "conn", "part")
        .groupBy("session")
        .applyInArrow(finish_session, FINISHED_SCHEMA)
    )


def _finish(
    rows: pa.Table,
    sessions: Sequence[tuple[Path, Sequence[LastSeen]]],
    detail: Detail,
    tables: Path | None,
) -> pa.Table:
    index: int = rows["session"][0].as_py()
    node: NodePart | None = None
    connections: dict[int, ConnectionPart] = {}
    for conn, packed in zip(rows["conn"].to_pylist(), rows["part"], strict=True):
        part, grid = unpack_part(packed.as_py())
        if isinstance(part, NodePart):
            node = part
        else:
            connections[conn] = part
    assert node is not None, "a session with records has a part of its node"
    path, seen = sessions[index]
    session = open_session(path)
    replay = session_replay(
        session, Segments((), ()), grid, node, dict(sorted(connections.items())), seen=seen
    )
    if tables is not None:
        write_session_tables(replay, tables, index)
    result = _compressed(pickle.dumps(replay.with_detail(detail)))
    return pa.Table.from_pydict({"session": [index], "result": [result]}, schema=_FINISHED)


def finished_sessions(finished: DataFrame) -> dict[int, SessionReplay]:
    """Collect the rows of `finish`: results by the index of their sessions."""
    # Pickled by a worker of the same job.
    return {
        row["session"]: pickle.loads(_decompressed(row["result"]))  # noqa: S301
        for row in finished.toArrow().to_pylist()
    }

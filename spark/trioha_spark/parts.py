"""Parts of sessions on Spark: runs of records are aggregated in parallel, and their parts joined.

A task aggregates consecutive ranges one after the other and joins their parts: its memory is that of one
range and its result. Only results move between processes: for each connection counts, histograms, the frames
in flight at its start, and time series with 16 bytes for each step that has an event (at most 170 KB for a
session of less than 25 minutes, 0.4 MB for each hour of a longer one), independent of the number of events. A
probe takes a few bytes.

Parts of one connection join in a tree: a task joins `JOINED_MAX` consecutive parts at most, and a part has a
bound (`trioha_analysis.parts.PART_BYTES_MAX`), so that a task's rows stay below the 2 GB of an Arrow column.

Workers read the segments themselves, so on a cluster sessions have the same path on every worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
from attrs import evolve
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from trioha.errors import TriohaError
from trioha.recording.events import NO_CONNECTION
from trioha.recording.reader import Session, open_session
from trioha_analysis.arrow_values import from_arrow
from trioha_analysis.parts import PART_BYTES_MAX, Run, aggregate_run, join_connection, join_node
from trioha_spark.rows import PartRow, batch_of, rows_of, schema_of

JOINED_MAX: Final = 16
"""Parts that one task joins at a time."""
assert JOINED_MAX * PART_BYTES_MAX < 2**31, "the parts that a task joins fit an Arrow column"
BATCH_ROWS: Final = 64
"""Parts that a task passes on at a time."""


class ReplayError(TriohaError):
    """A recording that cannot be replayed."""


def aggregate_runs(runs: DataFrame) -> DataFrame:
    """The parts (`PartRow`) of runs (`trioha_analysis.parts.Run`)."""
    return runs.mapInArrow(aggregate_batches, schema_of(PartRow))


def aggregate_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does with its runs."""
    for batch in batches:
        for run in rows_of(batch, Run):
            parts, session = _parts_of(run), open_session(run.path)
            while some := list(islice(parts, BATCH_ROWS)):
                yield part_batch(some, session)


def _parts_of(run: Run) -> Iterator[PartRow]:
    node, connections = aggregate_run(run)
    of_run = (run.ordinal, run.path, run.grid)
    yield PartRow(run.session_index, NO_CONNECTION, *of_run, node, None)
    for conn, part in connections.items():
        yield PartRow(run.session_index, conn, *of_run, None, part)


def join_parts(parts: DataFrame, parts_max: int) -> DataFrame:
    """The parts joined to one row for each connection and node; a session has `parts_max` parts at most."""
    while parts_max > 1:
        places = parts.withColumn("place", expr(f"ordinal div {JOINED_MAX}"))
        parts = places.groupBy("session_index", "conn", "place").applyInArrow(join_rows, schema_of(PartRow))
        parts_max = -(-parts_max // JOINED_MAX)
    return parts


def join_rows(table: pa.Table) -> pa.Table:
    """The parts of a connection, or of the node, with one `place` joined: their ordinal afterwards."""
    if table.num_rows == 1:
        # As it is: most connections are in few parts, and there is nothing to join.
        alone = table.drop_columns("place")
        return alone.set_column(alone.column_names.index("ordinal"), "ordinal", table["place"])
    session = session_of(table) if table["conn"][0].as_py() == NO_CONNECTION else None
    rows = sorted(rows_of(table, PartRow, session), key=_ordinal)
    connections = [one.connection for one in rows if one.connection is not None]
    joined = evolve(
        rows[0],
        ordinal=table["place"][0].as_py(),
        node=join_node([one.node for one in rows if one.node is not None]) if session else None,
        connection=join_connection(connections, rows[0].grid) if connections else None,
    )
    return pa.Table.from_batches([part_batch([joined], session)])


def _ordinal(row: PartRow) -> int:
    return row.ordinal


def session_of(table: pa.Table) -> Session:
    """The session of the rows of a table. Raises StoreError if it is gone."""
    return open_session(from_arrow(table["path"][0], Path))


def part_batch(parts: Sequence[PartRow], session: Session | None) -> pa.RecordBatch:
    """Parts of a session as a batch. Raises ReplayError if one is longer than a part may be."""
    batch = batch_of(parts, PartRow, session)
    if batch.nbytes > PART_BYTES_MAX:
        longest = max(batch.slice(place, 1).nbytes for place in range(len(parts)))
        if longest > PART_BYTES_MAX:
            raise ReplayError(f"a part has {longest:,} bytes, more than {PART_BYTES_MAX:,}")
    return batch

"""A replay as DataFrames: a table of connections, one of seconds, and so on, with typed columns."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa
from attrs import field, frozen
from pyarrow import parquet
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import broadcast, col, count, inline, lit, posexplode, when

from trioha.errors import StoreError
from trioha.recording.reader import Session
from trioha_analysis.arrow_tables import GROUP_TABLES, LONG_TABLES, SCHEMAS, SESSION_TABLES
from trioha_analysis.arrow_values import from_arrow
from trioha_analysis.causes import ACK, CAUSES
from trioha_analysis.session_replay import SessionReplay
from trioha_spark.results import group_results, link_results
from trioha_spark.rows import table_in

STORED: Final = StorageLevel.DISK_ONLY
"""Where executors keep results."""


@frozen(eq=False)
class ReplayTables:
    """The tables of a replay, each a DataFrame whose rows have no order.

    `trioha_analysis.arrow_tables` has their columns. Executors keep the results of sessions, from which
    actions on these read; `links`, `causes` and the rows of groups in `invariants` and `violations` are
    computed by the first action that needs them.
    """

    sessions: DataFrame
    connections: DataFrame
    reconnects: DataFrame
    outages: DataFrame
    probes: DataFrame
    gaps: DataFrame
    waits: DataFrame
    causes: DataFrame
    links: DataFrame
    roles: DataFrame
    invariants: DataFrame
    violations: DataFrame
    events: DataFrame
    seconds: DataFrame
    _results: DataFrame = field(repr=False)
    """Of sessions (`trioha_spark.results.session_results`), kept by executors."""
    _groups: DataFrame = field(repr=False)
    _linked: DataFrame = field(repr=False)
    _opened: tuple[Session, ...] = field(repr=False)
    """The sessions, in their order."""

    def __getitem__(self, name: str) -> DataFrame:
        """The table of this name. Raises KeyError."""
        if name not in SCHEMAS:
            raise KeyError(name)
        found: DataFrame = getattr(self, name)
        return found

    def collect(self) -> dict[str, pa.Table]:
        """The short tables, all but `events` and `seconds`, with their rows in the order of the sessions."""
        names = [name for name in SESSION_TABLES if name not in {*LONG_TABLES, "causes"}]
        results = self._results.select("session_index", "part", *names).toArrow()
        results = results.sort_by([("session_index", "ascending"), ("part", "ascending")])
        groups = self._groups.toArrow().sort_by([("cluster_name", "ascending"), ("broker_name", "ascending")])
        links = self._linked.select("broker_name", "links").toArrow().sort_by("broker_name")
        causes = _causes(self._results, self._linked).toArrow()
        causes = causes.sort_by([(name, "ascending") for name in _PLACE]).drop_columns(_PLACE)
        found = {name: table_in(results[name], name) for name in names}
        for name in GROUP_TABLES:
            found[name] = pa.concat_tables([found[name], table_in(groups[name], name)])
        found["links"] = table_in(links["links"], "links")
        found["causes"] = causes.cast(SCHEMAS["causes"])
        return {name: found[name] for name in SCHEMAS if name in found}

    def reports(self) -> list[SessionReplay]:
        """What a report shows of each session, in their order (`SessionReplay.for_report`)."""
        found = self._results.where("report is not null").select("session_index", "report").toArrow()
        return [
            from_arrow(report, SessionReplay, self._opened[index])
            for index, report in sorted(
                zip(found["session_index"].to_pylist(), found["report"], strict=True), key=_index
            )
        ]

    def create_views(self, *, prefix: str = "trioha_") -> list[str]:
        """Create a temporary view of each table (`trioha_sessions`, ...) and return their names."""
        for name in SCHEMAS:
            self[name].createOrReplaceTempView(f"{prefix}{name}")
        return [f"{prefix}{name}" for name in SCHEMAS]

    def write(self, folder: Path) -> None:
        """Write each table to `folder/NAME.parquet` (zstd) by executors; tables that are there are replaced.

        On a cluster it is a folder that all machines share. Raises StoreError if it cannot be made, or if
        rows were written to other machines' disks.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the tables cannot be written: {error.strerror or error}", path=folder
            ) from error
        for name in SCHEMAS:
            written = Observation()
            table = self[name] if name in LONG_TABLES else self[name].coalesce(1)
            target = folder.absolute() / f"{name}.parquet"
            writer = table.observe(written, count(lit(1)).alias("rows")).write.mode("overwrite")
            writer.option("compression", "zstd").parquet(target.as_uri())
            check_written(target, rows=written.get["rows"])

    def unpersist(self) -> None:
        """Let executors forget the results: an action computes them anew."""
        for frame in (self._results, self._groups, self._linked):
            frame.unpersist()


def tables_of(results: DataFrame, opened: tuple[Session, ...]) -> ReplayTables:
    """The tables of the results of sessions (`trioha_spark.results.session_results`)."""
    groups, links = group_results(results).persist(STORED), link_results(results).persist(STORED)
    found = {name: results.select(inline(name)) for name in SESSION_TABLES}
    for name in GROUP_TABLES:
        found[name] = found[name].unionByName(groups.select(inline(name)))
    return ReplayTables(
        **{**found, "causes": _causes(results, links).drop(*_PLACE)},
        links=links.select(inline("links")),
        results=results,
        groups=groups,
        linked=links,
        opened=opened,
    )


_PLACE: Final = ["session_index", "part", "pos"]
"""Columns by which rows are in the order of the sessions."""


def _causes(results: DataFrame, links: DataFrame) -> DataFrame:
    """The table `causes` with `ackMostly`, which links have, and with the places of its rows."""
    rows = results.select("session_index", "part", posexplode("causes")).select(*_PLACE, "col.*")
    mostly = links.select(inline("mostly"))
    joined = rows.join(broadcast(mostly), ["session_index", "conn"], "left")
    joined = joined.withColumn("ackMostly", when(col("cause") == CAUSES[ACK], col("ack_mostly")))
    return joined.select(*_PLACE, *SCHEMAS["causes"].names)


def _index(found: tuple[int, pa.Scalar]) -> int:
    return found[0]


def check_written(target: Path, *, rows: int) -> None:
    """Raises StoreError unless the Parquet files of the folder `target` have so many rows."""
    found = 0
    for file in target.glob("*.parquet"):
        with parquet.ParquetFile(file) as one:
            found += one.metadata.num_rows
    if found != rows:
        raise StoreError(
            f"{rows - found:,} of {rows:,} rows were written to other machines' disks",
            path=target,
            hint="with a cluster, --out names a folder that all machines share",
        )

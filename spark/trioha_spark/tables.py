"""A replay's result as Spark DataFrames and views; `trioha_analysis.arrow_tables` has their columns."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import fields, frozen
from pyspark.sql import DataFrame, SparkSession

from trioha_analysis.arrow_tables import arrow_tables
from trioha_analysis.replay_result import ReplayResult
from trioha_sessions.clocks import Link


@frozen(eq=False)
class ReplayTables:
    """The tables of a replay as DataFrames."""

    sessions: DataFrame
    connections: DataFrame
    seconds: DataFrame
    events: DataFrame
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


def tables(spark: SparkSession, result: ReplayResult, links: Sequence[Link] = ()) -> ReplayTables:
    """The result of a replay as DataFrames of `spark`."""
    found = arrow_tables(result, links)
    return ReplayTables(**{name: spark.createDataFrame(table) for name, table in found.items()})


def create_views(found: ReplayTables, *, prefix: str = "trioha_") -> list[str]:
    """Create a temporary view of each table (`trioha_sessions`, ...) and return their names."""
    names = []
    for attribute in fields(ReplayTables):
        name = f"{prefix}{attribute.name}"
        getattr(found, attribute.name).createOrReplaceTempView(name)
        names.append(name)
    return names

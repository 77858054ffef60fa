"""A replay's result as Spark DataFrames, to be queried or kept as Parquet."""

from __future__ import annotations

from typing import Final

from attrs import frozen
from pyspark.sql import DataFrame, SparkSession

from trioha_spark.document import document
from trioha_spark.replay import ReplayResult

_PERCENTILES: Final = "struct<p50: double, p99: double, max: double>"

SESSIONS_SCHEMA: Final = (
    "session string, clusterName string, brokerName string, brokerId long, role string, beganAtMs long, "
    "durationMs double, events long, dropped long, lost long, damage array<string>, puts long, "
    "putBytes long, maxOffset long, flushedOffset long, dispatchedOffset long, connections long, "
    "reconnects long, waitsOpen long"
)
CONNECTIONS_SCHEMA: Final = (
    "session string, brokerName string, brokerId long, role string, conn long, address string, "
    "openedAtMs long, closedAtMs long, state string, closeReason string, bytes long, frames long, acks long, "
    f"lagBytes {_PERCENTILES}, ackLatencyMs {_PERCENTILES}, unacknowledgedFrames long, requestOffset long, "
    "sentOffset long, ackOffset long, receivedOffset long, reportedOffset long, maxOffset long, "
    "heartbeatsSent long, heartbeatsReceived long, refused long"
)
WAITS_SCHEMA: Final = (
    f"session string, brokerName string, brokerId long, status string, count long, waitedMs {_PERCENTILES}"
)
INVARIANTS_SCHEMA: Final = (
    "session string, brokerName string, brokerId long, invariant string, severity string, sentence string, "
    "checked long, violations long"
)
VIOLATIONS_SCHEMA: Final = (
    "session string, brokerName string, brokerId long, invariant string, severity string, seq long, "
    "atMs long, conn long, sentence string"
)


@frozen(eq=False)
class ReplayTables:
    """The tables of a replay; columns as in `trioha_spark.document`."""

    sessions: DataFrame
    connections: DataFrame
    waits: DataFrame
    invariants: DataFrame
    violations: DataFrame


def tables(spark: SparkSession, result: ReplayResult) -> ReplayTables:
    """The result of a replay as DataFrames of `spark`."""
    rows = document(result)
    for row in rows["connections"]:
        # A percentile of bytes is a whole number in JSON, and Spark turns no integer into a double.
        if row["lagBytes"] is not None:
            row["lagBytes"] = {name: float(value) for name, value in row["lagBytes"].items()}
    return ReplayTables(
        sessions=spark.createDataFrame(rows["sessions"], SESSIONS_SCHEMA),
        connections=spark.createDataFrame(rows["connections"], CONNECTIONS_SCHEMA),
        waits=spark.createDataFrame(rows["waits"], WAITS_SCHEMA),
        invariants=spark.createDataFrame(rows["invariants"], INVARIANTS_SCHEMA),
        violations=spark.createDataFrame(rows["violations"], VIOLATIONS_SCHEMA),
    )

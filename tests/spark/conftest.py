"""One local Spark for all tests that need it, and replays without any."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import trioha_spark.replay as replays
from trioha.recording.time_series import TimeGrid
from trioha_spark.scan import Range, aggregate_range, join_connection, join_node
from trioha_spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        # Where Spark's Python finds the modules that a wheel puts into site-packages.
        folders = [str(Path(__file__).parents[2] / "spark"), os.environ.get("PYTHONPATH")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, folders)))
        with spark_session("local[2]") as session:
            # The first Python job opens a connection, for accumulators, that lives as long as the session.
            session.sparkContext.parallelize([0], 1).map(abs).collect()
            yield session


def run_here(
    _: SparkSession, ranges: Sequence[Range], grids: Sequence[TimeGrid], __: object
) -> replays._Joined:
    """What Spark's tasks do, in this process."""
    joined = replays._Joined({}, {})
    for work in ranges:
        node, connections = aggregate_range(work)
        index = work.session_index
        known = joined.nodes.get(index)
        joined.nodes[index] = join_node([node] if known is None else [known, node])
        for conn, part in connections.items():
            earlier = joined.connections.get((index, conn))
            joined.connections[index, conn] = join_connection(
                [part] if earlier is None else [earlier, part], grids[index]
            )
    return joined


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """Stands for Spark: replays are run in this process."""
    monkeypatch.setattr(replays, "_run", run_here)
    stand_in: Any = object()
    return stand_in

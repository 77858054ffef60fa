"""Whose Spark it is: a session, and a Java process, that others started stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trioha_spark
from tests.recording.sessions import slave_events, write_session
from tests.spark.pairs import closed_loop, write_pair
from trioha.recording.reader import open_session
from trioha_spark.replay import replay
from trioha_spark.whatif.grid import predict
from trioha_spark.whatif.model import model_of

pytestmark = pytest.mark.spark

OWN_AND_OTHERS = """
from pyspark import SparkContext
from pyspark.sql import SparkSession

from trioha_spark.session import spark_session

with spark_session("local[1]") as own:
    process = SparkContext._gateway.proc
    assert own.range(2).count() == 2
assert SparkContext._gateway is None
assert process.poll() is not None

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
user = builder.getOrCreate()
gateway = SparkContext._gateway
with spark_session("local[1]") as shared:
    assert shared.sparkContext is user.sparkContext
assert user.range(3).count() == 3

user.stop()
with spark_session("local[1]") as own:
    assert own.range(4).count() == 4
assert SparkContext._gateway is gateway
assert gateway.proc.poll() is None
assert builder.getOrCreate().range(5).count() == 5
print("as it was")
"""


def test_replay_and_what_if_leave_the_session_that_runs_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    # Spark sets some of its settings with the first query.
    assert spark.range(3).count() == 3
    context, settings = spark.sparkContext, dict(spark.sparkContext.getConf().getAll())
    path = write_session(tmp_path / "session", slave_events(), role="SLAVE", broker_id=1)
    assert replay([path]).sessions[0].node.events == len(slave_events())
    model = model_of(open_session(write_pair(tmp_path / "pair", closed_loop(1, rounds=60))))
    assert predict(model, [], repeats=1).unchanged.puts
    assert SparkSession.getActiveSession() is not None
    assert spark.sparkContext is context
    assert dict(context.getConf().getAll()) == settings
    assert spark.range(3).count() == 3


def test_only_the_java_process_that_was_started_is_ended(tmp_path: Path) -> None:
    folder = Path(trioha_spark.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", OWN_AND_OTHERS],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert (done.stdout, done.returncode) == ("as it was\n", 0), done.stderr

"""Existing Spark sessions and Java processes are used and keep running."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trioha_spark
from tests.sessions.sessions import slave_events, write_session
from trioha_spark.replay import replay

pytestmark = [pytest.mark.spark, pytest.mark.full]

HANGS_AFTER_S = 280.0
"""A program with a session of its own takes 25 s alone, and several times that beside five other workers."""

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


def test_replay_leaves_the_session_that_runs_as_it_is(spark, tmp_path):
    # Spark sets some of its settings with the first query.
    assert spark.range(3).count() == 3
    context, settings = spark.sparkContext, dict(spark.sparkContext.getConf().getAll())
    path = write_session(tmp_path / "session", slave_events(), role="SLAVE", broker_id=1)
    assert replay([path]).sessions.first()["events"] == len(slave_events())
    assert SparkSession.getActiveSession() is not None
    assert spark.sparkContext is context
    assert dict(context.getConf().getAll()) == settings
    assert spark.range(3).count() == 3


@pytest.mark.nightly
def test_only_our_own_java_process_is_ended(tmp_path):
    folder = Path(trioha_spark.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", OWN_AND_OTHERS],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    assert (done.stdout, done.returncode) == ("as it was\n", 0), done.stderr


SCRIPT = """
import sys

from pyspark.sql import SparkSession

from trioha_spark.replay import replay
from trioha_spark.sources import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert replay([sys.argv[1]]).sessions.first()["events"] == 16
assert spark.sparkContext.pythonExec == "python3"
register(spark)
print(spark.read.format("trioha-session").load(sys.argv[1]).count())
"""


@pytest.mark.nightly
def test_script_finds_its_sources_with_another_python_on_the_path(tmp_path):
    """As in `.venv/bin/python script.py`, with no environment activated."""
    write_session(tmp_path / "sessions" / "a", slave_events(), role="SLAVE", broker_id=1)
    java = shutil.which("java")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "java").symlink_to(java)
    (programs / "python3").write_text("#!/bin/sh\necho this is not the Python of the script >&2; exit 1\n")
    (programs / "python3").chmod(0o755)
    hidden = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "VIRTUAL_ENV"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "sessions"],
        check=False,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name not in hidden},
            "PATH": f"{programs}:/usr/bin:/bin",
            "PYTHONPATH": str(Path(trioha_spark.__file__).parents[1]),
        },
    )
    assert (done.stdout.split()[-1:], done.returncode) == (["16"], 0), done.stderr

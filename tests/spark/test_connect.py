"""Replay and sources on Spark Connect: the server reads, a client without Java gets the results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trioha_spark
from tests.analysis.logs import expected_rows
from tests.analysis.replays import arrow_tables, document, replay_here, write_recordings
from tests.spark.cluster import connect_server
from tests.store.support import VECTORS

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

SPARK_FOLDER = Path(trioha_spark.__file__).parents[1]
STORE = "store-5.3.3"

CLIENT = """
import json
import sys

from pyspark.sql import SparkSession

from trioha_spark.replay import replay
from trioha_spark.sources import register
from trioha_spark.transforms import waits

remote, store, sessions = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
told = []
watch = lambda done, tasks: told.append((done, tasks))
tables = replay([sessions], spark=spark, range_records=15, watch=watch)
register(spark)
events = spark.read.format("trioha-session").load(sessions)
messages = spark.read.format("rocketmq-commitlog").load(store)
found = {
    "tables": {name: table.to_pylist() for name, table in tables.collect().items()},
    "nodes": [report.node.events for report in tables.reports()],
    "tasks": told[-1],
    "events": events.count(),
    "waits": events.transform(waits).count(),
    "messages": messages.count(),
    "seconds": tables.seconds.count(),
}
spark.stop()
print(json.dumps(found))
"""


@pytest.mark.timeout(900)
def test_replay_and_sources_run_on_spark_connect(tmp_path, monkeypatch):
    sessions = write_recordings(tmp_path / "recordings")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SPARK_FOLDER.parent), str(SPARK_FOLDER))))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with connect_server(tmp_path / "server") as remote:
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, remote, VECTORS / STORE / "store", sessions],
            check=False,
            capture_output=True,
            text=True,
            timeout=800,
            cwd=tmp_path,
            # No Java is found.
            env={**os.environ, "JAVA_HOME": "", "PATH": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = replay_here(sessions)
    assert found == {
        "tables": json.loads(json.dumps(document(expected))),
        "nodes": [one.node.events for one in expected.sessions],
        "tasks": [4, 4],
        "events": sum(one.node.events for one in expected.sessions),
        "waits": 2,
        "messages": len(expected_rows(STORE)),
        "seconds": arrow_tables(expected)["seconds"].num_rows,
    }

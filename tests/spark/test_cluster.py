"""A replay on a Spark cluster of two worker processes has the result of one on local[2]."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trioha_spark
from tests.analysis.archives import write_archive
from tests.analysis.replays import rows
from tests.sessions.sessions import MasterModel, slave_events, write_session
from tests.spark.cluster import SPARK_HOME, spark_cluster
from tests.store.support import VECTORS
from trioha.recording.reader import open_session
from trioha_analysis.packing import pack_segment, sealed_segments
from trioha_spark.replay import replay

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    write_session(folder / "a", MasterModel(11).run(3000), segment_records=500)
    packed = open_session(write_session(folder / "b", MasterModel(12).run(3000), segment_records=500))
    for segment in sealed_segments(packed):
        pack_segment(packed, segment)
    write_session(folder / "c", slave_events(), role="SLAVE", broker_id=1)
    return folder


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(_paths()))
        with spark_cluster(tmp_path_factory.mktemp("cluster")) as master:
            yield master


def _paths():
    """Where Python finds the modules that a wheel puts into site-packages."""
    root = Path(trioha_spark.__file__).parents[2]
    return [str(root), str(root / "spark")]


def _run(*command):
    done = subprocess.run(
        [*map(str, command)],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        # Without them spark-submit takes the first python3 of the PATH.
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(_paths()),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        },
    )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout


@pytest.mark.timeout(600)
def test_cluster_has_the_result_of_local_spark(spark, master, recordings):
    expected = rows(replay([recordings], spark=spark).collect())
    found = json.loads(
        _run(sys.executable, "-m", "trioha", "replay", recordings, "--json", "--master", master)
    )
    assert found == json.loads(json.dumps(expected))
    assert [row["session"] for row in found["sessions"]] == ["a", "b", "c"]


@pytest.mark.timeout(600)
def test_spark_submit_runs_a_replay_on_its_own_master(spark, recordings, tmp_path):
    program = tmp_path / "run_trioha.py"
    program.write_text("from trioha.cli import main\n\nraise SystemExit(main())\n")
    # The address that it would use by default is closed.
    arguments = ["replay", recordings / "b", "--json", "--master", "spark://127.0.0.1:1"]
    found = json.loads(_run(SPARK_HOME / "bin" / "spark-submit", "--master", "local[1]", program, *arguments))
    assert found == json.loads(json.dumps(rows(replay([recordings / "b"], spark=spark).collect())))


@pytest.mark.timeout(600)
def test_cluster_and_spark_submit_read_an_archive_in_place(spark, master, recordings, tmp_path, s3_bucket):
    # Only the drivers' environment leads to the bucket: workers were started before it was there.
    sessions = [recordings / name for name in ("a", "c")]
    objects = write_archive(s3_bucket.url, store=VECTORS / "store-5.3.3" / "store", sessions=sessions)
    replayed = _run(sys.executable, "-m", "trioha", "replay", s3_bucket.url, "--json", "--master", master)
    expected = rows(replay(sessions, spark=spark).collect())
    assert json.loads(replayed) == json.loads(json.dumps(expected))
    program = tmp_path / "count_messages.py"
    program.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "from trioha_spark.sources.commit_log import CommitLogSource\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "spark.dataSource.register(CommitLogSource)\n"
        "print('messages:', spark.read.format('rocketmq-commitlog').load(sys.argv[1]).count())\n"
    )
    submitted = _run(SPARK_HOME / "bin" / "spark-submit", "--master", master, program, s3_bucket.url)
    assert f"messages: {sum(one.records for one in objects)}\n" in submitted

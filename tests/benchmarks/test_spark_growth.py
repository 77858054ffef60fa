"""The growth benchmark of replay: what it plans, whose memory a process is, and its plots."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.benchmarks import plot_spark_growth
from tests.benchmarks.bench_spark_growth import (
    CLUSTER,
    SEGMENT_RECORDS,
    SYSTEMS,
    Usage,
    _owner,
    options_of,
    plan,
)
from tests.benchmarks.plot_spark_growth import PLOTS, draw


def test_many_segments_are_planned_and_tasks_stay_small(tmp_path):
    figures = plan(tmp_path, segments=40)
    assert figures["segments"] == 41
    assert figures["events"] == 40 * SEGMENT_RECORDS
    # Nine ranges of a segment at most, eight of them in a task; five partitions.
    assert figures["replayTasks"] == 45
    assert figures["sourceTasks"] == 200
    assert figures["replayTaskBytes"] < 2000
    assert figures["sourceTaskBytes"] < 2000
    assert list(tmp_path.iterdir()) == []


def test_processes_are_the_drivers_or_the_executors():
    assert _owner(b"python\0-m\0trioha\0replay\0session", "") == "driver"
    java = b"java\0org.apache.spark.deploy.SparkSubmit\0spark.python.daemon.module=trioha_spark.daemon"
    assert _owner(java, "driver") == "driver"
    assert _owner(b"python\0-m\0trioha_spark.daemon\0pyspark.worker", "driver") == "executors"
    assert _owner(b"java\0org.apache.spark.executor.CoarseGrainedExecutorBackend", "") == "executors"
    assert _owner(b"java\0org.apache.spark.deploy.worker.Worker", "") == ""


def test_memory_is_that_of_running_processes():
    wait = "import sys; data = bytearray(50_000_000); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", wait, "trioha", "replay"]
    usage = Usage()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        usage.sample()
        process.stdin.close()
    assert usage.driver_mb > 50
    assert usage.executors_mb == 0


def test_cpu_time_counts_workers_that_outlive_their_parent():
    """As Spark's Python workers do, whose time their parent never gets."""
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); time.sleep(60)"
    parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
    usage = Usage()
    with subprocess.Popen([sys.executable, "-c", parent, burn], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        usage.sample()
        process.kill()
        process.wait()
        usage.sample()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
    assert usage.cpu_s >= 0.3


def test_each_figure_has_a_plot_of_each_system(tmp_path, monkeypatch):
    points = [
        {"system": system, "millions": millions, **{name: [1.0 * millions, 2.0 * millions] for name in PLOTS}}
        for system in SYSTEMS
        for millions in (1.0, 10.0)
    ]
    drawn = draw({"points": points})
    assert list(drawn) == [f"spark-growth-{name}.svg" for name in PLOTS]
    assert all(CLUSTER in svg for svg in drawn.values())
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"points": points}))
    monkeypatch.setattr(sys, "argv", ["plot", str(path), "--folder", str(tmp_path / "plots")])
    plot_spark_growth.main()
    assert {found.name: found.read_text() for found in Path(tmp_path / "plots").iterdir()} == drawn


def test_sizes_are_those_of_the_plots_by_default():
    assert tuple(options_of([]).events) == (1.0, 10.0, 100.0, 300.0)

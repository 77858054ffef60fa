"""The short benchmark of CI runs: what it compares, what it names, and that it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.bench_report import LANDED, compare

SCRIPT = Path(__file__).with_name("bench_report.py")
WORKS = ["dispatch", "walk", "walk with CRC", "put, 256 tasks", "HA frame", "remoting request", "start"]


def figure(value, loops):
    return {"unit": "us", "value": value, "loops": loops}


def test_the_speed_of_the_machine_does_not_count():
    # A machine of half the speed: twice the time, for as many calibration loops.
    (slower,) = compare({"put": figure(20.0, 100.0)}, {"put": figure(10.0, 100.0)})
    assert slower.expected == 20.0
    assert slower.change == 1
    assert not slower.is_worse


def test_more_than_20_percent_is_worse():
    landed = {"put": figure(10.0, 100.0)}
    for loops, is_worse in ((119.0, False), (121.0, True), (50.0, False)):
        (compared,) = compare({"put": figure(loops / 10, loops)}, landed)
        assert compared.expected == pytest.approx(10.0)
        assert compared.is_worse is is_worse


def test_a_figure_that_was_not_landed_is_not_compared():
    (compared,) = compare({"new": figure(1.0, 1.0)}, {})
    assert compared.change is None
    assert not compared.is_worse


def test_each_work_was_landed():
    for kernel, landed in json.loads(LANDED.read_text()).items():
        assert kernel in {"pure", "compiled"}
        assert list(landed["works"]) == WORKS
        assert all(work["value"] > 0 and work["loops"] > 0 for work in landed["works"].values())


@pytest.mark.process
def test_each_work_runs():
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--rounds", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout)["works"]
    assert list(figures) == WORKS
    # The server's and the node's CPU time is counted in 10 ms.
    assert all(figures[name]["value"] > 0 for name in WORKS if name != "remoting request")

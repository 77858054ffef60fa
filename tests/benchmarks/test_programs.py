"""The programs that no other stage of a nightly run starts; `make bench` is one of its stages."""

import subprocess
import sys

import pytest

from tests.benchmarks.systems import ROOT

PROGRAMS = [
    ["tests.benchmarks", "--quick", "--against", ".", "--works", "raw-16"],
    ["tests.benchmarks.bench_what_if", "--only", "writers 24", "--recordings", "1"],
]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", PROGRAMS, ids=lambda command: command[0])
def test_each_program_runs(command):
    ran = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout

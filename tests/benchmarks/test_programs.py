"""Each benchmark runs, with tiny sizes."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = [
    ["bench_report.py", "--quick", "--rounds", "1"],
    ["bench_sends.py", "--rounds", "1", "--seconds", "0.2", "--with", "trioha.recordDir={}"],
    ["bench_what_if.py", "--only", "writers 24", "--recordings", "1"],
    ["bench_against_rocketmq.py", "--quick", "--megabytes", "20", "--start-megabytes", "20"],
    ["bench_clients.py", "--quick", "--seconds", "1", "--megabytes", "5"],
    ["bench_failover.py", "--rounds", "1"],
]


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", PROGRAMS, ids=lambda command: command[0])
def test_each_program_runs(command):
    program = Path(__file__).with_name(command[0])
    ran = subprocess.run(
        [sys.executable, program, *command[1:]], capture_output=True, text=True, timeout=800, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout

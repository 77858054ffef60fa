"""Seeded faults on clusters of real nodes, as many as a test run can bear."""

import signal
import subprocess
import sys
from functools import partial

import pytest

from tests.faults.__main__ import run_seeds, wants_real
from tests.faults.controlled.controllers import SCRIPTED, VERSION
from tests.faults.controlled.plan import is_controlled
from tests.faults.nodes import processes_naming
from tests.levels import by_level
from tests.waiting import wait_until

pytestmark = pytest.mark.process

SEEDS = by_level((11, 12, 22), (9, 10, 13, 14, 15, 16), (9, 10, *range(13, 22), 23))
"""`python -m tests.faults` runs any number of others. Those of `make test` have a controller of our own."""
CONTROLLER = by_level(SCRIPTED, None, None)


@pytest.mark.sized
@pytest.mark.timeout(600)
def test_no_promise_is_broken_whatever_fault_comes(tmp_path):
    reports = list(run_seeds(SEEDS, jobs=2, root=tmp_path, keep=False, controller=CONTROLLER))
    assert {report.seed for report in reports} == set(SEEDS)
    broken = [
        f"seed {report.seed}, {report.folder}: {report.violations}" for report in reports if not report.ok
    ]
    assert not broken, "\n".join(broken)
    # The faults were real, and so was the load.
    assert sum(report.kills for report in reports) >= len(SEEDS) // 2
    assert all(report.promises for report in reports)
    groups = [report for report in reports if is_controlled(report.seed)]
    assert {report.controller for report in groups} == {VERSION if wants_real(CONTROLLER) else SCRIPTED}
    assert all(report.elections for report in groups)
    assert sum(report.offset_checks for report in reports)
    assert any(report.archive for report in reports)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process_behind(tmp_path, number):
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.faults", "--count", "4", "--jobs", "2"),
            *("--controller", SCRIPTED, "--folder", str(tmp_path)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has SIGINT ignored, which children inherit.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as command:
        try:
            # Two runs, and two nodes of each at least.
            wait_until(lambda: command.poll() is not None or len(processes_naming(tmp_path)) >= 6)
            assert command.poll() is None
            command.send_signal(number)
            _, said = command.communicate(timeout=60)
        finally:
            command.kill()
    assert command.returncode == 128 + number
    assert "Traceback" not in said
    assert processes_naming(tmp_path) == []

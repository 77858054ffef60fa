"""What the tests of both simulations assert of their seeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.simulation.planting import Defect
from tests.simulation.runner import Outcome, SimulationError

SEEDS_MAX = 100
"""So many seeds find each planted defect; nearly all are found by the first."""
ROOT = Path(__file__).parent.parent.parent
_ROTTEN = re.compile(r"\b(Attribute|Import|Name|Type)Error\b")
"""What a planted defect causes that does not fit the code any more, in place of the bug."""
Simulate = Callable[[int], Outcome]


def assert_all_hold(simulate: Simulate, seeds: Iterable[int]) -> list[Outcome]:
    """Every seed holds; the message has all that do not."""
    outcomes, failures = [], []
    for seed in seeds:
        try:
            outcomes.append(simulate(seed))
        except SimulationError as error:
            failures.append(str(error))
    assert not failures, "\n\n".join(failures)
    return outcomes


def assert_replayed(simulate: Simulate, command: str, seeds: range) -> None:
    """Seeds replay exactly in another process, whatever ran in this one before."""
    here = [f"trace {simulate(seed).digest[:12]}" for seed in seeds]
    there = subprocess.run(
        [sys.executable, "-m", command, "--seed", str(seeds[0]), "--count", str(len(seeds))],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    ).stdout.splitlines()
    assert [line.rpartition(", ")[2] for line in there[:-1]] == here
    assert there[-1].startswith(f"{len(seeds)} of {len(seeds)} seeds passed: ")


def assert_found(defect: Defect, simulate: Simulate) -> None:
    """One of the seeds from the defect's own on finds it, by an invariant."""
    with defect.planted():
        for seed in range(defect.seed, defect.seed + SEEDS_MAX):
            try:
                simulate(seed)
            except SimulationError as error:
                found = error
                break
        else:
            raise AssertionError(f"{defect.what}: not found by {SEEDS_MAX} seeds from {defect.seed} on")
    assert "see it again: python -m tests.simulation" in str(found)
    assert not _ROTTEN.search("\n".join(found.violations)), found

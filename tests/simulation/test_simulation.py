"""Seeds that must hold, seeds that must replay, and bugs that must be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import plan_of
from tests.simulation.planted import PLANTED, planted
from tests.simulation.world import SimulationError, simulate

SEEDS = 200
SEEDS_PER_TEST = 10
SEEDS_TO_FIND_A_BUG = 100
"""So many seeds find each planted bug; most need one."""
FIRST_SEEDS = {"every slave that receives the log is in sync": 20, "a slave does not compare its tail": 86}
"""Where to begin, for bugs that need a rare course of events."""
REPLAYED_SEEDS = (1, 13, 25, 76)
MORE_SEEDS = (261, 383)
"""Beyond the first ones: power losses that keep some sectors of a record and lose others."""
PAST_FINDINGS = (261, 919, 382, 404)
"""Seeds beyond the others that found something once: a last record longer than the tail check (twice), and a
verdict that stayed while the log grew."""
ROOT = Path(__file__).parent.parent.parent


def simulate_all(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_holds_under_faults(first_seed: int) -> None:
    failures = []
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            simulate(seed)
        except SimulationError as error:
            failures.append(str(error))
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("seed", PAST_FINDINGS)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_every_promise_holds_where_some_sectors_are_lost(seed: int) -> None:
    simulate(seed)


@pytest.mark.parametrize("seed", REPLAYED_SEEDS)
def test_a_seed_replays_exactly(seed: int) -> None:
    first, again = simulate(seed), simulate(seed)
    assert first == again
    assert first.events > 100


def test_a_seed_replays_exactly_in_another_process() -> None:
    here = [f"trace {simulate(seed).digest[:12]}" for seed in range(REPLAYED_SEEDS[0], REPLAYED_SEEDS[0] + 3)]
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(REPLAYED_SEEDS[0]), "--count", "3"]
    there = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert [line.rpartition(", ")[2] for line in there] == here


def test_the_seeds_cover_what_they_should() -> None:
    plans = [plan_of(seed) for seed in range(SEEDS)]
    faults = {fault for plan in plans for fault in plan.faults}
    slaves = [slave for plan in plans for slave in plan.slaves]
    assert len(faults) == 10
    assert {plan.group_commit.copies_needed for plan in plans} == {0, 1, 2}
    assert {len(plan.slaves) for plan in plans} == {1, 2, 3}
    assert {slave.is_observer for slave in slaves} == {True, False}
    assert len({slave.acks for slave in slaves}) == len({slave.gap_policy for slave in slaves}) == 2
    assert {plan.group_commit.sync_flush for plan in plans} == {True, False}


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_bug_is_found(what: str) -> None:
    first_seed = FIRST_SEEDS.get(what, 0)
    with (
        planted(what),
        pytest.raises(SimulationError, match=r"see it again: python -m tests.simulation --seed"),
    ):
        simulate_all(range(first_seed, first_seed + SEEDS_TO_FIND_A_BUG))

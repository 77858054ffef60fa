"""Seeds of controller mode that must hold, seeds that must replay, and bugs that must be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from unittest.mock import patch

import pytest
from attrs import evolve

from tests.simulation.failover.plan import FailoverPlan, Fault, cutting_plan_of, plan_of, two_leaders_plan_of
from tests.simulation.failover.planted import PLANTED, planted
from tests.simulation.failover.world import World, simulate
from tests.simulation.world import SimulationError

SEEDS = 200
SEEDS_PER_TEST = 10
SEEDS_TO_FIND_A_BUG = 120
"""Each planted bug is found by one of so many seeds; most of them by one of the first ten."""


PLANS: dict[str, Callable[[int], FailoverPlan]] = {
    "a cut is not on disk when new bytes come": cutting_plan_of,
    "a start does not complete a cut": cutting_plan_of,
    "a stale epoch is accepted": two_leaders_plan_of,
}
"""Worlds in which to look for bugs that show after one fault only; `plan_of` for the others."""
NEEDS: dict[str, Callable[[FailoverPlan], bool]] = {
    "an asyncLearner is proposed": lambda plan: plan.learner is not None,
    "the confirm offset is ahead of the master's disk": lambda plan: plan.all_ack and plan.is_durable,
    "a master that lost power goes on in its epoch": lambda plan: Fault.POWER_MASTER in plan.faults,
    "a put is PUT_OK with fewer copies than inSyncReplicas": lambda plan: plan.in_sync_replicas == 2,
    "the copy of an asyncLearner counts for inSyncReplicas": lambda plan: (
        plan.in_sync_replicas == 2 and plan.learner is not None
    ),
}
"""Which of the seeds can find a bug that shows after some faults only."""
REPLAYED_SEEDS = (1, 4, 6)
ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_holds_through_failovers(first_seed: int) -> None:
    failures = []
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            simulate(seed)
        except SimulationError as error:
            failures.append(str(error))
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("seed", REPLAYED_SEEDS)
def test_a_seed_replays_exactly(seed: int) -> None:
    first, again = simulate(seed), simulate(seed)
    assert first == again
    assert first.events > 100


def test_a_seed_replays_exactly_in_another_process() -> None:
    here = [f"trace {simulate(seed).digest[:12]}" for seed in range(REPLAYED_SEEDS[0], REPLAYED_SEEDS[0] + 3)]
    command = [sys.executable, "-m", "tests.simulation.failover", "--seed", str(REPLAYED_SEEDS[0])]
    there = subprocess.run(
        [*command, "--count", "3"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.splitlines()
    assert [line.rpartition(", ")[2] for line in there[:3]] == here
    assert there[3].startswith("3 of 3 seeds passed")


def test_the_seeds_cover_what_they_should() -> None:
    plans = [plan_of(seed) for seed in range(SEEDS)]
    assert {fault for plan in plans for fault in plan.faults} == set(Fault)
    for values in (
        {plan.brokers == 3 for plan in plans},
        {plan.learner is None for plan in plans},
        {plan.all_ack for plan in plans},
        {plan.is_durable for plan in plans},
        {plan.reads_are_local for plan in plans},
        {plan.none_is_an_epoch for plan in plans},
        {plan.controllers == 3 for plan in plans},
        {plan.min_in_sync_replicas == 2 for plan in plans},
        {plan.gap_policy == "fail" for plan in plans},
    ):
        assert values == {True, False}


def seeds_for(what: str) -> Iterator[int]:
    """The first seeds that can find a planted bug."""
    needs = NEEDS.get(what, lambda _: True)
    return islice((seed for seed in count() if needs(plan_of(seed))), SEEDS_TO_FIND_A_BUG)


def simulate_all(seeds: Iterable[int], make_plan: Callable[[int], FailoverPlan]) -> None:
    for seed in seeds:
        simulate(seed, plan=make_plan(seed))


def test_every_promise_holds_where_all_cuts_are_interrupted() -> None:
    outcomes = [simulate(seed, plan=cutting_plan_of(seed)) for seed in range(SEEDS_PER_TEST)]
    assert sum(outcome.cuts for outcome in outcomes) > 5


def test_a_run_that_fails_while_a_process_hangs_ends() -> None:
    real = World._break

    def break_and_fail(world: World, fault: Fault) -> None:
        real(world, fault)
        if any(broker.process.is_hung for broker in world.brokers):
            world.fail("found while a broker hangs")

    with (
        patch.object(World, "_break", break_and_fail),
        pytest.raises(SimulationError, match="found while a broker hangs"),
    ):
        simulate(1, plan=evolve(plan_of(1), faults=(Fault.HANG,)))


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_bug_is_found(what: str) -> None:
    with (
        planted(what),
        pytest.raises(
            SimulationError, match=r"see it again: python -m tests.simulation.failover --seed"
        ) as found,
    ):
        simulate_all(seeds_for(what), PLANS.get(what, plan_of))
    assert "exception:" not in str(found.value), "an invariant finds it"

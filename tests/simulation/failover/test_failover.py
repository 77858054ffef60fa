"""Seeds of controller mode that must hold, seeds that must replay, and planted defects that must be found."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from attrs import evolve

from tests.levels import by_level
from tests.simulation.assertions import assert_all_hold, assert_found, assert_replayed
from tests.simulation.failover.plan import PLANS, Fault, plan_of
from tests.simulation.failover.planted import PLANTED
from tests.simulation.failover.world import World, simulate
from tests.simulation.planting import Defect
from tests.simulation.runner import Outcome, SimulationError

SEEDS = by_level(
    {"": 6, "cuts": 2, "two-leaders": 2},
    {"": 30, "cuts": 10, "two-leaders": 10},
    {"": 400, "cuts": 100, "two-leaders": 100},
)
"""How many seeds, by kind of plan."""
SEEDS_PER_TEST = 10


def simulate_plan(option: str, seed: int) -> Outcome:
    make_plan, _ = PLANS[option]
    return simulate(seed, plan=make_plan(seed))


@pytest.mark.sized
@pytest.mark.parametrize(
    ("option", "seeds"),
    [
        pytest.param(option, range(first, min(first + SEEDS_PER_TEST, count)), id=f"{option}-{first}")
        for option, count in SEEDS.items()
        for first in range(0, count, SEEDS_PER_TEST)
    ],
)
def test_every_promise_holds_through_failovers(option: str, seeds: range) -> None:
    outcomes = assert_all_hold(lambda seed: simulate_plan(option, seed), seeds)
    assert option != "cuts" or sum(outcome.counts["cuts"] for outcome in outcomes)


def test_seeds_replay_exactly_in_another_process() -> None:
    assert_replayed(simulate, World.COMMAND, range(1, 4))


def test_the_seeds_cover_what_they_should() -> None:
    plans = [plan_of(seed) for seed in range(200)]
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


@pytest.mark.parametrize("defect", PLANTED, ids=[defect.what for defect in PLANTED])
def test_a_planted_defect_is_found(defect: Defect) -> None:
    assert_found(defect, lambda seed: simulate_plan(defect.option, seed))

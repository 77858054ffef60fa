"""Seeds that must hold, seeds that must replay, and planted defects that must be found."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.levels import by_level
from tests.simulation.assertions import assert_all_hold, assert_found, assert_replayed
from tests.simulation.plan import plan_of
from tests.simulation.planted import PLANTED
from tests.simulation.planting import Defect
from tests.simulation.runner import Outcome, SimulationError
from tests.simulation.world import World, simulate

SEEDS = by_level(20, 60, 400)
SEEDS_PER_TEST = 20
PAST_FINDINGS = (261, 319, 382, 383, 404, 919)
"""Seeds that found something once: a last record longer than the tail check, a verdict that stayed while the
log grew, a send that ended in the middle and was begun again, power losses that keep some sectors of a record
and lose others."""


@pytest.mark.sized
@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_promise_holds_under_faults(first_seed: int) -> None:
    assert_all_hold(simulate, range(first_seed, first_seed + SEEDS_PER_TEST))


@pytest.mark.full
def test_what_was_found_once_stays_mended() -> None:
    assert_all_hold(simulate, PAST_FINDINGS)


def test_seeds_replay_exactly_in_another_process() -> None:
    assert_replayed(simulate, World.COMMAND, range(1, 4))


def _fails_at_3(seed: int, *, plan: object) -> Outcome:
    if seed == 3:
        raise SimulationError(f"seed {seed}: {plan} does not hold\nlast of 9 events:", ["it does not hold"])
    return Outcome(seed, digest=f"{seed:064}", events=9, virtual_s=1.0, counts={"PUT_OK": seed})


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_failing_seed_is_named_in_its_place_however_many_run_at_a_time(jobs: str) -> None:
    program = (
        f"from {__name__} import _fails_at_3\n"
        "from tests.simulation.runner import run_command\n"
        "raise SystemExit(run_command('simulation', plans={'': (str, '')}, simulate=_fails_at_3))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--seed", "1", "--count", "5", "--jobs", jobs],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    *lines, summary = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "seed 1: ok", "seed 2: ok", "seed 3: 3 does not hold", "seed 4: ok", "seed 5: ok",
    ]  # fmt: skip
    assert summary.startswith("4 of 5 seeds passed: 12 PUT_OK")


def test_the_seeds_cover_what_they_should() -> None:
    plans = [plan_of(seed) for seed in range(200)]
    slaves = [slave for plan in plans for slave in plan.slaves]
    assert len({fault for plan in plans for fault in plan.faults}) == 10
    assert {plan.group_commit.copies_needed for plan in plans} == {0, 1, 2}
    assert {len(plan.slaves) for plan in plans} == {1, 2, 3}
    assert {slave.is_observer for slave in slaves} == {True, False}
    assert len({slave.acks for slave in slaves}) == len({slave.gap_policy for slave in slaves}) == 2
    assert {plan.group_commit.sync_flush for plan in plans} == {True, False}


@pytest.mark.parametrize("defect", PLANTED, ids=[defect.what for defect in PLANTED])
def test_a_planted_defect_is_found(defect: Defect) -> None:
    assert_found(defect, simulate)

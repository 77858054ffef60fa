"""Plans with a controller: a third of all, drawn from the seed alone, and of every kind."""

import inspect
import json

from tests.faults.__main__ import main
from tests.faults.controlled import faults
from tests.faults.controlled.plan import is_controlled, make_group_plan
from tests.faults.test_faults import SEEDS

KINDS = {
    kind.__name__
    for _, kind in inspect.getmembers(faults, inspect.isclass)
    if issubclass(kind, faults.GroupFault) and not inspect.isabstract(kind)
}
CONTROLLED = [seed for seed in range(600) if is_controlled(seed)]


def kinds_of(seeds):
    return {type(planned.fault).__name__ for seed in seeds for planned in make_group_plan(seed).faults}


def test_a_third_of_all_plans_has_a_controller():
    assert len(CONTROLLED) == 200


def test_the_same_seed_is_the_same_plan_and_another_is_another():
    assert make_group_plan(5) == make_group_plan(5)
    plans = {json.dumps(make_group_plan(seed).describe(), default=str) for seed in CONTROLLED}
    assert len(plans) == len(CONTROLLED)


def test_every_kind_of_fault_and_of_group_is_drawn():
    assert kinds_of(CONTROLLED) == KINDS
    plans = [make_group_plan(seed) for seed in CONTROLLED]
    assert {plan.setup.members for plan in plans} == {2, 3}
    assert {plan.setup.finds_master_by for plan in plans} == {"controller", "name server"}
    assert {plan.setup.min_in_sync_replicas for plan in plans} == {1, 2}
    assert {None if plan.archive is None else plan.archive.target for plan in plans} == {None, "file", "s3"}


def test_the_seeds_that_every_test_run_takes_meet_half_of_the_kinds_and_thirty_faults():
    seeds = [seed for seed in SEEDS if is_controlled(seed)]
    assert len(kinds_of(seeds)) >= len(KINDS) // 2
    assert sum(len(make_group_plan(seed).faults) for seed in seeds) >= 30


def test_plans_can_be_printed(capsys):
    assert main(["--plan", "--count", "1", "--seed", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["setup"]["members"] in {2, 3}


def test_a_controller_of_another_name_is_refused(capsys):
    assert main(["--controller", "4.9.7"]) == 2
    assert "--controller is scripted or 5.5.0" in capsys.readouterr().err

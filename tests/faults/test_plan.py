"""Plans, with a controller and without: drawn from the seed alone, possible, and of every kind."""

import inspect
import json
from collections import Counter

import pytest

from tests.faults import faults
from tests.faults.__main__ import main
from tests.faults.controlled import faults as group_faults
from tests.faults.controlled.plan import is_controlled, make_group_plan
from tests.faults.plan import make_plan
from tests.faults.runner import describe_plan

SEEDS = range(300)
GROUP_SEEDS = [seed for seed in range(600) if is_controlled(seed)]


def kinds_in(module, base):
    """Classes of faults that can be drawn."""
    return {
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, base) and not inspect.isabstract(kind)
    }


def test_the_same_seed_is_the_same_plan_and_another_is_another():
    assert describe_plan(7) == describe_plan(7)
    assert len({json.dumps(describe_plan(seed), default=str) for seed in range(100)}) == 100
    assert sum(map(is_controlled, range(600))) == 200


def test_nothing_is_broken_twice_at_a_time():
    for plan in map(make_plan, SEEDS):
        assert 1 <= len(plan.faults) <= 14
        busy_until_s = {}
        for planned in plan.faults:
            for what in planned.fault.occupies:
                assert planned.at_s > busy_until_s.get(what, 0.0)
                busy_until_s[what] = planned.until_s


def test_every_kind_of_fault_and_of_cluster_is_drawn():
    plans = [make_plan(seed) for seed in SEEDS]
    assert {type(one.fault) for plan in plans for one in plan.faults} == kinds_in(faults, faults.Fault)
    setups = [plan.setup for plan in plans]
    assert {(setup.role, setup.slaves, setup.copies_needed, setup.is_chain) for setup in setups} == {
        ("SYNC_MASTER", 1, 1, False),
        ("SYNC_MASTER", 2, 1, False),
        ("SYNC_MASTER", 2, 2, False),
        ("ASYNC_MASTER", 1, 0, False),
        ("SYNC_MASTER", 2, 1, True),
        ("ASYNC_MASTER", 2, 0, True),
    }
    assert {setup.descriptors_max for setup in setups} == {None, 128, 300}
    assert len({(setup.flush_disk_type, setup.slave_flush_disk_type) for setup in setups}) == 4
    archives = Counter(plan.archive.target for plan in plans if plan.archive is not None)
    assert archives.keys() == {"file", "s3"}
    assert 100 < archives.total() < 200
    assert any(plan.archive and plan.loses_log for plan in plans)


def test_every_kind_of_fault_and_of_group_is_drawn():
    plans = [make_group_plan(seed) for seed in GROUP_SEEDS]
    kinds = kinds_in(group_faults, group_faults.GroupFault)
    assert {type(one.fault) for plan in plans for one in plan.faults} == kinds
    assert {plan.setup.members for plan in plans} == {2, 3}
    assert {plan.setup.finds_master_by for plan in plans} == {"controller", "name server"}
    assert {plan.setup.min_in_sync_replicas for plan in plans} == {1, 2}
    assert {None if plan.archive is None else plan.archive.target for plan in plans} == {None, "file", "s3"}


def test_a_log_is_lost_only_where_every_slave_may_begin_anew_and_no_put_waits_for_one():
    plans = [plan for plan in map(make_plan, SEEDS) if plan.loses_log]
    assert plans
    for plan in plans:
        setup = plan.setup
        assert (setup.gap_policy, setup.start_from, setup.copies_needed) == ("resync", "earliest", 0)
        assert setup.tail_check_bytes > 0
        assert not plan.has_impostors
        # In a chain the second slave follows the first.
        assert [setup.followers(name) for name in setup.nodes] == [[0], [1], []]


def test_plans_can_be_printed(capsys):
    assert main(["--plan", "--count", "2", "--seed", "4"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [plan["seed"] for plan in printed] == [4, 5]
    assert "slaves" in printed[0]["setup"]
    assert "members" in printed[1]["setup"]
    assert printed[0]["faults"][0].keys() >= {"at_s", "fault", "duration_s"}


@pytest.mark.parametrize(
    "arguments",
    [["--count", "0"], ["--jobs", "0"], ["--seed", "-1"], ["--count", "many"], ["--controller", "4.9.7"]],
)
def test_arguments_that_cannot_be_used_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1].startswith("python -m tests.faults: error: ")

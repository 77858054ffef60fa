"""Plans: drawn from the seed alone, possible to carry out, and of every kind."""

import inspect
import json

import pytest

from tests.faults import faults
from tests.faults.__main__ import main
from tests.faults.plan import make_plan
from tests.faults.test_faults import SEEDS

KINDS = {
    kind.__name__
    for _, kind in inspect.getmembers(faults, inspect.isclass)
    if issubclass(kind, faults.Fault) and not inspect.isabstract(kind)
}


def kinds_of(seeds):
    return {type(planned.fault).__name__ for seed in seeds for planned in make_plan(seed).faults}


def test_the_same_seed_is_the_same_plan_and_another_is_another():
    assert make_plan(7) == make_plan(7)
    assert make_plan(7).describe() == make_plan(7).describe()
    assert len({json.dumps(make_plan(seed).describe(), default=str) for seed in range(100)}) == 100


def test_nothing_is_broken_twice_at_a_time():
    for seed in range(300):
        plan = make_plan(seed)
        assert 1 <= len(plan.faults) <= 12
        busy_until_s = {}
        for planned in plan.faults:
            for what in planned.fault.occupies:
                assert planned.at_s > busy_until_s.get(what, 0.0)
                busy_until_s[what] = planned.until_s


def test_every_kind_of_fault_and_of_cluster_is_drawn():
    assert kinds_of(range(200)) == KINDS
    setups = [make_plan(seed).setup for seed in range(200)]
    assert {(setup.role, setup.slaves, setup.copies_needed, setup.is_chain) for setup in setups} == {
        ("SYNC_MASTER", 1, 1, False),
        ("SYNC_MASTER", 2, 1, False),
        ("SYNC_MASTER", 2, 2, False),
        ("ASYNC_MASTER", 1, 0, False),
        ("SYNC_MASTER", 2, 1, True),
        ("ASYNC_MASTER", 2, 0, True),
    }
    assert {setup.descriptors_max for setup in setups} == {None, 128, 300}
    assert {(setup.flush_disk_type, setup.slave_flush_disk_type) for setup in setups} == {
        (master, slave) for master in ("ASYNC_FLUSH", "SYNC_FLUSH") for slave in ("ASYNC_FLUSH", "SYNC_FLUSH")
    }


def test_the_seeds_that_every_test_run_takes_meet_every_kind_and_fifty_faults():
    assert kinds_of(SEEDS) == KINDS
    assert sum(len(make_plan(seed).faults) for seed in SEEDS) >= 50


def test_plans_can_be_printed(capsys):
    assert main(["--plan", "--count", "2", "--seed", "5"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [plan["seed"] for plan in printed] == [5, 6]
    assert printed[0]["faults"][0].keys() >= {"at_s", "fault", "duration_s"}


@pytest.mark.parametrize(
    "arguments",
    [["--count", "0"], ["--jobs", "0"], ["--seed", "-1"], ["--count", "many"], ["--what"], ["more"]],
)
def test_arguments_that_cannot_be_used_are_one_line(arguments, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("faults: ")
    assert said.err.count("\n") == 1


def test_a_log_is_lost_only_where_every_slave_may_begin_anew_and_no_put_waits_for_one():
    plans = [plan for plan in map(make_plan, range(300)) if plan.loses_log]
    assert plans
    for plan in plans:
        setup = plan.setup
        assert (setup.gap_policy, setup.start_from, setup.copies_needed) == ("resync", "earliest", 0)
        assert setup.tail_check_bytes > 0
        assert not plan.has_impostors


def test_in_a_chain_the_second_slave_follows_the_first():
    setup = next(plan.setup for plan in map(make_plan, range(300)) if plan.setup.is_chain)
    assert [setup.upstream(index) for index in range(setup.slaves)] == ["master", "slave-1"]
    assert [setup.followers(name) for name in setup.nodes] == [[0], [1], []]

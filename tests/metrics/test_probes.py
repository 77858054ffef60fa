"""Probes: a node is ready while it does what its role is for, and says why it is not."""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.metrics.making import STATUS
from trioha.broker.health import CHANGING_ROLE, RECOVERING, STOPPING, Facts, Health
from trioha.broker_status import BrokerStatus, SlaveStatus
from trioha.metrics.http_get import Query
from trioha.metrics.probes import PARAMETERS_MAX, probes

MASTER = evolve(STATUS, client=None, control=None)
SLAVE = evolve(
    STATUS, role="SLAVE", in_sync_slaves=None, connections=(), control=None,
    client=SlaveStatus(state="TRANSFER", verdict=""),
)  # fmt: skip
CONTROLLED = evolve(STATUS, client=None)


def failures(status: BrokerStatus, *, slaves_needed: int = 0, behind: bool = False, hanging: str = ""):
    """By check, those that fail."""
    health = Health()
    facts = Facts(
        status=lambda: status,
        slaves_needed=slaves_needed,
        are_queues_behind=lambda: behind,
        hanging=lambda: hanging or None,
    )
    with health.serving(facts):
        return {check.name: check.failure for check in health.checks() if check.failure}


@pytest.mark.parametrize(
    ("status", "other", "expected"),
    [
        (MASTER, {}, {}),
        (MASTER, {"slaves_needed": 1}, {}),
        (MASTER, {"slaves_needed": 2}, {"in-step": "1 of 2 slaves are in sync"}),
        (MASTER, {"behind": True}, {"queues": "puts are refused until the queues are at the log's end"}),
        (MASTER, {"hanging": "a sync hangs"}, {"progress": "a sync hangs"}),
        (evolve(MASTER, put_refusal="/s: the disk is full"), {}, {"disk": "/s: the disk is full"}),
        (SLAVE, {}, {}),
        # Of the master's puts alone.
        (SLAVE, {"behind": True}, {}),
        (
            evolve(SLAVE, client=SlaveStatus(state="READY", verdict="")),
            {},
            {"in-step": "there is no connection to the master"},
        ),
        (
            evolve(SLAVE, client=SlaveStatus(state="READY", verdict="GAP: at 5")),
            {},
            {"in-step": "the log cannot follow its master's: GAP: at 5"},
        ),
        (evolve(SLAVE, client=None), {}, {"in-step": "there is no link to a master"}),
        (CONTROLLED, {}, {}),
        (
            evolve(CONTROLLED, control=evolve(STATUS.control, leader=None)),
            {},
            {"control": "no leading controller is known"},
        ),
        (
            evolve(CONTROLLED, control=evolve(STATUS.control, in_sync_min=3)),
            {},
            {"control": "the sync-state set has 2 brokers, minInSyncReplicas is 3"},
        ),
        (
            evolve(SLAVE, control=evolve(STATUS.control, role="none"), client=None),
            {},
            {"control": "the controllers gave the node no role yet"},
        ),
    ],
)
def test_a_node_that_serves_is_ready_unless_its_role_cannot_be_filled(status, other, expected):
    assert failures(status, **other) == expected


def ask(health: Health, path: str, query: str = "") -> tuple[int, str]:
    page = probes(health)[path](Query(text=query))
    return int(page.status), page.body.decode()


def test_a_node_is_not_ready_before_between_and_after_its_roles():
    health = Health()
    assert health.summary() == f"not ready: {RECOVERING}"
    facts = Facts(
        status=lambda: MASTER, slaves_needed=0, are_queues_behind=lambda: False, hanging=lambda: None
    )
    for reason in (CHANGING_ROLE, STOPPING):
        with health.serving(facts):
            assert health.summary() == "ready"
            assert ask(health, "/readyz") == (200, "ok\n")
        health.ends(reason)
        assert health.summary() == f"not ready: {reason}"
        assert ask(health, "/readyz") == (503, f"[-]node failed: {reason}\nreadyz check failed\n")
        assert ask(health, "/livez") == (200, "ok\n")


def test_verbose_lists_each_check_and_exclude_leaves_one_out():
    health = Health()
    status = evolve(MASTER, put_refusal="\udce9 full")
    facts = Facts(
        status=lambda: status, slaves_needed=2, are_queues_behind=lambda: False, hanging=lambda: None
    )
    with health.serving(facts):
        assert ask(health, "/readyz", "verbose") == (
            503,
            (
                "[+]node ok\n[-]disk failed: \\udce9 full\n[+]queues ok\n"
                "[-]in-step failed: 1 of 2 slaves are in sync\n[+]progress ok\nreadyz check failed\n"
            ),
        )
        assert ask(health, "/readyz", "exclude=disk") == (
            503,
            "[-]in-step failed: 1 of 2 slaves are in sync\nreadyz check failed\n",
        )
        assert ask(health, "/readyz", "exclude=disk&exclude=in-step") == (200, "ok\n")
        assert ask(health, "/readyz", "exclude=disk&exclude=in-step&verbose=1") == (
            200,
            (
                "[+]node ok\n[+]disk excluded\n[+]queues ok\n[+]in-step excluded\n[+]progress ok\n"
                "readyz check passed\n"
            ),
        )
    assert ask(health, "/livez", "verbose") == (200, "[+]loop ok\nlivez check passed\n")


def test_a_hostile_query_costs_little_and_is_answered():
    health = Health()
    assert ask(health, "/livez", "&".join(["exclude=loop"] * (PARAMETERS_MAX + 1)))[0] == 400
    for query in ("%", "%ff%00", "=&=;", "exclude", "exclude=" + "a" * 8000, "verbose=%0d%0aX: y", "\xff"):
        status, text = ask(health, "/livez", query)
        assert status == 200
        assert text.isascii()

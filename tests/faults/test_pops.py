"""What the load of pops says of answers and logs made by hand, and of masters with planted defects."""

import pytest
from attrs import evolve

from tests.faults.cluster import Cluster
from tests.faults.faults import MASTER
from tests.faults.planted import acknowledgements_lost, timers_twice
from tests.faults.pops import DELIVERED_PROPERTY, TIMED_TOPIC, PopLoad
from tests.faults.support import plan_of
from tests.store.support import message, open_store
from trioha.store.message_properties import encode_properties

PAST_MS, FUTURE_MS = 1_000, 4_000_000_000_000


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    yield store
    store.close()


def _deliver(store, key, *, due_ms=PAST_MS):
    properties = encode_properties({"UNIQ_KEY": key, DELIVERED_PROPERTY: str(due_ms)})
    store.commit_log.append(message(b"timer", topic=TIMED_TOPIC, properties=properties))


def test_timers_that_come_twice_early_or_never_are_found(store, tmp_path):
    load = PopLoad(seed=1)
    load.timers = {"once": PAST_MS, "never": PAST_MS, "early": FUTURE_MS}
    for key in ("once", "unanswered", "twice", "twice"):
        _deliver(store, key)
    _deliver(store, "early", due_ms=FUTURE_MS)
    early, *others = load.violations(tmp_path)
    assert early.startswith("timer early was delivered ")
    assert others == ["timer twice was delivered 2 times", "timer never was not delivered"]


def test_what_comes_again_though_it_is_acknowledged_and_what_never_comes_is_found(store, tmp_path):
    _deliver(store, "once")
    load = PopLoad(seed=1)
    load.promised, load.tried = {"acknowledged", "doubtful", "lost"}, {"acknowledged", "doubtful"}
    load.acknowledged = {"acknowledged": 5.0}
    for key in ("acknowledged", "doubtful"):
        # One that was asked for before the answer may have it.
        load.note(key, asked_s=4.0)
        load.note(key, asked_s=6.0)
    assert load.violations(tmp_path) == [
        "acknowledged is acknowledged, and came 1 more times",
        "lost was sent with PUT_OK, and never came",
    ]


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize(
    ("defect", "reason"),
    [(acknowledgements_lost, "is acknowledged, and came"), (timers_twice, "was delivered 2 times")],
)
def test_a_master_that_breaks_a_promise_of_pops_or_timers_is_found(tmp_path, defect, reason):
    plan = evolve(plan_of(), pops=True)
    with Cluster(plan, tmp_path, programs={MASTER: defect.program}) as cluster:
        cluster.begin()

        def found():
            cluster.pause(0.5)
            return [one for one in cluster.pops.violations(cluster.store(MASTER)) if reason in one]

        cluster.wait(found, lambda: f"no violation {reason!r}", 60.0)

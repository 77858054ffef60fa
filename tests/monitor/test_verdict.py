import itertools

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trioha_monitor.verdict import (
    BETTER_AFTER_MS,
    WORSE_AFTER_MS,
    Facts,
    Judgement,
    VerdictDebounce,
    is_rejoining,
    judge,
)
from trioha_monitor.view import Limits, Verdict

LIMITS = Limits()
IN_STEP = Facts(
    is_connected=True,
    connected_s=1000.0,
    state="TRANSFER",
    min_offset=0,
    master_offset=1_000_000,
    sent_offset=1_000_000,
    ack_offset=1_000_000,
    in_sync=True,
    lag_s=0.0,
    unmoved_s=0.1,
)
BEHIND = evolve(IN_STEP, ack_offset=600_000, lag_s=4.0)


@pytest.mark.parametrize(
    ("facts", "verdict", "why"),
    [
        (IN_STEP, Verdict.OK, ""),
        (evolve(IN_STEP, ack_offset=999_000, lag_s=0.2), Verdict.OK, ""),
        (BEHIND, Verdict.FALL_BEHIND, "lacks bytes that are 4.0 s old"),
        (evolve(BEHIND, unmoved_s=3.5), Verdict.STALLED, "no ack for 3.5 s, 391 KiB wait"),
        (evolve(BEHIND, lag_s=0.5, unmoved_s=900.0), Verdict.OK, ""),
        (
            evolve(BEHIND, in_sync=False, ack_offset=1, master_offset=1 << 30),
            Verdict.NOT_IN_SYNC,
            "lacks 256 MiB or more",
        ),
        (
            evolve(BEHIND, in_sync=False, unmoved_s=2.5),
            Verdict.NOT_IN_SYNC,
            "its master does not count it as in sync: no ack for 2.5 s",
        ),
        (evolve(IN_STEP, is_connected=False, unconnected_s=12.0), Verdict.SILENT, "not connected for 12 s"),
        (evolve(IN_STEP, last_received_s=10.0), Verdict.OK, ""),
        (evolve(IN_STEP, last_received_s=10.5), Verdict.SILENT, "nothing received for 10 s"),
        (
            evolve(BEHIND, sent_offset=100, ack_offset=100, min_offset=65536),
            Verdict.GAP,
            "needs offset 100, the log starts at 65536",
        ),
        (evolve(IN_STEP, ack_offset=1_000_007), Verdict.DIVERGED, "acknowledged 7 B beyond the master's log"),
        (evolve(IN_STEP, complaint="GAP: begins at 5"), Verdict.GAP, "begins at 5"),
        (evolve(IN_STEP, complaint="AHEAD: ends at 5"), Verdict.DIVERGED, "ends at 5"),
        (evolve(IN_STEP, complaint="DIVERGED: at 5", is_connected=False), Verdict.DIVERGED, "at 5"),
        (evolve(IN_STEP, complaint="GAP: at 5", master_answers=False), Verdict.GAP, "at 5"),
        (evolve(IN_STEP, complaint="something new"), Verdict.OK, ""),
        (evolve(IN_STEP, master_answers=False), Verdict.STALE, "its master does not answer"),
        (
            evolve(BEHIND, is_observer=True, unmoved_s=500.0, lag_s=500.0, in_sync=False),
            Verdict.OBSERVER,
            "never acknowledges, as configured",
        ),
        (
            evolve(BEHIND, unmoved_s=31.0, lag_s=40.0, in_sync=False),
            Verdict.OBSERVER,
            "connected and no ack for 31 s",
        ),
        (
            evolve(BEHIND, sent_offset=600_000, unmoved_s=31.0, lag_s=40.0),
            Verdict.STALLED,
            "no ack for 31 s, 391 KiB wait",
        ),
    ],
)
def test_each_verdict_has_its_rule_and_its_reason(facts, verdict, why):
    assert judge(facts, LIMITS) == Judgement(verdict, why)


def test_a_slave_that_compares_its_tail_is_rejoining_and_not_behind():
    facts = evolve(BEHIND, connected_s=0.5, ack_offset=1_000_000 - 65_536, lag_s=40.0)
    rejoining = Judgement(Verdict.OK, "rejoining: compares its tail and acknowledges it again")
    assert judge(evolve(facts, is_rejoining=True), LIMITS) == rejoining
    assert judge(facts, LIMITS).verdict is Verdict.FALL_BEHIND


@pytest.mark.parametrize(
    ("ack_offset", "connected_s", "expected"),
    [
        (1_000_000 - 65_536, 0.5, True),
        (1_000_000 - 65_537, 0.5, False),
        (999_999, 5.0, True),
        (999_999, 5.1, False),
        # It has acknowledged the log as it was at its connect: what it lacks is newer.
        (1_000_000, 0.5, False),
    ],
)
def test_a_slave_rejoins_until_it_has_acknowledged_what_there_was(ack_offset, connected_s, expected):
    assert (
        is_rejoining(ack_offset, joined_at_offset=1_000_000, connected_s=connected_s, limits=LIMITS)
        is expected
    )


def test_the_brokers_own_limits_count():
    patient = Limits(slave_timeout_s=60.0, heartbeat_s=30.0)
    assert judge(evolve(BEHIND, unmoved_s=50.0), patient).verdict is Verdict.OK
    assert judge(evolve(IN_STEP, last_received_s=50.0), patient).verdict is Verdict.OK


def test_fall_behind_ends_at_half_the_limit():
    closer = evolve(BEHIND, lag_s=2.0)
    assert judge(closer, LIMITS, shown=Verdict.OK).verdict is Verdict.OK
    assert judge(closer, LIMITS, shown=Verdict.FALL_BEHIND).verdict is Verdict.FALL_BEHIND
    assert judge(evolve(BEHIND, lag_s=1.4), LIMITS, shown=Verdict.FALL_BEHIND).verdict is Verdict.OK


def test_a_replica_without_figures_is_ok():
    assert judge(Facts(is_connected=True), LIMITS) == Judgement(Verdict.OK)


def test_the_reason_of_a_shown_verdict_is_the_latest():
    steady = VerdictDebounce()
    steady.show(Judgement(Verdict.STALLED, "no ack for 3.0 s"), at_ms=0)
    assert steady.show(Judgement(Verdict.STALLED, "no ack for 3.1 s"), at_ms=100).why == "no ack for 3.1 s"


@pytest.mark.parametrize("verdict", [Verdict.GAP, Verdict.DIVERGED, Verdict.STALE])
def test_gap_diverged_and_stale_are_shown_at_once(verdict):
    steady = VerdictDebounce()
    steady.show(Judgement(Verdict.OK), at_ms=0)
    assert steady.show(Judgement(verdict), at_ms=100).verdict is verdict


def test_a_worse_verdict_shows_after_a_second_and_a_better_one_after_two():
    steady = VerdictDebounce()
    shown = []
    for at_ms in range(0, 6000, 250):
        judged = Verdict.STALLED if 1000 <= at_ms < 3000 else Verdict.OK
        shown.append((at_ms, steady.show(Judgement(judged), at_ms=at_ms).verdict))
    changes = [after for before, after in itertools.pairwise(shown) if before[1] is not after[1]]
    assert changes == [(2000, Verdict.STALLED), (5000, Verdict.OK)]


soft = st.sampled_from(
    [Verdict.OK, Verdict.FALL_BEHIND, Verdict.STALLED, Verdict.SILENT, Verdict.NOT_IN_SYNC]
)


@given(st.lists(st.tuples(st.integers(0, 700), soft), min_size=1, max_size=80))
def test_verdicts_do_not_flicker(samples):
    steady = VerdictDebounce()
    at_ms = changed_ms = 0
    shown = None
    for step_ms, verdict in samples:
        at_ms += step_ms
        now = steady.show(Judgement(verdict), at_ms=at_ms).verdict
        if shown is not None and now is not shown:
            assert now is verdict
            assert at_ms - changed_ms >= min(WORSE_AFTER_MS, BETTER_AFTER_MS)
            changed_ms = at_ms
        elif shown is None:
            changed_ms = at_ms
        shown = now


@given(st.lists(soft, max_size=30), soft)
def test_a_lasting_verdict_is_shown(before, lasting):
    steady = VerdictDebounce()
    for tick, verdict in enumerate(before):
        steady.show(Judgement(verdict), at_ms=tick * 100)
    start_ms = len(before) * 100
    steady.show(Judgement(lasting), at_ms=start_ms)
    assert steady.show(Judgement(lasting), at_ms=start_ms + BETTER_AFTER_MS).verdict is lasting

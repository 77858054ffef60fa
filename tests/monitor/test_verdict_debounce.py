import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.replica_verdict import Judgement, Verdict
from trioha_monitor.verdict_debounce import BETTER_AFTER_MS, WORSE_AFTER_MS, VerdictDebounce


def test_the_reason_of_a_shown_verdict_is_the_latest():
    steady = VerdictDebounce()
    steady.show(Judgement(Verdict.STALLED, "no ack for 3.0 s"), at_ms=0)
    assert steady.show(Judgement(Verdict.STALLED, "no ack for 3.1 s"), at_ms=100).why == "no ack for 3.1 s"


@pytest.mark.parametrize("verdict", [Verdict.GAP, Verdict.DIVERGED, Verdict.REFUSED, Verdict.STALE])
def test_what_keeps_a_log_from_following_is_shown_at_once(verdict):
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

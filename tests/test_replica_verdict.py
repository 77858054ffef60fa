import pytest
from attrs import evolve

from trioha.replica_verdict import Facts, Judgement, Limits, Verdict, is_rejoining, judge

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
        (evolve(IN_STEP, is_connected=False, complaint="REFUSED: no answer"), Verdict.REFUSED, "no answer"),
        (
            evolve(IN_STEP, is_connected=False, complaint="OTHER_MASTER: broker-b"),
            Verdict.REFUSED,
            "broker-b",
        ),
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

"""The in-sync rule for recordings is that of the master."""

import pytest

from trioha_sessions.sync import SyncRule

S = 10**9
RULE = SyncRule(gap_bytes_max=1000, silence_ns_max=15 * S)


def in_sync(*, lag, now, acked, oldest):
    return RULE.is_in_sync(
        lag_bytes=lag,
        now_ns=round(now * S),
        acked_ns=None if acked is None else round(acked * S),
        oldest_ns=None if oldest is None else round(oldest * S),
    )


def test_slave_without_a_lag_is_in_sync_however_silent():
    assert in_sync(lag=0, now=1e6, acked=0, oldest=None)
    assert in_sync(lag=-5, now=1e6, acked=0, oldest=0)


def test_slave_with_a_lag_of_the_gap_is_not_in_sync():
    assert in_sync(lag=999, now=1, acked=1, oldest=1)
    assert not in_sync(lag=1000, now=1, acked=1, oldest=1)


def test_slave_that_owes_an_ack_for_the_limit_is_not_in_sync():
    assert in_sync(lag=1, now=114.999, acked=0, oldest=100)
    assert not in_sync(lag=1, now=115, acked=0, oldest=100)
    # It acknowledges all the time: it lags, but is not silent.
    assert in_sync(lag=1, now=115, acked=101, oldest=100)
    assert not in_sync(lag=1, now=116, acked=101, oldest=100)


def test_unknown_times_do_not_count():
    assert in_sync(lag=1, now=1e6, acked=None, oldest=None)
    assert not in_sync(lag=1, now=15, acked=0, oldest=None)
    assert not in_sync(lag=1, now=15, acked=None, oldest=0)


@pytest.mark.parametrize("value", [None, "x", -1, 0, 1.5, True, 10**30, [], "٣"])
def test_settings_that_are_missing_or_nonsense_are_the_defaults(value):
    assert SyncRule.of({}) == SyncRule()
    assert SyncRule.of({"haMaxGapNotInSync": value, "haMaxTimeSlaveNotCatchup": value}) == SyncRule()


def test_settings_are_those_of_the_session():
    settings = {"haMaxGapNotInSync": 4096, "haMaxTimeSlaveNotCatchup": "7000"}
    assert SyncRule.of(settings) == SyncRule(4096, 7 * S)

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from trioha.ha.meter import NOTES_MAX, SPREAD_WINDOW_S, VALUES_MAX, LagClock, Measured, SpreadMeter


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=200))
def test_percentiles_are_exact(values: list[int]) -> None:
    meter = SpreadMeter(0.0)
    for value in values:
        meter.add(value)
    p50, p99 = (sorted(values)[math.ceil(len(values) * percent / 100) - 1] for percent in (50, 99))
    assert meter.measured(0.0) == Measured(p50, p99, max(values), len(values))


def test_a_window_is_told_until_the_next_one_is_over() -> None:
    meter = SpreadMeter(0.0)
    meter.add(100)
    assert meter.measured(1.0) == Measured(100, 100, 100, 1)
    meter.add(5)
    first = meter.measured(SPREAD_WINDOW_S)
    assert first == Measured(5, 100, 100, 2)
    meter.add(7)
    assert meter.measured(SPREAD_WINDOW_S + 1) == first
    assert meter.measured(2 * SPREAD_WINDOW_S) == Measured(7, 7, 7, 1)
    assert meter.measured(3 * SPREAD_WINDOW_S) is None


def test_values_are_given_in_the_unit_asked_for() -> None:
    meter = SpreadMeter(0.0)
    meter.add(0.25)
    assert meter.measured(0.0, per_unit=1e6) == Measured(250_000, 250_000, 250_000, 1)


def test_memory_is_bounded_and_the_last_values_count() -> None:
    meter = SpreadMeter(0.0)
    for value in range(10 * VALUES_MAX):
        meter.add(value)
    spread = meter.measured(100.0)
    assert spread is not None
    assert (spread.count, spread.largest) == (VALUES_MAX, 10 * VALUES_MAX - 1)
    assert spread.p50 == 9.5 * VALUES_MAX - 1


def test_nothing_measured_is_nothing() -> None:
    assert SpreadMeter(0.0).measured(100.0) is None


def test_the_lag_of_a_replica_that_catches_up_after_hours_is_right_to_the_spacing_of_notes() -> None:
    clock = LagClock()
    ticks = 80 * NOTES_MAX
    for tick in range(1, ticks + 1):
        clock.appended(tick * 10, tick * 0.011)
        assert len(clock._notes) <= NOTES_MAX
    for tick in (ticks // 4, ticks // 2, ticks - 1000):
        clock.acknowledged(tick * 10)
        true_s = (ticks - tick - 1) * 0.011
        # 0.01 s doubled as often as two hours take: 2.56 s.
        assert true_s - 0.001 <= clock.age_s(ticks * 0.011) <= true_s + 2.6
    clock.acknowledged(ticks * 10)
    assert clock.age_s(ticks * 0.011) == 0.0
    clock.appended(ticks * 10 + 10, ticks * 0.011 + 1.0)
    clock.appended(ticks * 10 + 20, ticks * 0.011 + 1.02)
    clock.acknowledged(ticks * 10 + 10)
    assert round(clock.age_s(ticks * 0.011 + 2.02), 6) == 1.0

import math

from hypothesis import given
from hypothesis import strategies as st

from trioha.distribution import Distribution
from trioha.ha.meter import DISTRIBUTION_WINDOW_S, SAMPLES_MAX, VALUES_MAX, DistributionMeter, LagClock


@given(st.lists(st.integers(0, 2**50), min_size=1, max_size=200))
def test_percentiles_are_exact(values):
    meter = DistributionMeter(0.0)
    for value in values:
        meter.add(value)
    p50, p99 = (sorted(values)[math.ceil(len(values) * percent / 100) - 1] for percent in (50, 99))
    assert meter.distribution(0.0) == Distribution(p50, p99, max(values), len(values))


def test_a_window_is_shown_until_the_next_one_is_over():
    meter = DistributionMeter(0.0)
    meter.add(100)
    assert meter.distribution(1.0) == Distribution(100, 100, 100, 1)
    meter.add(5)
    first = meter.distribution(DISTRIBUTION_WINDOW_S)
    assert first == Distribution(5, 100, 100, 2)
    meter.add(7)
    assert meter.distribution(DISTRIBUTION_WINDOW_S + 1) == first
    assert meter.distribution(2 * DISTRIBUTION_WINDOW_S) == Distribution(7, 7, 7, 1)
    assert meter.distribution(3 * DISTRIBUTION_WINDOW_S) is None


def test_memory_is_bounded_and_the_last_values_count():
    meter = DistributionMeter(0.0)
    for value in range(10 * VALUES_MAX):
        meter.add(value)
    distribution = meter.distribution(100.0)
    assert distribution is not None
    assert (distribution.count, distribution.largest) == (VALUES_MAX, 10 * VALUES_MAX - 1)
    assert distribution.p50 == 9.5 * VALUES_MAX - 1


def test_the_age_of_bytes_from_an_offset_on_is_that_of_their_sample_or_at_most_that_of_the_last():
    clock = LagClock()
    assert clock.age_from_s(5, 5.0) == 0.0
    for end_offset, now_s in ((10, 0.0), (20, 1.0), (30, 2.0)):
        clock.appended(end_offset, now_s)
    assert [clock.age_from_s(offset, 5.0) for offset in (0, 9, 10, 25, 29)] == [5.0, 5.0, 4.0, 3.0, 3.0]
    # Appended after the last sample.
    assert clock.age_from_s(30, 5.0) == 3.0
    clock.acknowledged(20)
    assert clock.age_from_s(20, 5.0) == 3.0


def test_the_lag_of_a_replica_that_catches_up_after_hours_is_exact_to_the_interval_of_samples():
    clock = LagClock()
    ticks = 80 * SAMPLES_MAX
    for tick in range(1, ticks + 1):
        clock.appended(tick * 10, tick * 0.011)
        assert len(clock._samples) <= SAMPLES_MAX
    for tick in (ticks // 4, ticks // 2, ticks - 1000):
        clock.acknowledged(tick * 10)
        true_s = (ticks - tick - 1) * 0.011
        # The interval after two hours: 0.01 s doubled to 2.56 s.
        assert true_s - 0.001 <= clock.age_s(ticks * 0.011) <= true_s + 2.6
    clock.acknowledged(ticks * 10)
    assert clock.age_s(ticks * 0.011) == 0.0
    clock.appended(ticks * 10 + 10, ticks * 0.011 + 1.0)
    clock.appended(ticks * 10 + 20, ticks * 0.011 + 1.02)
    clock.acknowledged(ticks * 10 + 10)
    assert round(clock.age_s(ticks * 0.011 + 2.02), 6) == 1.0

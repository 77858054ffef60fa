import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha_monitor.series import ENTRIES_MAX, AppendClock, RateMeter, TrendMeter

steps = st.lists(st.tuples(st.integers(-50, 5000), st.integers(0, 2**40)), min_size=1, max_size=60)


def test_a_rate_is_the_mean_of_two_seconds():
    meter = RateMeter()
    for second, value in enumerate((0, 100, 200, 1000, 1000)):
        meter.add(value, at_ms=second * 1000)
    assert meter.per_s == (1000 - 200) / 2


def test_one_sample_or_two_at_once_make_no_rate():
    meter = RateMeter()
    assert meter.per_s is None
    meter.add(5, at_ms=0)
    assert meter.per_s is None
    meter.add(9, at_ms=0)
    assert meter.per_s is None


def test_an_offset_that_goes_back_restarts_the_rate():
    meter = RateMeter()
    for at_ms, value in ((0, 0), (500, 1000), (1000, 10), (1500, 20)):
        meter.add(value, at_ms=at_ms)
    assert meter.per_s == 20.0


@given(steps)
def test_a_rate_is_never_negative_whatever_offsets_and_clocks_do(samples):
    meter = RateMeter()
    at_ms = 0
    for step_ms, value in samples:
        at_ms += step_ms
        meter.add(value, at_ms=at_ms)
        assert meter.per_s is None or meter.per_s >= 0


@given(slope=st.integers(-1000, 1000), step_ms=st.sampled_from([20, 100, 200, 1000]))
def test_a_trend_is_the_slope_of_a_straight_line(slope, step_ms):
    meter = TrendMeter()
    for tick in range(400):
        meter.add(10**9 - slope * tick * step_ms, at_ms=tick * step_ms)
    assert meter.shrinks_per_s == pytest.approx(slope * 1000)


def test_a_trend_is_not_known_before_a_second_has_passed():
    meter = TrendMeter()
    meter.add(100, at_ms=0)
    meter.add(50, at_ms=999)
    assert meter.shrinks_per_s is None
    meter.add(50, at_ms=1000)
    assert meter.shrinks_per_s == 50


def test_the_age_of_a_byte_is_the_time_since_the_log_was_seen_to_have_it():
    clock = AppendClock()
    for second in range(10):
        clock.appended(1000 * second, at_ms=second * 1000)
    assert clock.age_s(9000, now_ms=12_000) == 0.0
    assert clock.age_s(8999, now_ms=12_000) == 3.0
    assert clock.age_s(7000, now_ms=12_000) == 4.0
    assert clock.age_s(-1, now_ms=12_000) == 12.0
    assert clock.age_s(0, now_ms=12_000) == 11.0


def test_a_log_that_ends_lower_restarts_the_clock():
    clock = AppendClock()
    clock.appended(5000, at_ms=0)
    clock.appended(100, at_ms=10_000)
    assert clock.age_s(50, now_ms=10_500) == 0.5


@given(steps, st.integers(0, 2**40))
def test_no_age_is_negative(samples, offset):
    clock = AppendClock()
    at_ms = 0
    for step_ms, end_offset in samples:
        at_ms += step_ms
        clock.appended(end_offset, at_ms=at_ms)
        assert clock.age_s(offset, now_ms=at_ms) >= 0


def test_memory_is_bounded_and_ages_are_right_to_the_spacing_of_entries():
    clock = AppendClock()
    ticks = 20 * ENTRIES_MAX
    for tick in range(1, ticks + 1):
        clock.appended(tick * 10, at_ms=tick * 100)
    assert len(clock._ends) <= ENTRIES_MAX
    for tick in (1, ticks // 2, ticks - 1):
        true_s = (ticks - tick - 1) / 10
        age_s = clock.age_s(tick * 10, now_ms=ticks * 100)
        # 20 times as long as the entries suffice: at least 2 x 16 to 2 x 32 ticks of 0.1 s apart.
        assert true_s <= age_s <= true_s + 6.4
    assert clock.age_s(ticks * 10, now_ms=ticks * 100) == 0.0


def test_acknowledged_bytes_are_dropped_and_entries_are_exact_again():
    clock = AppendClock()
    for tick in range(1, 3 * ENTRIES_MAX):
        clock.appended(tick, at_ms=tick * 100)
    clock.acknowledged(3 * ENTRIES_MAX - 10)
    assert len(clock._ends) < 10
    for tick in range(3 * ENTRIES_MAX, 3 * ENTRIES_MAX + 20):
        clock.appended(tick, at_ms=tick * 100)
    assert clock.age_s(3 * ENTRIES_MAX + 9, now_ms=(3 * ENTRIES_MAX + 19) * 100) == 0.9


def test_a_log_that_leaps_keeps_its_memory_bounded():
    clock = AppendClock()
    for tick in range(3 * ENTRIES_MAX):
        clock.appended(tick, at_ms=0)
        assert len(clock._ends) < ENTRIES_MAX

"""Rates over windows, and totals at midnight."""

from datetime import date

from trioha.broker.rates import MidnightTotals, RateWindows


def test_rates_are_those_of_each_window():
    rates = RateWindows(100.0)
    rates.add(600, 100.5)
    assert rates.rates_per_s(110.0) == (60.0, 60.0, 60.0)
    assert rates.rates_per_s(160.0) == (0.0, 10.0, 10.0)
    assert rates.rates_per_s(700.0) == (0.0, 0.0, 1.0)
    assert rates.rates_per_s(701.0) == (0.0, 0.0, 0.0)


def test_the_current_second_does_not_count():
    rates = RateWindows(0.0)
    rates.add(5, 7.2)
    assert rates.rates_per_s(7.9) == (0.0, 0.0, 0.0)
    assert rates.rates_per_s(8.0) == (5 / 8, 5 / 8, 5 / 8)


def test_totals_are_kept_at_the_last_two_midnights():
    totals = MidnightTotals(date(2026, 3, 1))
    seen = []
    for day, total in ((1, 10), (2, 30), (2, 40), (3, 100), (3, 120)):
        totals.roll_over(date(2026, 3, day), total)
        seen.append((totals.until_today, totals.until_yesterday))
    assert seen == [(0, 0), (30, 0), (30, 0), (100, 30), (100, 30)]


def test_nothing_was_counted_on_days_that_nobody_asked_on():
    totals = MidnightTotals(date(2026, 3, 1))
    totals.roll_over(date(2026, 3, 5), 7)
    assert (totals.until_today, totals.until_yesterday) == (7, 7)

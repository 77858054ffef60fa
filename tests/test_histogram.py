"""A histogram counts values by upper bounds."""

import math

from trioha.histogram import Histogram


def test_a_value_counts_for_each_bound_that_it_does_not_exceed():
    times = Histogram((0.01, 0.1, 1.0))
    assert times.cumulative() == [(0.01, 0), (0.1, 0), (1.0, 0), (math.inf, 0)]
    for value in (0.005, 0.01, 0.0100001, 1.0, 7.0):
        times.add(value)
    assert times.cumulative() == [(0.01, 2), (0.1, 3), (1.0, 4), (math.inf, 5)]
    assert times.total == 0.005 + 0.01 + 0.0100001 + 1.0 + 7.0

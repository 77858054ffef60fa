"""Percentiles: the one rule is nearest rank. A percentile is a value that occurred, never a mean of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from attrs import frozen

V = TypeVar("V", int, float)


@frozen
class Percentiles:
    """A distribution in three figures, in the unit of its values."""

    p50: int
    p99: int
    max: int


def nearest_rank(ordered: Sequence[V], part: float) -> V:
    """The smallest of the ascending values, at least one, that `part` (0 to 1) of them do not exceed."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]

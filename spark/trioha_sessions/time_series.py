"""Time series with a bounded number of steps, however many events there are."""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_MANY: Final = 16
"""From so many values in a step, the borders between steps are searched instead of the step of each value."""


@frozen
class TimeGrid:
    """Equal steps of time over a session."""

    origin_ns: int
    """Monotonic clock at the start of step 0."""
    step_ns: int
    steps: int
    """Events before the first or after the last step count there."""

    @classmethod
    def over(cls, first_ns: int, last_ns: int, *, steps: int) -> TimeGrid:
        """`steps` steps that cover both times."""
        return cls(first_ns, max(1, -(-(last_ns - first_ns + 1) // steps)), steps)

    def step_of(self, ts_ns: Ints) -> Ints:
        """Step of each time; shape (n,)."""
        step: Ints = np.clip((ts_ns - self.origin_ns) // self.step_ns, 0, self.steps - 1)
        return step


@frozen(eq=False)
class TimeSeries:
    """The largest value in each step that has one."""

    steps: Ints = field(factory=lambda: np.zeros(0, np.int64))
    """Ascending; shape (n,)."""
    values: Ints = field(factory=lambda: np.zeros(0, np.int64))
    """Shape (n,)."""

    @classmethod
    def of(cls, steps: Ints, values: Ints) -> TimeSeries:
        """The series of `values` (`UNKNOWN` ones are left out), each in its step."""
        known = values >= 0
        if not known.all():
            steps, values = steps[known], values[known]
        if not len(steps):
            return cls()
        if (np.diff(steps) < 0).any():
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
        begins = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
        return cls(steps[begins], np.maximum.reduceat(values, begins))

    @classmethod
    def over(cls, grid: TimeGrid, ts_ns: Ints, values: Ints) -> TimeSeries:
        """The series of `values`, each at its time."""
        if not len(ts_ns):
            return cls()
        first, last = grid.step_of(ts_ns[[0, -1]]).tolist()
        is_worth_it = last - first < len(ts_ns) // _MANY
        if not is_worth_it or not (ts_ns[1:] >= ts_ns[:-1]).all() or (values < 0).any():
            return cls.of(grid.step_of(ts_ns), values)
        steps = np.arange(first, last + 1)
        begins = np.searchsorted(ts_ns, grid.origin_ns + steps * grid.step_ns)
        begins[0] = 0
        has_any = np.diff(begins, append=len(ts_ns)) > 0
        return cls(steps[has_any], np.maximum.reduceat(values, begins[has_any]))

    def rising_at(self, steps: Ints) -> Ints:
        """The largest value up to each of `steps`, -1 before the first one; shape of `steps`."""
        largest: Ints = np.append(np.int64(-1), np.maximum.accumulate(self.values))
        return largest[np.searchsorted(self.steps, steps, side="right")]

    def __add__(self, other: TimeSeries) -> TimeSeries:
        return TimeSeries.of(
            np.concatenate((self.steps, other.steps)), np.concatenate((self.values, other.values))
        )

"""Group-commit waits over time: how they ended, and how long they took, in periods of a session.

A period is a number of steps of the session's time grid, so that there are at most `PERIODS_MAX` of them.
Parts of a session add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from trioha.recording.events import Kind
from trioha_sessions.histogram import Histogram
from trioha_sessions.time_series import TimeGrid

PERIODS_MAX: Final = 180
"""Enough for a chart; each has a histogram for each status."""


def period_steps(grid: TimeGrid) -> int:
    """Steps of the grid in a period."""
    return -(-grid.steps // PERIODS_MAX)


@frozen(eq=False)
class WaitHistory:
    """The waits that ended in some records of a session."""

    waited_us: Mapping[tuple[int, int], Histogram] = field(factory=dict)
    """Waiting times by `PutStatus` and number of the period."""
    spans_ns: Mapping[int, tuple[int, int]] = field(factory=dict)
    """First and last end of a wait by `PutStatus`, on the monotonic clock."""

    @classmethod
    def of(cls, records: NDArray[np.void], grid: TimeGrid) -> WaitHistory:
        """Those of `records`, in their order."""
        places = np.flatnonzero(records["kind"] == Kind.WAIT_END)
        statuses, ends_ns = records["flags"][places].astype(np.int64), records["ts_ns"][places]
        waited_us = np.maximum(records["size"][places].astype(np.int64), 0)
        periods = grid.step_of(ends_ns) // period_steps(grid)
        found = {}
        spans_ns = {}
        for status in np.unique(statuses).tolist():
            own = statuses == status
            spans_ns[status] = (int(ends_ns[own].min()), int(ends_ns[own].max()))
            for period in np.unique(periods[own]).tolist():
                found[status, period] = Histogram.of(waited_us[own & (periods == period)])
        return cls(found, spans_ns)

    def __add__(self, later: WaitHistory) -> WaitHistory:
        waited_us = dict(self.waited_us)
        for key, histogram in later.waited_us.items():
            known = waited_us.get(key)
            waited_us[key] = histogram if known is None else known + histogram
        spans_ns = dict(self.spans_ns)
        for status, (first_ns, last_ns) in later.spans_ns.items():
            begin_ns, end_ns = spans_ns.get(status, (first_ns, last_ns))
            spans_ns[status] = (min(begin_ns, first_ns), max(end_ns, last_ns))
        return WaitHistory(waited_us, spans_ns)

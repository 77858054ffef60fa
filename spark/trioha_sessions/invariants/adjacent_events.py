"""Rules that compare each record with the one before it, of any kind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha_sessions.invariants.event_batch import EventBatch, SessionSettings
from trioha_sessions.invariants.findings import Findings
from trioha_sessions.state_arrays import Array


@frozen(eq=False)
class BatchEdges:
    """First and last record of a part, and the violations within it."""

    first: Array
    last: Array
    findings: Findings
    checked: int


@frozen
class AdjacentEventRule:
    """Checks a column (`ts_ns` or `seq`) of each record by that of the record before."""

    column: str
    fault: Callable[[NDArray[np.int64]], NDArray[np.bool_]]
    """Which differences to the record before break the rule."""

    def check(self, batch: EventBatch) -> BatchEdges:
        """Check the records of a part."""
        raw = batch.raw
        broken = np.flatnonzero(self.fault(np.diff(raw[self.column])))
        return BatchEdges(raw[:1], raw[-1:], Findings.of(raw[broken + 1], raw[broken]), max(0, len(raw) - 1))

    def join(
        self, earlier: BatchEdges, later: BatchEdges, settings: SessionSettings, *, gap: bool
    ) -> BatchEdges:
        """Join two parts that follow each other."""
        del settings, gap
        if not len(earlier.first) or not len(later.first):
            return later if len(later.first) else earlier
        difference = later.first[self.column] - earlier.last[self.column]
        broken = self.fault(difference)
        between = Findings.of(later.first[broken], earlier.last[broken])
        return BatchEdges(
            earlier.first,
            later.last,
            earlier.findings + between + later.findings,
            earlier.checked + 1 + later.checked,
        )

    def finish(self, edges: BatchEdges, *, is_whole: bool) -> tuple[Findings, int]:
        """Violations, and how many records were checked."""
        del is_whole
        return edges.findings, edges.checked

"""Findings of a rule: the records that break it, each with the record that it was compared with."""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen

from trioha_sessions.state_arrays import Array

FOUND_MAX: Final = 1000
"""Violations of a rule that are kept, the earliest ones; the others are only counted."""


@frozen(eq=False)
class Findings:
    """Violations of one rule in the order of their seq."""

    new: Array
    """The records that break it; shape (n,), n at most `FOUND_MAX`."""
    old: Array
    """The record that each was compared with; the record itself where there is none."""
    count: int
    """Number of violations, including those that are not kept."""

    @classmethod
    def none(cls, dtype: np.dtype[np.void]) -> Findings:
        """No violations; `dtype` is that of the session's records."""
        return cls(np.zeros(0, dtype), np.zeros(0, dtype), 0)

    @classmethod
    def of(cls, new: Array, old: Array) -> Findings:
        """These violations, in any order."""
        order = np.argsort(new["seq"], kind="stable")[:FOUND_MAX]
        return cls(new[order], old[order], len(new))

    def __add__(self, other: Findings) -> Findings:
        if not other.count:
            return self
        if not self.count:
            return other
        both = Findings.of(np.concatenate((self.new, other.new)), np.concatenate((self.old, other.old)))
        return Findings(both.new, both.old, self.count + other.count)

"""How bad something is: one scale for verdicts, findings, events and broken invariants."""

from __future__ import annotations

from enum import IntEnum


class Severity(IntEnum):
    """How bad something is, in order; it chooses the colour."""

    GOOD = 0
    """Normal."""
    NOTICE = 1
    """Worth knowing, or unlikely to be intended; nothing breaks."""
    WARNING = 2
    """Not normal: it may pass by itself, or fail at the next fault."""
    CRITICAL = 3
    """An operator has to act: messages can be lost, or a promise does not hold now."""

    @property
    def word(self) -> str:
        """In lower case, as options and documents have it."""
        return self.name.lower()

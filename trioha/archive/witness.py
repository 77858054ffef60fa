"""The time by which an archive's objects are old: the clock's, with the archive's head as its witness.

The head says when a writer last renewed it. That, and the monotonic time since it was read, is what is known
of the time without the clock. Nothing is deleted by an age beyond it, so an archiver that begins deletes what
the one before it could have. A clock that is further from it than `DOUBT_MS` is not believed at all: nothing
is deleted by age, and heads are renewed by the witness's time, so that the next archiver is not misled
either. An operator ends that (`trioha archive --trust-clock`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define, field

from trioha.times import time_text

DOUBT_MS: Final = 7 * 86_400_000
"""An archive may have had no writer for so long; a clock that is further from its head may be wrong."""


@define
class WitnessedClock:
    """The clock of one archiver."""

    _wall_ms: Callable[[], int]
    """The clock, ms since 1970."""
    _monotonic: Callable[[], float]
    """Seconds of a clock that is never set."""
    is_trusted: bool = False
    """Whether an operator says that the clock is right."""
    _known_ms: int = field(init=False, default=0)
    _known_s: float = field(init=False, default=0.0)

    def begin(self, renewed_ms: int | None) -> None:
        """Start from the last renewal of the archive's head; None for a new archive."""
        self._known_ms = self._wall_ms() if renewed_ms is None or self.is_trusted else renewed_ms
        self._known_s = self._monotonic()

    def _witnessed_ms(self) -> int:
        return self._known_ms + round((self._monotonic() - self._known_s) * 1000)

    @property
    def doubt(self) -> str:
        """Why the clock is not believed; empty if it is."""
        now_ms, witnessed_ms = self._wall_ms(), self._witnessed_ms()
        if abs(now_ms - witnessed_ms) <= DOUBT_MS:
            return ""
        return (
            f"the clock shows {time_text(now_ms)}, by the archive's head it is {time_text(witnessed_ms)}:"
            " nothing is deleted by age; check the clock, and if it is right run trioha archive once with"
            " --trust-clock"
        )

    def now_ms(self) -> int:
        """The clock's time, or the witness's while that is in doubt."""
        return self._witnessed_ms() if self.doubt else self._wall_ms()

    def past_ms(self) -> int:
        """What has surely passed: the earlier one of both."""
        return min(self._wall_ms(), self._witnessed_ms())

"""Keeps the verdict of a replica that is shown live from flickering.

Another verdict is shown only after verdicts have differed from the shown one for a while; GAP, DIVERGED,
REFUSED and STALE are shown at once.
"""

from __future__ import annotations

from attrs import define

from trioha.replica_verdict import Judgement, Verdict

WORSE_AFTER_MS = 1000
"""A worse verdict is shown after so many milliseconds."""
BETTER_AFTER_MS = 2000
"""A better verdict is shown after so many milliseconds."""
_AT_ONCE = frozenset((Verdict.GAP, Verdict.DIVERGED, Verdict.REFUSED, Verdict.STALE))


@define(eq=False)
class VerdictDebounce:
    """Keeps the shown verdict while verdicts flicker: see the module's text."""

    shown: Judgement | None = None
    """The verdict that is shown; None before the first one."""
    _differs_since_ms: int | None = None

    def show(self, judged: Judgement, *, at_ms: int) -> Judgement:
        """Update with the verdict of a moment; returns the one to show."""
        shown = self.shown
        if shown is None or judged.verdict is shown.verdict:
            self._differs_since_ms = None
            self.shown = judged
            return judged
        if self._differs_since_ms is None:
            self._differs_since_ms = at_ms
        is_worse = judged.verdict.severity >= shown.verdict.severity
        after_ms = WORSE_AFTER_MS if is_worse else BETTER_AFTER_MS
        if judged.verdict in _AT_ONCE or at_ms - self._differs_since_ms >= after_ms:
            self._differs_since_ms = None
            self.shown = judged
            return judged
        return shown

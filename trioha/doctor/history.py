"""When findings began and ended, over the examinations of one run of `trioha doctor --watch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, evolve, field, frozen

from trioha.doctor.findings import Finding

ENDED_KEPT_MS: Final = 600_000
"""How long a finding that has ended is shown."""


@frozen(kw_only=True)
class Course:
    """A finding over time."""

    finding: Finding
    """As of the last examination that found it."""
    since_ms: int
    """Wall clock of the first examination that found it, ms since 1970."""
    ended_ms: int | None = None
    """Wall clock of the first examination without it; None while it lasts."""


@define
class History:
    """The findings of examinations, one after the other."""

    _courses: dict[tuple[str, str], Course] = field(factory=dict, init=False)

    def add(self, findings: Sequence[Finding], *, at_ms: int) -> list[Course]:
        """Add an examination; returns what lasts, in the order of `findings`, then what ended, newest first.

        A finding is the same as before if id and subject are.
        """
        now: dict[tuple[str, str], Finding] = {}
        for finding in findings:
            # Several findings of one check about one subject are one course.
            now.setdefault((finding.id, finding.subject), finding)
        for key, course in list(self._courses.items()):
            if key not in now and course.ended_ms is None:
                self._courses[key] = evolve(course, ended_ms=at_ms)
            elif course.ended_ms is not None and at_ms - course.ended_ms > ENDED_KEPT_MS:
                del self._courses[key]
        for key, finding in now.items():
            known = self._courses.get(key)
            is_new = known is None or known.ended_ms is not None
            since_ms = at_ms if is_new or known is None else known.since_ms
            self._courses[key] = Course(finding=finding, since_ms=since_ms)
        lasting = [
            Course(finding=finding, since_ms=self._courses[finding.id, finding.subject].since_ms)
            for finding in findings
        ]
        ended = [course for course in self._courses.values() if course.ended_ms is not None]
        return lasting + sorted(ended, key=lambda course: -(course.ended_ms or 0))

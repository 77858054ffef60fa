"""Findings, and the registry of the checks that make them.

A check is a function from a `Case` to what it observed. Its decorator gives the id and severity of its
findings; its docstring and `mend` are its documentation, from which docs/doctor.md is written
(`trioha.doctor.reference`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from attrs import frozen

from trioha.severity import Severity

if TYPE_CHECKING:
    from trioha.doctor.case import Case


@frozen(kw_only=True)
class Observation:
    """What a check found at one place."""

    subject: str
    """The broker, file or group that it is about."""
    evidence: str
    """The facts that show it."""
    remedy: str
    """The setting or command that mends it."""
    severity: Severity | None = None
    """Another severity than the check's."""


@frozen(kw_only=True)
class Finding:
    """Something that is wrong, and what to do."""

    id: str
    severity: Severity
    title: str
    """First line of the check's documentation."""
    subject: str
    evidence: str
    remedy: str


@frozen(kw_only=True)
class Check:
    """A registered check."""

    id: str
    severity: Severity
    title: str
    """What is wrong, one line."""
    why: str
    """Why it matters and how it is recognized; paragraphs separated by empty lines."""
    mend: str
    """What to do about it in general."""
    area: str
    """Name of its module."""
    examine: Callable[[Case], Iterable[Observation]]

    def findings(self, case: Case) -> list[Finding]:
        """Run it."""
        return [
            Finding(
                id=self.id,
                severity=one.severity or self.severity,
                title=self.title,
                subject=one.subject,
                evidence=one.evidence,
                remedy=one.remedy,
            )
            for one in self.examine(case)
        ]


CHECKS: Final[dict[str, Check]] = {}
"""All checks by id, in the order of their modules."""

Examine = Callable[["Case"], Iterable[Observation]]


def check(id: str, severity: Severity, *, mend: str) -> Callable[[Examine], Examine]:  # noqa: A002
    """Register a function as the check `id`."""

    def register(examine: Examine) -> Examine:
        text = inspect.getdoc(examine)
        assert text is not None, f"{id} has no documentation"
        title, _, why = text.partition("\n")
        assert id not in CHECKS, f"two checks have the id {id}"
        CHECKS[id] = Check(
            id=id,
            severity=severity,
            title=title.rstrip("."),
            why=why.strip(),
            mend=mend,
            area=examine.__module__.rpartition(".")[2],
            examine=examine,
        )
        return examine

    return register

"""From facts to findings: all checks, the worst findings first."""

from __future__ import annotations

from collections.abc import Sequence

from trioha.doctor import checks
from trioha.doctor.case import Case
from trioha.doctor.facts import Facts
from trioha.doctor.findings import CHECKS, Finding
from trioha.severity import Severity

assert checks.AREAS, "the import registers the checks"


def findings_of(case: Case, names: Sequence[str]) -> list[Finding]:
    """Findings of the checks with these ids, in their order."""
    return [finding for name in names for finding in CHECKS[name].findings(case)]


def diagnose(facts: Facts, *, least: Severity = Severity.NOTICE) -> list[Finding]:
    """Findings of at least that severity, the worst first, then in the order of the checks."""
    case = Case.of(facts)
    found = findings_of(case, tuple(CHECKS))
    kept = [finding for finding in found if finding.severity >= least]
    return sorted(kept, key=lambda finding: -finding.severity)

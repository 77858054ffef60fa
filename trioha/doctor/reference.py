"""The documentation of the checks as Markdown: the part of docs/doctor.md between its two markers."""

from __future__ import annotations

from typing import Final

from trioha.doctor.checks import AREAS
from trioha.doctor.findings import CHECKS, Check

BEGIN: Final = "<!-- checks: written by python -m trioha.doctor.reference -->"
END: Final = "<!-- end of checks -->"


def reference() -> str:
    """A section for each area, with a part for each check."""
    parts = []
    for area, heading in AREAS.items():
        parts.append(f"## {heading}\n")
        parts += [_part(check) for check in CHECKS.values() if check.area == area]
    return "\n".join(parts)


def with_reference(page: str) -> str:
    """`page` with the reference as it is now between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{after}"


def _part(check: Check) -> str:
    why = "\n".join(f"{line}" for line in check.why.splitlines())
    return f"### {check.id}\n\n**{check.title}.** ({check.severity.word})\n\n{why}\n\nMend: {check.mend}\n"


if __name__ == "__main__":
    import sys
    from pathlib import Path

    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/doctor.md")
    path.write_text(with_reference(path.read_text()))

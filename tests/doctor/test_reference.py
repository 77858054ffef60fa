"""docs/doctor.md has every check as it is."""

from pathlib import Path

from trioha.doctor.checks import AREAS
from trioha.doctor.findings import CHECKS
from trioha.doctor.reference import reference, with_reference

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_the_page_is_written_of_the_registry():
    text = PAGE.read_text()
    assert with_reference(text) == text, "run: python -m trioha.doctor.reference"


def test_every_check_is_documented_once():
    lines = reference().splitlines()
    for check in CHECKS.values():
        assert lines.count(f"### {check.id}") == 1
        assert check.title
        assert check.why
        assert check.mend
        assert check.area in AREAS


def test_the_number_of_checks_in_the_page_is_right():
    assert f"no findings ({len(CHECKS)} checks)" in PAGE.read_text()

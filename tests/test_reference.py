"""docs/reference is what the code says."""

from __future__ import annotations

import pytest

from docs.make_reference import FOLDER, PAGES
from trioha.config.broker import SETTINGS


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_written_of_the_code(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run: python docs/make_reference.py"


def test_there_are_no_other_pages() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_setting_has_a_meaning() -> None:
    rows = [line.split(" | ") for line in (FOLDER / "settings.md").read_text().splitlines()]
    of_keys = {cells[0].strip("| `"): cells for cells in rows if cells[0].startswith("| `")}
    for setting in SETTINGS.values():
        assert len(of_keys[setting.key][-1]) > len("| x"), setting.key

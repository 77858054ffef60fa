"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Deadlines of single examples measure the machine's load, not the code.
settings.register_profile("trioha", deadline=None)
settings.load_profile("trioha")

TESTS = Path(__file__).parent
TOGETHER = frozenset(("interop", "spark"))
"""Folders whose tests share a JVM that takes long to start: they run in one process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of one file run in one."""
    for item in items:
        place = item.path.relative_to(TESTS)
        group = place.parts[0] if place.parts[0] in TOGETHER else place.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))

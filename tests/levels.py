"""Three levels of tests: `test`, `all` and `nightly`.

| level | run by | a test belongs to it |
|---|---|---|
| test | `make test` | without a mark |
| all | `make test-all` | with `@pytest.mark.full` |
| nightly | `make nightly` | with `@pytest.mark.nightly` |

Each level contains those above it. `make test-all` runs `make test` and then the level `rest`: what `all` has
beyond `test`. Tests whose number of examples grows with the level belong to `rest`, too: those of hypothesis,
and those that use `by_level` and have `@pytest.mark.sized`.

A test that is named on the command line (`path::name`) runs at any level.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

TEST, ALL, REST, NIGHTLY = "test", "all", "rest", "nightly"
LEVELS: Final = (TEST, ALL, REST, NIGHTLY)
BEYOND: Final = {"full": "make test-all", "nightly": "make nightly"}
"""Marks of tests that `make test` leaves out, and what runs them."""
_PROFILES: Final = {TEST: "quick", ALL: "ci", REST: "ci", NIGHTLY: "nightly"}

Size = TypeVar("Size")

# No deadline for an example: it would measure the machine's load, not the code.
for _name, _examples, _is_fixed in (("quick", 25, True), ("ci", 150, False), ("nightly", 3000, False)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_is_fixed,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )

_level = TEST


def use_level(level: str) -> None:
    """Set the level of this process, before test modules are imported."""
    global _level  # noqa: PLW0603 - a process has one level
    _level = level
    settings.load_profile(_PROFILES[level])


def by_level(test: Size, full: Size, nightly: Size) -> Size:
    """The size of a test at the level of this run. The test has `@pytest.mark.sized`."""
    return {TEST: test, ALL: full, REST: full, NIGHTLY: nightly}[_level]


def left_out_by(item: pytest.Item, *, level: str) -> str | None:
    """The mark for which a level leaves a test out, or `test` if `make test` runs it; None if it runs."""
    marks = {mark.name for mark in item.iter_markers()}
    if "nightly" in marks:
        return None if level == NIGHTLY else "nightly"
    if "full" in marks:
        return "full" if level == TEST else None
    if level != REST or "sized" in marks or is_hypothesis_test(getattr(item, "obj", None)):
        return None
    return "test"


def is_named(item: pytest.Item, arguments: Sequence[str]) -> bool:
    """Whether the command line names a test itself, not only its file or folder."""
    named = (argument.split("[")[0].partition("::") for argument in arguments if "::" in argument)
    return any(
        item.path.name == Path(path).name and item.nodeid.split("[")[0].endswith(f"::{name}")
        for path, _, name in named
    )

"""Planted defects: deliberate bugs, one at a time, that a test must find, or its checks prove nothing.

A module has a list of them, and `plants` adds one. In this process a defect is there within
`defect.planted()`, in a process of its own with `defect.program`, which stands for the command `trioha`.
docs/faults.md has a table of all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module

from attrs import frozen


@frozen
class Defect:
    """A deliberate bug."""

    what: str
    """A sentence: what is wrong."""
    plant: Callable[[], Iterator[None]]
    seed: int
    """The first seed of a simulation that finds it."""
    option: str
    """Which plans of a simulation find it: an option of its command."""

    def planted(self) -> AbstractContextManager[None]:
        """It is there inside."""
        return contextmanager(self.plant)()

    @property
    def program(self) -> list[str]:
        """What to start in place of `trioha`."""
        return program_of(f"{self.plant.__module__}:{self.plant.__name__}")


def program_of(name: str) -> list[str]:
    """What to start in place of `trioha` for the defect MODULE:NAME."""
    return [sys.executable, "-m", "tests.simulation.planting", name]


def plants(
    defects: list[Defect], what: str, *, seed: int = 0, option: str = ""
) -> Callable[[Callable[[], Iterator[None]]], Defect]:
    """Add a defect to a list of them."""

    def note(plant: Callable[[], Iterator[None]]) -> Defect:
        defects.append(Defect(what, plant, seed, option))
        return defects[-1]

    return note


def main() -> int:
    """Run `trioha` with a defect: `python -m tests.simulation.planting MODULE:NAME ARGUMENTS`."""
    module, _, name = sys.argv.pop(1).partition(":")
    defect: Defect = getattr(import_module(module), name)
    with defect.planted():
        from trioha.cli import main as trioha

        return trioha()


if __name__ == "__main__":
    sys.exit(main())

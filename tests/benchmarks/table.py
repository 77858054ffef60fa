"""Figures of two systems side by side, as a Markdown table: medians of runs, and what misses its goal."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from attrs import Factory, define, frozen

from tests.benchmarks.machine import Meter

TO_REACH: Final = 1.2
"""Times better, as a median of the runs."""
LOWEST: Final = 1.0
"""Times better, in any run."""

T = TypeVar("T")


@frozen
class Line:
    """A line of the table: what is measured."""

    work: str
    unit: str
    cpu_for: str = ""
    """What the CPU seconds are for; empty if they are not measured."""
    lower_is_better: bool = False
    has_goal: bool = True


@define
class Series:
    """One figure of one system in one run: a value for each round."""

    values: list[float] = Factory(list)
    cpu_s: list[float] = Factory(list)
    """CPU time of all its nodes for a unit of work."""
    others_cores: list[float] = Factory(list)
    """Cores that other processes kept busy."""

    def note(self, value: float, meter: Meter, *, units: float | None = None) -> None:
        """One more round; the CPU time that the meter has is for so many units of work."""
        self.values.append(value)
        self.others_cores.append(meter.others_cores)
        if units is not None:
            self.cpu_s.append(meter.cpu_s / units)


Run = Mapping[Line, Mapping[str, Series]]
"""The figures of one run by line and system."""


def turns(sides: Sequence[T], *, rounds: int) -> Iterator[tuple[T, bool]]:
    """The sides in turn, and whether the round counts: the first one warms up, above all the JVMs.

    The order is reversed in every other round, so that neither side always follows.
    """
    for number in range(rounds + 1):
        for side in sides if number % 2 else sides[::-1]:
            yield side, number > 0


def markdown(runs: Sequence[Run], *, ours: str, theirs: str) -> str:
    """A table of the medians of runs, each the median of its rounds, and a sentence on what misses its goal.

    Bold is what misses one: a ratio below `TO_REACH`, a run of it below `LOWEST`, more CPU time than theirs.
    """
    heading = (
        "work", "unit", ours, theirs, "times better", "lowest run",
        "CPU s for", f"{ours}, CPU", f"{theirs}, CPU", "others",
    )  # fmt: skip
    missed: list[str] = []
    rows = [_cells(line, runs, ours, theirs, missed) for line in runs[0]]
    said = (
        f"Lines that miss a goal: {'; '.join(missed)}."
        if missed
        else f"All lines are at least {TO_REACH} times better, none is below {LOWEST} in a run or takes more "
        f"CPU time than {theirs}."
    )
    table = [heading, ("---", "---", *["--:"] * 4, "---", *["--:"] * 3), *rows]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in table), "", said])


def _cells(line: Line, runs: Sequence[Run], ours: str, theirs: str, missed: list[str]) -> list[str]:
    def medians(side: str, values: Callable[[Series], list[float]]) -> list[float]:
        return [statistics.median(values(run[line][side])) for run in runs]

    our_values, their_values = (medians(side, lambda one: one.values) for side in (ours, theirs))
    ratios = [
        _ratio(theirs_, ours_) if line.lower_is_better else _ratio(ours_, theirs_)
        for ours_, theirs_ in zip(our_values, their_values, strict=True)
    ]
    ratio, lowest = statistics.median(ratios), min(ratios)
    is_short, is_low = (
        line.has_goal and value < goal for value, goal in ((ratio, TO_REACH), (lowest, LOWEST))
    )
    cpu, uses_more = ["", ""], False
    if line.cpu_for:
        our_cpu, their_cpu = (
            statistics.median(medians(side, lambda one: one.cpu_s)) for side in (ours, theirs)
        )
        uses_more = line.has_goal and our_cpu > their_cpu
        cpu = [_bold(_number(our_cpu), uses_more), _number(their_cpu)]
    if is_short or is_low or uses_more:
        missed.append(line.work)
    others = max(statistics.median(medians(side, lambda one: one.others_cores)) for side in (ours, theirs))
    return [
        line.work,
        line.unit,
        _number(statistics.median(our_values)),
        _number(statistics.median(their_values)),
        _bold(f"{ratio:.2f}", is_short),
        _bold(f"{lowest:.2f}", is_low),
        line.cpu_for,
        *cpu,
        f"{others:.2f}",
    ]


def _ratio(better: float, worse: float) -> float:
    return better / worse if worse else float("inf")


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def on_page(page: str, table: str, *, begin: str, end: str) -> str:
    """The page with the table in place of what is between the lines `begin` and `end`. Raises ValueError."""
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page has no place for the table: {begin} ... {end}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"

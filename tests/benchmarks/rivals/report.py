"""Figures of both rivals side by side: their ratio, its spread, CPU seconds, and the ratio to reach."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import cattrs
from attrs import evolve, frozen
from rich.console import Console
from rich.table import Table

from tests.benchmarks.rivals.rounds import Series, conditions, java_version

NOISY: Final = 1.2
"""A figure is noisy if its highest value is more than this multiple of its lowest."""
_HEADINGS: Final = (
    "unit", "trioha", "RocketMQ", "times better", "to reach",
    "CPU s for", "trioha", "RocketMQ", "load", "others",
)  # fmt: skip


@frozen
class Line:
    """One figure of both."""

    work: str
    unit: str
    trioha: Series
    rocketmq: Series
    lower_is_better: bool = False
    goal: float | None = None
    """The ratio to reach."""
    limit: float | None = None
    """A value that trioha must not exceed, instead of a ratio."""
    cpu_for: str = ""
    """What the CPU seconds are for; empty if they were not measured."""
    ratios_of_runs: tuple[float, ...] = ()
    """Of each run, in a line that was made of several."""

    @property
    def ratios(self) -> Sequence[float]:
        """How many times better trioha is, in each round or run: twice the speed, or half the time, is 2."""
        if self.ratios_of_runs:
            return self.ratios_of_runs
        return [
            self._ratio(ours, theirs)
            for ours, theirs in zip(self.trioha.values, self.rocketmq.values, strict=True)
        ]

    @property
    def ratio(self) -> float:
        """That of the medians of rounds, or the median of the runs."""
        if self.ratios_of_runs:
            return statistics.median(self.ratios_of_runs)
        return self._ratio(statistics.median(self.trioha.values), statistics.median(self.rocketmq.values))

    def _ratio(self, ours: float, theirs: float) -> float:
        better, worse = (theirs, ours) if self.lower_is_better else (ours, theirs)
        return better / worse if worse else float("inf")

    @property
    def is_reached(self) -> bool:
        """Whether the goal is; without one nothing can be missed."""
        if self.limit is not None:
            return statistics.median(self.trioha.values) <= self.limit
        return self.goal is None or self.ratio >= self.goal

    def cells(self) -> list[str]:
        """For the columns of a table; a ratio that misses its goal is bold."""
        sides = (self.trioha, self.rocketmq)
        ratio, blank, spread = _with_spread(self.ratio, self.ratios, digits=2).partition(" ")
        if self.limit is not None:
            to_reach = f"under {self.limit:g} {self.unit}"
        else:
            to_reach = "" if self.goal is None else f"{self.goal:.3g}"
        others = [statistics.median(side.others_cores) for side in sides if side.others_cores]
        return [
            self.work,
            self.unit,
            *(_with_spread(statistics.median(side.values), side.values) for side in sides),
            f"{ratio if self.is_reached else f'**{ratio}**'}{blank}{spread}",
            to_reach,
            self.cpu_for,
            *(_number(statistics.median(side.cpu_s)) if side.cpu_s else "" for side in sides),
            f"{max(max(side.load_averages) for side in sides):.1f}",
            f"{max(others):.2f}" if others else "",
        ]


def _with_spread(median: float, values: Sequence[float], *, digits: int | None = None) -> str:
    """A median, with the lowest and the highest value where they differ much."""

    def shown(value: float) -> str:
        return _number(value) if digits is None else f"{value:.{digits}f}"

    low, high = min(values), max(values)
    return shown(median) if high <= NOISY * low else f"{shown(median)} ({shown(low)}..{shown(high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@frozen(kw_only=True)
class Run:
    """The lines of one run of a benchmark, or of several that were merged, and how they were measured."""

    benchmark: str
    date: str
    cpu: str
    cores: int
    memory_gb: int
    python: str
    trioha: str
    kernel: str
    rocketmq: str
    java: str
    is_quick: bool
    rounds: int
    seconds: float
    lines: list[Line]
    runs: int = 1

    def described(self) -> str:
        """Some sentences for below a table."""
        runs = f"{self.runs} runs, each of " if self.runs > 1 else ""
        return (
            f"{self.date}, {self.cores} cores of {self.cpu}, {self.memory_gb} GB, "
            f"CPython {self.python}, trioha {self.trioha} (kernel: {self.kernel}), "
            f"RocketMQ {self.rocketmq} on Java {self.java}. "
            f"Medians of {runs}{self.rounds} round{'s' if self.rounds > 1 else ''} "
            "after 1 round that warmed the JVMs up; rivals in turn, the order reversed in every other round. "
            "In brackets the lowest and the highest value where they differ by more than 20 %. load: highest "
            "1-minute average, the benchmark included; others: cores busy with other processes."
        )

    def table(self) -> Table:
        """For a terminal."""
        shown = Table(title=f"{self.benchmark}: trioha beside RocketMQ, medians")
        shown.add_column("work")
        for heading in _HEADINGS:
            shown.add_column(heading, justify="right")
        for line in self.lines:
            cells = (cell.replace("**", "").replace(" (", "\n(") for cell in line.cells())
            shown.add_row(*cells, style=None if line.is_reached else "yellow")
        return shown

    def markdown(self) -> str:
        """For docs/benchmarks.md."""
        rows = [("work", *_HEADINGS), *(line.cells() for line in self.lines)]
        heading, *lines = (f"| {' | '.join(row)} |" for row in rows)
        return "\n".join(
            [heading, "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|", *lines, "", self.described()]
        )


def show_run(
    benchmark: str, lines: list[Line], *, options: argparse.Namespace, rounds: int, seconds: float
) -> None:
    """Print what came out, as it was asked for."""
    run = Run(
        benchmark=benchmark,
        **conditions(),  # type: ignore[arg-type]
        rocketmq=options.rocketmq,
        java=java_version(),
        is_quick=options.quick,
        rounds=rounds,
        seconds=round(seconds, 1),
        lines=lines,
    )
    if options.json:
        print(json.dumps(cattrs.unstructure(run)))
        return
    Console(width=160 if not sys.stdout.isatty() else None).print(run.table())
    print(f"{run.described()} {run.seconds:.0f} s.")


def run_of(printed: Mapping[str, Any]) -> Run:
    """A run from its JSON."""
    return cattrs.structure(printed, Run)


def merge(runs: Sequence[Run]) -> Run:
    """One run of several: medians of the runs' medians, with the runs' spread; conditions of the first one.

    Raises ValueError for runs of different rivals, and of whole runs and quick ones.
    """
    kinds = {(run.rocketmq, run.is_quick) for run in runs}
    if len(kinds) > 1:
        said = ", ".join(f"{version}{' --quick' if quick else ''}" for version, quick in sorted(kinds))
        raise ValueError(f"runs that cannot be compared with each other: {said}")
    groups: dict[tuple[str, str], list[Line]] = {}
    for run in runs:
        for line in run.lines:
            groups.setdefault((line.work, line.unit), []).append(line)
    return evolve(
        runs[0],
        seconds=sum(run.seconds for run in runs),
        lines=[_merged(group) for group in groups.values()],
        runs=max(sum(run.benchmark == one.benchmark for run in runs) for one in runs),
    )


def _merged(group: Sequence[Line]) -> Line:
    if len(group) == 1:
        return group[0]
    goals = [line.goal for line in group if line.goal is not None]
    return evolve(
        group[-1],
        trioha=_joined(line.trioha for line in group),
        rocketmq=_joined(line.rocketmq for line in group),
        goal=statistics.median(goals) if goals else None,
        ratios_of_runs=tuple(line.ratio for line in group),
    )


def _joined(sides: Iterable[Series]) -> Series:
    """The medians of several runs; the highest load of each."""
    joined = Series()
    for side in sides:
        middle = side.middle()
        joined.values += middle.values
        joined.cpu_s += middle.cpu_s
        joined.load_averages.append(max(side.load_averages))
        joined.others_cores += middle.others_cores
    return joined

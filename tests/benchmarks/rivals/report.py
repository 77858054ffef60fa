"""Figures of both rivals side by side: their ratio, its spread, CPU seconds, and the ratio to reach.

Both benchmarks against RocketMQ print the same lines, as a table, as Markdown or as JSON. `merge` makes the
lines of several runs, read from their JSON, into one table of medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen
from rich.table import Table

from tests.benchmarks.rivals.sides import RAW_SENDER
from tests.benchmarks.rivals.works import SLAVES, Series, Sizes

NOISY: Final = 1.2
"""A figure is noisy if its highest value is more than this multiple of its lowest."""
_HEADINGS: Final = (
    "unit", "trioha", "RocketMQ", "times better", "to reach",
    "CPU s for", "trioha", "RocketMQ", "load", "others",
)  # fmt: skip


@frozen
class Side:
    """One rival's figure."""

    values: Sequence[float]
    """Of each round, or the medians of several runs."""
    cpu_s: Mapping[str, Sequence[float]] = field(factory=dict)
    """CPU time for a unit of work, by process (master, slave, broker), in the order of `values`."""

    @property
    def median(self) -> float:
        """Of the values."""
        return statistics.median(self.values)

    @property
    def cpu_total_s(self) -> float | None:
        """Median of the CPU time of all processes; None where it was not measured."""
        totals = [sum(parts) for parts in zip(*self.cpu_s.values(), strict=True)]
        return statistics.median(totals) if totals else None


@frozen
class Line:
    """One figure of both."""

    work: str
    unit: str
    trioha: Side
    rocketmq: Side
    lower_is_better: bool = False
    goal: float | None = None
    """The ratio to reach."""
    limit: float | None = None
    """A value that trioha must not exceed, instead of a ratio."""
    cpu_for: str = ""
    """What the CPU seconds are for; empty if they were not measured."""
    load_average: float = 0.0
    """The highest 1-minute load average at the end of a round, the benchmark included."""
    others_cores: float | None = None
    """Cores that other processes kept busy, of the rival with more; None where it is not known."""
    ratios_of_runs: Sequence[float] = ()
    """Of each run, in a line that was made of several."""

    @property
    def ratio(self) -> float:
        """How many times better trioha is: 2 means twice the speed, or half the time or memory."""
        if self.ratios_of_runs:
            return statistics.median(self.ratios_of_runs)
        return self._ratio(self.trioha.median, self.rocketmq.median)

    @property
    def ratios(self) -> Sequence[float]:
        """Of neighbouring rounds, or of runs."""
        if self.ratios_of_runs:
            return self.ratios_of_runs
        return [
            self._ratio(ours, theirs)
            for ours, theirs in zip(self.trioha.values, self.rocketmq.values, strict=True)
        ]

    def _ratio(self, ours: float, theirs: float) -> float:
        better, worse = (theirs, ours) if self.lower_is_better else (ours, theirs)
        return better / worse if worse else float("inf")

    @property
    def reached(self) -> bool:
        """Whether the goal is; without one nothing can be missed."""
        if self.limit is not None:
            return self.trioha.median <= self.limit
        return self.goal is None or self.ratio >= self.goal

    @property
    def to_reach(self) -> str:
        """The goal in words; empty without one."""
        if self.limit is not None:
            return f"under {self.limit:g} {self.unit}"
        return "" if self.goal is None else f"{self.goal:.3g}"


def lines(results: Mapping[str, Series], sizes: Sizes, *, trioha: str, java: str) -> list[Line]:
    """Every figure of `works` that was measured, in their order."""
    found: list[Line] = []

    def add(
        work: str,
        unit: str,
        ours: str,
        theirs: str,
        *,
        lower: bool = False,
        goal: float | None = None,
        cpu_for: str = "",
    ) -> None:
        if ours not in results or theirs not in results:
            return
        both = results[ours], results[theirs]
        known = [series.others_cores for series in both if series.others_cores is not None]
        found.append(
            Line(
                work,
                unit,
                *(Side(series.values, series.cpu_s) for series in both),
                lower_is_better=lower,
                goal=goal,
                cpu_for=cpu_for,
                load_average=max(series.load_average for series in both),
                others_cores=max(known, default=None),
            )
        )

    both = f"catch-up/{java} to {java}"
    to_java = 1.0
    if both in results and (raw := f"catch-up/{RAW_SENDER} to {java}") in results:
        # No master sends faster than a program that does nothing else.
        to_java = min(to_java, results[raw].median / results[both].median)
    for name, ours, goal in (
        (
            f"catch-up of {sizes.catch_up_bytes // 10**6} MB, every record checked",
            f"{trioha} to {trioha}",
            1.8,
        ),
        ("catch-up, frames checked only", f"{trioha} to {trioha}, haVerify=frame", 2),
        ("catch-up, trioha master, RocketMQ slave", f"{trioha} to {java}", to_java),
        ("catch-up, raw sender, RocketMQ slave", f"{RAW_SENDER} to {java}", None),
        ("catch-up, RocketMQ master, trioha slave", f"{java} to {trioha}", 1.2),
    ):
        add(name, "MB/s", f"catch-up/{ours}", both, goal=goal, cpu_for="GB")
    a_million = "million puts"
    for metric in ("p50", "p99"):
        key = f"puts/1/{metric}"
        ours, theirs = f"{key}/{trioha}", f"{key}/{java}"
        name = f"put to ack, 1 writer, {metric}"
        add(name, "us", ours, theirs, lower=True, goal=1, cpu_for=a_million)
    for writers, wanted in ((1, None), (16, 1), (256, 3)):
        key = f"puts/{writers}/rate"
        name = f"sync puts, {writers} writer{'s' if writers > 1 else ''}"
        add(name, "1/s", f"{key}/{trioha}", f"{key}/{java}", goal=wanted, cpu_for=a_million)
    name = f"{SLAVES} slaves on one master, all bytes"
    add(name, "MB/s", f"fan-out/{trioha}", f"fan-out/{java}", goal=1.2, cpu_for="GB")
    for key, store in (("empty", "empty store"), ("log", f"{sizes.start_bytes // 10**6} MB log")):
        ours, theirs = f"start/{key}/{trioha}", f"start/{key}/{java}"
        wanted = 10 if key == "empty" else None
        add(f"start to ready, {store}", "s", ours, theirs, lower=True, goal=wanted, cpu_for="start")
    ours, theirs = f"queues/{trioha}", f"queues/{java}"
    add("queues and index built", "rec/s", ours, theirs, goal=2, cpu_for="million records")
    for key in ("catch-up master", "catch-up slave", "puts master", "puts slave"):
        ours, theirs = f"memory/{key}/{trioha}", f"memory/{key}/{java}"
        add(f"private memory, {key}", "MB", ours, theirs, lower=True, goal=10)
    return found


def merge(runs: Iterable[Mapping[str, Any]]) -> list[Line]:
    """The lines of several runs, from their JSON: medians of the runs' medians, with the runs' spread.

    Raises ValueError for runs of different rivals, and of whole runs and quick ones.
    """
    runs = list(runs)
    by_kind: dict[str, set[tuple[object, ...]]] = {}
    for run in runs:
        by_kind.setdefault(run["benchmark"], set()).add((run["rocketmq"], run["quick"]))
    for kind, found in by_kind.items():
        if len(found) > 1:
            said = ", ".join(f"{version}{' --quick' if quick else ''}" for version, quick in sorted(found))
            raise ValueError(f"runs of {kind} that cannot be compared with each other: {said}")
    if len({quick for found in by_kind.values() for _, quick in found}) > 1:
        raise ValueError("whole runs and quick ones cannot be merged")
    groups: dict[tuple[str, str], list[Line]] = {}
    for run in runs:
        for work in run["works"]:
            line = line_of(work)
            groups.setdefault((line.work, line.unit), []).append(line)
    return [_merged(group) for group in groups.values()]


def _merged(group: Sequence[Line]) -> Line:
    if len(group) == 1:
        return group[0]
    known = [line.others_cores for line in group if line.others_cores is not None]
    return evolve(
        group[-1],
        trioha=_median_of_runs([line.trioha for line in group]),
        rocketmq=_median_of_runs([line.rocketmq for line in group]),
        load_average=max(line.load_average for line in group),
        others_cores=statistics.median(known) if known else None,
        goal=None if group[-1].goal is None else statistics.median(line.goal or 0.0 for line in group),
        ratios_of_runs=[line.ratio for line in group],
    )


def _median_of_runs(sides: Sequence[Side]) -> Side:
    processes = set.intersection(*(set(side.cpu_s) for side in sides))
    return Side(
        [side.median for side in sides],
        {
            process: [statistics.median(side.cpu_s[process]) for side in sides]
            for process in sides[-1].cpu_s
            if process in processes
        },
    )


def table(found: Iterable[Line], *, title: str) -> Table:
    """For a terminal."""
    shown = Table(title=title)
    shown.add_column("work")
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right")
    for line in found:
        shown.add_row(line.work, *_cells(line, "\n"), style=None if line.reached else "yellow")
    return shown


def markdown(found: Iterable[Line]) -> str:
    """For docs/benchmarks.md; a ratio that misses its goal is bold."""
    rows = [
        f"| work | {' | '.join(_HEADINGS)} |",
        "|---|---|--:|--:|--:|--:|---|--:|--:|--:|--:|",
    ]
    for line in found:
        cells = _cells(line, " ")
        if not line.reached:
            ratio, _, spread = cells[3].partition(" ")
            cells[3] = f"**{ratio}** {spread}".strip()
        rows.append(f"| {line.work} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cells(line: Line, split: str) -> list[str]:
    """Of the columns after the first; `split` stands before a spread."""
    return [
        line.unit,
        _with_spread(line.trioha.median, line.trioha.values, split),
        _with_spread(line.rocketmq.median, line.rocketmq.values, split),
        _with_spread(line.ratio, line.ratios, split, digits=2),
        line.to_reach,
        line.cpu_for,
        *(_seconds(side.cpu_total_s) for side in (line.trioha, line.rocketmq)),
        f"{line.load_average:.1f}",
        "" if line.others_cores is None else f"{line.others_cores:.2f}",
    ]


def _with_spread(median: float, values: Sequence[float], split: str, *, digits: int | None = None) -> str:
    """A median, with the lowest and the highest value where they differ much."""

    def shown(value: float) -> str:
        if digits is not None:
            return f"{value:.{digits}f}"
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    low, high = min(values), max(values)
    if high <= NOISY * low:
        return shown(median)
    return f"{shown(median)}{split}({shown(low)}..{shown(high)})"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(found: Iterable[Line]) -> list[dict[str, object]]:
    """For a machine: medians, and the values of every round or run. `line_of` reads it."""
    return [
        {
            "work": line.work,
            "unit": line.unit,
            "trioha": line.trioha.median,
            "rocketmq": line.rocketmq.median,
            "timesBetter": line.ratio,
            "ratios": list(line.ratios),
            "lowerIsBetter": line.lower_is_better,
            "toReach": line.goal,
            "limit": line.limit,
            "reached": line.reached,
            "rounds": {"trioha": list(line.trioha.values), "rocketmq": list(line.rocketmq.values)},
            "cpuFor": line.cpu_for,
            "cpuS": {
                name: {process: list(used_s) for process, used_s in side.cpu_s.items()}
                for name, side in (("trioha", line.trioha), ("rocketmq", line.rocketmq))
            },
            "loadAverage": line.load_average,
            "othersCores": line.others_cores,
            "runs": len(line.ratios_of_runs) or 1,
        }
        for line in found
    ]


def line_of(work: Mapping[str, Any]) -> Line:
    """A line from the JSON of one."""
    return Line(
        work["work"],
        work["unit"],
        *(Side(work["rounds"][name], work["cpuS"][name]) for name in ("trioha", "rocketmq")),
        lower_is_better=work["lowerIsBetter"],
        goal=work["toReach"],
        limit=work["limit"],
        cpu_for=work["cpuFor"],
        load_average=work["loadAverage"],
        others_cores=work["othersCores"],
        ratios_of_runs=work["ratios"] if work["runs"] > 1 else (),
    )

"""The measured figures of both rivals side by side, with their ratio and what it is to reach."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from rich.table import Table

from tests.benchmarks.rivals.works import SLAVES, Series, Sizes


@frozen
class Line:
    """One figure of both."""

    name: str
    unit: str
    trioha: Series
    rocketmq: Series
    lower_is_better: bool
    goal: float | None
    """The ratio to reach."""

    @property
    def ratio(self) -> float:
        """How many times better trioha is: 2 means twice the speed, or half the time or memory."""
        ours, theirs = self.trioha.median, self.rocketmq.median
        return theirs / ours if self.lower_is_better else ours / theirs

    @property
    def others_cores(self) -> float | None:
        """Cores that others kept busy: the worse of the two; None where it is not known."""
        known = [
            cores for cores in (self.trioha.others_cores, self.rocketmq.others_cores) if cores is not None
        ]
        return max(known, default=None)

    @property
    def reached(self) -> bool:
        """Whether the goal is; without one nothing can be missed."""
        return self.goal is None or self.ratio >= self.goal


def lines(results: Mapping[str, Series], sizes: Sizes, *, trioha: str, java: str) -> list[Line]:
    """Every figure that was measured, in the order of the works."""
    found: list[Line] = []

    def add(
        name: str, unit: str, ours: str, theirs: str, *, lower: bool = False, goal: float | None = None
    ) -> None:
        if ours in results and theirs in results:
            found.append(Line(name, unit, results[ours], results[theirs], lower, goal))

    both = f"catch-up/{java} to {java}"
    megabytes = sizes.catch_up_bytes // 10**6
    add(
        f"catch-up of {megabytes} MB, every record checked",
        "MB/s",
        f"catch-up/{trioha} to {trioha}",
        both,
        goal=1.5,
    )
    frame = f"{trioha}, haVerify=frame"
    add("catch-up, frames checked only", "MB/s", f"catch-up/{trioha} to {frame}", both, goal=4)
    add("catch-up, trioha master, RocketMQ slave", "MB/s", f"catch-up/{trioha} to {java}", both, goal=1)
    add("catch-up, RocketMQ master, trioha slave", "MB/s", f"catch-up/{java} to {trioha}", both, goal=1)
    for metric in ("p50", "p99"):
        key = f"puts/1/{metric}"
        add(f"put to ack, 1 writer, {metric}", "us", f"{key}/{trioha}", f"{key}/{java}", lower=True, goal=1)
    for writers, goal in ((1, None), (16, 2), (256, 3)):
        key = f"puts/{writers}/rate"
        add(f"sync puts, {writers} writers", "1/s", f"{key}/{trioha}", f"{key}/{java}", goal=goal)
    add(f"{SLAVES} slaves on one master, all bytes", "MB/s", f"fan-out/{trioha}", f"fan-out/{java}", goal=3)
    for key, name in (("empty", "empty store"), ("log", f"{sizes.start_bytes // 10**6} MB log")):
        ours, theirs = f"start/{key}/{trioha}", f"start/{key}/{java}"
        add(f"start to ready, {name}", "s", ours, theirs, lower=True, goal=10 if key == "empty" else None)
    add("queues and index built", "rec/s", f"queues/{trioha}", f"queues/{java}", goal=1.5)
    for key in ("catch-up master", "catch-up slave", "puts master", "puts slave"):
        ours, theirs = f"memory/{key}/{trioha}", f"memory/{key}/{java}"
        add(f"private memory, {key}", "MB", ours, theirs, lower=True, goal=10)
    return found


def table(found: list[Line]) -> Table:
    """For a terminal."""
    shown = Table(title="trioha against the real RocketMQ store, medians")
    shown.add_column("work")
    for heading in ("unit", "trioha", "RocketMQ", "times better", "to reach", "load", "others"):
        shown.add_column(heading, justify="right")
    for line in found:
        loads = (line.trioha, line.rocketmq)
        shown.add_row(
            line.name,
            line.unit,
            _figure(line.trioha.median),
            _figure(line.rocketmq.median),
            f"{line.ratio:.2f}",
            "" if line.goal is None else f"{line.goal:g}",
            f"{max(series.load_average for series in loads):.1f}",
            "" if line.others_cores is None else f"{line.others_cores:.2f}",
            style=None if line.reached else "yellow",
        )
    return shown


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(found: list[Line]) -> list[dict[str, object]]:
    """For a machine: medians, and the values of every round."""
    return [
        {
            "work": line.name,
            "unit": line.unit,
            "trioha": line.trioha.median,
            "rocketmq": line.rocketmq.median,
            "timesBetter": line.ratio,
            "toReach": line.goal,
            "reached": line.reached,
            "rounds": {"trioha": line.trioha.values, "rocketmq": line.rocketmq.values},
            "loadAverage": max(line.trioha.load_average, line.rocketmq.load_average),
            "othersCores": line.others_cores,
        }
        for line in found
    ]

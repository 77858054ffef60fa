"""One run of the benchmarks: both systems, the folder of their stores, how much there is to do, figures."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from attrs import Factory, define, frozen

from tests.benchmarks.driver import JavaDriver
from tests.benchmarks.machine import Meter
from tests.benchmarks.systems import Pair, System, pair_of
from tests.benchmarks.table import Line, Series, turns

T = TypeVar("T")


@frozen
class Sizes:
    """How much work there is."""

    rounds: int
    """Those that count; one that warms up comes before them."""
    send_s: float = 5.0
    """How long the Java client sends in a round."""
    raw_s: float = 3.0
    backlog_bytes: int = 10**9
    latency_s: int = 10
    idle_s: float = 5.0
    timers: int = 10_000
    pops: int = 20_000
    log_bytes: int = 400 * 10**6
    """Log that a slave catches up with, that a broker starts on, and that queues are built from."""
    fan_out_bytes: int = 60 * 10**6
    """Log that each of several slaves takes."""


QUICK = Sizes(
    rounds=1, send_s=1.5, raw_s=1.0, backlog_bytes=50 * 10**6, latency_s=3, idle_s=2.0, timers=2000,
    pops=4000, log_bytes=100 * 10**6, fan_out_bytes=20 * 10**6,
)  # fmt: skip


@define(slots=False)
class Bench:
    """One run."""

    ours: System
    theirs: System
    rocketmq_version: str
    """Of the Java client."""
    folder: Path
    sizes: Sizes
    running: ExitStack
    """Ends the processes that live as long as the run."""
    run: dict[Line, dict[str, Series]] = Factory(lambda: defaultdict(lambda: defaultdict(Series)))
    _ids: count[int] = Factory(count)

    @cached_property
    def java(self) -> JavaDriver:
        """The JVM with RocketMQ's clients and slaves, started when it is first asked for."""
        driver = JavaDriver(self.new_folder("java"), version=self.rocketmq_version)
        self.running.callback(driver.close)
        return driver

    @cached_property
    def pairs(self) -> tuple[Pair, Pair]:
        """A SYNC pair of each system, started when they are first asked for."""
        ours, theirs = (
            self.running.enter_context(pair_of(system, self.new_folder("pair")))
            for system in (self.ours, self.theirs)
        )
        return ours, theirs

    def new_name(self, what: str) -> str:
        """A name of a folder, topic or group that was not used before."""
        return f"{what}-{next(self._ids)}"

    def new_folder(self, what: str) -> Path:
        """An empty folder."""
        folder = self.folder / self.new_name(what)
        folder.mkdir()
        return folder

    def turns(
        self, what: str, sides: Sequence[T], *, name_of: Callable[[T], str]
    ) -> Iterator[tuple[T, Callable[..., None]]]:
        """The sides in turn, each with what notes a figure of the round: nothing in the one that warms up."""
        for side, counts in turns(sides, rounds=self.sizes.rounds):
            self.step(f"{what}: {name_of(side)}")
            yield side, self.note if counts else _ignore

    def note(
        self, line: Line, system: str, value: float, meter: Meter, *, units: float | None = None
    ) -> None:
        """One more value of a line; the CPU time that the meter has is for so many units of work."""
        self.run[line][system].note(value, meter, units=units)

    def step(self, what: str) -> None:
        """Say what comes next."""
        print(what, file=sys.stderr, flush=True)


def _ignore(*_arguments: Any, **_options: Any) -> None:
    """A round that warms up is not noted."""

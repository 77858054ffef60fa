"""What the benchmarks share: options, the order of rounds, the values of a figure, where it was measured."""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from attrs import Factory, define

import trioha
from tests.benchmarks.rivals.machine import Meter
from tests.interop.rocketmq import ALL_VERSIONS, is_5, java_tool
from trioha.store import compiled

RIVALS: Final = tuple(filter(is_5, ALL_VERSIONS))
"""Versions to compare with; the last one is the newest."""

T = TypeVar("T")


def parser_of(what: str | None, works: Collection[str] = ()) -> argparse.ArgumentParser:
    """Options of a benchmark beside RocketMQ; of one with several works, `parse_options` reads them."""
    parser = argparse.ArgumentParser(description=(what or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--rocketmq",
        metavar="VERSION",
        default=RIVALS[-1],
        choices=RIVALS,
        help="the rival, of " + ", ".join(RIVALS) + " (default: the newest)",
    )
    parser.add_argument("--folder", type=Path, help="where to put the stores (default: the temporary folder)")
    parser.add_argument(
        "--wait-idle",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait at most, before each measurement, for others to leave the machine alone",
    )
    parser.set_defaults(quick=False)
    if works:
        parser.add_argument("--works", default=",".join(works), help="which, split by commas")
        parser.add_argument("--quick", action="store_true", help="one round of small works")
        parser.add_argument("--rounds", type=int, help="rounds that count, after one that warms up")
    return parser


def parse_options(parser: argparse.ArgumentParser, works: Collection[str]) -> argparse.Namespace:
    """What the command line asks for; an unknown work is an error."""
    options = parser.parse_args()
    options.works = options.works.split(",")
    if unknown := [work for work in options.works if work not in works]:
        parser.error(f"no such work: {', '.join(unknown)}; there are {', '.join(works)}")
    options.rounds = options.rounds or (1 if options.quick else 3)
    return options


def turns(sides: Sequence[T], *, rounds: int) -> Iterator[tuple[T, bool]]:
    """The sides in turn, and whether the round counts: the first one warms up, above all the JVMs.

    The order is reversed in every other round, so that neither rival always follows.
    """
    for number in range(rounds + 1):
        for side in sides if number % 2 else sides[::-1]:
            yield side, number > 0


@define
class Series:
    """One figure of one side: a value for each round, or the medians of several runs."""

    values: list[float] = Factory(list)
    cpu_s: list[float] = Factory(list)
    """CPU time of all its processes for a unit of work; empty where that was not measured."""
    load_averages: list[float] = Factory(list)
    """1-minute load averages, the benchmark included."""
    others_cores: list[float] = Factory(list)
    """Cores that other processes kept busy."""

    def note(self, value: float, meter: Meter, *, cpu_s: float | None = None) -> None:
        """One more round; `cpu_s` is for a unit of work."""
        self.values.append(value)
        self.load_averages.append(meter.load_average)
        self.others_cores.append(meter.others_cores)
        if cpu_s is not None:
            self.cpu_s.append(cpu_s)

    def middle(self) -> Series:
        """The median of each."""
        columns = (self.values, self.cpu_s, self.load_averages, self.others_cores)
        return Series(*([statistics.median(column)] if column else [] for column in columns))


def conditions() -> dict[str, object]:
    """Of this machine and this Python."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9),
        "python": platform.python_version(),
        "trioha": trioha.__version__,
        "kernel": compiled.DESCRIPTION,
    }


def java_version() -> str:
    """Of the JVM that the rival runs in."""
    said = subprocess.run([java_tool("java"), "-version"], capture_output=True, text=True, check=True)
    found = re.search(r'version "([^"]+)"', said.stderr + said.stdout)
    return found[1] if found else "?"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

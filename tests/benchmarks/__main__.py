"""trioha beside RocketMQ 5.5.0 on the same work, in turn: the table of docs/benchmarks.md.

    python -m tests.benchmarks [--quick] [--works WORK,...] [--runs N] [--page]

A run starts everything anew; the table has the medians of the runs. `--page` writes it to docs/benchmarks.md
after each run. `--against TREE` and `--with KEY=VALUE` compare trioha with another source tree, or with
itself with another setting, in RocketMQ's place; in the value of a setting `{}` is a folder of the node:
`--with trioha.recordDir={} --works raw-256` shows what recording costs. `--set KEY=VALUE` is for both;
`--set trioha.busyPoll=0` for CPU seconds without polls. What lines measure is in docs/benchmarks.md. Stores
are in the temporary folder (TMPDIR), 6 GB of them. Needs Maven and a JDK of version 17 or newer.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog
from attrs import evolve

from tests.benchmarks.bench import QUICK, Bench, Sizes
from tests.benchmarks.clients import JAVA_WORKS, RAW_WORKS, idle
from tests.benchmarks.failover import failover
from tests.benchmarks.machine import described
from tests.benchmarks.pops import pops, proxied_pops
from tests.benchmarks.stores import catch_up, fan_out, queues, start
from tests.benchmarks.systems import ROOT, System, rocketmq, trioha
from tests.benchmarks.table import Run, markdown, on_page
from tests.benchmarks.timers import timers
from tests.interop.rocketmq import ALL_VERSIONS, missing_tools

ROCKETMQ: Final = ALL_VERSIONS[-1]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- table: written by `make bench-report` -->"
END: Final = "<!-- end of table -->"
STORE_WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    "catch-up": catch_up,
    "fan-out": fan_out,
    "start": start,
    "queues": queues,
    "failover": failover,
    "timers": timers,
}
CLIENT_WORKS: Final[dict[str, Callable[[Bench], None]]] = {
    "idle": idle, **JAVA_WORKS, **RAW_WORKS, "pops": pops, "proxied-pops": proxied_pops
}  # fmt: skip
"""Works of pairs, which come after all others; their second system may be trioha, too. Idle pulls are first:
what other works leave in a JVM's heap would hide what the pulls add to it."""
WORKS: Final = STORE_WORKS | CLIENT_WORKS


def measure(works: list[str], sizes: Sizes, *, ours: System, theirs: System) -> Run:
    """One run, with processes and stores of its own."""
    with ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-"))
        bench = Bench(ours, theirs, ROCKETMQ, Path(folder), sizes, running)
        for name, work in WORKS.items():
            if name in works:
                work(bench)
        return bench.run


def parsed() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of small works: rough figures")
    parser.add_argument("--works", help=f"which, split by commas, of {', '.join(WORKS)}")
    parser.add_argument("--runs", type=int, default=1, help="how many runs")
    parser.add_argument("--rounds", type=int, help="of each work in a run, after one that warms up")
    parser.add_argument("--page", action="store_true", help=f"write the table to {PAGE.relative_to(ROOT)}")
    parser.add_argument("--against", type=Path, metavar="TREE", help="another source tree, not RocketMQ")
    parser.add_argument("--with", dest="with_", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    options.is_own = options.against is not None or bool(options.with_)
    options.works = (
        options.works.split(",") if options.works else list(RAW_WORKS if options.is_own else WORKS)
    )
    if unknown := [work for work in options.works if work not in WORKS]:
        parser.error(f"no such work: {', '.join(unknown)}; there are {', '.join(WORKS)}")
    if options.is_own and (stores := [work for work in options.works if work in STORE_WORKS]):
        parser.error(f"only beside RocketMQ: {', '.join(stores)}")
    if options.page and (options.is_own or options.quick or options.set or options.works != list(WORKS)):
        parser.error("--page is for the whole table beside RocketMQ")
    if (missing := missing_tools()) is not None and not set(options.works) <= RAW_WORKS.keys():
        parser.error(missing)
    return options


def systems(options: argparse.Namespace) -> tuple[System, System]:
    """trioha, and what it is compared with."""
    common, more = (dict(one.split("=", 1) for one in given) for given in (options.set, options.with_))
    ours = trioha(**common)
    if not options.is_own:
        return ours, rocketmq(ROCKETMQ)
    tree = ROOT if options.against is None else options.against.resolve()
    name = " ".join([*([] if options.against is None else [f"other ({tree.name})"]), *options.with_])
    return ours, trioha(name, tree=tree, **common, **more)


def main() -> None:
    """Measure, and print or write the table."""
    options = parsed()
    # Bytecode is kept, as it is where trioha is installed.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    ours, theirs = systems(options)
    sizes = QUICK if options.quick else Sizes(rounds=3)
    if options.rounds:
        sizes = evolve(sizes, rounds=options.rounds)
    runs: list[Run] = []
    began_s, conditions = time.monotonic(), described(ROOT)
    for number in range(options.runs):
        runs.append(measure(options.works, sizes, ours=ours, theirs=theirs))
        minutes = (time.monotonic() - began_s) / 60
        said = (
            f"{conditions}; {theirs.name}. Medians of {number + 1} run(s), each the median of "
            f"{sizes.rounds} round(s) after one that warmed up, both systems in turn; {minutes:.0f} minutes."
        )
        table = f"{markdown(runs, ours=ours.name, theirs=theirs.name)}\n\n{said}"
        if options.page:
            PAGE.write_text(on_page(PAGE.read_text(), table, begin=BEGIN, end=END))
        print(table, flush=True)


if __name__ == "__main__":
    main()

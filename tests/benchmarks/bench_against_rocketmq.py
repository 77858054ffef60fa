"""trioha and the store of real RocketMQ 5.x on the same work, in turn, in one run.

Only the ratios count: both run on the same machine, minutes apart at most, round by round. What each line
measures is in `docs/benchmarks.md`. Needs Maven and a JDK, fetches RocketMQ the first time, and takes some
seven minutes (`--quick`: two).

Run it with `make bench` or
`python tests/benchmarks/bench_against_rocketmq.py [--quick] [--json | --markdown] [--works WORK,...]`.
`--merge RUN.json ...` makes one table of medians of several runs and measures nothing; it also takes the JSON
of `bench_clients.py`. With `--page` the table goes to docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

# The rivals are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.conditions import ORDER, conditions, described, java_version
from tests.benchmarks.rivals.options import add_options, parse_options
from tests.benchmarks.rivals.page import PAGE, TABLE
from tests.benchmarks.rivals.report import as_json, line_of, lines, markdown, merge, table
from tests.benchmarks.rivals.sides import JavaSide, TriohaSide
from tests.benchmarks.rivals.works import WORKS, Bench, Sizes
from tests.interop.rocketmq import missing_tools

TITLE = "trioha against the real RocketMQ store, medians"


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line asks for; an unknown work is an error."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the figures as JSON")
    output.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument(
        "--merge",
        nargs="+",
        type=Path,
        metavar="RUN.json",
        help="make several runs one table, and measure nothing",
    )
    output.add_argument("--page", action="store_true", help="write the merged table to docs/benchmarks.md")
    parser.add_argument("--quick", action="store_true", help="one round of small works")
    parser.add_argument("--rounds", type=int, help="rounds that count, after those that warm up")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before, for the JVM's compilers (1)")
    parser.add_argument("--megabytes", type=int, help="log that a slave catches up with")
    parser.add_argument("--start-megabytes", type=int, help="log that a broker starts on")
    parser.add_argument("--seconds", type=float, help="how long writers put, each time")
    add_options(parser, WORKS)
    options = parse_options(parser, arguments, WORKS)
    if options.page and not options.merge:
        parser.error("--page writes the table of runs that were measured before: it needs --merge")
    if options.warm_up < 1:
        parser.error("--warm-up: the JVM needs a round, at least")
    return options


def sizes_of(options: argparse.Namespace) -> Sizes:
    """What was asked for, and for the rest the defaults of a whole or a quick run."""
    quick = options.quick
    return Sizes(
        rounds=options.rounds or (1 if quick else 3),
        catch_up_bytes=(options.megabytes or (100 if quick else 400)) * 10**6,
        fan_out_bytes=(20 if quick else 60) * 10**6,
        start_bytes=(options.start_megabytes or (100 if quick else 400)) * 10**6,
        puts_s=options.seconds or (0.8 if quick else 2.0),
        warm_up_rounds=options.warm_up,
    )


def show(run: dict[str, Any], *, options: argparse.Namespace) -> None:
    """Show a run, or what several were merged to, as it was asked for. Raises ValueError, OSError."""
    if options.json:
        print(json.dumps(run))
        return
    found = [line_of(work) for work in run["works"]]
    if options.markdown or options.page:
        text = f"{markdown(found)}\n\n{described(run)}"
        if options.page:
            if run["quick"]:
                raise ValueError("figures of quick runs do not go to the page")
            PAGE.write_text(TABLE.written(PAGE.read_text(), text))
        else:
            print(text)
        return
    Console(width=160 if not sys.stdout.isatty() else None).print(table(found, title=TITLE))
    print(f"{described(run)} {run['seconds']:.0f} s.")


def merged(paths: list[Path]) -> dict[str, Any]:
    """One run of several; its conditions are those of the first one. Raises ValueError, OSError."""
    runs = []
    for path in paths:
        run = json.loads(path.read_text())
        if "benchmark" not in run:
            raise ValueError(f"{path} was not printed by a benchmark against RocketMQ with --json")
        runs.append(run)
    works = as_json(merge(runs))
    of_a_kind = Counter(run["benchmark"] for run in runs)
    seconds = sum(run["seconds"] for run in runs)
    return {**runs[0], "runs": max(of_a_kind.values()), "seconds": seconds, "works": works}


def main() -> None:
    """Run the works and print what came out."""
    options = options_of()
    if options.merge:
        try:
            show(merged(options.merge), options=options)
        except (ValueError, OSError) as error:
            sys.exit(f"not merged: {error}")
        return
    if (missing := missing_tools()) is not None:
        print(f"not measured against RocketMQ: {missing}", file=sys.stderr)
        return
    sizes = sizes_of(options)
    began = time.monotonic()
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=options.folder) as folder,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        task = progress.add_task("RocketMQ is fetched and the driver compiled")
        with (
            closing(TriohaSide(Path(folder) / "trioha")) as trioha,
            closing(JavaSide(Path(folder) / "rocketmq", version=options.rocketmq)) as java,
        ):
            bench = Bench(
                trioha=trioha,
                java=java,
                folder=Path(folder),
                sizes=sizes,
                on_step=lambda step: progress.update(task, description=step),
                idle_timeout_s=options.wait_idle,
            )
            for work in options.works:
                WORKS[work](bench)
        found = lines(bench.results, sizes, trioha=trioha.name, java=java.name)
    run = {
        "benchmark": "against-rocketmq",
        **conditions(),
        "rocketmq": options.rocketmq,
        "java": java_version(),
        "quick": options.quick,
        "rounds": sizes.rounds,
        "warmUpRounds": sizes.warm_up_rounds,
        "order": ORDER,
        "seconds": round(time.monotonic() - began, 1),
        "works": as_json(found),
    }
    show(run, options=options)


if __name__ == "__main__":
    main()

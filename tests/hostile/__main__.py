"""`python -m tests.hostile`: hostile frames against live nodes, as many as wanted."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.faults.cluster import exit_on_sigterm
from tests.hostile.bench import Bench, narrowed, shrunk
from tests.hostile.frame import Frame
from tests.hostile.generator import frame_of
from tests.hostile.run import Result, run_seed

SHOWN_BYTES: Final = 400
SUSPECTS_MAX: Final = 64
"""Suspects of one finding that are tried one by one."""


def hostile(
    *,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = 100_000,
    seed: int = 1,
    only: tuple[str, ...] = (),
    shrink: bool = False,
    folder: Path | None = None,
    keep: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Send hostile frames to live nodes in both roles, to the client, the monitor's feed and a slave.

    Exit code 1 if anything happened that must not: frames are named by SEED:INDEX.

    Parameters
    ----------
    count
        How many frames.
    seed
        The same seed is the same frames.
    only
        SEED:INDEX of a frame: send it alone to fresh nodes, and show it. May be given several times.
    shrink
        With --only: make a request that fails as small as possible, and show that.
    folder
        Where nodes leave their stores and logs; a new temporary folder if not given.
    keep
        Keep the folder also if nothing was found.
    json_
        Print one JSON object.
    """
    if count < 1 or not 0 <= seed < 1 << 23:
        raise ValueError("--count is at least 1, --seed 0 to 8388607")
    frames = [_named(name) for name in only]
    exit_on_sigterm()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="trioha-hostile-", dir=folder))
    failed = True
    try:
        if frames:
            failed = False
            for number, frame in enumerate(frames):
                failed |= _alone(frame, root / str(number), shrink=shrink)
        else:
            failed = _run(seed, count, root, as_json=json_)
    finally:
        if keep or failed:
            print(f"kept in {root}", file=sys.stderr)
        else:
            shutil.rmtree(root)
    return int(failed)


def _named(name: str) -> Frame:
    seed, colon, index = name.partition(":")
    if not (colon and seed.isdecimal() and index.isdecimal()):
        raise ValueError(f"{name!r} is not SEED:INDEX")
    return frame_of(int(seed), int(index))


def _alone(frame: Frame, folder: Path, *, shrink: bool) -> bool:
    """Send one frame, and say what came of it; whether it failed."""
    out = Console(highlight=False)
    out.print(f"{frame}, {frame.outcome}", markup=False, soft_wrap=True)
    _show(out, frame)
    with Bench(folder) as bench:
        found = bench.judge(frame)
        for counts in (bench.counters.codes, bench.counters.closes):
            for name, number in counts.items():
                out.print(f"  {number} {name}", markup=False)
        for problem in found:
            out.print(f"  {problem}", style="red", markup=False, soft_wrap=True)
        if found and shrink:
            _show(out, shrunk(frame, lambda one: bool(bench.judge(one))))
    return bool(found)


def _show(out: Console, frame: Frame) -> None:
    data = frame.data
    out.print(f"{len(data)} bytes: {data[:SHOWN_BYTES]!r}", markup=False, soft_wrap=True)


def _run(seed: int, count: int, root: Path, *, as_json: bool) -> bool:
    err = Console(stderr=True)
    columns = (TextColumn("frames"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        bar = progress.add_task("frames", total=count)
        result = run_seed(
            seed, count, root / "run", on_progress=lambda done: progress.update(bar, completed=done)
        )
        progress.update(bar, completed=count)
    guilty: list[str] = []
    for number, finding in enumerate(result.counters.findings):
        if 1 < len(finding.suspects) <= SUSPECTS_MAX:
            for frame, found in narrowed(finding.suspects, root / f"narrowed-{number}"):
                guilty.append(f"alone: {frame}: {'; '.join(found)}")
    if as_json:
        print(json.dumps({**result.to_json(), "guilty": guilty}))
    else:
        _print(result)
    for line in (*result.findings, *guilty):
        err.print(line, style="red", markup=False, soft_wrap=True, highlight=False)
    if result.findings:
        err.print(f"one frame again: python -m tests.hostile --only {seed}:INDEX [--shrink]", markup=False)
    return bool(result.findings)


def _print(result: Result) -> None:
    document = result.to_json()
    table = Table("hostile", box=None, show_header=False)
    table.add_column(justify="right")
    for name in ("seed", "frames", "seconds", "honest_slowest_ms"):
        table.add_row(name.replace("_", " "), f"{document[name]:,}")
    for name in ("kinds", "answers", "closes", "reasons", "honest"):
        for key, number in document[name].items():
            table.add_row(f"{name}: {key}", f"{number:,}")
    for name, figures in document["health"].items():
        for key, (before, after) in figures.items():
            table.add_row(f"{name}: {key}", f"{before:,} to {after:,}")
    table.add_row("findings", f"{len(result.findings):,}")
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for arguments that cannot be used."""
    app = App(
        name="python -m tests.hostile",
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
        print_error=False,
        exit_on_error=False,
        result_action="return_int_as_exit_code_else_zero",
    )
    app.default(hostile)
    run: Callable[..., int] = app
    try:
        with suppress(BrokenPipeError):
            return run(list(sys.argv[1:] if arguments is None else arguments))
    except (CycloptsError, ValueError) as error:
        print(f"hostile: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.faults`: run many seeds and name those that break an invariant."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

from attrs import define
from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.faults.cluster import exit_on_sigterm
from tests.faults.controlled.controllers import (
    SCRIPTED,
    VERSION,
    ControllerService,
    controller_service,
    real_controller_is_there,
)
from tests.faults.controlled.plan import is_controlled
from tests.faults.disks import private_mounts
from tests.faults.report import Report
from tests.faults.runner import describe_plan

RUN_WITHIN_S = 180.0
"""A run takes some 8 s; one that takes this long hangs, which is a violation too."""
STOP_WITHIN_S = 10.0
POLL_S = 0.05
_DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []


@define
class _Job:
    """A run in a process of its own."""

    seed: int
    folder: Path
    process: subprocess.Popen[str]
    deadline_s: float

    @classmethod
    def start(
        cls, seed: int, folder: Path, *, private_mounts: Sequence[str], controller: Sequence[str]
    ) -> _Job:
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.faults.runner", str(seed), str(folder), *controller]
        if private_mounts:
            command = [*private_mounts, *command, "--small-disks"]
        with (folder / "run.out").open("w") as out, (folder / "run.err").open("w") as err:
            process = subprocess.Popen(
                [*_DIE_WITH_PARENT, *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
            )
        return cls(seed, folder, process, time.monotonic() + RUN_WITHIN_S)

    def report(self) -> Report | None:
        """How it went; None while it runs."""
        if self.process.poll() is None:
            if time.monotonic() < self.deadline_s:
                return None
            self.end()
            return self._broken(f"still running after {RUN_WITHIN_S:.0f} s")
        try:
            return Report.from_json(json.loads((self.folder / "run.out").read_text()))
        except ValueError:
            said = (self.folder / "run.err").read_text()[-2000:]
            return self._broken(f"the run ended with {self.process.returncode}: {said}")

    def _broken(self, violation: str) -> Report:
        return Report(self.seed, str(self.folder), [violation], RUN_WITHIN_S)

    def end(self) -> None:
        """Let the run end its processes and itself."""
        self.process.terminate()
        try:
            self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def run_seeds(
    seeds: Sequence[int], *, jobs: int, root: Path, keep: bool, controller: str | None = None
) -> Iterator[Report]:
    """Run each seed in a folder of its own below `root`, `jobs` at a time; reports come as runs end.

    `controller`: `scripted`, or a version of RocketMQ; None for the real one where that can be had. Folders
    of runs that broke nothing are removed unless `keep`. Closing the iterator ends all runs.
    """
    with ExitStack() as stack:
        service = None
        if any(map(is_controlled, seeds)) and wants_real(controller):
            folder = Path(tempfile.mkdtemp(prefix="controller-", dir=root))
            stack.callback(shutil.rmtree, folder)
            service = stack.enter_context(controller_service(folder / "service"))
        yield from _run_seeds(seeds, jobs=jobs, root=root, keep=keep, service=service)


def wants_real(controller: str | None) -> bool:
    """Whether groups have a real controller. Raises ValueError for any other word."""
    if controller not in {None, SCRIPTED, VERSION}:
        raise ValueError(f"--controller is {SCRIPTED} or {VERSION}, not {controller}")
    return controller == VERSION or (controller is None and real_controller_is_there())


def _run_seeds(
    seeds: Sequence[int], *, jobs: int, root: Path, keep: bool, service: ControllerService | None
) -> Iterator[Report]:
    mounts = private_mounts()
    arguments = [] if service is None else service.arguments()
    waiting = list(reversed(seeds))
    running: list[_Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                seed = waiting.pop()
                folder = root / f"seed-{seed}"
                running.append(_Job.start(seed, folder, private_mounts=mounts, controller=arguments))
            time.sleep(POLL_S)
            if service is not None:
                service.look()
            for job in list(running):
                report = job.report()
                if report is None:
                    continue
                running.remove(job)
                if service is not None:
                    service.forget(str(job.seed))
                if report.ok and not keep:
                    shutil.rmtree(job.folder)
                yield report
    finally:
        for job in running:
            job.end()


def faults(
    *,
    count: Annotated[int, Parameter(name=["--count", "-n"])] = 50,
    seed: int = 1,
    jobs: int = 2,
    folder: Path | None = None,
    keep: bool = False,
    plan: bool = False,
    controller: str | None = None,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> int:
    """Break clusters of real nodes in random ways and check that no promise is broken.

    Exit code 1 if an invariant did not hold: the seed and its folder are named.

    Parameters
    ----------
    count
        How many seeds.
    seed
        The first of them; the same seed is the same plan.
    jobs
        Runs at a time; each uses about half a core.
    folder
        Where runs leave their stores, logs and recordings; a new temporary folder if not given.
    keep
        Keep the folders of all runs, not only of those that broke something.
    plan
        Print the plans and run nothing.
    controller
        Of the third of runs that have one: `scripted`, or `5.5.0`, a real one. By default the real one, if
        Java, Maven and its jars are there.
    json_
        Print one JSON object for each run, and one for all.
    """
    if count < 1 or jobs < 1 or seed < 0:
        raise ValueError("--count and --jobs are at least 1, --seed at least 0")
    seeds = range(seed, seed + count)
    if plan:
        for number in seeds:
            print(json.dumps(describe_plan(number), default=str))
        return 0
    wants_real(controller)
    exit_on_sigterm()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="trioha-faults-", dir=folder))
    try:
        reports = _run(seeds, jobs=jobs, root=root, keep=keep, as_json=json_, controller=controller)
    finally:
        with suppress(OSError):  # not empty: something was kept
            root.rmdir()
    return 0 if all(report.ok for report in reports) else 1


def _run(
    seeds: Sequence[int], *, jobs: int, root: Path, keep: bool, as_json: bool, controller: str | None
) -> list[Report]:
    err = Console(stderr=True)
    reports: list[Report] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    began_s = time.monotonic()
    with Progress(*columns, console=err, disable=not err.is_terminal) as progress:
        bar = progress.add_task("seeds", total=len(seeds), note="")
        for report in run_seeds(seeds, jobs=jobs, root=root, keep=keep, controller=controller):
            reports.append(report)
            broken = sum(not one.ok for one in reports)
            progress.update(bar, advance=1, note=f"{broken} broken" if broken else "")
            if as_json:
                print(json.dumps(report.to_json()), flush=True)
            if not report.ok:
                progress.console.print(
                    f"seed {report.seed}, kept in {report.folder}:", style="red", markup=False, soft_wrap=True
                )
                for violation in report.violations:
                    progress.console.print(f"  {violation}", markup=False, soft_wrap=True, highlight=False)
    summary = summarize(reports, seconds=time.monotonic() - began_s)
    if as_json:
        print(json.dumps({"summary": summary}), flush=True)
    else:
        _print_table(summary)
    return reports


def summarize(reports: Sequence[Report], *, seconds: float) -> dict[str, object]:
    """Figures over all runs."""
    statuses: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for report in reports:
        statuses.update(report.statuses)
        faults.update(report.faults)
    return {
        "runs": len(reports),
        "broken_seeds": [report.seed for report in reports if not report.ok],
        "seconds": round(seconds, 1),
        "kills": sum(report.kills for report in reports),
        "starts": sum(report.starts for report in reports),
        "metadata_copies": sum(report.metadata_copies for report in reports),
        "offset_checks": sum(report.offset_checks for report in reports),
        "failed_syncs": sum(report.failed_syncs for report in reports),
        "hostile_frames": sum(report.hostile_frames for report in reports),
        "controllers": dict(Counter(report.controller for report in reports if report.controller)),
        "elections": sum(report.elections for report in reports),
        "deaths": sum(report.deaths for report in reports),
        "passed_over": sum(report.passed_over for report in reports),
        "promises": sum(report.promises for report in reports),
        "bytes": sum(max(0, report.end_offset) for report in reports),
        "faults": dict(faults.most_common()),
        "statuses": dict(statuses.most_common()),
    }


def _print_table(summary: dict[str, object]) -> None:
    table = Table("faults", box=None, show_header=False)
    table.add_column(justify="right")
    for name, value in summary.items():
        if isinstance(value, dict):
            for key, number in value.items():
                table.add_row(f"{name}: {key}", f"{number:,}")
        else:
            text = f"{value:,}" if isinstance(value, int | float) else " ".join(map(str, value)) or "none"
            table.add_row(name.replace("_", " "), text)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 2 for arguments that cannot be used."""
    app = App(
        name="python -m tests.faults",
        help_format="plaintext",
        default_parameter=Parameter(negative=()),
        print_error=False,
        exit_on_error=False,
        result_action="return_int_as_exit_code_else_zero",
    )
    app.default(faults)
    run: Callable[..., int] = app
    try:
        return run(list(sys.argv[1:] if arguments is None else arguments))
    except (CycloptsError, ValueError) as error:
        print(f"faults: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.faults`: run many seeds and name those that break an invariant."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from attrs import define

from tests.faults.controlled.controllers import (
    SCRIPTED,
    VERSION,
    ControllerService,
    controller_service,
    real_controller_is_there,
)
from tests.faults.controlled.plan import is_controlled
from tests.faults.disks import private_mounts
from tests.faults.nodes import exit_on_sigterm
from tests.faults.report import Report
from tests.faults.runner import describe_plan

RUN_WITHIN_S = 180.0
"""A run takes some 8 s; one that takes this long hangs, which is a violation too."""
STOP_WITHIN_S = 10.0
POLL_S = 0.05
COUNTED = (
    "kills", "starts", "metadata_copies", "offset_checks", "failed_syncs", "hostile_frames", "elections",
    "deaths", "passed_over", "promises", "popped", "given_again", "timers",
)  # fmt: skip
"""Figures of reports that are summed up."""
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


def summarize(reports: Sequence[Report], *, seconds: float) -> dict[str, object]:
    return {
        "runs": len(reports),
        "broken_seeds": [report.seed for report in reports if not report.ok],
        "seconds": round(seconds, 1),
        **{name: sum(getattr(report, name) for report in reports) for name in COUNTED},
        "bytes": sum(max(0, report.end_offset) for report in reports),
        "controllers": dict(Counter(report.controller for report in reports if report.controller)),
        "faults": dict(Counter(fault for report in reports for fault in report.faults).most_common()),
        "statuses": dict(sum((Counter(report.statuses) for report in reports), Counter()).most_common()),
    }


def print_summary(summary: Mapping[str, object]) -> None:
    for name, value in summary.items():
        if isinstance(value, dict):
            for key, number in value.items():
                print(f"{name}: {key:30} {number:>12,}")
        else:
            text = f"{value:,}" if isinstance(value, int | float) else " ".join(map(str, value)) or "none"
            print(f"{name.replace('_', ' '):38} {text:>12}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Break clusters of real nodes in random ways and check that no promise is broken.",
    )
    add = parser.add_argument
    add("--count", "-n", type=int, default=50, help="how many seeds")
    add("--seed", type=int, default=1, help="the first of them; the same seed is the same plan")
    add("--jobs", type=int, default=2, help="runs at a time; each uses about half a core")
    add("--folder", type=Path, help="where runs leave stores, logs and recordings; by default a new folder")
    add(
        "--keep",
        action="store_true",
        help="keep the folders of all runs, not only of those that broke something",
    )
    add("--plan", action="store_true", help="print the plans and run nothing")
    add(
        "--controller",
        choices=(SCRIPTED, VERSION),
        help="of the third of runs that have one; by default a real one where Java, Maven and jars are there",
    )
    add("--json", action="store_true", help="print one JSON object for each run, and one for all")
    found = parser.parse_args(arguments)
    if found.count < 1 or found.jobs < 1 or found.seed < 0:
        parser.error("--count and --jobs are at least 1, --seed at least 0")
    seeds = range(found.seed, found.seed + found.count)
    if found.plan:
        for number in seeds:
            print(json.dumps(describe_plan(number), default=str))
        return 0
    exit_on_sigterm()
    if found.folder is not None:
        found.folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="trioha-faults-", dir=found.folder))
    began_s = time.monotonic()
    reports: list[Report] = []
    try:
        for report in run_seeds(
            seeds, jobs=found.jobs, root=root, keep=found.keep, controller=found.controller
        ):
            reports.append(report)
            if found.json:
                print(json.dumps(report.to_json()), flush=True)
            if not report.ok:
                violations = "".join(f"\n  {violation}" for violation in report.violations)
                print(f"seed {report.seed}, kept in {report.folder}:{violations}", file=sys.stderr)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        with suppress(OSError):  # not empty: something was kept
            root.rmdir()
    summary = summarize(reports, seconds=time.monotonic() - began_s)
    if found.json:
        print(json.dumps({"summary": summary}), flush=True)
    else:
        print_summary(summary)
    return 0 if all(report.ok for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())

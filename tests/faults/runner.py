"""One run: a plan carried out, and what was found.

As a program, `python -m tests.faults.runner SEED FOLDER`, it is what `tests.faults` starts for each seed.
With `--small-disks` it mounts disks, and so has to run in a mount namespace of its own
(`disks.private_mounts`).
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
import traceback
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import structlog
from attrs import asdict

from tests.faults.cluster import Cluster
from tests.faults.controlled.group import Group
from tests.faults.controlled.plan import is_controlled, make_group_plan
from tests.faults.faults import Mend
from tests.faults.invariants import check_process_logs
from tests.faults.nodes import Nodes, exit_on_sigterm, processes_naming
from tests.faults.plan import Planned, make_plan
from tests.faults.report import Report
from trioha.errors import TriohaError

PLAN_FILE = "plan.json"
REPORT_FILE = "report.json"


def run_seed(seed: int, folder: Path, *, small_disks: bool = False, controller: str | None = None) -> Report:
    """Carry out the plan of `seed` in `folder`, which is made, and check all invariants.

    With `small_disks`, disks of a pair or chain that fill up are mounted, and not only said to be full.
    `controller` names a real one (`controlled.controllers`); without it groups have a scripted one.
    Everything stays in the folder: stores, logs, recordings, `plan.json` and `report.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLAN_FILE).write_text(json.dumps(describe_plan(seed), indent=2, default=str) + "\n")
    began_s = time.monotonic()
    nodes: Nodes = (
        Group(make_group_plan(seed), folder, controller=controller)
        if is_controlled(seed)
        else Cluster(make_plan(seed), folder, small_disks=small_disks)
    )
    violations, end_offset = nodes.violations, -1
    with nodes:
        try:
            nodes.begin()
            carry_out(nodes)
            end_offset = nodes.settle()
            nodes.end()
            violations += nodes.finish_archive(end_offset)
        except (AssertionError, TriohaError) as problem:
            violations.append(f"{problem}\n{''.join(traceback.format_tb(problem.__traceback__)[-3:])}")
    violations += check_process_logs(nodes.log_files)
    if end_offset >= 0 and not violations:
        violations += nodes.check_end(end_offset)
    if left := processes_naming(folder):
        violations.append(f"processes are left: {left}")
    keepers, plan = nodes.keepers.values(), nodes.plan
    report = Report(
        seed=seed,
        folder=str(folder),
        violations=violations,
        seconds=round(time.monotonic() - began_s, 2),
        end_offset=end_offset,
        promises=len(nodes.promises),
        kills=sum(keeper.kills for keeper in keepers),
        starts=sum(keeper.starts for keeper in keepers),
        statuses=nodes.statuses,
        faults=[type(planned.fault).__name__ for planned in plan.faults],
        archive=None if plan.archive is None else plan.archive.target,
        **nodes.figures(),
    )
    (folder / REPORT_FILE).write_text(json.dumps(report.to_json(), indent=2) + "\n")
    return report


def describe_plan(seed: int) -> dict[str, Any]:
    plan = make_group_plan(seed) if is_controlled(seed) else make_plan(seed)
    faults = [
        {"at_s": round(one.at_s, 3), "fault": type(one.fault).__name__, **asdict(one.fault)}
        for one in plan.faults
    ]
    return {**asdict(plan), "faults": faults}


def carry_out(nodes: Nodes) -> None:
    """Begin and mend the plan's faults in their order; one that is late begins at once."""
    numbers = count()
    steps: list[tuple[float, int, Mend]] = []

    def plan_step(at_s: float, step: Mend) -> None:
        heapq.heappush(steps, (at_s, next(numbers), step))

    began_s = time.monotonic()

    def begin(planned: Planned) -> None:
        mend = planned.fault.begin(nodes)
        if mend is not None:
            at_s = planned.at_s if nodes.MENDS_AS_PLANNED else time.monotonic() - began_s
            plan_step(at_s + planned.fault.duration_s, mend)

    for planned in nodes.plan.faults:
        plan_step(planned.at_s, partial(begin, planned))
    if nodes.plan.archive is not None:
        for at_s in nodes.plan.archive.kills_at_s:
            plan_step(at_s, nodes.restart_archiver)
    while steps:
        at_s, _, step = heapq.heappop(steps)
        nodes.pause(max(0.0, began_s + at_s - time.monotonic()))
        step()


def main() -> int:
    """Run one seed and print its report as one line of JSON; exit code 1 if an invariant did not hold."""
    exit_on_sigterm()
    # Stores that this process opens write log lines: they go to stderr, and the report alone to stdout.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = argparse.ArgumentParser(prog="python -m tests.faults.runner")
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small-disks", action="store_true")
    parser.add_argument("--controller")
    found = parser.parse_args()
    report = run_seed(found.seed, found.folder, small_disks=found.small_disks, controller=found.controller)
    print(json.dumps(report.to_json()), flush=True)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())

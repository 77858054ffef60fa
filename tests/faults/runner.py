"""One run: a plan carried out, and what was found.

As a program, `python -m tests.faults.runner SEED FOLDER`, it is what `tests.faults` starts for each seed.
With `--small-disks` it mounts disks, and so has to run in a mount namespace of its own
(`disks.private_mounts`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.faults.cluster import DELAY_LEVELS, INDEX, QUEUES, Cluster, exit_on_sigterm, processes_naming
from tests.faults.controlled.plan import is_controlled, make_group_plan
from tests.faults.controlled.runner import run_group
from tests.faults.faults import MASTER
from tests.faults.invariants import (
    check_clean_store,
    check_logs_equal,
    check_process_logs,
    check_promises,
    check_recordings,
)
from tests.faults.metadata import file_differences
from tests.faults.plan import Plan, make_plan
from tests.faults.rebuilt import Shape, check_rebuilt
from tests.faults.report import Report
from trioha.errors import TriohaError
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.tags import DelayLevels

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
    if is_controlled(seed):
        report = run_group(seed, folder, controller=controller)
    else:
        report = run_cluster(make_plan(seed), folder, small_disks=small_disks)
    (folder / REPORT_FILE).write_text(json.dumps(report.to_json(), indent=2) + "\n")
    return report


def describe_plan(seed: int) -> dict[str, Any]:
    """The plan of a seed, for machines."""
    return make_group_plan(seed).describe() if is_controlled(seed) else make_plan(seed).describe()


def run_cluster(plan: Plan, folder: Path, *, small_disks: bool = False) -> Report:
    """A run of a master and its slaves, without a controller."""
    began_s = time.monotonic()
    violations: list[str] = []
    end_offset = -1
    with Cluster(plan, folder, small_disks=small_disks) as cluster:
        try:
            cluster.begin()
            carry_out(plan, cluster)
            end_offset = cluster.settle()
            cluster.end()
            violations += cluster.finish_archive(end_offset)
        except (AssertionError, TriohaError) as problem:
            violations.append(f"{problem}\n{''.join(traceback.format_tb(problem.__traceback__)[-3:])}")
    violations += cluster.violations
    violations += cluster.hostile_findings
    violations += check_process_logs([*map(cluster.log_file, plan.setup.nodes), *cluster.archiver_logs])
    if end_offset >= 0 and not violations:
        violations += check_end(plan, cluster, end_offset)
    left = processes_naming(folder)
    if left:
        violations.append(f"processes are left: {left}")
    return Report(
        seed=plan.seed,
        folder=str(folder),
        violations=violations,
        seconds=round(time.monotonic() - began_s, 2),
        end_offset=end_offset,
        promises=len(cluster.promises),
        kills=sum(keeper.kills for keeper in cluster.keepers.values()),
        starts=sum(keeper.starts for keeper in cluster.keepers.values()),
        metadata_copies=cluster.metadata_copies,
        offset_checks=cluster.offset_checks,
        failed_syncs=sum(keeper.failed_syncs for keeper in cluster.keepers.values()),
        hostile_frames=cluster.hostile_frames,
        statuses=cluster.statuses,
        faults=[type(planned.fault).__name__ for planned in plan.faults],
        archive=None if plan.archive is None else plan.archive.target,
    )


def carry_out(plan: Plan, cluster: Cluster) -> None:
    """Begin and end the plan's faults in their order; one that is late begins at once."""
    steps = sorted(
        (moment_s, order, step)
        for order, planned in enumerate(plan.faults)
        for moment_s, step in ((planned.at_s, "begin"), (planned.until_s, "end"))
    )
    if plan.archive is not None:
        steps = sorted([*steps, *((at_s, -1, "restart archiver") for at_s in plan.archive.kills_at_s)])
    began_s = time.monotonic()
    for moment_s, order, step in steps:
        cluster.pause(max(0.0, began_s + moment_s - time.monotonic()))
        if step == "restart archiver":
            cluster.restart_archiver()
            continue
        fault = plan.faults[order].fault
        (fault.begin if step == "begin" else fault.end)(cluster)


def check_end(plan: Plan, cluster: Cluster, end_offset: int) -> list[str]:
    """All that must hold once every node was stopped cleanly with equal logs."""
    setup = plan.setup
    stores = [cluster.store(name) for name in setup.nodes]
    violations = check_logs_equal(stores, end_offset=end_offset)
    shape = Shape(
        log_file_bytes=setup.file_bytes,
        queues=QUEUES,
        index=INDEX,
        dispatch=DispatchSettings(delay_levels=DelayLevels(DELAY_LEVELS)),
    )
    violations += check_promises(cluster.promises, stores, copies=len(stores), when="at the end")
    violations += file_differences(stores, cluster.consumed)
    for name, store in zip(setup.nodes, stores, strict=True):
        violations += check_rebuilt(store, shape)
        violations += check_clean_store(store, file_bytes=setup.file_bytes, end_offset=end_offset)
        violations += check_recordings(
            cluster.recordings(name),
            copies_needed=setup.copies_needed if name == MASTER else 0,
            end_offset=end_offset,
            unclean_ends=cluster.keepers[name].kills + cluster.keepers[name].failed_syncs,
            has_impostors=plan.has_impostors,
            loses_log=plan.loses_log,
        )
    return violations


def main() -> int:
    """Run one seed and print its report as one line of JSON; exit code 1 if an invariant did not hold."""
    exit_on_sigterm()
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

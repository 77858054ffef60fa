"""One run with a controller: a plan carried out, and what was found."""

from __future__ import annotations

import heapq
import time
import traceback
from functools import partial
from itertools import count
from pathlib import Path

from tests.faults.cluster import DELAY_LEVELS, INDEX, QUEUES, processes_naming
from tests.faults.controlled.faults import GroupFault, Mend
from tests.faults.controlled.group import Group
from tests.faults.controlled.invariants import (
    check_epoch_files,
    check_group_recordings,
    check_group_roles,
    read_epochs,
)
from tests.faults.controlled.plan import GroupPlan, make_group_plan
from tests.faults.invariants import check_clean_store, check_logs_equal, check_process_logs, check_promises
from tests.faults.rebuilt import Shape, check_rebuilt
from tests.faults.report import Report
from trioha.errors import TriohaError
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.tags import DelayLevels


def run_group(seed: int, folder: Path, *, controller: str | None = None) -> Report:
    """Carry out the plan of `seed` in `folder`, which is there, and check all invariants.

    `controller` names a real controller; None: a scripted one.
    """
    plan = make_group_plan(seed)
    began_s = time.monotonic()
    violations: list[str] = []
    end_offset = -1
    with Group(plan, folder, controller=controller) as group:
        try:
            group.begin()
            carry_out(plan, group)
            end_offset = group.settle()
            group.end()
            violations += group.finish_archive(end_offset)
        except (AssertionError, TriohaError) as problem:
            violations.append(f"{problem}\n{''.join(traceback.format_tb(problem.__traceback__)[-3:])}")
    violations += check_process_logs([*map(group.log_file, plan.setup.nodes), *group.archiver_logs])
    if end_offset >= 0 and not violations:
        violations += check_group_end(plan, group, end_offset)
    left = processes_naming(folder)
    if left:
        violations.append(f"processes are left: {left}")
    return Report(
        seed=seed,
        folder=str(folder),
        violations=violations,
        seconds=round(time.monotonic() - began_s, 2),
        end_offset=end_offset,
        promises=len(group.promises),
        kills=group.kills,
        starts=sum(keeper.starts for keeper in group.keepers.values()),
        statuses=group.statuses,
        faults=[type(planned.fault).__name__ for planned in plan.faults],
        archive=None if plan.archive is None else plan.archive.target,
        controller=group.controller.name,
        elections=group.elections,
        deaths=group.deaths,
        passed_over=group.passed_over,
    )


def carry_out(plan: GroupPlan, group: Group) -> None:
    """Begin and mend the plan's faults in their order; one that is late begins at once."""
    numbers = count()
    steps: list[tuple[float, int, Mend]] = []

    def plan_step(at_s: float, step: Mend) -> None:
        heapq.heappush(steps, (at_s, next(numbers), step))

    began_s = time.monotonic()

    def begin(fault: GroupFault) -> None:
        mend = fault.begin(group)
        if mend is not None:
            plan_step(time.monotonic() - began_s + fault.duration_s, mend)

    for planned in plan.faults:
        plan_step(planned.at_s, partial(begin, planned.fault))
    if plan.archive is not None:
        for at_s in plan.archive.kills_at_s:
            plan_step(at_s, group.restart_archiver)
    while steps:
        at_s, _, step = heapq.heappop(steps)
        group.pause(max(0.0, began_s + at_s - time.monotonic()))
        step()


def check_group_end(plan: GroupPlan, group: Group, end_offset: int) -> list[str]:
    """All that must hold once every node was stopped cleanly with equal logs."""
    setup = plan.setup
    stores = [group.store(name) for name in setup.nodes]
    violations = check_logs_equal(stores, end_offset=end_offset)
    violations += check_promises(group.promises, stores, copies=len(stores), when="at the end")
    violations += check_epoch_files(stores, end_offset=end_offset)
    if not violations:
        violations += check_history(group, stores[0])
    shape = Shape(
        log_file_bytes=setup.file_bytes,
        queues=QUEUES,
        index=INDEX,
        dispatch=DispatchSettings(delay_levels=DelayLevels(DELAY_LEVELS)),
    )
    for name, store in zip(setup.nodes, stores, strict=True):
        violations += check_rebuilt(store, shape)
        violations += check_clean_store(store, file_bytes=setup.file_bytes, end_offset=end_offset)
        violations += check_group_recordings(group.recordings(name), unclean_ends=group.keepers[name].kills)
    return violations + check_group_roles(map(group.recordings, setup.nodes))


def check_history(group: Group, store: Path) -> list[str]:
    """Each epoch had one master and one begin, whoever says so; `store` is one of those that are equal."""
    history = group.history
    for epoch, names in group.world.masters.items():
        for name in names:
            history.note_master(epoch, name, "the controller")
    for name in group.keepers:
        history.note_log(name, group.log_file(name).read_text(errors="replace"))
        history.note_epochs(name, read_epochs(group.store(name)))
    names_by_address = {ports.address: name for name, ports in group.ports.items()}
    history.note_promises(group.promises, read_epochs(store), names_by_address)
    return history.violations()

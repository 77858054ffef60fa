"""`python -m tests.power_cut`: cut the power of nodes on ext4 and ext2, and look for what they acknowledged.

For root only; elsewhere it says why not in one line, and ends with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog
from attrs import asdict, define, field

from tests.faults.disks import private_mounts
from tests.faults.nodes import exit_on_sigterm
from tests.power_cut.devices import FILE_SYSTEMS, Disk, why_not
from tests.power_cut.scenarios import SCENARIOS, TRIOHA, Stopped
from tests.simulation.planting import program_of

HAS_OWN_MOUNTS: Final = "TRIOHA_POWER_CUT_HAS_OWN_MOUNTS"
MISSING_SHOWN: Final = 3


@define
class Row:
    """What was looked for in one scenario on one file system, over all its cuts."""

    scenario: str
    file_system: str
    what: str
    cuts: int = 0
    looked_for: int = 0
    missing: list[str] = field(factory=list)


def run_scenario(
    name: str, file_system: str, *, cuts: int, folder: Path, program: Sequence[str] = TRIOHA
) -> list[Row]:
    """Cut the power so often while a scenario goes on; what was found, a row for each kind of thing."""
    rows: dict[str, Row] = {}
    with ExitStack() as stack:
        scratch = folder / "scratch"
        scratch.mkdir(parents=True)
        disk = Disk(FILE_SYSTEMS[file_system], folder / "disk")
        stack.callback(disk.close)
        scenario = stack.enter_context(SCENARIOS[name](disk.root, scratch, program=program))
        for number in range(cuts):
            scenario.work()
            with ExitStack() as after:
                with Stopped(scenario.pids()):
                    acknowledged = scenario.acknowledged()
                    root = after.enter_context(disk.after_power_cut(folder / f"cut-{number}"))
                for found in scenario.look(root, acknowledged):
                    row = rows.setdefault(found.what, Row(name, file_system, found.what))
                    row.cuts += 1
                    row.looked_for += found.looked_for
                    row.missing += [f"cut {number + 1}: {text}" for text in found.missing]
    return list(rows.values())


def run_all(
    names: Sequence[str], file_systems: Sequence[str], *, cuts: int, program: Sequence[str]
) -> Iterator[Row]:
    for file_system in file_systems:
        for name in names:
            with tempfile.TemporaryDirectory(prefix="trioha-power-cut-") as folder:
                try:
                    yield from run_scenario(
                        name, file_system, cuts=cuts, folder=Path(folder), program=program
                    )
                except Exception as problem:  # noqa: BLE001 - a scenario that fails ends no other, and the command with 1
                    yield Row(
                        name, file_system, "the scenario", 0, 1, [f"{type(problem).__name__}: {problem}"]
                    )


def print_row(row: Row) -> None:
    state = "all there" if not row.missing else f"{len(row.missing)} MISSING"
    print(f"{row.scenario:10} {row.file_system:5} {row.what:20} {row.cuts:4} {row.looked_for:10,}  {state}")
    for text in row.missing[:MISSING_SHOWN]:
        print(f"    {text}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 1 if something acknowledged is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.power_cut", description=__doc__)
    add = parser.add_argument
    add("--scenario", action="append", choices=SCENARIOS, help="by default all")
    add("--file-system", action="append", choices=FILE_SYSTEMS, help="by default all")
    add("--cuts", type=int, default=3, help="of each scenario on each file system")
    add("--within", type=int, default=1800, help="seconds after which the command ends with 1")
    add("--defect", help="nodes and archivers have this planted defect (MODULE:NAME)")
    add("--json", action="store_true", help="print one JSON object for each row")
    found = parser.parse_args(arguments)
    if found.cuts < 1 or found.within < 1:
        parser.error("--cuts and --within are at least 1")
    if HAS_OWN_MOUNTS not in os.environ:
        if reason := why_not():
            print(f"power cuts are skipped: {reason}")
            return 0
        # In this process's place: it ends, and is ended, as this one is.
        command = [*private_mounts(), sys.executable, "-m", "tests.power_cut", *(arguments or sys.argv[1:])]
        os.execvpe(command[0], command, {**os.environ, HAS_OWN_MOUNTS: "1"})
    exit_on_sigterm()
    # Stores that this process opens write log lines: they go to stderr, and the table alone to stdout.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(found.within)
    began_s = time.monotonic()
    rows = []
    if not found.json:
        print(f"{'scenario':10} {'on':5} {'what':20} {'cuts':>4} {'looked for':>10}")
    program = TRIOHA if found.defect is None else program_of(found.defect)
    for row in run_all(
        found.scenario or list(SCENARIOS),
        found.file_system or list(FILE_SYSTEMS),
        cuts=found.cuts,
        program=program,
    ):
        rows.append(row)
        if found.json:
            print(json.dumps(asdict(row)), flush=True)
        else:
            print_row(row)
    missing = sum(len(row.missing) for row in rows)
    if not found.json:
        print(f"{missing or 'nothing'} missing, {time.monotonic() - began_s:.0f} s")
    return 1 if missing else 0


def _too_long(number: int, _: object) -> None:
    print("power cuts: not done in time", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    sys.exit(main())

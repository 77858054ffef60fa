"""Replay seeds of controller mode: `python -m tests.simulation.failover --seed N [--count M] [--trace]`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.failover.plan import cutting_plan_of, plan_of, two_leaders_plan_of
from tests.simulation.failover.world import Outcome, simulate
from tests.simulation.world import SimulationError


def main() -> int:
    """Run the seeds asked for; 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.failover", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--trace", action="store_true", help="print the plan and every event")
    for option, make, what in (
        ("--cuts", cutting_plan_of, "cuts of logs only, most of them interrupted"),
        ("--two-leaders", two_leaders_plan_of, "deposed controllers that go on answering"),
    ):
        parser.add_argument(
            option, dest="make_plan", action="store_const", const=make, default=plan_of, help=what
        )
    arguments = parser.parse_args()
    make_plan = arguments.make_plan
    failed = 0
    passed: list[Outcome] = []
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if arguments.trace:
            print(make_plan(seed))
        started_s = time.process_time()
        try:
            outcome = simulate(seed, show=print if arguments.trace else None, plan=make_plan(seed))
        except SimulationError as error:
            failed += 1
            text = str(error)
            print(text if arguments.count == 1 else text.partition("\nlast of")[0], flush=True)
            continue
        passed.append(outcome)
        if arguments.count > 100 and seed % 100:
            continue
        print(
            f"seed {seed}: ok, {outcome.virtual_s:.1f} virtual s in {time.process_time() - started_s:.2f} s, "
            f"{outcome.faults} faults, {outcome.epochs} epochs, {outcome.cuts} cuts, "
            f"{outcome.reference_bytes} bytes, {outcome.events} events, {outcome.statuses}, "
            f"trace {outcome.digest[:12]}",
            flush=True,
        )
    print(
        f"{len(passed)} of {arguments.count} seeds passed: {sum(one.epochs for one in passed)} epochs, "
        f"{sum(one.cuts for one in passed)} cuts, {sum(one.faults for one in passed)} faults, "
        f"{sum(one.statuses.get('PUT_OK', 0) for one in passed)} puts PUT_OK, "
        f"{time.process_time():.0f} s of CPU"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

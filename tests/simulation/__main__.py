"""Replay seeds: `python -m tests.simulation --seed N [--count M] [--trace]`."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.plan import plan_of
from tests.simulation.world import SimulationError, simulate


def main() -> int:
    """Run the seeds asked for; 1 if an invariant did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--trace", action="store_true", help="print the plan and every event")
    arguments = parser.parse_args()
    failed = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if arguments.trace:
            print(plan_of(seed))
        started_s = time.perf_counter()
        try:
            outcome = simulate(seed, show=print if arguments.trace else None)
        except SimulationError as error:
            failed += 1
            text = str(error)
            print(text if arguments.count == 1 else text.partition("\nlast of")[0])
            continue
        print(
            f"seed {seed}: ok, {outcome.virtual_s:.1f} virtual s in {time.perf_counter() - started_s:.2f} s, "
            f"{outcome.faults} faults, {outcome.log_bytes} bytes, {outcome.events} events, "
            f"{outcome.statuses}, trace {outcome.digest[:12]}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

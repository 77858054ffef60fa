"""`python -m tests.simulation --seed N [--count M] [--trace]`: master and slaves in virtual time."""

import sys

from tests.simulation.plan import plan_of
from tests.simulation.runner import run_command
from tests.simulation.world import World, simulate

if __name__ == "__main__":
    sys.exit(run_command(World.COMMAND, plans={"": (plan_of, "")}, simulate=simulate))

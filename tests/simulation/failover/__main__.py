"""`python -m tests.simulation.failover --seed N [--count M] [--trace]`: controller mode in virtual time."""

import sys

from tests.simulation.failover.plan import PLANS
from tests.simulation.failover.world import World, simulate
from tests.simulation.runner import run_command

if __name__ == "__main__":
    sys.exit(run_command(World.COMMAND, plans=PLANS, simulate=simulate))

"""`python -m tests.hostile.still_clock ARGUMENTS` is `trioha ARGUMENTS` with a wall clock that stands still.

So stamps in records, files and answers say nothing of when a process did something. Monotonic time goes on;
what a node keeps of its own a second after something has changed, the position of transactions, it does not
keep.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Final

NOW_MS: Final = 1_790_000_000_000
PROGRAM: Final = (sys.executable, "-m", "tests.hostile.still_clock")


def main() -> int:
    """Run `trioha` at that moment."""
    time.time = lambda: NOW_MS / 1000
    time.time_ns = lambda: NOW_MS * 1_000_000
    from trioha.broker import transaction_service
    from trioha.cli import main as trioha

    transaction_service.POSITION_INTERVAL_S = math.inf  # type: ignore[misc]

    return trioha()


if __name__ == "__main__":
    sys.exit(main())

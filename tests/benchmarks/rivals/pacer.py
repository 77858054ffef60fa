"""Says on stdout when puts are due: one record for each millisecond, from a process of its own.

python -m tests.benchmarks.rivals.pacer RATE SECONDS
"""

from __future__ import annotations

import sys
import time
from struct import Struct
from typing import Final

TICK: Final = Struct("=di")
"""When puts are due, in seconds of `perf_counter`, which is one clock for all processes; and how many."""
TICKS_PER_S: Final = 1000
START_S: Final = 0.01


def main() -> None:
    """Write until the end, or until nobody reads."""
    rate, seconds = int(sys.argv[1]), float(sys.argv[2])
    began = time.perf_counter() + START_S
    total = int(rate * seconds)
    said = tick = 0
    while said < total:
        due = began + tick / TICKS_PER_S
        wait_s = due - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        tick += 1
        until = min(total, rate * tick // TICKS_PER_S)
        if until > said:
            sys.stdout.buffer.write(TICK.pack(due, until - said))
            sys.stdout.buffer.flush()
            said = until


if __name__ == "__main__":
    main()

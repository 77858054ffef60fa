"""RocketMQ's own check point of its timer, `config/timercheck` of a store (docs/protocol/timer.md#files).

The file has 4096 bytes: those of a `TimerCheckPoint`, and zeros. A broker writes it each second and at its
stop, a slave with lastReadTimeMs and masterTimerQueueOffset of its master. trioha only reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trioha.errors import StoreError
from trioha.metadata.documents import CHECK_POINT_BYTES, TimerCheckPoint

TIMER_CHECK: Final = "timercheck"
FILE_BYTES: Final = 4096


def read_timer_check(folder: Path) -> TimerCheckPoint | None:
    """The check point in the folder `config` of a store; None without one. Blocks. Raises StoreError."""
    path = folder / TIMER_CHECK
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
    if len(data) != FILE_BYTES:
        size = f"{len(data)} bytes" if len(data) < FILE_BYTES else f"more than {FILE_BYTES} bytes"
        raise StoreError(f"is damaged: {size}, not {FILE_BYTES}", path=path)
    check_point = TimerCheckPoint.decode(data[:CHECK_POINT_BYTES])
    if min(check_point.last_read_ms, check_point.master_queue_offset) < 0:
        raise StoreError("is damaged: a time or an offset below 0", path=path)
    return check_point

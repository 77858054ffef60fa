"""What a RocketMQ 5 broker needs to go on with the timers of a store: `timerlog` and `config/timercheck`.

See docs/protocol/timer.md#files. trioha itself reads neither: the log says what is pending. A broker of 5.5.0
without them reads the timer topic from its start, and delivers again what was delivered. With them it has
each timer that is pending, and its own wheel, which it builds of the timer log, since the check point says
that nothing of that is flushed.

The timer log has a unit of 52 bytes for each timer, in the order of the timer topic; the units of one slot
are a list. The broker goes on after the record of the last unit, so that one is of the newest record in the
topic: if that one is done, in a slot that the broker does not read.

Both are written anew when something has changed, by a worker thread, and at the end of a node's time as
master. After `kill -9` a broker delivers again what was delivered since the last time, a second before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from pathlib import Path
from struct import Struct
from typing import Final

import trio
from attrs import frozen

from trioha.broker.timer_messages import TimerSettings
from trioha.broker.timer_records import PendingTimer, PendingTimers
from trioha.metadata.timer_check import FILE_BYTES, TIMER_CHECK
from trioha.net.threads import run_in_thread
from trioha.store.atomic_file import replace_without_backup
from trioha.store.syncing import sync_directory, sync_whole
from trioha.store.tags import java_hash
from trioha.unwritten import Unwritten

HANDOVER: Final = "timer log"
TIMER_LOG: Final = "timerlog"
TIMER_LOG_FILE_BYTES: Final = 100 * 1024 * 1024
"""mappedFileSizeTimerLog of a broker with its defaults."""
TIMERS_MAX: Final = TIMER_LOG_FILE_BYTES // 52 - 1
"""Timers that one file has room for, and the newest record."""
STALE: Final = ("timerwheel", "config/timermetrics", "config/timermetrics.bak")
"""A broker's own files, which would contradict these; it makes them anew."""
INTERVAL_S: Final = 1.0
SHARE: Final = 50
"""The time to the next write, in times of how long the last one took."""
_UNIT: Final = Struct(">iqiqiqiiq")
_CHECK: Final = Struct(">7q")
_MAGIC, _MAGIC_ROLLS = 1, 2
_topic_hash: Final = lru_cache(maxsize=4096)(java_hash)


@frozen
class Pending:
    """What is pending at one moment."""

    timers: Iterable[PendingTimer]
    """In the order of the timer topic."""
    newest: PendingTimer
    """The newest record of the timer topic, pending or not."""
    now_ms: int


def timer_files(pending: Pending, settings: TimerSettings) -> tuple[bytearray, bytes] | None:
    """The timer log's units, and the check point's file; None with more timers than `TIMERS_MAX`.

    Slots that are over and pending are read first: the broker begins with the oldest one.
    """
    precision = settings.precision_ms

    def whole(time_ms: int) -> int:
        return time_ms // precision * precision

    now_ms = whole(pending.now_ms)
    read_ms, last_offset = now_ms, -1
    units = bytearray()
    last_of: dict[int, int] = {}

    def add(timer: PendingTimer, slot_ms: int, written_ms: int, magic: int) -> None:
        previous = last_of.get(slot_ms, -1)
        last_of[slot_ms] = len(units)
        units.extend(
            _UNIT.pack(
                _UNIT.size,
                previous,
                magic,
                written_ms,
                slot_ms - written_ms,
                timer.physical_offset,
                timer.size,
                _topic_hash(timer.topic),
                0,
            )
        )

    for number, timer in enumerate(pending.timers, 1):
        if number > TIMERS_MAX:
            return None
        rolls_at = timer.rolls_at(settings.roll_window_ms)
        place = whole(timer.slot_ms if rolls_at is None else rolls_at)
        read_ms, last_offset = min(read_ms, place), timer.queue_offset
        magic = _MAGIC if rolls_at is None else _MAGIC | _MAGIC_ROLLS
        add(timer, place, min(whole(timer.stored_ms), place), magic)
    newest = pending.newest
    if last_offset != newest.queue_offset:
        add(newest, read_ms - precision, read_ms - 2 * precision, _MAGIC)
    next_offset = newest.queue_offset + 1
    check = _CHECK.pack(read_ms, 0, next_offset, next_offset, 0, pending.now_ms, 1)
    return units, check.ljust(FILE_BYTES, b"\0")


def write_timer_files(root: Path, pending: Pending, settings: TimerSettings) -> None:
    """Write both files into the store at `root`. Blocks. Raises OSError.

    With more timers than one file of a timer log holds both are removed.
    """
    folder, check_path = root / TIMER_LOG, root / "config" / TIMER_CHECK
    path = folder / f"{0:020}"
    files = timer_files(pending, settings)
    if files is None:
        check_path.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return
    units, check = files
    folder.mkdir(exist_ok=True)
    temporary = folder.with_name(f"{TIMER_LOG}.tmp")
    with temporary.open("wb") as file:
        file.write(units)
        file.truncate(TIMER_LOG_FILE_BYTES)
        file.flush()
        sync_whole(file.fileno())
    for stale in (*(root / name for name in STALE), *root.glob("timerwheel.*")):
        stale.unlink(missing_ok=True)
    for old in folder.iterdir():
        if old != path:
            old.unlink()
    temporary.replace(path)
    sync_directory(folder)
    replace_without_backup(check_path, check)


class TimerHandover:
    """Keeps the files of a store as what is pending. Run it while the node is the master."""

    def __init__(
        self,
        root: Path,
        settings: TimerSettings,
        *,
        timers: Callable[[], PendingTimers | None],
        unwritten: Unwritten,
        now_ms: Callable[[], int],
        run_blocking: Callable[[Callable[[], None]], Awaitable[None]] = run_in_thread,
    ) -> None:
        """`root` is the store; `timers` what is pending, None before that is known. `now_ms`: the wall
        clock, ms since 1970. `run_blocking` runs a function that blocks, by default in a worker thread."""
        self._root = root
        self._settings = settings
        self._timers = timers
        self._unwritten = unwritten
        self._now_ms = now_ms
        self._run_blocking = run_blocking
        self._written = -1
        """`PendingTimers.changes` of what was written last."""

    async def run(self) -> None:
        """Write when something has changed, until cancelled; then once more."""
        try:
            while True:
                began_s = trio.current_time()
                await self._write()
                await trio.sleep(max(INTERVAL_S, SHARE * (trio.current_time() - began_s)))
        finally:
            with trio.CancelScope(shield=True):
                await self._write()

    async def _write(self) -> None:
        timers = self._timers()
        if timers is None or timers.newest is None or timers.changes == self._written:
            return
        changes, newest, now_ms = timers.changes, timers.newest, self._now_ms()
        snapshot = timers.snapshot()

        def write() -> None:
            pending = Pending(snapshot(), newest, now_ms)
            write_timer_files(self._root, pending, self._settings)

        try:
            await self._run_blocking(write)
        except OSError as error:
            self._unwritten.fail(
                HANDOVER,
                error.strerror or str(error),
                consequence="a RocketMQ broker that takes over the store delivers timers again",
            )
        else:
            self._written = changes
            self._unwritten.succeed(HANDOVER)

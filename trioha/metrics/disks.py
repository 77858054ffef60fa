"""How full the disk of the log is, asked in a worker thread: a disk may be slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import structlog
import trio
from prometheus_client.metrics_core import Metric

from trioha.broker_status import BrokerStatus
from trioha.log_limit import LogLimit
from trioha.metrics.families import gauge, value_of
from trioha.net.threads import run_in_thread
from trioha.store.disk_use import DiskUse

log = structlog.get_logger(__name__)

INTERVAL_S: Final = 10.0
"""As retention looks at it."""
REPORT_INTERVAL_S: Final = 60.0


class DiskWatch:
    """Keeps the use of a disk up to date."""

    def __init__(self, read: Callable[[], DiskUse]) -> None:
        """`read` blocks, and raises OSError."""
        self._read = read
        self._limit = LogLimit(REPORT_INTERVAL_S, clock_s=trio.current_time)
        self.use: DiskUse | None = None
        """As of some seconds ago; None before it is known, and while the disk does not say."""

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            try:
                self.use = await run_in_thread(self._read)
            except OSError as error:
                self.use = None
                if times := self._limit.count():
                    log.warning("the use of the disk is not known", reason=str(error), times=times)
            await trio.sleep(INTERVAL_S)


def disk_families(status: BrokerStatus, use: DiskUse | None, *, full_ratio: float) -> Iterator[Metric]:
    """Of the log's disk. `full_ratio`: diskSpaceWarningLevelRatio."""
    yield value_of(
        gauge("disk_total_bytes", "Size of the log's disk."), None if use is None else use.total_bytes
    )
    yield value_of(
        gauge("disk_used_bytes", "Used bytes of the log's disk."), None if use is None else use.used_bytes
    )
    yield value_of(
        gauge("disk_free_bytes", "Bytes of the log's disk that the node can use."),
        None if use is None else use.free_bytes,
    )
    yield value_of(gauge("disk_full_ratio", "Used part of the disk at which puts are refused."), full_ratio)
    yield value_of(
        gauge("disk_refuses_puts", "Whether the disk keeps puts from being stored."),
        bool(status.put_refusal),
    )

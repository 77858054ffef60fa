"""Says what a RocketMQ 5 master left in the log of a node that has become its successor.

A master counts it once in each term, beside all that it does: the role does not wait for it. The status has
it from then on, and the log one warning, if there is anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
from attrs import define, field

from trioha.broker.pending import (
    DOUBT_REMEDY,
    REMEDY,
    UNREAD_REMEDY,
    PendingCount,
    count_pending,
    pending_text,
    revived_offsets,
)
from trioha.broker_status import PendingStatus
from trioha.config.broker import BrokerConfig
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import wall_clock_ms
from trioha.net.threads import run_in_thread
from trioha.node.store_tasks import watch_progress
from trioha.store.message_store import MessageStore

log = structlog.get_logger(__name__)

PAUSE_S: Final = 0.001
"""The thread pauses so long every few milliseconds: the event loop has the interpreter then, at once."""


@define
class PendingCounter:
    """Counts what is pending on a master."""

    _config: BrokerConfig
    _store: MessageStore
    _metadata: MetadataStore
    found: PendingStatus | None = field(default=None, init=False)
    """None until it is counted."""
    timers_from_ms: int | None = field(default=None, init=False)
    """No timer that waits is due before this moment, which is not after the count, ms since 1970; None as
    long as that is not known."""

    async def run(self) -> None:
        """Count it, and log it if it is anything."""
        store = self._store
        begun_ms = wall_clock_ms()
        end_offset = store.commit_log.max_offset
        # Queues have all of the log then.
        await store.dispatcher.dispatched.reached(end_offset)
        counted = await run_in_thread(
            partial(
                count_pending,
                self._config.store_path_root_dir,
                log=self._config.store_path_commit_log,
                revived=revived_offsets(self._metadata.consumer_offsets),
                check_point=self._metadata.timers.check_point,
                end_offset=end_offset,
                on_step=_stepping(),
            )
        )
        self.found = counted.status
        if not counted.status.error:
            first_ms = counted.timers_from_ms
            self.timers_from_ms = begun_ms if first_ms is None else min(first_ms, begun_ms)
        report(counted)


def report(counted: PendingCount) -> None:
    """Log what was found, if it is anything."""
    found = counted.status
    if text := pending_text(found):
        log.warning(
            "a RocketMQ master left messages in the log that are not delivered",
            pending=text,
            timers=found.timers,
            popped=found.popped,
            hint=REMEDY,
        )
    if counted.doubt:
        log.warning(
            "timers are counted without the check point of RocketMQ's timer",
            reason=counted.doubt,
            hint=DOUBT_REMEDY,
        )
    if found.unread_stores:
        log.warning(
            "the store has RocksDB stores of a RocketMQ broker, which are not read",
            stores=", ".join(found.unread_stores),
            hint=UNREAD_REMEDY,
        )


def _stepping() -> Callable[[int, int], None]:
    """Logs the progress, ends the count if the node is cancelled, and leaves the interpreter to the loop."""
    progress = watch_progress()

    def on_step(offset: int, end_offset: int) -> None:
        progress("counting what a RocketMQ master left", offset, end_offset)
        time.sleep(PAUSE_S)

    return on_step

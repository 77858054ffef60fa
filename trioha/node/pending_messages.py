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
import trio
from attrs import define, evolve, field

from trioha.broker.pending import (
    DOUBT_REMEDY,
    REMEDY,
    UNREAD_REMEDY,
    PendingCount,
    count_pending,
    pending_text,
    revived_offsets,
)
from trioha.broker.timer_messages import TimerSettings, precision_ms
from trioha.broker.timer_records import PendingTimers
from trioha.broker_status import PendingStatus
from trioha.config.broker import BrokerConfig
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import wall_clock_ms
from trioha.net.threads import run_in_thread
from trioha.node.store_tasks import watch_progress
from trioha.store.message_store import MessageStore

log = structlog.get_logger(__name__)

COUNT_AGAIN_S: Final = 60.0
"""After a count that the store did not allow. No timer is delivered until it is counted."""
PAUSE_S: Final = 0.001
"""The thread pauses so long every few milliseconds: the event loop has the interpreter then, at once."""


@define
class PendingCounter:
    """Counts what is pending on a master."""

    _config: BrokerConfig
    _store: MessageStore
    _metadata: MetadataStore
    _counted: trio.Event = field(factory=trio.Event, init=False)
    _found: PendingCount | None = field(default=None, init=False)
    _end_offset: int = field(default=0, init=False)
    """Of the log that was counted."""

    @property
    def status(self) -> PendingStatus | None:
        """What is pending now; None until it is counted."""
        if self._found is None:
            return None
        timers, status = self._found.timers, self._found.status
        if not self._config.timer_wheel_enable or status.error:
            return status
        number, first_ms, last_ms = timers.figures()
        return evolve(
            status,
            delivers_timers=True,
            timers=number,
            timers_first_ms=first_ms,
            timers_last_ms=last_ms,
            # The master gives them again.
            popped=0,
            popped_first_ms=None,
            popped_groups={},
        )

    @property
    def timers_from_ms(self) -> int | None:
        """No timer that waited at the count is due before this moment, ms since 1970; None as long as that is
        not known."""
        return None if self._found is None or self._found.status.error else self._found.timers_from_ms

    async def counted(self) -> tuple[PendingCount, int]:
        """What is pending, once it is counted, and the end of the log that was counted."""
        await self._counted.wait()
        assert self._found is not None
        return self._found, self._end_offset

    async def timers(self) -> PendingTimers:
        """The timers that wait, once they are counted. The caller may change them."""
        found, _ = await self.counted()
        return found.timers

    async def run(self) -> None:
        """Count it, and log it if it is anything; again after a while if the store cannot be read."""
        while not self._counted.is_set():
            if not (await self._count()).error:
                self._counted.set()
            else:
                await trio.sleep(COUNT_AGAIN_S)

    async def _count(self) -> PendingStatus:
        store = self._store
        begun_ms = wall_clock_ms()
        end_offset = self._end_offset = store.commit_log.max_offset
        # Queues have all of the log then.
        await store.dispatcher.dispatched.reached(end_offset)
        counted = await run_in_thread(
            partial(
                count_pending,
                self._config.store_path_root_dir,
                log=self._config.store_path_commit_log,
                revived=revived_offsets(self._metadata.consumer_offsets),
                check_point=self._metadata.timers.check_point,
                roll_window_ms=timer_settings(self._config).roll_window_ms,
                end_offset=end_offset,
                pops_complete_to=self._metadata.consumer_offsets.pops_complete_to,
                on_step=_stepping(),
            )
        )
        first_ms = counted.timers_from_ms
        from_ms = begun_ms if first_ms is None else min(first_ms, begun_ms)
        if self._found is None or self._found.status != counted.status:
            self._found = evolve(counted, timers_from_ms=from_ms)
            report(self._found, self.status or counted.status)
        return counted.status


def timer_settings(config: BrokerConfig) -> TimerSettings:
    """Settings of timers."""
    step_ms = precision_ms(config.timer_precision_ms)
    return TimerSettings(
        is_enabled=config.timer_wheel_enable,
        precision_ms=step_ms,
        delay_ms_max=1000 * config.timer_max_delay_sec,
        roll_window_ms=step_ms * config.timer_roll_window_slot,
        per_slot_max=config.timer_congest_num_each_slot,
        recall_enabled=config.recall_message_enable,
    )


def report(counted: PendingCount, found: PendingStatus) -> None:
    """Log what was found, if it is anything that is not delivered."""
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

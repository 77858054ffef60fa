"""Group commit: what a put waits for after it was appended (design section 4, spec ha 4).

`need` is the number of copies beyond the master's own: fixed (inSyncReplicas), all that are in sync
(allAckInSyncStateSet), or what there is (enableAutoInSyncReplicas). With fewer in sync than minInSyncReplicas
asks for, nothing is stored: IN_SYNC_REPLICAS_NOT_ENOUGH. Fewer eligible replicas than that:
SLAVE_NOT_AVAILABLE at once, the message stays stored. Otherwise the put waits for the need-th largest
acknowledged offset to reach its end, at most slaveTimeout: FLUSH_SLAVE_TIMEOUT. With SYNC_FLUSH it also waits
for the disk, at most syncFlushTimeout: FLUSH_DISK_TIMEOUT. Both waits run side by side, each put has its own
deadlines, and if both fail the replicas' status is the answer.
"""

from __future__ import annotations

import trio
from attrs import frozen

from trioha.ha.replicas import Replicas
from trioha.recording.events import EventSink, Kind
from trioha.store.status import PutStatus
from trioha.watermark import Watermark


@frozen
class GroupCommitSettings:
    """What puts of this master wait for."""

    copies_needed: int
    """Replicas that must hold a put before it is answered PUT_OK; 0 for an ASYNC_MASTER."""
    slave_timeout_s: float
    sync_flush: bool
    sync_flush_timeout_s: float
    copies_min: int = 0
    """minInSyncReplicas less the master's own: with fewer replicas in sync nothing is stored."""
    lowers_need: bool = False
    """enableAutoInSyncReplicas: needs no more copies than are in sync, but at least `copies_min`."""
    all_in_sync: bool = False
    """allAckInSyncStateSet: needs every replica that is in sync, at least `copies_needed`."""


class GroupCommit:
    """Waits for replicas and disk on behalf of puts."""

    def __init__(
        self,
        settings: GroupCommitSettings,
        *,
        replicas: Replicas,
        flushed: Watermark,
        sink: EventSink,
    ) -> None:
        self._settings = settings
        self._replicas = replicas
        self._flushed = flushed
        self._sink = sink

    def refusal(self, max_offset: int) -> PutStatus | None:
        """Why a put must not even be stored while the log ends at `max_offset`; None if it may be.

        IN_SYNC_REPLICAS_NOT_ENOUGH where minInSyncReplicas asks for more copies than there are.
        """
        if (
            self._settings.copies_min
            and self._replicas.eligible_count(max_offset) < self._settings.copies_min
        ):
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return None

    def _copies_needed(self, eligible: int) -> int:
        """How many of `eligible` replicas must hold a put."""
        settings = self._settings
        need = settings.copies_needed
        if settings.all_in_sync:
            need = max(need, eligible)
        if settings.lowers_need:
            need = max(min(need, eligible), settings.copies_min)
        return need

    def must_wait(self, *, wait_store_ok: bool) -> bool:
        """Whether a put waits at all; one with the property WAIT=false (`wait_store_ok` False) never does."""
        return wait_store_ok and (self._settings.copies_needed > 0 or self._settings.sync_flush)

    async def wait(self, *, start_offset: int, end_offset: int, request_id: int) -> PutStatus:
        """Wait until the record from `start_offset` to `end_offset` is as safe as the settings ask.

        Returns PUT_OK, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT. Cancelling leaves
        nothing behind.
        """
        settings = self._settings
        eligible = self._replicas.eligible_count(end_offset) if settings.copies_needed else 0
        need = self._copies_needed(eligible) if settings.copies_needed else 0
        sink = self._sink
        sink.emit(Kind.WAIT_BEGIN, offset=end_offset, aux=request_id, size=need + 1)
        started_s = trio.current_time()
        if not settings.sync_flush:
            status = await self._wait_for_replicas(start_offset, end_offset, need, eligible)
        elif need == 0:
            status = await self._wait_for_disk(end_offset)
        else:
            status = await self._wait_for_both(start_offset, end_offset, need, eligible)
        waited_us = min(round((trio.current_time() - started_s) * 1e6), 2**31 - 1)
        sink.emit(Kind.WAIT_END, offset=end_offset, aux=request_id, size=waited_us, flags=status)
        return status

    async def _wait_for_replicas(
        self, start_offset: int, end_offset: int, need: int, eligible: int
    ) -> PutStatus:
        if need == 0:
            return PutStatus.PUT_OK
        if eligible < need:
            return PutStatus.SLAVE_NOT_AVAILABLE
        generation = self._replicas.current
        put = generation.begin_wait(start_offset)
        try:
            with trio.move_on_after(self._settings.slave_timeout_s) as wait:
                await generation.copies(need).reached(end_offset)
        finally:
            put.is_over = True
        return PutStatus.FLUSH_SLAVE_TIMEOUT if wait.cancelled_caught else PutStatus.PUT_OK

    async def _wait_for_disk(self, end_offset: int) -> PutStatus:
        with trio.move_on_after(self._settings.sync_flush_timeout_s) as wait:
            await self._flushed.reached(end_offset)
        return PutStatus.FLUSH_DISK_TIMEOUT if wait.cancelled_caught else PutStatus.PUT_OK

    async def _wait_for_both(self, start_offset: int, end_offset: int, need: int, eligible: int) -> PutStatus:
        disk_status = PutStatus.UNKNOWN_ERROR

        async def wait_for_disk() -> None:
            nonlocal disk_status
            disk_status = await self._wait_for_disk(end_offset)

        async with trio.open_nursery() as waits:
            waits.start_soon(wait_for_disk)
            replica_status = await self._wait_for_replicas(start_offset, end_offset, need, eligible)
        return replica_status if replica_status is not PutStatus.PUT_OK else disk_status

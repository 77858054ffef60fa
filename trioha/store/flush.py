"""Flush: the task that moves the `flushed` watermark (docs/protocol/store.md#appends-and-flushes).

SYNC_FLUSH syncs as long as the log has bytes that are not on disk. Bytes that arrive during a sync join the
next one, so one sync serves every put that waited (group commit without lists). ASYNC_FLUSH syncs every
flushIntervalCommitLog, and earlier when the bytes that are not on disk fill `UNFLUSHED_FILES` files, each of
which keeps its descriptor until then. A sync that fails ends the node: pages that a failed fsync dropped look
like clean ones, so no later sync can promise that they are on disk.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import trio

from trioha.errors import StoreError
from trioha.net.threads import run_in_thread
from trioha.store.message_store import MessageStore

UNFLUSHED_FILES: Final = 2
"""With ASYNC_FLUSH a sync starts before its time when the log has grown by so many files."""
OnFlushed = Callable[[int, int], None]
"""Receives the flushed offset, and the duration of the sync in ns."""
OnStep = Callable[[], None]
"""Is called while a sync makes progress, in any thread."""


def _unwatched() -> AbstractContextManager[OnStep]:
    return nullcontext(lambda: None)


class FlushService:
    """Moves a store's `flushed` watermark towards its `appended` one."""

    def __init__(
        self,
        store: MessageStore,
        *,
        sync_flush: bool,
        interval_s: float,
        on_flushed: OnFlushed,
        sync: Callable[[int, int, int, OnStep], Awaitable[None]] | None = None,
        working: Callable[[], AbstractContextManager[OnStep]] = _unwatched,
    ) -> None:
        """`sync(start_offset, end_offset, store_timestamp_ms, on_step)` is the port to the disk: by default a
        worker thread, which is paced without `sync_flush`; tests in virtual time replace it. Each runs within
        `working()`, which gives `on_step`."""
        self._store = store
        self._sync_flush = sync_flush
        self._interval_s = interval_s
        self._on_flushed = on_flushed
        self._sync = sync or self._sync_in_thread
        self._working = working

    async def run(self) -> None:
        """Flush until cancelled. Raises StoreError when the disk fails."""
        log = self._store.commit_log
        while True:
            if not self._sync_flush:
                with trio.move_on_after(self._interval_s):
                    await log.appended.reached(log.flushed.offset + UNFLUSHED_FILES * log.file_bytes)
            await log.appended.reached(log.flushed.offset + 1)
            # Not if the log was cut: `flushed` is at its end then.
            if log.max_offset > log.flushed.offset:
                await self.flush()

    async def flush(self) -> None:
        """Put all bytes of the log on disk."""
        log = self._store.commit_log
        start_offset, end_offset = log.flushed.offset, log.max_offset
        rewinds = log.flushed.rewinds
        started_ns = time.monotonic_ns()
        try:
            with self._working() as on_step:
                await self._sync(start_offset, end_offset, log.last_store_timestamp_ms, on_step)
        except OSError as error:
            self._store.abort.mark_failed()
            raise StoreError(
                f"fsync failed: {error.strerror}",
                path=log.directory,
                offset=start_offset,
                hint="nothing after this offset is promised to be on disk; check the disk before a restart",
            ) from error
        if log.flushed.rewinds != rewinds:
            # The log was cut or begins anew: the synced bytes are not in it.
            return
        log.flushed.advance(end_offset)
        self._on_flushed(end_offset, time.monotonic_ns() - started_ns)

    async def _sync_in_thread(
        self, start_offset: int, end_offset: int, store_timestamp_ms: int, on_step: OnStep
    ) -> None:
        sync = self._store.syncs.log_sync(
            start_offset,
            end_offset,
            store_timestamp_ms=store_timestamp_ms,
            on_step=on_step,
            paced=not self._sync_flush,
        )
        # Not abandoned when cancelled: the files must stay open until the disk has answered.
        await run_in_thread(sync)

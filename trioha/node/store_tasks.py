"""The store of a node: its opening and closing, and its flush, dispatch, allocation and retention tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import structlog
import trio
from attrs import frozen

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.keys.ha import AckMode
from trioha.config.keys.store import FlushDiskType
from trioha.histogram import Histogram
from trioha.net.error_boundary import is_thread_shortage
from trioha.net.threads import run_in_thread
from trioha.recording.events import EventSink, Kind
from trioha.store import opening
from trioha.store.allocate import allocate_ahead
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_service import DispatchService
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.flush import FlushService, OnStep
from trioha.store.index_file import IndexShape
from trioha.store.message_store import MessageStore
from trioha.store.record import Host
from trioha.store.retention import EVERYTHING, Retention, RetentionSettings
from trioha.store.store_settings import StoreSettings
from trioha.store.tags import DelayLevels
from trioha.store.waiting_readers import WaitingReaders
from trioha.unwritten import Unwritten

log = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 2.0
FLUSH_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Bounds of the histogram of flush times: an SSD's sync to that of a disk which puts wait for too long."""


async def open_store(
    config: BrokerConfig, *, queue_files: int, unwritten: Unwritten | None = None
) -> MessageStore:
    """Open the store in a worker thread; it keeps at most `queue_files` files of queues open.

    `unwritten` gets what cannot be written.
    Cancellation ends the opening within a second and leaves the store closed. Raises StoreError.
    """
    is_slave = config.broker_role is BrokerRole.SLAVE
    settings = StoreSettings(
        root=config.store_path_root_dir,
        commit_log_directory=config.store_path_commit_log,
        file_bytes=config.mapped_file_size_commit_log,
        message_bytes_max=config.max_message_size,
        store_host=Host.parse(config.broker_ip1, config.listen_port),
        queues=ConsumeQueueSettings(
            file_bytes=config.mapped_file_size_consume_queue,
            batch_file_bytes=config.mapped_file_size_batch_consume_queue,
            open_files_max=queue_files,
            queues_max=config.queues_max,
        ),
        epoch_file=config.store_path_epoch_file if config.enable_controller_mode else None,
        dispatch_to_confirmed=config.enable_controller_mode,
        index=IndexShape(hash_slots=config.max_hash_slot_num, index_num=config.max_index_num),
        dispatch=DispatchSettings(
            message_index_enable=config.message_index_enable,
            enable_lmq=config.enable_lmq,
            enable_multi_dispatch=config.enable_multi_dispatch,
            is_slave=is_slave,
            delay_levels=DelayLevels(config.message_delay_level),
            sync_flush=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        ),
    )
    opened: list[MessageStore] = []

    def open_() -> None:
        opened.append(opening.open_store(settings, on_progress=watch_progress(), unwritten=unwritten))

    try:
        await run_in_thread(open_)
    except trio.Cancelled:
        log.info("start ended while the store was being opened", path=str(config.store_path_root_dir))
        raise
    store = opened[0]
    log.info(
        "store opened",
        path=str(config.store_path_root_dir),
        records=store.recovered.records,
        min_offset=store.commit_log.min_offset,
        max_offset=store.commit_log.max_offset,
    )
    return store


def watch_progress(on_step: Callable[[], None] = lambda: None) -> Callable[[str, int, int], None]:
    """Logs the progress of long work on a store every few seconds, and ends it if the node is cancelled.

    Calls `on_step` each time.
    Called in the thread that works on the store, which is never abandoned: lock and files must have an owner.
    """
    reported_s = time.monotonic()

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal reported_s
        trio.from_thread.check_cancelled()
        on_step()
        if time.monotonic() - reported_s >= PROGRESS_INTERVAL_S:
            reported_s = time.monotonic()
            log.info(what, done=done, total=total)

    return on_progress


async def flush_rest(store: MessageStore, *, on_step: OnStep) -> None:
    """Put what is not on disk yet there, while no task of a `StoreTasks` runs. Raises StoreError.

    `on_step` is called, in a worker thread, while that goes on.
    """
    if store.commit_log.flushed.offset < store.commit_log.max_offset:
        await FlushService(
            store,
            sync_flush=True,
            interval_s=0.0,
            on_flushed=lambda _offset, _ns: None,
            working=lambda: nullcontext(on_step),
        ).flush()


async def close_store(store: MessageStore) -> None:
    """Flush and close the store, also if the node is cancelled. Raises StoreError."""
    with trio.CancelScope(shield=True):
        try:
            await trio.to_thread.run_sync(store.close)
        except RuntimeError as error:
            if not is_thread_shortage(error):
                raise
            # All other tasks have ended: blocking the event loop delays none of them.
            store.close()
    log.info("store closed", flushed_offset=store.commit_log.flushed.offset)


def retention_settings(config: BrokerConfig) -> RetentionSettings:
    """Age of files and use of the disk that the configuration allows."""
    return RetentionSettings(
        file_reserved_s=config.file_reserved_time * 3600.0,
        delete_when=config.delete_when,
        disk_max_used_ratio=config.disk_max_used_space_ratio / 100,
        force_ratio=config.disk_space_clean_forcibly_ratio / 100,
        full_ratio=config.disk_space_warning_level_ratio / 100,
        clean_forcibly=config.clean_file_forcibly_enable,
        interval_s=config.clean_resource_interval / 1000,
        archive_before_delete=config.archive_before_delete,
    )


@frozen
class StoreTasks:
    """The tasks of an open store."""

    store: MessageStore
    flush: FlushService
    """Advances `flushed` to `appended`."""
    dispatch: DispatchService
    """Builds queues and index up to `appended`."""
    retention: Retention
    """Deletes old log files."""
    readers: WaitingReaders
    """Consumers that dispatch hurries for."""
    flush_times_s: Histogram
    """How long syncs of the log took."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        *,
        sink: EventSink,
        retention_floor: Callable[[], int],
        archived_offset: Callable[[], int | None] = lambda: EVERYTHING,
        working: Callable[[], AbstractContextManager[OnStep]] = lambda: nullcontext(lambda: None),
    ) -> StoreTasks:
        """`retention_floor` gives the lowest offset that slaves still need, `archived_offset` the end of what
        is archived, None while that is not known. Syncs of the log run within `working()`, and call what it
        gives for each step."""
        is_slave = config.broker_role is BrokerRole.SLAVE
        sync_flush = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        flush_times_s = Histogram(FLUSH_BOUNDS_S)
        readers = WaitingReaders()

        def on_flushed(offset: int, duration_ns: int) -> None:
            sink.emit(Kind.FLUSHED, offset=offset, aux=duration_ns)
            flush_times_s.add(duration_ns / 1e9)

        return cls(
            store,
            FlushService(
                store,
                # A slave that acks only flushed bytes syncs as soon as there are any others.
                sync_flush=sync_flush or (is_slave and config.ha_ack_mode is AckMode.FLUSHED),
                interval_s=config.flush_interval_commit_log / 1000,
                on_flushed=on_flushed,
                working=working,
            ),
            DispatchService(
                store,
                readers=readers,
                on_dispatched=lambda offset, records: sink.emit(Kind.DISPATCHED, offset=offset, size=records),
            ),
            Retention(
                store.commit_log,
                retention_settings(config),
                retention_floor=retention_floor,
                archived_offset=archived_offset,
                on_deleted=store.head_deleted,
                on_cleaned=None if store.epochs is None else store.truncate_epochs,
            ),
            readers,
            flush_times_s,
        )

    async def run(self) -> None:
        """Run the store's tasks until cancelled. Raises StoreError when its disk fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.flush.run)
            nursery.start_soon(allocate_ahead, self.store.commit_log)
            nursery.start_soon(self.dispatch.run)
            nursery.start_soon(self.retention.run)

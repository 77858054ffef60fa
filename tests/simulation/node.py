"""Simulated nodes: real stores, real replication, and crashes as the disk sees them.

A kill leaves the page cache: all that was written, and perhaps a torn append after it. A power loss leaves
what was flushed; of the sectors after it some are written and some are not.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from attrs import frozen

from tests.faults.rebuilt import Shape, check_rebuilt
from tests.simulation.determinism import stream_of
from tests.simulation.history import History, bytes_of
from tests.simulation.plan import Plan
from tests.simulation.trace import Trace
from tests.sinks import SingleEvents
from trioha.recording.events import NO_CONNECTION, Kind
from trioha.store.allocate import allocate_ahead
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_service import DispatchService
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.flush import FlushService
from trioha.store.index_file import IndexShape
from trioha.store.message_store import MessageStore
from trioha.store.opening import open_store
from trioha.store.record import Host
from trioha.store.store_settings import StoreSettings
from trioha.watermark import Watermark

SECTOR_BYTES = 512
TORN_BYTES_MAX = 300
STORE_HOST = Host.parse("10.0.0.1", 10911)


@frozen
class Snapshot:
    """A log's content while its node is down."""

    start_offset: int
    data: bytes
    flushed_offset: int

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.data)

    @classmethod
    def of(cls, log: CommitLog) -> Snapshot:
        data = bytes_of(log, log.min_offset, log.max_offset)
        return cls(log.min_offset, data, log.flushed.offset)

    def part(self, start_offset: int, end_offset: int) -> bytes:
        """Bytes `[start_offset, end_offset)`; fewer if it does not have them all."""
        if start_offset < self.start_offset:
            return b""
        return self.data[start_offset - self.start_offset : end_offset - self.start_offset]


class NodeSink(SingleEvents):
    """A node's events, for the trace and for the node."""

    def __init__(self, name: str, trace: Trace, on_event: Callable[[int, int, int, int], None]) -> None:
        self._name = name
        self._trace = trace
        self._on_event = on_event
        self.addresses: dict[int, str] = {}
        """Peer of each connection."""

    def emit(
        self,
        kind: int,
        *,
        conn: int = NO_CONNECTION,
        offset: int = 0,
        aux: int = 0,
        size: int = 0,
        flags: int = 0,
    ) -> None:
        self._trace.note(self._name, f"{Kind(kind).name} {conn=} {offset=} {aux=} {size=} flags={int(flags)}")
        self._on_event(kind, conn, offset, flags)

    def fact(self, type_: str, **fields: object) -> None:
        if type_ == "connection":
            conn = fields["conn"]
            assert isinstance(conn, int)
            self.addresses[conn] = str(fields["address"])


def check_queues(settings: StoreSettings) -> list[str]:
    """After the last end: queues and index, recovered once more, are what the log says."""
    store = open_store(settings)
    store.dispatcher.limit_to(None)
    dispatch_to_end(store.dispatcher, store.commit_log)
    store.close()
    shape = Shape(log_file_bytes=settings.file_bytes, queues=settings.queues, index=settings.index)
    return check_rebuilt(settings.root, shape)


class Node(ABC):
    """A store and what serves it, from crash to crash."""

    def __init__(
        self,
        name: str,
        *,
        plan: Plan,
        folder: Path,
        history: History,
        trace: Trace,
        on_violation: Callable[[str], None],
        sync_flush: bool,
    ) -> None:
        self.name = name
        self.plan = plan
        self.history = history
        self.trace = trace
        self.rng: random.Random = stream_of(plan.seed, name)
        self.disk_s = plan.disk_s
        self.store: MessageStore | None = None
        self.lost_power = False
        """Whether the node went down without closing its connections."""
        self.snapshot = Snapshot(0, b"", 0)
        """What is surely left of the log while the node is down."""
        self._written = self.snapshot
        """What the log was when the node went down last."""
        self._fail = on_violation
        self.settings = StoreSettings(
            root=folder / name,
            commit_log_directory=folder / name / "commitlog",
            file_bytes=plan.file_bytes,
            message_bytes_max=plan.file_bytes,
            store_host=STORE_HOST,
            queues=ConsumeQueueSettings(file_bytes=400, batch_file_bytes=920, open_files_max=16),
            index=IndexShape(hash_slots=53, index_num=100),
            dispatch=DispatchSettings(is_slave=name != "master", sync_flush=sync_flush),
        )
        self._life = trio.CancelScope()
        self._restart_after_s = 0.0
        self._starts = 0

    def fail(self, what: str) -> None:
        self._fail(f"{self.name}: {what}")

    @property
    def is_up(self) -> bool:
        return self.store is not None

    @property
    def log(self) -> CommitLog:
        return self.store.commit_log

    def holds(self, start_offset: int, data: bytes, *, flushed: bool) -> bool:
        """Whether the node has `data` at `start_offset`, up or down; `flushed`: on its disk."""
        end_offset = start_offset + len(data)
        if self.store is None:
            held = self.snapshot.part(start_offset, end_offset)
            flushed_offset = self.snapshot.flushed_offset
        else:
            held = bytes_of(self.log, start_offset, end_offset)
            flushed_offset = self.log.flushed.offset
        return held == data and (not flushed or flushed_offset >= end_offset)

    async def run(self, *, starts_after_s: float = 0.0) -> None:
        """Live, crash and live again, until cancelled."""
        await trio.sleep(starts_after_s)
        while True:
            self._open()
            self._life = trio.CancelScope()
            try:
                with self._life:
                    await self._live()
            finally:
                self._go_down()
            await trio.sleep(self._restart_after_s)

    def crash(self, *, power: bool, restart_after_s: float) -> None:
        """Be killed, or lose power, now; and start again later. Nothing happens to a node that is down."""
        if not self.is_up:
            return
        self.trace.note(self.name, f"crash {power=} restart_after_s={restart_after_s:.3f}")
        self.lost_power = power
        self._restart_after_s = restart_after_s
        self._life.cancel()

    @abstractmethod
    async def _live(self) -> None:
        """Serve until cancelled."""

    @abstractmethod
    def _opened(self) -> None:
        """The store is open, `lost_power` says after what."""

    @abstractmethod
    def _ended(self) -> None:
        """Nothing serves the store any more; its log is still there to look at."""

    def _start_disk(self, nursery: trio.Nursery, *, interval_s: float) -> None:
        store = self.store

        async def sync(
            start_offset: int, end_offset: int, store_timestamp_ms: int, _on_step: Callable[[], None]
        ) -> None:
            await trio.sleep(self.rng.choice(self.disk_s))
            store.syncs.log_sync(start_offset, end_offset, store_timestamp_ms=store_timestamp_ms)()

        flush = FlushService(
            store,
            sync_flush=self.settings.dispatch.sync_flush,
            interval_s=interval_s,
            on_flushed=lambda offset, _: self._flushed(offset),
            sync=sync,
        )

        async def sync_queues(work: Callable[[], None]) -> None:
            await trio.sleep(self.rng.choice(self.disk_s))
            work()

        nursery.start_soon(flush.run)
        nursery.start_soon(DispatchService(store, sync=sync_queues).run)
        nursery.start_soon(partial(allocate_ahead, store.commit_log))

    def _flushed(self, offset: int) -> None:
        self.trace.note(self.name, f"flushed {offset}")
        if offset > self.log.max_offset:
            self.fail(f"flushed {offset} of a log that ends at {self.log.max_offset}")

    # -- crashes -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.store = open_store(self.settings)
        log = self.log
        self._starts += 1
        self.trace.note(self.name, f"start {self._starts} log=[{log.min_offset}, {log.max_offset})")
        if self._written.data:
            if log.max_offset < self.snapshot.end_offset:
                self.fail(f"recovery found {log.max_offset}, safe was {self.snapshot.end_offset}")
            found = bytes_of(log, self._written.start_offset, log.max_offset)
            if not self._written.data.startswith(found) or log.max_offset > self._written.end_offset:
                self.fail("recovery found other bytes than were written")
        self._opened()
        self.lost_power = False

    def _go_down(self) -> None:
        """End as the last crash says: take what is left of the log, close nothing in order."""
        store = self.store
        log = store.commit_log
        self._ended()
        for mark, what in ((log.appended, "appended"), (log.flushed, "flushed")):
            self._check_waiters(mark, what)
        self.snapshot = self._written = Snapshot.of(log)
        if self.lost_power:
            self._lose_sectors(log)
        elif self.rng.random() < 0.5:
            self._tear_append(log)
        store.release()
        self.store = None

    def _check_waiters(self, mark: Watermark, what: str) -> None:
        if mark.waiting:
            self.fail(f"{mark.waiting} wait for the {what} watermark of a node that is down")

    def _lose_sectors(self, log: CommitLog) -> None:
        """Of what was not flushed each sector is on disk or not; only the flushed part is a copy."""
        flushed_offset = log.flushed.offset
        kept = self.rng.choice(self.plan.keeps_sectors)
        for file in log.files:
            at = max(0, flushed_offset - file.start_offset)
            while at < file.size:
                end = min(at - at % SECTOR_BYTES + SECTOR_BYTES, file.size)
                if self.rng.random() >= kept:
                    file.view[at:end] = bytes(end - at)
                at = end
        written = self.snapshot
        safe = written.data[: max(0, flushed_offset - written.start_offset)]
        self.snapshot = Snapshot(written.start_offset, safe, flushed_offset)

    def _tear_append(self, log: CommitLog) -> None:
        """An append that was not done: all but the record's first eight bytes."""
        file = log.files[-1] if log.files else None
        at = log.max_offset - file.start_offset if file is not None else 0
        if file is None or file.size - at < 64:
            return
        end = min(at + self.rng.randint(16, TORN_BYTES_MAX), file.size)
        file.view[at + 8 : end] = self.rng.randbytes(end - at - 8)

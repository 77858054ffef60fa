"""The metadata of one store: all tables, and the tasks that write their files.

Topics and groups are written as soon as they change, as the broker does it, offsets at an interval. Encoding
and writing happen in a worker thread. A file that cannot be written is reported and tried again: what it
holds can be given again by clients, and the log, which cannot, is not affected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import trio
from attrs import define, evolve, field, frozen

from trioha.metadata.consumer_orders import ConsumerOrders
from trioha.metadata.documents import RequestModes, TimerState
from trioha.metadata.files import read_metadata, write_metadata
from trioha.metadata.groups import GroupTable
from trioha.metadata.history import HistorySettings, MetadataHistory
from trioha.metadata.offsets import ConsumerOffsets, DelayOffsets
from trioha.metadata.pretty_json import encode_pretty
from trioha.metadata.table import MetadataTable
from trioha.metadata.topics import TopicSettings, TopicTable
from trioha.net.threads import run_in_thread
from trioha.store.atomic_file import backup_of
from trioha.unwritten import Unwritten

FOLDER = "config"
InThread = Callable[[Callable[[], bool]], Awaitable[bool]]
RETRY_S = 5.0
"""After a write that failed."""


@frozen
class MetadataSettings:
    """Where the files are, when they are written, and how large the tables may be."""

    folder: Path
    """`config` in the store's root."""
    topics: TopicSettings = field(factory=TopicSettings)
    auto_create_groups: bool = True
    """autoCreateSubscriptionGroup."""
    groups_max: int = 10_000
    """trioha.groupsMax."""
    offsets_max: int = 500_000
    """trioha.consumerOffsetsMax."""
    offsets_interval_s: float = 5.0
    """flushConsumerOffsetInterval."""
    delay_interval_s: float = 10.0
    """flushDelayOffsetInterval."""
    history: HistorySettings | None = None
    """Where and how much of it is kept; None keeps no history."""
    adds_system_entries: bool = True
    """Whether the topics and groups that every broker has are added: not on a slave, which has its
    master's."""


@define(eq=False)
class MetadataStore:
    """The tables of one store."""

    settings: MetadataSettings
    topics: TopicTable
    groups: GroupTable
    consumer_offsets: ConsumerOffsets
    delay_offsets: DelayOffsets
    request_modes: RequestModes = field(factory=RequestModes)
    timers: TimerState = field(factory=TimerState)
    consumer_orders: ConsumerOrders = field(factory=ConsumerOrders)
    history: MetadataHistory | None = None
    """Where changes are kept with their time; None keeps none."""
    unwritten: Unwritten = field(factory=Unwritten)
    """What of this cannot be written."""

    @classmethod
    def open(cls, settings: MetadataSettings, *, unwritten: Unwritten | None = None) -> MetadataStore:
        """Read the files that are there. Blocks. Raises StoreError for one that is damaged.

        `unwritten` gets what cannot be written.
        """
        unwritten = unwritten or Unwritten()
        store = cls(
            settings,
            TopicTable(settings.topics),
            GroupTable(auto_create=settings.auto_create_groups, groups_max=settings.groups_max),
            ConsumerOffsets(offsets_max=settings.offsets_max),
            DelayOffsets(),
            consumer_orders=ConsumerOrders(orders_max=settings.offsets_max),
            history=None
            if settings.history is None
            else MetadataHistory(settings.history, unwritten=unwritten),
            unwritten=unwritten,
        )
        for table in store:
            read_metadata(settings.folder / table.file_name, table.load)
        store._add_system_entries()
        if store.history is not None:
            store.history.begin({table.file_name: table.snapshot()() for table in store})
        return store

    def _add_system_entries(self) -> None:
        if self.settings.adds_system_entries:
            self.topics.add_system_topics()
            self.groups.add_system_groups()

    def take_role(self, *, is_slave: bool) -> None:
        """Go on as a slave, or as a master, which has the topics and groups of every broker."""
        self.settings = evolve(self.settings, adds_system_entries=not is_slave)
        self._add_system_entries()

    def __iter__(self) -> Iterator[MetadataTable]:
        yield from (self.topics, self.groups, self.consumer_offsets, self.delay_offsets)
        yield from (self.request_modes, self.timers, self.consumer_orders)

    async def run(self, *, in_thread: InThread = run_in_thread) -> None:
        """Write what changes, for ever. Cancelled, it leaves whole files; `close` writes the rest.

        `in_thread` calls what it is given away from the loop: by default in a worker thread.
        """
        offsets_s, delay_s = self.settings.offsets_interval_s, self.settings.delay_interval_s
        intervals_s = (0.0, 0.0, offsets_s, delay_s, 0.0, delay_s, offsets_s)
        async with trio.open_nursery() as nursery:
            for table, interval_s in zip(self, intervals_s, strict=True):
                nursery.start_soon(
                    partial(self._write_often, table, interval_s=interval_s, in_thread=in_thread)
                )

    async def _write_often(self, table: MetadataTable, *, interval_s: float, in_thread: InThread) -> None:
        written = table.written.offset
        while True:
            await table.changes.reached(written + 1)
            await trio.sleep(interval_s)
            changes, snapshot = table.changes.offset, table.snapshot()
            # The thread goes on where this task is cancelled: `close` must not write beside it.
            is_written = await in_thread(partial(self._write, table.file_name, snapshot))
            table.note_written(changes)
            if is_written:
                written = changes
            else:
                await trio.sleep(RETRY_S)

    def _write(self, file_name: str, snapshot: Callable[[], Mapping[str, object]]) -> bool:
        """Blocks. Whether it succeeded."""
        path = self.settings.folder / file_name
        value = snapshot()
        try:
            write_metadata(path, encode_pretty(value), on_backup=partial(self._note_backup, path))
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
            self.unwritten.fail(file_name, reason, consequence="a node that is killed loses these changes")
            return False
        self.unwritten.succeed(file_name)
        if self.history is not None:
            self.history.note(file_name, value)
        return True

    def _note_backup(self, path: Path, error: OSError | None) -> None:
        name = backup_of(path).name
        if error is None:
            self.unwritten.succeed(name)
        else:
            reason = f"{backup_of(path)}: {error.strerror or error}"
            self.unwritten.fail(name, reason, consequence=f"{path.name} is written without its backup")

    def close(self) -> None:
        """Write what has changed. Blocks; call it when `run` has ended."""
        for table in self:
            if table.changes.offset:
                self._write(table.file_name, table.snapshot())
        if self.history is not None:
            self.history.close()

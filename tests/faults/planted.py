"""Defects of nodes and archivers that the invariants of fault runs find."""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from unittest.mock import patch

import zstandard
from attrs import evolve

from tests.simulation.planting import Defect, plants
from trioha.archive.draft import Draft
from trioha.archive.layout import LOG, LogObject, log_key
from trioha.archive.log_writer import LogWriter
from trioha.archive.objects import ObjectFolder
from trioha.broker import metadata_sync
from trioha.broker.pop.puts import PopPuts, PopRecord
from trioha.broker.pop.records import Acknowledgement
from trioha.broker.timer_delivery import TimerDelivery
from trioha.broker.timer_records import PendingTimer
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.replica import CopiedTable, MetadataReplica
from trioha.store.commit_log import CommitLog
from trioha.store.dispatch import Dispatcher
from trioha.store.lock import StoreLock
from trioha.store.log_files import LogFiles
from trioha.store.mapped_file import MappedFile
from trioha.store.messages import Message

QUEUE_OFFSET_END = 28
"""End of the queue offset in a record."""
PLANTED: list[Defect] = []
_plants = partial(plants, PLANTED)


@_plants("a slave does not write its groups to its disk")
def groups_not_written() -> Iterator[None]:
    write = MetadataStore._write

    def write_others(
        self: MetadataStore, file_name: str, snapshot: Callable[[], Mapping[str, object]]
    ) -> bool:
        return file_name == "subscriptionGroup.json" or write(self, file_name, snapshot)

    with patch.object(MetadataStore, "_write", write_others):
        yield


@_plants("a slave takes the offsets of the copy before the last one")
def offsets_one_copy_late() -> Iterator[None]:
    take = MetadataReplica.take
    former: list[list[bytes]] = []

    def take_former(self: MetadataReplica, table: CopiedTable, bodies: list[bytes]) -> Iterator[None]:
        if table is CopiedTable.CONSUMER_OFFSETS:
            former.append(bodies)
            bodies = former.pop(0) if len(former) > 1 else [b'{"offsetTable":{}}']
        return take(self, table, bodies)

    with patch.object(MetadataReplica, "take", take_former):
        yield


@_plants("a master acknowledges commits, and keeps the first one of each queue only")
def commits_forgotten() -> Iterator[None]:
    commit = ConsumerOffsets.commit

    def commit_first(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self.find(group, topic, queue_id) is None:
            commit(self, group, topic, queue_id, offset)

    with patch.object(ConsumerOffsets, "commit", commit_first):
        yield


@_plants("a master writes the offsets as they were four writes before")
def offsets_writes_late() -> Iterator[None]:
    write = MetadataStore._write
    # The last two writes may be under way when the master is killed.
    former: list[Mapping[str, object]] = []

    def write_former(
        self: MetadataStore, file_name: str, snapshot: Callable[[], Mapping[str, object]]
    ) -> bool:
        if file_name != ConsumerOffsets.file_name:
            return write(self, file_name, snapshot)
        former.append(snapshot())
        value = former.pop(0) if len(former) > 4 else {"offsetTable": {}}
        return write(self, file_name, lambda: value)

    with patch.object(MetadataStore, "_write", write_former):
        yield


@_plants("a master delivers each timer twice")
def timers_twice() -> Iterator[None]:
    put = TimerDelivery._put

    def put_twice(self: TimerDelivery, timer: PendingTimer, make: Callable[..., Message]) -> None:
        for _ in range(1 if timer.is_pop else 2):
            put(self, timer, make)

    with patch.object(TimerDelivery, "_put", put_twice):
        yield


@_plants("a master answers acknowledgements of popped messages, and stores them for another pop")
def acknowledgements_lost() -> Iterator[None]:
    make = PopPuts._message

    def make_other(self: PopPuts, record: PopRecord, revive_queue_id: int) -> Message:
        if isinstance(record, Acknowledgement) and not record.is_batch:
            record = evolve(record, pop=evolve(record.pop, start_offset=record.pop.start_offset + 1000))
        return make(self, record, revive_queue_id)

    with patch.object(PopPuts, "_message", make_other):
        yield


@_plants("an archiver stores one byte wrong, one that no checksum covers")
def archived_byte_changed() -> Iterator[None]:
    put = LogWriter.put
    numbers = count(1)

    def put_changed(
        self: LogWriter, draft: Draft, one: LogObject, data: bytes | Iterator[bytes]
    ) -> LogObject:
        if isinstance(data, bytes) and next(numbers) == 2:
            log = bytearray(data)
            if one.codec == "zstd":
                log = bytearray(zstandard.ZstdDecompressor().decompress(data))
            log[QUEUE_OFFSET_END - 1] ^= 1
            data = bytes(log)
            key = log_key(
                draft.generation.id,
                first_offset=one.first_offset,
                end_offset=one.end_offset,
                crc32=zlib.crc32(data),
                codec="none",
            )
            one = evolve(one, key=key, crc32=zlib.crc32(data), codec="none")
        return put(self, draft, one, data)

    with patch.object(LogWriter, "put", put_changed):
        yield


@_plants("an archiver does not store one object")
def archived_object_lost() -> Iterator[None]:
    put = ObjectFolder.put
    numbers = count(1)

    def put_others(self: ObjectFolder, key: str, data: bytes | Iterable[bytes]) -> None:
        if not key.startswith(f"{LOG}/") or next(numbers) != 2:
            put(self, key, data)

    with patch.object(ObjectFolder, "put", put_others):
        yield


@_plants("bytes that were cut are in their file again after a kill")
def cut_comes_back() -> Iterator[None]:
    cut = LogFiles.cut

    def cut_in_memory(self: LogFiles, offset: int) -> None:
        last = next(file for file in reversed(self.files) if file.start_offset <= offset)
        at, path = offset - last.start_offset, last.path
        lost = path.read_bytes()[at:]
        cut(self, offset)
        with path.open("r+b") as written:
            written.seek(at)
            written.write(lost)

    with patch.object(LogFiles, "cut", cut_in_memory):
        yield


@_plants("a sync puts nothing on disk")
def nothing_synced() -> Iterator[None]:
    with patch.object(os, "fsync", os.fstat), patch.object(os, "fdatasync", os.fstat):
        yield


@_plants("a node does not look at its lock file")
def lock_not_watched() -> Iterator[None]:
    with patch.object(StoreLock, "check", lambda _: None):
        yield


@_plants("a slave reads pages of a table without a limit")
def pages_without_limit() -> Iterator[None]:
    with patch.object(metadata_sync, "PAGES_BYTES_MAX", 1 << 50):
        yield


@_plants("no record is stored before the one before it, whatever the clock says")
def stamps_never_go_back() -> Iterator[None]:
    def stamp_ms(self: CommitLog, topic: str) -> int:
        self.last_store_timestamp_ms = max(self.now_ms(), self.last_store_timestamp_ms)
        return self.last_store_timestamp_ms

    with patch.object(CommitLog, "_stamp_ms", stamp_ms):
        yield


@_plants("a part of the log that cannot be read ends the node")
def lost_bytes_are_fatal() -> Iterator[None]:
    with patch.object(MappedFile, "_unreadable", lambda *_: os.kill(os.getpid(), signal.SIGBUS)):
        yield


@_plants("what the index lacks room for holds up the queues")
def index_holds_up_queues() -> Iterator[None]:
    def write_index(self: Dispatcher, _start: int) -> bool:
        self._collector.write_index()
        return True

    with patch.object(Dispatcher, "_write_index", write_index):
        yield

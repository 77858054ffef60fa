"""Defects that are planted into a node, to show that the invariants find them.

`python -m tests.faults.planted DEFECT ARGUMENTS` is `trioha ARGUMENTS` with this defect.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import count
from typing import Any

import zstandard
from attrs import evolve

from trioha.archive.archiver import Archiver
from trioha.archive.layout import LOG, LogObject, log_key
from trioha.archive.objects import ObjectFolder
from trioha.ha.set_commit import SetGroupCommit
from trioha.ha.sync_state_set import SyncStateSet
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.replica import CopiedTable, MetadataReplica
from trioha.store.log_files import LogFiles
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.watermark import Wait

QUEUE_OFFSET_END = 28
"""End of the queue offset in a record."""


class Defect(StrEnum):
    """What the node does wrong."""

    GROUPS_NOT_WRITTEN = "groups-not-written"
    """A slave does not write its groups to its disk."""
    OFFSETS_ONE_COPY_LATE = "offsets-one-copy-late"
    """A slave takes the offsets of the copy before the last one."""
    COMMITS_FORGOTTEN = "commits-forgotten"
    """A master acknowledges commits, and keeps the first one of each queue only."""
    OFFSETS_WRITES_LATE = "offsets-writes-late"
    """A master writes the offsets as they were four writes before: the last two may be under way when it is
    killed."""
    ARCHIVED_BYTE_CHANGED = "archived-byte-changed"
    """An archiver stores one byte of a record wrong, one that no checksum covers."""
    ARCHIVED_OBJECT_LOST = "archived-object-lost"
    """An archiver does not store one object."""
    ACKED_BY_ITSELF = "acked-by-itself"
    """A master in controller mode answers PUT_OK before all of its sync-state set have the message."""
    SET_SHRUNK_ALONE = "set-shrunk-alone"
    """A master takes a slave whose connection was lost out of its set without asking a controller."""
    SET_GROWN_EARLY = "set-grown-early"
    """A master proposes a slave for its set as soon as it is connected."""
    CUT_COMES_BACK = "cut-comes-back"
    """Bytes that were cut are in their file again: their cut was not on the disk."""

    @property
    def program(self) -> list[str]:
        """What to start instead of `trioha`."""
        return [sys.executable, "-m", "tests.faults.planted", self.value]


def _do_not_write_groups() -> None:
    write = MetadataStore._write

    def write_others(
        self: MetadataStore, file_name: str, snapshot: Callable[[], Mapping[str, object]]
    ) -> bool:
        return file_name == "subscriptionGroup.json" or write(self, file_name, snapshot)

    MetadataStore._write = write_others


def _take_offsets_one_copy_late() -> None:
    take = MetadataReplica.take
    former: list[list[bytes]] = []

    def take_former(self: MetadataReplica, table: CopiedTable, bodies: list[bytes]) -> Iterator[None]:
        if table is CopiedTable.CONSUMER_OFFSETS:
            former.append(bodies)
            bodies = former.pop(0) if len(former) > 1 else [b'{"offsetTable":{}}']
        return take(self, table, bodies)

    MetadataReplica.take = take_former


def _forget_commits() -> None:
    commit = ConsumerOffsets.commit

    def commit_first(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self.find(group, topic, queue_id) is None:
            commit(self, group, topic, queue_id, offset)

    ConsumerOffsets.commit = commit_first


def _write_offsets_late() -> None:
    write = MetadataStore._write
    former: list[Mapping[str, object]] = []

    def write_former(
        self: MetadataStore, file_name: str, snapshot: Callable[[], Mapping[str, object]]
    ) -> bool:
        if file_name != ConsumerOffsets.file_name:
            return write(self, file_name, snapshot)
        former.append(snapshot())
        value = former.pop(0) if len(former) > 4 else {"offsetTable": {}}
        return write(self, file_name, lambda: value)

    MetadataStore._write = write_former


def _archive_a_byte_wrong() -> None:
    put = Archiver._put
    numbers = count(1)

    def put_changed(self: Archiver, draft: Any, one: LogObject, data: bytes | Iterator[bytes]) -> LogObject:
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

    Archiver._put = put_changed


def _lose_an_archived_object() -> None:
    put = ObjectFolder.put
    numbers = count(1)

    def put_others(self: ObjectFolder, key: str, data: bytes | Iterable[bytes]) -> None:
        if not key.startswith(f"{LOG}/") or next(numbers) != 2:
            put(self, key, data)

    ObjectFolder.put = put_others


def _answer_before_all_have_it() -> None:
    begin = SetGroupCommit._begin_waits

    def begin_alone(
        self: SetGroupCommit, appended: AppendResult, request_id: int, started_s: float
    ) -> tuple[PutStatus, Wait | None, Wait | None]:
        status, _, disk = begin(self, appended, request_id, started_s)
        return status, None, disk

    SetGroupCommit._begin_waits = begin_alone


def _shrink_the_set_alone() -> None:
    disconnected = SyncStateSet.disconnected

    def shrink(self: SyncStateSet, broker_id: int, *, connection_id: int, now_s: float) -> None:
        disconnected(self, broker_id, connection_id=connection_id, now_s=now_s)
        self.members -= {broker_id}
        self.open_proposal = None
        self._changed()

    SyncStateSet.disconnected = shrink


def _grow_the_set_early() -> None:
    def connected(self: SyncStateSet, *candidates: int) -> set[int]:
        return set(candidates)

    SyncStateSet._caught_up = connected


def _let_cut_bytes_come_back() -> None:
    cut = LogFiles.cut

    def cut_in_memory(self: LogFiles, offset: int) -> None:
        last = next(file for file in reversed(self.files) if file.start_offset <= offset)
        at, path = offset - last.start_offset, last.path
        lost = path.read_bytes()[at:]
        cut(self, offset)
        with path.open("r+b") as written:
            written.seek(at)
            written.write(lost)

    LogFiles.cut = cut_in_memory


_PLANT = {
    Defect.ACKED_BY_ITSELF: _answer_before_all_have_it,
    Defect.SET_SHRUNK_ALONE: _shrink_the_set_alone,
    Defect.SET_GROWN_EARLY: _grow_the_set_early,
    Defect.CUT_COMES_BACK: _let_cut_bytes_come_back,
    Defect.ARCHIVED_BYTE_CHANGED: _archive_a_byte_wrong,
    Defect.ARCHIVED_OBJECT_LOST: _lose_an_archived_object,
    Defect.GROUPS_NOT_WRITTEN: _do_not_write_groups,
    Defect.OFFSETS_ONE_COPY_LATE: _take_offsets_one_copy_late,
    Defect.COMMITS_FORGOTTEN: _forget_commits,
    Defect.OFFSETS_WRITES_LATE: _write_offsets_late,
}


def main() -> int:
    """Run `trioha` with a defect."""
    _PLANT[Defect(sys.argv.pop(1))]()
    from trioha.cli import main as trioha

    return trioha()


if __name__ == "__main__":
    sys.exit(main())

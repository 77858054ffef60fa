"""Epochs: which master wrote which bytes of the log (controller mode, docs/protocol/ha.md#controller-mode).

Theory of operation. An epoch is the term of one master. It is a number that the controller gives out once and
that only grows. An entry says where in the log the bytes of an epoch begin; they end where the next entry
begins, those of the last one at the log's end. Where two logs have an entry in common, epoch and start, they
have the same bytes up to the end of the shorter of both epochs: that is the consistent point, and a slave
cuts its log there before it follows another master.

Invariants of a table: epochs ascend, starts ascend. An epoch in which nothing was written names no byte, so
the entry of the next epoch replaces it. (RocketMQ keeps the older entry and drops the newer one: the next
master's bytes are then taken for those of the master before it, and two logs that differ have an entry in
common.)

| line | content of the file |
|---|---|
| 1 | number of entries |
| 2 | CRC32 of all later lines with their line ends, without its top bit, decimal; 0 for "not checked" |
| 3 ... | `epoch-startOffset`, oldest first |

The file is RocketMQ's, with its last state but one beside it in `<file>.bak`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from threading import Lock

import structlog
from attrs import field, frozen

from trioha.errors import StoreError
from trioha.numbers import NATURAL32, NATURAL64, parse_int
from trioha.store.atomic_file import backup_of, replace_file
from trioha.store.syncing import sync_directory

log = structlog.get_logger(__name__)

FILE_NAME = "epochFileCheckpoint"
"""In the store's root, unless storePathEpochFile names another place."""
NO_EPOCH = -1
"""`last_epoch` of a table without entries, as in RocketMQ's frames."""
_CRC_MASK = 0x7FFFFFFF


@frozen
class EpochEntry:
    """Where in the log an epoch begins."""

    epoch: int
    start_offset: int
    """Physical offset of the first byte of the epoch."""


def _check_order(_table: object, _attribute: object, entries: tuple[EpochEntry, ...]) -> None:
    for entry in entries:
        if entry.epoch < 0 or entry.start_offset < 0:
            raise ValueError(f"{entry} has a negative number")
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            raise ValueError(f"epochs do not ascend: {after} follows {before}")


@frozen
class EpochTable:
    """The epochs of one log. Changes return another table; none of them does I/O."""

    entries: tuple[EpochEntry, ...] = field(default=(), validator=_check_order)
    """Oldest first. Raises ValueError if epochs or starts do not ascend."""

    @property
    def last_epoch(self) -> int:
        """The newest epoch; -1 without entries."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def end_of(self, entry: EpochEntry, log_end: int) -> int:
        """Physical offset after the last byte of an epoch of this table, in a log that ends at `log_end`."""
        following = self.entries.index(entry) + 1
        end = log_end if following == len(self.entries) else self.entries[following].start_offset
        return max(entry.start_offset, min(end, log_end))

    def consistent_offset(self, own_end: int, theirs: Sequence[EpochEntry], their_end: int) -> int | None:
        """Where this log and another one begin to differ: all bytes before it are the same.

        See docs/protocol/ha.md#truncation.

        `own_end` and `their_end` are the logs' ends. At most the smaller of them. None if the tables have no
        entry in common: nothing is known then of any byte. Raises ValueError if `theirs` do not ascend.
        """
        other = EpochTable(tuple(theirs))
        common = set(other.entries)
        for entry in reversed(self.entries):
            if entry in common:
                return min(self.end_of(entry, own_end), other.end_of(entry, their_end), own_end, their_end)
        return None

    def append(self, epoch: int, start_offset: int) -> EpochTable:
        """With the next epoch, which begins at `start_offset`; replaces a last entry that begins there, too.

        The table itself if the entry is the last one already. Raises ValueError if the epoch is not above the
        last one, or begins before it.
        """
        entry = EpochEntry(epoch, start_offset)
        if self.entries and entry == self.entries[-1]:
            return self
        kept = self.entries
        if kept and kept[-1].start_offset == start_offset and kept[-1].epoch < epoch:
            kept = kept[:-1]
        return EpochTable((*kept, entry))

    def truncate_suffix(self, offset: int) -> EpochTable:
        """Without the epochs that begin at or after `offset`, at which the log is cut."""
        return self._with(tuple(entry for entry in self.entries if entry.start_offset < offset))

    def drop_from(self, epoch: int) -> EpochTable:
        """Without `epoch` and all later ones."""
        return self._with(tuple(entry for entry in self.entries if entry.epoch < epoch))

    def truncate_prefix(self, min_offset: int) -> EpochTable:
        """Without the epochs that end before `min_offset`, where the log begins now.

        One that ends exactly there stays: a slave that has the log up to there finds its end by it.
        """
        entries = self.entries
        first = next(
            (at for at, entry in enumerate(entries[1:]) if entry.start_offset >= min_offset),
            max(0, len(entries) - 1),
        )
        return self._with(entries[first:])

    def _with(self, entries: tuple[EpochEntry, ...]) -> EpochTable:
        return self if len(entries) == len(self.entries) else EpochTable(entries)

    def encode(self) -> bytes:
        """The file's bytes."""
        lines = b"".join(b"%d-%d\n" % (entry.epoch, entry.start_offset) for entry in self.entries)
        return b"%d\n%d\n" % (len(self.entries), zlib.crc32(lines) & _CRC_MASK) + lines

    @classmethod
    def decode(cls, data: bytes) -> EpochTable:
        """Parse a file. Raises ValueError if it is damaged or has no entries: RocketMQ writes none."""
        line_end = b"\r\n" if b"\r\n" in data else b"\n"
        lines = data.removesuffix(line_end).split(line_end)
        if len(lines) < 3:
            raise ValueError("it has no entries")
        count, crc = (parse_int(line.decode("ascii"), NATURAL32) for line in lines[:2])
        if count != len(lines) - 2:
            raise ValueError(f"its first line says {count} entries, it has {len(lines) - 2}")
        found_crc = zlib.crc32(b"".join(line + line_end for line in lines[2:])) & _CRC_MASK
        if crc not in {0, found_crc}:
            raise ValueError(f"its second line says CRC {crc}, its entries have {found_crc}")
        entries = []
        for line in lines[2:]:
            epoch, dash, start_offset = line.decode("ascii").partition("-")
            if not dash:
                raise ValueError(f"{epoch[:40]!r} is not epoch-startOffset")
            entries.append(EpochEntry(parse_int(epoch, NATURAL32), parse_int(start_offset, NATURAL64)))
        return cls(tuple(entries))


@frozen
class EpochFile:
    """The file that keeps a table. All methods block, and raise StoreError."""

    path: Path

    def load(self) -> EpochTable:
        """Read the file or, where it is missing or damaged, its backup; no entries if there is neither."""
        problem: ValueError | None = None
        for candidate in (self.path, backup_of(self.path)):
            try:
                table = EpochTable.decode(candidate.read_bytes())
            except FileNotFoundError:
                continue
            except ValueError as error:
                log.warning("epochs cannot be read", path=str(candidate), reason=str(error))
                problem = problem or error
                continue
            except OSError as error:
                raise StoreError(f"cannot be read: {error.strerror}", path=candidate) from error
            if candidate != self.path:
                log.warning("epochs are those of the backup", path=str(candidate), epochs=len(table.entries))
            return table
        if problem is not None:
            raise StoreError(
                f"the epochs of the log are damaged: {problem}",
                path=self.path,
                hint=f"its backup {backup_of(self.path).name} is damaged or missing, too; remove the store, "
                "and the node copies its master's",
            ) from problem
        return EpochTable()

    def save(self, table: EpochTable) -> None:
        """Put a table on disk; after a crash there is the old or the new one, never a part.

        Without entries the files are deleted: RocketMQ reads a file without entries as damaged.
        """
        try:
            self._remove_damaged()
            if table.entries:
                replace_file(self.path, table.encode())
                return
            # The backup first, on disk, or the next start could read it in place of the file.
            for path in (backup_of(self.path), self.path):
                if path.exists():
                    path.unlink()
                    sync_directory(path.parent)
        except OSError as error:
            raise StoreError(f"epochs cannot be written: {error.strerror}", path=self.path) from error

    def _remove_damaged(self) -> None:
        """Delete a damaged file: the backup is good, and must outlive it. Raises OSError."""
        try:
            EpochTable.decode(self.path.read_bytes())
        except FileNotFoundError:
            return
        except ValueError:
            self.path.unlink()
            sync_directory(self.path.parent)


class EpochLog:
    """A table and its file, kept equal: each change is on disk when its call returns.

    Changes block for two or three syncs: call them at role changes, or in a worker thread. They may come from
    several threads. `table` and what reads it never block.
    """

    def __init__(self, file: EpochFile, table: EpochTable) -> None:
        """`table` is what `file` has."""
        self._file = file
        self._changing = Lock()
        self.table = table
        """The epochs of the log now."""

    @classmethod
    def open(cls, path: Path) -> EpochLog:
        """Read the file at `path`. Raises StoreError."""
        file = EpochFile(path)
        return cls(file, file.load())

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """As `EpochTable.entries`."""
        return self.table.entries

    @property
    def last_epoch(self) -> int:
        """As `EpochTable.last_epoch`."""
        return self.table.last_epoch

    def append(self, epoch: int, start_offset: int) -> None:
        """As `EpochTable.append`. Raises ValueError, and StoreError with nothing changed."""
        with self._changing:
            self._change_to(self.table.append(epoch, start_offset))

    def truncate_suffix(self, offset: int) -> None:
        """As `EpochTable.truncate_suffix`. Raises StoreError with nothing changed."""
        with self._changing:
            self._change_to(self.table.truncate_suffix(offset))

    def drop_from(self, epoch: int) -> None:
        """As `EpochTable.drop_from`. Raises StoreError with nothing changed."""
        with self._changing:
            self._change_to(self.table.drop_from(epoch))

    def truncate_prefix(self, min_offset: int) -> None:
        """As `EpochTable.truncate_prefix`. Raises StoreError with nothing changed."""
        with self._changing:
            self._change_to(self.table.truncate_prefix(min_offset))

    def clear(self) -> None:
        """Drop all entries: the log begins anew. Raises StoreError."""
        with self._changing:
            self._change_to(EpochTable())

    def _change_to(self, table: EpochTable) -> None:
        if table is not self.table:
            self._file.save(table)
            self.table = table

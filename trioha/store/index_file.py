"""One index file: a hash table on disk from keys to physical offsets (docs/protocol/store.md#index).

| region | offset | content |
|---|---|---|
| header | 0 | i64 beginTimestamp, endTimestamp, beginPhyOffset, endPhyOffset; i32 hashSlotCount, indexCount |
| slots | 40 | hashSlotNum x i32: number of the newest entry in the chain, 0 if there is none |
| entries | 40 + 4 * hashSlotNum | n at 20 * n: i32 keyHash, i64 physicalOffset, i32 timeDiff, i32 previous |

indexCount is the number of the next entry and starts at 1; entry 0 is never used. `previous` is an entry with
a lower number, 0 at a chain's end. timeDiff counts seconds from beginTimestamp.

The file is sparse (420 MB by default). While it has room it is mapped, for writes only, and its space is
reserved in steps ahead of the entries, so that a full disk is an error of `put` and not the end of the
process. Reads are calls: a page that the disk does not give is an error of the query that needs it.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from attrs import frozen

from trioha.errors import StoreError
from trioha.store import compiled_index
from trioha.store.compiled_index import KEY_BYTES, TIME_DIFF_MAX_S
from trioha.store.mapped_file import create_atomically, hint_at
from trioha.store.mapping import end_map, map_file
from trioha.store.syncing import SharedDescriptor

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
DEFAULT_HASH_SLOTS = 5_000_000
DEFAULT_INDEX_NUM = 20_000_000
RESERVE_BYTES = 4 << 20
"""Space that is reserved for entries in one step."""

_HEADER = Struct(">qqqqii")
_ENTRY = Struct(">iqii")
_SLOT = Struct(">i")
_KEY = Struct(">qqq")
_HEADER_WORDS = HEADER_BYTES // 4
_ZEROS = bytes(1 << 20)
_NO_BYTES = memoryview(b"")


@frozen
class IndexShape:
    """Number of slots and entries in a store's index files."""

    hash_slots: int = DEFAULT_HASH_SLOTS
    """maxHashSlotNum."""
    index_num: int = DEFAULT_INDEX_NUM
    """maxIndexNum; a file holds one key less."""

    @property
    def entries_at(self) -> int:
        """Byte at which entry 0 would be."""
        return HEADER_BYTES + SLOT_BYTES * self.hash_slots

    @property
    def file_bytes(self) -> int:
        """Length of a file."""
        return self.entries_at + ENTRY_BYTES * self.index_num


def key_hash(java_hash: int) -> int:
    """Hash in an index entry's form, from an unsigned `String.hashCode`: its absolute value, 0 for -2^31."""
    return java_hash if java_hash < 0x80000000 else (0x100000000 - java_hash) & 0x7FFFFFFF


def unpack_key(keys: bytes, at: int) -> tuple[int, int, int]:
    """Hash, physical offset and store timestamp of the key at that byte of a column, see `KEY_BYTES`."""
    hashed, physical_offset, store_timestamp_ms = _KEY.unpack_from(keys, at)
    return hashed, physical_offset, store_timestamp_ms


def unpack_keys(keys: bytes) -> Iterator[tuple[int, int, int]]:
    """The same of each key."""
    return _KEY.iter_unpack(keys)


class IndexFile:
    """An open index file. Each header field is an attribute; `put` writes them back."""

    def __init__(self, path: Path, shape: IndexShape, *, fd: int) -> None:
        """Read the header, and map the file if it has room; `fd` can be closed afterwards. Raises OSError."""
        self.path = path
        self.shape = shape
        self.descriptor: SharedDescriptor | None = None
        """Set while the file is being filled, to reserve space; reads open the file."""
        header: tuple[int, ...] = _HEADER.unpack(os.pread(fd, HEADER_BYTES, 0))
        self.begin_timestamp_ms, self.end_timestamp_ms = header[:2]
        self.begin_physical_offset, self.end_physical_offset = header[2:4]
        self.used_slots = min(max(header[4], 0), shape.hash_slots)
        self.index_count = min(max(header[5], 1), shape.index_num)
        """Number of the next entry: the number of keys in the file, plus 1."""
        self._view = _NO_BYTES if self.is_full else map_file(fd, shape.file_bytes, path)
        self._words = self._view.cast("I")
        self._reserved_bytes = shape.entries_at
        """Everything before this byte has its space on disk."""

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name}, {self.index_count - 1} keys>"

    @classmethod
    def open(cls, path: Path, shape: IndexShape) -> IndexFile:
        """Open an existing file; raises StoreError if its length does not fit `shape`."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                found = os.fstat(fd).st_size
                if found != shape.file_bytes:
                    raise StoreError(
                        f"has {found} bytes, the configuration says {shape.file_bytes}",
                        path=path,
                        hint="maxHashSlotNum and maxIndexNum must be what the store was made with",
                    )
                return cls(path, shape, fd=fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(f"cannot be opened: {error.strerror}", path=path, hint=hint_at(error)) from error

    @classmethod
    def create(
        cls, path: Path, shape: IndexShape, *, end_timestamp_ms: int = 0, end_physical_offset: int = 0
    ) -> IndexFile:
        """Make an empty file; the previous one ended at these values (docs/protocol/store.md#index).

        The caller syncs the file and its directory. Raises StoreError if there is no space for the slots, or
        no descriptor; the file does not exist then.
        """
        made: list[IndexFile] = []

        def prepare(fd: int) -> None:
            _prepare(fd, shape)
            file = cls(path, shape, fd=fd)
            made.append(file)
            file.begin_timestamp_ms = file.end_timestamp_ms = end_timestamp_ms
            file.begin_physical_offset = file.end_physical_offset = end_physical_offset
            file._write_header()

        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # The file gets its name in the last step: nothing can fail after that.
            fd = create_atomically(path, prepare)
        except OSError as error:
            for file in made:
                file.close()
            raise StoreError(
                f"no {shape.entries_at} bytes could be reserved: {error.strerror}",
                path=path,
                hint=hint_at(error),
            ) from error
        made[0].descriptor = SharedDescriptor(fd)
        return made[0]

    @property
    def is_full(self) -> bool:
        """Whether the file has no room for another key."""
        return self.index_count >= self.shape.index_num

    @property
    def room(self) -> int:
        """Number of keys that still fit."""
        return self.shape.index_num - self.index_count

    @property
    def is_empty(self) -> bool:
        """Whether the file has no keys."""
        return self.index_count <= 1

    # -- writing ---------------------------------------------------------------------------------------

    def put(self, keys: bytes, start: int, stop: int) -> None:
        """Add the keys `keys[start:stop]` of a column in order, at most `room` of them.

        Raises StoreError if there is no disk space; no key is added then.
        """
        count = (stop - start) // KEY_BYTES
        assert 0 < count <= self.room, f"{count} keys, room for {self.room}"
        number = self.index_count
        self._reserve_to(self.shape.entries_at + (number + count) * ENTRY_BYTES)
        _, first_offset, first_ms = unpack_key(keys, start)
        # The first key's difference is computed before it moves the begin; all others after
        # (docs/protocol/store.md#index).
        first_diff = self._time_diff_s(first_ms)
        if number <= 1:
            self.begin_physical_offset = first_offset
            self.begin_timestamp_ms = first_ms
        entries, used_slots = compiled_index.index_entries(
            keys,
            start,
            stop,
            self._words[_HEADER_WORDS : _HEADER_WORDS + self.shape.hash_slots],
            self.shape.hash_slots,
            number,
            self.begin_timestamp_ms,
            first_diff,
            sys.byteorder == "little",
        )
        at = self.shape.entries_at + number * ENTRY_BYTES
        self._view[at : at + len(entries)] = entries
        self.used_slots += used_slots
        self.index_count = number + count
        _, self.end_physical_offset, self.end_timestamp_ms = unpack_key(keys, stop - KEY_BYTES)
        self._write_header()

    def _time_diff_s(self, store_timestamp_ms: int) -> int:
        begin_ms = self.begin_timestamp_ms
        if begin_ms <= 0 or store_timestamp_ms <= begin_ms:
            return 0
        return min((store_timestamp_ms - begin_ms) // 1000, TIME_DIFF_MAX_S)

    def _write_header(self) -> None:
        _HEADER.pack_into(
            self._view,
            0,
            self.begin_timestamp_ms,
            self.end_timestamp_ms,
            self.begin_physical_offset,
            self.end_physical_offset,
            self.used_slots,
            self.index_count,
        )

    def _reserve_to(self, end: int) -> None:
        if end <= self._reserved_bytes:
            return
        size = min(
            max(end - self._reserved_bytes, RESERVE_BYTES), self.shape.file_bytes - self._reserved_bytes
        )
        try:
            if self.descriptor is None:
                self.descriptor = SharedDescriptor(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
            _reserve(self.descriptor.fd, self._reserved_bytes, size)
        except OSError as error:
            raise StoreError(
                f"no {size} bytes could be reserved: {error.strerror}", path=self.path, hint=hint_at(error)
            ) from error
        self._reserved_bytes += size

    # -- reading ---------------------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Whether the file may hold records stored in `[begin_ms, end_ms]`."""
        return self.begin_timestamp_ms <= end_ms and self.end_timestamp_ms >= begin_ms

    def find(self, key_hash: int, *, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with this hash that may have been stored in that time, newest first.

        Other keys may have the same hash, and entries have whole seconds: compare the records. A damaged
        chain ends the walk and cannot loop: a chain leads to lower numbers only. Raises StoreError for bytes
        that the disk does not give.
        """
        if self.is_empty:
            return
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"cannot be opened: {error.strerror}", path=self.path, hint=hint_at(error)
            ) from error
        try:
            yield from self._chain(fd, key_hash, begin_ms, end_ms)
        finally:
            os.close(fd)

    def _chain(self, fd: int, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        at = HEADER_BYTES + key_hash % self.shape.hash_slots * SLOT_BYTES
        number: int = _SLOT.unpack(self._read(fd, at, SLOT_BYTES))[0]
        if number >= self.index_count:
            return
        while number > 0:
            entry_hash, physical_offset, diff_s, previous = _ENTRY.unpack(
                self._read(fd, self.shape.entries_at + number * ENTRY_BYTES, ENTRY_BYTES)
            )
            stored_from_ms = self.begin_timestamp_ms + diff_s * 1000
            stored_until_ms = stored_from_ms + 999
            if diff_s < 0:
                return
            if entry_hash == key_hash and begin_ms <= stored_until_ms and stored_from_ms <= end_ms:
                yield physical_offset
            if previous >= number or stored_until_ms < begin_ms:
                return
            number = previous

    def _read(self, fd: int, at: int, size: int) -> bytes:
        try:
            data = os.pread(fd, size, at)
        except OSError as error:
            raise StoreError(f"cannot be read at byte {at}: {error.strerror}", path=self.path) from error
        if len(data) != size:
            raise StoreError(f"ends before byte {at + size} of {self.shape.file_bytes}", path=self.path)
        return data

    # -- end -------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Close the descriptor; a `put` that needs it opens another one."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            descriptor.release()

    def close(self) -> None:
        """Write no more to the file, and hold nothing of it; reads open it."""
        self.release()
        view, self._view = self._view, _NO_BYTES
        self._words.release()
        if len(view):
            end_map(view)

    def remove(self) -> None:
        """Delete the file and close it. Raises StoreError if it cannot be deleted, with nothing changed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be deleted: {error.strerror}", path=self.path) from error
        self.close()


def _prepare(fd: int, shape: IndexShape) -> None:
    """Set a new file's length, and reserve the space of header and slots. Raises OSError."""
    os.ftruncate(fd, shape.file_bytes)
    _reserve(fd, 0, shape.entries_at)


def _reserve(fd: int, start: int, size: int) -> None:
    """Reserve space on disk for bytes `[start, start + size)`, which keep their values. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, start, size)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
        else:
            return
    # Zeros written over zeros reserve space on every file system; other bytes have their space.
    end = start + size
    while start < end:
        chunk = os.pread(fd, min(len(_ZEROS), end - start), start)
        if not any(chunk):
            os.pwrite(fd, chunk, start)
        start += len(chunk)

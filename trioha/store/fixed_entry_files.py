"""Entries of one length in files of one length: storage of consume queues.

See docs/protocol/store.md#consume-queues.

Entries are written with `pwrite` and read with `pread`, not through a map: a queue's file is sparse (a broker
may have ten thousand queues of 6 MB each), and a full disk must be an error of a call, not the end of the
process. Writes come in batches, one call for all of a queue's entries in a batch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trioha.errors import StoreError
from trioha.store.file_cache import FileCache
from trioha.store.mapped_file import FILE_NAME_DIGITS, file_name, hint_at

_ZERO_CHECK_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024
"""The most that is written at once; blanks can make a batch long."""
_READS_AHEAD = 4
"""A `read_on` that begins where the last one ended brings the bytes of the next ones, too: a consumer with a
backlog goes on and on, and the call costs more than its bytes."""
_AHEAD_BYTES_MAX = 4096
"""The most that is kept for later reads of one queue."""


class FixedEntryFiles:
    """Bytes `[start, end)` of one queue in its folder, in files of `file_bytes` each.

    `start` is the first file's first byte, `end` the first free byte; both are multiples of `entry_bytes`.
    All calls raise StoreError, naming the file, if the disk refuses; the offsets are then what they were.
    """

    __slots__ = (
        "_ahead", "_ahead_start", "_cache", "_paths", "_read_end", "_spare",
        "directory", "end", "entry_bytes", "file_bytes", "start",
    )  # fmt: skip

    def __init__(self, directory: Path, *, entry_bytes: int, file_bytes: int, cache: FileCache) -> None:
        assert file_bytes % entry_bytes == 0, f"{file_bytes} bytes hold no whole number of {entry_bytes}"
        self.directory = directory
        self.entry_bytes = entry_bytes
        self.file_bytes = file_bytes
        self.start = 0
        self.end = 0
        self._paths: dict[int, Path] = {}
        """Files of `[start, end)`, by their first byte, oldest first."""
        self._spare: dict[int, Path] | None = None
        """Files that were made by an `append` that failed later: their bytes do not count."""
        self._cache = cache
        self._ahead = b""
        """Bytes from `_ahead_start` on, for reads to come; none of them is after the queue's end."""
        self._ahead_start = 0
        self._read_end = 0
        """Where the last `read_on` ended."""

    def load(self, *, size_key: str) -> None:
        """Find the files; each counts as full until `cut`.

        Raises StoreError for a file of another length or a missing one, and names the config key `size_key`.
        An empty last file was being made when the process ended: it is removed.
        """
        try:
            found = sorted(
                (entry.name, entry.stat().st_size)
                for entry in os.scandir(self.directory)
                if len(entry.name) == FILE_NAME_DIGITS and entry.name.isdecimal() and entry.is_file()
            )
            while found and found[-1][1] == 0:
                (self.directory / found.pop()[0]).unlink()
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=self.directory) from error
        self._paths.clear()
        self._spare = None
        self._ahead = b""
        for name, size in found:
            path = self.directory / name
            start = int(name)
            if size != self.file_bytes:
                raise StoreError(
                    f"has {size} bytes, the configuration says {self.file_bytes}",
                    path=path,
                    hint=f"{size_key} must be what the store was made with",
                )
            expected = self.end if self._paths else start - start % self.file_bytes
            if start != expected:
                raise StoreError(
                    f"starts at {start}, expected was {expected}",
                    path=path,
                    hint="a file of the queue is missing; remove the queue's folder to have it rebuilt",
                )
            if not self._paths:
                self.start = start
            self._paths[start] = path
            self.end = start + self.file_bytes
        if not self._paths:
            self.start = self.end = 0

    def file_starts(self) -> tuple[int, ...]:
        """Start of each file, oldest first."""
        return tuple(self._paths)

    @property
    def is_empty(self) -> bool:
        """Whether the queue has no entries."""
        return self.start == self.end

    def append(self, chunks: Sequence[bytes], *, start: int | None = None) -> None:
        """Write whole entries at the end: `chunks`, one after the other. After an error none of them counts.

        An empty queue may begin at `start`, a multiple of the file length, instead of where it is.
        """
        if start is None and len(chunks) == 1 and self._append_one(chunks[0]):
            return
        assert start is None or (self.is_empty and start % self.file_bytes == 0)
        end = self.end if start is None else start
        made: dict[int, Path] = {}
        path = self.directory
        try:
            if self._spare is not None:
                self._remove_spare()
            for data in _joined(chunks):
                assert len(data) % self.entry_bytes == 0
                done = 0
                while done < len(data):
                    file_start = end - end % self.file_bytes
                    at = end - file_start
                    part = min(len(data) - done, self.file_bytes - at)
                    unwritten = data if part == len(data) else data[done : done + part]
                    found = self._paths.get(file_start) or made.get(file_start)
                    if found is None:
                        path = self.directory / file_name(file_start)
                        fd = self._cache.create(path, size=self.file_bytes)
                        made[file_start] = path
                    else:
                        path = found
                        fd = self._cache.fd(path)
                    self._cache.mark_dirty(path)
                    while unwritten:
                        wrote = os.pwrite(fd, unwritten, at)
                        at += wrote
                        unwritten = unwritten[wrote:]
                    end += part
                    done += part
        except OSError as error:
            if made:
                self._spare = made
            raise _unwritten(error, path) from error
        self._paths |= made
        self.end = end
        if start is not None:
            self.start = start

    def _append_one(self, data: bytes) -> bool:
        """As `append`, with one chunk for the last file: the usual case, in half the time.

        False if that file is not there or has no room for all, or if the system wrote less: nothing counts
        then, and the general way writes the same bytes to the same place.
        """
        end = self.end
        at = end % self.file_bytes
        path = self._paths.get(end - at)
        if path is None or self._spare is not None or at + len(data) > self.file_bytes:
            return False
        assert len(data) % self.entry_bytes == 0
        try:
            fd = self._cache.fd(path)
            self._cache.mark_dirty(path)
            if os.pwrite(fd, data, at) != len(data):
                return False
        except OSError as error:
            raise _unwritten(error, path) from error
        self.end = end + len(data)
        return True

    def _remove_spare(self) -> None:
        """Delete the files that a failed `append` has made. Raises OSError."""
        assert self._spare is not None
        for start in reversed(tuple(self._spare)):
            self._cache.forget(self._spare[start])
            self._spare[start].unlink(missing_ok=True)
            del self._spare[start]
        self._spare = None

    def read(self, position: int, size: int) -> bytes:
        """The bytes `[position, position + size)`, as far as the queue has them."""
        position = max(position, self.start)
        end = min(position + size, self.end)
        parts: list[bytes] = []
        while position < end:
            file_start = position - position % self.file_bytes
            want = min(end, file_start + self.file_bytes) - position
            path = self._paths[file_start]
            try:
                part = os.pread(self._cache.fd(path), want, position - file_start)
            except OSError as error:
                raise StoreError(f"cannot be read: {error.strerror}", path=path, offset=position) from error
            if len(part) != want:
                raise StoreError(
                    f"ends at byte {position - file_start + len(part)} of {self.file_bytes}",
                    path=path,
                    hint="the file was cut by someone else; remove the queue's folder to have it rebuilt",
                )
            parts.append(part)
            position += want
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_on(self, position: int, size: int) -> bytes:
        """As `read`, for a reader that mostly begins where its last call ended: some calls read ahead."""
        position = max(position, self.start)
        end = min(position + size, self.end)
        if position >= end:
            return b""
        continues, self._read_end = position == self._read_end, end
        ahead, start = self._ahead, self._ahead_start
        self._ahead = b""
        if start <= position and end <= start + len(ahead):
            if end < start + len(ahead):
                self._ahead = ahead
            return ahead[position - start : end - start]
        bytes_ahead = min((_READS_AHEAD - 1) * (end - position), _AHEAD_BYTES_MAX, self.end - end)
        if not continues or not bytes_ahead:
            return self.read(position, end - position)
        self._ahead, self._ahead_start = self.read(position, end - position + bytes_ahead), position
        return self._ahead[: end - position]

    def cut(self, end: int) -> None:
        """End the queue at `end`: later files are deleted, what follows in its file becomes zero."""
        assert self.start <= end <= self.end
        self._ahead = b""
        files = len(self._paths)
        self._remove_from(end)
        if len(self._paths) < files:
            # A power cut must not bring them back.
            self._cache.mark_dirty(self.directory)
        file_start = end - end % self.file_bytes
        path = self._paths.get(file_start)
        if path is not None:
            try:
                # The next start must not find stale entries after the end, nor a file of another length.
                if _clear_from(self._cache.fd(path), end - file_start):
                    self._cache.mark_dirty(path)
            except OSError as error:
                raise StoreError(f"cannot be cut: {error.strerror}", path=path, offset=end) from error
        self.end = end
        if not self._paths:
            # Nothing is left: the next entry may begin anywhere.
            self.start = self.end = 0

    def sync_from(self, position: int) -> None:
        """Have the next sync cover the bytes from `position` on, and the names of their files."""
        unsynced = [path for start, path in self._paths.items() if start + self.file_bytes > position]
        for path in unsynced:
            self._cache.mark_dirty(path)
        if unsynced:
            for folder in (self.directory, *self.directory.parents[:2]):
                self._cache.mark_dirty(folder)

    def drop_first_file(self) -> None:
        """Delete the oldest file; never the last one."""
        assert len(self._paths) > 1, "the last file stays"
        self._unlink(self.start)
        self.start += self.file_bytes

    def destroy(self) -> None:
        """Delete all files, and the folder if it is empty then. After an error the first files are left."""
        self._ahead = b""
        self._remove_from(0)
        self.start = self.end = 0
        try:
            if self._spare is not None:
                self._remove_spare()
        except OSError as error:
            raise StoreError(f"cannot be deleted: {error.strerror}", path=self.directory) from error
        try:
            self.directory.rmdir()
        except OSError:
            # Other files lie in it, or it was never made.
            return

    def _remove_from(self, position: int) -> None:
        """Delete the files that begin at or after `position`, from the end on: an error leaves no hole."""
        for start in reversed(tuple(self._paths)):
            if start < position:
                break
            self._unlink(start)
            self.end = min(self.end, start)

    def _unlink(self, start: int) -> None:
        path = self._paths[start]
        self._cache.forget(path)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be deleted: {error.strerror}", path=path) from error
        del self._paths[start]


def _unwritten(error: OSError, path: Path) -> StoreError:
    return StoreError(
        f"cannot be written: {error.strerror}",
        path=path,
        hint=f"{hint_at(error)}; nothing is lost, queues are built from the log",
    )


def _joined(chunks: Sequence[bytes]) -> Iterator[bytes]:
    """The chunks joined to fewer, of limited length: the blanks of a gap may have millions of bytes."""
    if sum(map(len, chunks)) <= _WRITE_BYTES:
        yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return
    gathered: list[bytes] = []
    size = 0
    for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= _WRITE_BYTES:
            yield b"".join(gathered)
            gathered.clear()
            size = 0
    if gathered:
        yield b"".join(gathered)


def _clear_from(fd: int, at: int) -> bool:
    """Make all bytes from `at` on zero, the first ones first; False if they were. Holes are not read.

    The file's length stays: a `kill -9` in between must not leave another one. Raises OSError.
    """
    cleared = False
    size = os.fstat(fd).st_size
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
            stop = os.lseek(fd, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                # No data up to the end.
                return cleared
            if error.errno != errno.EINVAL:
                raise
            # A file system without holes.
            stop = size
        while at < stop:
            data = os.pread(fd, min(stop - at, _ZERO_CHECK_BYTES), at)
            if not data:
                return cleared
            if data.count(0) != len(data):
                cleared = True
                at += os.pwrite(fd, bytes(len(data)), at)
            else:
                at += len(data)
    return cleared

"""Crashes of a process at each of its calls to the disk.

`CrashingDisk(at)` ends the process, as far as code under test can tell, before the call of that number that
changes anything on the disk: the exception is no `Exception`, and each later call raises it again, so no
clean-up reaches the disk either. What was written before stays, as in the page cache after `kill -9`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

CHANGES = (
    "ftruncate",
    "fdatasync",
    "fsync",
    "link",
    "mkdir",
    "posix_fallocate",
    "pwrite",
    "pwritev",
    "rename",
    "replace",
    "rmdir",
    "unlink",
)
"""Functions of `os` that change what is on a disk. `pathlib` and `shutil` call these, too."""
_WRITING = frozenset("wxa+")


class Crash(BaseException):
    """The process was killed."""


class CrashingDisk:
    """Counts the calls that change something, and crashes at one of them."""

    def __init__(self, at: int | None = None, *, on_sync: Callable[[int], None] | None = None) -> None:
        """`on_sync` is called with the descriptor after each sync."""
        self._on_sync = on_sync
        self.at = at
        """Number of the call that does not happen, from 0 on; None for no crash."""
        self.calls: list[str] = []
        """What was called."""

    def reach(self, name: str) -> None:
        """The code under test does `name` now. Raises Crash."""
        if self.at is not None and len(self.calls) >= self.at:
            raise Crash(name)
        self.calls.append(name)

    @contextmanager
    def in_use(self) -> Iterator[CrashingDisk]:
        """All calls of this process go to this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CHANGES:
                patch.setattr(os, name, self._guarded(name, getattr(os, name)))
            patch.setattr(io, "open", self._opened(io.open))
            yield self

    def _guarded(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.reach(name)
            result = real(*arguments, **options)
            if self._on_sync is not None and name in {"fsync", "fdatasync"}:
                self._on_sync(*arguments)
            return result

        return call

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """`Path.open` and `Path.write_bytes`: opening for writing is a call, and so is each write."""

        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if not _WRITING & set(mode):
                return real(file, mode, *arguments, **options)
            self.reach(f"open {Path(file).name}")
            opened = real(file, mode, *arguments, **options)
            write = opened.write

            def guarded(data: bytes) -> int:
                self.reach("write")
                count: int = write(data)
                opened.flush()
                return count

            return _Written(opened, guarded)

        return call


class _Written:
    """A file that is open for writing, with another `write`."""

    def __init__(self, file: Any, write: Callable[[bytes], int]) -> None:
        self._file = file
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


class PowerCutDisk:
    """Knows what of a folder is on disk: content that was synced, names whose directory was synced.

    `image` writes the folder as a power cut might leave it: of each file and each directory either the state
    of its last sync or the newest one.
    """

    def __init__(self, root: Path) -> None:
        """All that is in `root` now counts as synced."""
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
            self._names[folder] = _names_in(folder)
        for path in root.rglob("*"):
            if path.is_file():
                self._contents[path.stat().st_ino] = path.read_bytes()
        self._kept = {path.stat().st_ino: path.open("rb") for path in root.rglob("*") if path.is_file()}
        """So that no inode's number is used again."""

    def synced(self, fd: int) -> None:
        """A sync of this descriptor has ended."""
        # A file of the log is linked to its name after its descriptor was opened, so this may name none.
        opened = Path(f"/proc/self/fd/{fd}")
        path = opened.readlink()
        if path.is_dir():
            self._names[path] = _names_in(path)
        elif opened.is_file():
            inode = os.fstat(fd).st_ino
            self._contents[inode] = opened.read_bytes()
            if inode not in self._kept:
                self._kept[inode] = opened.open("rb")

    def image(self, target: Path, *, is_kept: Callable[[], bool]) -> Path:
        """Write the folder to `target`; `is_kept` decides whether writes that were not synced are there."""
        self._write(self._root, target, is_kept)
        return target

    def _write(self, folder: Path, target: Path, is_kept: Callable[[], bool]) -> None:
        target.mkdir(parents=True)
        durable = self._names.get(folder, {})
        newest = _names_in(folder) if folder.is_dir() else {}
        names = newest if is_kept() else durable
        inodes = {path.stat().st_ino: path for path in self._root.rglob("*") if path.is_file()}
        for name, inode in names.items():
            if inode == 0:
                self._write(folder / name, target / name, is_kept)
                continue
            content = self._contents.get(inode)
            if inode in inodes and is_kept():
                content = inodes[inode].read_bytes()
            # A name may be on disk before the file's bytes and length are.
            (target / name).write_bytes(content or b"")

    def close(self) -> None:
        for file in self._kept.values():
            file.close()


def _names_in(folder: Path) -> dict[str, int]:
    """Names to inode numbers, 0 for folders."""
    return {path.name: 0 if path.is_dir() else path.stat().st_ino for path in folder.iterdir()}

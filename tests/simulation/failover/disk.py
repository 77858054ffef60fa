"""What a simulated broker's disk holds when its process or its power ends.

A kill leaves the page cache: everything that was written. A power cut leaves of each file its content as of
its last sync or what was written since, and of each directory its names as of its last sync or the newest
ones; of a file of the log, which is written through a map, also any mixture of old and new sectors.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from itertools import count
from pathlib import Path

from attrs import define, frozen

SECTOR_BYTES = 512
LOG_FOLDER = "commitlog"
MARKER = "trioha-cut.json"
TORN_BYTES_MAX = 300


@frozen
class _File:
    number: int
    content: bytes


@define
class Image:
    """A folder's content while its process is down."""

    files: dict[Path, _File]
    """By path, relative to the folder."""
    folders: list[Path]

    def log(self) -> bytes:
        """The log from offset 0 on, as far as it is contiguous; with a cut that a start will complete."""
        data = b""
        for path in sorted(self.files):
            if path.parent.name == LOG_FOLDER and path.name.isdecimal() and int(path.name) == len(data):
                data += self.files[path].content
        return data[: self.cut_offset]

    @property
    def cut_offset(self) -> int | None:
        """Where a start will cut the log; None for no cut."""
        marker = self.files.get(Path(LOG_FOLDER) / MARKER)
        return json.loads(marker.content)["offset"] if marker is not None and marker.content else None


class Disk:
    """Knows what of a folder is on disk."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self._rng = rng
        self._numbers: dict[int, int] = {}
        """Of each file, by inode: it stays when a file is written anew at a restart."""
        self._next = count(1)
        self._contents: dict[int, bytes] = {}
        """As of the last sync, by number."""
        self._names: dict[Path, tuple[int, dict[str, int]]] = {}
        """As of the last sync of each directory, with its inode: a directory that took the place of a renamed
        one has not been synced. 0 for directories."""
        self._kept = root.with_name(f"{root.name}.kept")
        """Links to all files that were synced, so that no inode's number is used again."""
        root.mkdir()
        self._kept.mkdir()
        self._names[root] = (root.stat().st_ino, {})

    def synced(self, fd: int) -> None:
        """A sync of this descriptor has ended."""
        status = os.fstat(fd)
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if stat.S_ISDIR(status.st_mode):
            if path.is_relative_to(self.root):
                self._names[path] = (status.st_ino, self._names_in(path))
            return
        inode = status.st_ino
        # A file that was made without a name keeps that in /proc, but can be read by its descriptor.
        content = path.read_bytes() if path.exists() else os.pread(fd, status.st_size, 0)
        self._contents[self._number(inode)] = content
        kept = self._kept / str(inode)
        if status.st_nlink and not kept.exists():
            os.link(f"/proc/self/fd/{fd}", kept, src_dir_fd=fd, follow_symlinks=True)

    def _number(self, inode: int) -> int:
        if inode not in self._numbers:
            self._numbers[inode] = next(self._next)
        return self._numbers[inode]

    def _names_in(self, folder: Path) -> dict[str, int]:
        return {
            entry.name: 0 if entry.is_dir() else self._number(entry.inode())
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name)
        }

    # -- images --------------------------------------------------------------------------------------------

    def after_kill(self) -> Image:
        """All that was written."""
        image = Image({}, [])
        self._collect(self.root, image)
        return image

    def _collect(self, folder: Path, image: Image) -> None:
        for name, number in self._names_in(folder).items():
            path = folder / name
            if number:
                image.files[path.relative_to(self.root)] = _File(number, path.read_bytes())
            else:
                image.folders.append(path.relative_to(self.root))
                self._collect(path, image)

    def after_power_cut(self) -> Image:
        """What a power cut may leave."""
        newest: dict[int, bytes] = {}
        everything = self.after_kill()
        for file in everything.files.values():
            newest[file.number] = file.content
        image = Image({}, [])
        self._leave(self.root, image, newest)
        return image

    def _leave(self, folder: Path, image: Image, newest: dict[int, bytes]) -> None:
        rng = self._rng
        inode, durable = self._names.get(folder, (0, {}))
        newest_names = {}
        if folder.is_dir():
            newest_names = self._names_in(folder)
            if folder.stat().st_ino != inode:
                durable = {}
        names = durable if rng.random() < 0.5 else newest_names
        # Folders are made once, at the first start: a power cut at that moment is none of this simulation.
        names = names | {name: 0 for name, number in newest_names.items() if not number}
        for name, number in names.items():
            path = (folder / name).relative_to(self.root)
            if not number:
                image.folders.append(path)
                self._leave(folder / name, image, newest)
                continue
            old, new = self._contents.get(number, b""), newest.get(number)
            content = old
            if new is not None and rng.random() < 0.6:
                content = new
                if path.parent.name == LOG_FOLDER and len(old) == len(new) and rng.random() < 0.5:
                    content = self._mixed(old, new)
            image.files[path] = _File(number, content)

    def _mixed(self, old: bytes, new: bytes) -> bytes:
        share = self._rng.choice((0.3, 0.7, 0.95))
        parts = []
        for at in range(0, len(new), SECTOR_BYTES):
            before, after = old[at : at + SECTOR_BYTES], new[at : at + SECTOR_BYTES]
            parts.append(after if before == after or self._rng.random() < share else before)
        return b"".join(parts)

    def restore(self, image: Image, *, is_synced: bool) -> None:
        """Make the folder what it was at the crash; `is_synced` after a power cut."""
        durable = {
            folder: names
            for folder, (inode, names) in self._names.items()
            if folder.is_dir() and folder.stat().st_ino == inode
        }
        shutil.rmtree(self.root)
        self.root.mkdir()
        for folder in image.folders:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        numbers = {}
        for path, file in image.files.items():
            target = self.root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.content)
            numbers[target.stat().st_ino] = file.number
        self._numbers |= numbers
        if is_synced:
            self._contents = {file.number: file.content for file in image.files.values()}
            self._names = {
                folder: (folder.stat().st_ino, self._names_in(folder))
                for folder in (self.root, *(self.root / folder for folder in image.folders))
            }
        else:
            # The same folders, although they are made anew here.
            self._names = {
                folder: (folder.stat().st_ino, names) for folder, names in durable.items() if folder.is_dir()
            }

"""Disks that fill up and disks that fail, for one node of a run.

`python -m tests.faults.disks FILE ARGUMENTS` is `trioha ARGUMENTS` on a disk that does what the one word in
FILE says: `fsync` fails every sync, `full` has no more space, `index-full` has none for files of the index,
`index-fsync` fails syncs of these alone, `log-reads` gives no byte of a log (to plain Python). Without the
file, or with another word, it is healthy. None needs any right.

As root, and in a mount namespace of its own (`private_mounts`), a run fills a real small disk instead.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.node import shims
from tests.simulation.planting import main as run_with_defect

FSYNC = "fsync"
FULL = "full"
LOG_READS = "log-reads"
INDEX_FULL = "index-full"
INDEX_FSYNC = "index-fsync"
HEALTHY = "healthy"
DISK_BYTES = 48 << 20
"""Of a small disk: more than a run writes."""
BALLAST = "ballast"
_FILL_BYTES = 1 << 20
_PAGE_BYTES = 4096
_PRIVATE = ["unshare", "--mount", "--propagation", "private", "--"]


def program(fault_file: Path, *, clock_file: Path | None = None, defect: str = "") -> list[str]:
    """What to start instead of `trioha` for a node on a disk with faults.

    `clock_file`: where it is said by how much its clock has jumped (`tests.node.shims`). `defect`: a planted
    defect, MODULE:NAME, that it has besides.
    """
    clock = [] if clock_file is None else ["--clock", str(clock_file)]
    planted = ["--defect", defect] if defect else []
    return [sys.executable, "-m", "tests.faults.disks", str(fault_file), *clock, *planted]


def set_fault(fault_file: Path, word: str) -> None:
    """From now on the disk does as `word` says."""
    whole = fault_file.with_name(f"{fault_file.name}~")
    whole.write_text(word)
    whole.rename(fault_file)


def _never(*_: Any) -> bool:
    return False


def _has_space(fd: int, data: bytes, offset: int) -> bool:
    """Whether a write takes no space: its file is whole, or it goes where bytes are already."""
    found = os.fstat(fd)
    if found.st_blocks * 512 >= max(found.st_size, offset + len(data)):
        return True
    try:
        return all(os.lseek(fd, at, os.SEEK_DATA) == at for at in {offset, offset + len(data) - 1})
    except OSError:
        return False  # no data from there to the end


def _is_no_log(fd: int, *_: Any) -> bool:
    return "/commitlog/" not in str(Path(f"/proc/self/fd/{fd}").readlink())


def _is_outside_of_index(fd: int, *_: Any) -> bool:
    return "/index/" not in str(Path(f"/proc/self/fd/{fd}").readlink())


def _break(
    name: str, word: str, number: int, fault_file: Path, *, unless: Callable[..., bool] = _never
) -> None:
    real: Callable[..., Any] | None = getattr(os, name, None)
    if real is None:
        return  # not on this platform, so never called

    def call(*arguments: Any, **options: Any) -> Any:
        if _is(fault_file, word) and not unless(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    setattr(os, name, call)


def _is(fault_file: Path, word: str) -> bool:
    try:
        return fault_file.read_text() == word
    except FileNotFoundError:
        return False


def install(fault_file: Path) -> None:
    """Put faults between this process and its disk."""
    for name in ("fsync", "fdatasync"):
        _break(name, FSYNC, errno.EIO, fault_file)
        _break(name, INDEX_FSYNC, errno.EIO, fault_file, unless=_is_outside_of_index)
    # What takes space: files by reserving it, sparse ones by writing where nothing was written before.
    _break("posix_fallocate", FULL, errno.ENOSPC, fault_file)
    _break("pread", LOG_READS, errno.EIO, fault_file, unless=_is_no_log)
    _break("posix_fallocate", INDEX_FULL, errno.ENOSPC, fault_file, unless=_is_outside_of_index)
    _break("pwrite", FULL, errno.ENOSPC, fault_file, unless=_has_space)


# -- small disks -------------------------------------------------------------------------------------------


def private_mounts() -> list[str]:
    """What to put before a command so that its mounts are its own and end with it; empty if that cannot be.

    It takes root, the tools, and a kernel that lets it.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("mount") is None:
        return []
    script = "mount -t tmpfs -o size=1m tmpfs /tmp && umount /tmp"
    tried = subprocess.run([*_PRIVATE, "sh", "-c", script], capture_output=True, check=False)
    return [] if tried.returncode else _PRIVATE


class SmallDisk:
    """A tmpfs of `DISK_BYTES`, mounted on a folder."""

    def __init__(self, folder: Path) -> None:
        """Mount it. Raises CalledProcessError if that is not allowed."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._ballast = folder / BALLAST
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)

    def fill(self) -> None:
        """Leave not a page."""
        with self._ballast.open("ab", buffering=0) as file:
            step = _FILL_BYTES
            while step >= _PAGE_BYTES:
                try:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it; what was on it lies in the folder itself afterwards."""
        self.free()
        copy = self._folder.with_name(f"{self._folder.name}~")
        shutil.copytree(self._folder, copy)
        subprocess.run(["umount", str(self._folder)], check=True)
        self._folder.rmdir()
        copy.rename(self._folder)


def main() -> int:
    install(Path(sys.argv.pop(1)))
    if sys.argv[1] == "--clock":
        shims.install(Path(sys.argv[2]))
        del sys.argv[1:3]
    if sys.argv[1] == "--defect":
        del sys.argv[1]
        return run_with_defect()
    from trioha.cli import main as trioha

    return trioha()


if __name__ == "__main__":
    sys.exit(main())

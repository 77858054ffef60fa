"""A file system on a loop device, and what is on that device at a moment.

Theory of operation. A power cut loses what the machine has in memory. For a store that is what its file
system has not written to its device yet: pages of files, names in directories, metadata that is in no
committed transaction. A loop device is a file; what a mounted file system has written to it can be read from
that file, and what is in the file system's own memory cannot. So a copy of the file, made at any moment, is a
disk after a power cut at that moment.

Simulated is the cut: the machine goes on. Real are the kernel's file system, its ordering, its journal, and
its repair by e2fsck. A write counts as done when the device has it: the page cache of the file behind the
device counts as the device. A disk with a volatile cache may lose such a write until it is told to flush;
that a file system tells it so at the end of each sync is not tested here.

Nothing reaches the device by chance: the journal of ext4 is committed by syncs only, a file that is renamed
over another is not written for that reason alone, and the kernel writes by itself only what is 30 s old.
Where it does write while the copy is made, the copy is made again.

Everything is mounted in a mount namespace of the program's own (`tests.faults.disks.private_mounts`), and
each loop device is freed by its last unmount: nothing is left however the program ends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from tests.faults.disks import private_mounts

DEVICE_BYTES: Final = 192 << 20
BAD_DEVICE_BYTES: Final = 2 << 20
COPIES_MAX: Final = 20
TOOL_WITHIN_S: Final = 60.0
_REPAIRED: Final = range(4)
"""Exit codes of e2fsck: nothing to repair, repaired, repaired and wants a restart of the machine."""


@frozen
class FileSystem:
    """A kind of file system."""

    name: str
    options: str
    """For its mount."""


FILE_SYSTEMS: Final = {
    "ext4": FileSystem("ext4", "commit=300,noauto_da_alloc,noinit_itable"),
    # Without a journal a sync of one file takes no other along. Linux may serve it by the driver of ext4,
    # which syncs with a new file the folder that it is in.
    "ext2": FileSystem("ext2", "noatime"),
}


class Disk:
    """A mounted file system of its own."""

    def __init__(self, file_system: FileSystem, folder: Path) -> None:
        """Make and mount it in `folder`, which is made. Raises CalledProcessError."""
        folder.mkdir(parents=True)
        self.device = folder / "device"
        self.root = folder / "root"
        """Where it is mounted."""
        self._file_system = file_system
        with self.device.open("wb") as file:
            file.truncate(DEVICE_BYTES)
        _run(f"mkfs.{file_system.name}", "-q", "-F", str(self.device))
        _mount(self.device, self.root, file_system)

    def close(self) -> None:
        """Unmount it, which frees its loop device."""
        _run("umount", str(self.root))

    @contextmanager
    def after_power_cut(self, folder: Path) -> Iterator[Path]:
        """What is on the device now, copied, repaired and mounted below `folder`; removed at the end."""
        folder.mkdir()
        device, root = folder / "device", folder / "root"
        try:
            self.copy(device)
            done = subprocess.run(
                ["e2fsck", "-fy", device], capture_output=True, text=True, timeout=TOOL_WITHIN_S, check=False
            )
            assert done.returncode in _REPAIRED, f"e2fsck ended with {done.returncode}: {done.stdout}"
            _mount(device, root, self._file_system)
            try:
                yield root
            finally:
                _run("umount", str(root))
        finally:
            shutil.rmtree(folder)

    def copy(self, target: Path) -> None:
        """Copy the device as it is at one moment: no write is done or begun meanwhile."""
        for _ in range(COPIES_MAX):
            before = self._writes()
            _run("cp", "--sparse=always", str(self.device), str(target))
            if before == self._writes() and not before[1]:
                return
        raise AssertionError(f"{self.device} was written to during each of {COPIES_MAX} copies")

    def _writes(self) -> tuple[int, int]:
        """Writes that were done so far, and those under way."""
        number = self.root.stat().st_dev
        figures = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()
        return int(figures[4]), int(figures[8])


@contextmanager
def bad_sectors(content: Path, *, good_bytes: int, folder: Path) -> Iterator[str]:
    """The path of a loop device, an ext4 with a copy of the file `content` alone: the kernel gives the first
    `good_bytes` of it, and EIO for the rest, as for sectors that a disk cannot read.

    Whole pages. `folder` is made. The file behind the device ends there; the file system lies in front of it.
    """
    folder.mkdir(parents=True)
    files, behind = folder / "files", folder / "device"
    files.mkdir()
    shutil.copy(content, files / content.name)
    with behind.open("wb") as file:
        file.truncate(BAD_DEVICE_BYTES)
    # All that the file system needs comes first on the device, then the file.
    features = "^has_journal,^resize_inode,^flex_bg"
    _run("mkfs.ext4", "-q", "-F", "-b", "4096", "-O", features, "-d", str(files), str(behind))
    data, whole = behind.read_bytes(), content.read_bytes()
    first_bad = data.index(whole[good_bytes : good_bytes + 4096])
    assert first_bad == data.index(whole[:4096]) + good_bytes, "the file lies in one piece"
    loop = _run("losetup", "--find", "--show", str(behind)).strip()
    try:
        os.truncate(behind, first_bad)
        yield loop
    finally:
        # It is free when nothing has mounted it any more.
        _run("losetup", "--detach", loop)


def mounted(device: str, root: Path, file_system: str) -> list[str]:
    """What to put before a command that, alone, sees the device mounted at `root`, a folder that is there."""
    script = 'mount -t "$1" "$2" "$3" && shift 3 && exec "$@"'
    return [*private_mounts(), "sh", "-c", script, "sh", file_system, device, str(root)]


def why_not() -> str:
    """Why this machine has no loop devices for this process; empty if it has."""
    if os.geteuid() != 0:
        return "only root may mount a loop device"
    tools = ("mount", "umount", "losetup", "e2fsck", *(f"mkfs.{name}" for name in FILE_SYSTEMS))
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        return f"these commands are missing: {', '.join(missing)}"
    mounts = private_mounts()
    if not mounts:
        return "this process may not have mounts of its own (unshare --mount)"
    with tempfile.TemporaryDirectory(prefix="trioha-loop-") as folder:
        script = """set -e; truncate -s 8M device; mkfs.ext2 -q -F device; mkdir root
            mount -o loop device root; umount root"""
        tried = subprocess.run(
            [*mounts, "sh", "-c", script], cwd=folder, capture_output=True, text=True, check=False
        )
    said = tried.stderr.strip().splitlines()
    return (
        f"no loop device can be mounted: {said[-1] if said else tried.returncode}" if tried.returncode else ""
    )


def _mount(device: Path, root: Path, file_system: FileSystem) -> None:
    root.mkdir()
    # `loop`: mount makes the loop device, and the last unmount frees it.
    _run("mount", "-t", file_system.name, "-o", f"loop,{file_system.options}", str(device), str(root))


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TOOL_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr}"
    return done.stdout

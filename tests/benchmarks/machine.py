"""What the kernel says of processes, sockets and this machine."""

from __future__ import annotations

import mmap
import os
import platform
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from tests.interop.rocketmq import java_tool
from trioha.compiled import description

_ESTABLISHED: Final = "01"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_KERNEL_THREADS_PARENT: Final = "2"
FILL_BYTES: Final = 64 * 1024
SAMPLE_EVERY_S: Final = 0.1


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds; the kernel counts in 10 ms."""
    # The second field, the name in brackets, may hold blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def anonymous_bytes(pid: int) -> int:
    """RssAnon: memory that is the process's own, without mapped files and shared pages."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None, f"/proc/{pid}/status has no RssAnon"
    return int(found[1]) * 1024


def use_memory(folder: Path, wanted_bytes: int) -> None:
    """Fill a mapped file of this length in `folder` and delete it: the next file's memory was in use before.

    The kernel gives the pages that were freed last to the next file. A virtual machine may have returned
    free pages to its host meanwhile (free page reporting), and then storing through a map is several times as
    slow: without this the one who stores after another's file was deleted is ahead. Anonymous memory does not
    do: its pages are others.
    """
    chunk = bytes(FILL_BYTES)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(wanted_bytes)
        with mmap.mmap(file.fileno(), wanted_bytes) as memory:
            for start in range(0, wanted_bytes, FILL_BYTES):
                end = min(start + FILL_BYTES, wanted_bytes)
                memory[start:end] = chunk[: end - start]


@contextmanager
def standing_still(pids: Iterable[int]) -> Iterator[None]:
    """These processes are stopped (SIGSTOP) during the block; after it they go on."""
    stopped = list(pids)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def await_requests(port: int, count: int, *, within_s: float = 120.0) -> None:
    """Wait until `count` slaves have asked the paused master at `port` for its log."""
    deadline_s = time.monotonic() + within_s
    while (found := _requests_waiting(port)) < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{found} of {count} slaves asked port {port} within {within_s} s")
        time.sleep(0.02)


def _requests_waiting(port: int) -> int:
    """Connections to the listening `port` that hold a whole unread first report."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            local_port = int(fields[1].rpartition(":")[2], 16)
            unread_bytes = int(fields[4].rpartition(":")[2], 16)
            found += local_port == port and fields[3] == _ESTABLISHED and unread_bytes >= 8
    return found


class Meter:
    """CPU time and private memory of some processes while a block runs, and how busy others were.

    The measured processes outlive the block. Neither they nor other children of this process are others, nor
    the kernel's threads, which write back and receive for the measured processes, too.
    """

    def __init__(self, measured: Iterable[int] = ()) -> None:
        self._measured = tuple(measured)
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="memory", daemon=True)
        self.seconds = 0.0
        """How long the block took."""
        self.cpu_s_of = dict.fromkeys(self._measured, 0.0)
        """User and system time of each measured process."""
        self.peak_bytes = dict.fromkeys(self._measured, 0)
        """The most private memory that each measured process had, sampled every 0.1 s."""
        self.others_cores = 0.0
        """Cores that were busy with other processes."""

    @property
    def cpu_s(self) -> float:
        """User and system time of all measured processes."""
        return sum(self.cpu_s_of.values())

    def __enter__(self) -> Self:
        self._sampler.start()
        self._others_before_s = _others_cpu_s()
        self._cpu_before_s = {pid: cpu_s(pid) for pid in self._measured}
        self._began_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.seconds = time.monotonic() - self._began_s
        self._ended.set()
        self._sampler.join()
        if kind is None:
            self.cpu_s_of = {pid: cpu_s(pid) - used_s for pid, used_s in self._cpu_before_s.items()}
            others_s = _others_cpu_s() - self._others_before_s
            self.others_cores = max(0.0, others_s / max(self.seconds, 1e-3))

    def _sample(self) -> None:
        is_first = True
        while is_first or not self._ended.wait(SAMPLE_EVERY_S):
            is_first = False
            for pid in self._measured:
                # It may have failed.
                with suppress(FileNotFoundError, ProcessLookupError, AssertionError):
                    self.peak_bytes[pid] = max(self.peak_bytes[pid], anonymous_bytes(pid))


def _others_cpu_s() -> float:
    """CPU time of all processes that are neither ours nor the kernel's; ended ones count in their parents."""
    used_s = 0.0
    parents = {str(os.getpid()), _KERNEL_THREADS_PARENT}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[1] not in parents and path.parent.name != str(os.getpid()):
                used_s += sum(map(int, fields[11:15])) / _TICKS_PER_S
    return used_s


def described(root: Path) -> str:
    """Date, commit of the checkout `root`, machine and versions, in one line."""

    def said(*command: str) -> str:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        return (done.stdout + done.stderr).strip()

    # The page of figures is what a run changes itself.
    changed = said("git", "status", "--porcelain", "-uno", "--", ".", ":!docs/benchmarks.md")
    commit = said("git", "rev-parse", "--short", "HEAD") + (" with changes" if changed else "")
    cpu = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    java = re.search(r'version "([^"]+)"', said(java_tool("java"), "-version"))
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit}, {os.cpu_count()} cores of "
        f"{cpu[1] if cpu else platform.machine()}, {memory_gb:.0f} GB, CPython {platform.python_version()} "
        f"(kernel: {description()}), Java {java[1] if java else 'absent'}"
    )

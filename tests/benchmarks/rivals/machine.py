"""What the kernel says of processes, sockets and load."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

_ESTABLISHED: Final = "01"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_KERNEL_THREADS_PARENT: Final = "2"
_BUSY_COLUMNS: Final = (1, 2, 3, 6, 7)
"""Of the first line of /proc/stat: user, nice, system, irq, softirq."""
FILL_BYTES: Final = 64 * 1024
SAMPLE_EVERY_S: Final = 0.1
CALM_CORES: Final = 0.15
CALM_SAMPLE_S: Final = 0.5


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    # The second field, the name in brackets, may hold blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def anonymous_bytes(pid: int) -> int:
    """RssAnon: memory that is the process's own, without mapped files and shared pages."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/{pid}/status has no RssAnon")


def use_memory(folder: Path, wanted_bytes: int) -> None:
    """Fill a mapped file of this length in `folder` and delete it: the next file's memory was in use before.

    The kernel gives the pages that were freed last to the next file. A virtual machine may have returned
    free pages to its host meanwhile (free page reporting), and then storing through a map costs up to
    eight times as much: 0.2 and 1.7 s of CPU for each GB were measured. So without this the one who stores
    after another's file was deleted is ahead. Anonymous memory does not do: its pages are others.
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
    """These processes are stopped during the block; after it they go on."""
    stopped = list(pids)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def await_requests(port: int, count: int, *, within_s: float = 40.0) -> None:
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


def await_calm(idle_timeout_s: float) -> None:
    """Wait until no more than `CALM_CORES` are busy, at most so long; the callers' processes stand still."""
    deadline_s = time.monotonic() + idle_timeout_s
    while time.monotonic() < deadline_s:
        before_s = _busy_s()
        time.sleep(CALM_SAMPLE_S)
        if (_busy_s() - before_s) / CALM_SAMPLE_S <= CALM_CORES:
            return


def _busy_s() -> float:
    columns = Path("/proc/stat").read_text().splitlines()[0].split()
    return sum(int(columns[index]) for index in _BUSY_COLUMNS) / _TICKS_PER_S


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
        self.cpu_s = 0.0
        """User and system time of the measured processes; the kernel counts in 10 ms."""
        self.peak_bytes = dict.fromkeys(self._measured, 0)
        """The most private memory that each measured process had, sampled every 0.1 s."""
        self.load_average = 0.0
        """1-minute load average at the end of the block, the benchmark included."""
        self.others_cores = 0.0
        """Cores that were busy with other processes."""

    def __enter__(self) -> Self:
        self._sampler.start()
        self._others_before_s = _others_cpu_s()
        self._cpu_before_s = sum(map(cpu_s, self._measured))
        self._began_s = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.seconds = time.monotonic() - self._began_s
        self._ended.set()
        self._sampler.join()
        if kind is not None:
            return
        self.cpu_s = sum(map(cpu_s, self._measured)) - self._cpu_before_s
        self.load_average = os.getloadavg()[0]
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

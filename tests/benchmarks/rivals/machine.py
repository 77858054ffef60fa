"""What the kernel says of processes, sockets and load."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import frozen

_ESTABLISHED = "01"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KERNEL_THREADS_PARENT = "2"
_BUSY_COLUMNS = (1, 2, 3, 6, 7)
"""Of the first line of /proc/stat: user, nice, system, irq, softirq."""
FILL_BYTES = 64 * 1024
SAMPLE_EVERY_S = 0.1
CALM_CORES = 0.15
CALM_SAMPLE_S = 0.5


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


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, in seconds."""
    # The second field, the name in brackets, may hold blanks.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def running(pids: Iterable[int]) -> AbstractContextManager[None]:
    """These processes run during the block; before and after it they are stopped."""
    return _signalled(pids, signal.SIGCONT, signal.SIGSTOP)


def standing_still(pids: Iterable[int]) -> AbstractContextManager[None]:
    """These processes are stopped during the block; after it they go on."""
    return _signalled(pids, signal.SIGSTOP, signal.SIGCONT)


@contextmanager
def _signalled(pids: Iterable[int], before: signal.Signals, after: signal.Signals) -> Iterator[None]:
    own = list(pids)
    signal_all(own, before)
    try:
        yield
    finally:
        signal_all(own, after)


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of these processes."""
    for pid in pids:
        os.kill(pid, number)


class CpuMeter:
    """User and system time that some processes use while a block runs; the kernel counts in 10 ms."""

    def __init__(self, **groups: Iterable[int]) -> None:
        """Process ids by the name of their group; every process must outlive the block."""
        self._pids = {name: tuple(pids) for name, pids in groups.items()}
        self._before_s: dict[str, float] = {}
        self.used_s: dict[str, float] = {}
        """By group, once the block has ended."""

    def _now_s(self) -> dict[str, float]:
        return {name: sum(map(cpu_s, pids)) for name, pids in self._pids.items()}

    def __enter__(self) -> Self:
        self._before_s = self._now_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.used_s = {name: now_s - self._before_s[name] for name, now_s in self._now_s().items()}


def requests_waiting(port: int) -> int:
    """Connections to the listening `port` that hold a whole unread first report."""
    found = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            local_port = int(fields[1].rpartition(":")[2], 16)
            unread_bytes = int(fields[4].rpartition(":")[2], 16)
            found += local_port == port and fields[3] == _ESTABLISHED and unread_bytes >= 8
    return found


def await_requests(port: int, count: int, *, within_s: float = 40.0) -> None:
    """Wait until `count` slaves have asked the paused master at `port` for its log."""
    deadline_s = time.monotonic() + within_s
    while (found := requests_waiting(port)) < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{found} of {count} slaves asked port {port} within {within_s} s")
        time.sleep(0.02)


@frozen
class Load:
    """How busy others kept the machine during a measurement."""

    average: float
    """1-minute load average at its end, which counts the benchmark too."""
    others_cores: float | None
    """Cores that were busy with other processes than the measured ones; None where that is not known."""


class LoadMeter:
    """Measures `Load` while a block runs; `processes` are the measured ones.

    The kernel's own threads do not count: they write back and receive for the measured processes, too.
    """

    def __init__(self) -> None:
        self._measured: set[int] = set()
        self._began_s = 0.0
        self._before: dict[int, float] = {}
        self.load = Load(0.0, None)

    def count(self, pids: Iterable[int]) -> None:
        """These processes are no others."""
        self._measured.update(pids)

    def __enter__(self) -> Self:
        self.count([os.getpid()])
        self._began_s = time.monotonic()
        self._before = _cpu_s_by_pid()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took_s = max(time.monotonic() - self._began_s, 1e-3)
        others_s = sum(
            cpu_s - self._before.get(pid, 0.0)
            for pid, cpu_s in _cpu_s_by_pid().items()
            if pid not in self._measured
        )
        self.load = Load(average=os.getloadavg()[0], others_cores=max(0.0, others_s / took_s))


def await_calm(idle_timeout_s: float) -> None:
    """Wait until no more than `CALM_CORES` are busy, at most so long; the callers' processes stand still."""
    deadline_s = time.monotonic() + idle_timeout_s
    while time.monotonic() < deadline_s:
        busy_s = _busy_s()
        time.sleep(CALM_SAMPLE_S)
        if (_busy_s() - busy_s) / CALM_SAMPLE_S <= CALM_CORES:
            return


def _busy_s() -> float:
    columns = Path("/proc/stat").read_text().splitlines()[0].split()
    return sum(int(columns[index]) for index in _BUSY_COLUMNS) / _TICKS_PER_S


def _cpu_s_by_pid() -> dict[int, float]:
    """CPU time of every process except kernel threads, with that of the children it waited for."""
    found: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The second field, the name in brackets, may hold blanks.
            fields = path.read_text().rpartition(")")[2].split()
            if fields[1] != _KERNEL_THREADS_PARENT:
                found[int(path.parent.name)] = sum(map(int, fields[11:15])) / _TICKS_PER_S
    return found


class MemoryPeaks:
    """The most private memory that each watched process had, sampled while a block runs."""

    def __init__(self) -> None:
        self.peak_bytes: dict[int, int] = {}


@contextmanager
def memory_watched(pids: Iterable[int]) -> Iterator[MemoryPeaks]:
    """Sample the private memory of `pids` every 0.1 s."""
    peaks = MemoryPeaks()
    over = threading.Event()
    watched = list(pids)

    def sample() -> None:
        while not over.wait(SAMPLE_EVERY_S):
            for pid in watched:
                # It may have ended meanwhile.
                with suppress(FileNotFoundError, ProcessLookupError, AssertionError):
                    peaks.peak_bytes[pid] = max(peaks.peak_bytes.get(pid, 0), anonymous_bytes(pid))

    sampler = threading.Thread(target=sample, name="memory", daemon=True)
    sampler.start()
    try:
        yield peaks
    finally:
        over.set()
        sampler.join()

"""Whether the system gives this process more memory: it may have less than what clients may hold."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path
from typing import Final

HEADROOM_BYTES: Final = 16 * 1024 * 1024
"""Memory of the system that unfinished frames leave free: for the requests of other connections and for a
worker thread, whose stack alone takes 8 MiB."""
_LIMITS: Final = (resource.RLIMIT_AS, resource.RLIMIT_DATA)


def promises_what_it_has(setting: Path) -> bool:
    """Whether the system may refuse memory to a process without limits; also if it does not say."""
    try:
        return setting.read_text(encoding="ascii").strip() not in {"0", "1"}
    except OSError:
        return True


_IS_STRICT: Final = promises_what_it_has(Path("/proc/sys/vm/overcommit_memory"))


def may_refuse_memory() -> bool:
    """Whether the system may refuse this process a few more MiB.

    Linux does so only at a limit of the process (`ulimit -v`, `ulimit -d`), or where it promises no more
    memory than it has (`vm.overcommit_memory=2`). It costs a microsecond, a fraction of an allocation.
    """
    return _IS_STRICT or any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in _LIMITS)


def can_allocate(count: int) -> bool:
    """Whether the system gives this process `count` more bytes.

    It costs a few microseconds: the memory is not touched.
    """
    try:
        mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except (OSError, MemoryError):
        return False
    return True

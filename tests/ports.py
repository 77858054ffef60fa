"""Ports for processes that a test starts.

The port that the system gives for port 0 is of the range from which outgoing connections get theirs: closed
again, it can be any connection's a moment later, before the process listens on it. Ports below that range
stay free of connections. And they are kept: as long as a process lives, no other process that runs tests on
this machine is given the same ports, however late its server listens, or how often it is started again.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

_LOWEST = 12_000
_HIGHEST = 32_000
_FAMILY = 4
"""Ports of a broker: the second port for clients is listenPort - 2, the HA port listenPort + 1 by default."""
_KEPT = os.open(
    Path(tempfile.gettempdir(), f"trioha-test-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT, 0o600
)
"""A file whose byte at a family's first port is locked by the process that the family was given to. Open
from the import on, so that no test leaves it open; its locks end with the process, and children do not have
them."""


def _highest() -> int:
    """One above the last port to give: where the range of outgoing connections begins, if it begins above."""
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:  # not Linux: from 49152 on
        return _HIGHEST
    return first_outgoing if _LOWEST + 1000 <= first_outgoing < _HIGHEST else _HIGHEST


def _families() -> Iterator[int]:
    """First ports of families, each once and in an order of this process's own."""
    first_ports = range(_LOWEST, _highest() - _FAMILY + 1, _FAMILY)
    yield from random.SystemRandom().sample(first_ports, len(first_ports))


_left = _families()


def _keep(first: int) -> bool:
    """Keep a family for this process; False if another one has it."""
    try:
        fcntl.lockf(_KEPT, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first)
    except (BlockingIOError, PermissionError):
        return False
    return True


def free_port() -> int:
    """A port that is free, and so are the two below it and the one above.

    Each is given once in a process, and to one process at a time. Raises AssertionError when none is left.
    """
    for first in _left:
        if not _keep(first):
            continue
        with ExitStack() as stack:
            try:
                for port in range(first, first + _FAMILY):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
        return first + 2
    raise AssertionError("no free port is left")

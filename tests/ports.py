"""Ports for processes that a test starts.

The port that the system gives for port 0 is of the range from which outgoing connections get theirs: closed
again, it can be any connection's a moment later, before the process listens on it. Ports below that range
stay free.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

_LOWEST = 12_000
_HIGHEST = 32_000
_FAMILY = 4
"""Ports of a broker: the second port for clients is listenPort - 2, the HA port listenPort + 1 by default."""


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


def free_port() -> int:
    """A port that is free, and so are the two below it and the one above.

    Each is given once in a process. Raises AssertionError when none is left.
    """
    for first in _left:
        with ExitStack() as stack:
            try:
                for port in range(first, first + _FAMILY):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
        return first + 2
    raise AssertionError("no free port is left")

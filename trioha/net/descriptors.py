"""File descriptors: who may take the next one.

Theory of operation. A process has `limit` descriptors (RLIMIT_NOFILE). Some are taken by its own work (log
files, queues, listeners, syncs), some by connections, which strangers open. What strangers take must never
be missing at work: a store that cannot open its next file stops.

The kernel gives every new descriptor the lowest free number. So a connection that is accepted only while the
next number is below `below` never holds a number from `below` on, and `limit - below` descriptors stay for
everything else, whatever connections do. One `dup` shows the next number: no counting, no /proc, nothing
that could be forgotten when descriptors are opened elsewhere.

Connections of several kinds have a gate each: those of clients one that closes earlier, those of slaves one
that closes later, so that clients cannot use up the places of slaves.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Final, Protocol

from trioha.net.border import is_shortage

UNLIMITED_DESCRIPTORS: Final = 1 << 20
"""Stands for RLIM_INFINITY: more than any node opens, and a number that can be calculated with."""


class Gate(Protocol):
    """What an accept loop asks before each connection."""

    def is_open(self, descriptor: int) -> bool:
        """Whether one more connection may be accepted; `descriptor` is an open one of this process."""
        ...

    def describe(self) -> str:
        """Why the gate is closed, for a log line."""
        ...


class OpenGate:
    """A gate that is always open: for servers outside of a node."""

    def is_open(self, descriptor: int) -> bool:  # noqa: ARG002 - the protocol's parameter
        """True."""
        return True

    def describe(self) -> str:
        """Nothing closes it."""
        return ""


class DescriptorGate:
    """Open while the next descriptor's number is below a mark."""

    def __init__(
        self, below: int, *, limit: int | None = None, lowest_free: Callable[[int], int | None] | None = None
    ) -> None:
        """Descriptors from `below` to `limit` (the process's, if None) are not for these connections.

        `lowest_free` is the port to the process: it gets an open descriptor and returns the number that the
        next one will have, None if there is none left.
        """
        self.below = below
        self.limit = descriptor_limit() if limit is None else limit
        self._lowest_free = lowest_free or lowest_free_descriptor

    def is_open(self, descriptor: int) -> bool:
        """Whether a connection accepted now gets a number below the mark."""
        next_descriptor = self._lowest_free(descriptor)
        return next_descriptor is not None and next_descriptor < self.below

    def describe(self) -> str:
        """Of the limit, how many descriptors are kept."""
        return f"{max(self.limit - self.below, 0)} of {self.limit} file descriptors are reserved"


def lowest_free_descriptor(descriptor: int) -> int | None:
    """The number that the next descriptor of this process will have; None if there is none left.

    All lower numbers are in use. `descriptor` is any open one. Raises OSError if it is not open.
    """
    try:
        probe = os.dup(descriptor)
    except OSError as error:
        if is_shortage(error):
            return None
        raise
    os.close(probe)
    return probe


def descriptor_limit() -> int:
    """How many descriptors this process may have open (the soft limit of RLIMIT_NOFILE)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED_DESCRIPTORS)

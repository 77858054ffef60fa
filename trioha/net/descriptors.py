"""The budget of file descriptors: the limit of the process, its division, and a gate for accept loops.

Theory of operation. A process has `limit` descriptors (RLIMIT_NOFILE, raised at the start as far as the
system allows). Its own work uses some (log files, queues, listeners, syncs), connections use the others, and
any peer can open connections. Connections must never use up the descriptors of the store: a store that cannot
open its next file stops.

Two rules ensure that. `divide` gives every part a maximum at the start, so that all fit the limit;
connections beyond their maximum are refused. `DescriptorGate` is for unplanned use (a store with more files
than planned, a library that opens some): as long as fewer than `keep` descriptors are free, connections wait
in the kernel's backlog.

The gate counts open descriptors, where they can be listed, at most twice a second. Between two counts it
relies on the kernel giving every new descriptor the lowest free number: if the next one has a number within
`keep` of the limit, too many are in use. One `dup` shows that number.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import frozen

from trioha.net.error_boundary import is_shortage

DESCRIPTORS_MAX: Final = 1 << 20
"""More than any node opens: the meaning of RLIM_INFINITY, and what the limit is raised to at most."""
DARWIN_OPEN_MAX: Final = 10240
"""OPEN_MAX of macOS, which refuses a higher soft limit even below the hard one."""
COUNT_INTERVAL_S: Final = 0.5
"""Time between two counts of open descriptors: listing a thousand costs half a millisecond."""
LISTED_IN: Final = "/dev/fd"
"""Folder that lists the open descriptors, on Linux and macOS."""


class Gate(Protocol):
    """Checked by an accept loop before each connection."""

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
    """Open while at least `keep` descriptors stay free after one more connection."""

    def __init__(
        self,
        *,
        keep: int,
        limit: int | None = None,
        lowest_free: Callable[[int], int | None] | None = None,
        count_open: Callable[[int], int | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """None stands for those of this process; tests pass others."""
        self.keep = keep
        self.limit = descriptor_limit() if limit is None else limit
        self._lowest_free = lowest_free or lowest_free_descriptor
        self._count_open = count_open or open_descriptors
        self._clock = clock
        self._open = 0
        """Open descriptors at the last count."""
        self._counted_s = -COUNT_INTERVAL_S

    def is_open(self, descriptor: int) -> bool:
        """Whether `keep` descriptors would be free after accepting one more connection."""
        in_use_max = self.limit - self.keep
        next_descriptor = self._lowest_free(descriptor)
        if next_descriptor is None or next_descriptor >= in_use_max:
            return False
        now_s = self._clock()
        if now_s - self._counted_s >= COUNT_INTERVAL_S:
            counted = self._count_open(self.limit)
            # Where they cannot be listed, the lowest free number is the estimate.
            self._open = next_descriptor if counted is None else counted
            self._counted_s = now_s
        return self._open < in_use_max

    def describe(self) -> str:
        """How many descriptors are kept free, of how many."""
        return f"fewer than {self.keep} of {self.limit} file descriptors are free"


@frozen
class Share:
    """A part of the process that uses descriptors."""

    name: str
    """Its name in warnings: a configuration key or a description."""
    wanted: int
    floors: tuple[int, ...]
    """The least it gets in each round of lowering (see `divide`), descending. With less than the last one a
    node cannot start."""


@frozen
class Division:
    """The maximum of descriptors of each share."""

    limit: int
    granted: tuple[int, ...]
    """By share, in their order."""
    lowered: tuple[str, ...]
    """For each share that got less than it wanted: name, wanted number, granted number."""


class TooFewDescriptors(Exception):  # noqa: N818 - says what is wrong
    """The limit is below `least`, which the node needs."""

    def __init__(self, least: int) -> None:
        self.least = least
        super().__init__(f"{least} are needed")


def divide(limit: int, *, needed: int, shares: Sequence[Share]) -> Division:
    """Grant each share what it wants, or lower them until all fit beside `needed` descriptors.

    Shares are lowered in their order, each no further than necessary: in the first round to their first
    floors, then to their next ones. All have the same number of floors. Raises TooFewDescriptors if even the
    last ones do not fit.
    """
    granted = [share.wanted for share in shares]
    excess = needed + sum(granted) - limit
    for floors in zip(*(share.floors for share in shares), strict=True):
        for index, floor in enumerate(floors):
            cut = min(max(excess, 0), max(granted[index] - floor, 0))
            granted[index] -= cut
            excess -= cut
    if excess > 0:
        raise TooFewDescriptors(limit + excess)
    return Division(
        limit,
        tuple(granted),
        tuple(
            f"{share.name} from {share.wanted} to {got}"
            for share, got in zip(shares, granted, strict=True)
            if got < share.wanted
        ),
    )


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors as far as this process may; returns the new one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if sys.platform == "darwin":
        wanted = min(wanted, DARWIN_OPEN_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # The system allows less than the hard limit (kern.maxfilesperproc): the soft one stays.
            return descriptor_limit()
    return descriptor_limit()


def descriptor_limit() -> int:
    """The soft limit of RLIMIT_NOFILE."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)


def open_descriptors(limit: int) -> int | None:
    """Number of open descriptors below `limit`; None where they cannot be listed.

    Higher ones, inherited from a parent with a higher limit, do not count against the limit.
    """
    try:
        names = os.listdir(LISTED_IN)  # noqa: PTH208 - a Path for each would cost ten times as much
    except OSError as error:
        return limit if is_shortage(error) else None
    # One of them is open for the listing itself.
    return sum(name.isdecimal() and int(name) < limit for name in names) - 1


def lowest_free_descriptor(descriptor: int) -> int | None:
    """The number of the next descriptor of this process; None if there is none left.

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

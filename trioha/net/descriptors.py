"""File descriptors: how many this process may have, who gets how many, and when to accept no more.

Theory of operation. A process has `limit` descriptors (RLIMIT_NOFILE, raised at the start as far as the
system allows). Its own work takes some (log files, queues, listeners, syncs), connections take the others,
and connections are opened by strangers. What strangers take must never be missing at work: a store that
cannot open its next file stops.

Two rules see to that. `divide` gives every part a maximum at the start, so that the sum of all fits the
limit; a connection beyond its maximum is refused. `DescriptorGate` is for what no plan foresees (a store that
holds more files than planned, a library that opens some): as long as fewer than `keep` descriptors are free,
whatever took them, connections wait in the kernel's backlog.

The gate counts what is open, where that can be listed, at most twice a second. Between two counts it relies
on the kernel giving every new descriptor the lowest free number: if the next one has a number within `keep`
of the limit, too many are in use. One `dup` shows that number.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import frozen

from trioha.net.border import is_shortage

DESCRIPTORS_MAX: Final = 1 << 20
"""More than any node opens: stands for RLIM_INFINITY, and is what the limit is raised to at most."""
DARWIN_OPEN_MAX: Final = 10240
"""macOS refuses a soft limit above OPEN_MAX, whatever the hard one says."""
COUNT_INTERVAL_S: Final = 0.5
"""Between two counts of all open descriptors: listing a thousand takes half a millisecond."""
LISTED_IN: Final = "/dev/fd"
"""Lists the open descriptors, on Linux and macOS."""


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
        """`limit` None is the process's own. The others are ports to the process, for tests: see
        `lowest_free_descriptor` and `open_descriptors`."""
        self.keep = keep
        self.limit = descriptor_limit() if limit is None else limit
        self._lowest_free = lowest_free or lowest_free_descriptor
        self._count_open = count_open or open_descriptors
        self._clock = clock
        self._open = 0
        """Descriptors that were open at the last count."""
        self._counted_s = -COUNT_INTERVAL_S

    def is_open(self, descriptor: int) -> bool:
        """Whether `keep` descriptors are free when one more connection has been accepted."""
        in_use_max = self.limit - self.keep
        next_descriptor = self._lowest_free(descriptor)
        if next_descriptor is None or next_descriptor >= in_use_max:
            return False
        now_s = self._clock()
        if now_s - self._counted_s >= COUNT_INTERVAL_S:
            counted = self._count_open(self.limit)
            # Where nothing lists them, the lowest free number has to do.
            self._open = next_descriptor if counted is None else counted
            self._counted_s = now_s
        return self._open < in_use_max

    def describe(self) -> str:
        """How many descriptors are kept free, of how many."""
        return f"fewer than {self.keep} of {self.limit} file descriptors are free"


@frozen
class Share:
    """What one part of a process wants of its descriptors."""

    name: str
    """How a warning calls it: a configuration key, or what it is."""
    wanted: int
    floors: tuple[int, ...]
    """How far it is lowered before the next share is lowered to its own: one for each round, descending.

    Below the last one there is no use in starting.
    """


@frozen
class Division:
    """Who gets how many descriptors."""

    limit: int
    granted: tuple[int, ...]
    """To each share, in their order."""
    lowered: tuple[str, ...]
    """For each share that got less than it wanted: its name, what it wanted, what it got."""


class TooFewDescriptors(Exception):  # noqa: N818 - says what is wrong
    """The limit is below the least: `least` is what the limit would have to be."""

    def __init__(self, least: int) -> None:
        self.least = least
        super().__init__(f"{least} are needed")


def divide(limit: int, *, needed: int, shares: Sequence[Share]) -> Division:
    """Give each share what it wants, or lower them until all fit beside `needed` descriptors.

    They are lowered one after the other, in their order, each only as far as it takes: in a first round to
    their first floors, then to their next ones. All have equally many. Raises TooFewDescriptors if even the
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
    """Raise the soft limit of descriptors as far as this process may; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if sys.platform == "darwin":
        wanted = min(wanted, DARWIN_OPEN_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # The system allows less than its own hard limit (kern.maxfilesperproc): the soft one stays.
            return descriptor_limit()
    return descriptor_limit()


def descriptor_limit() -> int:
    """How many descriptors this process may have open: the soft limit of RLIMIT_NOFILE."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)


def open_descriptors(limit: int) -> int | None:
    """How many descriptors with numbers below `limit` are open; None where nothing lists them.

    Higher ones, inherited from a parent with a higher limit, take no place of ours.
    """
    try:
        names = os.listdir(LISTED_IN)  # noqa: PTH208 - a Path for each would cost ten times as much
    except OSError as error:
        return limit if is_shortage(error) else None
    # One of them is the listing's own.
    return sum(name.isdecimal() and int(name) < limit for name in names) - 1


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

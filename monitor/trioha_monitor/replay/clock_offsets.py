"""How far the clock of each session is ahead of that by which a replay shows it.

Theory of operation. Clocks are compared where the sessions of a slave and of its master have a connection in
common (`trioha_sessions.clocks`): such a link gives an offset and its largest error. Without controllers the
clock of every master's session stays as it is, and a slave's session is shown by the most certain link.

Under controllers brokers change places, so all sessions of a group are shown by the clock of one: its first
master's. The offset of a session is the sum along the most certain path of links and of sessions of one node.
Sessions of one start of a node have one monotonic clock, by which their wall clocks are compared; a node that
was started again is taken to be on the same machine.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from attrs import frozen

SAME_START_ERROR_NS: Final = 1_000_000
"""Error between two sessions of one start of a node: a session reads its two clocks one after the other."""
RESTART_ERROR_NS: Final = 1_000_000_000
"""Error of the clock of a node that was started again: any link is more certain."""


@frozen
class ClockLink:
    """Two sessions whose clocks were compared."""

    reference: int
    """Number of one session."""
    other: int
    """Number of the other one."""
    ahead_ns: int
    """How far the other one's wall clock is ahead."""
    error_ns: int
    """Largest error."""


@frozen
class ClockOffset:
    """The clock of a session."""

    ahead_ns: int
    """How far it is ahead of the reference."""
    error_ns: int
    """Largest error."""
    reference: int
    """Number of the session by whose clock it is shown."""

    @property
    def is_certain(self) -> bool:
        """Whether the two clocks differ by more than the error."""
        return abs(self.ahead_ns) > self.error_ns


def clock_offsets(references: Iterable[int], links: Iterable[ClockLink]) -> Mapping[int, ClockOffset]:
    """The clocks of the `references` and of all sessions that `links` connect with them, by their numbers.

    Of several paths the one with the smallest error counts.
    """
    neighbours: defaultdict[int, list[ClockLink]] = defaultdict(list)
    for link in links:
        for each in _both_ways(link):
            neighbours[each.reference].append(each)
    found: dict[int, ClockOffset] = {}
    waiting = [(0, number, 0, number) for number in references]
    heapq.heapify(waiting)
    while waiting:
        error_ns, number, ahead_ns, reference = heapq.heappop(waiting)
        if number in found:
            continue
        found[number] = ClockOffset(ahead_ns, error_ns, reference)
        for link in neighbours[number]:
            if link.other not in found:
                heapq.heappush(
                    waiting, (error_ns + link.error_ns, link.other, ahead_ns + link.ahead_ns, reference)
                )
    return found


def _both_ways(link: ClockLink) -> Iterator[ClockLink]:
    yield link
    yield ClockLink(link.other, link.reference, -link.ahead_ns, link.error_ns)

"""Which queues each member of a group consumes: shares of the ordered queues.

See docs/protocol/remoting.md#java-clients, docs/protocol/pop.md#assignments.

Every member computes this by itself from the same lists, or has a broker compute it, so all members must use
the same rule: `allocate` is the one that RocketMQ's consumers use by default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from trioha.remoting.route import MessageQueue


class Allocation(Protocol):
    """A rule by which members share queues."""

    def __call__(
        self, queues: Iterable[MessageQueue], members: Iterable[str], *, member: str
    ) -> tuple[MessageQueue, ...]:
        """The queues of `member`. Raises ValueError if it is not one of `members`."""
        ...


def _java_order(text: str) -> bytes:
    """Java orders texts by their UTF-16 units."""
    return text.encode("utf-16-be", "surrogatepass")


def allocate(
    queues: Iterable[MessageQueue], members: Iterable[str], *, member: str
) -> tuple[MessageQueue, ...]:
    """The queues of `member`: neighbours in their order; the first members have one more than the last.

    Raises ValueError if `member` is not one of `members`.
    """
    ordered = sorted(set(queues))
    ids = sorted(set(members), key=_java_order)
    index = ids.index(member)
    share, more = divmod(len(ordered), len(ids))
    start = index * share + min(index, more)
    return tuple(ordered[start : start + share + (index < more)])


def allocate_in_circle(
    queues: Iterable[MessageQueue], members: Iterable[str], *, member: str
) -> tuple[MessageQueue, ...]:
    """The queues of `member`, which take turns: the first queue, and each that is as many queues further as
    there are members.

    Raises ValueError if `member` is not one of `members`.
    """
    ids = sorted(set(members), key=_java_order)
    return tuple(sorted(set(queues))[ids.index(member) :: len(ids)])


def shared_allocation(
    queues: Iterable[MessageQueue],
    members: Iterable[str],
    *,
    member: str,
    allocation: Allocation,
    sharers: int,
) -> tuple[MessageQueue, ...]:
    """The queues that `member` pops: its own, and those of the `sharers` members that follow it.

    With more members than queues each has one. Raises ValueError if `member` is not one of `members`.
    """
    ordered, ids = sorted(set(queues)), sorted(set(members), key=_java_order)
    index = ids.index(member)
    if len(ids) > len(ordered):
        return (ordered[index % len(ordered)],) if ordered else ()
    followers = [ids[(index + number) % len(ids)] for number in range(sharers + 1)]
    shares = (allocation(ordered, ids, member=name) for name in followers)
    return tuple(dict.fromkeys(queue for share in shares for queue in share))

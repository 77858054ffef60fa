"""Which queues each member of a group consumes: equal shares of the ordered queues.

See docs/protocol/remoting.md#java-clients.

Every member computes this by itself from the same lists, so all members must use the same rule: this is the
one that RocketMQ's consumers use by default.
"""

from __future__ import annotations

from collections.abc import Iterable

from trioha.client.route import MessageQueue


def allocate(
    queues: Iterable[MessageQueue], members: Iterable[str], *, member: str
) -> tuple[MessageQueue, ...]:
    """The queues of `member`: neighbours in their order; the first members have one more than the last.

    Raises ValueError if `member` is not one of `members`.
    """
    ordered = sorted(set(queues))
    # Java orders texts by their UTF-16 units.
    ids = sorted(set(members), key=lambda text: text.encode("utf-16-be", "surrogatepass"))
    index = ids.index(member)
    share, more = divmod(len(ordered), len(ids))
    start = index * share + min(index, more)
    return tuple(ordered[start : start + share + (index < more)])

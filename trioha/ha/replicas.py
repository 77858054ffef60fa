"""The replicas of a master: their acknowledged offsets, and which of them release a put.

Replicas are counted, not connections: two connections of one replica are one copy (RocketMQ counts two,
docs/protocol/ha.md#number-of-copies). An ack belongs to its connection and is forgotten with it.

Theory of operation. A connection's first report is a claim: the slave reports bytes that were not sent on
this connection. Later acks are about bytes that were sent. A put that waited before the claim must
not be released by it, nor by later acks that include it: any peer could claim anything, and where each
connection is a replica, a slave that reconnects before its old connection has ended would be two copies. So
puts wait in quorum views: a connection counts for puts that begin to wait after its claim, and for earlier
ones only if it requested their bytes (its claim ends before they start) and its replica has a stable identity
(address or certificate).

Not every peer that reads the log is a replica: an observer, or a tap, reports its first offset and nothing
more, and does not differ from a slave on the wire otherwise. So a replica is judged by its acks. A replica is
eligible (a put may wait for it) while its lag is below the gap and its ack is not overdue by
haMaxTimeSlaveNotCatchup. An ack is due since the last one, or since the oldest unacknowledged byte was
appended, whichever is later. A replica is in sync (it counts where the number of replicas decides what a put
needs) once it has also acknowledged bytes that were sent on its connection, or claimed the whole log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import trio
from attrs import define

from trioha.ha.meter import LagClock
from trioha.store.messages import AppendResult
from trioha.watermark import ReplicatedWatermarks, Watermark

UNACKED_S_MAX = 15.0
"""Default of haMaxTimeSlaveNotCatchup."""


@define(eq=False)
class _ConnectionAck:
    """The last ack of one connection."""

    replica: str
    ack_offset: int
    acked_s: float
    """When `ack_offset` was reported."""
    lag_clock: LagClock
    """Of the connection: when its unacknowledged bytes were appended."""
    has_acked: bool
    """Whether it has acknowledged bytes that were sent on it, or claimed the whole log."""
    claim_offset: int
    """Its first report."""

    def unacked_for_s(self, now_s: float) -> float:
        """How long an ack has been due; 0 if none is."""
        return self.lag_clock.unacked_for_s(now_s, acked_s=self.acked_s)


class ConnectedReplicas(Protocol):
    """What a master knows of the replicas that are connected: by their connections (`Replicas`), or by their
    broker ids (`ha.set_commit.SetReplicas`)."""

    def forget(self, connection_id: int, /) -> None:
        """The connection has ended."""
        ...

    def is_eligible(self, connection_id: int, end_offset: int, /) -> bool:
        """Whether a put that ends at `end_offset` may wait for this connection's replica."""
        ...

    def eligible_count(self, end_offset: int, /) -> int:
        """Number of distinct replicas that a put ending at `end_offset` may wait for."""
        ...

    def is_ack_overdue(self, connection_id: int, /) -> bool:
        """Whether an ack has been due for haMaxTimeSlaveNotCatchup."""
        ...

    def held_offset(self, end_offset: int, /) -> int:
        """End of what each replica holds that may become master, of a log that ends at `end_offset`."""
        ...


class Waiting(Protocol):
    """Puts that wait for copies (`group_commit.Commit`)."""

    appended: AppendResult

    def is_settled(self, now_s: float) -> bool:
        """Whether they wait no more."""
        ...


class QuorumView(ReplicatedWatermarks):
    """The connections that count for a set of waiting puts, and the offsets that their replicas hold."""

    def __init__(self, connections: Iterable[int] = ()) -> None:
        super().__init__()
        self.connections = set(connections)
        self._waiting: deque[Waiting] = deque()
        """In the order of their appends; the first one still waits, or was not looked at since it ended."""

    def add_waiting(self, waiting: Waiting, now_s: float) -> None:
        """Puts wait for the connections of this view."""
        self._drop_settled(now_s)
        self._waiting.append(waiting)

    def waiting_from(self, now_s: float) -> int | None:
        """Start offset of the first waiting put, None without one."""
        self._drop_settled(now_s)
        return self._waiting[0].appended.physical_offset if self._waiting else None

    def _drop_settled(self, now_s: float) -> None:
        while self._waiting and self._waiting[0].is_settled(now_s):
            self._waiting.popleft()


class Replicas:
    """Acknowledged offsets of connected replicas."""

    def __init__(
        self,
        *,
        gap_bytes_max: int,
        unacked_s_max: float = UNACKED_S_MAX,
    ) -> None:
        """A replica with a lag of `gap_bytes_max` (haMaxGapNotInSync, haSlaveFallbehindMax) is not eligible,
        nor is one whose ack has been due for `unacked_s_max` (haMaxTimeSlaveNotCatchup).
        """
        self._gap_bytes_max = gap_bytes_max
        self._unacked_s_max = unacked_s_max
        self._connections: dict[int, _ConnectionAck] = {}
        self.current = QuorumView()
        """The view for puts that begin to wait now."""
        self._quorum_views = [self.current]
        self.acks = Watermark()
        """Number of acks that were received."""

    def acknowledge(
        self,
        connection_id: int,
        *,
        replica: str,
        ack_offset: int,
        lag_clock: LagClock,
        is_stable_identity: bool = False,
        has_unsent: bool = False,
        now_s: float | None = None,
    ) -> None:
        """A connection of `replica` acknowledged everything before `ack_offset`; its first call is its claim.

        `lag_clock` is the connection's own and includes `ack_offset`. `is_stable_identity`: `replica` is the
        same slave on every connection. `has_unsent`, of a claim: the log has bytes to send. `now_s` is the
        time now, of trio's clock.
        """
        ack = self._connections.get(connection_id)
        if now_s is None:
            now_s = trio.current_time()
        if ack is None:
            self._connections[connection_id] = _ConnectionAck(
                replica, ack_offset, now_s, lag_clock, has_acked=not has_unsent, claim_offset=ack_offset
            )
            self._admit(
                connection_id, claim_offset=ack_offset, is_stable_identity=is_stable_identity, now_s=now_s
            )
        else:
            ack.ack_offset = ack_offset
            ack.acked_s = now_s
            ack.has_acked = True
        for view in self._quorum_views:
            if connection_id in view.connections:
                is_alone = len(view.connections) == 1
                view.acknowledge(replica, ack_offset if is_alone else self._ack_of(replica, view))
        self.acks.advance(self.acks.offset + 1)

    def _admit(
        self, connection_id: int, *, claim_offset: int, is_stable_identity: bool, now_s: float
    ) -> None:
        """Add a new connection to the view of the puts that it counts for."""
        earlier = [view for view in self._quorum_views[:-1] if view.waiting_from(now_s) is not None]
        self._quorum_views = [*earlier, self.current]
        waiting_from = self.current.waiting_from(now_s)
        if waiting_from is not None and not (is_stable_identity and claim_offset <= waiting_from):
            following = QuorumView(self.current.connections)
            for replica in {self._connections[member].replica for member in following.connections}:
                following.acknowledge(replica, self._ack_of(replica, following))
            self._quorum_views.append(following)
            self.current = following
        self.current.connections.add(connection_id)

    def forget(self, connection_id: int) -> None:
        """The connection has ended; nothing happens if it never reported."""
        ack = self._connections.pop(connection_id, None)
        if ack is None:
            return
        for view in self._quorum_views:
            if connection_id not in view.connections:
                continue
            view.connections.remove(connection_id)
            if any(self._connections[member].replica == ack.replica for member in view.connections):
                view.acknowledge(ack.replica, self._ack_of(ack.replica, view))
            else:
                view.forget(ack.replica)

    def _ack_of(self, replica: str, view: QuorumView) -> int:
        members = (self._connections[member] for member in view.connections)
        return max(ack.ack_offset for ack in members if ack.replica == replica)

    def copies(self, k: int) -> Watermark:
        """`current.copies(k)`."""
        return self.current.copies(k)

    def marks(self) -> list[Watermark]:
        """All marks that puts may wait for."""
        return [mark for view in self._quorum_views for mark in view.marks()]

    def acknowledged_offset(self, k: int) -> int:
        """End of what `k` distinct replicas have acknowledged after their claims; 0 if fewer have.

        Other than in `copies` a claim does not count: an observer claims what it has, too.
        """
        acks: dict[str, int] = {}
        for ack in self._connections.values():
            if ack.ack_offset > ack.claim_offset:
                acks[ack.replica] = max(acks.get(ack.replica, 0), ack.ack_offset)
        return sorted(acks.values(), reverse=True)[k - 1] if len(acks) >= k else 0

    def held_offset(self, end_offset: int) -> int:
        """End of what each connected replica holds of a log that ends at `end_offset`; all without any.

        A replica whose ack has been due for haMaxTimeSlaveNotCatchup is passed over: an observer acknowledges
        nothing, and a slave that is stuck must not hold up what waits for this offset. So is a replica that
        is haSlaveFallbehindMax behind: it copies a long log.
        """
        now_s = trio.current_time()
        return min(
            (
                ack.ack_offset
                for ack in self._connections.values()
                if ack.unacked_for_s(now_s) < self._unacked_s_max
                and end_offset - ack.ack_offset < self._gap_bytes_max
            ),
            default=end_offset,
        )

    def is_eligible(self, connection_id: int, end_offset: int) -> bool:
        """Whether a put that ends at `end_offset` may wait for this connection's replica."""
        ack = self._connections.get(connection_id)
        return ack is not None and self._is_eligible(ack, end_offset, trio.current_time())

    def is_ack_overdue(self, connection_id: int) -> bool:
        """Whether an ack has been due for haMaxTimeSlaveNotCatchup: the replica is stuck, or an observer."""
        ack = self._connections.get(connection_id)
        return ack is not None and ack.unacked_for_s(trio.current_time()) >= self._unacked_s_max

    def eligible_count(self, end_offset: int, now_s: float | None = None) -> int:
        """Number of distinct replicas that a put ending at `end_offset` may wait for.

        `now_s` is the time now, of trio's clock.
        """
        return len({ack.replica for ack in self._eligible(end_offset, now_s)})

    def in_sync_count(self, end_offset: int, now_s: float | None = None) -> int:
        """Number of distinct eligible replicas that have acknowledged what was sent to them."""
        return len({ack.replica for ack in self._eligible(end_offset, now_s) if ack.has_acked})

    def _eligible(self, end_offset: int, now_s: float | None) -> Iterator[_ConnectionAck]:
        if now_s is None:
            now_s = trio.current_time()
        return (ack for ack in self._connections.values() if self._is_eligible(ack, end_offset, now_s))

    def _is_eligible(self, ack: _ConnectionAck, end_offset: int, now_s: float) -> bool:
        lag_bytes = end_offset - ack.ack_offset
        if lag_bytes >= self._gap_bytes_max:
            return False
        return lag_bytes <= 0 or ack.unacked_for_s(now_s) < self._unacked_s_max

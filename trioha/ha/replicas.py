"""What a master knows of its replicas: who acknowledged what, and who may release a producer.

Replicas are counted, not connections: one that connects twice is one copy (spec ha 4.2 shows RocketMQ
counting it as two). An acknowledgement belongs to its connection and is forgotten with it.

Theory of operation. A connection's first report is a claim: it says what the slave has, and nothing of it was
sent on that connection. From then on its acks are about bytes that were sent. A put that was already waiting
when the claim was made must not be released by it, nor by later acks that include it: a stranger could claim
anything, and where replicas are told apart by connection, a slave that comes back before its old connection
has ended would be two copies. So puts wait in quorum views: a connection counts for puts that begin to wait
after its claim, and for older ones only if it asked for their bytes (its claim ends before they start) and is
known by a name that lasts (address or certificate).

Not every peer that takes the log is a replica: an observer, or a tap, reports where it began and nothing
more, and on the wire nothing else tells it from a slave. So a replica is judged by what it acknowledges. It
is eligible (a put may wait for it) while its lag is below the gap and it has not owed an acknowledgement for
haMaxTimeSlaveNotCatchup: it owes one from its last acknowledgement on, or from when the oldest byte that it
has not acknowledged was there to be sent, whichever is later. It is in sync (it counts where the number of
replicas decides what a put needs) once it has also proved itself: acknowledged bytes that were sent on its
connection, or come with the whole log.
"""

from __future__ import annotations

import trio
from attrs import define, field

from trioha.ha.meter import LagClock
from trioha.watermark import ReplicatedWatermarks, Wait, Watermark

UNACKED_S_MAX = 15.0
"""Default of haMaxTimeSlaveNotCatchup."""


@define(eq=False)
class _Holder:
    """One connection's part in a replica."""

    replica: str
    ack_offset: int
    acked_s: float
    """When `ack_offset` was reported."""
    lag_clock: LagClock
    """Since when it has not acknowledged what; the connection's own."""
    has_acked: bool
    """Whether it has acknowledged bytes that it was sent, or had them all when it came."""

    def unacked_for_s(self, now_s: float) -> float:
        """How long it has owed an acknowledgement without giving any; 0 if it owes none."""
        oldest_s = self.lag_clock.oldest_s
        return 0.0 if oldest_s is None else now_s - max(oldest_s, self.acked_s)


@define(eq=False)
class QuorumView:
    """Puts that wait, and the connections that count for them."""

    connections: set[int] = field(factory=set)
    _marks: ReplicatedWatermarks = field(factory=ReplicatedWatermarks)

    def copies(self, k: int) -> Watermark:
        """The offset that `k` of these replicas hold, the master not counted."""
        return self._marks.copies(k)

    def acknowledge(self, replica: str, ack_offset: int) -> None:
        """`replica` holds the log up to `ack_offset`."""
        self._marks.acknowledge(replica, ack_offset)

    def forget(self, replica: str) -> None:
        """`replica` is gone."""
        self._marks.forget(replica)

    def wait_for(self, need: int, *, start_offset: int, end_offset: int) -> Wait:
        """A wait for `need` of these replicas to hold a put's record."""
        return self._marks.copies(need).wait_for(end_offset, start_offset=start_offset)

    @property
    def waiting_from(self) -> int | None:
        """Where the first put that waits starts, None if none does."""
        return min((wait.start_offset for wait in self._marks.waits()), default=None)


class Replicas:
    """Acknowledged offsets of the replicas that are connected and have reported."""

    def __init__(self, *, gap_bytes_max: int, unacked_s_max: float = UNACKED_S_MAX) -> None:
        """`gap_bytes_max` is haMaxGapNotInSync (haSlaveFallbehindMax): a slave this far behind is out;
        `unacked_s_max` haMaxTimeSlaveNotCatchup: so is one that owes an acknowledgement for so long."""
        self._gap_bytes_max = gap_bytes_max
        self._unacked_s_max = unacked_s_max
        self._holders: dict[int, _Holder] = {}
        self._quorum_views = [QuorumView()]

    @property
    def current(self) -> QuorumView:
        """For puts that begin to wait now."""
        return self._quorum_views[-1]

    def acknowledge(
        self,
        connection_id: int,
        *,
        replica: str,
        ack_offset: int,
        lag_clock: LagClock,
        is_stable_identity: bool = False,
        is_behind: bool = False,
    ) -> None:
        """The replica behind this connection holds the log up to `ack_offset`; the first call is its claim.

        `lag_clock`, always the connection's own, has `ack_offset` already. `is_stable_identity` says that
        `replica` is the same slave on every connection, `is_behind`, of a claim, that there are bytes to send
        it.
        """
        holder = self._holders.get(connection_id)
        now_s = trio.current_time()
        if holder is None:
            self._holders[connection_id] = _Holder(
                replica, ack_offset, now_s, lag_clock, has_acked=not is_behind
            )
            self._admit(connection_id, claim_offset=ack_offset, is_stable_identity=is_stable_identity)
        else:
            holder.ack_offset = ack_offset
            holder.acked_s = now_s
            holder.has_acked = True
        for view in self._quorum_views:
            if connection_id in view.connections:
                view.acknowledge(replica, self._ack_of(replica, view))

    def _admit(self, connection_id: int, *, claim_offset: int, is_stable_identity: bool) -> None:
        """Decide for which puts a new connection counts."""
        self._quorum_views = [view for view in self._quorum_views[:-1] if view.waiting_from is not None] + [
            self.current
        ]
        waiting_from = self.current.waiting_from
        if waiting_from is not None and not (is_stable_identity and claim_offset <= waiting_from):
            following = QuorumView(set(self.current.connections))
            for replica in {self._holders[member].replica for member in following.connections}:
                following.acknowledge(replica, self._ack_of(replica, following))
            self._quorum_views.append(following)
        self.current.connections.add(connection_id)

    def forget(self, connection_id: int) -> None:
        """The connection is gone; nothing happens if it never reported."""
        holder = self._holders.pop(connection_id, None)
        if holder is None:
            return
        for view in self._quorum_views:
            if connection_id not in view.connections:
                continue
            view.connections.remove(connection_id)
            if any(self._holders[member].replica == holder.replica for member in view.connections):
                view.acknowledge(holder.replica, self._ack_of(holder.replica, view))
            else:
                view.forget(holder.replica)

    def _ack_of(self, replica: str, view: QuorumView) -> int:
        members = (self._holders[member] for member in view.connections)
        return max(holder.ack_offset for holder in members if holder.replica == replica)

    def copies(self, k: int) -> Watermark:
        """The offset that `k` replicas hold, the master not counted, for puts that begin to wait now."""
        return self.current.copies(k)

    def is_eligible(self, connection_id: int, end_offset: int) -> bool:
        """Whether a put that ends at `end_offset` may wait for the replica behind this connection."""
        holder = self._holders.get(connection_id)
        return holder is not None and self._is_eligible(holder, end_offset, trio.current_time())

    def is_ack_overdue(self, connection_id: int) -> bool:
        """Whether this connection has owed an acknowledgement for haMaxTimeSlaveNotCatchup: a replica that is
        stuck, or an observer, which never acknowledges."""
        holder = self._holders.get(connection_id)
        return holder is not None and holder.unacked_for_s(trio.current_time()) >= self._unacked_s_max

    def eligible_count(self, end_offset: int) -> int:
        """How many distinct replicas a put that ends at `end_offset` may wait for."""
        now_s = trio.current_time()
        holders = self._holders.values()
        return len({one.replica for one in holders if self._is_eligible(one, end_offset, now_s)})

    def in_sync_count(self, end_offset: int) -> int:
        """How many of them have proved that they are replicas."""
        now_s = trio.current_time()
        proven = [one for one in self._holders.values() if one.has_acked]
        return len({one.replica for one in proven if self._is_eligible(one, end_offset, now_s)})

    def _is_eligible(self, holder: _Holder, end_offset: int, now_s: float) -> bool:
        lag_bytes = end_offset - holder.ack_offset
        if lag_bytes >= self._gap_bytes_max:
            return False
        return lag_bytes <= 0 or holder.unacked_for_s(now_s) < self._unacked_s_max

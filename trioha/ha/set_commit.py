"""Group commit by the sync-state set: what puts of a master in controller mode wait for.

See docs/protocol/ha.md#number-of-copies.

| setting | a put waits for |
|---|---|
| allAckInSyncStateSet | the confirm offset, unless the master is alone: all that may be elected hold it |
| inSyncReplicas above 1 | so many copies, the master's own included, at replicas that may be elected |
| neither | nothing |

With fewer replicas in sync than minInSyncReplicas a put is refused. With allAckInSyncStateSet, a put that
waits when the set becomes smaller than that is FLUSH_SLAVE_TIMEOUT at once: without those that left it would
be PUT_OK with fewer copies than minInSyncReplicas. A put is never SLAVE_NOT_AVAILABLE: a
replica that is missing now leaves the set within moments, or comes back, and both may end the wait.

A replica is its broker id, from the handshake. What it acknowledges counts from its first report on, for all
puts that wait: `SetReplicas.bound` keeps acks of an id below what this master sent to it, and what it can
have had before. (The default plane knows no ids. Its first reports do not count for puts that wait already.)
Learners and replicas outside of the set never count for puts: what only they hold may be lost with the
master."""

from __future__ import annotations

from typing import Final

import trio

from trioha.broker_status import MemberStatus
from trioha.ha.group_commit import Commit, GroupCommitSettings
from trioha.ha.meter import LagClock
from trioha.ha.sync_state_set import SyncStateSet
from trioha.watermark import Watermark

IDS_MAX: Final = 1024
"""Broker ids whose sent offsets are kept after their connections have ended."""


class SetReplicas:
    """The connected replicas of a master in controller mode, by broker id (`ConnectedReplicas`)."""

    def __init__(self, sync_state_set: SyncStateSet, *, term_start_offset: int) -> None:
        """`term_start_offset`: the log's end when the node became master. What follows comes from here
        only."""
        self.set = sync_state_set
        self._term_start_offset = term_start_offset
        self._ids: dict[int, int] = {}
        """Broker ids of connections that have handshaken."""
        self._sent: dict[int, int] = {}
        """By broker id: end of what was sent to it on connections that have ended."""

    def connected(self, connection_id: int, *, broker_id: int, is_learner: bool) -> None:
        """A connection's handshake has come. An older connection of the id no longer counts."""
        self._ids[connection_id] = broker_id
        self.set.connected(
            broker_id, connection_id=connection_id, is_learner=is_learner, now_s=trio.current_time()
        )

    def bound(self, broker_id: int) -> int:
        """How much a new connection of a replica may report: what this master sent to it, or what it may have
        had before."""
        return max(self._term_start_offset, self._sent.get(broker_id, 0))

    def ended(self, connection_id: int, *, sent_offset: int) -> None:
        """A connection has ended, or another has taken its place; everything before `sent_offset` was
        sent."""
        broker_id = self._ids.get(connection_id)
        if broker_id is not None and sent_offset > self.bound(broker_id):
            self._sent[broker_id] = sent_offset
            if len(self._sent) > IDS_MAX:
                connected = set(self._ids.values()) | self.set.required
                for one in [one for one in self._sent if one not in connected][: IDS_MAX // 2]:
                    del self._sent[one]

    def acknowledge(self, connection_id: int, *, ack_offset: int, lag_clock: LagClock, now_s: float) -> None:
        """The connection's replica holds everything before `ack_offset`. `lag_clock` is the connection's."""
        self.set.acknowledged(
            self._ids[connection_id],
            ack_offset,
            connection_id=connection_id,
            lag_clock=lag_clock,
            now_s=now_s,
        )

    def forget(self, connection_id: int) -> None:
        """The connection has ended; nothing happens if it never shook hands."""
        broker_id = self._ids.pop(connection_id, None)
        if broker_id is not None:
            self.set.disconnected(broker_id, connection_id=connection_id, now_s=trio.current_time())

    def members(self, log_end: int) -> tuple[MemberStatus, ...]:
        """The master, the replicas of its set and those that are connected, by id, at the log's end
        `log_end`."""
        sync_state_set = self.set
        acks = sync_state_set.acks | {sync_state_set.own_id: log_end}
        return tuple(
            MemberStatus(
                broker_id=broker_id,
                in_set=broker_id in sync_state_set.members,
                is_required=broker_id in sync_state_set.required,
                is_connected=broker_id in acks,
                ack_offset=acks.get(broker_id),
            )
            for broker_id in sorted(acks.keys() | sync_state_set.required)
        )

    def held_offset(self, end_offset: int) -> int:
        """End of what each replica that may be elected holds."""
        return end_offset if self.set.is_alone else self.set.confirm.offset

    def is_ack_overdue(self, connection_id: int) -> bool:
        """Whether an ack has been due for haMaxTimeSlaveNotCatchup."""
        broker_id = self._ids.get(connection_id)
        return broker_id is not None and self.set.is_ack_overdue(broker_id, trio.current_time())

    def is_eligible(self, connection_id: int, _end_offset: int) -> bool:
        """Whether the connection's replica is in the set, at any end offset."""
        return self._ids.get(connection_id) in self.set.members

    def eligible_count(self, _end_offset: int) -> int:
        """Number of connected replicas of the set, the master not counted."""
        return len(self.set.members & self.set.acks.keys())


class SetQuorum:
    """The copies that puts need of the sync-state set: see the module's docstring."""

    def __init__(self, settings: GroupCommitSettings, sync_state_set: SyncStateSet) -> None:
        """Of `settings`, `copies_needed` is inSyncReplicas less one, and `lowers_need` means nothing."""
        self._settings = settings
        self._set = sync_state_set
        self.waits = settings.copies_needed > 0 or settings.all_in_sync

    def in_sync_count(self, _max_offset: int) -> int:
        """As `Quorum` (docs/protocol/ha.md#number-of-copies)."""
        return self._set.size - 1

    def begin(self, _end_offset: int, _now_s: float) -> tuple[int, Watermark | None]:
        """As `Quorum`. Replicas that join are waited for, too, although they are not required yet."""
        if self._settings.all_in_sync:
            return len(self._set.required) - 1, None if self._set.is_alone else self._set.confirm
        need = self._settings.copies_needed
        return need, self._set.copies(need) if need else None

    def note(self, commit: Commit, now_s: float) -> None:
        """As `Quorum`. Acks of an id count from its first report on, for all puts that wait."""

    def marks(self) -> list[Watermark]:
        """As `Quorum`."""
        return self._set.marks()

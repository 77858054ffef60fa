"""A second opinion on what a master's replicas have acknowledged, kept from its events."""

from __future__ import annotations

import math

import trio
from attrs import define, field

from trioha.ha.group_commit import GroupCommitSettings


@define
class _Ack:
    replica: str
    claim_offset: int
    """The first report."""
    offset: int
    has_acked: bool
    seen_offset: int
    """The log's end when it was last sent bytes, or came."""
    unacked_since_s: float
    """Since when it has owed an acknowledgement, infinity if it owes none."""


@define
class AckModel:
    """Acknowledged offsets by connection and its replica, of one life of the master."""

    gap_bytes_max: int
    _acks: dict[int, _Ack] = field(factory=dict)

    def acknowledge(
        self, connection: int, *, replica: str, offset: int, is_behind: bool, max_offset: int
    ) -> None:
        """A connection acknowledged; `is_behind`: with bytes left to send it."""
        ack = self._acks.get(connection)
        if ack is None:
            ack = _Ack(replica, offset, offset, not is_behind, max_offset, math.inf)
            self._acks[connection] = ack
        else:
            ack.offset, ack.has_acked = offset, True
        ack.unacked_since_s = trio.current_time() if offset < ack.seen_offset else math.inf

    def sent(self, connection: int, *, max_offset: int) -> None:
        """A connection was sent bytes of a log that ended at `max_offset`."""
        ack = self._acks[connection]
        ack.seen_offset = max(ack.seen_offset, max_offset)
        if math.isinf(ack.unacked_since_s) and ack.offset < ack.seen_offset:
            ack.unacked_since_s = trio.current_time()

    def forget(self, connection: int) -> None:
        self._acks.pop(connection, None)

    @property
    def connections(self) -> set[int]:
        return set(self._acks)

    def who_asked_for(self, offset: int) -> set[int]:
        """Connections whose first report was `offset` or less."""
        return {connection for connection, ack in self._acks.items() if ack.claim_offset <= offset}

    def by_replica(self, connections: set[int] | None = None) -> dict[str, int]:
        """The farthest acknowledgement of each replica, of those connections if given."""
        best: dict[str, int] = {}
        for connection, ack in self._acks.items():
            if connections is None or connection in connections:
                best[ack.replica] = max(ack.offset, best.get(ack.replica, -1))
        return best

    def _eligible(self, end_offset: int) -> list[_Ack]:
        """Those that a put may wait for: near enough, and not silent for 15 s while they lag."""
        now_s = trio.current_time()
        near = [ack for ack in self._acks.values() if end_offset - ack.offset < self.gap_bytes_max]
        return [ack for ack in near if ack.offset >= end_offset or now_s - ack.unacked_since_s < 15]

    def eligible(self, end_offset: int) -> int:
        """How many replicas a put that ends there may wait for."""
        return len({ack.replica for ack in self._eligible(end_offset)})

    def in_sync(self, end_offset: int) -> int:
        """How many of them have taken bytes, or had all when they came: no observers."""
        return len({ack.replica for ack in self._eligible(end_offset) if ack.has_acked})

    def copies_at(self, end_offset: int, connections: set[int]) -> int:
        """How many replicas have acknowledged a put that ends there on one of the connections."""
        return sum(offset >= end_offset for offset in self.by_replica(connections).values())


def copies_needed(settings: GroupCommitSettings, *, in_sync: int) -> int:
    """How many replicas must hold a put (`trioha.ha.group_commit`), said once more."""
    need = settings.copies_needed
    if need == 0:
        return 0
    if settings.all_in_sync and in_sync > need:
        need = in_sync
    if settings.lowers_need and in_sync < need:
        need = max(in_sync, settings.copies_min)
    return need

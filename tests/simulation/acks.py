"""A second opinion on what a master's replicas have acknowledged, kept from its events."""

from __future__ import annotations

from attrs import define, field

from trioha.ha.group_commit import GroupCommitSettings


@define
class _Ack:
    replica: str
    claim_offset: int
    """The first report."""
    offset: int


@define
class AckModel:
    """Acknowledged offsets by connection and the replica behind it, of one life of the master."""

    gap_bytes_max: int
    _acks: dict[int, _Ack] = field(factory=dict)

    def acknowledge(self, connection: int, *, replica: str, offset: int) -> None:
        """A connection acknowledged."""
        ack = self._acks.setdefault(connection, _Ack(replica, offset, offset))
        ack.offset = offset

    def forget(self, connection: int) -> None:
        """A connection ended."""
        self._acks.pop(connection, None)

    @property
    def connections(self) -> set[int]:
        """Those that have acknowledged."""
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

    def eligible(self, end_offset: int) -> int:
        """How many replicas count for a put that ends there."""
        return sum(end_offset - offset < self.gap_bytes_max for offset in self.by_replica().values())

    def copies_at(self, end_offset: int, connections: set[int]) -> int:
        """How many replicas have acknowledged a put that ends there on one of the connections."""
        return sum(offset >= end_offset for offset in self.by_replica(connections).values())


def copies_needed(settings: GroupCommitSettings, *, eligible: int) -> int:
    """How many replicas must hold a put (design section 4), said once more."""
    need = settings.copies_needed
    if need == 0:
        return 0
    if settings.all_in_sync and eligible > need:
        need = eligible
    if settings.lowers_need and eligible < need:
        need = max(eligible, settings.copies_min)
    return need

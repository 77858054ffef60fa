"""A second opinion on what a master's replicas have acknowledged, kept from its events."""

from __future__ import annotations

from attrs import define, field

from trioha.ha.group_commit import GroupCommitSettings


@define
class AckModel:
    """Acknowledged offsets by connection and the replica behind it, of one life of the master."""

    gap_bytes_max: int
    _acks: dict[int, tuple[str, int]] = field(factory=dict)

    def acknowledge(self, connection: int, *, replica: str, offset: int) -> None:
        """A connection acknowledged."""
        self._acks[connection] = (replica, offset)

    def forget(self, connection: int) -> None:
        """A connection ended."""
        self._acks.pop(connection, None)

    def is_new(self, connection: int) -> bool:
        """Whether the connection has acknowledged nothing yet."""
        return connection not in self._acks

    def by_replica(self) -> dict[str, int]:
        """The farthest acknowledgement of each replica."""
        best: dict[str, int] = {}
        for replica, offset in self._acks.values():
            best[replica] = max(offset, best.get(replica, -1))
        return best

    def eligible(self, end_offset: int) -> int:
        """How many replicas count for a put that ends there."""
        return sum(end_offset - offset < self.gap_bytes_max for offset in self.by_replica().values())

    def copies_at(self, end_offset: int) -> int:
        """How many replicas have acknowledged a put that ends there."""
        return sum(offset >= end_offset for offset in self.by_replica().values())


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

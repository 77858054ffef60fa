"""What a master knows of its replicas: who acknowledged what, and who may release a producer.

Replicas are counted, not connections: one that connects twice is one copy (spec ha 4.2 shows RocketMQ
counting it as two). An acknowledgement belongs to its connection and is forgotten with it.
"""

from __future__ import annotations

from attrs import define

from trioha.watermark import ReplicatedWatermarks, Watermark


@define
class _Holder:
    """One connection's part in a replica."""

    replica: str
    ack_offset: int


class Replicas:
    """Acknowledged offsets of the replicas that are connected and have reported."""

    def __init__(self, *, gap_bytes_max: int) -> None:
        """`gap_bytes_max` is haMaxGapNotInSync (haSlaveFallbehindMax): a slave this far behind is out."""
        self._gap_bytes_max = gap_bytes_max
        self._holders: dict[int, _Holder] = {}
        self._replicated = ReplicatedWatermarks()

    def acknowledge(self, connection_id: int, *, replica: str, ack_offset: int) -> None:
        """The replica behind this connection holds the log up to `ack_offset`."""
        holder = self._holders.get(connection_id)
        if holder is None:
            self._holders[connection_id] = _Holder(replica, ack_offset)
        else:
            holder.ack_offset = ack_offset
        self._replicated.acknowledge(replica, self._ack_of(replica))

    def forget(self, connection_id: int) -> None:
        """The connection is gone; nothing happens if it never reported."""
        holder = self._holders.pop(connection_id, None)
        if holder is None:
            return
        if any(other.replica == holder.replica for other in self._holders.values()):
            self._replicated.acknowledge(holder.replica, self._ack_of(holder.replica))
        else:
            self._replicated.forget(holder.replica)

    def _ack_of(self, replica: str) -> int:
        holders = self._holders.values()
        return max(holder.ack_offset for holder in holders if holder.replica == replica)

    def copies(self, k: int) -> Watermark:
        """The offset that `k` replicas hold, the master not counted."""
        return self._replicated.copies(k)

    def is_in_sync(self, *, ack_offset: int, end_offset: int) -> bool:
        """Whether a replica with this ack counts for a put that ends at `end_offset` (strictly below)."""
        return end_offset - ack_offset < self._gap_bytes_max

    def eligible_count(self, end_offset: int) -> int:
        """How many distinct replicas have reported and count for a put that ends at `end_offset`."""
        return len(
            {
                holder.replica
                for holder in self._holders.values()
                if self.is_in_sync(ack_offset=holder.ack_offset, end_offset=end_offset)
            }
        )

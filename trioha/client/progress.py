"""How far a consumer is in one queue.

```
        committable            next
            |                    |
 done ......+--- delivered ------+...... not pulled
            ^ first that is not acknowledged
```

Messages are delivered in order and acknowledged in any order. The offset that may be committed is that of the
first message that is not acknowledged, so a consumer that continues there misses none.
"""

from __future__ import annotations

from trioha.errors import LocalProtocolError


class QueueProgress:
    """Offsets of one queue."""

    __slots__ = ("_unacknowledged", "committed_offset", "next_offset", "unacknowledged_bytes")

    def __init__(self, start_offset: int) -> None:
        self.next_offset = start_offset
        """Queue offset to pull from next. Moved by `deliver` and `skip_to`."""
        self.committed_offset: int | None = None
        """Offset that the broker was last given, by the owner of this object."""
        self._unacknowledged: dict[int, int] = {}
        """Bytes of delivered messages by queue offset, in order. Invariant: each is below `next_offset`."""
        self.unacknowledged_bytes = 0
        """Their sum."""

    @property
    def committable_offset(self) -> int:
        """Offset that may be committed: all messages before it are acknowledged or were not wanted."""
        return next(iter(self._unacknowledged), self.next_offset)

    @property
    def unacknowledged(self) -> int:
        """Number of delivered messages that are not acknowledged."""
        return len(self._unacknowledged)

    def deliver(self, queue_offset: int, size_bytes: int) -> None:
        """Note a message that is handed to the application; offsets must rise."""
        if queue_offset < self.next_offset:
            raise LocalProtocolError(f"message {queue_offset} is before {self.next_offset}")
        self._unacknowledged[queue_offset] = size_bytes
        self.unacknowledged_bytes += size_bytes
        self.next_offset = queue_offset + 1

    def skip_to(self, next_offset: int) -> None:
        """Continue at `next_offset`: what is before it was delivered or is not wanted.

        May go back, where the broker has fewer messages than before: those from there on will be delivered
        again, and an acknowledgement of their first delivery does not count.
        """
        if next_offset < self.next_offset:
            for queue_offset in [offset for offset in self._unacknowledged if offset >= next_offset]:
                self.acknowledge(queue_offset)
        self.next_offset = next_offset

    def acknowledge(self, queue_offset: int) -> int:
        """Note that a message was handled; returns its bytes, 0 if it was already or was not delivered."""
        size_bytes = self._unacknowledged.pop(queue_offset, 0)
        self.unacknowledged_bytes -= size_bytes
        return size_bytes

"""UNIQ_KEY, the message id of a producer (docs/protocol/store.md#ids-and-hashes).

| bytes | meaning |
|---|---|
| 4 or 16 | the producer's IP |
| 2 | process id, low bits |
| 4 | in Java the class loader's hash; distinguishes producers of one process |
| 4 | ms since the start of the month |
| 2 | counter, which wraps |

All big-endian, as upper-case hex: 32 characters, or 56 with an IPv6 address.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from struct import Struct

_FIXED = Struct(">HI")
_MOVING = Struct(">IH")


class UniqueKeys:
    """Makes the keys of one producer."""

    def __init__(self, *, ip: bytes, pid: int, salt: int) -> None:
        assert len(ip) in {4, 16}, f"an IP has 4 or 16 bytes, not {len(ip)}"
        self._prefix = (ip + _FIXED.pack(pid & 0xFFFF, salt & 0xFFFFFFFF)).hex().upper()
        self._counter = count()
        self._month_start_ms = 0
        self._next_month_ms = 0

    def next_key(self, now_ms: int) -> str:
        """The key of a message created at `now_ms` (wall clock, ms since 1970)."""
        if not self._month_start_ms <= now_ms < self._next_month_ms:
            self._find_month(now_ms)
        moving = _MOVING.pack(now_ms - self._month_start_ms, next(self._counter) & 0xFFFF)
        return self._prefix + moving.hex().upper()

    def _find_month(self, now_ms: int) -> None:
        month = datetime.fromtimestamp(now_ms / 1000, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        self._month_start_ms = int(month.timestamp()) * 1000
        self._next_month_ms = int(following.timestamp()) * 1000

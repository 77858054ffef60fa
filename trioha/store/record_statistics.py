"""Statistics of a stretch of the log, collected while its records are checked."""

from __future__ import annotations

from struct import Struct
from typing import Final

from trioha.store.record_layout import (
    BODY_AT_V4,
    HOSTS_V6,
    MAGIC_V1,
    scan_records,
    store_timestamp_ms,
    topic_of,
)

_COMMON: Final = Struct(">iI28xi16xq20xi").unpack_from
"""totalSize, magic, sysFlag, storeTimestamp and bodyLength of a record whose hosts are IPv4."""


class RecordStatistics:
    """Number, store timestamps and topics of the records that `pass_records` has passed."""

    def __init__(self, *, topics_max: int) -> None:
        self._topics_max = topics_max
        self._topics: set[bytes] = set()
        self.records = 0
        """Records passed."""
        self.store_times_ms = (0, 0)
        """Least and greatest store timestamp; zeros without records."""

    @property
    def topics(self) -> set[bytes] | None:
        """Topics of the records; None if they are more than `topics_max`."""
        return self._topics if len(self._topics) <= self._topics_max else None

    def pass_records(self, data: bytes, *, at: int, shift: int) -> int:
        """Check records from `data[at]` on; the one at `at` must name the physical offset `at + shift`.

        Returns the index of the first bytes that are not a whole valid record.
        """
        end = scan_records(memoryview(data), at, len(data), at + shift).at
        while at < end:
            size, magic, sys_flag, time_ms, body_bytes = _COMMON(data, at)
            if magic == MAGIC_V1 and not sys_flag & HOSTS_V6:
                topic_at = at + BODY_AT_V4 + body_bytes + 1
                topic = data[topic_at : topic_at + data[topic_at - 1]]
            else:
                time_ms, topic = store_timestamp_ms(data, at), topic_of(data, at)
            first_ms, last_ms = self.store_times_ms if self.records else (time_ms, time_ms)
            self.store_times_ms = (min(first_ms, time_ms), max(last_ms, time_ms))
            if len(self._topics) <= self._topics_max:
                self._topics.add(topic)
            self.records += 1
            at += size
        return end

"""Statistics of a stretch of the log, collected while its records are checked."""

from __future__ import annotations

from isal.isal_zlib import crc32

from trioha.store import compiled
from trioha.store.record_layout import check_record, store_timestamp_ms, topic_of


class RecordStatistics:
    """Number, store timestamps and topics of the records that `pass_records` has passed."""

    def __init__(self, *, topics_max: int) -> None:
        self._topics_max = topics_max
        self._records = 0
        self._times_ms: tuple[int, int] | None = None
        self._topics: set[bytes] = set()
        self._compiled = compiled.kernel.Statistics(crc32, topics_max) if compiled.IS_COMPILED else None

    @property
    def records(self) -> int:
        """Records passed."""
        return self._records + (0 if self._compiled is None else self._compiled.records)

    @property
    def store_times_ms(self) -> tuple[int, int]:
        """Least and greatest store timestamp; zeros without records."""
        spans = [] if self._times_ms is None else [self._times_ms]
        if self._compiled is not None and self._compiled.records:
            spans.append((self._compiled.min_store_ms, self._compiled.max_store_ms))
        if not spans:
            return 0, 0
        return min(first for first, _ in spans), max(last for _, last in spans)

    @property
    def topics(self) -> set[bytes] | None:
        """Topics of the records; None if they are more than `topics_max`."""
        topics = self._topics if self._compiled is None else self._topics | self._compiled.topics
        return topics if len(topics) <= self._topics_max else None

    def pass_records(self, data: bytes, *, at: int, shift: int) -> int:
        """Check records from `data[at]` on; the one at `at` must name the physical offset `at + shift`.

        Returns the index of the first bytes that are not a whole valid record.
        """
        while True:
            if self._compiled is not None:
                at = self._compiled.walk(data, at, shift)
            size = check_record(data, at, len(data), at + shift)
            if size < 0:
                return at
            self._records += 1
            time_ms = store_timestamp_ms(data, at)
            first_ms, last_ms = self._times_ms or (time_ms, time_ms)
            self._times_ms = (min(first_ms, time_ms), max(last_ms, time_ms))
            if len(self._topics) <= self._topics_max:
                self._topics.add(topic_of(data, at))
            at += size

"""Statistics of a stretch of the log, collected while its records are checked."""

from __future__ import annotations

from isal.isal_zlib import crc32

from trioha.numbers import I64
from trioha.store import compiled_records
from trioha.store.record_layout import ScanEnd, scan_records, store_timestamp_ms, topic_of


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

    def pass_records(self, data: bytes, *, at: int, shift: int) -> ScanEnd:
        """Check records from `data[at]` on; the one at `at` must name the physical offset `at + shift`.

        Returns where they end, and why; the numbers of the records in it are not those of all.
        """
        end, topics = len(data), self._topics
        if end + shift <= I64.high:
            at, records, *times_ms = compiled_records.describe_records(
                data, at, shift, topics, self._topics_max, crc32
            )
            if records:
                self._note(records, *times_ms)

        # A record that is not a common one, and those after it.
        def note(at: int, _size: int) -> None:
            time_ms = store_timestamp_ms(view, at)
            self._note(1, time_ms, time_ms)
            if len(topics) <= self._topics_max:
                topics.add(topic_of(view, at))

        view = memoryview(data)
        return scan_records(view, at, end, at + shift, on_record=note)

    def _note(self, records: int, least_ms: int, greatest_ms: int) -> None:
        before = self.store_times_ms if self.records else (least_ms, greatest_ms)
        self.store_times_ms = (min(before[0], least_ms), max(before[1], greatest_ms))
        self.records += records

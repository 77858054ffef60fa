"""What a master in controller mode may send to one slave: the rules of `SlaveProgress`, with epochs.

| rule | here | in the default plane |
|---|---|---|
| report 0 starts at | the first file, or the last one with syncFromLastFile | the last file |
| a first report is | at most what that broker id was sent or may have had before | at most the log's end |
| a frame's body ends | at a file's end, or at its epoch's end | at a file's end |
| bytes of no epoch | end the connection: no slave could tell them from another log's | are sent |

RocketMQ's master names the next epoch in the frame that reaches an epoch's end. Here each frame names its
own: a slave appends an epoch to its own when the name changes, and so gets each of them with its first byte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trioha.ha.autoswitch.frames import BODY_BYTES_MAX
from trioha.ha.frames import OFFSET_END
from trioha.ha.settings import HaSettings
from trioha.ha.slave_progress import Report, SlaveProgress
from trioha.recording.events import CloseReason
from trioha.store.epochs import EpochTable


class EpochRange(NamedTuple):
    """Where in the log the bytes of an epoch are."""

    epoch: int
    start_offset: int
    end_offset: int
    """`OFFSET_END` of the last epoch."""


class EpochCursor:
    """Finds the epoch of a connection's next byte. The last one found is kept: most frames are of the
    same."""

    __slots__ = ("_epochs", "_range", "_table")

    def __init__(self, epochs: Callable[[], EpochTable]) -> None:
        """`epochs` returns the log's table as of now."""
        self._epochs = epochs
        self._table: EpochTable | None = None
        self._range = EpochRange(-1, 0, 0)

    def at(self, offset: int) -> EpochRange | None:
        """The epoch that the byte at `offset` belongs to, or will; None before the first one."""
        table = self._epochs()
        found = self._range
        if table is self._table and found.start_offset <= offset < found.end_offset:
            return found
        end_offset = OFFSET_END
        for entry in reversed(table.entries):
            if entry.start_offset <= offset:
                self._table = table
                self._range = found = EpochRange(entry.epoch, entry.start_offset, end_offset)
                return found
            end_offset = entry.start_offset
        return None


class EpochProgress(SlaveProgress):
    """The state of one connection at its master, with epochs."""

    __slots__ = ("_bound_offset", "_is_from_last_file", "cursor")

    def __init__(
        self, settings: HaSettings, *, file_bytes: int, now_s: float, epochs: Callable[[], EpochTable]
    ) -> None:
        super().__init__(settings, file_bytes=file_bytes, now_s=now_s)
        self.cursor = EpochCursor(epochs)
        """The epochs of the log."""
        self._is_from_last_file = False
        self._bound_offset = 0

    def handshaken(self, *, is_from_last_file: bool, bound_offset: int, now_s: float) -> None:
        """The slave's handshake is answered; its first report must not be beyond `bound_offset`.

        A RocketMQ slave sends its first report with its first heartbeat, 5 s later.
        """
        self._is_from_last_file = is_from_last_file
        self._bound_offset = bound_offset
        self._request_deadline_s = now_s + max(
            self._settings.housekeeping_interval_s, self._settings.first_report_timeout_s
        )

    def receive_request(self, offset: int, *, min_offset: int, max_offset: int) -> Report:
        """As of `SlaveProgress`; see the table of this module."""
        report = super().receive_request(offset, min_offset=min_offset, max_offset=max_offset)
        if report is not Report.REQUEST:
            return report
        if offset == 0:
            last_file_offset = max_offset - max_offset % self._file_bytes
            start_offset = max(min_offset, last_file_offset) if self._is_from_last_file else min_offset
            self.sent_offset = self.start_offset = start_offset
        elif offset > max(self._bound_offset, 1):
            return self._refuse(CloseReason.ACK_BEYOND_SENT)
        if self.cursor.at(self.start_offset) is None:
            return self._refuse(CloseReason.NO_EPOCH)
        return report

    def next_body_bytes(self, *, min_offset: int, max_offset: int) -> int:
        """As of `SlaveProgress`, within an epoch."""
        body_bytes = super().next_body_bytes(min_offset=min_offset, max_offset=max_offset)
        if not body_bytes:
            return 0
        epoch = self.cursor.at(self.sent_offset)
        if epoch is None:
            self.end(CloseReason.NO_EPOCH)
            return 0
        return min(body_bytes, epoch.end_offset - self.sent_offset, BODY_BYTES_MAX)

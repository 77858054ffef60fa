"""What a master knows of one slave, and may send to it: the rules of an HA connection, without I/O.

Theory of operation (docs/protocol/ha.md#where-a-master-starts, docs/protocol/ha.md#acknowledgements; compare
`tracker/progress.go` of etcd's raft). A slave reports offsets. The first report that is not -1 is its
request. In HANDSHAKE a report means:

| report | meaning |
|---|---|
| -1 | PENDING: the slave has no offset yet |
| any other negative one, or from `OFFSET_END` on | REFUSED, BAD_SIZE: the peer is not a slave |
| beyond the log's end, but not 1 to an empty log | REFUSED, REQUEST_ABOVE_MAX |
| above 0 and before the log's first byte | REFUSED, REQUEST_BELOW_MIN |
| 0 | REQUEST: sending starts at the log's last file |
| any other one | REQUEST: sending starts there |

In TRANSFER an ack is a promise about bytes that were sent:

| report | meaning |
|---|---|
| below `ack_offset` | REFUSED, ACK_WENT_BACK |
| beyond `sent_offset` | REFUSED, ACK_BEYOND_SENT |
| `ack_offset` | HEARTBEAT |
| between the two | ACK |

A refusal ends the connection, as do `end`, `expire` and bytes that were deleted before they were sent. The
first reason stays. An ended connection ignores reports and sends nothing. SHUTDOWN follows when its tasks
have ended (`close`).

Offsets:

- `request_offset`: the request; -1 before it. Set once.
- `start_offset`: where sending started; -1 before the request. Set once.
- `sent_offset`: everything before it was handed to the socket, or the slave had it already; -1 before the
  request. Only `sent` moves it, only forward.
- `ack_offset`: the slave's last report; -1 before the first. Only `receive_report` moves it, only forward,
  never beyond `sent_offset`.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from typing import Final

from trioha.ha.frames import OFFSET_END
from trioha.ha.settings import HaSettings
from trioha.recording.events import CloseReason, HaState


class Report(Enum):
    """What a report of a slave means."""

    PENDING = auto()
    """Not a request yet."""
    REQUEST = auto()
    """The slave asks for the log, and holds everything before that offset."""
    ACK = auto()
    """The slave holds more than before."""
    HEARTBEAT = auto()
    """The slave holds what it has acknowledged already."""
    REFUSED = auto()
    """The report breaks the protocol and has ended the connection."""
    IGNORED = auto()
    """The connection had ended before."""


# To look up a member of an enum costs as much as to compare the offsets.
ACK: Final = Report.ACK
HEARTBEAT: Final = Report.HEARTBEAT
REFUSED: Final = Report.REFUSED
IGNORED: Final = Report.IGNORED


class SlaveProgress:
    """The state of one connection at its master. Times are seconds of the caller's clock."""

    __slots__ = (
        "_batch_bytes",
        "_file_bytes",
        "_request_deadline_s",
        "_settings",
        "ack_offset",
        "close_reason",
        "is_open",
        "is_slave",
        "last_received_s",
        "rejection_offset",
        "request_offset",
        "sent_offset",
        "start_offset",
        "state",
    )

    def __init__(self, settings: HaSettings, *, file_bytes: int, now_s: float) -> None:
        """The connection opens at `now_s`; `file_bytes` is the length of the log's files."""
        self._settings = settings
        self._file_bytes = file_bytes
        self._batch_bytes = settings.transfer_batch_bytes
        self._request_deadline_s = now_s + settings.first_report_timeout_s
        self.last_received_s = now_s
        """When the peer's last bytes came."""
        self.state = HaState.HANDSHAKE
        self.is_slave = False
        """Whether a request with a possible offset came, accepted or not. Before that the peer is unknown."""
        self.is_open = True
        self.close_reason = CloseReason.NONE
        """Why the connection ends; NONE while it is open."""
        self.rejection_offset = -1
        """End or start of the log, for a slave whose request was outside of it; else -1."""
        self.request_offset = -1
        self.start_offset = -1
        self.sent_offset = -1
        self.ack_offset = -1

    # -- reports -------------------------------------------------------------------------------------------

    def receive_request(self, offset: int, *, min_offset: int, max_offset: int) -> Report:
        """Handle a report in HANDSHAKE while the log holds `min_offset` to `max_offset`.

        After a REQUEST give the same offset to `receive_report`: it also is the first ack.
        """
        if not self.is_open:
            return IGNORED
        if offset == -1:
            return Report.PENDING
        if not 0 <= offset < OFFSET_END:
            return self._refuse(CloseReason.BAD_SIZE)
        self.is_slave = True
        if offset > max_offset and not (offset == 1 and max_offset == 0):
            # A slave that wants all history asks from 1, of an empty log too.
            self.rejection_offset = max_offset
            return self._refuse(CloseReason.REQUEST_ABOVE_MAX)
        if 0 < offset < min_offset:
            self.rejection_offset = min_offset
            return self._refuse(CloseReason.REQUEST_BELOW_MIN)
        self.request_offset = offset
        self.sent_offset = self.start_offset = offset or max_offset - max_offset % self._file_bytes
        self.state = HaState.TRANSFER
        self._request_deadline_s = math.inf
        return Report.REQUEST

    def receive_report(self, offset: int) -> Report:
        """Handle a report in TRANSFER."""
        if not self.is_open:
            return IGNORED
        ack_offset = self.ack_offset
        if offset == ack_offset:
            return HEARTBEAT
        if offset < ack_offset:
            return self._refuse(CloseReason.ACK_WENT_BACK)
        if offset > self.sent_offset:
            return self._refuse(CloseReason.ACK_BEYOND_SENT)
        self.ack_offset = offset
        return ACK

    def _refuse(self, reason: CloseReason) -> Report:
        self.end(reason)
        return REFUSED

    # -- frames --------------------------------------------------------------------------------------------

    def next_body_bytes(self, *, min_offset: int, max_offset: int) -> int:
        """Longest body of the next frame; 0 if there is nothing to send.

        The body doubles while the slave lags far, since a slave catches up at full speed with long frames
        only, and is short again for a slave in step, whose acks should come soon. Bytes that were deleted
        before they were sent end the connection.
        """
        unsent_bytes = max_offset - self.sent_offset
        if unsent_bytes <= 0 or not self.is_open:
            return 0
        if self.sent_offset < min_offset:
            self.end(CloseReason.REQUEST_BELOW_MIN)
            return 0
        settings = self._settings
        if unsent_bytes <= settings.transfer_batch_bytes:
            self._batch_bytes = settings.transfer_batch_bytes
        elif unsent_bytes > 2 * self._batch_bytes:
            self._batch_bytes = max(
                settings.transfer_batch_bytes, min(2 * self._batch_bytes, settings.transfer_batch_bytes_max)
            )
        return self._batch_bytes

    def sent(self, body_bytes: int) -> None:
        """The next `body_bytes` go out. Call this before the first of them leaves: an ack may be fast."""
        self.sent_offset += body_bytes

    # -- time and end --------------------------------------------------------------------------------------

    def received(self, now_s: float) -> float:
        """A report came from the peer; returns when `expire` is due without another one.

        Before the request `expire` is due after trioha.haFirstReportTimeout at the latest.
        """
        self.last_received_s = now_s
        return min(now_s + self._settings.housekeeping_interval_s, self._request_deadline_s)

    def expire(self, now_s: float) -> None:
        """End the connection: the peer was silent too long, or has not requested anything in time."""
        is_late = now_s >= self._request_deadline_s
        self.end(CloseReason.NO_REQUEST if is_late else CloseReason.HOUSEKEEPING)

    def end(self, reason: CloseReason) -> None:
        """Nothing is sent or accepted from now on; the first reason stays."""
        if self.is_open:
            self.is_open = False
            self.close_reason = reason

    def close(self) -> None:
        """Enter SHUTDOWN: the tasks of the connection have ended."""
        self.end(CloseReason.SHUTDOWN)
        self.state = HaState.SHUTDOWN

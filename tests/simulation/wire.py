"""What goes over one link, checked as it is sent: frames against the master's log, reports for the slave's.

The checks read the wire with a few lines of their own, so that a fault in the nodes' codecs cannot hide.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from tests.simulation.history import History

_HEADER = Struct(">qi")
_REPORT = Struct(">q")

OnViolation = Callable[[str], None]


class FrameReader:
    """Follows the frames of a link, cut anywhere."""

    def __init__(self) -> None:
        self.end_offset: int | None = None
        """Behind the last byte of body that went by; None before the first frame with a body."""
        self.expected_offset: int | None = None
        """Where the current or next body goes on; None before the first."""
        self._header = b""
        self._body_left_bytes = 0

    def feed(
        self,
        data: bytes,
        *,
        on_frame: Callable[[int, int], None] = lambda offset, size: None,
        on_body: Callable[[int, bytes], None] = lambda offset, body: None,
    ) -> None:
        """Take the next bytes; `on_frame(offset, size)` at headers, `on_body(offset, bytes)` between."""
        while data:
            if self._body_left_bytes:
                body, data = data[: self._body_left_bytes], data[self._body_left_bytes :]
                self._body_left_bytes -= len(body)
                on_body(self.expected_offset, body)
                self.expected_offset += len(body)
                self.end_offset = self.expected_offset
                continue
            missing = _HEADER.size - len(self._header)
            self._header, data = self._header + data[:missing], data[missing:]
            if len(self._header) == _HEADER.size:
                offset, size = _HEADER.unpack(self._header)
                self._header = b""
                on_frame(offset, size)
                self._body_left_bytes = max(size, 0)
                if size > 0:
                    self.expected_offset = offset


class ReportReader:
    """Follows the reports of a link, cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """The reports that are complete now."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        return [offset for (offset,) in _REPORT.iter_unpack(data[:whole])]


class FrameCheck:
    """What a master sends: its own bytes, in order, no frame across a file's end."""

    def __init__(self, history: History, *, file_bytes: int, on_violation: OnViolation) -> None:
        self._history = history
        self._file_bytes = file_bytes
        self._fail = on_violation
        self._reader = FrameReader()
        self.named_offset = -1
        """Offset of the last heartbeat, if no byte of the log was sent yet; -1 before."""

    @property
    def sent_offset(self) -> int:
        """Behind the last byte of the log that was sent; -1 before the first."""
        return -1 if self._reader.end_offset is None else self._reader.end_offset

    def sent(self, data: bytes) -> None:
        """The master hands these bytes to the link."""
        self._reader.feed(data, on_frame=self._frame, on_body=self._body)

    def _frame(self, offset: int, size: int) -> None:
        expected = self._reader.expected_offset
        if size < 0 or offset < 0:
            self._fail(f"frame of {size} bytes at {offset}")
        if size and expected is not None and offset != expected:
            self._fail(f"frame at {offset}, the one before ended at {expected}")
        if offset % self._file_bytes + size > self._file_bytes:
            self._fail(f"frame of {size} bytes at {offset} crosses a file's end")
        if not size and self.sent_offset < 0:
            self.named_offset = offset

    def _body(self, offset: int, body: bytes) -> None:
        if not self._history.holds(offset, body):
            self._fail(f"{len(body)} bytes sent at {offset} are not the master's")

"""The default HA wire format (spec ha 2.1), all integers big-endian.

| direction | bytes | layout |
|---|---|---|
| slave to master, report | 8 | i64 the slave's max offset |
| master to slave, data | 12 + size | i64 offset, i32 size > 0, `size` bytes of commit log |
| master to slave, heartbeat | 12 | i64 next offset, i32 0 |

The first report is the request. There is no handshake, and nothing else on this wire.
"""

from __future__ import annotations

from struct import Struct

from attrs import frozen

from trioha.errors import LocalProtocolError, RemoteProtocolError

REPORT = Struct(">q")
REPORT_BYTES = 8
HEADER = Struct(">qi")
HEADER_BYTES = 12

BODY_BYTES_MAX = 4 * 1024 * 1024 - HEADER_BYTES
"""Longest body that fits a RocketMQ slave's 4 MiB buffer; a longer one would hang it (spec ha 2.3)."""


def encode_report(max_offset: int) -> bytes:
    """A slave's report or heartbeat."""
    return REPORT.pack(max_offset)


def encode_header(offset: int, body_bytes: int) -> bytes:
    """Header of a master's frame; 0 body bytes make it a heartbeat."""
    return HEADER.pack(offset, body_bytes)


class ReportDecoder:
    """A slave's reports, from bytes cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """The last report that is complete now, or None; of several fed together only the last counts."""
        buffer = self._rest + data if self._rest else data
        whole_bytes = len(buffer) - len(buffer) % REPORT_BYTES
        self._rest = buffer[whole_bytes:]
        if not whole_bytes:
            return None
        return int(REPORT.unpack_from(buffer, whole_bytes - REPORT_BYTES)[0])


@frozen
class FrameHeader:
    """Start of a master's frame; a heartbeat if `body_bytes` is 0."""

    offset: int
    body_bytes: int


@frozen
class BodyPart:
    """Some bytes of the current frame's body."""

    data: memoryview
    """A slice of what was fed: use it before the next `feed`."""
    is_last: bool
    """Whether the frame ends with it."""


class TransferDecoder:
    """A master's frames, from bytes cut anywhere, without copying their bodies.

    `feed` bytes, then ask `next_event` until it says None. Every header is checked before its body is
    waited for: after a RemoteProtocolError the connection is of no use any more.
    """

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._data = memoryview(b"")
        self._header = b""
        """First bytes of a header that is not complete."""
        self._body_left_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes; all events of the bytes before must have been taken."""
        if self._data:
            raise LocalProtocolError(f"{len(self._data)} bytes were fed before and not taken")
        self._data = memoryview(data)

    def next_event(self) -> FrameHeader | BodyPart | None:
        """The next header or piece of a body, None when more bytes are needed.

        Raises RemoteProtocolError for a negative offset or size, or a body longer than allowed.
        """
        data = self._data
        if not data:
            return None
        left_bytes = self._body_left_bytes
        if left_bytes:
            taken = min(left_bytes, len(data))
            self._data = data[taken:]
            self._body_left_bytes = left_bytes - taken
            return BodyPart(data[:taken], is_last=taken == left_bytes)
        missing = HEADER_BYTES - len(self._header)
        if len(data) < missing:
            self._header += bytes(data)
            self._data = memoryview(b"")
            return None
        offset, body_bytes = HEADER.unpack(self._header + bytes(data[:missing]))
        self._header = b""
        self._data = data[missing:]
        if offset < 0:
            raise RemoteProtocolError(f"frame at negative offset {offset}")
        if not 0 <= body_bytes <= self._body_bytes_max:
            raise RemoteProtocolError(
                f"frame of {body_bytes} bytes at offset {offset}, 0 to {self._body_bytes_max} are allowed"
            )
        self._body_left_bytes = body_bytes
        return FrameHeader(offset, body_bytes)

"""The default HA wire format (docs/protocol/ha.md#frames), all integers big-endian.

| direction | bytes | layout |
|---|---|---|
| slave to master, report | 8 | i64 the slave's max offset |
| master to slave, data | 12 + size | i64 offset, i32 size > 0, `size` bytes of commit log |
| master to slave, heartbeat | 12 | i64 next offset, i32 0 |

The first report is the request. The wire carries no handshake and nothing else.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from trioha.errors import RemoteProtocolError
from trioha.ha.bodies import BodyPart, FrameDecoder

REPORT = Struct(">q")
REPORT_BYTES = 8
HEADER = Struct(">qi")
HEADER_BYTES = 12

OFFSET_END = 1 << 56
"""Longer than any log (64 PiB). A first report from here on is not a slave's, but text or another protocol:
its first byte is not zero."""

BODY_BYTES_MAX = 4 * 1024 * 1024 - HEADER_BYTES
"""Longest body that fits the 4 MiB buffer of a RocketMQ slave, which hangs at a longer one
(docs/protocol/ha.md#what-a-slave-checks)."""


def encode_report(max_offset: int) -> bytes:
    """A slave's report or heartbeat."""
    return REPORT.pack(max_offset)


def encode_header(offset: int, body_bytes: int) -> bytes:
    """Header of a master's frame; 0 body bytes make it a heartbeat."""
    return HEADER.pack(offset, body_bytes)


class ReportDecoder:
    """Decodes a slave's reports from a stream that may be cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_between_reports(self) -> bool:
        """Whether no incomplete report is buffered."""
        return not self._rest

    def feed(self, data: bytes) -> int | None:
        """The last report that is complete now, or None; of several fed together only the last counts."""
        buffer = self._rest + data if self._rest else data
        whole_bytes = len(buffer) - len(buffer) % REPORT_BYTES
        self._rest = buffer[whole_bytes:]
        return int(REPORT.unpack_from(buffer, whole_bytes - REPORT_BYTES)[0]) if whole_bytes else None


class FrameHeader(NamedTuple):
    """Header of a master's frame; a heartbeat if `body_bytes` is 0. A tuple, since a GB has 30,000 frames."""

    offset: int
    body_bytes: int


class TransferDecoder(FrameDecoder[FrameHeader]):
    """Decodes the frames of a master of the default protocol."""

    _header_bytes = HEADER_BYTES

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX, joined_within_bytes: int = 0) -> None:
        """As of `FrameDecoder`."""
        super().__init__(body_bytes_max=body_bytes_max, joined_within_bytes=joined_within_bytes)

    def next_event(self) -> FrameHeader | BodyPart[FrameHeader] | None:
        """The next header or part of a body; None if more bytes are needed.

        Raises RemoteProtocolError for a negative offset or size, or a body longer than allowed.
        """
        if self._at == len(self._data):
            return None
        if self._body_left_bytes:
            return self._next_body_part()
        if not self._fill_partial(HEADER_BYTES):
            return None
        header = FrameHeader(*HEADER.unpack(self._partial))
        if header.offset < 0:
            raise RemoteProtocolError(f"frame at negative offset {header.offset}")
        return self._begin_frame(header)

    def _continuation(self, frame: FrameHeader, at: int) -> FrameHeader | None:
        header = FrameHeader(*HEADER.unpack_from(self._data, at))
        return header if header.offset == frame.offset + frame.body_bytes else None

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

from attrs import frozen

from trioha.errors import LocalProtocolError, RemoteProtocolError

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


@frozen
class BodyPart:
    """A part of a body, or of several joined ones."""

    data: memoryview
    """A slice of the fed buffer: use it before the next `feed`."""
    ended: tuple[FrameHeader, ...]
    """The frames that end in it: none, the current one, or also others whose bodies were joined to it."""


class TransferDecoder:
    """Decodes a master's frames from a stream that may be cut anywhere, without copying their bodies.

    `feed` bytes, then call `next_event` until it returns None. Each header is checked before its body
    arrives; after a RemoteProtocolError the connection cannot be used further.

    Bodies can be joined. A RocketMQ master sends frames of 32 KiB, so that a buffer of 1 MiB would cost 32
    appends. In a writable buffer, the bodies of frames that continue each other are moved together, over the
    headers between them, and returned as one part, as if the master had sent one long frame.
    """

    def __init__(self, *, body_bytes_max: int = BODY_BYTES_MAX, joined_within_bytes: int = 0) -> None:
        """Bodies are joined within files of `joined_within_bytes`; 0 joins none."""
        self._body_bytes_max = body_bytes_max
        self._joined_within_bytes = joined_within_bytes
        self._data = memoryview(b"")
        self._at = 0
        """Index of the first byte that is not decoded yet."""
        self._header = b""
        """First bytes of an incomplete header."""
        self._frame = FrameHeader(0, 0)
        """The current frame; `_body_left_bytes` of its body are to come."""
        self._body_left_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Decode `data` next; `next_event` must have returned None for the bytes before.

        Do not change `data` before it does so again. With `joined_within_bytes` a writable `data` is changed.
        """
        if self._at < len(self._data):
            raise LocalProtocolError(f"{len(self._data) - self._at} bytes of the last feed are left")
        self._data = memoryview(data)
        self._at = 0

    def lone_offset(self, data: memoryview) -> int:
        """Offset of the frame with a body that `data` is, from its first to its last byte; -1 for others.

        Nothing is decoded: feed `data`, or use its body, `data[HEADER_BYTES:]`.
        """
        body_bytes = len(data) - HEADER_BYTES
        if body_bytes <= 0 or self._header or self._body_left_bytes:
            return -1
        offset, named_bytes = HEADER.unpack_from(data)
        return int(offset) if named_bytes == body_bytes <= self._body_bytes_max else -1

    def next_event(self) -> FrameHeader | BodyPart | None:
        """The next header or part of a body; None if more bytes are needed.

        Raises RemoteProtocolError for a negative offset or size, or a body longer than allowed.
        """
        at = self._at
        left_bytes = len(self._data) - at
        if not left_bytes:
            return None
        if self._body_left_bytes:
            return self._next_body_part()
        missing = HEADER_BYTES - len(self._header)
        self._at = at + min(missing, left_bytes)
        self._header += bytes(self._data[at : self._at])
        if len(self._header) < HEADER_BYTES:
            return None
        offset, body_bytes = HEADER.unpack(self._header)
        self._header = b""
        if offset < 0:
            raise RemoteProtocolError(f"frame at negative offset {offset}")
        if not 0 <= body_bytes <= self._body_bytes_max:
            raise RemoteProtocolError(
                f"frame of {body_bytes} bytes at offset {offset}, 0 to {self._body_bytes_max} are allowed"
            )
        self._frame = FrameHeader(offset, body_bytes)
        self._body_left_bytes = body_bytes
        return self._frame

    def _next_body_part(self) -> BodyPart:
        """The buffered part of the current frame's body, and of those joined to it.

        The loop is kept short for the 30,000 frames of a RocketMQ master's GB.
        """
        data = self._data
        start = self._at
        end = len(data)
        at = stop = min(start + self._body_left_bytes, end)
        left_bytes = self._body_left_bytes - (stop - start)
        frame = self._frame
        ended = [] if left_bytes else [frame]
        file_bytes = 0 if left_bytes or data.readonly else self._joined_within_bytes
        next_offset = frame.offset + frame.body_bytes
        while file_bytes and end - at >= HEADER_BYTES:
            offset, body_bytes = HEADER.unpack_from(data, at)
            place = offset % file_bytes
            if (
                offset != next_offset
                or not 0 < body_bytes <= self._body_bytes_max
                or not 0 < place <= file_bytes - body_bytes
            ):
                # Not a continuation in the same file, or not a valid header: `next_event` decides.
                break
            next_offset += body_bytes
            at += HEADER_BYTES
            frame = FrameHeader(offset, body_bytes)
            if body_bytes > end - at:
                left_bytes = body_bytes - (end - at)
                body_bytes = end - at
                file_bytes = 0
            else:
                ended.append(frame)
            data[stop : stop + body_bytes] = data[at : at + body_bytes]
            stop += body_bytes
            at += body_bytes
        self._frame = frame
        self._body_left_bytes = left_bytes
        self._at = at
        return BodyPart(data[start:stop], ended=tuple(ended))

"""Decodes the frames of a master, in either protocol, without copying their bodies.

Bodies can be joined. A RocketMQ master sends frames of 32 KiB, so that a buffer of 1 MiB would cost 32
appends. In a writable buffer, the bodies of frames that continue each other are moved together, over the
headers between them, and returned as one part, as if the master had sent one long frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar

from attrs import frozen

from trioha.errors import LocalProtocolError, RemoteProtocolError


class Frame(Protocol):
    """Header of a received frame, in either protocol."""

    @property
    def offset(self) -> int:
        """Where the body begins in the log."""

    @property
    def body_bytes(self) -> int:
        """0 for a heartbeat."""


Header = TypeVar("Header", bound=Frame)


@frozen
class BodyPart(Generic[Header]):
    """A part of a body, or of several joined ones."""

    data: memoryview
    """A slice of the fed buffer: use it before the next `feed`."""
    ended: tuple[Header, ...]
    """The frames that end in it: none, the current one, or also others whose bodies were joined to it."""
    newest: Header
    """The last frame that it has bytes of."""


class FrameDecoder(ABC, Generic[Header]):
    """Decodes a master's frames from a stream that may be cut anywhere.

    `feed` bytes, then call `next_event` of the protocol's decoder until it returns None. Each header is
    checked before its body arrives; after a RemoteProtocolError the connection cannot be used further.
    """

    _header_bytes: ClassVar[int]

    def __init__(self, *, body_bytes_max: int, joined_within_bytes: int = 0) -> None:
        """Bodies are joined within files of `joined_within_bytes`; 0 joins none."""
        self._body_bytes_max = body_bytes_max
        self._joined_within_bytes = joined_within_bytes
        self._data = memoryview(b"")
        self._at = 0
        """Index of the first byte that is not decoded yet."""
        self._partial = bytearray()
        """First bytes of what is incomplete: a header, or a handshake."""
        self._frame: Header
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

    def _fill_partial(self, wanted_bytes: int) -> bool:
        """Move bytes to `_partial`; whether it has as many as are wanted."""
        at = self._at
        part = self._data[at : at + wanted_bytes - len(self._partial)]
        self._partial += part
        self._at = at + len(part)
        return len(self._partial) == wanted_bytes

    def _begin_frame(self, header: Header) -> Header:
        """Expect the body of `header`, which is returned. Raises RemoteProtocolError at a length that no
        master sends."""
        if not 0 <= header.body_bytes <= self._body_bytes_max:
            raise RemoteProtocolError(
                f"frame of {header.body_bytes} bytes at offset {header.offset}, 0 to {self._body_bytes_max} "
                "are allowed"
            )
        self._partial.clear()
        self._frame = header
        self._body_left_bytes = header.body_bytes
        return header

    @abstractmethod
    def _continuation(self, frame: Header, at: int) -> Header | None:
        """The header at index `at`, if its frame continues `frame`; its length is not checked yet."""

    def _next_body_part(self) -> BodyPart[Header]:
        """The buffered part of the current frame's body, and of those joined to it."""
        data = self._data
        start = self._at
        end = len(data)
        at = stop = min(start + self._body_left_bytes, end)
        left_bytes = self._body_left_bytes - (stop - start)
        frame = self._frame
        ended = [] if left_bytes else [frame]
        file_bytes = 0 if left_bytes or data.readonly else self._joined_within_bytes
        while file_bytes and end - at >= self._header_bytes:
            header = self._continuation(frame, at)
            if (
                header is None
                or not 0 < header.body_bytes <= self._body_bytes_max
                or not 0 < header.offset % file_bytes <= file_bytes - header.body_bytes
            ):
                # Not a continuation in the same file, or not a valid header: `next_event` decides.
                break
            at += self._header_bytes
            frame = header
            body_bytes = header.body_bytes
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
        return BodyPart(data[start:stop], tuple(ended), frame)

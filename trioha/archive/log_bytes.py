"""The bytes of log objects: compressed in frames, checked when they are read."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Final, cast

import zstandard

from trioha.archive.errors import ArchiveError
from trioha.archive.layout import FRAME_BYTES, LogObject
from trioha.archive.objects import ObjectFolder

LEVEL: Final = 1
"""Of zstd: the archive runs beside a broker, and level 3 takes half as much time again for some per cent."""
_READ_BYTES: Final = 1 << 20


def compress(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """One zstd frame for each piece of `FRAME_BYTES` of the log, the last one of the rest."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=False)
    for piece in pieces:
        assert len(piece) <= FRAME_BYTES, "a frame has at most FRAME_BYTES"
        yield compressor.compress(piece)


def compress_stream(pieces: Iterable[bytes], *, log_bytes: int) -> Iterator[bytes]:
    """The same frames of `log_bytes` bytes that come in smaller pieces, without holding a frame."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=False)
    left, room = log_bytes, 0
    for piece in pieces:
        view = memoryview(piece)
        while view:
            if not room:
                assert left, "as many bytes as were announced"
                room = min(FRAME_BYTES, left)
                frame = compressor.compressobj(size=room)
            part = view[:room]
            if data := frame.compress(part):
                yield data
            view = view[len(part) :]
            room -= len(part)
            left -= len(part)
            if not room:
                yield frame.flush()
    assert not left, "as many bytes as were announced"


def read_log_object(
    folder: ObjectFolder, one: LogObject, *, pieces: Iterator[bytes] | None = None
) -> Iterator[bytes]:
    """The bytes of the log that an object has, in pieces of some MiB, without holding all of them.

    `pieces` are those of the stored object, if the caller fetches them. The last piece comes only after size
    and CRC of the whole were found right: whoever uses pieces before must be ready to drop them. Raises
    ArchiveError.
    """
    crc32 = 0
    size = 0
    held = b""
    for piece in _plain(folder, one, folder.stream(one.key) if pieces is None else pieces):
        size += len(piece)
        if size > one.log_bytes:
            raise damaged(folder, one, f"has more than {one.log_bytes} bytes of the log")
        crc32 = zlib.crc32(piece, crc32)
        if held:
            yield held
        held = piece
    if size != one.log_bytes:
        raise damaged(folder, one, f"has {size} bytes of the log, {one.log_bytes} are listed")
    if crc32 != one.crc32:
        raise damaged(folder, one, f"has CRC {crc32:08x}, {one.crc32:08x} is listed")
    if held:
        yield held


def _plain(folder: ObjectFolder, one: LogObject, pieces: Iterator[bytes]) -> Iterator[bytes]:
    if one.codec == "none":
        yield from pieces
        return
    # Of a file, only `read` is used.
    file = cast("IO[bytes]", _Pieces(pieces))
    decompressor = zstandard.ZstdDecompressor(max_window_size=8 * FRAME_BYTES)
    try:
        with decompressor.stream_reader(file, read_across_frames=True) as reader:
            while piece := reader.read(_READ_BYTES):
                yield piece
    except zstandard.ZstdError as error:
        raise damaged(folder, one, f"cannot be decompressed: {error}") from error


class _Pieces:
    """A file of the pieces of a stream, as zstandard reads one."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        if size < 0:
            size = len(self._rest)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def damaged(folder: ObjectFolder, one: LogObject, reason: str) -> ArchiveError:
    """The error of a log object that is not what its statistics say."""
    return ArchiveError(reason, url=folder.url, key=one.key, hint="trioha verify checks the whole archive")

"""Bodies of messages as the application sent them (spec store 2.2)."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import pyarrow as pa

COMPRESSED: Final = 0x1
COMPRESSOR_MASK: Final = 0x700
BODY_BYTES_MAX: Final = 256 << 20
"""A body that grows beyond this is not believed: a few bytes can claim any length."""


class CompressorBits(IntEnum):
    """What the compressor bits of sysFlag say."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def decode_body(body: bytes, sys_flag: int, *, body_bytes_max: int = BODY_BYTES_MAX) -> bytes | None:
    """The body of a message, unpacked if sysFlag says that it is compressed (zlib, LZ4 or Zstandard).

    None if it cannot be: it is not what sysFlag says, cut short, or longer than `body_bytes_max`.
    """
    if not sys_flag & COMPRESSED:
        return body
    try:
        match sys_flag & COMPRESSOR_MASK:
            # Clients that are older than the choice say nothing.
            case 0 | CompressorBits.ZLIB:
                return _unzip(body, body_bytes_max)
            case CompressorBits.LZ4:
                return _stream(body, "lz4", body_bytes_max)
            case CompressorBits.ZSTD:
                return _stream(body, "zstd", body_bytes_max)
    except (zlib.error, pa.ArrowException, OSError):
        return None
    return None


def _unzip(body: bytes, body_bytes_max: int) -> bytes | None:
    unzip = zlib.decompressobj()
    plain = unzip.decompress(body, body_bytes_max)
    return plain if unzip.eof else None


def _stream(body: bytes, codec: str, body_bytes_max: int) -> bytes | None:
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        plain = stream.read(body_bytes_max + 1)
    return plain if len(plain) <= body_bytes_max else None

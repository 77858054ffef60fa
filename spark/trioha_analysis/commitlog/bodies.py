"""Decompression of message bodies (spec store 2.2)."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import pyarrow as pa

COMPRESSED: Final = 0x1
COMPRESSOR_MASK: Final = 0x700
BODY_BYTES_MAX: Final = 256 << 20
"""Limit of a decompressed body: a few bytes can expand to any length."""


class CompressorBits(IntEnum):
    """Compressor bits of sysFlag."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def decode_body(body: bytes, sys_flag: int, *, body_bytes_max: int = BODY_BYTES_MAX) -> bytes | None:
    """The body of a message, decompressed if sysFlag says so (zlib, LZ4 or Zstandard).

    None if it is not valid for its compressor, truncated, or longer than `body_bytes_max`.
    """
    if not sys_flag & COMPRESSED:
        return body
    try:
        match sys_flag & COMPRESSOR_MASK:
            # Older clients do not name the compressor.
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

"""Bodies of messages that a producer has compressed. The broker stores them as they came.

See docs/protocol/store.md#sysflag.

| bits of sysFlag | meaning |
|---|---|
| `0x001` | the body is compressed |
| `0x700` | how: `0x000` (old producers) and `0x300` zlib, `0x100` LZ4 frames, `0x200` Zstandard |

A few bytes can expand to any length: all decoders here stop at a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import lz4.frame
import zstandard

COMPRESSED: Final = 0x1
ZLIB: Final = 0x300
_COMPRESSION_MASK: Final = 0x700
_NAMES: Final[Mapping[int, str]] = MappingProxyType({0: "zlib", 0x100: "lz4", 0x200: "zstd", ZLIB: "zlib"})
_ZSTD_FEED_BYTES: Final = 512
"""Zstandard's decoder has no limit of its own output: 512 bytes can expand to 16 MiB at most (a block of
128 KiB needs 4)."""
_ZSTD_WINDOW_BYTES_MAX: Final = 64 << 20


def compression_of(sys_flag: int) -> str | None:
    """How a body is compressed: zlib, lz4, zstd, or `compression-N` for an unknown N; None if it is not."""
    if not sys_flag & COMPRESSED:
        return None
    bits = sys_flag & _COMPRESSION_MASK
    return _NAMES.get(bits, f"compression-{bits >> 8}")


def decode_body(body: bytes, sys_flag: int, *, body_bytes_max: int) -> bytes | None:
    """The body of a message, decompressed if sysFlag says that it is compressed.

    None if it is not valid for its compression, truncated, or longer than `body_bytes_max`.
    """
    compression = compression_of(sys_flag)
    if compression is None:
        return body
    decode = _DECODERS.get(compression)
    if decode is None:
        return None
    try:
        plain, is_whole = decode(body, body_bytes_max)
    except (zlib.error, RuntimeError, zstandard.ZstdError):
        # RuntimeError is what lz4 raises.
        return None
    return plain if is_whole and len(plain) <= body_bytes_max else None


def _decode_zlib(body: bytes, body_bytes_max: int) -> tuple[bytes, bool]:
    decoder = zlib.decompressobj()
    plain = decoder.decompress(body, body_bytes_max + 1)
    return plain, decoder.eof


def _decode_lz4(body: bytes, body_bytes_max: int) -> tuple[bytes, bool]:
    decoder = lz4.frame.LZ4FrameDecompressor()
    plain = decoder.decompress(body, max_length=body_bytes_max + 1)
    return plain, decoder.eof


def _decode_zstd(body: bytes, body_bytes_max: int) -> tuple[bytes, bool]:
    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()
    parts: list[bytes] = []
    plain_bytes = 0
    for at in range(0, len(body), _ZSTD_FEED_BYTES):
        parts.append(decoder.decompress(body[at : at + _ZSTD_FEED_BYTES]))
        plain_bytes += len(parts[-1])
        if decoder.eof or plain_bytes > body_bytes_max:
            break
    return b"".join(parts), decoder.eof


_DECODERS: Final[Mapping[str, Callable[[bytes, int], tuple[bytes, bool]]]] = MappingProxyType(
    {"zlib": _decode_zlib, "lz4": _decode_lz4, "zstd": _decode_zstd}
)

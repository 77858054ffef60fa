"""The file of a recording of the monitor: JSON lines in blocks, each compressed by itself.

A block is one member of a gzip file, so that `zcat`, Python and Spark read the file as a whole. The header of
a member has an extra field, by which a reader finds a moment without decompressing what is before it:

| offset | size | field |
|---|---|---|
| 0 | 4 | `1f 8b 08 04`: gzip, deflate, with an extra field |
| 4 | 6 | zeros: no time, no system |
| 10 | 2 | 28: size of the extra field |
| 12 | 4 | `TM`, and 24: size of the values that follow; all numbers are little-endian |
| 16 | 4 | size of the block in bytes, header and trailer included |
| 20 | 4 | number of its lines |
| 24 | 8 | time of its first observation, milliseconds since 1970 |
| 32 | 8 | time of its last one |
| 40 | | the deflated lines, their CRC-32 and their size |

A block is written at once, a second after its first line. What is left of a block whose writer was
killed is no block: a reader stops before it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from attrs import define, field, frozen

from trioha.errors import StoreError

SUFFIX: Final = "-monitor.jsonl.gz"
"""End of a recording's file name."""
FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A recording ends at this size."""
BLOCKS_MAX: Final = 1_000_000
"""Blocks of one recording: eleven days."""
BLOCK_TEXT_BYTES: Final = 1024 * 1024
"""A block with so many bytes of lines is written."""
BLOCK_MS: Final = 1000
"""So is one of so much time."""
BLOCK_TEXT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of lines in a block that is read: one line may be long."""
_HEADER: Final = struct.Struct("<4s6xH2sHIIqq")
_MAGIC: Final = b"\x1f\x8b\x08\x04"
_TRAILER: Final = struct.Struct("<II")


@frozen
class Block:
    """Place and times of a block."""

    offset: int
    """Its first byte in the file."""
    size: int
    """Its bytes in the file."""
    lines: int
    first_ms: int
    last_ms: int


def pack_block(text: bytes, *, lines: int, first_ms: int, last_ms: int) -> bytes:
    """The block of `text`, which is whole lines; `first_ms` and `last_ms` are their times."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush() + _TRAILER.pack(zlib.crc32(text), len(text))
    size = _HEADER.size + len(body)
    return _HEADER.pack(_MAGIC, 28, b"TM", 24, size, lines, first_ms, last_ms) + body


@define(eq=False)
class BlockWriter:
    """Writes the blocks of one file; `descriptor` is open for writing, and stays the caller's.

    A block that cannot be written is taken off again, so that later ones may follow.
    """

    _descriptor: int
    _bytes_max: int = FILE_BYTES_MAX
    _end: int = field(default=0, init=False)
    """End of the written blocks."""
    _blocks: int = field(default=0, init=False)
    _text: bytearray = field(factory=bytearray, init=False)
    _first_line: bytes = field(default=b"", init=False)
    """Of the file, until it is written."""
    lines: int = field(default=0, init=False)
    """Lines that wait for `flush`."""
    _times_ms: tuple[int, int] = field(default=(0, 0), init=False)

    def begin(self, line: bytes) -> None:
        """Set the first line of the file: that of every block until one is written."""
        self._first_line = line

    def add(self, line: bytes, *, at_ms: int) -> bool:
        """Add a line of that time; returns whether the block is to be written."""
        first_ms = self._times_ms[0] if self.lines else at_ms
        self._times_ms = first_ms, max(at_ms, self._times_ms[1])
        self._text += line
        self.lines += 1
        return len(self._text) >= BLOCK_TEXT_BYTES or at_ms - first_ms >= BLOCK_MS

    def flush(self) -> None:
        """Write the block. Raises StoreError if it was not written; its lines are dropped then."""
        text, lines = bytes(self._text), self.lines
        (first_ms, last_ms), self._text, self.lines = self._times_ms, bytearray(), 0
        if self._first_line:
            text, lines = self._first_line + text, lines + 1
        block = pack_block(text, lines=lines, first_ms=first_ms, last_ms=last_ms)
        if self._end + len(block) > self._bytes_max or self._blocks >= BLOCKS_MAX:
            raise StoreError(f"it has reached its limit of {self._bytes_max >> 20} MiB", path="recording")
        try:
            written = 0
            while written < len(block):
                written += os.pwrite(self._descriptor, block[written:], self._end + written)
        except OSError as error:
            # A disk that refuses this, too, leaves a torn block, over which the next one is written.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise StoreError(error.strerror or str(error), path="recording") from error
        self._end += len(block)
        self._blocks += 1
        self._first_line = b""


class BlockReader:
    """Reads the blocks of a file, which may grow meanwhile."""

    def __init__(self, path: Path) -> None:
        """Read where the blocks are. Raises StoreError if the file cannot be read or has none."""
        self.path = path
        self.blocks: list[Block] = []
        self.damage = ""
        """Why the blocks end before the file does; empty if they do not."""
        self._end = 0
        self.refresh()
        if not self.blocks:
            raise StoreError(
                f"not a recording of the monitor: {self.damage or 'it has no whole block'}", path=path
            )

    def refresh(self) -> bool:
        """Find blocks that were added; returns whether there are any. Raises StoreError."""
        before = len(self.blocks)
        try:
            with self.path.open("rb") as file:
                file_bytes = os.fstat(file.fileno()).st_size
                for block in self._found(file, file_bytes):
                    self.blocks.append(block)
                    self._end = block.offset + block.size
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror or error}", path=self.path) from error
        return len(self.blocks) > before

    def _found(self, file: BinaryIO, file_bytes: int) -> Iterator[Block]:
        offset, last_ms = self._end, self.blocks[-1].last_ms if self.blocks else 0
        while not self.damage and offset + _HEADER.size <= file_bytes:
            file.seek(offset)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return
            magic, *extra, size, lines, first_ms, block_last_ms = _HEADER.unpack(header)
            if offset + size > file_bytes and magic == _MAGIC:
                # Being written, or torn.
                return
            if (magic, *extra) != (_MAGIC, 28, b"TM", 24) or size < _HEADER.size:
                self.damage = f"no block at byte {offset}"
            elif not last_ms <= first_ms <= block_last_ms:
                self.damage = f"the times of the block at byte {offset} go back"
            elif len(self.blocks) >= BLOCKS_MAX:
                self.damage = f"more than {BLOCKS_MAX} blocks"
            else:
                yield Block(offset, size, lines, first_ms, block_last_ms)
                last_ms = block_last_ms
                offset += size

    def lines(self, block: Block) -> list[bytes]:
        """The lines of a block. Raises ValueError, with one line of text, for a damaged one."""
        try:
            with self.path.open("rb") as file:
                data = os.pread(file.fileno(), block.size, block.offset)
            inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            text = inflate.decompress(data, BLOCK_TEXT_BYTES_MAX)
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror or error}") from error
        except zlib.error as error:
            raise ValueError(f"damaged at byte {block.offset}: {error}") from error
        if inflate.unconsumed_tail:
            raise ValueError(f"more than {BLOCK_TEXT_BYTES_MAX} bytes of lines at byte {block.offset}")
        if not inflate.eof or inflate.unused_data:
            raise ValueError(f"damaged at byte {block.offset}: not one whole block")
        return text.splitlines()

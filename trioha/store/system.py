"""What Python's own modules do not offer; in C where that is compiled (`system.c`)."""

from __future__ import annotations

import faulthandler
import os

from trioha.compiled import use_compiled


def read_spans(fd: int, spans: list[tuple[int, int]], size: int, /) -> bytes | None:
    """Bytes of a file from each (start, size) on, one after the other; their sizes add up to `size`.

    None if the disk does not give all of them.
    """
    try:
        data = b"".join([os.pread(fd, length, start) for start, length in spans])
    except OSError:
        return None
    return data if len(data) == size else None


def name_map(data: memoryview, path: bytes, first_offset: int, /) -> None:  # noqa: ARG001 - C has names
    """Name the file that is mapped at `data`, and the offset of its first byte, for a line that the process
    leaves when a SIGBUS ends it there. In plain Python it leaves the traceback of its threads."""
    if not faulthandler.is_enabled():
        faulthandler.enable(file=2)


def forget_map(data: memoryview, /) -> None:
    """The map at `data` ends."""


use_compiled(__name__)

"""Reads of several places of a file at once: by one call of compiled code, where there is some."""

from __future__ import annotations

import os

from trioha.store import compiled


def read_spans(fd: int, spans: list[tuple[int, int]], size: int, /) -> bytes | None:
    """Bytes of a file from each (start, size) on, one after the other; their sizes add up to `size`.

    None if the disk does not give all of them.
    """
    try:
        data = b"".join([os.pread(fd, length, start) for start, length in spans])
    except OSError:
        return None
    return data if len(data) == size else None


plain_read_spans = read_spans
"""For tests that compare both."""
if compiled.IS_COMPILED:
    read_spans = compiled.system.read_spans

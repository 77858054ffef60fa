"""Some offsets at which records start: a search for a record walks from the nearest one."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

_SPACING_BYTES: Final = 16 * 1024
_LANDMARKS_MAX: Final = 4096


class Landmarks:
    """Offsets at which records start, some 16 KiB apart, of the newest part of a log."""

    def __init__(self) -> None:
        self._offsets: deque[int] = deque(maxlen=_LANDMARKS_MAX)

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def add(self, offset: int) -> None:
        """A record starts at `offset`, after all that were added before."""
        offsets = self._offsets
        if not offsets or offset - offsets[-1] >= _SPACING_BYTES:
            offsets.append(offset)

    def add_all(self, offsets: Iterable[int]) -> None:
        """`add` each of them."""
        after = self._offsets[-1] + _SPACING_BYTES if self._offsets else 0
        for offset in offsets:
            if offset >= after:
                self._offsets.append(offset)
                after = offset + _SPACING_BYTES

    def nearest(self, offset: int) -> int:
        """The last known start at or before `offset`, 0 if none is known."""
        index = bisect_right(self._offsets, offset) - 1
        return self._offsets[index] if index >= 0 else 0

    def cut(self, offset: int) -> None:
        """Drop those at or after `offset`, at which the log is cut."""
        while self._offsets and self._offsets[-1] >= offset:
            self._offsets.pop()

    def clear(self) -> None:
        """Drop all: the log begins anew."""
        self._offsets.clear()

"""What happened in a run, line by line, and a hash of all of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256

import trio

KEPT_LINES = 40


class Trace:
    """Lines with the virtual time. The hash covers all, the last ones are kept, each can be shown."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._hash = sha256()
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._show = show
        self.count = 0

    def note(self, who: str, what: str) -> None:
        """`who` did or saw `what` now."""
        line = f"{trio.current_time():11.6f} {who:8} {what}"
        self.count += 1
        self._hash.update(line.encode())
        self._last.append(line)
        if self._show is not None:
            self._show(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def last_lines(self) -> str:
        return "\n".join(self._last)

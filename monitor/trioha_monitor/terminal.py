"""The terminal, which may vanish: its window is closed, or the connection to it ends.

Often no SIGHUP comes then. Reads return nothing at once, again and again, and the first write fails, which
ends the thread of Textual's driver that writes: the screen then waits for that thread for ever, and no signal
is handled. So writes to a terminal that has vanished are dropped, and the hang-up that the kernel reports on
it ends the application.
"""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver


class TerminalDriver(LinuxDriver):
    """Textual's driver, which ends the application when the terminal has vanished."""

    def __init__(
        self,
        app: App[object],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        assert self._file is not None, "the screen is drawn on stderr"
        self._file = cast("TextIOWrapper", _DroppingFile(self._file))
        threading.Thread(target=self._wait_for_hang_up, name="terminal-hang-up", daemon=True).start()

    def _wait_for_hang_up(self) -> None:
        hang_up = select.poll()
        # No event is asked for: a hang-up is always reported.
        hang_up.register(self.fileno, 0)
        events = [event for _, event in hang_up.poll()]
        if any(event & (select.POLLHUP | select.POLLERR) for event in events):
            # RuntimeError: the loop has been closed, the application has ended.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._app.exit)


class _DroppingFile:
    """A text file whose writes fail in silence: there is no terminal to report it on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        """Write `text`, or drop it."""
        with suppress(OSError):
            self._file.write(text)

    def flush(self) -> None:
        """Flush what was written, or drop it."""
        with suppress(OSError):
            self._file.flush()

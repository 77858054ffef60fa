"""The terminal, which may vanish or take no output: a window is closed, a connection ends or hangs.

A terminal often vanishes without a SIGHUP. Reads then return nothing at once, again and again, and the first
write fails, which ends the thread of Textual's driver that writes; of a terminal that takes nothing, that
thread waits. In both cases the application soon waits for the thread and handles no signal. So writes to a
terminal that has vanished are dropped, the hang-up that the kernel reports on it ends the application, and a
process that was told to end does so within `END_TIMEOUT_S`, whatever it waits for.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO, cast

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

END_TIMEOUT_S = 20.0
"""How long the application may take to end, in seconds: a feed and a recording have to end first."""


class TerminalDriver(LinuxDriver):
    """Textual's driver, which ends the application when the terminal vanishes, and at SIGTERM and SIGHUP."""

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
        self._file = cast("TextIOWrapper", _Output(self._file))
        threading.Thread(target=self._wait_for_hang_up, name="terminal-hang-up", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Not a handler of the event loop, which may be waiting for the terminal.
            signal.signal(number, lambda _number, _frame: self._end())

    def _wait_for_hang_up(self) -> None:
        hang_up = select.poll()
        # No event is asked for: a hang-up is always reported.
        hang_up.register(self.fileno, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in hang_up.poll()):
            self._end()

    def _end(self) -> None:
        """End the application; called from any thread, and between any two steps of the main thread."""
        last_resort = threading.Timer(END_TIMEOUT_S, os._exit, (1,))
        last_resort.daemon = True
        last_resort.start()
        # RuntimeError: the loop has been closed, the application has ended.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._app.exit)


class _Output:
    """A text file for the screen. Writes that fail are dropped: there is no terminal to report it on."""

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

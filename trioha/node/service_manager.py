"""Tells systemd how the node is (sd_notify): ready, stopping, alive, and its state in a line.

The protocol is a datagram of `NAME=value` lines to the socket that NOTIFY_SOCKET names, a name in the file
system or, with @ for a leading NUL, an abstract one. Without that variable there is nobody to tell. With
WatchdogSec= systemd ends a node that was silent for so long: a loop that hangs sends nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

import structlog
import trio

from trioha.outside_text import escaped

log = structlog.get_logger(__name__)

STATUS_INTERVAL_S: Final = 5.0
"""Between two looks at the state, unless the watchdog wants to hear of the node more often."""


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self._watchdog_s = _watchdog_s(environment) if self._address else None
        self._status = ""
        self._has_failed = False

    def ready(self) -> None:
        """Report that the node serves."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Report that the node begins to stop."""
        self._send("STOPPING=1")

    async def run(self, status: Callable[[], str]) -> None:
        """Report that the node is alive, and `status` in a line when it changes, until cancelled."""
        if not self._address:
            return
        # Half of what the manager waits: one report that is late does not matter.
        interval_s = min(STATUS_INTERVAL_S, (self._watchdog_s or STATUS_INTERVAL_S * 2) / 2)
        while True:
            lines = ["WATCHDOG=1"] if self._watchdog_s is not None else []
            if (now := escaped(status())) != self._status:
                self._status = now
                lines.append(f"STATUS={now}")
            if lines:
                self._send(*lines)
            await trio.sleep(interval_s)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
                # A manager that does not read must not stop the node.
                connection.setblocking(False)
                connection.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning("the service manager cannot be reached", reason=str(error))


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """How long the manager waits for a sign of life; None if it does not wait for this process."""
    text = environment.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) / 1e6 if environment.get("WATCHDOG_PID", "") in {"", str(os.getpid())} else None

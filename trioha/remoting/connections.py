"""The open connections of a remoting server, and what all of them share.

Theory of operation. A server needs its handler before it has a connection, and parts of a handler send frames
to connections that no request waits for, or report how many connections there are. `Connections` is what both
need: it is made first, and given to the handler's parts and to `RemotingServer`, which keeps it up to date.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.closures import ClosureLog
from trioha.remoting.memory import ClientMemory
from trioha.remoting.serving import ServerLimits, ServerStatistics

if TYPE_CHECKING:
    import trio

    from trioha.remoting.server_connection import ServerConnection

Push = Callable[[int, bytes], bool]
"""Sends a frame that no request waits for to the connection of that number; False if there is none."""


class Connections:
    """The connections of one server."""

    def __init__(self, limits: ServerLimits | None = None) -> None:
        self.limits = ServerLimits() if limits is None else limits
        self.boundary = ErrorBoundary("remoting connection")
        self.counters = ServerStatistics()
        """Counted by the server and its connections; read them by `statistics`."""
        self.closures = ClosureLog()
        self.memory = ClientMemory(
            self.limits.total_bytes_max,
            connections_max=self.limits.connections_max,
            frame_bytes_max=self.limits.frame_bytes_max,
            room_timeout_s=self.limits.room_timeout_s,
        )
        self.served: dict[int, ServerConnection] = {}
        """By their number."""
        self.openings: set[trio.CancelScope] = set()
        """Connections whose first byte or TLS handshake is waited for."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self.served) + len(self.openings)

    def push(self, connection: int, frame: bytes, *, may_wait: bool = False) -> bool:
        """Send a whole frame that no request waits for to the connection of that number, if it takes it now.

        Where bytes still wait to be sent there, it is dropped, or with `may_wait` sent after them, as far as
        there is memory for it. False if there is no such connection.
        """
        served = self.served.get(connection)
        if served is None:
            return False
        try:
            served.push(frame, may_wait=may_wait)
        except Exception as error:  # noqa: BLE001 - the boundary of a connection, called from another task
            self.boundary.report(error, str(served.peer))
            served.cut()
        return True

    def statistics(self) -> ServerStatistics:
        """A copy of the counters as of now."""
        counters = copy.copy(self.counters)
        counters.connections_open = len(self)
        counters.bugs, counters.shortages = self.boundary.bugs, self.boundary.shortages
        counters.held_bytes = self.memory.held_bytes
        counters.largest_held_bytes = self.memory.largest_held_bytes
        counters.memory_waits = self.memory.waits
        return counters

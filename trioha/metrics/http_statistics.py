"""Counters of the HTTP port; a module without h11, which only a node with that port loads."""

from __future__ import annotations

from collections import Counter

from attrs import define, field


@define
class HttpStatistics:
    """Counters since the server was created; `connections_open` is a current value."""

    connections_open: int = 0
    connections_refused: int = 0
    """Closed at once because of a maximum."""
    answers: Counter[int] = field(factory=Counter)
    """Answers by status code."""
    request_timeouts: int = 0
    """Connections closed because no request was complete in time."""
    send_timeouts: int = 0
    """Connections closed because the peer did not read the answer."""
    broken_connections: int = 0
    """Connections reset by the peer or the network."""

"""What a server of the remoting protocol is made of: its handler, its limits, and its counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attrs import define, field, frozen
from attrs.validators import ge

from trioha.remoting.address import Address
from trioha.remoting.codec import FRAME_BYTES_MAX
from trioha.remoting.command import RemotingCommand
from trioha.remoting.memory import bytes_max_for


@frozen
class ServerLimits:
    """How much a server gives to its peers."""

    connections_max: int = field(default=1024, validator=ge(1))
    """Open at a time; one more is closed as soon as it is accepted."""
    connections_per_peer_max: int = field(default=1024, validator=ge(1))
    """Of them, from one address."""
    total_bytes_max: int = field(default=128 * 1024 * 1024, validator=ge(1))
    """Held for all connections together: unfinished frames, requests in flight, answers that wait to be
    written. At least `memory.bytes_max_for(frame_bytes_max)`."""
    in_flight_max: int = field(default=4096, validator=ge(1))
    """Requests of one connection between read and answered. Each pull that waits for messages is one."""
    in_flight_bytes_max: int = field(default=64 * 1024 * 1024, validator=ge(1))
    """Those requests and their answers; a single request may be larger."""
    frame_bytes_max: int = field(default=FRAME_BYTES_MAX, validator=ge(8))
    """One frame, its length field included."""
    idle_timeout_s: float = field(default=120.0, validator=ge(0))
    """Without a read or a write."""
    frame_timeout_s: float = field(default=30.0, validator=ge(0))
    """From the first byte of a frame to its last, however the bytes come. Time in which the server did not
    read does not count."""
    send_timeout_s: float = field(default=10.0, validator=ge(0))
    """For one send of whatever is ready."""
    room_timeout_s: float = field(default=2.0, validator=ge(0))
    """How long a connection waits for room in `total_bytes_max` before unfinished frames are given up."""
    receive_bytes_max: int = field(default=64 * 1024, validator=ge(1))
    """One read: what is handled before other connections get their turn."""

    def __attrs_post_init__(self) -> None:
        if self.total_bytes_max < bytes_max_for(self.frame_bytes_max):
            raise ValueError(
                f"total_bytes_max of {self.total_bytes_max} is not enough for frames of "
                f"{self.frame_bytes_max} bytes: at least {bytes_max_for(self.frame_bytes_max)}"
            )


@frozen
class Peer:
    """Who asks."""

    address: Address
    connection: int
    """The connection's number on this server, from 1."""

    def __str__(self) -> str:
        return str(self.address)


Handler: TypeAlias = Callable[
    [RemotingCommand, Peer], "RemotingCommand | Awaitable[RemotingCommand | None] | None"
]
"""Answers a request. Returns the answer where it is known at once (much cheaper), else an awaitable of it.
None means that there is no answer: the right thing only for one-way requests."""


@define
class ServerStatistics:
    """Counters since the server was made; `connections_open` and `held_bytes` are as of now.

    The server counts in one of its own; whoever asks for statistics gets a copy.
    """

    connections_open: int = 0
    connections_accepted: int = 0
    connections_refused: int = 0
    """Closed at once for `connections_max` or `connections_per_peer_max`, or since it was draining."""
    requests: int = 0
    """One-way requests included."""
    oneway_requests: int = 0
    responses: int = 0
    """Answers written or waiting to be."""
    unexpected_responses: int = 0
    """Responses that peers sent to a server that asks nothing. Ignored."""
    handler_errors: int = 0
    """Exceptions of the handler, answered with SYSTEM_ERROR."""
    busy_answers: int = 0
    """Answers that no memory was left for: SYSTEM_BUSY was sent instead."""
    protocol_errors: int = 0
    """Connections closed for what the peer sent."""
    broken_connections: int = 0
    """Connections reset by the peer or the network."""
    idle_closes: int = 0
    frame_timeouts: int = 0
    """Connections closed because a frame was not whole in time."""
    memory_closes: int = 0
    """Connections closed with an unfinished frame, since the memory for clients was used up."""
    send_timeouts: int = 0
    """Connections closed because the peer did not read."""
    cut_connections: int = 0
    """Connections closed at the end of draining with requests not answered."""
    bugs: int = 0
    """Connections and requests that a fault of this program ended."""
    shortages: int = 0
    """Connections and requests that ended because descriptors or memory of the system ran out."""
    held_bytes: int = 0
    """What all connections hold together."""
    largest_held_bytes: int = 0
    """The most that it ever was."""
    memory_waits: int = 0
    """How often a connection had to wait for room."""

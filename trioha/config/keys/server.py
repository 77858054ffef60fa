"""Keys of the ports for clients, slaves and metrics, and of limits of clients."""

from __future__ import annotations

from typing import Final

from attrs import Factory, frozen

from trioha.config import values
from trioha.config.setting import setting
from trioha.config.values import LONG_MAX, PORT_MAX

FRAME_BYTES_BESIDE_BODY: Final = 256 * 1024
"""Room beside the body in a send request: properties of 32 KiB, escaped in JSON."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""RocketMQ's own limit of a frame (com.rocketmq.remoting.frameMaxLength)."""
CLIENT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Keeps a node's private memory below 512 MiB: bytes of clients are held up to twice, beside 60 MiB for the
rest."""


def client_bytes_needed(frame_bytes_max: int) -> int:
    """The least memory for clients with which a connection can always complete the longest frame.

    As `bytes_max_for` of the remoting server.
    """
    return 6 * frame_bytes_max + 64 * 1024


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class ServerKeys:
    """Ports, and limits of clients."""

    listen_port: int = setting("listenPort", values.integer(low=0, high=PORT_MAX), default=10911)
    """Port of the remoting server; 0 for any free port. RocketMQ default: 10911."""

    ha_listen_port: int = setting(
        "haListenPort",
        values.integer(low=0, high=PORT_MAX),
        default=Factory(lambda self: self.listen_port and self.listen_port + 1, takes_self=True),
    )
    """Port that slaves dial; 0 for any free port.

    Default: `listen_port` + 1, or any free port where `listen_port` is 0. RocketMQ 5 uses this key like
    trioha; 4.9 always uses listenPort + 1.
    """

    bind_address: str = setting(
        "trioha.bindAddress",
        values.name,
        default="0.0.0.0",  # noqa: S104 - RocketMQ's default
        aliases=("bindAddress",),
    )
    """Address that both servers listen on. RocketMQ default: all of IPv4; `bindAddress` in RocketMQ 5."""

    metrics_port: int | None = setting(
        "trioha.metricsPort", values.optional_integer(low=0, high=PORT_MAX), default=None
    )
    """Port at which Prometheus gets metrics by HTTP, 0 for any free port; None, by default, for no such port.

    It is open to all who can reach it: names of topics and groups and addresses of slaves are shown there.
    """

    metrics_bind_address: str = setting(
        "trioha.metricsBindAddress",
        values.name,
        default=Factory(lambda self: self.bind_address, takes_self=True),
    )
    """Address that `metrics_port` listens on. Default: `bind_address`."""

    metrics_topics: int = setting("trioha.metricsTopics", values.integer(low=1, high=10_000), default=50)
    """Topics with puts, and pairs of topic and group with pulls, that have time series of their own in the
    metrics: the busiest ones. All others are counted as one."""

    max_message_size: int = setting("maxMessageSize", values.integer(low=1), default=4 * 1024 * 1024)
    """Largest message body, bytes. RocketMQ default: 4194304."""

    frame_bytes_max: int = setting(
        "trioha.frameBytesMax",
        values.integer(low=4096, high=1 << 30),
        default=Factory(
            lambda self: max(FRAME_BYTES_MAX, self.max_message_size + FRAME_BYTES_BESIDE_BODY),
            takes_self=True,
        ),
    )
    """Longest request of a client, bytes: a connection that sends a longer one is closed.

    Default: 16777216, as RocketMQ's com.rocketmq.remoting.frameMaxLength, or what `max_message_size` needs.
    """

    client_bytes_max: int = setting(
        "trioha.clientBytesMax",
        values.integer(low=4096, high=LONG_MAX),
        default=Factory(
            lambda self: max(CLIENT_BYTES_MAX, client_bytes_needed(self.frame_bytes_max)), takes_self=True
        ),
    )
    """Bytes that the node holds for all its clients: requests, whole or not, and answers not yet sent; and as
    many again for pulls and pops that wait.

    The more of it is used, the less a single connection may hold: reading stops first from those that hold
    most. At least six of the longest frames and 64 KiB. Default: 134217728, with which a node's private
    memory stays below 512 MiB, or that minimum.
    """

    connections_max: int = setting("trioha.connectionsMax", values.integer(low=1), default=1024)
    """Connections of clients at a time: one more is closed as soon as it is accepted, and counted.

    Lowered at the start if the limit of file descriptors (RLIMIT_NOFILE) is too low.
    """

    connections_per_peer: int = setting(
        "trioha.connectionsPerPeer",
        values.integer(low=1),
        default=Factory(lambda self: max(1, self.connections_max // 2), takes_self=True),
    )
    """Connections of clients at a time of one address: one more is closed as soon as it is accepted.

    Default: half of `connections_max`: clients behind NAT, in a proxy and on one host share an address, but
    one address should not use all connections.
    """

    requests_in_flight_max: int = setting("trioha.requestsInFlightMax", values.integer(low=1), default=4096)
    """Unanswered requests of one connection, pulls that wait for messages included, at which reading from it
    stops until one is answered."""

    client_idle_timeout: int = setting("trioha.clientIdleTimeout", values.integer(low=1), default=120_000)
    """Milliseconds without a byte from or to a client after which its connection is closed.

    RocketMQ's brokers: 120 s (serverChannelMaxIdleTimeSeconds).
    """

    busy_poll: int = setting("trioha.busyPoll", values.integer(low=0, high=1000), default=800)
    """How long a node may poll for the next bytes of slaves, master and clients before it sleeps,
    microseconds; 0 for not at all, as with one core, of the machine or by the CPU quota of a container."""

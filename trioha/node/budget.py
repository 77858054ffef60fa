"""File descriptors of each part of a node; their sum fits the limit of the process."""

from __future__ import annotations

from typing import Final

from attrs import frozen

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.errors import ConfigError
from trioha.net.descriptors import (
    DescriptorGate,
    Share,
    TooFewDescriptors,
    descriptor_limit,
    divide,
    open_descriptors,
)
from trioha.store.file_cache import OPEN_FILES_MAX
from trioha.store.log_files import READ_FILES_MAX

PROCESS_DESCRIPTORS: Final = 8
"""Standard streams, trio's epoll and its wake-up sockets, if open descriptors cannot be counted."""
LISTENER_DESCRIPTORS: Final = 4
"""Two servers; a host name may have two addresses."""
VIP_LISTENER_DESCRIPTORS: Final = 2
"""The second port for clients, listenPort - 2."""
KEPT_LISTENER_DESCRIPTORS: Final = 6
"""A second descriptor of each listener, where they outlive a role."""
STORE_DESCRIPTORS: Final = 12 + READ_FILES_MAX
"""Lock; three log files (written, being synced, preallocated) and those needed to create one; log files that
are only read; two index files and those needed to create one; the checkpoint while it is written; a directory
while it is synced."""
RECORDER_DESCRIPTORS: Final = 4
"""Facts, the current and the next segment, a keyframe."""
DIAL_DESCRIPTORS: Final = 4
"""A slave's connection to its master, a second one while two addresses are tried, and the resolver's."""
METADATA_DESCRIPTORS: Final = 4
"""A slave's connection for its master's tables, a second one while two addresses are tried, a table while it
is written, and the directory while it is synced."""
NAME_SERVER_DESCRIPTORS: Final = 2
"""A connection to each name server, and a second one while two addresses are tried."""
TABLE_DESCRIPTORS: Final = 2
"""The embedded name server's table while it is written, and the directory while it is synced."""
ARCHIVE_DESCRIPTORS: Final = 10
"""The pipes to and from the archiver, a process of its own, their other ends and a third pipe while it is
started, and the descriptor that says when it has ended."""
METRICS_CONNECTIONS: Final = 16
"""Connections at trioha.metricsPort: each lasts for one request."""
QUEUE_FILES_MAX: Final = 4096
"""Open files of queues where the process may have so many: to write to one that is not open costs twice as
much; each that is open is one more step of trio's thread at a sync."""
QUEUE_FILES_OF_SPARE: Final = 0.75
"""Part of the descriptors that nobody has asked for."""
RESERVE_DESCRIPTORS: Final = 64
"""For everything that the budget does not list."""


@frozen
class DescriptorBudget:
    """The maxima of one node."""

    limit: int
    """Descriptors that the process may have open."""
    clients: int
    """Connections of clients: trioha.connectionsMax, or less."""
    clients_per_peer: int
    """Connections of clients from one address."""
    ha_connections: int
    """Connections at the HA port: trioha.haConnectionsMax, or less."""
    queue_files: int
    """Files of consume queues that are open at a time."""
    name_server_clients: int
    """Connections of the embedded name server: 0 without one."""
    metrics_connections: int
    """Connections at trioha.metricsPort: 0 without one."""
    reserve: int
    """Descriptors that connections leave free."""
    lowered: str | None
    """Which maxima were lowered; None if none was."""
    is_short: bool
    """Whether to warn of it: a maximum that the configuration sets was lowered, or one of the defaults below
    what a small cluster needs."""

    def client_gate(self) -> DescriptorGate:
        """Closed while fewer descriptors than the reserve are free."""
        return DescriptorGate(keep=self.reserve, limit=self.limit)

    def ha_gate(self) -> DescriptorGate:
        """Closes later than that of clients: slaves have priority."""
        return DescriptorGate(keep=self.reserve // 2, limit=self.limit)


def descriptor_budget(config: BrokerConfig, *, changes_role: bool = False) -> DescriptorBudget:
    """Divide the descriptors of this process among the parts of a node at its start.

    With `changes_role` it has what every role needs, and ports that stay open between them.

    With too few descriptors these are lowered, in this order, each only as far as needed: connections of
    clients (to 256), those of the embedded name server (256), open files of queues (64), connections of
    slaves (16), the reserve (32), connections for metrics (8); then the same to 48, 48, 24, 8, 16 and 4; then
    to 8, 8, 4, 4, 8 and 2. Raises ConfigError if that does not fit.
    """
    limit = descriptor_limit()
    in_use = open_descriptors(limit)
    needed = (
        (PROCESS_DESCRIPTORS if in_use is None else in_use)
        + LISTENER_DESCRIPTORS
        + VIP_LISTENER_DESCRIPTORS * (config.vip_port is not None)
        + STORE_DESCRIPTORS
        + RECORDER_DESCRIPTORS * (config.record_dir is not None)
        + ARCHIVE_DESCRIPTORS * (config.archive_url is not None)
        + (DIAL_DESCRIPTORS + METADATA_DESCRIPTORS) * (changes_role or config.broker_role is BrokerRole.SLAVE)
        + KEPT_LISTENER_DESCRIPTORS * changes_role
        + NAME_SERVER_DESCRIPTORS * len(config.namesrv_addr)
        + (LISTENER_DESCRIPTORS // 2 + TABLE_DESCRIPTORS) * config.with_name_server
        + LISTENER_DESCRIPTORS // 2 * (config.metrics_port is not None)
    )
    shares = [
        _share("trioha.connectionsMax", config.connections_max, (256, 48, 8)),
        _share(
            "connections of the name server",
            config.connections_max if config.with_name_server else 0,
            (256, 48, 8),
        ),
        _share("open files of queues", OPEN_FILES_MAX, (64, 24, 4)),
        _share("trioha.haConnectionsMax", config.ha_connections_max, (16, 8, 4)),
        _share("the reserve", RESERVE_DESCRIPTORS, (32, 16, 8)),
        _share(
            "connections for metrics",
            METRICS_CONNECTIONS if config.metrics_port is not None else 0,
            (8, 4, 2),
        ),
    ]
    try:
        division = divide(limit, needed=needed, shares=shares)
    except TooFewDescriptors as few:
        raise ConfigError(
            f"this process may open {limit} files, a node with these settings needs at least {few.least}",
            hint="raise the limit (ulimit -n, LimitNOFILE= of systemd)",
        ) from None
    clients, name_server_clients, queue_files, ha_connections, reserve, metrics_connections = division.granted
    spare = limit - needed - sum(division.granted)
    queue_files += max(0, min(int(spare * QUEUE_FILES_OF_SPARE), QUEUE_FILES_MAX - queue_files))
    lowered = None
    if division.lowered:
        lowered = f"this process may open {limit} files (ulimit -n): lowered {', '.join(division.lowered)}"
    default = BrokerConfig()
    is_short = (
        any(got < share.floors[0] for share, got in zip(shares, division.granted, strict=True))
        or (clients < config.connections_max != default.connections_max)
        or (ha_connections < config.ha_connections_max != default.ha_connections_max)
    )
    return DescriptorBudget(
        limit=limit,
        clients=clients,
        clients_per_peer=_per_peer(config, clients),
        ha_connections=ha_connections,
        queue_files=queue_files,
        name_server_clients=name_server_clients,
        metrics_connections=metrics_connections,
        reserve=reserve,
        lowered=lowered,
        is_short=is_short,
    )


def _share(name: str, wanted: int, floors: tuple[int, ...]) -> Share:
    return Share(name, wanted, tuple(min(floor, wanted) for floor in floors))


def _per_peer(config: BrokerConfig, clients: int) -> int:
    """Connections of one address, lowered in the same proportion as all connections."""
    return max(1, config.connections_per_peer * clients // config.connections_max)

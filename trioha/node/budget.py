"""How many file descriptors each part of a node may have: the sum fits what the process is allowed."""

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

PROCESS_DESCRIPTORS: Final = 8
"""Standard streams, trio's epoll and its wake-up sockets: where open descriptors cannot be counted."""
LISTENER_DESCRIPTORS: Final = 4
"""Two servers; a host's name may stand for two addresses."""
STORE_DESCRIPTORS: Final = 14
"""Lock; three log files (written, being synced, made ahead) and what making one takes; two index files and
what making one takes; the checkpoint while it is written; a directory while it is synced."""
RECORDER_DESCRIPTORS: Final = 4
"""Facts, the segment that is written and the next one; a key frame."""
DIAL_DESCRIPTORS: Final = 4
"""A slave's connection to its master, a second one while two addresses are tried, a resolver's."""
NAME_SERVER_DESCRIPTORS: Final = 2
"""A connection to each name server, and a second one while two addresses are tried."""
TABLE_DESCRIPTORS: Final = 2
"""The embedded name server's table while it is written, and the directory while it is synced."""
RESERVE_DESCRIPTORS: Final = 64
"""For whatever no part of the plan has foreseen."""


@frozen
class DescriptorBudget:
    """The maxima of one node."""

    limit: int
    """Descriptors that the process may have open."""
    clients: int
    """Connections of clients: trioha.connectionsMax, or what is left of it."""
    clients_per_peer: int
    """Of them, connections of one address."""
    ha_connections: int
    """Connections at the HA port: trioha.haConnectionsMax, or what is left of it."""
    queue_files: int
    """Files of consume queues that are open at a time."""
    name_server_clients: int
    """Connections of the embedded name server: 0 without one."""
    reserve: int
    """For whatever else opens one: connections leave so many free."""
    warning: str | None
    """Which of them are lower than they should be; None if none is."""

    def client_gate(self) -> DescriptorGate:
        """Closed when fewer than the reserve are free."""
        return DescriptorGate(keep=self.reserve, limit=self.limit)

    def ha_gate(self) -> DescriptorGate:
        """Closed later than that of clients: slaves come first."""
        return DescriptorGate(keep=self.reserve // 2, limit=self.limit)


def descriptor_budget(config: BrokerConfig) -> DescriptorBudget:
    """Divide the descriptors of this process among the parts of a node that is about to start.

    Where there are too few, these are lowered, in this order, each only as far as it takes: connections of
    clients (to 256), open files of queues (64), connections of slaves (16), the reserve (32); then the same
    again to 48, 24, 8 and 16; then to 8, 4, 4 and 8. Raises ConfigError if that does not fit.
    """
    limit = descriptor_limit()
    in_use = open_descriptors(limit)
    needed = (
        (PROCESS_DESCRIPTORS if in_use is None else in_use)
        + LISTENER_DESCRIPTORS
        + STORE_DESCRIPTORS
        + RECORDER_DESCRIPTORS * (config.record_dir is not None)
        + DIAL_DESCRIPTORS * (config.broker_role is BrokerRole.SLAVE)
        + NAME_SERVER_DESCRIPTORS * len(config.namesrv_addr)
        + (LISTENER_DESCRIPTORS // 2 + TABLE_DESCRIPTORS) * config.with_name_server
    )
    shares = [
        _share("trioha.connectionsMax", config.connections_max, (256, 48, 8)),
        _share("open files of queues", OPEN_FILES_MAX, (64, 24, 4)),
        _share("trioha.haConnectionsMax", config.ha_connections_max, (16, 8, 4)),
        _share("the reserve", RESERVE_DESCRIPTORS, (32, 16, 8)),
        _share(
            "connections of the name server",
            config.connections_max if config.with_name_server else 0,
            (256, 48, 8),
        ),
    ]
    try:
        division = divide(limit, needed=needed, shares=shares)
    except TooFewDescriptors as few:
        raise ConfigError(
            f"this process may open {limit} files, a node with these settings needs at least {few.least}",
            hint="raise the limit (ulimit -n, LimitNOFILE= of systemd)",
        ) from None
    clients, queue_files, ha_connections, reserve, name_server_clients = division.granted
    warning = None
    if division.lowered:
        warning = f"this process may open {limit} files (ulimit -n): lowered {', '.join(division.lowered)}"
    return DescriptorBudget(
        limit=limit,
        clients=clients,
        clients_per_peer=_per_peer(config, clients),
        ha_connections=ha_connections,
        queue_files=queue_files,
        name_server_clients=name_server_clients,
        reserve=reserve,
        warning=warning,
    )


def _share(name: str, wanted: int, floors: tuple[int, ...]) -> Share:
    return Share(name, wanted, tuple(min(floor, wanted) for floor in floors))


def _per_peer(config: BrokerConfig, clients: int) -> int:
    """Connections of one address: as configured, in the same proportion where all are lowered."""
    return max(1, config.connections_per_peer * clients // config.connections_max)

"""A broker's settings: `BrokerConfig`, an attribute for each key of a broker.conf.

A key keeps RocketMQ's spelling, meaning and default; trioha's own keys start with `trioha.`. The keys of who
the broker is are here, all others in `trioha.config.keys`, a module for each room:

| module | keys |
|---|---|
| `keys/server.py` | ports for clients, slaves and metrics; limits of what clients send |
| `keys/store.py` | files, flushes, deletion, the archive |
| `keys/ha.py` | replication |
| `keys/controller.py` | controller mode |
| `keys/metadata.py` | topics, groups and offsets, and a slave's copies of them |
| `keys/messages.py` | delays, pulls, consumers, transactions |
| `keys/security.py` | rules of a plain_acl.yml, and TLS |
| `keys/auth.py` | users and access control lists of RocketMQ 5 |

`trioha.config.values` parses values and documents where that differs from Java, `trioha.config.loading` reads
a file, and `trioha.config.checks` has what settings must not say together.
"""

# ruff: noqa: RUF009 - `setting` is a field specifier of attrs

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import Factory, frozen

from trioha.config import values
from trioha.config.keys.auth import AuthKeys
from trioha.config.keys.controller import ControllerKeys
from trioha.config.keys.ha import HaKeys
from trioha.config.keys.messages import MessageKeys
from trioha.config.keys.metadata import MetadataKeys
from trioha.config.keys.security import SecurityKeys
from trioha.config.keys.server import ServerKeys
from trioha.config.keys.store import StoreKeys
from trioha.config.setting import Setting, setting, settings_of
from trioha.config.values import LONG_MAX

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"


class BrokerRole(StrEnum):
    """Role of a broker in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """Accepts messages and waits for no slave."""
    SYNC_MASTER = "SYNC_MASTER"
    """Accepts messages and waits until enough slaves have acknowledged them."""
    SLAVE = "SLAVE"
    """Copies a master."""


class LogFormat(StrEnum):
    """Format of log lines on stderr."""

    CONSOLE = "console"
    """Text for people."""
    JSON = "json"
    """One JSON object a line."""


def local_address() -> str:
    """The IPv4 address of this host's default route, else 127.0.0.1.

    Connecting a datagram socket sends nothing; it only queries the routing table.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:  # a host without a route
            return "127.0.0.1"


@frozen(kw_only=True)
class BrokerConfig(
    AuthKeys, SecurityKeys, MessageKeys, MetadataKeys, ControllerKeys, HaKeys, StoreKeys, ServerKeys
):
    """The settings of one node, each valid by itself; `load_config` also checks combinations."""

    broker_cluster_name: str = setting("brokerClusterName", values.name, default="DefaultCluster")
    """Name of the cluster. RocketMQ default: DefaultCluster."""

    broker_name: str = setting("brokerName", values.name, default=Factory(socket.gethostname))
    """Name that a master and its slaves share. RocketMQ default: the host's name."""

    broker_id: int = setting("brokerId", values.integer(low=-1, high=LONG_MAX), default=0)
    """0 for a master, above 0 for a slave; -1 or nothing with `enable_controller_mode`. RocketMQ default:
    0."""

    broker_role: BrokerRole = setting(
        "brokerRole", values.one_of(BrokerRole), default=BrokerRole.ASYNC_MASTER
    )
    """Master or slave, and what a master waits for. RocketMQ default: ASYNC_MASTER."""

    broker_ip1: str = setting("brokerIP1", values.ip_address, default=Factory(local_address))
    """IP address announced to clients, and the store host in every record.

    RocketMQ default: an address of the host; here that of the default route.
    """

    broker_ip2: str = setting(
        "brokerIP2", values.name, default=Factory(lambda self: self.broker_ip1, takes_self=True)
    )
    """Host announced to slaves. RocketMQ default: an address of the host; here `broker_ip1`."""

    with_name_server: bool = setting("trioha.withNamesrv", values.boolean, default=False)
    """Whether the node runs a name server, too: at that address of `namesrv_addr` that is of this host."""

    namesrv_addr: tuple[str, ...] = setting(
        "namesrvAddr",
        values.addresses,
        default=Factory(
            lambda self: (DEFAULT_NAME_SERVER,) if self.with_name_server else (), takes_self=True
        ),
    )
    """Name servers that the broker registers with, `host:port` split by `;`.

    RocketMQ default: those of the environment variable NAMESRV_ADDR, here too; without them, and with
    `with_name_server`, the embedded one at 127.0.0.1:9876.
    """

    register_name_server_period: int = setting(
        "registerNameServerPeriod", values.integer(low=1), default=30000
    )
    """Milliseconds between two registrations with a name server. RocketMQ default: 30000.

    RocketMQ takes what is below 10000 for 10000, and what is above 60000 for 60000.
    """

    register_broker_timeout_mills: int = setting(
        "registerBrokerTimeoutMills", values.integer(low=1), default=24000
    )
    """Milliseconds that a name server has to answer a registration. RocketMQ default: 24000, in 4.9 6000."""

    record_dir: Path | None = setting("trioha.recordDir", values.optional_directory, default=None)
    """Directory in which each start of the node records a session; None records nothing."""

    log_format: LogFormat = setting("trioha.logFormat", values.one_of(LogFormat), default=LogFormat.CONSOLE)
    """Format of log lines."""

    @property
    def archive_keep_ms(self) -> int | None:
        """Milliseconds of `archive_keep`."""
        return None if self.archive_keep is None else values.duration_ms(self.archive_keep)

    @property
    def vip_port(self) -> int | None:
        """The second port for clients, `listen_port` - 2; None where there is no such port."""
        return self.listen_port - 2 if self.listen_port > 2 else None

    @property
    def slave_acks_needed(self) -> int:
        """Slaves that must acknowledge a message before its put is PUT_OK.

        See docs/protocol/ha.md#which-puts-wait.

        0 for ASYNC_MASTER; for SYNC_MASTER `in_sync_replicas` without the master, at least 1.
        """
        return max(1, self.in_sync_replicas - 1) if self.broker_role is BrokerRole.SYNC_MASTER else 0

    @property
    def ha_master_endpoint(self) -> tuple[str, int] | None:
        """Host and port of `ha_master_address`."""
        return None if self.ha_master_address is None else values.split_address(self.ha_master_address)


SETTINGS: Final[dict[str, Setting]] = settings_of(BrokerConfig)
"""The settings by attribute name."""
_BY_KEY: Final = {
    key: (attribute, setting)
    for attribute, setting in SETTINGS.items()
    for key in (setting.key, *setting.aliases)
}


def find_setting(key: str) -> tuple[str, Setting] | None:
    """Attribute and setting of a key or of another name of it; None for a key that is not used."""
    return _BY_KEY.get(key)

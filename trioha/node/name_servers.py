"""A node and name servers: the one that it may run itself, and its registration with those of namesrvAddr."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.errors import ConfigError
from trioha.metadata.topics import TopicTable
from trioha.net.tls import ServerTls
from trioha.node.addresses import ANY_ADDRESSES
from trioha.node.budget import DescriptorBudget
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import NO_SECURITY, ClientSecurity, open_client

if TYPE_CHECKING:
    from trioha.broker.registration import BrokerRegistration
    from trioha.namesrv.server import NameServer

LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
KV_CONFIG_PATH: Final = "namesrv/kvConfig.json"
"""The embedded name server's table, in the store's root."""


async def open_name_server(
    config: BrokerConfig, *, budget: DescriptorBudget, tls: ServerTls | None = None
) -> NameServer | None:
    """The name server that runs in the node itself; None without trioha.withNamesrv.

    Raises ConfigError if namesrvAddr has no address for it, StoreError if its table cannot be read.
    """
    if not config.with_name_server:
        return None
    from trioha.namesrv.server import NameServer  # noqa: PLC0415
    from trioha.namesrv.settings import NameServerSettings  # noqa: PLC0415

    address = embedded_address(config)
    settings = NameServerSettings(
        listen_port=address.port,
        bind_address=config.bind_address if config.bind_address in ANY_ADDRESSES else address.host,
        kv_config_path=config.store_path_root_dir / KV_CONFIG_PATH,
    )
    return await NameServer.open(settings, connections_max=budget.name_server_clients, tls=tls)


def embedded_address(config: BrokerConfig) -> Address:
    """The first address of namesrvAddr that is of this host. Raises ConfigError."""
    own = LOOPBACK | {config.broker_ip1, config.broker_ip2, config.bind_address}
    for text in config.namesrv_addr:
        address = parse_address(text)
        if address.host in own:
            return address
    raise ConfigError(
        f"{';'.join(config.namesrv_addr)} has no address of this host, which trioha.withNamesrv needs",
        key="namesrvAddr",
        hint="add HOST:PORT with brokerIP1, or leave namesrvAddr out for 127.0.0.1:9876",
    )


def registration_of(
    config: BrokerConfig,
    topics: TopicTable,
    *,
    listen: Address,
    ha_address: Address,
    on_master: Callable[[str], None],
    on_master_address: Callable[[str], None],
    security: ClientSecurity = NO_SECURITY,
) -> BrokerRegistration | None:
    """Registration with the name servers of namesrvAddr; None if there is none.

    `on_master` gets the HA address of a slave's master, `on_master_address` its address for clients.
    """
    if not config.namesrv_addr:
        return None
    from trioha.broker.registration import (  # noqa: PLC0415
        ANSWER_BYTES_MAX,
        BrokerEntry,
        BrokerRegistration,
    )

    return BrokerRegistration(
        config.namesrv_addr,
        BrokerEntry(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            address=str(listen),
            ha_address=str(ha_address),
            permission=config.broker_permission,
        ),
        topics,
        period_s=config.register_name_server_period / 1000,
        timeout_s=config.register_broker_timeout_mills / 1000,
        on_master=on_master if config.broker_role is BrokerRole.SLAVE else None,
        on_master_address=on_master_address if config.broker_role is BrokerRole.SLAVE else None,
        connect=partial(open_client, frame_bytes_max=ANSWER_BYTES_MAX, security=security),
    )

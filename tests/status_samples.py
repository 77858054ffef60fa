"""The status of a broker, as tests need it: a master in sync, its slave, and what a test changes in them."""

from __future__ import annotations

from typing import Any

from trioha.broker_status import BrokerStatus, ConnectionStatus, SlaveStatus

MASTER = "127.0.0.1:10911"
SLAVE = "127.0.0.1:10921"
HA_ADDRESS = "127.0.0.1:10912"
_NAMES = {"cluster_name": "DefaultCluster", "broker_name": "broker-a", "version": "trioha 0.1.0"}


def connection_status(
    address: str = "127.0.0.1:40000",
    *,
    sent: int,
    ack: int | None = None,
    lag: int | None = None,
    **fields: Any,
) -> ConnectionStatus:
    """A slave's connection; without `ack` and `lag` it has acknowledged everything that was sent."""
    ack = sent if ack is None else ack
    return ConnectionStatus(
        **{
            "address": address,
            "sent_offset": sent,
            "ack_offset": ack,
            "lag_bytes": sent - ack if lag is None else lag,
            "in_sync": True,
            "state": "TRANSFER",
            **fields,
        }
    )


def master_status(max_offset: int, *connections: ConnectionStatus, **fields: Any) -> BrokerStatus:
    """A master with these connections, whose log is on disk."""
    return BrokerStatus(
        **{
            **_NAMES,
            "role": "SYNC_MASTER",
            "broker_id": 0,
            "min_offset": 0,
            "max_offset": max_offset,
            "flushed_offset": max_offset,
            "ha_address": HA_ADDRESS,
            "in_sync_slaves": sum(connection.in_sync for connection in connections),
            "connections": connections,
            **fields,
        }
    )


def slave_status(
    max_offset: int, *, reported: int | None = None, client: dict[str, Any] | None = None, **fields: Any
) -> BrokerStatus:
    """A slave that has reported its whole log, or up to `reported`; `client`: fields of its connection."""
    link = {
        "master_address": HA_ADDRESS,
        "max_offset": max_offset,
        "reported_offset": max_offset if reported is None else reported,
        "state": "TRANSFER",
        "reconnects": 0,
        **(client or {}),
    }
    return BrokerStatus(
        **{
            **_NAMES,
            "role": "SLAVE",
            "broker_id": 1,
            "min_offset": 0,
            "max_offset": max_offset,
            "flushed_offset": max_offset,
            "client": SlaveStatus(**link),
            **fields,
        }
    )

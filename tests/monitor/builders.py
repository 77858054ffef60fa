"""Status of nodes, for the monitor's tests."""

from __future__ import annotations

from trioha.broker_status import BrokerStatus, ConnectionStatus, SlaveStatus

MASTER = "127.0.0.1:10911"
SLAVE = "127.0.0.1:10921"


def connection(
    address: str, *, sent: int, ack: int, lag: int, in_sync: bool = True, state: str | None = "TRANSFER"
) -> ConnectionStatus:
    return ConnectionStatus(
        address=address,
        sent_offset=sent,
        ack_offset=ack,
        lag_bytes=lag,
        in_sync=in_sync,
        transferred_bytes_per_s=0,
        state=state,
        lag_ms=None if state is None else lag // 1000,
        connection_id=None,
    )


def master(
    max_offset: int, *connections: ConnectionStatus, address: str = MASTER, role: str = "SYNC_MASTER"
) -> BrokerStatus:
    return BrokerStatus(
        address=address,
        source="ha-status",
        role=role,
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        broker_id=0,
        version="trioha 0.1.0",
        min_offset=0,
        max_offset=max_offset,
        flushed_offset=max_offset,
        ha_address="127.0.0.1:10912",
        in_sync_slaves=sum(connection.in_sync for connection in connections),
        connections=connections,
    )


def slave(
    max_offset: int, *, address: str = SLAVE, broker_id: int = 1, reported: int | None = None
) -> BrokerStatus:
    return BrokerStatus(
        address=address,
        source="ha-status",
        role="SLAVE",
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        broker_id=broker_id,
        version="trioha 0.1.0",
        min_offset=0,
        max_offset=max_offset,
        flushed_offset=max_offset,
        ha_address=None,
        in_sync_slaves=None,
        client=SlaveStatus(
            master_address="127.0.0.1:10912",
            max_offset=max_offset,
            transferred_bytes_per_s=0,
            last_read_ms=0,
            last_write_ms=0,
            reported_offset=max_offset if reported is None else reported,
            state="TRANSFER",
            reconnects=0,
        ),
    )

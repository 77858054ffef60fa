"""The status of nodes as the monitor's feed gives it."""

from __future__ import annotations

from attrs import evolve

from tests.status_samples import MASTER, SLAVE, connection_status, master_status, slave_status
from trioha.broker_status import BrokerStatus, ConnectionStatus


def connection(
    address: str, *, sent: int, ack: int, lag: int, in_sync: bool = True, state: str | None = "TRANSFER"
) -> ConnectionStatus:
    """A slave's connection; one of RocketMQ has no state, and no age of what it lacks."""
    told = connection_status(address, sent=sent, ack=ack, lag=lag, in_sync=in_sync, state=state)
    return evolve(told, lag_ms=None if state is None else lag // 1000)


def master(max_offset: int, *connections: ConnectionStatus, address: str = MASTER) -> BrokerStatus:
    """A master's answer."""
    return master_status(max_offset, *connections, address=address, source="ha-status")


def slave(max_offset: int, *, address: str = SLAVE, broker_id: int = 1) -> BrokerStatus:
    """A slave's answer."""
    told = slave_status(max_offset, address=address, broker_id=broker_id, source="ha-status")
    assert told.client is not None
    return evolve(told, client=evolve(told.client, last_read_ms=0, last_write_ms=0))

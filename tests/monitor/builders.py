"""Statuses and snapshots for the monitor's tests, built through the real model."""

from __future__ import annotations

from datetime import UTC, datetime
from math import sin

from trioha.remoting.status import BrokerStatus, ConnectionStatus, SlaveClientStatus
from trioha_monitor.model import ClusterModel, Sample, Snapshot

MASTER = "127.0.0.1:10911"
SLAVE = "127.0.0.1:10921"
LOST_SLAVE = "127.0.0.1:10931"
SILENT = "10.0.0.9:10911"


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
        client=SlaveClientStatus(
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


def example_snapshot() -> Snapshot:
    """Two minutes of a master with two slaves: one falls back for a while, one is lost."""
    model = ClusterModel([MASTER, SLAVE, LOST_SLAVE, SILENT], interval_s=0.2)
    at_s = 0.0
    for tick in range(650):
        at_s = 1000 + tick * 0.2
        max_offset = 41_234_567 + tick * 240_000
        near = int(60_000 + 50_000 * sin(tick / 9))
        if 400 <= tick < 450:
            near = (tick - 400) * 60_000 if tick < 440 else (450 - tick) * 240_000
        far = int(900_000 * (1 + sin(tick / 40)))
        listed = [connection("127.0.0.1:43112", sent=max_offset, ack=max_offset - near, lag=near)]
        if tick < 600:
            in_sync = far < 1_600_000
            listed.append(
                connection(
                    "127.0.0.1:43188",
                    sent=max_offset - far // 2,
                    ack=max_offset - far,
                    lag=far,
                    in_sync=in_sync,
                )
            )
        model.observe(Sample(MASTER, at_s=at_s, status=master(max_offset, *listed)))
        model.observe(Sample(SLAVE, at_s=at_s, status=slave(max_offset - near)))
        if tick < 600:
            status = slave(max_offset - far, address=LOST_SLAVE, broker_id=2)
            model.observe(Sample(LOST_SLAVE, at_s=at_s, status=status))
        else:
            model.observe(Sample(LOST_SLAVE, at_s=at_s, fault="Connection refused"))
    wall_time = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    return model.snapshot(at_s + 0.1, wall_time=wall_time)

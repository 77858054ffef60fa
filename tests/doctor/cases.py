"""Facts of healthy pairs of each kind, to be changed by tests."""

from __future__ import annotations

from typing import Any, Final

from attrs import evolve, frozen

from tests.status_samples import connection_status, master_status, slave_status
from trioha.broker_status import (
    BrokerSettings,
    MetadataStatus,
    SlaveStatus,
    TableCopyStatus,
)
from trioha.doctor.conf_files import conf_facts
from trioha.doctor.diagnosis import diagnose
from trioha.doctor.facts import BrokerFacts, ClockReading, ConfFacts, Facts, NameServerFacts, Probe
from trioha.doctor.findings import Finding
from trioha.doctor.tables import OffsetTable, Table, Tables

KINDS: Final = ("trioha", "4.9.7", "5.3.3", "5.5.0")
VERSIONS: Final = {"trioha": "0.1.0", "4.9.7": "V4_9_7", "5.3.3": "V5_3_3", "5.5.0": "V5_5_0"}
END: Final = 50_000
FILE_BYTES: Final = 10_000
NOW_MS: Final = 1_700_000_000_000
MASTER: Final = "10.0.0.1:10911"
SLAVE: Final = "10.0.0.2:10911"
CLIENT: Final = "10.0.0.9"
"""Where the doctor runs."""


def clock(*, ahead_ms: int = 0, uptime_s: int = 3600) -> ClockReading:
    """The clock of a broker, `ahead_ms` ahead of ours."""
    return ClockReading(
        ahead_ms_min=ahead_ms, ahead_ms_max=ahead_ms + 1000, now_ms=NOW_MS + ahead_ms, uptime_s=uptime_s
    )


def tables(
    topics: tuple[str, ...] = ("Orders",),
    *,
    groups: tuple[str, ...] = ("billing",),
    offset: int | None = 7,
    delay: int | None = 3,
    changed_ms: int = NOW_MS - 3_000_000,
) -> Tables:
    """Tables with these topics and groups, and one offset of each kind."""
    return Tables(
        topics=Table(entries=dict.fromkeys(topics, (4, 4, 6)), changed_ms=changed_ms),
        groups=Table(entries=dict.fromkeys(groups, (1, 16)), changed_ms=changed_ms),
        consumer_offsets=OffsetTable(offsets={} if offset is None else {"Orders@billing": {0: offset}}),
        delay_offsets=OffsetTable(offsets={"": {} if delay is None else {1: delay}}),
    )


def metadata_copies(
    *, address: str | None = MASTER, age_ms: int | None = 5_000, error: str = ""
) -> MetadataStatus:
    """How a trioha slave copied two tables."""
    step = TableCopyStatus(age_ms=age_ms, entries=1, failures=int(bool(error)), error=error)
    return MetadataStatus(
        master_address=address, tables={"topics": step, "consumerOffsets": step, "delayOffsets": step}
    )


@frozen
class PairFacts:
    """A master and its slave."""

    kind: str
    master: BrokerFacts
    slave: BrokerFacts

    def with_master(self, **changes: Any) -> PairFacts:
        return evolve(self, master=evolve(self.master, **changes))

    def with_slave(self, **changes: Any) -> PairFacts:
        return evolve(self, slave=evolve(self.slave, **changes))

    def with_master_status(self, **changes: Any) -> PairFacts:
        assert self.master.status is not None
        return self.with_master(status=evolve(self.master.status, **changes))

    def with_slave_status(self, **changes: Any) -> PairFacts:
        assert self.slave.status is not None
        return self.with_slave(status=evolve(self.slave.status, **changes))

    def with_client(self, **changes: Any) -> PairFacts:
        assert self.slave.status is not None
        assert self.slave.status.client is not None
        return self.with_slave_status(client=evolve(self.slave.status.client, **changes))

    def with_connection(self, **changes: Any) -> PairFacts:
        assert self.master.status is not None
        (connection,) = self.master.status.connections
        return self.with_master_status(connections=(evolve(connection, **changes),))

    def with_master_config(self, **config: str) -> PairFacts:
        return self.with_master(config={**(self.master.config or {}), **config})

    def with_slave_config(self, **config: str) -> PairFacts:
        return self.with_slave(config={**(self.slave.config or {}), **config})

    def facts(self, *files: ConfFacts, name_servers: tuple[NameServerFacts, ...] = (), **more: Any) -> Facts:
        return Facts(brokers=(self.master, self.slave), files=files, name_servers=name_servers, **more)

    def findings(self, *files: ConfFacts, **more: Any) -> list[Finding]:
        return diagnose(self.facts(*files, **more))


def pair(kind: str = "trioha", *, role: str = "SYNC_MASTER", copies: int = 2) -> PairFacts:
    """A healthy pair of a kind, examined from a third host that reaches no HA port."""
    return PairFacts(kind, _master(kind, role, copies), _slave(kind))


def conf(text: str, *, path: str = "broker.conf") -> ConfFacts:
    """The facts of a file with these lines, written with `;` between them."""
    return conf_facts(text.replace("; ", "\n").encode(), path=path)


def _config(kind: str, host: str, *, broker_id: int, role: str, copies: int) -> dict[str, str]:
    config = {
        "brokerClusterName": "c",
        "brokerName": "broker-a",
        "brokerId": str(broker_id),
        "brokerRole": role,
        "brokerIP1": host,
        "brokerIP2": host,
        "listenPort": "10911",
        "haListenPort": "10912",
        "namesrvAddr": "10.0.0.5:9876",
        "mappedFileSizeCommitLog": str(FILE_BYTES),
        "haSendHeartbeatInterval": "5000",
        "haHousekeepingInterval": "20000",
        "haTransferBatchSize": "32768",
        "fileReservedTime": "72",
        "slaveTimeout": "3000",
    }
    if kind == "4.9.7":
        return {**config, "haSlaveFallbehindMax": "268435456"}
    return {**config, "haMaxGapNotInSync": "268435456", "inSyncReplicas": str(copies)}


def _settings() -> BrokerSettings:
    return BrokerSettings(
        gap_bytes_max=268435456,
        slave_timeout_ms=3000,
        housekeeping_ms=20000,
        heartbeat_ms=5000,
        file_bytes=FILE_BYTES,
        reserved_h=72,
        disk_percent_max=75,
    )


def _probe(address: str) -> Probe:
    return Probe(address=address, error="Connection refused")


def _reachable(address: str, host: str) -> Probe:
    return Probe(address=address, local_host=CLIENT, peer_host=host)


def _master(kind: str, role: str, copies: int) -> BrokerFacts:
    reports = kind != "4.9.7"
    state = "TRANSFER" if kind == "trioha" else None
    connections = (connection_status("10.0.0.2:40000", sent=END, state=state),) if reports else ()
    status = master_status(
        END,
        *connections,
        address=MASTER,
        source="ha-status" if reports else "runtime-info",
        role=role,
        cluster_name="c",
        version=VERSIONS[kind],
        flushed_offset=END if kind == "trioha" else None,
        ha_address="10.0.0.1:10912",
        in_sync_slaves=1 if reports else None,
        settings=_settings(),
    )
    return BrokerFacts(
        address=MASTER,
        peer_host="10.0.0.1",
        status=status,
        config=_config(kind, "10.0.0.1", broker_id=0, role=role, copies=copies),
        clock=clock(),
        tables=tables(),
        vip=_reachable("10.0.0.1:10909", "10.0.0.1"),
        ha=_probe("10.0.0.1:10912"),
    )


def _slave(kind: str) -> BrokerFacts:
    client = SlaveStatus(
        master_address="10.0.0.1:10912",
        max_offset=END,
        last_read_ms=NOW_MS - 1000,
        last_write_ms=NOW_MS - 1000,
        state="TRANSFER" if kind == "trioha" else None,
        verdict="" if kind == "trioha" else None,
    )
    status = slave_status(
        END,
        address=SLAVE,
        source="runtime-info" if kind == "4.9.7" else "ha-status",
        cluster_name="c",
        version=VERSIONS[kind],
        flushed_offset=END if kind == "trioha" else None,
        ha_address="10.0.0.2:10912",
    )
    status = evolve(status, client=None if kind == "4.9.7" else client, settings=_settings())
    return BrokerFacts(
        address=SLAVE,
        peer_host="10.0.0.2",
        status=status,
        config=_config(kind, "10.0.0.2", broker_id=1, role="SLAVE", copies=1),
        clock=clock(),
        tables=tables(),
        vip=_reachable("10.0.0.2:10909", "10.0.0.2"),
        ha=_probe("10.0.0.2:10912"),
    )

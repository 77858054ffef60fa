"""What a broker says of itself and of its replication: one model for trioha and for real RocketMQ.

GET_BROKER_HA_STATUS (907, 5.x and trioha) answers with RocketMQ's HARuntimeInfo, to which trioha adds what
the broker it copies does not say: connection states, lag in time, put results. fastjson ignores keys that it
does not know, so Java's `mqadmin haStatus` reads trioha's answer too. Of a real broker, runtime info (28)
tells the minimum offset and version, and all offsets where 907 is not known (4.9); its configuration (26)
tells the exact role, the names and the limits of replication.

What a broker does not tell is None: versions differ, and a monitor shows what there is.

Mirrors spec ha 7 and remoting 5, 5.1.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii as _quote
from typing import Literal

from attrs import Factory, field, frozen

from trioha.distribution import Distribution
from trioha.errors import RemoteProtocolError
from trioha.numbers import I64, NATURAL64, parse_int
from trioha.remoting.fastjson import JsonLimits, parse_json, shown

ROLE_UNKNOWN = "UNKNOWN"
"""A peer that says neither by 907 nor by its configuration what it is."""
_CAPACITY = re.compile(r"Total\s*:\s*([0-9.]+)\s*(\w+),\s*Free\s*:\s*([0-9.]+)\s*(\w+)")
_DECIMAL = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
"""A number as Java's `Double.toString` and formats write it; `float` alone would also take other digits,
blanks, underscores and `nan`."""
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}


@frozen
class ConnectionStatus:
    """One HA connection, as its master sees it."""

    address: str
    """The slave's socket, `host:port`."""
    sent_offset: int
    """Next byte to send on this connection."""
    ack_offset: int
    """What the slave has acknowledged."""
    lag_bytes: int
    """Master's max offset less `ack_offset`; negative for an ack that lies."""
    in_sync: bool
    """Behind by less than haMaxGapNotInSync."""
    transferred_bytes_per_s: int
    state: str | None = None
    """RocketMQ's name of the connection state; only trioha says it."""
    lag_ms: int | None = None
    """How long ago the master's log ended where the slave's ack is; only trioha says it."""
    connection_id: int | None = None
    """The connection's number in the master's recording; only trioha says it."""
    heard_ms: int | None = None
    """How long ago the master read anything from the slave; only trioha says it."""
    ack_latency_us: Distribution[int] | None = None
    """From sending a frame to its ack, in microseconds; only trioha says it."""
    frame_bytes: Distribution[int] | None = None
    """Bodies of the frames sent; only trioha says it."""

    @property
    def is_probe(self) -> bool:
        """Whether its peer has not sent a valid request: a health check, or a slave that just connected."""
        if self.state is not None:
            return self.state == "HANDSHAKE"
        return self.sent_offset < 0 and self.ack_offset < 0


@frozen
class SlaveClientStatus:
    """A slave's connection to its master, as the slave sees it."""

    master_address: str | None
    """The master's HA address; None while there is none."""
    max_offset: int
    """End of the slave's own log."""
    transferred_bytes_per_s: int
    last_read_ms: int
    """Wall clock in ms since 1970 of the last bytes from the master; 0 for never."""
    last_write_ms: int
    """Wall clock in ms since 1970 of the last report to the master; 0 for never."""
    reported_offset: int | None = None
    """Last offset reported to the master; only trioha says it."""
    state: str | None = None
    reconnects: int | None = None
    verdict: str | None = None
    """What keeps the slave from following its master, empty if nothing does; only trioha says it."""
    local_address: str | None = None
    """Its own end of the connection, which its master lists it by; None without one. Only trioha says it."""
    is_observer: bool | None = None
    """Whether it takes everything and acknowledges nothing; only trioha says it."""


@frozen
class BrokerSettings:
    """What of a broker's configuration replication and its log are measured by."""

    gap_bytes_max: int | None = None
    """haMaxGapNotInSync (4.9: haSlaveFallbehindMax)."""
    slave_timeout_ms: int | None = None
    housekeeping_ms: int | None = None
    """haHousekeepingInterval."""
    heartbeat_ms: int | None = None
    """haSendHeartbeatInterval."""
    file_bytes: int | None = None
    """mappedFileSizeCommitLog."""
    reserved_h: int | None = None
    """fileReservedTime."""
    disk_percent_max: int | None = None
    """diskMaxUsedSpaceRatio."""

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> BrokerSettings:
        """What the configuration of a real broker says; None for what it does not say, or not as a number."""
        gap = _number(config, "haMaxGapNotInSync")
        return cls(
            gap_bytes_max=_number(config, "haSlaveFallbehindMax") if gap is None else gap,
            slave_timeout_ms=_number(config, "slaveTimeout"),
            housekeeping_ms=_number(config, "haHousekeepingInterval"),
            heartbeat_ms=_number(config, "haSendHeartbeatInterval"),
            file_bytes=_number(config, "mappedFileSizeCommitLog"),
            reserved_h=_number(config, "fileReservedTime"),
            disk_percent_max=_number(config, "diskMaxUsedSpaceRatio"),
        )

    def to_json(self) -> dict[str, int]:
        """By RocketMQ's names, what is None left out."""
        return {
            key: value for key, name in _SETTING_KEYS.items() if (value := getattr(self, name)) is not None
        }

    @classmethod
    def from_json(cls, fields: JsonFields) -> BrokerSettings:
        """The value of `to_json`."""
        return cls(**{name: fields.optional_integer(key) for key, name in _SETTING_KEYS.items()})


_SETTING_KEYS = {
    "haMaxGapNotInSync": "gap_bytes_max",
    "slaveTimeout": "slave_timeout_ms",
    "haHousekeepingInterval": "housekeeping_ms",
    "haSendHeartbeatInterval": "heartbeat_ms",
    "mappedFileSizeCommitLog": "file_bytes",
    "fileReservedTime": "reserved_h",
    "diskMaxUsedSpaceRatio": "disk_percent_max",
}


@frozen
class BrokerRuntimeInfo:
    """What only the runtime table (28) tells, of the moment when it was last asked for."""

    booted_ms: int | None = None
    """Wall clock in ms since 1970 of the broker's start."""
    earliest_ms: int | None = None
    """When its first message was stored, ms since 1970; None for a log without one."""
    put_messages_per_s: float | None = None
    """Over the last 10 s."""
    puts_total: int | None = None
    """Since the start."""
    puts_failed: int | None = None
    """Of them."""
    unflushed_bytes: int | None = None
    """What was not on disk yet; real brokers round it to three digits and more."""
    disk_ratio: float | None = None
    """Used part of the log's disk, 0 to 1."""
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None

    @classmethod
    def from_table(cls, table: Mapping[str, str]) -> BrokerRuntimeInfo:
        """What a runtime table says; None for what it does not say, or not as a number."""
        earliest_ms = _number(table, "earliestMessageTimeStamp")
        capacity = _CAPACITY.search(table.get("commitLogDirCapacity", ""))
        ratio = _float(table.get("commitLogDiskRatio", ""))
        return cls(
            booted_ms=_number(table, "bootTimestamp"),
            earliest_ms=earliest_ms if earliest_ms is not None and earliest_ms > 0 else None,
            put_messages_per_s=_float(table.get("putTps", "").partition(" ")[0]),
            puts_total=_number(table, "putMessageTimesTotal"),
            puts_failed=_number(table, "putMessageFailedTimes"),
            unflushed_bytes=_size(*table.get("remainHowManyDataToFlush", "").partition(" ")[::2]),
            disk_ratio=ratio if ratio is not None and 0 <= ratio <= 1 else None,
            disk_total_bytes=None if capacity is None else _size(capacity[1], capacity[2]),
            disk_free_bytes=None if capacity is None else _size(capacity[3], capacity[4]),
        )


def _number(pairs: Mapping[str, str], key: str) -> int | None:
    try:
        return parse_int(pairs.get(key), NATURAL64)
    except ValueError:
        return None


def _float(text: str) -> float | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    value = float(text)
    # Larger than any Java long, it is nonsense.
    return value if value < 2**63 else None


def _size(number: str, unit: str) -> int | None:
    count, factor = _float(number), _UNITS.get(unit)
    return None if count is None or factor is None else round(count * factor)


@frozen
class BrokerStatus:
    """A broker at one moment."""

    address: str
    """The address that was asked."""
    source: Literal["ha-status", "runtime-info"]
    """Which request told it: 907, or 28 where 907 is not known."""
    role: str
    """SYNC_MASTER, ASYNC_MASTER or SLAVE; MASTER where the peer does not say which, UNKNOWN where it says
    nothing."""
    cluster_name: str | None
    broker_name: str | None
    broker_id: int | None
    version: str | None
    min_offset: int | None
    """First byte of the log."""
    max_offset: int
    """End of the log."""
    flushed_offset: int | None
    ha_address: str | None
    """Where the broker listens for slaves."""
    in_sync_slaves: int | None
    """Slaves in sync, the master itself not counted."""
    connections: tuple[ConnectionStatus, ...] = ()
    unread_connections: int = 0
    """Connections that were listed beyond those that the reader takes."""
    unread_probes: int = 0
    """The same of connections whose peer has not asked for anything (`ConnectionStatus.is_probe`)."""
    answer_bytes: int = field(default=0, eq=False)
    """Bytes of the bodies that were parsed for it: what it cost its reader."""
    client: SlaveClientStatus | None = None
    """On a slave: its connection to the master."""
    ended_connections: Mapping[str, int] = Factory(dict)
    """How many HA connections ended for which reason since the start; empty where unknown."""
    probes: Mapping[str, Mapping[str, int]] = Factory(dict)
    """Connections at the HA port that asked for nothing since the start, by host and reason; `other` stands
    for hosts beyond the number that is told apart. Only trioha says it."""
    put_statuses: Mapping[str, int] = Factory(dict)
    """How many puts ended with each PutMessageStatus since the start; empty where unknown."""
    dispatched_offset: int | None = None
    """Everything before it is in consume queues and index."""
    dispatch_fault: str = ""
    """The last record that could not be dispatched, empty if there is none; only trioha says it."""
    settings: BrokerSettings = BrokerSettings()
    table: BrokerRuntimeInfo = BrokerRuntimeInfo()
    files: int | None = None
    """Files of the log; only trioha says it."""
    warnings: tuple[str, ...] = ()
    """What the broker warns of in its own configuration; only trioha says it."""


@frozen
class HaClientExtras:
    """What trioha adds to `haClientRuntimeInfo`."""

    state: str
    reported_offset: int
    reconnects: int
    verdict: str = ""
    local_address: str | None = None
    is_observer: bool | None = None


@frozen
class HaExtras:
    """What trioha adds to HARuntimeInfo, under the key `trioha`."""

    version: str
    role: str
    cluster_name: str
    broker_name: str
    broker_id: int
    min_offset: int
    flushed_offset: int
    ha_address: str
    client: HaClientExtras | None = None
    put_statuses: Mapping[str, int] = Factory(dict)
    ended_connections: Mapping[str, int] = Factory(dict)
    probes: Mapping[str, Mapping[str, int]] = Factory(dict)
    dispatched_offset: int | None = None
    dispatch_fault: str = ""
    settings: BrokerSettings = BrokerSettings()
    files: int | None = None
    warnings: tuple[str, ...] = ()


@frozen
class HaRuntimeInfo:
    """RocketMQ's HARuntimeInfo, the answer to 907 (spec ha 7), with trioha's additions if there are any."""

    master: bool
    master_max_offset: int
    """0 on a slave, as with the real broker."""
    in_sync_slaves: int
    """The master itself not counted."""
    connections: tuple[ConnectionStatus, ...] = ()
    client: SlaveClientStatus = SlaveClientStatus(None, 0, 0, 0, 0)
    """On a master all zeros: RocketMQ always sends the object."""
    master_flush_offset: int = 0
    extras: HaExtras | None = None
    unread_connections: int = 0
    """As in `BrokerStatus`."""
    unread_probes: int = 0

    def to_json(self) -> bytes:
        """The response body, RocketMQ's keys in RocketMQ's order, nulls left out."""
        client = self.client
        master = f'"masterAddr":{_quote(client.master_address)},' if client.master_address is not None else ""
        connections = ",".join([_connection_to_text(connection) for connection in self.connections])
        extras = "" if self.extras is None else f',"trioha":{_extras_to_text(self.extras)}'
        return (
            f'{{"haClientRuntimeInfo":{{"lastReadTimestamp":{client.last_read_ms:d},'
            f'"lastWriteTimestamp":{client.last_write_ms:d},{master}'
            f'"masterFlushOffset":{self.master_flush_offset:d},"maxOffset":{client.max_offset:d},'
            f'"transferredByteInSecond":{client.transferred_bytes_per_s:d}}},"haConnectionInfo":[{connections}],'
            f'"inSyncSlaveNums":{self.in_sync_slaves:d},"master":{"true" if self.master else "false"},'
            f'"masterCommitLogMaxOffset":{self.master_max_offset:d}{extras}}}'
        ).encode()

    @classmethod
    def from_json(
        cls, body: bytes | memoryview, *, connections_max: int | None = None, limits: JsonLimits | None = None
    ) -> HaRuntimeInfo:
        """The value of a response body of a real broker or of trioha; missing keys count as zero.

        Beyond `connections_max` connections are counted and not read, those of probes first.
        `limits` are those of `parse_json`. Raises RemoteProtocolError for a body that is not a
        HARuntimeInfo.
        """
        whole = JsonFields.of(parse_json(body, limits=limits), "HARuntimeInfo")
        connections, unread_connections, unread_probes = _connections_from_json(whole, connections_max)
        client = whole.inner("haClientRuntimeInfo")
        extras = whole.inner("trioha")
        client_extras = extras.inner("client")
        return cls(
            master=whole.boolean("master"),
            master_max_offset=whole.integer("masterCommitLogMaxOffset"),
            in_sync_slaves=whole.integer("inSyncSlaveNums"),
            connections=connections,
            client=SlaveClientStatus(
                master_address=client.text("masterAddr"),
                max_offset=client.integer("maxOffset"),
                transferred_bytes_per_s=client.integer("transferredByteInSecond"),
                last_read_ms=client.integer("lastReadTimestamp"),
                last_write_ms=client.integer("lastWriteTimestamp"),
                reported_offset=client_extras.optional_integer("reportedOffset"),
                state=client_extras.text("state"),
                reconnects=client_extras.optional_integer("reconnects"),
                verdict=client_extras.text("verdict"),
                local_address=client_extras.text("localAddress"),
                is_observer=client_extras.optional_boolean("observer"),
            ),
            master_flush_offset=client.integer("masterFlushOffset"),
            extras=_extras_from_json(extras) if "trioha" in whole else None,
            unread_connections=unread_connections,
            unread_probes=unread_probes,
        )


def _connection_to_text(one: ConnectionStatus) -> str:
    # Built by hand, in half the time of json.dumps: a master answers this for every slave that it has.
    known = ""
    if one.ack_latency_us is not None:
        known += f',"ackLatencyMicros":{_distribution_to_text(one.ack_latency_us)}'
    if one.connection_id is not None:
        known += f',"connectionId":{one.connection_id:d}'
    known += f',"diff":{one.lag_bytes:d}'
    if one.frame_bytes is not None:
        known += f',"frameBytes":{_distribution_to_text(one.frame_bytes)}'
    if one.heard_ms is not None:
        known += f',"heardMillis":{one.heard_ms:d}'
    known += f',"inSync":{"true" if one.in_sync else "false"}'
    if one.lag_ms is not None:
        known += f',"lagMillis":{one.lag_ms:d}'
    known += f',"slaveAckOffset":{one.ack_offset:d}'
    if one.state is not None:
        known += f',"state":{_quote(one.state)}'
    return (
        f'{{"addr":{_quote(one.address)}{known},"transferFromWhere":{one.sent_offset:d},'
        f'"transferredByteInSecond":{one.transferred_bytes_per_s:d}}}'
    )


def _distribution_to_text(distribution: Distribution[int]) -> str:
    return f"[{distribution.p50:d},{distribution.p99:d},{distribution.largest:d},{distribution.count:d}]"


def _connections_from_json(
    whole: JsonFields, connections_max: int | None
) -> tuple[tuple[ConnectionStatus, ...], int, int]:
    """Connections, and how many more replicas' and probes' there are beyond `connections_max`."""
    name = "haConnectionInfo"
    listed = whole.get(name) or []
    unread_connections = unread_probes = 0
    if connections_max is not None and isinstance(listed, list) and len(listed) > connections_max:
        # To make a value of each entry costs fifty times as much as to look at its state.
        asked = [item for item in listed if not _may_be_probe(item)]
        unread_connections = max(0, len(asked) - connections_max)
        unread_probes = len(listed) - len(asked)
        whole[name] = asked[:connections_max]
    connections = tuple(_connection_from_json(fields) for fields in whole.objects(name))
    return connections, unread_connections, unread_probes


def _may_be_probe(item: object) -> bool:
    """`ConnectionStatus.is_probe` of an entry that was not read; False for what is no connection."""
    if not isinstance(item, dict):
        return False
    state = item.get("state")
    return state == "HANDSHAKE" if state is not None else item.get("slaveAckOffset") == -1


def _connection_from_json(fields: JsonFields) -> ConnectionStatus:
    return ConnectionStatus(
        address=fields.text("addr") or "",
        sent_offset=fields.integer("transferFromWhere"),
        ack_offset=fields.integer("slaveAckOffset"),
        lag_bytes=fields.integer("diff"),
        in_sync=fields.boolean("inSync"),
        transferred_bytes_per_s=fields.integer("transferredByteInSecond"),
        state=fields.text("state"),
        lag_ms=fields.optional_integer("lagMillis"),
        connection_id=fields.optional_integer("connectionId"),
        heard_ms=fields.optional_integer("heardMillis"),
        ack_latency_us=_distribution_from_json(fields, "ackLatencyMicros"),
        frame_bytes=_distribution_from_json(fields, "frameBytes"),
    )


def _distribution_from_json(fields: JsonFields, name: str) -> Distribution[int] | None:
    numbers = fields.four_integers(name)
    return None if numbers is None else Distribution(*numbers)


def _extras_to_text(extras: HaExtras) -> str:
    # What a node says of itself never moves, and is written once.
    told = _identity_to_text(
        (extras.version, extras.role, extras.cluster_name, extras.broker_name, extras.ha_address),
        extras.broker_id,
        extras.settings,
        extras.warnings,
    )
    if extras.client is not None:
        told += f',"client":{_client_to_text(extras.client)}'
    if extras.dispatched_offset is not None:
        told += f',"dispatchedOffset":{extras.dispatched_offset:d}'
    if extras.dispatch_fault:
        told += f',"dispatchFault":{_quote(extras.dispatch_fault)}'
    if extras.files is not None:
        told += f',"files":{extras.files:d}'
    if extras.probes:
        hosts = [f"{_quote(host)}:{_counts_to_text(reasons)}" for host, reasons in extras.probes.items()]
        told += f',"probes":{{{",".join(hosts)}}}'
    return (
        f'{{{told},"minOffset":{extras.min_offset:d},"flushedOffset":{extras.flushed_offset:d},'
        f'"putStatuses":{_counts_to_text(extras.put_statuses)},'
        f'"endedConnections":{_counts_to_text(extras.ended_connections)}}}'
    )


@lru_cache(maxsize=8)
def _identity_to_text(
    names: tuple[str, str, str, str, str], broker_id: int, settings: BrokerSettings, warnings: tuple[str, ...]
) -> str:
    version, role, cluster_name, broker_name, ha_address = names
    told: dict[str, object] = {
        "version": version,
        "role": role,
        "clusterName": cluster_name,
        "brokerName": broker_name,
        "brokerId": broker_id,
        "haAddress": ha_address,
    }
    if known := settings.to_json():
        told["settings"] = known
    if warnings:
        told["warnings"] = warnings
    return json.dumps(told, separators=(",", ":"))[1:-1]


def _client_to_text(client: HaClientExtras) -> str:
    told = f'"state":{_quote(client.state)},"reportedOffset":{client.reported_offset:d}'
    told += f',"reconnects":{client.reconnects:d},"verdict":{_quote(client.verdict)}'
    if client.local_address is not None:
        told += f',"localAddress":{_quote(client.local_address)}'
    if client.is_observer is not None:
        told += f',"observer":{"true" if client.is_observer else "false"}'
    return f"{{{told}}}"


def _counts_to_text(counts: Mapping[str, int]) -> str:
    return "{" + ",".join([f"{_quote(name)}:{count:d}" for name, count in counts.items()]) + "}"


def _extras_from_json(fields: JsonFields) -> HaExtras:
    client = fields.inner("client")
    probes = fields.inner("probes")
    return HaExtras(
        version=fields.text("version") or "",
        role=fields.text("role") or ROLE_UNKNOWN,
        cluster_name=fields.text("clusterName") or "",
        broker_name=fields.text("brokerName") or "",
        broker_id=fields.integer("brokerId"),
        min_offset=fields.integer("minOffset"),
        flushed_offset=fields.integer("flushedOffset"),
        ha_address=fields.text("haAddress") or "",
        client=HaClientExtras(
            client.text("state") or "",
            client.integer("reportedOffset"),
            client.integer("reconnects"),
            client.text("verdict") or "",
            client.text("localAddress"),
            client.optional_boolean("observer"),
        )
        if "client" in fields
        else None,
        put_statuses=fields.inner("putStatuses").integers(),
        ended_connections=fields.inner("endedConnections").integers(),
        probes={str(host): probes.inner(str(host)).integers() for host in probes},
        dispatched_offset=fields.optional_integer("dispatchedOffset"),
        dispatch_fault=fields.text("dispatchFault") or "",
        settings=BrokerSettings.from_json(fields.inner("settings")),
        files=fields.optional_integer("files"),
        warnings=fields.texts("warnings"),
    )


class JsonFields(dict[object, object]):
    """An object of a response body, read the way fastjson fills a bean: missing and null are zero."""

    what: str = ""

    @classmethod
    def of(cls, value: object, what: str) -> JsonFields:
        if not isinstance(value, dict):
            raise RemoteProtocolError(f"{what}: not a JSON object")
        fields = cls(value)
        fields.what = what
        return fields

    def wrong(self, name: str, wanted: str) -> RemoteProtocolError:
        """The error that a value is not what is wanted."""
        return RemoteProtocolError(f"{self.what}: {name} is not {wanted}: {shown(self.get(name))}")

    def optional_integer(self, name: str) -> int | None:
        value = self.get(name)
        return None if value is None else self._integer(name, value, "an integer")

    def _integer(self, name: str, value: object, wanted: str) -> int:
        if isinstance(value, str):
            # Digits between quotes are no number here.
            raise self.wrong(name, wanted)
        try:
            return parse_int(value, I64)
        except ValueError:
            raise self.wrong(name, wanted) from None

    def four_integers(self, name: str) -> tuple[int, int, int, int] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 4:
            raise self.wrong(name, "four integers")
        first, second, third, fourth = (self._integer(name, number, "four integers") for number in value)
        return first, second, third, fourth

    def integer(self, name: str) -> int:
        return self.optional_integer(name) or 0

    def optional_boolean(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def boolean(self, name: str) -> bool:
        return self.optional_boolean(name) is True

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def inner(self, name: str) -> JsonFields:
        value = self.get(name)
        return JsonFields.of({} if value is None else value, f"{self.what}.{name}")

    def objects(self, name: str) -> list[JsonFields]:
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.wrong(name, "an array")
        return [JsonFields.of(item, f"{self.what}.{name}") for item in value]

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "an array of strings")
        return tuple(value)

    def integers(self) -> dict[str, int]:
        return {name: self.integer(name) for name in self if isinstance(name, str)}

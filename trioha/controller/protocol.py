"""Requests and answers between brokers and RocketMQ's controllers (docs/protocol/ha.md#controller-requests).

| code | request | fields of the request | fields and body of the answer |
|---|---|---|---|
| 1005 | `MetadataRequest` | - | `ControllerMetadata` |
| 1012 | `NextBrokerIdRequest` | cluster, broker | `NextBrokerId` |
| 1013 | `ApplyBrokerIdRequest` | cluster, broker, id, check code | only its code is read |
| 1003 | `RegisterRequest` | cluster, broker, id, address, time | `Registered`, a `MemberSet` |
| 1002 | `ElectRequest` | cluster, broker, id, is it designated, time | `Elected`, an `ElectedGroup` |
| 904 | `Heartbeat` | cluster, broker, id, address, epoch, offsets | one-way |
| 1004 | `ReplicaInfoRequest` | broker | `ReplicaInfo`, a `MemberSet` |
| 1001 | `AlterSetRequest`, a `MemberSet` | broker, master, epoch, time | `AlteredSet`, a `MemberSet` |
| 1008 | `RoleNotice`, a `MemberSet` | master, address, epoch, set epoch | one-way, from the controller |
| 1006 | `SetDataRequest` | body: names of brokers | body: `ReplicaSetInfo` by broker name |
| 1007 | `EpochCacheRequest` | - | body: `EpochCache` |

Fields are texts in the header (`extFields`); one that is absent here is None. Bodies are JSON in fastjson's
dialect, read with bounds, and written as fastjson writes them. Everything that does not read raises
RemoteProtocolError and nothing else. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar

import attrs
from attrs import Factory, frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import I32, I64, NATURAL64, Range, parse_int
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.fastjson import JsonLimits, format_json, parse_json, shown

MEMBERS_MAX: Final = 1024
"""Brokers of one group that are read from an answer."""
GROUPS_MAX: Final = 4096
"""Groups of one answer to GET_SYNC_STATE_DATA."""
EPOCHS_MAX: Final = 100_000
"""Epochs of one answer to GET_BROKER_EPOCH_CACHE."""
TEXT_CHARS_MAX: Final = 4096
"""Of one field."""

_LIMITS: Final = JsonLimits(containers_max=4 * GROUPS_MAX, dialect_chars_max=256 * 1024)
_KEY: Final = "key"
_READ: Final = "read"

T = TypeVar("T")


def _text(value: str) -> str:
    if len(value) > TEXT_CHARS_MAX:
        raise ValueError(f"has more than {TEXT_CHARS_MAX} characters")
    return value


def _whole(within: Range) -> Callable[[str], int]:
    return lambda value: parse_int(value, within)


def _flag(value: str) -> bool:
    return value.lower() == "true"


def _ext(key: str, read: Callable[[str], object] = _text, *, default: object = attrs.NOTHING) -> Any:
    """A field of the header with its Java spelling; without a default it must be there."""
    return attrs.field(default=default, metadata={_KEY: key, _READ: read})


_epoch: Final = _whole(I32)
_id: Final = _whole(NATURAL64)
_offset: Final = _whole(I64)


@frozen(kw_only=True)
class HeaderFields:
    """The fields of one request's or answer's header."""

    CODE: ClassVar[RequestCode]
    """The request that they belong to."""

    def to_fields(self) -> dict[str, str]:
        """As they are sent; what is None is left out."""
        sent = {}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if _KEY in field.metadata and value is not None:
                sent[field.metadata[_KEY]] = str(value).lower() if isinstance(value, bool) else str(value)
        return sent

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """From the fields of a header; others beside them are ignored. Raises RemoteProtocolError."""
        return cls(**read_fields(cls, fields))


def read_fields(kind: type[HeaderFields], fields: Mapping[str, str]) -> dict[str, Any]:
    """The values by attribute. Raises RemoteProtocolError for one that is missing or does not read."""
    found = {}
    for field in attrs.fields(kind):
        key = field.metadata.get(_KEY)
        if key is None:
            continue
        text = fields.get(key)
        if text is None:
            if field.default is attrs.NOTHING:
                raise RemoteProtocolError(f"{kind.CODE.name}: {key} is missing")
            continue
        try:
            found[field.name] = field.metadata[_READ](text)
        except ValueError as error:
            raise RemoteProtocolError(f"{kind.CODE.name}: {key}: {error}") from None
    return found


# Bodies


@frozen
class MemberSet:
    """A sync-state set: `{"syncStateSet":[1,2],"syncStateSetEpoch":3}`."""

    members: frozenset[int] = frozenset()
    """Broker ids."""
    epoch: int = 0
    """Grows with each change of the set."""

    def to_body(self) -> bytes:
        """As the controller writes it: its members in order."""
        value = {"syncStateSet": sorted(self.members), "syncStateSetEpoch": self.epoch}
        return format_json(value, bare_keys=True).encode()

    @classmethod
    def of_body(cls, body: bytes | memoryview) -> MemberSet:
        """An empty body is the empty set. Raises RemoteProtocolError."""
        if not body:
            return cls()
        fields = _object(parse_json(body, limits=_LIMITS), "a sync-state set")
        return cls(_members(fields.get("syncStateSet")), _number(fields.get("syncStateSetEpoch", 0), I32))


@frozen
class ElectedGroup:
    """The body of an answer to ELECT_MASTER: all brokers of the group, and the sync-state set."""

    cluster_name: str = ""
    broker_name: str = ""
    addresses: Mapping[int, str] = Factory(dict)
    """`host:port` for clients, by broker id."""
    members: frozenset[int] = frozenset()

    def to_body(self) -> bytes:
        """As the controller writes it."""
        group = {
            "brokerAddrs": dict(sorted(self.addresses.items())),
            "brokerName": self.broker_name,
            "cluster": self.cluster_name,
        }
        value = {"brokerMemberGroup": group, "syncStateSet": sorted(self.members)}
        return format_json(value, bare_keys=True).encode()

    @classmethod
    def of_body(cls, body: bytes | memoryview) -> ElectedGroup:
        """An empty body is an empty group. Raises RemoteProtocolError."""
        if not body:
            return cls()
        fields = _object(parse_json(body, limits=_LIMITS), "an elected group")
        group = _object(fields.get("brokerMemberGroup") or {}, "brokerMemberGroup")
        addresses = _object(group.get("brokerAddrs") or {}, "brokerAddrs")
        if len(addresses) > MEMBERS_MAX:
            raise RemoteProtocolError(f"brokerAddrs has more than {MEMBERS_MAX} brokers")
        return cls(
            _string(group.get("cluster"), "cluster"),
            _string(group.get("brokerName"), "brokerName"),
            {_number(key, NATURAL64): _string(value, "an address") for key, value in addresses.items()},
            _members(fields.get("syncStateSet")),
        )


@frozen
class Replica:
    """One broker of a group, as controllers list it."""

    broker_name: str
    broker_id: int
    address: str
    """`host:port` for clients."""
    is_alive: bool
    """Whether its heartbeats reach the controller."""


@frozen
class ReplicaSetInfo:
    """One group in an answer to GET_SYNC_STATE_DATA."""

    in_sync: tuple[Replica, ...] = ()
    not_in_sync: tuple[Replica, ...] = ()
    master_id: int | None = None
    """None while there is no master."""
    master_address: str | None = None
    master_epoch: int = 0
    set_epoch: int = 0


@frozen
class CachedEpoch:
    """An epoch of a broker's log."""

    epoch: int
    start_offset: int
    """First byte of the epoch."""
    end_offset: int
    """End of its bytes; 2^63 - 1 for the last epoch."""


@frozen
class EpochCache:
    """The body of an answer to GET_BROKER_EPOCH_CACHE."""

    cluster_name: str
    broker_name: str
    broker_id: int
    """0 for a master."""
    max_offset: int
    epochs: tuple[CachedEpoch, ...]

    def to_body(self) -> bytes:
        """As a broker writes it."""
        epochs = [
            {"endOffset": epoch.end_offset, "epoch": epoch.epoch, "startOffset": epoch.start_offset}
            for epoch in self.epochs
        ]
        value = {
            "brokerId": self.broker_id,
            "brokerName": self.broker_name,
            "clusterName": self.cluster_name,
            "epochList": epochs,
            "maxOffset": self.max_offset,
        }
        return format_json(value, bare_keys=True).encode()

    @classmethod
    def of_body(cls, body: bytes | memoryview) -> EpochCache:
        """Raises RemoteProtocolError."""
        limits = JsonLimits(containers_max=EPOCHS_MAX + 2, dialect_chars_max=256 * 1024)
        fields = _object(parse_json(body, limits=limits), "an epoch cache")
        epochs = []
        for item in _array(fields.get("epochList") or [], "epochList", EPOCHS_MAX):
            epoch = _object(item, "an epoch")
            epochs.append(
                CachedEpoch(
                    _number(epoch.get("epoch"), I32),
                    _number(epoch.get("startOffset"), I64),
                    _number(epoch.get("endOffset"), I64),
                )
            )
        return cls(
            _string(fields.get("clusterName"), "clusterName"),
            _string(fields.get("brokerName"), "brokerName"),
            _number(fields.get("brokerId", 0), I64),
            _number(fields.get("maxOffset", 0), I64),
            tuple(epochs),
        )


# Requests and answers


@frozen(kw_only=True)
class MetadataRequest(HeaderFields):
    """Asks a controller for the leader."""

    CODE = RequestCode.CONTROLLER_GET_METADATA_INFO


@frozen(kw_only=True)
class ControllerMetadata(HeaderFields):
    """The leader of a controllers' group, as one of them knows it."""

    CODE = RequestCode.CONTROLLER_GET_METADATA_INFO

    group: str | None = _ext("group", default=None)
    leader_id: str | None = _ext("controllerLeaderId", default=None)
    """None during an election of the controllers."""
    leader_address: str | None = _ext("controllerLeaderAddress", default=None)
    """`host:port`."""
    is_leader: bool = _ext("isLeader", _flag, default=False)
    """Whether the one that answers is the leader."""
    peers: str | None = _ext("peers", default=None)
    """`n0:host:port;n1:host:port`."""


@frozen(kw_only=True)
class NextBrokerIdRequest(HeaderFields):
    """Asks for an id that no broker of the group has."""

    CODE = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID

    cluster_name: str = _ext("clusterName")
    broker_name: str = _ext("brokerName")


@frozen(kw_only=True)
class NextBrokerId(HeaderFields):
    """The id that is free, until another broker applies for it."""

    CODE = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID

    cluster_name: str | None = _ext("clusterName", default=None)
    broker_name: str | None = _ext("brokerName", default=None)
    next_broker_id: int = _ext("nextBrokerId", _id)


@frozen(kw_only=True)
class ApplyBrokerIdRequest(HeaderFields):
    """Applies for an id. The same request may be repeated: the controller compares the check code."""

    CODE = RequestCode.CONTROLLER_APPLY_BROKER_ID

    cluster_name: str = _ext("clusterName")
    broker_name: str = _ext("brokerName")
    applied_broker_id: int = _ext("appliedBrokerId", _id)
    register_check_code: str = _ext("registerCheckCode")
    """`host:port;milliseconds`: unique to this application."""


@frozen(kw_only=True)
class RegisterRequest(HeaderFields):
    """Registers a broker that has an id, with its address of this start."""

    CODE = RequestCode.CONTROLLER_REGISTER_BROKER

    cluster_name: str = _ext("clusterName")
    broker_name: str = _ext("brokerName")
    broker_id: int = _ext("brokerId", _id)
    broker_address: str = _ext("brokerAddress")
    """`host:port` for clients and for notices."""
    invoke_time_ms: int = _ext("invokeTime", _offset)
    """Wall clock, ms since 1970."""


@frozen(kw_only=True)
class Registered(HeaderFields):
    """The master at the time of the registration; all None without one. The body is the sync-state set."""

    CODE = RequestCode.CONTROLLER_REGISTER_BROKER

    cluster_name: str | None = _ext("clusterName", default=None)
    broker_name: str | None = _ext("brokerName", default=None)
    master_id: int | None = _ext("masterBrokerId", _offset, default=None)
    master_address: str | None = _ext("masterAddress", default=None)
    master_epoch: int | None = _ext("masterEpoch", _epoch, default=None)
    set_epoch: int | None = _ext("syncStateSetEpoch", _epoch, default=None)


@frozen(kw_only=True)
class ElectRequest(HeaderFields):
    """Asks for an election."""

    CODE = RequestCode.CONTROLLER_ELECT_MASTER

    cluster_name: str = _ext("clusterName")
    broker_name: str = _ext("brokerName")
    broker_id: int = _ext("brokerId", _offset)
    """Of the candidate."""
    is_designated: bool = _ext("designateElect", _flag, default=False)
    """Whether the candidate replaces a living master: administrators' requests."""
    invoke_time_ms: int = _ext("invokeTime", _offset)
    """Wall clock, ms since 1970."""


@frozen(kw_only=True)
class Elected(HeaderFields):
    """The master that was elected, or that is still there. The body is an `ElectedGroup`."""

    CODE = RequestCode.CONTROLLER_ELECT_MASTER

    master_id: int | None = _ext("masterBrokerId", _offset, default=None)
    master_address: str | None = _ext("masterAddress", default=None)
    master_epoch: int | None = _ext("masterEpoch", _epoch, default=None)
    set_epoch: int | None = _ext("syncStateSetEpoch", _epoch, default=None)


@frozen(kw_only=True)
class Heartbeat(HeaderFields):
    """A broker lives; sent one-way to every controller."""

    CODE = RequestCode.BROKER_HEARTBEAT

    cluster_name: str = _ext("clusterName")
    broker_name: str = _ext("brokerName")
    broker_id: int = _ext("brokerId", _offset)
    broker_address: str = _ext("brokerAddr")
    """`host:port` for clients and for notices."""
    epoch: int = _ext("epoch", _epoch)
    """Last epoch of its log; -1 before the first."""
    max_offset: int = _ext("maxOffset", _offset)
    confirm_offset: int = _ext("confirmOffset", _offset)
    timeout_ms: int = _ext("heartbeatTimeoutMills", _offset)
    """The controller takes a broker that was silent for so long for dead."""
    election_priority: int = _ext("electionPriority", _epoch)
    """Among equal candidates the lowest is elected."""


@frozen(kw_only=True)
class ReplicaInfoRequest(HeaderFields):
    """Asks for the master of a group."""

    CODE = RequestCode.CONTROLLER_GET_REPLICA_INFO

    broker_name: str = _ext("brokerName")


@frozen(kw_only=True)
class ReplicaInfo(HeaderFields):
    """The master of a group. The body is the sync-state set."""

    CODE = RequestCode.CONTROLLER_GET_REPLICA_INFO

    master_id: int | None = _ext("masterBrokerId", _offset, default=None)
    """None while there is no master."""
    master_address: str | None = _ext("masterAddress", default=None)
    master_epoch: int | None = _ext("masterEpoch", _epoch, default=None)


@frozen(kw_only=True)
class AlterSetRequest(HeaderFields):
    """A master proposes a sync-state set: the body has it, with the epoch of the set that it replaces."""

    CODE = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET

    broker_name: str = _ext("brokerName")
    master_id: int = _ext("masterBrokerId", _offset)
    master_epoch: int = _ext("masterEpoch", _epoch)
    invoke_time_ms: int = _ext("invokeTime", _offset)
    """Wall clock, ms since 1970."""


@frozen(kw_only=True)
class AlteredSet(HeaderFields):
    """The epoch of the new set, which is the body; 0 in refusals."""

    CODE = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET

    new_set_epoch: int = _ext("newSyncStateSetEpoch", _epoch)


@frozen(kw_only=True)
class RoleNotice(HeaderFields):
    """A controller announces a master to each broker of the group. The body is the sync-state set."""

    CODE = RequestCode.NOTIFY_BROKER_ROLE_CHANGED

    master_id: int | None = _ext("masterBrokerId", _offset, default=None)
    master_address: str | None = _ext("masterAddress", default=None)
    master_epoch: int | None = _ext("masterEpoch", _epoch, default=None)
    set_epoch: int | None = _ext("syncStateSetEpoch", _epoch, default=None)


@frozen(kw_only=True)
class SetDataRequest(HeaderFields):
    """Asks a controller for groups; their names are the body."""

    CODE = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA


@frozen(kw_only=True)
class EpochCacheRequest(HeaderFields):
    """Asks a broker for the epochs of its log."""

    CODE = RequestCode.GET_BROKER_EPOCH_CACHE


def to_request(fields: HeaderFields, *, body: bytes = b"", oneway: bool = False) -> RemotingCommand:
    """The request with these fields."""
    return request(fields.CODE, ext_fields=fields.to_fields(), body=body, oneway=oneway)


def broker_names_body(names: list[str]) -> bytes:
    """The body of GET_SYNC_STATE_DATA: an array of broker names."""
    return format_json(names, bare_keys=True).encode()


def parse_set_data(body: bytes | memoryview) -> dict[str, ReplicaSetInfo]:
    """The groups of an answer to GET_SYNC_STATE_DATA by broker name. Raises RemoteProtocolError."""
    whole = _object(parse_json(body, limits=_LIMITS), "sync-state data")
    table = _object(whole.get("replicasInfoTable") or {}, "replicasInfoTable")
    if len(table) > GROUPS_MAX:
        raise RemoteProtocolError(f"replicasInfoTable has more than {GROUPS_MAX} groups")
    groups = {}
    for name, value in table.items():
        group = _object(value, "a group")
        master_id, address = group.get("masterBrokerId"), group.get("masterAddress")
        groups[_string(name, "a broker name")] = ReplicaSetInfo(
            _replicas(group.get("inSyncReplicas")),
            _replicas(group.get("notInSyncReplicas")),
            None if master_id is None else _number(master_id, I64),
            None if address is None else _string(address, "masterAddress"),
            _number(group.get("masterEpoch", 0), I32),
            _number(group.get("syncStateSetEpoch", 0), I32),
        )
    return groups


def _replicas(value: object) -> tuple[Replica, ...]:
    found = []
    for item in _array(value or [], "replicas", MEMBERS_MAX):
        replica = _object(item, "a replica")
        found.append(
            Replica(
                _string(replica.get("brokerName"), "brokerName"),
                _number(replica.get("brokerId"), I64),
                _string(replica.get("brokerAddress"), "brokerAddress"),
                replica.get("alive") is True,
            )
        )
    return tuple(found)


def _members(value: object) -> frozenset[int]:
    members = _array(value or [], "syncStateSet", MEMBERS_MAX)
    return frozenset(_number(member, I64) for member in members)


def _object(value: object, what: str) -> Mapping[object, Any]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{what} is not an object: {shown(value)}")
    return value


def _array(value: object, what: str, items_max: int) -> list[object]:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"{what} is not an array: {shown(value)}")
    if len(value) > items_max:
        raise RemoteProtocolError(f"{what} has more than {items_max} items")
    return value


def _string(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
        raise RemoteProtocolError(f"{what} is not a text: {shown(value)}")
    return value


def _number(value: object, within: Range) -> int:
    try:
        return parse_int(value, within)
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from None

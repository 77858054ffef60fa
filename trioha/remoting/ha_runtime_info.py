"""HARuntimeInfo, the body of an answer to GET_BROKER_HA_STATUS (907), as a `BrokerStatus`.

See docs/protocol/ha.md#status-requests.

| key | value |
|---|---|
| `haClientRuntimeInfo` | a slave's `SlaveStatus`, RocketMQ's part; all zeros on a master |
| `haConnectionInfo` | a `ConnectionStatus` for each connection |
| the three others of RocketMQ | the `BrokerStatus`, RocketMQ's part; the offset is 0 on a slave |
| `trioha` | trioha's part of the `BrokerStatus`, its `client` that of the `SlaveStatus` |

docs/ha-status.md lists trioha's keys. fastjson ignores keys that it does not know, so Java's
`mqadmin haStatus` reads both. As in fastjson's beans, keys are written in alphabetical order, and a key that
is missing or null has its field's default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from attrs import evolve, fields, resolve_types
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from trioha.broker_status import (
    ArchiveStatus,
    BrokerSettings,
    BrokerStatus,
    ConnectionStatus,
    ControllerLinkStatus,
    ControlStatus,
    MemberStatus,
    MetadataStatus,
    PendingStatus,
    SlaveStatus,
    TableCopyStatus,
)
from trioha.distribution import Distribution
from trioha.errors import RemoteProtocolError
from trioha.remoting.fastjson import ANSWER_LIMITS, JsonLimits, as_text, parse_json, shown

SETTING_KEYS: Final = {
    "gap_bytes_max": "haMaxGapNotInSync",
    "slave_timeout_ms": "slaveTimeout",
    "housekeeping_ms": "haHousekeepingInterval",
    "heartbeat_ms": "haSendHeartbeatInterval",
    "file_bytes": "mappedFileSizeCommitLog",
    "reserved_h": "fileReservedTime",
    "disk_percent_max": "diskMaxUsedSpaceRatio",
}
_CONNECTION_KEYS: Final = {
    "address": "addr",
    "sent_offset": "transferFromWhere",
    "ack_offset": "slaveAckOffset",
    "lag_bytes": "diff",
    "in_sync": "inSync",
    "transferred_bytes_per_s": "transferredByteInSecond",
    "state": "state",
    "lag_ms": "lagMillis",
    "connection_id": "connectionId",
    "last_received_ms": "heardMillis",
    "ack_latency_us": "ackLatencyMicros",
    "frame_bytes": "frameBytes",
}
_CLIENT_KEYS: Final = {
    "master_address": "masterAddr",
    "max_offset": "maxOffset",
    "transferred_bytes_per_s": "transferredByteInSecond",
    "last_read_ms": "lastReadTimestamp",
    "last_write_ms": "lastWriteTimestamp",
    "reported_offset": "reportedOffset",
    "state": "state",
    "reconnects": "reconnects",
    "verdict": "verdict",
    "local_address": "localAddress",
    "is_observer": "observer",
}
_CLIENT_KEYS_OF_ROCKETMQ: Final = frozenset(list(_CLIENT_KEYS.values())[:5])
_TABLE_COPY_KEYS: Final = {
    "age_ms": "ageMillis",
    "entries": "entries",
    "changes": "changes",
    "failures": "failures",
    "error": "error",
}
_METADATA_KEYS: Final = {
    "master_address": "masterAddress",
    "tables": "tables",
    "policy": "offsetRegression",
    "regressions": "regressions",
    "regressions_accepted": "regressionsAccepted",
    "regressions_kept": "regressionsKept",
}
_ARCHIVE_KEYS: Final = {
    "url": "url",
    "state": "state",
    "error": "error",
    "generation": "generation",
    "archived_offset": "archivedOffset",
    "lag_bytes": "lagBytes",
    "lag_ms": "lagMillis",
    "objects": "objects",
    "object_bytes": "objectBytes",
    "failures": "failures",
    "files_deleted_unarchived": "filesDeletedUnarchived",
}
_CONTROLLER_LINK_KEYS: Final = {
    "address": "address",
    "is_connected": "connected",
    "is_leader": "leader",
    "reason": "reason",
}
_MEMBER_KEYS: Final = {
    "broker_id": "brokerId",
    "in_set": "inSyncStateSet",
    "is_required": "required",
    "is_connected": "connected",
    "ack_offset": "ackOffset",
}
_CONTROL_KEYS: Final = {
    "role": "role",
    "step": "step",
    "broker_id": "brokerId",
    "master_epoch": "masterEpoch",
    "master_id": "masterBrokerId",
    "master_address": "masterAddress",
    "log_epoch": "logEpoch",
    "sync_state_set": "syncStateSet",
    "sync_state_set_epoch": "syncStateSetEpoch",
    "in_sync_min": "minInSyncReplicas",
    "members": "members",
    "confirm_offset": "confirmOffset",
    "leader": "leader",
    "leader_heard_ms": "leaderHeardMillis",
    "controllers": "controllers",
    "refusal": "refusal",
    "role_changes": "roleChanges",
    "role_changed_ms": "roleChangeTimestamp",
}
_PENDING_KEYS: Final = {
    "timers": "timers",
    "delivers_timers": "deliversTimers",
    "timers_first_ms": "timersFirstTimestamp",
    "timers_last_ms": "timersLastTimestamp",
    "popped": "popped",
    "popped_first_ms": "poppedFirstTimestamp",
    "popped_groups": "poppedGroups",
    "unreadable": "unreadable",
    "unread_stores": "unreadStores",
    "error": "error",
}
_BROKER_KEYS: Final = {
    "max_offset": "masterCommitLogMaxOffset",
    "in_sync_slaves": "inSyncSlaveNums",
    "connections": "haConnectionInfo",
    "version": "version",
    "role": "role",
    "cluster_name": "clusterName",
    "broker_name": "brokerName",
    "broker_id": "brokerId",
    "min_offset": "minOffset",
    "flushed_offset": "flushedOffset",
    "dispatched_offset": "dispatchedOffset",
    "dispatch_fault": "dispatchFault",
    "time_steps": "timeSteps",
    "time_lead_ms": "timeLeadMillis",
    "clock_doubt": "clockDoubt",
    "read_faults": "readFaults",
    "read_fault": "readFault",
    "put_refusal": "putRefusal",
    "unwritten": "unwritten",
    "write_failures": "writeFailures",
    "ha_address": "haAddress",
    "client": "client",
    "put_statuses": "putStatuses",
    "ended_connections": "endedConnections",
    "probes": "probes",
    "settings": "settings",
    "files": "files",
    "kernel": "kernel",
    "acl_refusals": "aclRefusals",
    "metadata": "metadata",
    "archive": "archive",
    "control": "control",
    "pending": "pending",
    "warnings": "warnings",
}
_BROKER_KEYS_OF_ROCKETMQ: Final = frozenset(list(_BROKER_KEYS.values())[:3])
_OMITTED_IF_EMPTY: Final = frozenset(
    {"clock_doubt", "dispatch_fault", "error", "members", "probes", "put_refusal"}
    | {"read_fault", "reason", "refusal", "settings", "unwritten", "warnings", "write_failures"}
)
"""Fields that are not written with their defaults, beside those whose default is None."""


def encode_ha_status(status: BrokerStatus) -> bytes:
    """The body of an answer: RocketMQ's keys, and those of trioha if `status` is a trioha node's."""
    is_master = status.client is None
    broker = _converter.unstructure(status)
    client = _converter.unstructure(SlaveStatus()) if is_master else broker["client"]
    whole = {
        "haClientRuntimeInfo": {**_only(client, _CLIENT_KEYS_OF_ROCKETMQ), "masterFlushOffset": 0},
        "haConnectionInfo": broker["haConnectionInfo"],
        "inSyncSlaveNums": status.in_sync_slaves or 0,
        "master": is_master,
        "masterCommitLogMaxOffset": status.max_offset if is_master else 0,
    }
    if status.is_trioha:
        whole["trioha"] = _without(broker, _BROKER_KEYS_OF_ROCKETMQ)
        if not is_master:
            whole["trioha"]["client"] = _without(client, _CLIENT_KEYS_OF_ROCKETMQ)
    return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()


def decode_ha_status(
    body: bytes | memoryview, *, connections_max: int | None = None, limits: JsonLimits = ANSWER_LIMITS
) -> BrokerStatus:
    """The status in an answer of a RocketMQ broker or of a trioha node.

    Beyond `connections_max` connections are counted and not read, those of probes first. `limits` are those
    of `parse_json`. Raises RemoteProtocolError for a body that is not a HARuntimeInfo.
    """
    whole = _object(parse_json(body, limits=limits), "the body")
    is_master = whole.get("master", False)
    if not isinstance(is_master, bool):
        raise RemoteProtocolError(f"HARuntimeInfo: master is not true or false: {shown(is_master)}")
    listed, unread_connections, unread_probes = _accepted(whole.get("haConnectionInfo"), connections_max)
    trioha = _object(whole.get("trioha", {}), "trioha")
    values = {"inSyncSlaveNums": 0, **_only(whole, _BROKER_KEYS_OF_ROCKETMQ), "haConnectionInfo": listed}
    values |= _without(trioha, {*_BROKER_KEYS_OF_ROCKETMQ, "client"})
    if not is_master:
        client = _object(whole.get("haClientRuntimeInfo", {}), "haClientRuntimeInfo")
        client_of_trioha = _object(trioha.get("client", {}), "client")
        values["client"] = {
            **_only(client, _CLIENT_KEYS_OF_ROCKETMQ),
            **_without(client_of_trioha, _CLIENT_KEYS_OF_ROCKETMQ),
        }
    status = _converter.structure(values, BrokerStatus)
    if status.client is not None:
        status = evolve(status, max_offset=status.client.max_offset, in_sync_slaves=None)
    if unread_connections or unread_probes:
        status = evolve(status, unread_connections=unread_connections, unread_probes=unread_probes)
    return status


def _accepted(listed: object, connections_max: int | None) -> tuple[object, int, int]:
    """The connections to read, and how many more replicas' and probes' there are beyond `connections_max`."""
    if connections_max is None or not isinstance(listed, list) or len(listed) <= connections_max:
        return listed, 0, 0
    # To make a value of each entry costs fifty times as much as to look at its state.
    replicas = [item for item in listed if not _may_be_probe(item)]
    return replicas[:connections_max], max(0, len(replicas) - connections_max), len(listed) - len(replicas)


def _may_be_probe(item: object) -> bool:
    """`ConnectionStatus.is_probe` of an entry that was not read; False for what is not a connection."""
    if not isinstance(item, dict):
        return False
    state = item.get("state")
    return state == "HANDSHAKE" if state is not None else item.get("slaveAckOffset") == -1


def _only(members: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: members[key] for key in keys if key in members}


def _without(members: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in members.items() if key not in keys}


# -- the converter ----------------------------------------------------------------------------------------

Hook = Callable[[Any, Any], Any]
"""Makes a value of a JSON value and its type. Raises _UnexpectedValueError."""


class _UnexpectedValueError(RemoteProtocolError):
    """A JSON value is not of its field's type; its key is added by the object that has it."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"not {expected}: {shown(value)}")


_converter = Converter(detailed_validation=False)
"""Stops at the first wrong value: a peer may send millions of them."""


def _object(value: object, key: str) -> dict[str, Any]:
    """The members of an object that are not null."""
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"HARuntimeInfo: {key} is not an object: {shown(value)}")
    return {name: member for name, member in value.items() if member is not None}


@_converter.register_structure_hook
def _integer(value: object, _: object) -> int:
    # As parse_int(value, I64), in half the time; and parse_int also reads digits in a string.
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise _UnexpectedValueError(value, "an integer")
    return value


@_converter.register_structure_hook
def _boolean(value: object, _: object) -> bool:
    if type(value) is not bool:
        raise _UnexpectedValueError(value, "true or false")
    return value


@_converter.register_structure_hook
def _text(value: object, _: object) -> str:
    if type(value) is not str:
        raise _UnexpectedValueError(value, "a string")
    return value


def _distribution(value: object, _: object) -> Distribution[int]:
    if type(value) is not list or len(value) != 4:
        raise _UnexpectedValueError(value, "four integers")
    return Distribution(*[_integer(number, int) for number in value])


def _four_integers(distribution: Distribution[int]) -> tuple[int, int, int, int]:
    return distribution.p50, distribution.p99, distribution.largest, distribution.count


def _is_a(kind: Any, generic: object) -> bool:
    return get_origin(kind) is generic


def _array_hook(kind: Any) -> Hook:
    item_kind = get_args(kind)[0]
    structure_item = _converter.get_structure_hook(item_kind)

    def structure(value: object, _: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _UnexpectedValueError(value, "an array")
        return tuple([structure_item(item, item_kind) for item in value])

    return structure


def _mapping_hook(kind: Any) -> Hook:
    member_kind = get_args(kind)[1]
    structure_member = _converter.get_structure_hook(member_kind)

    def structure(value: object, _: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _UnexpectedValueError(value, "an object")
        return {as_text(name): structure_member(member, member_kind) for name, member in value.items()}

    return structure


_converter.register_structure_hook_func(lambda kind: _is_a(kind, Distribution), _distribution)
_converter.register_unstructure_hook_func(lambda kind: _is_a(kind, Distribution), _four_integers)
_converter.register_structure_hook_factory(lambda kind: _is_a(kind, tuple), _array_hook)
_converter.register_structure_hook_factory(lambda kind: _is_a(kind, Mapping), _mapping_hook)


def _register(kind: type, keys: Mapping[str, str]) -> None:
    """Read and write the fields of `kind` by `keys`, and no others."""
    hooks: dict[str, Hook] = {}
    reading: dict[str, Any] = {}
    writing: dict[str, Any] = {}
    for field in fields(resolve_types(kind)):
        key = keys.get(field.name)
        if key is None:
            reading[field.name] = writing[field.name] = override(omit=True)
            continue
        # Null never reaches a hook: such members are dropped, such fields not written.
        is_optional = get_origin(field.type) in {Union, UnionType}
        present = get_args(field.type)[0] if is_optional else field.type
        hooks[key] = _converter.get_structure_hook(present)
        reading[field.name] = override(rename=key, struct_hook=hooks[key])
        writing[field.name] = override(
            rename=key,
            omit_if_default=field.default is None or field.name in _OMITTED_IF_EMPTY,
            unstruct_hook=_converter.get_unstructure_hook(present),
        )
    structure: Hook = make_dict_structure_fn(kind, _converter, **reading)

    def structure_object(value: object, _: object) -> object:
        members = _object(value, kind.__name__)
        try:
            return structure(members, kind)
        except _UnexpectedValueError:
            # The wrong member is searched only now: to name each beforehand costs a third of the time.
            for key in hooks.keys() & members.keys():
                try:
                    hooks[key](members[key], None)
                except _UnexpectedValueError as error:
                    raise RemoteProtocolError(f"HARuntimeInfo: {key} is {error}") from None
            raise

    _converter.register_structure_hook(kind, structure_object)
    _converter.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, _converter, **writing))


_register(ConnectionStatus, _CONNECTION_KEYS)
_register(SlaveStatus, _CLIENT_KEYS)
_register(BrokerSettings, SETTING_KEYS)
_register(TableCopyStatus, _TABLE_COPY_KEYS)
_register(MetadataStatus, _METADATA_KEYS)
_register(ArchiveStatus, _ARCHIVE_KEYS)
_register(ControllerLinkStatus, _CONTROLLER_LINK_KEYS)
_register(MemberStatus, _MEMBER_KEYS)
_register(ControlStatus, _CONTROL_KEYS)
_register(PendingStatus, _PENDING_KEYS)
_register(BrokerStatus, _BROKER_KEYS)

"""Bodies of requests and answers of RocketMQ's controllers (docs/protocol/ha.md#controller-requests).

Bodies are JSON in fastjson's dialect, read with bounds, and written as fastjson writes them. A body that does
not read raises RemoteProtocolError and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen

from trioha.controller.header import TEXT_CHARS_MAX
from trioha.errors import RemoteProtocolError
from trioha.numbers import I32, I64, Range, parse_int
from trioha.remoting.fastjson import JsonLimits, format_json, parse_json, shown

MEMBERS_MAX: Final = 1024
"""Brokers of one group that are read from an answer."""
GROUPS_MAX: Final = 4096
"""Groups of one answer to GET_SYNC_STATE_DATA."""
EPOCHS_MAX: Final = 100_000
"""Epochs of one answer to GET_BROKER_EPOCH_CACHE."""
_LIMITS: Final = JsonLimits(containers_max=4 * GROUPS_MAX, dialect_chars_max=256 * 1024)


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


def elected_members(body: bytes | memoryview) -> frozenset[int]:
    """The sync-state set in the body of an answer to ELECT_MASTER; empty without one.

    `brokerMemberGroup`, the addresses of all brokers of the group, is not read. Raises RemoteProtocolError.
    """
    return (
        _members(_object(parse_json(body, limits=_LIMITS), "an elected group").get("syncStateSet"))
        if body
        else frozenset()
    )


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

"""Requests and answers between brokers and RocketMQ's controllers (docs/protocol/ha.md#controller-requests).

| code | request | fields of the request | fields and body of the answer |
|---|---|---|---|
| 1005 | GET_METADATA_INFO | - | `ControllerMetadata` |
| 1012 | `NextBrokerIdRequest` | cluster, broker | `NextBrokerId` |
| 1013 | `ApplyBrokerIdRequest` | cluster, broker, id, check code | only its code is read |
| 1003 | `RegisterRequest` | cluster, broker, id, address, time | `Registered`, a `MemberSet` |
| 1002 | `ElectRequest` | cluster, broker, id, is it designated, time | `Elected`, `elected_members` |
| 904 | `Heartbeat` | cluster, broker, id, address, epoch, offsets | one-way |
| 1004 | `ReplicaInfoRequest` | broker | `ReplicaInfo`, a `MemberSet` |
| 1001 | `AlterSetRequest`, a `MemberSet` | broker, master, epoch, time | `AlteredSet`, a `MemberSet` |
| 1008 | `RoleNotice`, a `MemberSet` | master, address, epoch, set epoch | one-way, from the controller |
| 1006 | GET_SYNC_STATE_DATA | body: names of brokers | body: `ReplicaSetInfo` by broker name |
| 1007 | GET_BROKER_EPOCH_CACHE | - | body: `EpochCache` |

Fields are texts in the header (`extFields`); one that is absent here is None. Bodies are in
`trioha.controller.bodies`. Everything that does not read raises RemoteProtocolError and nothing else. No I/O.
"""

from __future__ import annotations

from attrs import frozen

from trioha.controller.header import Header, epoch_number, field, flag, natural, number
from trioha.remoting.codes import RequestCode


@frozen(kw_only=True)
class GroupHeader(Header):
    """The group of a broker that asks."""

    cluster_name: str = field("clusterName")
    broker_name: str = field("brokerName")


@frozen(kw_only=True)
class MasterHeader(Header):
    """The master of a group, as several answers and the notice have it; all None without one."""

    master_id: int | None = field("masterBrokerId", number, default=None)
    """None while there is no master."""
    master_address: str | None = field("masterAddress", default=None)
    master_epoch: int | None = field("masterEpoch", epoch_number, default=None)


@frozen(kw_only=True)
class ControllerMetadata(Header):
    """The leader of a controllers' group, as one of them knows it."""

    CODE = RequestCode.CONTROLLER_GET_METADATA_INFO

    group: str | None = field("group", default=None)
    leader_id: str | None = field("controllerLeaderId", default=None)
    """None during an election of the controllers."""
    leader_address: str | None = field("controllerLeaderAddress", default=None)
    """`host:port`."""
    is_leader: bool = field("isLeader", flag, default=False)
    """Whether the one that answers is the leader."""
    peers: str | None = field("peers", default=None)
    """`n0:host:port;n1:host:port`."""


@frozen(kw_only=True)
class NextBrokerIdRequest(GroupHeader):
    """Asks for an id that no broker of the group has."""

    CODE = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID


@frozen(kw_only=True)
class NextBrokerId(Header):
    """The id that is free, until another broker applies for it."""

    CODE = RequestCode.CONTROLLER_GET_NEXT_BROKER_ID

    cluster_name: str | None = field("clusterName", default=None)
    broker_name: str | None = field("brokerName", default=None)
    next_broker_id: int = field("nextBrokerId", natural)


@frozen(kw_only=True)
class ApplyBrokerIdRequest(GroupHeader):
    """Applies for an id. The same request may be repeated: the controller compares the check code."""

    CODE = RequestCode.CONTROLLER_APPLY_BROKER_ID

    applied_broker_id: int = field("appliedBrokerId", natural)
    register_check_code: str = field("registerCheckCode")
    """`host:port;milliseconds`: unique to this application."""


@frozen(kw_only=True)
class RegisterRequest(GroupHeader):
    """Registers a broker that has an id, with its address of this start."""

    CODE = RequestCode.CONTROLLER_REGISTER_BROKER

    broker_id: int = field("brokerId", natural)
    broker_address: str = field("brokerAddress")
    """`host:port` for clients and for notices."""
    invoke_time_ms: int = field("invokeTime", number)
    """Wall clock, ms since 1970."""


@frozen(kw_only=True)
class Registered(MasterHeader):
    """The master at the time of the registration; all None without one. The body is the sync-state set."""

    CODE = RequestCode.CONTROLLER_REGISTER_BROKER

    cluster_name: str | None = field("clusterName", default=None)
    broker_name: str | None = field("brokerName", default=None)
    set_epoch: int | None = field("syncStateSetEpoch", epoch_number, default=None)


@frozen(kw_only=True)
class ElectRequest(GroupHeader):
    """Asks for an election."""

    CODE = RequestCode.CONTROLLER_ELECT_MASTER

    broker_id: int = field("brokerId", number)
    """Of the candidate."""
    is_designated: bool = field("designateElect", flag, default=False)
    """Whether the candidate replaces a living master: administrators' requests."""
    invoke_time_ms: int = field("invokeTime", number)
    """Wall clock, ms since 1970."""


@frozen(kw_only=True)
class Elected(MasterHeader):
    """The master that was elected, or that is still there. The body has its set: `elected_members`."""

    CODE = RequestCode.CONTROLLER_ELECT_MASTER

    set_epoch: int | None = field("syncStateSetEpoch", epoch_number, default=None)


@frozen(kw_only=True)
class Heartbeat(GroupHeader):
    """A broker lives; sent one-way to every controller."""

    CODE = RequestCode.BROKER_HEARTBEAT

    broker_id: int = field("brokerId", number)
    broker_address: str = field("brokerAddr")
    """`host:port` for clients and for notices."""
    epoch: int = field("epoch", epoch_number)
    """Last epoch of its log; -1 before the first."""
    max_offset: int = field("maxOffset", number)
    confirm_offset: int = field("confirmOffset", number)
    timeout_ms: int = field("heartbeatTimeoutMills", number)
    """The controller takes a broker that was silent for so long for dead."""
    election_priority: int = field("electionPriority", epoch_number)
    """Among equal candidates the lowest is elected."""


@frozen(kw_only=True)
class ReplicaInfoRequest(Header):
    """Asks for the master of a group."""

    CODE = RequestCode.CONTROLLER_GET_REPLICA_INFO

    broker_name: str = field("brokerName")


@frozen(kw_only=True)
class ReplicaInfo(MasterHeader):
    """The master of a group. The body is the sync-state set."""

    CODE = RequestCode.CONTROLLER_GET_REPLICA_INFO


@frozen(kw_only=True)
class AlterSetRequest(Header):
    """A master proposes a sync-state set: the body has it, with the epoch of the set that it replaces."""

    CODE = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET

    broker_name: str = field("brokerName")
    master_id: int = field("masterBrokerId", number)
    master_epoch: int = field("masterEpoch", epoch_number)
    invoke_time_ms: int = field("invokeTime", number)
    """Wall clock, ms since 1970."""


@frozen(kw_only=True)
class AlteredSet(Header):
    """The epoch of the new set, which is the body; 0 in refusals."""

    CODE = RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET

    new_set_epoch: int = field("newSyncStateSetEpoch", epoch_number)


@frozen(kw_only=True)
class RoleNotice(MasterHeader):
    """A controller announces a master to each broker of the group. The body is the sync-state set."""

    CODE = RequestCode.NOTIFY_BROKER_ROLE_CHANGED

    set_epoch: int | None = field("syncStateSetEpoch", epoch_number, default=None)

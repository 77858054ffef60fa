"""What an agent at the controllers is given, and what it says of itself."""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from trioha.controller.links import LinkStatus
from trioha.controller.role import Role


class AgentState(Enum):
    """The next step of an agent."""

    NO_ID = "no id"
    APPLYING = "applying for an id"
    REGISTERING = "registering"
    ELECTING = "asking for an election"
    FOLLOWING = "following"


@frozen(kw_only=True)
class Offsets:
    """What heartbeats say of this broker's log."""

    epoch: int
    """Last epoch of the log; -1 before the first."""
    max_offset: int
    confirm_offset: int


@frozen(kw_only=True)
class SetDecision:
    """A sync-state set of the controllers."""

    members: frozenset[int]
    """Broker ids."""
    set_epoch: int
    """Grows with each change of the set."""
    is_confirmed: bool
    """Whether the leader said so after it was asked for a proposal; otherwise it is the last known set."""


@frozen(kw_only=True)
class AgentSettings:
    """How one broker takes part in its group. Periods and timeouts are RocketMQ's defaults."""

    controllers: tuple[str, ...]
    """controllerAddr: `host:port` of each."""
    cluster_name: str
    broker_name: str
    broker_address: str
    """`host:port` for clients and for notices of the controllers."""
    metadata_period_s: float = 5.0
    """syncBrokerMetadataPeriod."""
    leader_period_s: float = 10.0
    """syncControllerMetadataPeriod."""
    heartbeat_period_s: float = 1.0
    """brokerHeartbeatInterval."""
    heartbeat_timeout_ms: int = 10_000
    """controllerHeartBeatTimeoutMills: the controllers take a broker that is silent for so long for dead."""
    election_priority: int = 2**31 - 1
    """brokerElectionPriority: among equal candidates the lowest is elected."""
    request_timeout_s: float = 3.0


@frozen(kw_only=True)
class AgentStatus:
    """An agent at one moment."""

    state: AgentState
    broker_id: int | None
    """None before the first id."""
    role: Role | None
    leader: str | None
    """`host:port` of the leading controller; None while this broker works alone."""
    leader_heard_s: float | None
    """When a controller that leads last answered, on trio's clock; None for never."""
    controllers: tuple[LinkStatus, ...]
    roles: int
    """Roles since the start: the first one, and each new epoch."""
    role_since_ms: int | None
    """Wall clock in ms since 1970 when the last of them was decided."""
    refusal: str | None
    """Why the last step was refused; None if it was not."""
    hang: str | None
    """What of this broker hangs, so that it sends no heartbeats; None if nothing does."""

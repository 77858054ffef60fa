"""Keys of controller mode (docs/protocol/ha.md#controller-periods)."""

from __future__ import annotations

from attrs import frozen

from trioha.config import values
from trioha.config.setting import setting
from trioha.config.values import LONG_MAX


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class ControllerKeys:
    """Controller mode."""

    enable_controller_mode: bool = setting("enableControllerMode", values.boolean, default=False)
    """Whether RocketMQ's controllers give this node its id and its role. RocketMQ default: false."""

    controller_addr: tuple[str, ...] = setting("controllerAddr", values.addresses, default=())
    """Addresses of all controllers, `host:port` split by `;`. RocketMQ default: none."""

    sync_broker_metadata_period: int = setting(
        "syncBrokerMetadataPeriod", values.integer(low=100), default=5000
    )
    """Milliseconds between two questions to the controllers for the master. RocketMQ default: 5000."""

    sync_controller_metadata_period: int = setting(
        "syncControllerMetadataPeriod", values.integer(low=100), default=10_000
    )
    """Milliseconds between two questions to each controller for the one that leads. RocketMQ default:
    10000."""

    check_sync_state_set_period: int = setting(
        "checkSyncStateSetPeriod", values.integer(low=100), default=5000
    )
    """Milliseconds between two looks of a master for members of the sync-state set that fell back. RocketMQ
    default: 5000."""

    controller_heart_beat_timeout_mills: int = setting(
        "controllerHeartBeatTimeoutMills", values.integer(low=1000), default=10_000
    )
    """Milliseconds of silence after which the controllers take this node for dead. RocketMQ default:
    10000."""

    broker_heartbeat_interval: int = setting("brokerHeartbeatInterval", values.integer(low=100), default=1000)
    """Milliseconds between two heartbeats to each controller. RocketMQ default: 1000."""

    broker_election_priority: int = setting(
        "brokerElectionPriority", values.integer(low=0), default=2**31 - 1
    )
    """Among candidates with equal logs the controllers elect the one with the lowest. RocketMQ default:
    2147483647."""

    async_learner: bool = setting("asyncLearner", values.boolean, default=False)
    """Whether this node never enters the sync-state set, and so never becomes master. RocketMQ default:
    false."""

    sync_from_last_file: bool = setting("syncFromLastFile", values.boolean, default=False)
    """Whether an empty slave of a controller's group starts with its master's last file, not with the first.
    RocketMQ default: false."""

    ha_accept_cut: int | None = setting(
        "trioha.haAcceptCut", values.optional_integer(low=0, high=LONG_MAX), default=None
    )
    """The offset at which a slave of controller mode may cut its log although later bytes may have been
    confirmed to producers; None for nowhere. The slave's refusal names it; it is for that cut alone."""

    hang_timeout: int = setting("trioha.hangTimeout", values.integer(low=1000), default=15_000)
    """Milliseconds for which a sync of the disk or a change of the role may make no progress in controller
    mode; then the node sends no heartbeats to the controllers, so that they elect another master."""

"""The status of a broker and of its HA connections: one model from the HA room to the monitor.

A node builds a `BrokerStatus` of itself, `trioha.remoting.ha_runtime_info` writes it as RocketMQ's
HARuntimeInfo and reads it back, `trioha.remoting.status_reader` completes that of a RocketMQ broker from its
other answers. A value that a broker does not report is None: versions differ, and readers show what there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from attrs import Factory, field, frozen

from trioha.distribution import Distribution

ROLE_UNKNOWN = "UNKNOWN"
"""Role of a broker that reports it neither in its HA status nor in its configuration."""


@frozen(kw_only=True)
class ConnectionStatus:
    """One HA connection, as its master sees it. Fields that default to None are reported by trioha only."""

    address: str = ""
    """The slave's socket, `host:port`."""
    sent_offset: int = 0
    """Next byte to send; -1 before the slave's first request."""
    ack_offset: int = 0
    """The slave has acknowledged everything before it; -1 before its first report."""
    lag_bytes: int = 0
    """Master's max offset less `ack_offset`; negative for a false ack."""
    in_sync: bool = False
    """Whether a put may wait for this slave: its lag is below haMaxGapNotInSync."""
    transferred_bytes_per_s: int = 0
    state: str | None = None
    """RocketMQ's name of the connection state."""
    lag_ms: int | None = None
    """Age of the oldest byte that the slave has not acknowledged, 0 if there is none."""
    connection_id: int | None = None
    """Number of the connection in the master's recording."""
    last_received_ms: int | None = None
    """How long ago the master received anything from the slave."""
    ack_latency_us: Distribution[int] | None = None
    """Times from sending a frame to its ack."""
    frame_bytes: Distribution[int] | None = None
    """Bodies of the frames that were sent."""

    @property
    def is_probe(self) -> bool:
        """Whether the peer has not sent a valid request: a health check, or a slave that just connected."""
        if self.state is not None:
            return self.state == "HANDSHAKE"
        return self.sent_offset < 0 and self.ack_offset < 0


@frozen(kw_only=True)
class SlaveStatus:
    """A slave's connection to its master, as the slave sees it. What defaults to None only trioha reports."""

    master_address: str | None = None
    """The master's HA address; None while there is none."""
    max_offset: int = 0
    """End of the slave's own log."""
    transferred_bytes_per_s: int = 0
    last_read_ms: int = 0
    """Wall clock in ms since 1970 of the last bytes from the master; 0 for never."""
    last_write_ms: int = 0
    """Wall clock in ms since 1970 of the last report to the master; 0 for never."""
    reported_offset: int | None = None
    """Last offset reported on the current or last connection; -1 before the first report."""
    state: str | None = None
    """RocketMQ's name of the connection state."""
    reconnects: int | None = None
    """Connections made after the first one."""
    verdict: str | None = None
    """What keeps this log from following its master's (gap, ahead, diverged), with the offset; else empty."""
    local_address: str | None = None
    """The slave's end of the connection, `host:port`: its master lists it by that. None without one."""
    is_observer: bool | None = None
    """Whether it receives everything and acknowledges nothing."""


@frozen
class BrokerSettings:
    """The settings by which replication and the log are judged; None for one that is not reported."""

    gap_bytes_max: int | None = None
    """haMaxGapNotInSync (4.9: haSlaveFallbehindMax)."""
    slave_timeout_ms: int | None = None
    """slaveTimeout."""
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


@frozen
class BrokerRuntimeInfo:
    """Figures that only the runtime table (request 28) has, as of its last answer."""

    booted_ms: int | None = None
    """Wall clock in ms since 1970 of the broker's start."""
    earliest_ms: int | None = None
    """Store time of the first message, ms since 1970; None for a log without one."""
    put_messages_per_s: float | None = None
    """Over the last 10 s."""
    puts_total: int | None = None
    """Since the start."""
    puts_failed: int | None = None
    """Part of `puts_total` that failed."""
    unflushed_bytes: int | None = None
    """Bytes of the log that were not on disk yet; real brokers round it to three digits and more."""
    disk_ratio: float | None = None
    """Used part of the log's disk, 0 to 1."""
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None


@frozen(kw_only=True)
class TableCopyStatus:
    """A slave's copy of one metadata table of its master."""

    age_ms: int | None = None
    """How long ago the master's answer was last taken; None for never."""
    entries: int = 0
    """Topics, groups or offsets in that answer."""
    changes: int = 0
    """Answers since the start that have changed the table."""
    failures: int = 0
    """Attempts since the start that have failed."""
    error: str = ""
    """Why the last attempt failed; empty if it succeeded."""


@frozen(kw_only=True)
class MetadataStatus:
    """A slave's copy of its master's metadata."""

    master_address: str | None = None
    """Where the slave asks for it; None if it does not know."""
    tables: Mapping[str, TableCopyStatus] = Factory(dict)
    """By table: topics, groups, consumerOffsets, delayOffsets; of 5.x requestModes, timerMetrics,
    timerCheckPoint; of trioha consumerOrders."""
    policy: str = ""
    """trioha.offsetRegression."""
    regressions: int = 0
    """Offsets of the master since the start that were before the slave's."""
    regressions_accepted: int = 0
    """How many of them were taken."""
    regressions_kept: int = 0
    """How many are kept out now: the master's offset is still before the slave's."""


ArchiveState = Literal["starting", "running", "waiting", "fenced", "damaged"]
"""starting: nothing is known of the archive yet. waiting: `error` keeps it from going on, and it tries again.
fenced: another writer has the archive. damaged: a record of the log is. The last two end it until the next
start."""


@frozen(kw_only=True)
class ArchiveStatus:
    """The archive of a broker's log, as the node that writes it sees it."""

    url: str = ""
    """Without credentials."""
    state: str = ""
    """An `ArchiveState`."""
    error: str = ""
    """Why it does not run; empty while it does."""
    generation: str = ""
    """Id of the generation that grows; empty while none is known."""
    archived_offset: int | None = None
    """Everything before it is archived; None while that is not known."""
    lag_bytes: int | None = None
    """Bytes of the log that are not archived; None while that is not known."""
    lag_ms: int | None = None
    """Age of the oldest of them, by its store timestamp; 0 if there is none, None where it is not known."""
    objects: int = 0
    """Objects of the log that were stored since the start."""
    object_bytes: int = 0
    """Their size."""
    failures: int = 0
    """Attempts since the start that have failed."""
    files_deleted_unarchived: int = 0
    """Log files since the start that were deleted before all of their bytes were archived."""


@frozen(kw_only=True)
class ControllerLinkStatus:
    """A broker's connection to one controller."""

    address: str = ""
    """`host:port`."""
    is_connected: bool = False
    is_leader: bool = False
    reason: str = ""
    """Why there is no connection, or why this one does not lead; empty if it leads."""


@frozen(kw_only=True)
class MemberStatus:
    """A replica of a group in controller mode, as its master sees it."""

    broker_id: int = 0
    in_set: bool = False
    """Whether it is in the sync-state set that the controllers have, as far as the master knows."""
    is_required: bool = False
    """Whether it may be in their set: in the known one, or in a proposal that is not decided."""
    is_connected: bool = False
    """Whether it has an HA connection; true of the master itself."""
    ack_offset: int | None = None
    """It holds everything before it; None without a report on its connection. On the master itself, the log's
    end."""


@frozen(kw_only=True)
class ControlStatus:
    """A broker of controller mode: its role, its group, its controllers.

    See docs/protocol/ha.md#sync-state-set, docs/protocol/ha.md#controller-requests.
    """

    role: str = "none"
    """`master`, `slave`, or `none` before the first role since the start and while the role is past."""
    step: str = ""
    """What it asks the controllers for next (`trioha.controller.agent_status.AgentState`)."""
    broker_id: int | None = None
    """The id that the controllers gave it: on a master, too, whose `BrokerStatus.broker_id` is 0."""
    master_epoch: int | None = None
    """Of the master that the controllers named last."""
    master_id: int | None = None
    master_address: str | None = None
    """`host:port` of that master for clients."""
    log_epoch: int | None = None
    """Last epoch of the log; None before the first."""
    sync_state_set: tuple[int, ...] = ()
    """Broker ids, in order: the set that is known last."""
    sync_state_set_epoch: int | None = None
    """Grows with each change of the set."""
    in_sync_min: int | None = None
    """minInSyncReplicas: with a smaller set a master refuses messages."""
    members: tuple[MemberStatus, ...] = ()
    """On a master: itself, the replicas of its set and those that are connected, by id."""
    confirm_offset: int | None = None
    """Everything before it is held by the whole sync-state set; on a slave, as its master said last."""
    leader: str | None = None
    """`host:port` of the leading controller; None while none is known."""
    leader_heard_ms: int | None = None
    """How long ago a leading controller last answered, in milliseconds; None for never."""
    controllers: tuple[ControllerLinkStatus, ...] = ()
    """In the order of controllerAddr."""
    refusal: str = ""
    """Why the controllers refused the last step; empty if they did not."""
    role_changes: int = 0
    """Roles that the controllers gave since the start, the first one and each new epoch included."""
    role_changed_ms: int | None = None
    """Wall clock in ms since 1970 of the last of them."""

    @property
    def is_set_short(self) -> bool:
        """Whether it is a master whose set is smaller than minInSyncReplicas."""
        return (
            self.role == "master"
            and self.in_sync_min is not None
            and self.sync_state_set_epoch is not None
            and len(self.sync_state_set) < self.in_sync_min
        )


@frozen(kw_only=True)
class PendingStatus:
    """What a store holds for delivery, and of that what this version does not deliver, or does not read."""

    timers: int = 0
    """Messages that wait for a time of their own."""
    delivers_timers: bool = False
    """Whether they are delivered then."""
    timers_first_ms: int | None = None
    """When the first of them is due, ms since 1970; None without any."""
    timers_last_ms: int | None = None
    """When the last of them is due."""
    popped: int = 0
    """Messages that were popped, and neither acknowledged nor given again; 0 where the node gives them
    again."""
    popped_first_ms: int | None = None
    """When the first of them was popped, ms since 1970; None without any."""
    popped_groups: Mapping[str, int] = Factory(dict)
    """How many of them by `topic@group`, the most first; of very many groups only the first ones."""
    unreadable: int = 0
    """Records of timers and pops that could not be read: what they say is not in these numbers."""
    unread_stores: tuple[str, ...] = ()
    """RocksDB stores in the store's folder, by their path in it, with what RocketMQ keeps there; and what the
    former master kept in RocksDB only."""
    error: str = ""
    """Why nothing was counted; empty if it was."""


@frozen(kw_only=True)
class BrokerStatus:
    """A broker at one moment."""

    address: str = ""
    """The address that was asked; empty in a node's own status."""
    source: Literal["ha-status", "runtime-info"] = "ha-status"
    """Which request reported it: 907, or 28 where 907 is not known."""
    role: str = ROLE_UNKNOWN
    """SYNC_MASTER, ASYNC_MASTER or SLAVE; MASTER where the kind of master is not reported."""
    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: int | None = None
    version: str | None = None
    min_offset: int | None = None
    """First byte of the log."""
    max_offset: int = 0
    """End of the log."""
    flushed_offset: int | None = None
    """The log is on disk up to here; only trioha reports it."""
    ha_address: str | None = None
    """`host:port` where the broker listens for slaves."""
    in_sync_slaves: int | None = None
    """Slaves in sync, the master itself not counted; None on a slave."""
    connections: tuple[ConnectionStatus, ...] = ()
    """Connections of slaves to this broker."""
    unread_connections: int = 0
    """Connections that the answer has beyond those that its reader accepts."""
    unread_probes: int = 0
    """The same of connections whose peer has not sent a request (`ConnectionStatus.is_probe`)."""
    answer_bytes: int = field(default=0, eq=False)
    """Bytes of the bodies that were parsed for this status."""
    client: SlaveStatus | None = None
    """On a slave: its connection to the master."""
    ended_connections: Mapping[str, int] = Factory(dict)
    """HA connections of slaves that ended since the start, by reason; empty where unknown."""
    probes: Mapping[str, Mapping[str, int]] = Factory(dict)
    """Connections at the HA port that ended without a valid request since the start, by host and reason;
    `other` stands for the hosts beyond the limit. Only trioha reports it."""
    put_statuses: Mapping[str, int] = Factory(dict)
    """Puts since the start by their PutMessageStatus; empty where unknown."""
    dispatched_offset: int | None = None
    """Everything before it is in consume queues and index."""
    dispatch_fault: str = ""
    """The last record that could not be dispatched, empty if there is none; only trioha reports it."""
    time_steps: int | None = None
    """How often store times went back in the log by more than 3 s since the start; only trioha reports it."""
    time_lead_ms: int | None = None
    """By how much the newest record's store time leads the clock, 0 if by 3 s at most; only trioha reports
    it."""
    clock_doubt: str = ""
    """Why log files that are old by the clock are kept, empty if none is; only trioha reports it."""
    read_faults: int | None = None
    """Reads of the log since the start that the disk did not answer; only trioha reports it."""
    read_fault: str = ""
    """File, offset and reason of the last one of them, empty without any; only trioha reports it."""
    put_refusal: str = ""
    """Why the disk keeps messages from being stored, empty if it does not; only trioha reports it."""
    unwritten: Mapping[str, str] = Factory(dict)
    """What the node cannot write although it goes on without it, and why; only trioha reports it."""
    write_failures: Mapping[str, int] = Factory(dict)
    """How many writes of such things failed since the start; only trioha reports it."""
    settings: BrokerSettings = BrokerSettings()
    table: BrokerRuntimeInfo = BrokerRuntimeInfo()
    files: int | None = None
    """Files of the log; only trioha reports it."""
    kernel: str | None = None
    """How the loops over records run: compiled, or pure, with the reason; only trioha reports it."""
    acl_refusals: int | None = None
    """Requests that access control refused since the start; None without access control. Only trioha reports
    it."""
    metadata: MetadataStatus | None = None
    """On a slave: its copy of the master's metadata; only trioha reports it."""
    archive: ArchiveStatus | None = None
    """Of a node with trioha.archiveUrl; only trioha reports it."""
    control: ControlStatus | None = None
    """Of a broker with enableControllerMode. trioha reports it; that of a RocketMQ broker is made of other
    answers, as far as they go (`trioha.controller.group_status`)."""
    pending: PendingStatus | None = None
    """On a master, once it is counted: what a RocketMQ 5 master left in its log, and trioha does not deliver.
    Only trioha reports it."""
    warnings: tuple[str, ...] = ()
    """What the broker warns of in its own configuration; only trioha reports it."""

    @property
    def is_trioha(self) -> bool:
        """Whether a trioha node reported it: a RocketMQ broker has no flushed offset in its answers."""
        return self.flushed_offset is not None

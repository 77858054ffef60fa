"""The view model of the screens: one frozen `ClusterView` of one moment. No clock, no I/O, no screen.

Two sources make views:

- The live feed (`trioha_monitor.live`) asks nodes over their remoting port (`trioha_monitor.cluster`).
  Figures are as old as the last answer: `NodeView.age_s`.
- A replay (`trioha_monitor.replay`) reads recorded sessions. Figures are those of the sessions at its
  position.

None means "not known" (a RocketMQ broker does not report it, a session does not have it), never zero; screens
show a dash.

Clock. `time_ms` of views and events is milliseconds since 1970 on one axis: the wall clock at the start of
the source plus the monotonic time since (live), or the session's clocks (replay). Live, it never goes back
and no age is negative, whatever the wall clocks of this machine and of the nodes do. Durations are in seconds
(`_s`) unless named otherwise, offsets and sizes in bytes, rates in bytes or messages per second.

Texts of peers have been made safe for a terminal and cut (`trioha_monitor.texts`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum

from attrs import Factory, field, frozen

from trioha.broker_status import ControlStatus
from trioha.distribution import Distribution
from trioha.replica_verdict import Limits, Verdict
from trioha.severity import Severity
from trioha_monitor.series import Series


class Health(Enum):
    """State of a node; the value is the word that is shown."""

    CONNECTING = "CONNECTING"
    """No answer yet."""
    UP = "UP"
    """It answers (live), or its session is running at this moment (replay)."""
    LATE = "LATE"
    """Its next answer is late."""
    DOWN = "DOWN"
    """The last request failed, or its session has ended: see `NodeView.reason`."""

    @property
    def severity(self) -> Severity:
        """How bad that is."""
        return {
            Health.CONNECTING: Severity.NOTICE,
            Health.UP: Severity.GOOD,
            Health.LATE: Severity.WARNING,
            Health.DOWN: Severity.CRITICAL,
        }[self]


class EventKind(Enum):
    """Kind of an event; the value is the word that is shown and that filters use."""

    CONNECT = "connect"
    """A replica connected, for the first time or again."""
    LOST = "lost"
    """A replica's connection ended; the text has the reason where it is known."""
    REFUSED = "refused"
    """A master refused a peer: a forged ack, a wrong offset, not allowed."""
    SYNC = "in-sync"
    """The master counts a replica as in sync, or stops counting it."""
    GAP = "gap"
    """A replica's log does not continue its master's: below min, ahead or diverged; or it does again."""
    VERDICT = "verdict"
    """Another verdict, if no other kind reports it."""
    ROLE = "role"
    """A node has another role, name or id than before; in controller mode also another epoch."""
    SET = "set"
    """The sync-state set of a master in controller mode has other members."""
    CUT = "cut"
    """The log of a node in controller mode ends before it did: what its master does not have was cut."""
    CONTROLLER = "controller"
    """Another controller leads, none does, or the controllers refuse a node."""
    NODE = "node"
    """A node appeared, stopped answering, answers again, restarted, or left the name server."""
    PUTS = "puts"
    """Puts begin to fail, or succeed again."""
    DISK = "disk"
    """A fault of disk, dispatch or archive, or its end."""
    CONFIG = "config"
    """A warning about settings."""
    CLOCK = "clock"
    """A wall clock jumped."""
    MARK = "mark"
    """The source itself: a recording starts or ends, a session is damaged."""


@frozen
class TimelineEvent:
    """An event, as the Events screen lists it and graphs mark it."""

    time_ms: int
    """When it was seen, on the axis of `ClusterView.time_ms`."""
    kind: EventKind
    node: str
    """Label of the node that it is about, or whose answer shows it; empty without one."""
    replica: str
    """Address or label of the replica that it is about; empty without one."""
    text: str
    """One line."""
    severity: Severity = Severity.NOTICE
    number: int = 0
    """Number among all events of the source, from 1 on; stable when old events are dropped."""
    more: int = 0
    """How many other events of its node and kind were merged into it."""


@frozen
class PutRate:
    """Puts with one result."""

    status: str
    """PutMessageStatus, or SendStatus if the source has no more."""
    count: int
    """Since the node's start (live) or the session's (replay)."""
    per_s: float | None
    """Mean of the last seconds; None before two samples."""


def put_rates(rates: Iterable[PutRate]) -> tuple[PutRate, ...]:
    """Results of puts in their order on screens: PUT_OK first, then by name."""
    return tuple(sorted(rates, key=lambda rate: (rate.status != "PUT_OK", rate.status)))


@frozen
class ProbeCount:
    """Connections of one host at a node's HA port that ended without a request."""

    host: str
    """Address of the host, or `other` for hosts that are counted together."""
    reason: str
    """CloseReason."""
    count: int
    """Since the node's start (live), or the session's (replay)."""


@frozen(kw_only=True)
class ArchiveView:
    """The archive of a node's log, as the node reports it."""

    url: str
    state: str
    """starting, running, waiting, fenced or damaged."""
    error: str = ""
    """Why it does not run; empty while it does."""
    generation: str = ""
    """Id of the generation that grows; empty while none is known."""
    archived_offset: int | None = None
    """Everything before it is archived."""
    lag_bytes: int | None = None
    """Bytes of the log that are not archived."""
    lag_s: float | None = None
    """Age of the oldest of them."""
    files_deleted_unarchived: int = 0
    """Log files that were deleted before they were archived."""


@frozen
class LogView:
    """A node's log and disk."""

    min_offset: int | None = None
    """First byte of the log."""
    max_offset: int | None = None
    """End of the log."""
    flushed_offset: int | None = None
    """End of the bytes on disk."""
    dispatched_offset: int | None = None
    """End of the bytes in consume queues and index."""
    append_bytes_per_s: float | None = None
    """How fast max_offset moves, mean of the last seconds."""
    append_history: Series = field(factory=Series, repr=False)
    """The fastest append rate of each bucket, in bytes per second."""
    file_bytes: int | None = None
    """Size of its files: mappedFileSizeCommitLog."""
    files: int | None = None
    """How many files."""
    put_messages_per_s: float | None = None
    """Puts, by the node's own count."""
    puts: tuple[PutRate, ...] = ()
    """Results of puts in the order of `put_rates`; empty if the node does not report them."""
    disk_ratio: float | None = None
    """Used part of its disk, 0 to 1."""
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    earliest_ms: int | None = None
    """When its first message was stored, milliseconds since 1970 on the node's clock."""
    retention_s: float | None = None
    """fileReservedTime: age at which files are deleted."""
    disk_ratio_max: float | None = None
    """diskMaxUsedSpaceRatio: above it old files are deleted early, 0 to 1."""
    dispatch_fault: str = ""
    """The last record that could not be dispatched; empty if there is none."""
    archive: ArchiveView | None = None
    """None for a node without an archive."""

    @property
    def size_bytes(self) -> int | None:
        """Size of the log."""
        if self.min_offset is None or self.max_offset is None:
            return None
        return self.max_offset - self.min_offset

    @property
    def unflushed_bytes(self) -> int | None:
        """Bytes that are not on disk yet."""
        if self.flushed_offset is None or self.max_offset is None:
            return None
        return max(0, self.max_offset - self.flushed_offset)

    @property
    def undispatched_bytes(self) -> int | None:
        """Bytes that are not in consume queues and index yet."""
        if self.dispatched_offset is None or self.max_offset is None:
            return None
        return max(0, self.max_offset - self.dispatched_offset)


@frozen
class SlaveView:
    """A slave's own side of its connection to the master."""

    master_address: str | None
    """The master's HA address as the slave has it; None without one."""
    state: str
    """RocketMQ's connection state; empty if the slave does not report it."""
    reported_offset: int | None
    """The offset that it last reported."""
    received_bytes_per_s: float | None
    """By the slave's own count."""
    read_age_s: float | None
    """Time since it last read from the master, by the slave's clock; None for never."""
    reconnects: int | None
    is_observer: bool | None
    complaint: str
    """Why it cannot replicate, by its own report; empty if it can."""


def node_label(broker_name: str | None, broker_id: int | None) -> str:
    """Broker name and id, `broker-a #1`; empty while they are not known."""
    if not broker_name:
        return ""
    return broker_name if broker_id is None else f"{broker_name} #{broker_id}"


@frozen
class RoleSpan:
    """From when on a node had a role."""

    time_ms: int
    """Its start, on the axis of `ClusterView.time_ms`."""
    role: str
    """`master`, `slave` or `none`; empty while the node did not answer."""
    epoch: int | None = None
    """Of its master."""


@frozen
class NodeView:
    """One node. A node that is DOWN keeps its last figures."""

    address: str
    """Its key: the address as named (`host:port`), or the session's label."""
    health: Health = Health.CONNECTING
    reason: str = ""
    """Why it is DOWN; empty otherwise."""
    for_s: float = 0.0
    """Time in this health (DOWN: time without an answer)."""
    age_s: float | None = None
    """Age of its figures; None if there are none."""
    faults: Mapping[str, int] = Factory(dict)
    """Failed requests by reason; bounded."""
    role: str = ""
    """SYNC_MASTER, ASYNC_MASTER, SLAVE, MASTER (one of the two), UNKNOWN, or empty if it never answered."""
    cluster: str = ""
    broker_name: str = ""
    broker_id: int | None = None
    version: str = ""
    ha_address: str = ""
    """Where it listens for slaves."""
    source: str = ""
    """Source of the figures: `907`, `28` (RocketMQ 4.9: no replicas), `session`, or empty."""
    lists_replicas: bool = False
    """Whether it lists its replicas."""
    log: LogView = field(factory=LogView)
    limits: Limits = field(factory=Limits)
    slave: SlaveView | None = None
    """A slave's own side; None for a master."""
    connected_replicas: int = 0
    """Open connections of replicas, with hidden ones."""
    hidden_replicas: int = 0
    """Connections beyond the maximum of one node."""
    waiting_probes: int = 0
    """Open connections without a request: health checks, and slaves that have just connected. They are not
    replicas."""
    probes: tuple[ProbeCount, ...] = ()
    """Ended connections without a request, the most frequent first; empty if they are not reported."""
    observers: int = 0
    """Connections of observers."""
    in_sync_replicas: int | None = None
    """Slaves that it counts as in sync, without itself."""
    ended_connections: Mapping[str, int] = Factory(dict)
    """HA connections that ended since its start, by reason; empty where unknown."""
    warnings: tuple[str, ...] = ()
    """Its warnings about its settings."""
    control: ControlStatus | None = None
    """Its role, group and controllers, as it reports them; None outside of controller mode."""
    roles: tuple[RoleSpan, ...] = ()
    """Its roles so far, oldest first; bounded, empty outside of controller mode."""

    @property
    def is_master(self) -> bool:
        """Whether its role is a master's."""
        return self.role.endswith("MASTER")

    @property
    def label(self) -> str:
        """Broker name and id, `broker-a #1`; its address while they are unknown."""
        return node_label(self.broker_name, self.broker_id) or self.address


@frozen
class MetadataView:
    """A slave's copy of its master's topics, groups and offsets."""

    age_s: float | None
    """Age of the table whose last copy is oldest; None if one was never copied."""
    faults: tuple[str, ...] = ()
    """Tables whose last copy failed, with the reason."""
    offsets_kept: int = 0
    """Offsets of the master that are before the slave's and not taken: trioha.offsetRegression."""


@frozen
class ReplicaView:
    """One replica of one master: figures of the master's connection, and of the slave itself.

    A watched slave without a connection is a replica, too: then the master's figures are None.
    """

    key: int
    """Key of the row; stable across reconnects."""
    master: str
    """`NodeView.address` of the master, or its HA address if it is not watched."""
    master_label: str
    address: str
    """The slave's socket at its master, `host:port`; without a connection that of the last one."""
    node: str | None
    """`NodeView.address` of the slave; None if it is not watched or not known."""
    label: str
    """Broker name and id of the slave where known, else its address."""
    verdict: Verdict
    why: str
    """Reason of the verdict in a few words; may be empty for OK."""
    state: str
    """RocketMQ's connection state; CONNECTED if it is not reported, empty without a connection."""
    is_connected: bool
    """Whether the master lists it (by its last answer)."""
    for_s: float
    """Time since it connected, or since its connection ended."""
    age_s: float
    """Age of the figures."""
    master_offset: int | None
    """The master's max offset. This and the next two are of one answer of the master."""
    sent_offset: int | None
    """First byte that has not been sent to it."""
    ack_offset: int | None
    """Offset that it acknowledged."""
    slave_max_offset: int | None
    """End of its own log. This and the next two are the slave's own answer: of another moment than the
    master's, and to be compared with each other only."""
    flushed_offset: int | None
    """End of the bytes on its disk."""
    dispatched_offset: int | None
    """End of the bytes in its consume queues and index."""
    slave_age_s: float | None
    """Age of the slave's own answer; None without one, and in a replay."""
    diff_bytes: int | None
    """master_offset - ack_offset as the master computed it (`mqadmin haStatus`): negative for a lying ack."""
    lag_s: float | None
    """Age of the oldest byte that it has not acknowledged; 0 if there is none."""
    in_sync: bool | None
    """Whether the master counts it as in sync."""
    sent_bytes_per_s: float | None
    """How fast sent_offset moves, mean of the last seconds."""
    ack_bytes_per_s: float | None
    """How fast ack_offset moves, mean of the last seconds."""
    transferred_bytes_per_s: int | None
    """By the master's own count, which with RocketMQ is of frame headers only
    (docs/protocol/ha.md#flow-control)."""
    eta_s: float | None
    """Time until it has caught up at the present rates; 0 if it has, None if that is not known."""
    is_closing: bool | None
    """Whether the distance shrinks; None before the rates are known."""
    reconnects: int | None
    """How often it reconnected, restarts included: by its own count, or its master's if that is more."""
    is_rejoining: bool = False
    """Whether its distance may be the tail that it compares after it connected: that is not a lag and not in
    graphs."""
    ack_latency_ms: Distribution[float] | None = None
    """From sending a frame to its ack, milliseconds; None if the master does not report it."""
    frame_bytes: Distribution[float] | None = None
    """Bodies of frames sent to it, bytes; None if the master does not report it."""
    metadata: MetadataView | None = None
    """By the slave's own status; None if it does not report it, and in a replay."""
    lag_history: Series = field(factory=Series, repr=False)
    """Worst lag in bytes of each bucket, with the severity of its verdict."""
    lag_s_history: Series = field(factory=Series, repr=False)
    """Worst lag in seconds of each bucket, with the severity of its verdict."""
    limits: Limits = field(factory=Limits)
    """Of its master."""


@frozen
class GroupView:
    """A consumer group in one topic of one broker name; or a topic without a group."""

    key: int
    """Key of the row; stable."""
    group: str
    """Empty for a topic that no group consumes."""
    topic: str
    broker: str
    """Broker name."""
    queues: int
    lag: int | None = None
    """Messages that are stored and not committed, in all queues; None without a group."""
    lag_s: float | None = None
    """Age of the last committed message in the queue where it is oldest; None without a lag."""
    read_per_s: float | None = None
    """Messages per second that the brokers give the group, mean of the last seconds."""
    members: int | None = None
    """Connected consumers; None while they are not known."""
    clients: tuple[str, ...] = ()
    """Their ids and addresses; bounded."""
    model: str = ""
    """CLUSTERING or BROADCASTING; empty without members."""
    sources: tuple[tuple[str, float], ...] = ()
    """Brokers that give it messages, by label, with messages per second, the most first."""
    age_s: float = 0.0
    """Age of the figures."""


@frozen
class ConsumptionView:
    """Topics, groups and their lag."""

    rows: tuple[GroupView, ...] = ()
    """The largest lag first; bounded."""
    hidden_rows: int = 0
    """Rows that were dropped."""
    pairs: int = 0
    """Number of rows with a group."""
    faults: tuple[str, ...] = ()
    """Nodes that do not answer for their groups, with the reason."""


@frozen
class NameServerView:
    """A name server that lists nodes."""

    address: str
    health: Health
    reason: str = ""
    """Why the last request failed; empty if it did not."""
    age_s: float | None = None
    """Age of the last answer; None without one."""


@frozen
class ClusterView:
    """The whole view of one moment."""

    time_ms: int
    """The moment: see the module's text on the clock."""
    nodes: tuple[NodeView, ...] = ()
    """In a stable order: as named, then as found."""
    replicas: tuple[ReplicaView, ...] = ()
    """Replicas of all masters, in the order of the nodes, then as first seen."""
    events: tuple[TimelineEvent, ...] = field(default=(), repr=False)
    """Events up to now, oldest first; the same object until there is another one. Bounded: the number of the
    first one shows how many were dropped."""
    name_servers: tuple[NameServerView, ...] = ()
    consumption: ConsumptionView | None = None
    """Topics and groups; None in a replay, and before the first answer."""
    interval_s: float = 0.1
    """Pause between two requests to a node (live); 0 in a replay."""
    is_live: bool = True

    def node(self, address: str) -> NodeView | None:
        """The node with this key, None if there is none."""
        return next((node for node in self.nodes if node.address == address), None)

    def replica(self, key: int) -> ReplicaView | None:
        """The replica with this key, None if there is none."""
        return next((replica for replica in self.replicas if replica.key == key), None)


Show = Callable[[ClusterView], None]
"""Shows a view; called in the source's thread, returns at once."""
ViewFeed = Callable[[Show], Awaitable[None]]
"""A source of views: shows one after the other until it is cancelled."""

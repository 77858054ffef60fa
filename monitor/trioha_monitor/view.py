"""What the screens show: one frozen `ClusterView` for one moment. No clock, no I/O, no screen.

Two sources make views, and screens need not know which one they look at:

- The live feed (`trioha_monitor.live`) asks nodes over their remoting port and folds the answers
  (`trioha_monitor.cluster`). Figures are as old as the last answer; `NodeView.age_s` says how old.
- A replay (`trioha_monitor.replay`) folds recorded sessions up to the moment it stands at. There a node's
  figures are those of its session; what a session does not say is None.

None is always "not known here" (a real broker does not tell it, a session does not hold it), never zero;
screens show it as a dash.

Clock. `time_ms` of views and events is milliseconds since 1970 on one axis: the wall clock when the source
began plus the monotonic time since (live), or the clock pair of the session (replay). Live it never goes back
and no age is ever negative, whatever the wall clocks of this machine and of the nodes do. Durations are in
seconds (`_s`) unless named otherwise, offsets and sizes in bytes, rates in bytes or messages per second.

Texts from peers were made safe for a terminal and cut to a bounded length before they came here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum

from attrs import Factory, field, frozen

from trioha.distribution import Distribution
from trioha_monitor.series import Series, Severity


class Verdict(Enum):
    """How a replica does, in one word; `ReplicaView.why` says it in a few. The value is the word shown."""

    OK = "OK"
    """It follows."""
    OBSERVER = "OBSERVER"
    """It takes everything and acknowledges nothing, as it is meant to."""
    FALL_BEHIND = "FALL BEHIND"
    """What it lacks is older than the master waits for replicas (slaveTimeout)."""
    NOT_IN_SYNC = "NOT IN SYNC"
    """The master does not count it: it lacks haMaxGapNotInSync or more, or has not acknowledged lately."""
    STALE = "STALE"
    """Not known: its master does not answer. `ReplicaView.age_s` says how old the figures are."""
    STALLED = "STALLED"
    """Connected, bytes wait for it, and its ack does not move."""
    SILENT = "SILENT"
    """Not connected, or nothing was heard of it for longer than two heartbeats."""
    GAP = "GAP: below min"
    """It asks for bytes that its master has deleted: it will never follow again by itself."""
    DIVERGED = "DIVERGED"
    """Its log is not the master's: other bytes, or more of them."""

    @property
    def severity(self) -> Severity:
        """How bad that is."""
        return _SEVERITIES[self]


_SEVERITIES = {
    Verdict.OK: Severity.GOOD,
    Verdict.OBSERVER: Severity.NOTICE,
    Verdict.FALL_BEHIND: Severity.WARNING,
    Verdict.NOT_IN_SYNC: Severity.WARNING,
    Verdict.STALE: Severity.WARNING,
    Verdict.STALLED: Severity.BAD,
    Verdict.SILENT: Severity.BAD,
    Verdict.GAP: Severity.BAD,
    Verdict.DIVERGED: Severity.BAD,
}


class Health(Enum):
    """What is known of a node. The value is the word shown."""

    CONNECTING = "CONNECTING"
    """Not heard of yet."""
    UP = "UP"
    """It answers (live), or its session goes on at this moment (replay)."""
    LATE = "LATE"
    """It answered before, and takes long now."""
    DOWN = "DOWN"
    """The last question failed, `NodeView.reason` says how; or its session has ended."""

    @property
    def severity(self) -> Severity:
        """How bad that is."""
        return {Health.UP: Severity.GOOD, Health.DOWN: Severity.BAD}.get(self, Severity.NOTICE)


class EventKind(Enum):
    """What an event on the timeline is about. The value is the word shown and filtered by."""

    CONNECT = "connect"
    """A replica connected, for the first time or again."""
    LOST = "lost"
    """A replica's connection ended; the text has the reason where it is known."""
    REFUSED = "refused"
    """A master closed a connection for what the peer said: a forged ack, a wrong offset, not allowed."""
    SYNC = "in-sync"
    """The master counts a replica as in sync, or no longer."""
    GAP = "gap"
    """A replica's log does not continue its master's: below min, ahead or diverged; or it does again."""
    VERDICT = "verdict"
    """Another verdict, where no other kind says it."""
    ROLE = "role"
    """A node has another role, name or id than before."""
    NODE = "node"
    """A node is gone, back, new, restarted, or left the name server."""
    PUTS = "puts"
    """Puts fail that did not, or succeed again."""
    DISK = "disk"
    """Disk or dispatch of a node is in trouble, or no longer."""
    CONFIG = "config"
    """Settings that an operator should look at."""
    CLOCK = "clock"
    """A wall clock jumped."""
    MARK = "mark"
    """Something of the source itself: a recording began or ended, a session has a hole."""


@frozen
class TimelineEvent:
    """Something that happened, as the Events screen lists it and as graphs mark it."""

    time_ms: int
    """When it was seen: on the axis of `ClusterView.time_ms`."""
    kind: EventKind
    node: str
    """Label of the node that it is about or that told it; empty for what concerns none."""
    replica: str
    """Address of the replica that it is about; empty for what concerns none."""
    text: str
    """One line that makes sense by itself beside node and replica."""
    severity: Severity = Severity.NOTICE
    number: int = 0
    """Counts all events of the source from 1 on: stable, also after old ones were dropped."""
    more: int = 0
    """How many others of its node and kind it stands for: of a long session not every one is kept."""


@frozen
class Limits:
    """A broker's own limits: what verdicts are measured by, and lines in the graphs."""

    gap_bytes_max: int = 268_435_456
    """haMaxGapNotInSync (4.9: haSlaveFallbehindMax): a replica that lacks less counts as in sync."""
    slave_timeout_s: float = 3.0
    """slaveTimeout: how long a put waits for replicas."""
    housekeeping_s: float = 20.0
    """haHousekeepingInterval: silence after which a connection is closed."""
    heartbeat_s: float = 5.0
    """haSendHeartbeatInterval: silence after which either side says something."""
    are_told: bool = False
    """Whether the broker reports them; else they are RocketMQ's defaults."""

    @classmethod
    def of(
        cls,
        *,
        gap_bytes_max: float | None,
        slave_timeout_ms: float | None,
        housekeeping_ms: float | None,
        heartbeat_ms: float | None,
    ) -> Limits:
        """Limits from a broker's settings; None or 0 stands for RocketMQ's default."""
        default = cls()
        return cls(
            gap_bytes_max=int(gap_bytes_max or default.gap_bytes_max),
            slave_timeout_s=slave_timeout_ms / 1000 if slave_timeout_ms else default.slave_timeout_s,
            housekeeping_s=housekeeping_ms / 1000 if housekeeping_ms else default.housekeeping_s,
            heartbeat_s=heartbeat_ms / 1000 if heartbeat_ms else default.heartbeat_s,
            are_told=bool(gap_bytes_max),
        )


@frozen
class PutRate:
    """What became of puts with one result."""

    status: str
    """PutMessageStatus, or SendStatus where the source says no more."""
    count: int
    """Since the node's start (live) or the session's (replay)."""
    per_s: float | None
    """Lately; None until two samples are there."""


def put_rates(rates: Iterable[PutRate]) -> tuple[PutRate, ...]:
    """Results of puts in their order on screens: PUT_OK first, then by name."""
    return tuple(sorted(rates, key=lambda rate: (rate.status != "PUT_OK", rate.status)))


@frozen
class ProbeCount:
    """Connections of one host at a node's HA port that ended without a request."""

    host: str
    """Its address, or `other` for those that are not told apart."""
    reason: str
    """CloseReason."""
    count: int
    """Since the node's start (live), or the session's (replay)."""


@frozen
class LogView:
    """A node's log and disk."""

    min_offset: int | None = None
    """First byte that it still holds."""
    max_offset: int | None = None
    """Its end."""
    flushed_offset: int | None = None
    """How far it is on disk."""
    dispatched_offset: int | None = None
    """How far it is in consume queues and index."""
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
    """Results of puts, PUT_OK first, then by name; empty where the node does not tell them."""
    disk_ratio: float | None = None
    """Used part of the disk that holds it, 0 to 1."""
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

    @property
    def size_bytes(self) -> int | None:
        """How much it holds."""
        if self.min_offset is None or self.max_offset is None:
            return None
        return self.max_offset - self.min_offset

    @property
    def unflushed_bytes(self) -> int | None:
        """How much is not on disk yet."""
        if self.flushed_offset is None or self.max_offset is None:
            return None
        return max(0, self.max_offset - self.flushed_offset)

    @property
    def undispatched_bytes(self) -> int | None:
        """How much is not in consume queues and index yet."""
        if self.dispatched_offset is None or self.max_offset is None:
            return None
        return max(0, self.max_offset - self.dispatched_offset)


@frozen
class SlaveView:
    """A slave's own side of its connection to the master."""

    master_address: str | None
    """The master's HA address as the slave dials it; None while it knows none."""
    state: str
    """RocketMQ's name of the link's state; empty where the slave does not tell it."""
    reported_offset: int | None
    """What it last reported."""
    received_bytes_per_s: float | None
    """By the slave's own count."""
    read_age_s: float | None
    """How long ago it last read something from the master, by the slave's own clock; None for never."""
    reconnects: int | None
    is_observer: bool | None
    complaint: str
    """What keeps it from following its master, in its own words; empty if nothing does."""


def node_label(broker_name: str | None, broker_id: int | None) -> str:
    """Broker name and id, `broker-a #1`; empty while they are not known."""
    if not broker_name:
        return ""
    return broker_name if broker_id is None else f"{broker_name} #{broker_id}"


@frozen
class NodeView:
    """One node. What a node that is DOWN last said stays, and is old."""

    address: str
    """How it was named (`host:port`), or the session's name: its key among the nodes."""
    health: Health = Health.CONNECTING
    reason: str = ""
    """Why it is DOWN; empty otherwise."""
    for_s: float = 0.0
    """How long it has been in this health (DOWN: how long there is no answer)."""
    age_s: float | None = None
    """Age of its figures; None if there are none."""
    faults: Mapping[str, int] = Factory(dict)
    """How often there was no answer, or none that could be used, by reason; bounded."""
    role: str = ""
    """SYNC_MASTER, ASYNC_MASTER, SLAVE, MASTER (one of the two), UNKNOWN, or empty if it never answered."""
    cluster: str = ""
    broker_name: str = ""
    broker_id: int | None = None
    version: str = ""
    ha_address: str = ""
    """Where it listens for slaves."""
    told_by: str = ""
    """Where the figures are from: `907`, `28` (RocketMQ 4.9: nothing of replicas), `session`, or empty."""
    tells_replicas: bool = False
    """Whether it says anything of its replicas."""
    log: LogView = field(factory=LogView)
    limits: Limits = field(factory=Limits)
    slave: SlaveView | None = None
    """A slave's own side; None for a master."""
    connected_replicas: int = 0
    """Connections that it has now, hidden ones included."""
    hidden_replicas: int = 0
    """Connections beyond what is kept of one node."""
    waiting_probes: int = 0
    """Connections whose peer has not asked for anything: health checks, and slaves that have just connected.
    They are no replicas."""
    probes: tuple[ProbeCount, ...] = ()
    """What of that has ended, the most frequent first; empty where the node does not tell it."""
    observers: int = 0
    """Connections that take everything and acknowledge nothing, as they are meant to."""
    in_sync_replicas: int | None = None
    """Slaves that it counts as in sync, itself not counted."""
    ended_connections: Mapping[str, int] = Factory(dict)
    """HA connections that ended since its start, by reason; empty where unknown."""
    warnings: tuple[str, ...] = ()
    """What it warns of in its own settings."""

    @property
    def is_master(self) -> bool:
        """Whether its role is a master's."""
        return self.role.endswith("MASTER")

    @property
    def label(self) -> str:
        """Broker name and id, `broker-a #1`; its address while they are unknown."""
        return node_label(self.broker_name, self.broker_id) or self.address


@frozen
class ReplicaView:
    """One replica of one master: what the master says of its connection, and what the slave says itself.

    A slave that is watched and not connected is a replica too: then the master's figures are None.
    """

    key: int
    """Number of the row: it stays the same when the slave reconnects."""
    master: str
    """`NodeView.address` of the master, or its HA address if it is not watched."""
    master_label: str
    address: str
    """The slave's socket at its master, `host:port`; that of its last connection while there is none."""
    node: str | None
    """`NodeView.address` of the slave where it is watched and known to be this one."""
    label: str
    """Broker name and id of the slave where known, else its address."""
    verdict: Verdict
    why: str
    """A few words on the verdict: what was compared with what; empty for OK with nothing to say."""
    state: str
    """RocketMQ's connection state; CONNECTED where it is not told, empty while there is no connection."""
    is_connected: bool
    """Whether the master lists it (as of its last answer)."""
    for_s: float
    """How long it has been connected, or not."""
    age_s: float
    """Age of the figures."""
    master_offset: int | None
    """The master's max offset. This and the next two are of one answer of the master."""
    sent_offset: int | None
    """First byte that was not sent to it yet."""
    ack_offset: int | None
    """What it acknowledged."""
    slave_max_offset: int | None
    """End of its own log. This and the next two are the slave's own answer: of another moment than the
    master's, and to be compared with each other only."""
    flushed_offset: int | None
    """How far its log is on its disk."""
    dispatched_offset: int | None
    """How far its log is in its consume queues and index."""
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
    """By the master's own count, which with RocketMQ is of frame headers only (spec ha 2.8)."""
    eta_s: float | None
    """When it has caught up at the present speeds; 0 if it has, None if it is not closing or not known."""
    is_closing: bool | None
    """Whether the distance shrinks; None until the speeds are known. False: show "not closing"."""
    reconnects: int | None
    """How often it reconnected: by its own count, else as often as it was seen to."""
    is_rejoining: bool = False
    """Whether what it lacks may be the tail that it compares after it connected, and no lag: then graphs have
    nothing of it."""
    ack_latency_ms: Distribution[float] | None = None
    """From sending a frame to its ack, milliseconds; where the master tells it."""
    frame_bytes: Distribution[float] | None = None
    """Bodies of frames sent to it, bytes; where the master tells it."""
    lag_history: Series = field(factory=Series, repr=False)
    """Worst lag in bytes of each bucket, with the severity of its verdict."""
    lag_s_history: Series = field(factory=Series, repr=False)
    """Worst lag in seconds of each bucket, with the severity of its verdict."""
    limits: Limits = field(factory=Limits)
    """Of its master."""


@frozen
class NameServerView:
    """The name server that nodes are found by."""

    address: str
    health: Health
    reason: str = ""
    """Why the last question failed; empty if it did not. The nodes known before stay."""
    age_s: float | None = None
    """Age of the last answer; None without one."""


@frozen
class ClusterView:
    """Everything that is known at one moment."""

    time_ms: int
    """Which moment: see the module's text on the clock."""
    nodes: tuple[NodeView, ...] = ()
    """In a stable order: as named, then as found."""
    replicas: tuple[ReplicaView, ...] = ()
    """Of all masters, in the order of the nodes, then as first seen."""
    events: tuple[TimelineEvent, ...] = field(default=(), repr=False)
    """What happened up to now, oldest first; the same object until something happens. Bounded: compare
    `TimelineEvent.number` of the first one with 1 to see what was dropped."""
    name_servers: tuple[NameServerView, ...] = ()
    interval_s: float = 0.1
    """Pause between two questions to a node (live); 0 in a replay."""
    is_live: bool = True

    def node(self, address: str) -> NodeView | None:
        """The node with this key, None if there is none."""
        return next((node for node in self.nodes if node.address == address), None)

    def replica(self, key: int) -> ReplicaView | None:
        """The replica with this key, None if there is none."""
        return next((replica for replica in self.replicas if replica.key == key), None)


Show = Callable[[ClusterView], None]
"""Whoever is shown views; called in the source's thread, returns at once."""
ViewFeed = Callable[[Show], Awaitable[None]]
"""A source of views: shows one after the other until it is cancelled."""

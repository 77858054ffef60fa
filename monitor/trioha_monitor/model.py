"""From answers of nodes to what the screen shows. Pure: no clock, no I/O, no screen.

Theory of operation. A `Sample` is what one question to one node brought: its status, or the reason why there
is none, with the monotonic time. `ClusterModel.observe` folds samples into state; `ClusterModel.snapshot`
gives a frozen `Snapshot` for a moment, and one snapshot drives the whole screen.

Rates are computed here from offsets over a sliding window, for every peer alike: what RocketMQ's own master
reports as transferredByteInSecond counts frame headers only (spec ha.md 2.8).

A connection that a master no longer lists is kept as LOST for a while: its lag is then the distance from its
last ack to the master's max offset, which is what the slave lacks. When exactly one connection of a host was
lost and exactly one appears, the new one is its continuation; when as many live again as ever lived, what was
lost is forgotten. A slave's port changes with every connection, so anything bolder would be a guess.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum

from attrs import define, evolve, field, frozen

from trioha.remoting.status import BrokerStatus, ConnectionStatus, SlaveClientStatus
from trioha_monitor.history import Grade, LagHistory, LagRecorder, buckets_for

CONNECTIONS_MAX = 256
"""Connections shown of one node; what is beyond is counted as `hidden_connections`."""
LOST_KEPT_S = 300.0
"""How long a lost connection is shown unless something takes its place, in seconds."""
HISTORY_S = 15 * 60.0
"""How far back lag is kept, in seconds."""
RATE_WINDOW_S = 2.0
"""Rates are means over this many seconds."""
LATE_AFTER_S = 1.0
"""A node without an answer for longer is LATE, in seconds (or three intervals, if that is more)."""
TEXT_MAX = 64
"""Longest text of a peer that is shown, in characters."""
REASON_MAX = 160
"""Longest reason of a fault that is shown, in characters."""
OFFSET_MAX = 2**63 - 1
"""Offsets are Java longs."""


class Health(Enum):
    """What is known of a node."""

    CONNECTING = "CONNECTING"
    """Not asked yet."""
    UP = "UP"
    """It answers."""
    LATE = "LATE"
    """It answered before, and takes long now."""
    DOWN = "DOWN"
    """The last question failed; `reason` says how."""


class LinkState(Enum):
    """What is known of an HA connection, beyond RocketMQ's own state of it."""

    LIVE = "LIVE"
    """Its master lists it."""
    LOST = "LOST"
    """Its master lists it no longer."""
    STALE = "STALE"
    """Its master does not answer: the figures are old."""


@frozen
class Sample:
    """What one question to one node brought."""

    address: str
    """The node as the user named it, `host:port`."""
    at_s: float
    """When, on a monotonic clock, in seconds."""
    status: BrokerStatus | None = None
    """The answer, or None."""
    fault: str | None = None
    """Why there is no answer: a few words. None exactly if there is one."""


@frozen
class ConnectionView:
    """One HA connection of a master, as shown."""

    serial: int
    """Number of the row: it stays the same when a slave reconnects."""
    node_address: str
    """The master, as the user named it."""
    node_name: str
    """The master's broker name and id, or its address."""
    address: str
    """The slave's socket address."""
    master_offset: int
    """The master's max offset, bytes."""
    sent_offset: int
    """First offset that was not sent yet, bytes."""
    ack_offset: int
    """What the slave acknowledged, bytes."""
    lag_bytes: int
    """master_offset - ack_offset as the master computed it; negative if a slave acknowledged too much."""
    lag_ms: int | None
    """Age of the oldest byte that is not acknowledged, where the master tells it."""
    rate_bytes_per_s: float | None
    """How fast sent_offset moves; None until two samples are there."""
    link: LinkState
    state: str
    """RocketMQ's connection state (spec ha.md 2.7), or CONNECTED where the master does not tell it."""
    in_sync: bool
    """Whether the master counts it as in sync."""
    for_s: float
    """How long it has been in this `link` state, seconds."""
    history: LagHistory = field(repr=False)

    @property
    def grade(self) -> Grade:
        """How it does, for its colour."""
        if self.link is not LinkState.LIVE:
            return Grade.LOST
        return _grade(in_sync=self.in_sync, state=self.state)


@frozen
class NodeView:
    """One node, as shown. What a node that is DOWN last said stays, and is old."""

    address: str
    health: Health
    reason: str
    """Why it is DOWN; empty otherwise."""
    for_s: float
    """How long it has been in this health (DOWN: how long there is no answer), seconds."""
    role: str = ""
    """SYNC_MASTER, ASYNC_MASTER, SLAVE, MASTER, or empty if it never answered."""
    name: str = ""
    """Broker name and id, `broker-a #1`; empty if unknown."""
    cluster: str = ""
    """Cluster name; empty if unknown."""
    version: str = ""
    """Version as the node tells it; empty if unknown."""
    min_offset: int | None = None
    """First byte that its log holds."""
    max_offset: int | None = None
    """End of its log, bytes."""
    flushed_offset: int | None = None
    """How far its log is on disk, bytes."""
    rate_bytes_per_s: float | None = None
    """How fast max_offset moves; None until two samples are there."""
    tells_replication: bool = False
    """Whether it says anything of its HA connections: RocketMQ 4.9 does not."""
    in_sync_slaves: int | None = None
    """How many slaves it counts as in sync."""
    slave: SlaveClientStatus | None = None
    """A slave's own side of its connection to the master."""
    connections: tuple[ConnectionView, ...] = ()
    """Its slaves, in the order in which they were first seen."""
    hidden_connections: int = 0
    """Connections beyond `CONNECTIONS_MAX`."""

    @property
    def live_connections(self) -> int:
        """How many connections the master lists, the hidden ones included."""
        return sum(view.link is LinkState.LIVE for view in self.connections) + self.hidden_connections

    @property
    def label(self) -> str:
        """Its name, or its address while the name is unknown."""
        return self.name or self.address


@frozen
class Snapshot:
    """Everything the screen shows at one moment."""

    at_s: float
    """Monotonic time in seconds, on the samples' clock."""
    interval_s: float
    """Pause between two questions to a node, in seconds."""
    nodes: tuple[NodeView, ...]
    wall_time: datetime | None = None
    """What a clock on the wall shows."""

    @property
    def connections(self) -> tuple[ConnectionView, ...]:
        """The connections of all nodes, in the order of the nodes."""
        return tuple(view for node in self.nodes for view in node.connections)


@define(eq=False)
class _RateMeter:
    """How fast an offset moves, as a mean over the last `RATE_WINDOW_S` seconds."""

    _points: deque[tuple[float, int]] = field(factory=deque, init=False)

    def add(self, offset: int, *, at_s: float) -> None:
        points = self._points
        # An offset that goes back is another log or a cut tail: what was before says nothing of its speed.
        if points and offset < points[-1][1]:
            points.clear()
        points.append((at_s, offset))
        while len(points) > 2 and at_s - points[1][0] >= RATE_WINDOW_S:
            points.popleft()

    def clear(self) -> None:
        self._points.clear()

    @property
    def bytes_per_s(self) -> float | None:
        if len(self._points) < 2:
            return None
        (start_s, start), (end_s, end) = self._points[0], self._points[-1]
        return (end - start) / (end_s - start_s) if end_s > start_s else None


@define(eq=False)
class _Link:
    serial: int
    status: ConnectionStatus
    recorder: LagRecorder
    since_s: float
    lost: bool = False
    rate: _RateMeter = field(factory=_RateMeter)

    @property
    def host(self) -> str:
        return self.status.address.rpartition(":")[0]


@define(eq=False)
class _Node:
    address: str
    status: BrokerStatus | None = None
    health: Health = Health.CONNECTING
    reason: str = ""
    since_s: float | None = None
    answered_at_s: float | None = None
    rate: _RateMeter = field(factory=_RateMeter)
    links: list[_Link] = field(factory=list)
    host_peaks: Counter[str] = field(factory=Counter)
    """The most connections of a host that lived at once since the last loss was forgotten."""
    hidden_connections: int = 0


class ClusterModel:
    """The state behind the screen: fed with samples, asked for snapshots.

    `addresses` are the nodes in the order in which they are shown; `interval_s` is how often they are asked.
    """

    def __init__(self, addresses: Sequence[str], *, interval_s: float) -> None:
        self._interval_s = interval_s
        # Two samples a bucket at least, so that a slow answer leaves no hole in the picture.
        self._bucket_s = max(0.5, 2 * interval_s)
        self._late_after_s = max(LATE_AFTER_S, 3 * interval_s)
        self._nodes = {address: _Node(address) for address in addresses}
        self._next_serial = 0

    def observe(self, sample: Sample) -> None:
        """Take in what a question to a node brought. `sample.address` is one of the model's addresses."""
        node = self._nodes[sample.address]
        status, fault = sample.status, sample.fault
        if status is not None:
            fault = _impossible(status)
        if status is None or fault is not None:
            self._observe_fault(node, fault or "no answer", at_s=sample.at_s)
        else:
            self._observe_answer(node, status, at_s=sample.at_s)

    def snapshot(self, now_s: float, *, wall_time: datetime | None = None) -> Snapshot:
        """What is known at `now_s` (on the samples' clock, not before the last sample)."""
        return Snapshot(
            at_s=now_s,
            interval_s=self._interval_s,
            nodes=tuple(self._view(node, now_s=now_s) for node in self._nodes.values()),
            wall_time=wall_time,
        )

    def _observe_fault(self, node: _Node, fault: str, *, at_s: float) -> None:
        if node.health is not Health.DOWN:
            node.health = Health.DOWN
            node.since_s = at_s if node.answered_at_s is None else node.answered_at_s
            node.rate.clear()
            for link in node.links:
                link.rate.clear()
        node.reason = _clean(fault, length_max=REASON_MAX)

    def _observe_answer(self, node: _Node, status: BrokerStatus, *, at_s: float) -> None:
        if node.health is not Health.UP:
            node.health = Health.UP
            node.since_s = at_s
            node.reason = ""
        node.answered_at_s = at_s
        node.status = status
        node.rate.add(status.max_offset, at_s=at_s)
        listed = {connection.address: connection for connection in status.connections[:CONNECTIONS_MAX]}
        node.hidden_connections = len(status.connections) - len(listed)
        self._match(node, listed, at_s=at_s)
        self._forget_lost(node, at_s=at_s)
        for link in node.links:
            if link.lost:
                lag_bytes, grade = status.max_offset - link.status.ack_offset, Grade.LOST
            else:
                lag_bytes = link.status.lag_bytes
                grade = _grade(in_sync=link.status.in_sync, state=_state(link.status))
                link.rate.add(link.status.sent_offset, at_s=at_s)
            link.recorder.add(max(0, lag_bytes), grade, at_s=at_s)

    def _match(self, node: _Node, listed: dict[str, ConnectionStatus], *, at_s: float) -> None:
        """Tell which listed connection is which row: see the module's theory of operation."""
        known = {link.status.address: link for link in node.links}
        for address, link in known.items():
            connection = listed.get(address)
            if connection is not None:
                if link.lost:
                    link.lost, link.since_s = False, at_s
                    link.rate.clear()
                link.status = connection
            elif not link.lost:
                link.lost, link.since_s = True, at_s
        new = [connection for address, connection in listed.items() if address not in known]
        new_of_host = Counter(_host(connection.address) for connection in new)
        lost_of_host = Counter(link.host for link in node.links if link.lost)
        for connection in new:
            host = _host(connection.address)
            if new_of_host[host] == lost_of_host[host] == 1:
                link = next(link for link in node.links if link.lost and link.host == host)
                link.status, link.lost, link.since_s = connection, False, at_s
                link.rate.clear()
            else:
                node.links.append(self._new_link(connection, at_s=at_s))

    def _new_link(self, connection: ConnectionStatus, *, at_s: float) -> _Link:
        self._next_serial += 1
        recorder = LagRecorder(
            bucket_s=self._bucket_s, buckets_max=buckets_for(HISTORY_S, bucket_s=self._bucket_s)
        )
        return _Link(serial=self._next_serial, status=connection, recorder=recorder, since_s=at_s)

    @staticmethod
    def _forget_lost(node: _Node, *, at_s: float) -> None:
        live = Counter(link.host for link in node.links if not link.lost)
        for host, count in live.items():
            node.host_peaks[host] = max(node.host_peaks[host], count)
        kept = [
            link
            for link in node.links
            if not link.lost
            or (at_s - link.since_s < LOST_KEPT_S and live[link.host] < node.host_peaks[link.host])
        ]
        lost = [link for link in kept if link.lost]
        surplus = set(sorted(lost, key=lambda link: link.since_s)[: max(0, len(lost) - CONNECTIONS_MAX)])
        node.links = [link for link in kept if link not in surplus]
        lost_hosts = {link.host for link in node.links if link.lost}
        # A host without a loss to remember starts counting anew, and one without connections is forgotten.
        node.host_peaks = Counter(
            {
                host: node.host_peaks[host] if host in lost_hosts else live[host]
                for host in lost_hosts | set(live)
            }
        )

    def _view(self, node: _Node, *, now_s: float) -> NodeView:
        status = node.status
        health, since_s = node.health, node.since_s
        answered_at_s = node.answered_at_s
        if health is Health.UP and answered_at_s is not None and now_s - answered_at_s > self._late_after_s:
            health, since_s = Health.LATE, answered_at_s
        view = NodeView(
            address=node.address,
            health=health,
            reason=node.reason,
            for_s=0.0 if since_s is None else max(0.0, now_s - since_s),
        )
        if status is None:
            return view
        view = evolve(
            view,
            role=_clean(status.role),
            name=_name(status),
            cluster=_clean(status.cluster_name or ""),
            version=_clean(status.version or ""),
            min_offset=status.min_offset,
            max_offset=status.max_offset,
            flushed_offset=status.flushed_offset,
            rate_bytes_per_s=node.rate.bytes_per_s,
            tells_replication=status.source == "ha-status",
            in_sync_slaves=status.in_sync_slaves,
            slave=_clean_slave(status.client),
            hidden_connections=node.hidden_connections,
        )
        stale = health is Health.DOWN
        return evolve(
            view,
            connections=tuple(
                _view_link(link, node=view, master_offset=status.max_offset, stale=stale, now_s=now_s)
                for link in node.links
            ),
        )


def _view_link(
    link: _Link, *, node: NodeView, master_offset: int, stale: bool, now_s: float
) -> ConnectionView:
    status = link.status
    state, since_s = LinkState.LIVE, link.since_s
    if link.lost:
        state = LinkState.LOST
    elif stale:
        state, since_s = LinkState.STALE, now_s - node.for_s
    return ConnectionView(
        serial=link.serial,
        node_address=node.address,
        node_name=node.label,
        address=_clean(status.address),
        master_offset=master_offset,
        sent_offset=status.sent_offset,
        ack_offset=status.ack_offset,
        lag_bytes=master_offset - status.ack_offset if link.lost else status.lag_bytes,
        lag_ms=None if link.lost else status.lag_ms,
        rate_bytes_per_s=link.rate.bytes_per_s if state is LinkState.LIVE else None,
        link=state,
        state=_state(status),
        in_sync=status.in_sync,
        for_s=max(0.0, now_s - since_s),
        history=link.recorder.freeze(),
    )


def _grade(*, in_sync: bool, state: str) -> Grade:
    return Grade.GOOD if in_sync and state in {"TRANSFER", "CONNECTED"} else Grade.BEHIND


def _state(status: ConnectionStatus) -> str:
    return _clean(status.state or "CONNECTED")


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _name(status: BrokerStatus) -> str:
    if status.broker_name is None:
        return ""
    number = "" if status.broker_id is None else f" #{status.broker_id}"
    return _clean(status.broker_name + number)


def _clean_slave(slave: SlaveClientStatus | None) -> SlaveClientStatus | None:
    if slave is None:
        return None
    return evolve(
        slave,
        master_address=None if slave.master_address is None else _clean(slave.master_address),
        state=None if slave.state is None else _clean(slave.state),
    )


def _clean(text: str, *, length_max: int = TEXT_MAX) -> str:
    """A peer's text made safe for a terminal: no control characters, a bounded length."""
    shown = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )
    return shown if len(shown) <= length_max else shown[: length_max - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _impossible(status: BrokerStatus) -> str | None:
    """Why an answer cannot be true, or None: a figure that is no Java long would break every sum below."""
    for name, figure in _figures(status):
        if not -OFFSET_MAX - 1 <= figure <= OFFSET_MAX:
            return f"answered with an impossible {name}"
    return None


def _figures(status: BrokerStatus) -> Iterable[tuple[str, int]]:
    yield "max offset", status.max_offset
    for name, figure in (
        ("min offset", status.min_offset),
        ("flushed offset", status.flushed_offset),
        ("number of slaves in sync", status.in_sync_slaves),
    ):
        if figure is not None:
            yield name, figure
    for connection in status.connections[:CONNECTIONS_MAX]:
        yield "sent offset", connection.sent_offset
        yield "ack offset", connection.ack_offset
        yield "lag", connection.lag_bytes
        if connection.lag_ms is not None:
            yield "lag in ms", connection.lag_ms
    if status.client is not None:
        yield "max offset of the slave", status.client.max_offset
        if status.client.reported_offset is not None:
            yield "reported offset", status.client.reported_offset
        if status.client.reconnects is not None:
            yield "number of reconnects", status.client.reconnects

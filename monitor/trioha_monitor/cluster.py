"""From answers of nodes to what the screens show. Pure: no clock, no I/O, no screen.

Theory of operation. A `Sample` is what one question to one node brought: its status, or the reason why there
is none, and when. `Cluster.observe` folds samples into state and notes on the timeline what changed;
`Cluster.view` gives a frozen `ClusterView` for a moment.

Rows of replicas. A master lists its connections by the slave's socket, and a slave's port changes with every
connection. Which connections are one replica is told, in this order,

1. by the slave itself where it is watched: a trioha slave says which socket it dials from;
2. by its host: when exactly one connection of a host was lost and exactly one appears, the new one is its
   continuation; when exactly one watched slave of this master and one of its connections on a host are left,
   they belong together.

Anything bolder would be a guess. A connection that is no longer listed stays as a row for a while, with the
distance from its last ack to the master's end: what the slave lacks. When as many connections of its host
live again as ever lived at once, it is forgotten.

A watched slave that no master lists has a row of its own: because the master cannot list (RocketMQ 4.9 knows
no 907: then the slave's end stands for its ack), is not watched, or does not have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field, frozen

from trioha.remoting.status import BrokerStatus, ConnectionStatus
from trioha_monitor.answers import CONNECTIONS_MAX, impossible, limits_of, puts_of, view_log, view_slave
from trioha_monitor.meters import AppendClock, RateMeter
from trioha_monitor.node_events import NodeEvents
from trioha_monitor.replicas import Replica, SlaveNews
from trioha_monitor.series import SeriesRecorder, Severity, buckets_for
from trioha_monitor.texts import REASON_MAX, clean, host_of
from trioha_monitor.timeline import Timeline
from trioha_monitor.verdict import Judgement, seconds
from trioha_monitor.view import (
    ClusterView,
    EventKind,
    Health,
    Limits,
    NameServerView,
    NodeView,
    ReplicaView,
    Verdict,
)

LOST_KEPT_MS = 300_000
"""How long a lost connection, or a node that the name server no longer knows, is shown."""
HISTORY_MS = 900_000
"""How far back series go."""
LATE_AFTER_MS = 1000
"""A node without an answer for longer is LATE (or after three intervals, if that is more)."""
STALE_AFTER_MS = 3000
"""And what it said of its replicas is STALE (or after five intervals)."""
OWN_ROW_AFTER_MS = 1500
"""A slave that no master lists gets a row of its own after so long: answers of several nodes cross."""
SYNC_AFTER_MS = 1000
"""In-sync changes count when they have lasted for so long."""


@frozen
class Sample:
    """What one question to one node brought."""

    address: str
    """The node as it was named, `host:port`."""
    at_ms: int
    """When, on the views' axis (`trioha_monitor.view`)."""
    status: BrokerStatus | None = None
    """The answer, or None."""
    fault: str | None = None
    """Why there is no answer: a few words. None exactly if there is one."""


@define(eq=False)
class _Node:
    address: str
    append: SeriesRecorder
    events: NodeEvents
    status: BrokerStatus | None = None
    limits: Limits = field(factory=Limits)
    health: Health = Health.CONNECTING
    reason: str = ""
    since_ms: int | None = None
    answered_ms: int | None = None
    rate: RateMeter = field(factory=RateMeter)
    put_rates: dict[str, RateMeter] = field(factory=dict)
    clock: AppendClock = field(factory=AppendClock)
    rows: list[Replica] = field(factory=list)
    host_peaks: Counter[str] = field(factory=Counter)
    """The most connections of a host that lived at once since the last loss was forgotten."""
    hidden_replicas: int = 0
    news: SlaveNews | None = None
    own_row: Replica | None = None
    """Of a slave that no master lists."""
    unlisted_since_ms: int | None = None
    """Since when no master's row is this slave's; None while one is."""
    unwanted_since_ms: int | None = None
    """Since when nobody asks for this node any more."""

    @property
    def tells_replicas(self) -> bool:
        return self.status is not None and self.status.source == "ha-status" and self.is_master

    @property
    def is_master(self) -> bool:
        return self.status is not None and self.status.role.endswith("MASTER")

    @property
    def is_slave(self) -> bool:
        return self.status is not None and self.status.role == "SLAVE"

    @property
    def label(self) -> str:
        return self.events.label


class Cluster:
    """The state behind the screens: fed with samples, asked for views.

    `addresses` are the nodes in the order in which they are shown, `interval_ms` is how often they are asked.
    """

    def __init__(
        self, addresses: Sequence[str] = (), *, interval_ms: int = 100, timeline: Timeline | None = None
    ) -> None:
        self.timeline = timeline if timeline is not None else Timeline()
        """What happened; whoever runs the source may note more on it."""
        self._interval_ms = interval_ms
        # Two samples a bucket at least, so that a slow answer leaves no hole in the picture.
        self._bucket_ms = max(500, 2 * interval_ms)
        self._late_after_ms = max(LATE_AFTER_MS, 3 * interval_ms)
        self._stale_after_ms = max(STALE_AFTER_MS, 5 * interval_ms)
        self._nodes: dict[str, _Node] = {}
        self._next_key = 0
        self._joins_changed = False
        for address in addresses:
            self._add_node(address)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nodes that are shown, in order."""
        return tuple(self._nodes)

    def want(self, addresses: Iterable[str], *, at_ms: int, of: str = "the name server") -> None:
        """From now on the nodes are those at `addresses`; `of` says who names them.

        A node that is no longer named stays while it answers, and for `LOST_KEPT_MS` after that: it may have
        died, which is what one wants to see.
        """
        wanted = dict.fromkeys(addresses)
        for address in wanted:
            node = self._nodes.get(address)
            if node is None:
                self._add_node(address)
                self.timeline.add(EventKind.NODE, f"found by {of}", at_ms=at_ms, node=clean(address))
            elif node.unwanted_since_ms is not None:
                node.unwanted_since_ms = None
                self.timeline.add(EventKind.NODE, f"listed again by {of}", at_ms=at_ms, node=node.label)
        for address, node in list(self._nodes.items()):
            if address in wanted:
                continue
            if node.unwanted_since_ms is None:
                node.unwanted_since_ms = at_ms
                self.timeline.add(
                    EventKind.NODE,
                    f"no longer listed by {of}",
                    at_ms=at_ms,
                    node=node.label,
                    severity=Severity.WARNING,
                )
            gone_since_ms = max(node.unwanted_since_ms, node.answered_ms or 0)
            if node.health is not Health.UP and at_ms - gone_since_ms >= LOST_KEPT_MS:
                del self._nodes[address]

    def observe(self, sample: Sample) -> None:
        """Take in what a question to a node brought; of a node that is not known any more: nothing."""
        node = self._nodes.get(sample.address)
        if node is None:
            return
        status, fault = sample.status, sample.fault
        if status is not None:
            fault = impossible(status)
        if status is None or fault is not None:
            self._observe_fault(node, fault or "no answer", at_ms=sample.at_ms)
        else:
            self._observe_answer(node, status, at_ms=sample.at_ms)

    def view(self, now_ms: int, *, name_servers: tuple[NameServerView, ...] = ()) -> ClusterView:
        """What is known at `now_ms` (on the samples' axis, not before the last sample)."""
        nodes = []
        replicas: list[ReplicaView] = []
        for node in self._nodes.values():
            nodes.append(self._view_node(node, now_ms=now_ms))
            if node.rows or node.own_row is not None:
                replicas.extend(self._view_rows(node, now_ms=now_ms))
        return ClusterView(
            time_ms=now_ms,
            nodes=tuple(nodes),
            replicas=tuple(replicas),
            events=self.timeline.freeze(),
            name_servers=name_servers,
            interval_s=self._interval_ms / 1000,
        )

    def _add_node(self, address: str) -> None:
        self._nodes[address] = _Node(
            address=address,
            append=self._recorder(),
            events=NodeEvents(self.timeline, address=clean(address)),
        )

    def _recorder(self) -> SeriesRecorder:
        return SeriesRecorder(self._bucket_ms, buckets_for(HISTORY_MS, bucket_ms=self._bucket_ms))

    # -- what nodes say ----------------------------------------------------------------------------------

    def _observe_fault(self, node: _Node, fault: str, *, at_ms: int) -> None:
        reason = clean(fault, length_max=REASON_MAX)
        if node.health is not Health.DOWN:
            node.events.gone(reason, was_up=node.health is Health.UP, at_ms=at_ms)
            node.health = Health.DOWN
            node.since_ms = at_ms if node.answered_ms is None else node.answered_ms
            node.rate.clear()
            for meter in node.put_rates.values():
                meter.clear()
            for row in node.rows:
                row.restart_meters()
        node.reason = reason
        if node.news is not None:
            node.news.is_heard = False
            self._update_own_row(node, at_ms=at_ms)

    def _observe_answer(self, node: _Node, status: BrokerStatus, *, at_ms: int) -> None:
        node.events.answered(
            status, down_s=None if node.since_ms is None else (at_ms - node.since_ms) / 1000, at_ms=at_ms
        )
        if node.health is not Health.UP:
            node.health, node.reason, node.since_ms = Health.UP, "", at_ms
        node.answered_ms = at_ms
        before, node.status = node.status, status
        if before is None or before.settings != status.settings:
            node.limits = limits_of(status)
        node.rate.add(status.max_offset, at_ms=at_ms)
        node.append.add(node.rate.per_s or 0.0, at_ms=at_ms)
        node.clock.appended(status.max_offset, at_ms=at_ms)
        for name, count in puts_of(status):
            meter = node.put_rates.get(name)
            if meter is None:
                meter = node.put_rates[name] = RateMeter()
            meter.add(count, at_ms=at_ms)
        self._observe_slave(node, status, at_ms=at_ms)
        self._observe_connections(node, status, at_ms=at_ms)
        if self._joins_changed:
            self._joins_changed = False
            self._join(at_ms=at_ms)
        self._update_own_row(node, at_ms=at_ms)

    def _observe_slave(self, node: _Node, status: BrokerStatus, *, at_ms: int) -> None:
        if status.role != "SLAVE":
            if node.news is not None:
                node.news = node.own_row = node.unlisted_since_ms = None
                self._joins_changed = True
            return
        news = node.news
        if news is None:
            node.news = SlaveNews(status, heard_since_ms=at_ms)
            node.unlisted_since_ms = at_ms
            self._joins_changed = True
            return
        news.is_heard = True
        client, earlier = status.client, news.status.client
        if client is not None and earlier is not None:
            if client.last_read_ms != earlier.last_read_ms:
                news.heard_since_ms = at_ms
            if (
                client.local_address != earlier.local_address
                or client.master_address != earlier.master_address
            ):
                self._joins_changed = True
        news.status = status

    def _observe_connections(self, node: _Node, status: BrokerStatus, *, at_ms: int) -> None:
        if not status.connections and not node.rows:
            node.hidden_replicas = 0
            return
        listed = {connection.address: connection for connection in status.connections[:CONNECTIONS_MAX]}
        node.hidden_replicas = len(status.connections) - len(listed)
        self._match(node, listed, at_ms=at_ms)
        lowest_ack: int | None = None
        for row in node.rows:
            slave = self._news_of(row)
            connection = listed.get(row.address) if row.is_connected else None
            was_shown = row.steady.shown
            if connection is not None:
                row.listed(
                    connection,
                    master=status,
                    clock=node.clock,
                    limits=node.limits,
                    slave=slave,
                    at_ms=at_ms,
                )
                self._tell_sync(node, row, at_ms=at_ms)
            else:
                row.unlisted(master=status, clock=node.clock, limits=node.limits, slave=slave, at_ms=at_ms)
            if row.steady.shown is not was_shown:
                self._tell_verdict(node.label, row, was_shown, at_ms=at_ms)
            if row.ack_offset is not None:
                lowest_ack = row.ack_offset if lowest_ack is None else min(lowest_ack, row.ack_offset)
        if lowest_ack is not None:
            node.clock.acknowledged(lowest_ack)

    def _match(self, node: _Node, listed: dict[str, ConnectionStatus], *, at_ms: int) -> None:
        """Tell which listed connection is which row: see the module's theory of operation."""
        known = {row.address: row for row in node.rows}
        lost = [row for row in node.rows if row.is_connected and row.address not in listed]
        if (
            not lost
            and len(known) == len(listed)
            and all(address in known and known[address].is_connected for address in listed)
        ):
            return
        self._joins_changed = True
        reason = node.events.end_reason()
        for row in lost:
            row.disconnected(at_ms=at_ms)
            lacks = row.diff_bytes
            self.timeline.add(
                EventKind.LOST,
                f"connection ended{reason}"
                + ("" if row.ack_offset is None else f"; ack {row.ack_offset}")
                + (f", {lacks} bytes behind" if lacks else ""),
                at_ms=at_ms,
                node=node.label,
                replica=self._label(row),
                severity=Severity.BAD,
            )
        new = []
        for address, connection in listed.items():
            row_or_none = known.get(address)
            if row_or_none is None:
                new.append(connection)
            elif not row_or_none.is_connected:
                self._reconnect(node, row_or_none, address, at_ms=at_ms)
        by_socket = {
            other.news.client.local_address: other.address
            for other in self._nodes.values()
            if other.news is not None and other.news.client is not None and other.news.client.local_address
        }
        new_of_host = Counter(host_of(connection.address) for connection in new)
        lost_of_host = Counter(host_of(row.address) for row in node.rows if not row.is_connected)
        for connection in new:
            host = host_of(connection.address)
            slave = by_socket.get(connection.address)
            candidates = [
                row
                for row in node.rows
                if not row.is_connected
                and (
                    row.node == slave
                    if slave is not None and row.node is not None
                    else new_of_host[host] == lost_of_host[host] == 1 and host_of(row.address) == host
                )
            ]
            if len(candidates) == 1:
                self._reconnect(node, candidates[0], connection.address, at_ms=at_ms)
            else:
                row = self._new_row(node.address, connection.address, at_ms=at_ms)
                row.connected(connection.address, at_ms=at_ms)
                node.rows.append(row)
                self._tell_connected(node, row, "connected", at_ms=at_ms)
        self._forget_lost(node, at_ms=at_ms)

    def _reconnect(self, node: _Node, row: Replica, address: str, *, at_ms: int) -> None:
        away_s = (at_ms - row.since_ms) / 1000
        row.connected(address, at_ms=at_ms)
        self._tell_connected(node, row, f"is back after {seconds(away_s)}", at_ms=at_ms)

    def _new_row(self, master: str, address: str, *, at_ms: int) -> Replica:
        self._next_key += 1
        return Replica(
            key=self._next_key,
            master=master,
            address=address,
            since_ms=at_ms,
            lag_bytes=self._recorder(),
            lag_s=self._recorder(),
        )

    def _forget_lost(self, node: _Node, *, at_ms: int) -> None:
        live = Counter(host_of(row.address) for row in node.rows if row.is_connected)
        for host, count in live.items():
            node.host_peaks[host] = max(node.host_peaks[host], count)
        kept = [
            row
            for row in node.rows
            if row.is_connected
            or (
                at_ms - row.since_ms < LOST_KEPT_MS
                and (
                    live[host_of(row.address)] < node.host_peaks[host_of(row.address)]
                    # Its slave will say which connection is its own now.
                    or ((news := self._news_of(row)) is not None and news.names_itself)
                )
            )
        ]
        lost = sorted((row for row in kept if not row.is_connected), key=lambda row: row.since_ms)
        surplus = {row.key for row in lost[: max(0, len(lost) - CONNECTIONS_MAX)]}
        node.rows = [row for row in kept if row.key not in surplus]
        lost_hosts = {host_of(row.address) for row in node.rows if not row.is_connected}
        # A host without a loss to remember starts counting anew, and one without connections is forgotten.
        node.host_peaks = Counter(
            {
                host: node.host_peaks[host] if host in lost_hosts else live[host]
                for host in lost_hosts | set(live)
            }
        )

    # -- which slave is which row ------------------------------------------------------------------------

    def _news_of(self, row: Replica) -> SlaveNews | None:
        if row.node is None:
            return None
        node = self._nodes.get(row.node)
        return None if node is None else node.news

    def _label(self, row: Replica) -> str:
        if row.node is not None and row.node in self._nodes:
            return self._nodes[row.node].label
        return clean(row.address)

    def _master_of(self, slave: _Node) -> _Node | None:
        """The watched master of a slave: by the address it dials, else by cluster and broker name."""
        status = slave.status
        if status is None:
            return None
        masters = [node for node in self._nodes.values() if node.is_master]
        dialled = None if status.client is None else status.client.master_address
        for master in masters:
            if dialled and master.status is not None and master.status.ha_address == dialled:
                return master
        if status.broker_name is None:
            return None
        named = [
            master
            for master in masters
            if master.status is not None
            and (master.status.cluster_name, master.status.broker_name)
            == (status.cluster_name, status.broker_name)
        ]
        return named[0] if len(named) == 1 else None

    def _join(self, *, at_ms: int) -> None:
        """Say which row is which watched slave: see the module's theory of operation."""
        slaves = [node for node in self._nodes.values() if node.news is not None]
        by_address = {node.address: node for node in slaves}
        for master in self._nodes.values():
            for row in master.rows:
                if row.node is not None and row.node not in by_address:
                    row.node = None
        left: list[tuple[_Node, _Node]] = []
        for slave in slaves:
            master_node = self._master_of(slave)
            if master_node is None or slave.news is None:
                continue
            client = slave.news.client
            socket = None if client is None else client.local_address
            own = [row for row in master_node.rows if row.is_connected and row.address == socket]
            if own:
                self._give(master_node, own[0], slave)
            elif not any(row.node == slave.address for row in master_node.rows if row.is_connected):
                left.append((master_node, slave))
        for master_node, slave in left:
            host = host_of(slave.address)
            rivals = [other for node, other in left if node is master_node and host_of(other.address) == host]
            rows = [
                row
                for row in master_node.rows
                if row.is_connected and row.node is None and host_of(row.address) == host
            ]
            if len(rivals) == len(rows) == 1:
                self._give(master_node, rows[0], slave)
        given = {row.node for node in self._nodes.values() for row in node.rows}
        for slave in slaves:
            if slave.address in given:
                slave.unlisted_since_ms = slave.own_row = None
            elif slave.unlisted_since_ms is None:
                slave.unlisted_since_ms = at_ms

    def _give(self, master: _Node, row: Replica, slave: _Node) -> None:
        """`row` is `slave`; what the slave had for a row before goes on in its place."""
        if row.node == slave.address:
            return
        earlier = slave.own_row
        for other in [other for other in master.rows if other.node == slave.address]:
            if other.is_connected:
                other.node = None
            else:
                earlier = other
        row.node = slave.address
        slave.own_row = None
        if earlier is not None:
            earlier.node = slave.address
            earlier.master = master.address
            earlier.connected(row.address, at_ms=row.since_ms)
            master.rows = [
                earlier if other is row else other for other in master.rows if other is not earlier
            ]

    def _update_own_row(self, slave: _Node, *, at_ms: int) -> None:
        """Keep the row of a slave that no master lists."""
        news, since_ms = slave.news, slave.unlisted_since_ms
        if news is None or since_ms is None or at_ms - since_ms < OWN_ROW_AFTER_MS:
            return
        master = self._master_of(slave)
        lists = master is not None and master.tells_replicas
        if master is not None and lists and slave.own_row is None and self._may_be_listed(master, slave):
            return
        row = slave.own_row
        if row is None:
            dialled = None if news.client is None else news.client.master_address
            row = self._new_row(
                master.address if master is not None else clean(dialled or ""), slave.address, at_ms=at_ms
            )
            row.node = slave.address
            slave.own_row = row
        was_shown = row.steady.shown
        limits = Limits() if master is None else master.limits
        if master is not None and master.status is not None and (lists or not news.is_heard):
            if row.is_connected:
                row.disconnected(at_ms=at_ms)
            row.unlisted(master=master.status, clock=master.clock, limits=limits, slave=news, at_ms=at_ms)
        else:
            row.seen(
                master=None if master is None else master.status,
                clock=None if master is None else master.clock,
                limits=limits,
                slave=news,
                at_ms=at_ms,
            )
        if row.steady.shown is not was_shown:
            self._tell_verdict(slave.label, row, was_shown, at_ms=at_ms)

    def _may_be_listed(self, master: _Node, slave: _Node) -> bool:
        """Whether a connection is left that may be the slave's, though which one is not known.

        From whatever host: a slave may dial from another address than the one it listens on.
        """
        nameless = sum(row.is_connected and row.node is None for row in master.rows)
        given = {row.node for row in master.rows}
        rivals = sum(
            node.news is not None and node.address not in given and self._master_of(node) is master
            for node in self._nodes.values()
        )
        client = None if slave.news is None else slave.news.client
        says_so = client is None or client.state is None or client.state == "TRANSFER"
        return says_so and nameless >= rivals

    # -- what happened -----------------------------------------------------------------------------------

    def _tell_connected(self, node: _Node, row: Replica, what: str, *, at_ms: int) -> None:
        text = what if row.address == self._label(row) else f"{what} from {clean(row.address)}"
        self.timeline.add(
            EventKind.CONNECT,
            text,
            at_ms=at_ms,
            node=node.label,
            replica=self._label(row),
            severity=Severity.GOOD,
        )

    def _tell_sync(self, node: _Node, row: Replica, *, at_ms: int) -> None:
        if row.in_sync == row.sync_shown:
            row.sync_differs_ms = None
            return
        if row.sync_shown is None:
            row.sync_shown = row.in_sync
            return
        if row.sync_differs_ms is None:
            row.sync_differs_ms = at_ms
        if at_ms - row.sync_differs_ms < SYNC_AFTER_MS:
            return
        row.sync_shown, row.sync_differs_ms = row.in_sync, None
        self.timeline.add(
            EventKind.SYNC,
            "in sync again" if row.in_sync else f"not in sync: {row.diff_bytes} bytes behind",
            at_ms=at_ms,
            node=node.label,
            replica=self._label(row),
            severity=Severity.GOOD if row.in_sync else Severity.WARNING,
        )

    def _tell_verdict(self, node_label: str, row: Replica, before: Judgement | None, *, at_ms: int) -> None:
        """Note another verdict, unless another kind of event says it (lost, in-sync)."""
        now = row.shown
        was = Verdict.OK if before is None else before.verdict
        if now.verdict is was:
            return
        broken = {Verdict.GAP, Verdict.DIVERGED}
        kind = EventKind.VERDICT
        if now.verdict in broken or was in broken:
            kind = EventKind.GAP
        elif (
            now.verdict is Verdict.NOT_IN_SYNC
            or (now.verdict is Verdict.SILENT and not row.is_connected)
            or (now.verdict is Verdict.OK and was not in {Verdict.FALL_BEHIND, Verdict.STALLED})
        ):
            return
        text = f"{now.verdict.value}: {now.why}" if now.why else now.verdict.value
        if now.verdict is Verdict.OK:
            text = f"{was.value} is over"
        self.timeline.add(
            kind,
            text,
            at_ms=at_ms,
            node=node_label,
            replica=self._label(row),
            severity=now.verdict.severity,
        )

    # -- views -------------------------------------------------------------------------------------------

    def _view_node(self, node: _Node, *, now_ms: int) -> NodeView:
        health, since_ms, answered_ms = node.health, node.since_ms, node.answered_ms
        age_ms = None if answered_ms is None else max(0, now_ms - answered_ms)
        if health is Health.UP and age_ms is not None and age_ms > self._late_after_ms:
            health, since_ms = Health.LATE, answered_ms
        for_s = 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000
        status = node.status
        if status is None:
            return NodeView(node.address, health=health, reason=node.reason, for_s=for_s)
        return NodeView(
            address=node.address,
            health=health,
            reason=node.reason,
            for_s=for_s,
            age_s=None if age_ms is None else age_ms / 1000,
            role=clean(status.role),
            cluster=clean(status.cluster_name or ""),
            broker_name=clean(status.broker_name or ""),
            broker_id=status.broker_id,
            version=clean(status.version or ""),
            ha_address=clean(status.ha_address or ""),
            told_by="907" if status.source == "ha-status" else "28",
            tells_replicas=node.tells_replicas,
            log=view_log(
                status,
                rate=node.rate,
                put_rates=node.put_rates,
                append=node.append,
                is_live=node.health is Health.UP,
            ),
            limits=node.limits,
            slave=view_slave(node.news, now_ms=now_ms),
            connected_replicas=sum(row.is_connected for row in node.rows) + node.hidden_replicas,
            hidden_replicas=node.hidden_replicas,
            in_sync_replicas=status.in_sync_slaves,
            ended_connections=status.ended_connections,
            warnings=tuple(clean(text, length_max=REASON_MAX) for text in status.warnings),
        )

    def _view_rows(self, node: _Node, *, now_ms: int) -> Iterable[ReplicaView]:
        answered_ms = now_ms if node.answered_ms is None else node.answered_ms
        age_ms = max(0, now_ms - answered_ms)
        stale = None
        if node.health is Health.DOWN or age_ms > self._stale_after_ms:
            stale = Judgement(Verdict.STALE, f"{node.label} does not answer for {seconds(age_ms / 1000)}")
        for row in node.rows:
            yield row.view(
                master_label=node.label,
                limits=node.limits,
                slave=self._news_of(row),
                stale=stale,
                age_s=age_ms / 1000,
                now_ms=now_ms,
            )
        row_or_none = node.own_row
        if row_or_none is not None:
            master = self._nodes.get(row_or_none.master)
            yield row_or_none.view(
                master_label=row_or_none.master if master is None else master.label,
                limits=Limits() if master is None else master.limits,
                slave=node.news,
                stale=None,
                age_s=age_ms / 1000,
                now_ms=now_ms,
            )

"""From answers of nodes to what the screens show. Pure: no clock, no I/O, no screen.

Theory of operation. A `Sample` is the result of one request to one node: its status, or the reason why there
is none, and the time. `Cluster.observe` updates the state and adds events to the timeline; `Cluster.view`
returns a frozen `ClusterView` of a moment.

Rows of replicas. A master lists its connections by the slave's socket, and a slave's port changes with every
connection. Which connections belong to one replica is decided, in this order,

1. by the slave itself if it is watched: a trioha slave reports its local address;
2. by the one rule for lost and new connections (`trioha_sessions.reconnects`): a new connection continues a
   lost one only if there is exactly one candidate;
3. by elimination: if one watched slave of this master and one of its connections on a host are left, they
   belong together.

A connection that is no longer listed keeps its row for a while, with the distance from its last ack to the
end of the master's log. The row is dropped when new connections of its host have replaced all lost ones. A
connection without a request is a probe: it is counted (`trioha_monitor.answers`) and has no row.

A watched slave that no master lists has a row of its own: the master cannot list its slaves (RocketMQ 4.9 has
no 907: the end of the slave's log is used as its ack), is not watched, or does not have the slave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

from trioha.broker_status import BrokerStatus
from trioha.net.error_boundary import ErrorBoundary
from trioha.outside_text import clean
from trioha.replica_verdict import Judgement, Limits, Verdict
from trioha.severity import Severity
from trioha.unit_texts import format_elapsed
from trioha_monitor.answers import Answer
from trioha_monitor.faults import BOUNDARY, fault_of_this_program
from trioha_monitor.matching import LOST_KEPT_MS, ConnectionRows, ReplicaEvents, SlaveRows
from trioha_monitor.node import Node, NodeEvents
from trioha_monitor.timeline import Timeline
from trioha_monitor.view import ClusterView, EventKind, Health, NameServerView, ReplicaView
from trioha_sessions.reconnects import Reconnects

NODES_MAX = 512
"""Nodes that are watched: the first ones that were named."""
LATE_AFTER_MS = 1000
"""A node without an answer for longer is LATE (or after three intervals, if that is more)."""
STALE_AFTER_MS = 3000
"""Then its replicas are STALE (or after five intervals, if that is more)."""
OWN_ROW_AFTER_MS = 1500
"""A slave that no master lists gets a row of its own after this: answers of several nodes cross."""


def _is_deposed_by(node: Node, master: BrokerStatus) -> bool:
    """Whether `node` was master of an earlier epoch of the group of `master` by its last answer."""
    status, control = node.status, master.control
    if status is None or status.control is None or control is None or control.master_epoch is None:
        return False
    return (
        status.control.role == "master"
        and (status.cluster_name, status.broker_name) == (master.cluster_name, master.broker_name)
        and (status.control.master_epoch or 0) < control.master_epoch
    )


@frozen
class Sample:
    """The result of one request to one node."""

    address: str
    """The node as it was named, `host:port`."""
    at_ms: int
    """When, on the views' axis (`trioha_monitor.view`)."""
    status: BrokerStatus | None = None
    """The answer, or None."""
    fault: str | None = None
    """Reason why there is no answer; None exactly if there is one."""


@frozen
class ReplicaLag:
    """The lag of a replica."""

    key: int
    """As in `ReplicaView`."""
    names: str
    """Its address and its label."""
    lag_bytes: int
    lag_s: float | None
    verdict: Verdict


class Cluster:
    """The state of the live view: samples come in, views go out.

    `addresses` are the nodes in the order in which they are shown, `interval_ms` is how often they are asked.
    """

    def __init__(
        self,
        addresses: Sequence[str] = (),
        *,
        interval_ms: int = 100,
        timeline: Timeline | None = None,
        boundary: ErrorBoundary = BOUNDARY,
    ) -> None:
        self._boundary = boundary
        self.timeline = timeline if timeline is not None else Timeline()
        """Events; the source adds its own."""
        self._interval_ms = interval_ms
        # At least two samples a bucket, so that one slow answer leaves no gap in the graph.
        bucket_ms = max(500, 2 * interval_ms)
        self._late_after_ms = max(LATE_AFTER_MS, 3 * interval_ms)
        self._stale_after_ms = max(STALE_AFTER_MS, 5 * interval_ms)
        self._nodes: dict[str, Node] = {}
        self._unwatched = 0
        """Nodes that were named beyond `NODES_MAX`."""
        self._events = ReplicaEvents(self.timeline)
        self._slaves = SlaveRows(self._nodes)
        self._connections = ConnectionRows(self._slaves, self._events, bucket_ms=bucket_ms)
        for address in addresses:
            self._add_node(address)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nodes that are shown, in order."""
        return tuple(self._nodes)

    def __contains__(self, address: object) -> bool:
        """Whether a node is shown."""
        return address in self._nodes

    def want(self, addresses: Iterable[str], *, at_ms: int, of: str = "the name server") -> None:
        """Set the nodes to those at `addresses`; `of` is the name server that lists them.

        A node that is no longer listed stays while it answers, and for `LOST_KEPT_MS` after that: it may have
        died, which the user wants to see. A node that never answered is dropped at once.
        """
        wanted = dict.fromkeys(addresses)
        unwatched = 0
        for address in wanted:
            node = self._nodes.get(address)
            if node is None and len(self._nodes) >= NODES_MAX:
                unwatched += 1
            elif node is None:
                self._add_node(address)
                self.timeline.add(
                    EventKind.NODE, f"found by {of}", at_ms=at_ms, node=clean(address), source=of
                )
            elif node.unwanted_since_ms is not None:
                node.unwanted_since_ms = None
                self.timeline.add(
                    EventKind.NODE, f"listed again by {of}", at_ms=at_ms, node=node.label, source=of
                )
        if unwatched and not self._unwatched:
            self.timeline.add(
                EventKind.NODE,
                f"{unwatched} nodes that {of} lists are not watched: {NODES_MAX} are the most",
                at_ms=at_ms,
                severity=Severity.WARNING,
            )
        self._unwatched = unwatched
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
                    source=of,
                )
            gone_since_ms = max(node.unwanted_since_ms, node.answered_ms or 0)
            never_answered = node.answered_ms is None
            if node.health is not Health.UP and (never_answered or at_ms - gone_since_ms >= LOST_KEPT_MS):
                del self._nodes[address]
                self.timeline.forget(address)
                self._slaves.identities_changed()

    def observe(self, sample: Sample) -> None:
        """Handle the result of a request to a node; samples of dropped nodes are ignored.

        Raises RemoteProtocolError for an impossible answer, of which nothing is kept.
        """
        node = self._nodes.get(sample.address)
        if node is None:
            return
        if sample.status is None:
            node.failed(sample.fault or "no answer", at_ms=sample.at_ms)
            if node.report is not None:
                self._update_own_row(node, at_ms=sample.at_ms)
        else:
            self._observe_answer(node, node.answer_filter.check(sample.status), at_ms=sample.at_ms)

    def view(self, now_ms: int, *, name_servers: tuple[NameServerView, ...] = ()) -> ClusterView:
        """The view at `now_ms` (on the samples' axis, not before the last sample)."""
        nodes = []
        replicas: list[ReplicaView] = []
        for node in list(self._nodes.values()):
            with self._boundary.around(node.address) as guarded:
                seen = node.view(late_after_ms=self._late_after_ms, now_ms=now_ms)
                rows = list(self._view_rows(node, now_ms=now_ms)) if node.rows or node.own_row else []
            if guarded.error is None:
                nodes.append(seen)
                replicas += rows
            else:
                # Its figures cannot be shown: the node is replaced by one without an answer.
                replacement = self._add_node(node.address)
                replacement.failed(fault_of_this_program(guarded.error), at_ms=now_ms)
                nodes.append(replacement.view(late_after_ms=self._late_after_ms, now_ms=now_ms))
        return ClusterView(
            time_ms=now_ms,
            nodes=tuple(nodes),
            replicas=tuple(replicas),
            events=self.timeline.freeze(),
            name_servers=name_servers,
            interval_s=self._interval_ms / 1000,
        )

    def lags(self) -> Iterator[ReplicaLag]:
        """The lag of each replica by the last answers, but of those that may be comparing their tails."""
        for node in self._nodes.values():
            own = () if node.own_row is None else (node.own_row,)
            for row in (*node.rows, *own):
                if row.diff_bytes is not None and not row.is_rejoining:
                    yield ReplicaLag(
                        row.key,
                        f"{row.address} {self._slaves.label(row)}",
                        max(0, row.diff_bytes),
                        row.lag_now_s,
                        row.shown.verdict,
                    )

    def shared_values(self) -> Iterator[object]:
        """What a copy of this state has in common with it: frozen values, and the boundary."""
        yield self._boundary
        for node in self._nodes.values():
            yield from (node.status, node.report and node.report.status, node.limits)

    def _add_node(self, address: str) -> Node:
        node = self._nodes[address] = Node(
            address=address,
            append=self._connections.recorder(),
            events=NodeEvents(self.timeline, address=clean(address)),
        )
        self._slaves.identities_changed()
        return node

    # -- answers -----------------------------------------------------------------------------------------

    def _observe_answer(self, node: Node, answer: Answer, *, at_ms: int) -> None:
        identity = node.identity
        rows_change = node.answered(answer, at_ms=at_ms)
        if node.identity != identity:
            self._slaves.identities_changed()
            rows_change = self._take_over(node) or rows_change
        rows_change = self._observe_connections(node, answer.status, at_ms=at_ms) or rows_change
        if rows_change:
            self._slaves.assign(at_ms=at_ms)
        self._update_own_row(node, at_ms=at_ms)

    def _take_over(self, node: Node) -> bool:
        """Drop the rows of masters that a role change has ended; returns whether there were any.

        In controller mode the replicas of a master that is a slave now, or that has not answered since its
        group has a master of a later epoch, are replicas of that one.
        """
        status = node.status
        if status is None or status.control is None:
            return False
        ended = [] if node.is_master else [node]
        if status.control.role == "master":
            ended += [other for other in self._nodes.values() if _is_deposed_by(other, status)]
        dropped = False
        for each in ended:
            each.is_deposed = each is not node
            dropped = dropped or bool(each.rows)
            each.rows.clear()
            each.reconnects = Reconnects()
        if ended:
            self._slaves.identities_changed()
        return dropped

    def _observe_connections(self, node: Node, status: BrokerStatus, *, at_ms: int) -> bool:
        """Handle the connections that a master lists; returns whether any came or went."""
        if not status.connections and not node.rows:
            node.has_listed = True
            return False
        listed = {connection.address: connection for connection in status.connections}
        has_changed = self._connections.match(node, listed, at_ms=at_ms)
        node.has_listed = True
        lowest_ack: int | None = None
        for row in node.rows:
            slave = self._slaves.report_of(row)
            connection = listed.get(row.address) if row.is_connected else None
            was_shown = row.debounce.shown
            if connection is not None:
                row.listed(
                    connection,
                    master=status,
                    clock=node.clock,
                    limits=node.limits,
                    slave=slave,
                    at_ms=at_ms,
                )
                self._events.sync(row, node=node, replica=self._slaves.label(row), at_ms=at_ms)
            else:
                row.unlisted(master=status, clock=node.clock, limits=node.limits, slave=slave, at_ms=at_ms)
            if row.debounce.shown is not was_shown:
                label = self._slaves.label(row)
                self._events.verdict(row, was_shown, node=node, replica=label, at_ms=at_ms)
            if row.ack_offset is not None:
                lowest_ack = row.ack_offset if lowest_ack is None else min(lowest_ack, row.ack_offset)
        if lowest_ack is not None:
            node.clock.acknowledged(lowest_ack)
        return has_changed

    def _update_own_row(self, slave: Node, *, at_ms: int) -> None:
        """Update the row of a slave that no master lists."""
        report, since_ms = slave.report, slave.unlisted_since_ms
        if report is None or since_ms is None or at_ms - since_ms < OWN_ROW_AFTER_MS:
            return
        master = self._slaves.master_of(slave)
        lists = master is not None and master.lists_replicas
        if (
            master is not None
            and lists
            and slave.own_row is None
            and self._slaves.may_be_listed(master, slave)
        ):
            return
        row = slave.own_row
        if row is None:
            master_address = None if report.client is None else report.client.master_address
            row = self._connections.new_row(
                master.address if master is not None else master_address or "", slave.address, at_ms=at_ms
            )
            row.node = slave.address
            slave.own_row = row
        was_shown = row.debounce.shown
        limits = Limits() if master is None else master.limits
        if master is not None and master.status is not None and (lists or not report.answers):
            if row.is_connected:
                row.disconnected(at_ms=at_ms)
            row.unlisted(master=master.status, clock=master.clock, limits=limits, slave=report, at_ms=at_ms)
        else:
            row.seen(
                master=None if master is None else master.status,
                clock=None if master is None else master.clock,
                limits=limits,
                slave=report,
                at_ms=at_ms,
            )
        if row.debounce.shown is not was_shown:
            label = self._slaves.label(row)
            self._events.verdict(row, was_shown, node=slave, replica=label, at_ms=at_ms)

    # -- views -------------------------------------------------------------------------------------------

    def _view_rows(self, node: Node, *, now_ms: int) -> Iterator[ReplicaView]:
        answered_ms = now_ms if node.answered_ms is None else node.answered_ms
        age_ms = max(0, now_ms - answered_ms)
        stale = None
        if node.health is Health.DOWN or age_ms > self._stale_after_ms:
            stale = Judgement(
                Verdict.STALE, f"{node.label} does not answer for {format_elapsed(age_ms / 1000)}"
            )
        for row in node.rows:
            yield row.view(
                master_label=node.label,
                limits=node.limits,
                slave=self._slaves.report_of(row),
                stale=stale,
                age_s=age_ms / 1000,
                now_ms=now_ms,
            )
        own_row = node.own_row
        if own_row is not None:
            master = self._nodes.get(own_row.master)
            yield own_row.view(
                master_label=own_row.master if master is None else master.label,
                limits=Limits() if master is None else master.limits,
                slave=node.report,
                stale=None,
                age_s=age_ms / 1000,
                now_ms=now_ms,
            )

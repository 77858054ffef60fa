"""Which connection and which watched slave belong to which row of a master, and the events of rows.

`trioha_monitor.cluster` has the rules.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from trioha.broker_status import ConnectionStatus
from trioha.replica_verdict import Judgement, Verdict
from trioha.severity import Severity
from trioha.unit_texts import format_elapsed
from trioha_monitor import event_texts
from trioha_monitor.answers import CONNECTIONS_MAX
from trioha_monitor.node import Node
from trioha_monitor.replicas import Replica, SlaveReport
from trioha_monitor.series import SeriesRecorder, buckets_for
from trioha_monitor.texts import host_of
from trioha_monitor.timeline import Timeline
from trioha_monitor.view import EventKind
from trioha_sessions.reconnects import LOST_NS, Arrival, Connection

SYNC_AFTER_MS = 1000
"""A change of in-sync is an event when it has lasted for so long."""


class ReplicaEvents:
    """Adds the events of rows to the timeline; `node` is a row's master, `replica` the label of its slave."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def connected(self, row: Replica, what: str, *, node: Node, replica: str, at_ms: int) -> None:
        """The master lists it for the first time or again; `what` is the start of the text."""
        text = what if row.address == replica else f"{what} from {row.address}"
        self._add(EventKind.CONNECT, text, Severity.GOOD, node=node, replica=replica, at_ms=at_ms)

    def lost(self, row: Replica, reasons: Collection[str], *, node: Node, replica: str, at_ms: int) -> None:
        """The master no longer lists it; `reasons` are the master's, as far as they are known."""
        text = event_texts.connection_ended(
            reasons, ack_offset=row.ack_offset, lacks_bytes=row.diff_bytes or None
        )
        self._add(EventKind.LOST, text, Severity.CRITICAL, node=node, replica=replica, at_ms=at_ms)

    def sync(self, row: Replica, *, node: Node, replica: str, at_ms: int) -> None:
        """Its in-sync state has changed, and the change has lasted.

        An observer is never in sync, as configured: that makes no event.
        """
        if row.shown.verdict is Verdict.OBSERVER:
            row.sync_shown = row.in_sync
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
        text = event_texts.sync_changed(in_sync=bool(row.in_sync), lacks_bytes=row.diff_bytes)
        severity = Severity.GOOD if row.in_sync else Severity.WARNING
        self._add(EventKind.SYNC, text, severity, node=node, replica=replica, at_ms=at_ms)

    def verdict(
        self, row: Replica, before: Judgement | None, *, node: Node, replica: str, at_ms: int
    ) -> None:
        """Its verdict is not `before` any more, unless another kind of event reports that (lost, in-sync)."""
        now = row.shown
        was = Verdict.OK if before is None else before.verdict
        if now.verdict is was:
            return
        broken = {Verdict.GAP, Verdict.DIVERGED, Verdict.REFUSED}
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
        self._add(kind, text, now.verdict.severity, node=node, replica=replica, at_ms=at_ms)

    def _add(
        self, kind: EventKind, text: str, severity: Severity, *, node: Node, replica: str, at_ms: int
    ) -> None:
        self._timeline.add(
            kind,
            text,
            at_ms=at_ms,
            node=node.label,
            replica=replica,
            severity=severity,
            source=node.address,
        )


class SlaveRows:
    """Assigns the rows of masters to the watched slaves among `nodes`."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._by_ha_address: dict[str, Node] | None = None
        """Masters by HA address; None until it is needed."""
        self._by_name: dict[tuple[str | None, str], list[Node]] = {}
        self._unassigned: dict[str, tuple[int, int]] = {}
        """By master: number of connected rows without a slave, and of slaves without a row."""

    def report_of(self, row: Replica) -> SlaveReport | None:
        """The report of a row's slave; None if the slave is not watched or not known."""
        if row.node is None:
            return None
        node = self._nodes.get(row.node)
        return None if node is None else node.report

    def label(self, row: Replica) -> str:
        """Broker name and id of a row's slave where known, else its address."""
        if row.node is not None and row.node in self._nodes:
            return self._nodes[row.node].label
        return row.address

    def slaves_by_socket(self) -> dict[str, str]:
        """Addresses of watched slaves by the local address that they report."""
        return {
            node.report.client.local_address: node.address
            for node in self._nodes.values()
            if node.report is not None and node.report.client is not None and node.report.client.local_address
        }

    def identities_changed(self) -> None:
        """A node was added or removed, or reports another identity."""
        self._by_ha_address = None
        self._unassigned.clear()

    def master_of(self, slave: Node) -> Node | None:
        """The watched master of a slave: by the slave's master address, else by cluster and broker name."""
        status = slave.status
        if status is None:
            return None
        if self._by_ha_address is None:
            self._by_ha_address, self._by_name = {}, defaultdict(list)
            for node in self._nodes.values():
                if node.is_master and node.status is not None:
                    if node.status.ha_address:
                        self._by_ha_address.setdefault(node.status.ha_address, node)
                    if node.status.broker_name is not None:
                        self._by_name[node.status.cluster_name, node.status.broker_name].append(node)
        master_address = None if status.client is None else status.client.master_address
        if master_address and master_address in self._by_ha_address:
            return self._by_ha_address[master_address]
        if status.broker_name is None:
            return None
        named = self._by_name.get((status.cluster_name, status.broker_name), [])
        return named[0] if len(named) == 1 else None

    def assign(self, *, at_ms: int) -> None:
        """Assign rows to watched slaves."""
        self._unassigned.clear()
        slaves = [node for node in self._nodes.values() if node.report is not None]
        addresses = {node.address for node in slaves}
        rows_of: dict[str, _MasterRows] = {}
        for master in self._nodes.values():
            for row in master.rows:
                if row.node is not None and row.node not in addresses:
                    row.node = None
        left: list[tuple[_MasterRows, Node]] = []
        for slave in slaves:
            master_node = self.master_of(slave)
            if master_node is None or slave.report is None:
                continue
            rows = rows_of.get(master_node.address)
            if rows is None:
                rows = rows_of[master_node.address] = _MasterRows(master_node)
            client = slave.report.client
            own = None if client is None else rows.connected.get(client.local_address or "")
            if own is not None:
                rows.assign(own, slave)
            elif not any(row.is_connected for row in rows.of_node.get(slave.address, ())):
                left.append((rows, slave))
        candidates = Counter((id(rows), host_of(slave.address)) for rows, slave in left)
        for rows, slave in left:
            host = host_of(slave.address)
            unassigned = rows.unassigned_of(host)
            if candidates[id(rows), host] == len(unassigned) == 1:
                rows.assign(unassigned[0], slave)
        for rows in rows_of.values():
            rows.apply()
        given = {row.node for node in self._nodes.values() for row in node.rows}
        for slave in slaves:
            if slave.address in given:
                slave.unlisted_since_ms = slave.own_row = None
            elif slave.unlisted_since_ms is None:
                slave.unlisted_since_ms = at_ms

    def may_be_listed(self, master: Node, slave: Node) -> bool:
        """Whether there are enough connections without a slave for one of them to be this slave's.

        Of any host: a slave may connect from another address than it listens on.
        """
        client = None if slave.report is None else slave.report.client
        if client is not None and client.state is not None and client.state != "TRANSFER":
            return False
        counted = self._unassigned.get(master.address)
        if counted is None:
            unassigned = sum(row.is_connected and row.node is None for row in master.rows)
            given = {row.node for row in master.rows}
            candidates = sum(
                node.report is not None and node.address not in given and self.master_of(node) is master
                for node in self._nodes.values()
            )
            counted = self._unassigned[master.address] = unassigned, candidates
        unassigned, candidates = counted
        return unassigned >= candidates


class _MasterRows:
    """The rows of one master while they are assigned to slaves."""

    def __init__(self, master: Node) -> None:
        self._master = master
        self.connected = {row.address: row for row in master.rows if row.is_connected}
        self.of_node: defaultdict[str, list[Replica]] = defaultdict(list)
        for row in master.rows:
            if row.node is not None:
                self.of_node[row.node].append(row)
        self._unassigned: defaultdict[str, list[Replica]] | None = None
        self._replaced: dict[int, Replica] = {}
        """Rows that replace others, by the key of the replaced row."""

    def unassigned_of(self, host: str) -> list[Replica]:
        """Connected rows of a host without a known slave, as of the first call."""
        if self._unassigned is None:
            self._unassigned = defaultdict(list)
            for row in self.connected.values():
                if row.node is None:
                    self._unassigned[host_of(row.address)].append(row)
        return self._unassigned[host]

    def assign(self, row: Replica, slave: Node) -> None:
        """`row` is the row of `slave`; an earlier row of the slave continues in its place."""
        if row.node == slave.address:
            return
        earlier = slave.own_row
        for other in self.of_node.pop(slave.address, ()):
            if other.is_connected:
                other.node = None
            else:
                earlier = other
        if row.node is not None:
            self.of_node[row.node].remove(row)
        row.node = slave.address
        slave.own_row = None
        if earlier is not None:
            earlier.node = slave.address
            earlier.master = self._master.address
            earlier.connected(row.address, at_ms=row.since_ms, is_new=row.is_new)
            earlier.joined_at_offset = row.joined_at_offset
            self._master.reconnects.forget(earlier.key)
            self._replaced[row.key] = earlier
            self.connected[row.address] = row = earlier
        self.of_node[slave.address].append(row)

    def apply(self) -> None:
        """Replace the rows that earlier ones continue."""
        if self._replaced:
            moved = {row.key for row in self._replaced.values()}
            self._master.rows = [self._replacement(row) for row in self._master.rows if row.key not in moved]

    def _replacement(self, row: Replica) -> Replica:
        while row.key in self._replaced:
            row = self._replaced[row.key]
        return row


NS_PER_MS: Final = 1_000_000
LOST_KEPT_MS: Final = LOST_NS // NS_PER_MS
"""How long a lost connection, or a node that the name server no longer lists, is shown."""
HISTORY_MS: Final = 900_000
"""How far back series go."""


class ConnectionRows:
    """Assigns the connections that masters list to rows. `bucket_ms` is that of the rows' histories."""

    def __init__(self, slaves: SlaveRows, events: ReplicaEvents, *, bucket_ms: int) -> None:
        self._slaves, self._events = slaves, events
        self._bucket_ms = bucket_ms
        self._next_key = 0

    def recorder(self) -> SeriesRecorder:
        """An empty history."""
        return SeriesRecorder(self._bucket_ms, buckets_for(HISTORY_MS, bucket_ms=self._bucket_ms))

    def new_row(self, master: str, address: str, *, at_ms: int, key: int | None = None) -> Replica:
        """A row that was never connected; without a `key` it gets a new one."""
        return Replica(
            key=self._new_key() if key is None else key,
            master=master,
            address=address,
            since_ms=at_ms,
            lag_bytes=self.recorder(),
            lag_s=self.recorder(),
        )

    def match(self, node: Node, listed: Mapping[str, ConnectionStatus], *, at_ms: int) -> bool:
        """Handle the connections that `node` lists, by address; returns whether any came or went."""
        known = {row.address: row for row in node.rows if row.is_connected}
        ended = [row for address, row in known.items() if address not in listed]
        new = [address for address in listed if address not in known]
        if not ended and not new and len(known) == len(node.rows):
            return False
        if ended:
            reasons = node.events.end_reasons()
            for row in ended:
                row.disconnected(at_ms=at_ms)
                node.reconnects.lost(
                    Connection(row.key, row.address, row.node or ""), at_ns=at_ms * NS_PER_MS
                )
                self._events.lost(row, reasons, node=node, replica=self._slaves.label(row), at_ms=at_ms)
        if new:
            self._connect(node, new, at_ms=at_ms)
        rows_before = len(node.rows)
        self._forget_lost(node, at_ms=at_ms)
        return bool(ended or new) or len(node.rows) != rows_before

    def _connect(self, node: Node, addresses: list[str], *, at_ms: int) -> None:
        """Assign each new connection to a row by the rule of `trioha_sessions.reconnects`."""
        by_socket = self._slaves.slaves_by_socket()
        lost = {row.key: row for row in node.rows if not row.is_connected}
        new = [Connection(self._new_key(), address, by_socket.get(address, "")) for address in addresses]
        for arrival in node.reconnects.came(new, at_ns=at_ms * NS_PER_MS):
            row = None if arrival.previous is None else lost.get(arrival.previous)
            if row is not None:
                what = f"is back after {format_elapsed((at_ms - row.since_ms) / 1000)}"
                row.connected(arrival.connection.address, at_ms=at_ms, is_new=True)
            else:
                what = _arrival_text(arrival)
                row = self.new_row(
                    node.address, arrival.connection.address, at_ms=at_ms, key=arrival.connection.key
                )
                row.connected(row.address, at_ms=at_ms, is_new=node.has_listed)
                # One of several reconnected: its earlier reconnects are not known.
                row.reconnects = int(arrival.is_reconnect)
                node.rows.append(row)
            self._events.connected(row, what, node=node, replica=self._slaves.label(row), at_ms=at_ms)

    def _forget_lost(self, node: Node, *, at_ms: int) -> None:
        """Drop the rows of lost connections that are too old, too many, or replaced."""
        lost = [row for row in node.rows if not row.is_connected]
        kept = {
            row.key
            for row in lost[-CONNECTIONS_MAX:]
            if at_ms - row.since_ms < LOST_KEPT_MS
            and (
                row.key in node.reconnects
                # The slave reports which connection is its own.
                or ((report := self._slaves.report_of(row)) is not None and report.has_local_address)
            )
        }
        if len(kept) == len(lost):
            return
        for row in lost:
            if row.key not in kept:
                node.reconnects.forget(row.key)
        node.rows = [row for row in node.rows if row.is_connected or row.key in kept]

    def _new_key(self) -> int:
        self._next_key += 1
        return self._next_key


def _arrival_text(arrival: Arrival[int]) -> str:
    if arrival.candidates:
        return f"connected: one of the {len(arrival.candidates)} of its host that were lost is back"
    return "connected"

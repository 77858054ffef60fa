"""Which connection that a master lists is which of its rows: see `trioha_monitor.cluster`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trioha.remoting.status import ConnectionStatus
from trioha_monitor.answers import CONNECTIONS_MAX
from trioha_monitor.joining import Joining
from trioha_monitor.node import Node
from trioha_monitor.replica_events import ReplicaEvents
from trioha_monitor.replicas import Replica
from trioha_monitor.series import SeriesRecorder, buckets_for
from trioha_monitor.texts import host_of
from trioha_monitor.verdict import seconds

LOST_KEPT_MS = 300_000
"""How long a lost connection, or a node that the name server no longer knows, is shown."""
HISTORY_MS = 900_000
"""How far back series go."""


class Matching:
    """Keeps the rows of masters; each row has a key of its own. `bucket_ms` is that of their histories."""

    def __init__(self, joining: Joining, events: ReplicaEvents, *, bucket_ms: int) -> None:
        self._joining, self._events = joining, events
        self._bucket_ms = bucket_ms
        self._next_key = 0

    def recorder(self) -> SeriesRecorder:
        """An empty history."""
        return SeriesRecorder(self._bucket_ms, buckets_for(HISTORY_MS, bucket_ms=self._bucket_ms))

    def new_row(self, master: str, address: str, *, at_ms: int) -> Replica:
        """A row that was never connected."""
        self._next_key += 1
        return Replica(
            key=self._next_key,
            master=master,
            address=address,
            since_ms=at_ms,
            lag_bytes=self.recorder(),
            lag_s=self.recorder(),
        )

    def match(self, node: Node, listed: Mapping[str, ConnectionStatus], *, at_ms: int) -> bool:
        """Take in which connections `node` lists, by their addresses; returns whether any came or went."""
        known = {row.address: row for row in node.rows}
        lost = [row for row in node.rows if row.is_connected and row.address not in listed]
        if (
            not lost
            and len(known) == len(listed)
            and all(address in known and known[address].is_connected for address in listed)
        ):
            return False
        reason = node.events.end_reason()
        for row in lost:
            row.disconnected(at_ms=at_ms)
            self._events.lost(row, reason, node=node.label, replica=self._joining.label(row), at_ms=at_ms)
        new = []
        for address, connection in listed.items():
            row_or_none = known.get(address)
            if row_or_none is None:
                new.append(connection)
            elif not row_or_none.is_connected:
                self._reconnect(node, row_or_none, address, at_ms=at_ms)
        by_socket = self._joining.slaves_by_socket()
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
                row = self.new_row(node.address, connection.address, at_ms=at_ms)
                row.connected(connection.address, at_ms=at_ms, is_new=node.has_listed)
                node.rows.append(row)
                self._tell_connected(node, row, "connected", at_ms=at_ms)
        self._forget_lost(node, at_ms=at_ms)
        return True

    def _reconnect(self, node: Node, row: Replica, address: str, *, at_ms: int) -> None:
        away_s = (at_ms - row.since_ms) / 1000
        row.connected(address, at_ms=at_ms, is_new=True)
        self._tell_connected(node, row, f"is back after {seconds(away_s)}", at_ms=at_ms)

    def _tell_connected(self, node: Node, row: Replica, what: str, *, at_ms: int) -> None:
        self._events.connected(row, what, node=node.label, replica=self._joining.label(row), at_ms=at_ms)

    def _forget_lost(self, node: Node, *, at_ms: int) -> None:
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
                    or ((news := self._joining.news_of(row)) is not None and news.names_itself)
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

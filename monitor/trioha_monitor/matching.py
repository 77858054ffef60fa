"""Which connection that a master lists is which of its rows: see `trioha_monitor.cluster`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trioha.broker_status import ConnectionStatus
from trioha.recording.reconnects import Arrival, Connection
from trioha_monitor.accept import CONNECTIONS_MAX
from trioha_monitor.joining import Joining
from trioha_monitor.node import Node
from trioha_monitor.replica_events import ReplicaEvents
from trioha_monitor.replicas import Replica
from trioha_monitor.series import SeriesRecorder, buckets_for
from trioha_monitor.verdict import seconds

LOST_KEPT_MS: Final = 300_000
"""How long a lost connection, or a node that the name server no longer knows, is shown."""
HISTORY_MS: Final = 900_000
"""How far back series go."""
NS_PER_MS: Final = 1_000_000


class Matching:
    """Keeps the rows of masters; each row has a key of its own. `bucket_ms` is that of their histories."""

    def __init__(self, joining: Joining, events: ReplicaEvents, *, bucket_ms: int) -> None:
        self._joining, self._events = joining, events
        self._bucket_ms = bucket_ms
        self._next_key = 0

    def recorder(self) -> SeriesRecorder:
        """An empty history."""
        return SeriesRecorder(self._bucket_ms, buckets_for(HISTORY_MS, bucket_ms=self._bucket_ms))

    def new_row(self, master: str, address: str, *, at_ms: int, key: int | None = None) -> Replica:
        """A row that was never connected, with a `key` of its own or the one that was made for it."""
        return Replica(
            key=self._new_key() if key is None else key,
            master=master,
            address=address,
            since_ms=at_ms,
            lag_bytes=self.recorder(),
            lag_s=self.recorder(),
        )

    def match(self, node: Node, listed: Mapping[str, ConnectionStatus], *, at_ms: int) -> bool:
        """Match the connections that `node` lists, by address; returns whether any came or went."""
        known = {row.address: row for row in node.rows if row.is_connected}
        ended = [row for address, row in known.items() if address not in listed]
        new = [address for address in listed if address not in known]
        if not ended and not new and len(known) == len(node.rows):
            return False
        if ended:
            reason = node.events.end_reason()
            for row in ended:
                row.disconnected(at_ms=at_ms)
                node.reconnects.lost(
                    Connection(row.key, row.address, row.node or ""), at_ns=at_ms * NS_PER_MS
                )
                self._events.lost(row, reason, node=node, replica=self._joining.label(row), at_ms=at_ms)
        if new:
            self._connect(node, new, at_ms=at_ms)
        rows_before = len(node.rows)
        self._forget_lost(node, at_ms=at_ms)
        return bool(ended or new) or len(node.rows) != rows_before

    def _connect(self, node: Node, addresses: list[str], *, at_ms: int) -> None:
        """Give each new connection its row: `trioha.recording.reconnects` says which."""
        by_socket = self._joining.slaves_by_socket()
        lost = {row.key: row for row in node.rows if not row.is_connected}
        new = [Connection(self._new_key(), address, by_socket.get(address, "")) for address in addresses]
        for arrival in node.reconnects.came(new, at_ns=at_ms * NS_PER_MS):
            row = None if arrival.previous is None else lost.get(arrival.previous)
            if row is not None:
                what = f"is back after {seconds((at_ms - row.since_ms) / 1000)}"
                row.connected(arrival.connection.address, at_ms=at_ms, is_new=True)
            else:
                what = _words(arrival)
                row = self.new_row(
                    node.address, arrival.connection.address, at_ms=at_ms, key=arrival.connection.key
                )
                row.connected(row.address, at_ms=at_ms, is_new=node.has_listed)
                # One of several came back: how often this one did before is not known.
                row.reconnects = int(arrival.is_reconnect)
                node.rows.append(row)
            self._events.connected(row, what, node=node, replica=self._joining.label(row), at_ms=at_ms)

    def _forget_lost(self, node: Node, *, at_ms: int) -> None:
        """Drop the rows of lost connections that are old, too many, or that others have replaced."""
        lost = [row for row in node.rows if not row.is_connected]
        kept = {
            row.key
            for row in lost[-CONNECTIONS_MAX:]
            if at_ms - row.since_ms < LOST_KEPT_MS
            and (
                row.key in node.reconnects
                # Its slave will say which connection is its own now.
                or ((news := self._joining.news_of(row)) is not None and news.names_itself)
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


def _words(arrival: Arrival[int]) -> str:
    if arrival.candidates:
        return f"connected: one of the {len(arrival.candidates)} of its host that were lost is back"
    return "connected"

"""Which watched slave is which row of a master: see `trioha_monitor.cluster`."""

from __future__ import annotations

from collections.abc import Mapping

from trioha_monitor.node import Node
from trioha_monitor.replicas import Replica, SlaveNews
from trioha_monitor.texts import clean, host_of


class Joining:
    """Looks at all `nodes`, and gives their rows to slaves."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def news_of(self, row: Replica) -> SlaveNews | None:
        """What the slave of a row says itself, where it is watched and known."""
        if row.node is None:
            return None
        node = self._nodes.get(row.node)
        return None if node is None else node.news

    def label(self, row: Replica) -> str:
        """Broker name and id of a row's slave where known, else its address."""
        if row.node is not None and row.node in self._nodes:
            return self._nodes[row.node].label
        return clean(row.address)

    def slaves_by_socket(self) -> dict[str, str]:
        """Watched slaves that say which socket they dial from: their addresses by it."""
        return {
            node.news.client.local_address: node.address
            for node in self._nodes.values()
            if node.news is not None and node.news.client is not None and node.news.client.local_address
        }

    def master_of(self, slave: Node) -> Node | None:
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

    def join(self, *, at_ms: int) -> None:
        """Say which row is which watched slave."""
        slaves = [node for node in self._nodes.values() if node.news is not None]
        by_address = {node.address: node for node in slaves}
        for master in self._nodes.values():
            for row in master.rows:
                if row.node is not None and row.node not in by_address:
                    row.node = None
        left: list[tuple[Node, Node]] = []
        for slave in slaves:
            master_node = self.master_of(slave)
            if master_node is None or slave.news is None:
                continue
            client = slave.news.client
            socket = None if client is None else client.local_address
            own = [row for row in master_node.rows if row.is_connected and row.address == socket]
            if own:
                _give(master_node, own[0], slave)
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
                _give(master_node, rows[0], slave)
        given = {row.node for node in self._nodes.values() for row in node.rows}
        for slave in slaves:
            if slave.address in given:
                slave.unlisted_since_ms = slave.own_row = None
            elif slave.unlisted_since_ms is None:
                slave.unlisted_since_ms = at_ms

    def may_be_listed(self, master: Node, slave: Node) -> bool:
        """Whether a connection is left that may be the slave's, though which one is not known.

        From whatever host: a slave may dial from another address than the one it listens on.
        """
        nameless = sum(row.is_connected and row.node is None for row in master.rows)
        given = {row.node for row in master.rows}
        rivals = sum(
            node.news is not None and node.address not in given and self.master_of(node) is master
            for node in self._nodes.values()
        )
        client = None if slave.news is None else slave.news.client
        says_so = client is None or client.state is None or client.state == "TRANSFER"
        return says_so and nameless >= rivals


def _give(master: Node, row: Replica, slave: Node) -> None:
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
        earlier.connected(row.address, at_ms=row.since_ms, is_new=row.is_new)
        earlier.joined_at_offset = row.joined_at_offset
        master.rows = [earlier if other is row else other for other in master.rows if other is not earlier]

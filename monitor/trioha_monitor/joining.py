"""Which watched slave is which row of a master: see `trioha_monitor.cluster`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from trioha_monitor.node import Node
from trioha_monitor.replicas import Replica, SlaveReport
from trioha_monitor.texts import host_of


class Joining:
    """Looks at all `nodes`, and gives their rows to slaves."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._by_ha_address: dict[str, Node] | None = None
        """Masters by where they listen for slaves; None until they are looked for."""
        self._by_name: dict[tuple[str | None, str], list[Node]] = {}
        self._nameless: dict[str, tuple[int, int]] = {}
        """By master: rows that may be any slave's, and slaves that have no row."""

    def news_of(self, row: Replica) -> SlaveReport | None:
        """What the slave of a row says itself, where it is watched and known."""
        if row.node is None:
            return None
        node = self._nodes.get(row.node)
        return None if node is None else node.news

    def label(self, row: Replica) -> str:
        """Broker name and id of a row's slave where known, else its address."""
        if row.node is not None and row.node in self._nodes:
            return self._nodes[row.node].label
        return row.address

    def slaves_by_socket(self) -> dict[str, str]:
        """Watched slaves that say which socket they dial from: their addresses by it."""
        return {
            node.news.client.local_address: node.address
            for node in self._nodes.values()
            if node.news is not None and node.news.client is not None and node.news.client.local_address
        }

    def identities_changed(self) -> None:
        """A node came, went, or says something else of who it is."""
        self._by_ha_address = None
        self._nameless.clear()

    def master_of(self, slave: Node) -> Node | None:
        """The watched master of a slave: by the address it dials, else by cluster and broker name."""
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
        dialled = None if status.client is None else status.client.master_address
        if dialled and dialled in self._by_ha_address:
            return self._by_ha_address[dialled]
        if status.broker_name is None:
            return None
        named = self._by_name.get((status.cluster_name, status.broker_name), [])
        return named[0] if len(named) == 1 else None

    def join(self, *, at_ms: int) -> None:
        """Say which row is which watched slave."""
        self._nameless.clear()
        slaves = [node for node in self._nodes.values() if node.news is not None]
        addresses = {node.address for node in slaves}
        rows_of: dict[str, _Rows] = {}
        for master in self._nodes.values():
            for row in master.rows:
                if row.node is not None and row.node not in addresses:
                    row.node = None
        left: list[tuple[_Rows, Node]] = []
        for slave in slaves:
            master_node = self.master_of(slave)
            if master_node is None or slave.news is None:
                continue
            rows = rows_of.get(master_node.address)
            if rows is None:
                rows = rows_of[master_node.address] = _Rows(master_node)
            client = slave.news.client
            own = None if client is None else rows.connected.get(client.local_address or "")
            if own is not None:
                rows.give(own, slave)
            elif not any(row.is_connected for row in rows.of_node.get(slave.address, ())):
                left.append((rows, slave))
        rivals = Counter((id(rows), host_of(slave.address)) for rows, slave in left)
        for rows, slave in left:
            host = host_of(slave.address)
            nameless = rows.nameless_of(host)
            if rivals[id(rows), host] == len(nameless) == 1:
                rows.give(nameless[0], slave)
        for rows in rows_of.values():
            rows.apply()
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
        client = None if slave.news is None else slave.news.client
        if client is not None and client.state is not None and client.state != "TRANSFER":
            return False
        counted = self._nameless.get(master.address)
        if counted is None:
            nameless = sum(row.is_connected and row.node is None for row in master.rows)
            given = {row.node for row in master.rows}
            rivals = sum(
                node.news is not None and node.address not in given and self.master_of(node) is master
                for node in self._nodes.values()
            )
            counted = self._nameless[master.address] = nameless, rivals
        nameless, rivals = counted
        return nameless >= rivals


class _Rows:
    """The rows of one master while they are given to slaves."""

    def __init__(self, master: Node) -> None:
        self._master = master
        self.connected = {row.address: row for row in master.rows if row.is_connected}
        self.of_node: defaultdict[str, list[Replica]] = defaultdict(list)
        for row in master.rows:
            if row.node is not None:
                self.of_node[row.node].append(row)
        self._nameless: defaultdict[str, list[Replica]] | None = None
        self._instead: dict[int, Replica] = {}
        """Rows that take the place of others, by the key of those."""

    def nameless_of(self, host: str) -> list[Replica]:
        """Connected rows of a host that are no known slave's, as they were when they were first asked for."""
        if self._nameless is None:
            self._nameless = defaultdict(list)
            for row in self.connected.values():
                if row.node is None:
                    self._nameless[host_of(row.address)].append(row)
        return self._nameless[host]

    def give(self, row: Replica, slave: Node) -> None:
        """`row` is `slave`; what the slave had for a row before goes on in its place."""
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
            self._instead[row.key] = earlier
            self.connected[row.address] = row = earlier
        self.of_node[slave.address].append(row)

    def apply(self) -> None:
        """Put rows in the places of those that they continue."""
        if self._instead:
            moved = {row.key for row in self._instead.values()}
            self._master.rows = [self._last_instead(row) for row in self._master.rows if row.key not in moved]

    def _last_instead(self, row: Replica) -> Replica:
        while row.key in self._instead:
            row = self._instead[row.key]
        return row

"""The facts of an examination put together: nodes, their groups, and which slave belongs to which master.

A node is a running broker, a broker.conf, or both if they have the same cluster, name and id. A group is the
nodes of one cluster and broker name. A slave belongs to the master whose HA address it dials; else to the
only master of its group; else, where one master and one slave are examined, to that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from attrs import define, frozen

from trioha.broker_status import BrokerStatus
from trioha.config.rocketmq_keys import ROCKETMQ_KEYS
from trioha.controller.bodies import Replica, ReplicaSetInfo
from trioha.doctor.facts import (
    BrokerFacts,
    ConfFacts,
    ControllerFacts,
    Facts,
    ListedBroker,
    NameServerFacts,
    StoreFacts,
    Thresholds,
)
from trioha.doctor.versions import BrokerVersion
from trioha.host_port import split_host_port
from trioha.numbers import I64, parse_int

CLUSTER_DEFAULT: Final = "DefaultCluster"
SLAVE: Final = "SLAVE"
SYNC_MASTER: Final = "SYNC_MASTER"
TRUE: Final = "true"


@frozen(eq=False)
class Node:
    """A broker: running, or only its file, or both."""

    broker: BrokerFacts | None
    conf: ConfFacts | None
    version: BrokerVersion

    @property
    def label(self) -> str:
        """The address of a running broker, else the path of the file."""
        if self.broker is not None:
            return self.broker.address
        assert self.conf is not None, "a node is a broker or a file"
        return self.conf.path

    @property
    def status(self) -> BrokerStatus | None:
        """Of the running broker; None without an answer."""
        return None if self.broker is None else self.broker.status

    @property
    def running_config(self) -> Mapping[str, str]:
        """Of the running broker; empty where it is not known."""
        return {} if self.broker is None or self.broker.config is None else self.broker.config

    def setting(self, key: str) -> str | None:
        """The value in effect; that of the file where the running broker does not report its own."""
        value = self.running_config.get(key)
        if value is not None:
            return value
        if self.conf is not None and key in self.conf.values:
            return self.conf.values[key].value
        return None

    def number(self, key: str) -> int | None:
        """`setting` as a whole number; None for any other value."""
        text = self.setting(key)
        try:
            return parse_int(None if text is None else text.removeprefix("+"), I64)
        except ValueError:
            return None

    def is_true(self, key: str) -> bool:
        """Whether `setting` is true, as Java reads it."""
        return (self.setting(key) or "").lower() == TRUE

    def place(self, key: str) -> str:
        """Where `setting` was found: `file:line: key`, or `address: key`."""
        if key not in self.running_config and self.conf is not None and key in self.conf.values:
            return f"{self.conf.path}:{self.conf.values[key].line}: {key}"
        return f"{self.label}: {key}"

    @property
    def cluster(self) -> str:
        """brokerClusterName."""
        status = self.status
        return (
            (status.cluster_name if status else None) or self.setting("brokerClusterName") or CLUSTER_DEFAULT
        )

    @property
    def name(self) -> str | None:
        """brokerName; None where it is not known (RocketMQ's default is the name of the host)."""
        status = self.status
        return (status.broker_name if status else None) or self.setting("brokerName")

    @property
    def broker_id(self) -> int | None:
        """brokerId; None where it is not known."""
        status = self.status
        if status is not None and status.broker_id is not None:
            return status.broker_id
        number = self.number("brokerId")
        return (
            0 if number is None and self.conf is not None and "brokerId" not in self.conf.values else number
        )

    @property
    def role(self) -> str:
        """brokerRole; UNKNOWN where it is not known."""
        status = self.status
        if status is not None and status.role != "UNKNOWN":
            return status.role
        given = self.setting("brokerRole")
        if given is None:
            return "ASYNC_MASTER" if self.conf is not None and self.broker is None else "UNKNOWN"
        return given

    @property
    def is_slave(self) -> bool:
        """Whether it copies a master."""
        return self.role == SLAVE

    @property
    def is_master(self) -> bool:
        """Whether it is known to be a master."""
        return self.role.endswith("MASTER")

    @property
    def is_trioha(self) -> bool:
        """Whether it is a trioha node, by its answer or by keys of its file."""
        if self.version.is_trioha or (self.status is not None and self.status.is_trioha):
            return True
        return self.conf is not None and any(key.startswith("trioha.") for key in self.conf.values)

    @property
    def max_offset(self) -> int | None:
        """End of its log."""
        return None if self.status is None else self.status.max_offset

    @property
    def hosts(self) -> set[str]:
        """Hosts that are known to be this broker's."""
        found = set()
        if self.broker is not None:
            found.add(host_of(self.broker.address))
            found.add(self.broker.peer_host)
        for key in ("brokerIP1", "brokerIP2"):
            if value := self.setting(key):
                found.add(value)
        return found - {""}

    @property
    def ha_address(self) -> str | None:
        """`host:port` that it announces to slaves."""
        if self.status is not None and self.status.ha_address:
            return self.status.ha_address
        host, port = self.setting("brokerIP2"), self.ha_port
        return None if host is None or port is None else f"{host}:{port}"

    @property
    def ha_port(self) -> int | None:
        """The port that slaves dial, by its version's rules (docs/protocol/ha.md#ha-port)."""
        listen = self.number("listenPort")
        if listen is None and self.conf is not None:
            listen = 10911
        if "haListenPort" in self.running_config:
            return self.number("haListenPort")
        given = self.number("haListenPort")
        if given is None or given <= 0 or self.version.is_4:
            return None if listen is None else listen + 1
        return given

    @property
    def uses_controller(self) -> bool:
        """Whether a controller gives it role and id (RocketMQ 5's autoswitch mode)."""
        is_said = self.status is not None and self.status.control is not None
        return is_said or self.is_true("enableControllerMode")

    @property
    def controllers(self) -> tuple[str, ...]:
        """controllerAddr; empty outside of controller mode."""
        if not self.uses_controller:
            return ()
        return tuple(
            part.strip() for part in (self.setting("controllerAddr") or "").split(";") if part.strip()
        )

    @property
    def group_id(self) -> int | None:
        """The id that controllers gave it, on a master, too; None where it is not known."""
        control = None if self.status is None else self.status.control
        if control is not None and control.broker_id is not None:
            return control.broker_id
        if self.conf is not None and self.conf.identity is not None and self.conf.identity.error is None:
            return self.conf.identity.broker_id
        # A master in controller mode reports 0, and a file has -1.
        broker_id = self.broker_id
        return broker_id if broker_id is not None and broker_id > 0 else None

    def is_replica(self, replica: Replica) -> bool:
        """Whether it is the broker that a controller lists: by its id, else by its address."""
        if self.group_id is not None:
            return self.group_id == replica.broker_id
        return self.broker is not None and same_address(self.broker.address, replica.address)

    @property
    def slave_acks_needed(self) -> int | None:
        """Slaves that a put of it waits for; None where inSyncReplicas is not known."""
        if self.role != SYNC_MASTER:
            return 0
        if self.uses_controller:
            copies = 1 if self.is_true("allAckInSyncStateSet") else self.number("inSyncReplicas")
            return max(0, (1 if copies is None else copies) - 1)
        if self.version.is_4:
            return 1
        copies = self.number("inSyncReplicas")
        if copies is None:
            copies = 1 if self.version.is_5 or self.is_trioha else None
        if copies is None:
            return None
        return max(1, copies - 1) if self.is_trioha else max(0, copies - 1)


@frozen(eq=False)
class Group:
    """The nodes of one cluster and broker name."""

    cluster: str
    name: str
    nodes: tuple[Node, ...]
    listed: tuple[ListedBroker, ...]
    """What name servers list of it."""

    @property
    def label(self) -> str:
        """`cluster/name`."""
        return f"{self.cluster}/{self.name}"

    @property
    def masters(self) -> list[Node]:
        """Nodes that are masters."""
        return [node for node in self.nodes if node.is_master]

    @property
    def slaves(self) -> list[Node]:
        """Nodes that are slaves."""
        return [node for node in self.nodes if node.is_slave]


@frozen(eq=False)
class Pair:
    """A slave and its master."""

    master: Node
    slave: Node

    @property
    def label(self) -> str:
        """`slave -> master`."""
        return f"{self.slave.label} -> {self.master.label}"


@define(eq=False, slots=False)
class Case:
    """Everything that checks may look at."""

    nodes: tuple[Node, ...]
    name_servers: tuple[NameServerFacts, ...]
    controllers: tuple[ControllerFacts, ...]
    thresholds: Thresholds
    stores: tuple[StoreFacts, ...] = ()
    """Folders on this host."""

    @classmethod
    def of(cls, facts: Facts) -> Case:
        """Put the facts together."""
        return cls(
            tuple(_nodes(facts)), facts.name_servers, facts.controllers, facts.thresholds, facts.stores
        )

    @property
    def running(self) -> list[Node]:
        """Nodes that answered."""
        return [node for node in self.nodes if node.status is not None]

    @property
    def with_files(self) -> list[tuple[Node, ConfFacts]]:
        """Nodes with a broker.conf."""
        return [(node, node.conf) for node in self.nodes if node.conf is not None]

    @property
    def masters(self) -> list[Node]:
        """All masters."""
        return [node for node in self.nodes if node.is_master]

    @property
    def slaves(self) -> list[Node]:
        """All slaves."""
        return [node for node in self.nodes if node.is_slave]

    @cached_property
    def groups(self) -> list[Group]:
        """Groups of nodes whose name is known, by cluster and name."""
        nodes: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
        for node in self.nodes:
            if node.name is not None:
                nodes[node.cluster, node.name].append(node)
        listed: defaultdict[tuple[str, str], dict[tuple[int, str], ListedBroker]] = defaultdict(dict)
        for server in self.name_servers:
            for broker in server.brokers:
                listed[broker.cluster_name, broker.broker_name][broker.broker_id, broker.address] = broker
        return [
            Group(cluster, name, tuple(nodes[cluster, name]), tuple(listed[cluster, name].values()))
            for cluster, name in sorted({*nodes, *listed})
        ]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Each slave whose master is known, with it."""
        return [pair for slave in self.slaves if (pair := self._pair_of(slave)) is not None]

    @property
    def controlled(self) -> list[Node]:
        """Nodes in controller mode."""
        return [node for node in self.nodes if node.uses_controller]

    @property
    def leader(self) -> ControllerFacts | None:
        """The leading controller, if its groups are known; None if there is no such one, or more than one."""
        leaders = [one for one in self.controllers if one.is_leader and one.gap is None]
        return leaders[0] if len(leaders) == 1 else None

    def controlled_group(self, node: Node) -> ReplicaSetInfo | None:
        """The group of a node as the leading controller has it."""
        leader = self.leader
        return None if leader is None or node.name is None else leader.groups.get(node.name)

    def slaves_of(self, master: Node) -> list[Node]:
        """The slaves that belong to `master`."""
        return [pair.slave for pair in self.pairs if pair.master is master]

    def _pair_of(self, slave: Node) -> Pair | None:
        dialled = dialled_address(slave)
        if dialled is not None:
            for master in self.masters:
                if master.ha_address is not None and same_address(master.ha_address, dialled):
                    return Pair(master, slave)
        of_group = [
            master for master in self.masters if (master.cluster, master.name) == (slave.cluster, slave.name)
        ]
        if len(of_group) == 1:
            return Pair(of_group[0], slave)
        if not of_group and len(self.masters) == len(self.slaves) == 1:
            return Pair(self.masters[0], slave)
        return None


def dialled_address(slave: Node) -> str | None:
    """The HA address that a slave dials: by its own report, else by its settings."""
    client = None if slave.status is None else slave.status.client
    if client is not None and client.master_address:
        return client.master_address
    return slave.setting("haMasterAddress") or None


def host_of(address: str) -> str:
    """The host of `host:port`; the whole text if it is no address."""
    try:
        return split_host_port(address)[0]
    except ValueError:
        return address


def port_of(address: str) -> int | None:
    """The port of `host:port`."""
    try:
        return split_host_port(address)[1]
    except ValueError:
        return None


def same_address(one: str, other: str) -> bool:
    """Whether two texts `host:port` are equal but for writing."""
    return (host_of(one), port_of(one)) == (host_of(other), port_of(other))


def some_of(names: Sequence[str], *, most: int = 5) -> str:
    """Names for a text: the first ones, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _nodes(facts: Facts) -> Iterator[Node]:
    left = list(facts.files)
    for broker in _distinct(facts.brokers):
        version = _version_of_status(broker.status)
        node = Node(broker, None, version)
        conf = next((conf for conf in left if _is_of(conf, node)), None)
        if conf is not None:
            left.remove(conf)
        yield Node(broker, conf, version)
    for conf in left:
        yield Node(None, conf, _version_of(conf, facts.assumed_version))


def _distinct(brokers: Sequence[BrokerFacts]) -> Iterator[BrokerFacts]:
    """The brokers, without those that were reached at a second address: the same start of the same id."""
    seen = set()
    for broker in brokers:
        if broker.status is not None and broker.clock is not None:
            status = broker.status
            start = (status.cluster_name, status.broker_name, status.broker_id, broker.clock.booted_ms)
            if start in seen:
                continue
            seen.add(start)
        yield broker


def _is_of(conf: ConfFacts, node: Node) -> bool:
    """Whether a file is that of a running broker: by cluster, name and id, or by its address."""
    alone = Node(None, conf, BrokerVersion())
    if node.status is None:
        host, port = alone.setting("brokerIP1"), alone.setting("listenPort") or "10911"
        return host is not None and node.broker is not None and f"{host}:{port}" == node.broker.address
    if alone.name is None:
        return False
    if alone.uses_controller:
        return (alone.cluster, alone.name) == (node.cluster, node.name) and _is_at(alone, node)
    return (alone.cluster, alone.name, alone.broker_id) == (node.cluster, node.name, node.broker_id)


def _is_at(alone: Node, node: Node) -> bool:
    """Whether a file of controller mode, which has no id, is that of a running broker of its group."""
    assert node.broker is not None, "a running broker"
    if alone.group_id is not None and node.group_id is not None:
        return alone.group_id == node.group_id
    host, port = alone.setting("brokerIP1"), alone.setting("listenPort") or "10911"
    if host is None:
        return str(port_of(node.broker.address)) == port
    return f"{host}:{port}" == node.broker.address


def _version_of_status(status: BrokerStatus | None) -> BrokerVersion:
    if status is None:
        return BrokerVersion()
    if status.is_trioha:
        # It reports its number alone in the HA status, with its name in the runtime table.
        return BrokerVersion.of(f"trioha-{(status.version or '').removeprefix('trioha-')}")
    return BrokerVersion.of(status.version)


def _version_of(conf: ConfFacts, assumed: str | None) -> BrokerVersion:
    if assumed is not None:
        return BrokerVersion.of(assumed)
    is_trioha = any(key.startswith("trioha.") for key in conf.values)
    return BrokerVersion.of("trioha") if is_trioha else BrokerVersion()


def is_known_key(key: str) -> bool:
    """Whether RocketMQ or trioha has the key."""
    return key in ROCKETMQ_KEYS or key.startswith("trioha.")

"""Which brokers there are, and whether their names, ids and roles make pairs."""

from __future__ import annotations

from collections.abc import Iterator

from trioha.doctor.case import Case, Group, Node, same_address
from trioha.doctor.facts import ListedBroker
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity


@check(
    "broker-unreachable",
    Severity.CRITICAL,
    mend="Start the broker, or open its listenPort to this host; if it announces a wrong address, set "
    "brokerIP1.",
)
def broker_unreachable(case: Case) -> Iterator[Observation]:
    """A broker does not answer.

    The address was named, or a name server lists it, and no status could be read there in time. A broker
    that died stays in a name server's list for up to two minutes.
    """
    for node in case.nodes:
        broker = node.broker
        if broker is None or broker.error is None or broker.is_refused:
            continue
        if not broker.is_named and _is_other_address_of_a_running_broker(case, node):
            # registered-with-other-address reports it.
            continue
        source = "" if broker.is_named else "; a name server lists it"
        yield Observation(
            subject=node.label,
            evidence=f"{broker.error}{source}",
            remedy=f"start the broker, or open {broker.address} to this host",
        )


@check(
    "broker-refuses",
    Severity.WARNING,
    mend="Give the account of an administrator with `--credentials FILE`.",
)
def broker_refuses(case: Case) -> Iterator[Observation]:
    """A broker does not report everything that the checks need.

    It answers with an error code, as a broker with access control does to requests without an account. Most
    checks need these answers: what they do not find is not known to be sound.
    """
    for node in case.nodes:
        if node.broker is None:
            continue
        refusals = list(node.broker.gaps)
        if node.broker.is_refused and node.broker.error is not None:
            refusals.insert(0, node.broker.error)
        if refusals:
            yield Observation(
                subject=node.label,
                evidence="; ".join(refusals),
                remedy="trioha doctor --credentials FILE (accessKey and secretKey, as conf/tools.yml)",
            )


@check(
    "name-server-unreachable",
    Severity.CRITICAL,
    mend="Start the name server, or correct the address in `namesrvAddr` and in the clients.",
)
def name_server_unreachable(case: Case) -> Iterator[Observation]:
    """A name server does not answer.

    Clients find no brokers there, and slaves of 5.x do not learn the address of their master.
    """
    for server in case.name_servers:
        if server.error is not None:
            yield Observation(
                subject=server.address,
                evidence=server.error,
                remedy=f"start the name server at {server.address}, or open the port to this host",
            )


@check(
    "not-registered",
    Severity.WARNING,
    mend="Set `namesrvAddr` in the broker.conf, and look for `register broker` in the broker's log.",
)
def not_registered(case: Case) -> Iterator[Observation]:
    """A running broker is not listed by a name server.

    Clients of that name server do not use it, and consumers do not go on at a slave that is not listed. A
    name server of 5.3 refuses the first registration of a broker with exactly one topic.
    """
    for node in case.running:
        if node.name is None or node.broker_id is None:
            continue
        for server in case.name_servers:
            if server.error is None and not any(_is_entry_of(entry, node) for entry in server.brokers):
                yield Observation(
                    subject=node.label,
                    evidence=f"{server.address} does not list id {node.broker_id} of "
                    f"{node.cluster}/{node.name}; its namesrvAddr is "
                    f"{node.setting('namesrvAddr') or 'empty'}",
                    remedy=f"namesrvAddr={server.address} in its broker.conf, then restart it",
                )


@check(
    "registered-with-other-address",
    Severity.CRITICAL,
    mend="Set `brokerIP1` to an address that clients reach, and restart the broker.",
)
def registered_with_other_address(case: Case) -> Iterator[Observation]:
    """A name server lists a broker with an address at which it does not answer.

    The broker was reached at another address, so that it runs: clients are sent to the wrong one. Typical
    are an address of docker0, one of another network, and an entry of a broker that moved.
    """
    for node in case.running:
        for other in case.nodes:
            if (
                other.broker is not None
                and other.broker.error is not None
                and (entry := _listed_as(case, other, node)) is not None
            ):
                assert node.broker is not None, "a running node has a broker"
                yield Observation(
                    subject=node.label,
                    evidence=f"it answers here, but a name server lists id {entry.broker_id} of "
                    f"{entry.cluster_name}/{entry.broker_name} at {entry.address}: {other.broker.error}",
                    remedy=f"brokerIP1={node.broker.peer_host or node.label} in its broker.conf, then "
                    "restart it",
                )


@check(
    "no-master",
    Severity.CRITICAL,
    mend="Start the master, or promote a slave: restart it with brokerRole=ASYNC_MASTER and brokerId=0.",
)
def no_master(case: Case) -> Iterator[Observation]:
    """A group has slaves and no master.

    No message can be sent to it; consumers read what the slaves have. A single slave that is named without
    its master is not reported.
    """
    for group in case.groups:
        if group.masters or any(entry.broker_id == 0 for entry in group.listed) or not group.slaves:
            continue
        if any(node.role == "UNKNOWN" for node in group.nodes):
            continue
        if any(node.uses_controller for node in group.nodes):
            # group-without-master reports it: the controllers choose the master.
            continue
        if len(case.nodes) == 1 and not group.listed:
            continue
        if any(pair.slave in group.slaves for pair in case.pairs):
            # name-mismatch reports it: there is a master of another name.
            continue
        slaves = ", ".join(node.label for node in group.slaves)
        yield Observation(
            subject=group.label,
            evidence=f"there is no broker with id 0; slaves: {slaves}",
            remedy="start the master, or restart a slave with brokerRole=ASYNC_MASTER and brokerId=0",
        )


@check(
    "two-masters",
    Severity.CRITICAL,
    mend="Stop one of them. If both accepted messages, only one log can go on: compare them with "
    "`trioha verify`.",
)
def two_masters(case: Case) -> Iterator[Observation]:
    """A group has two masters.

    Both accept messages with the same queue offsets, their logs diverge, and a name server lists the one
    that registered last.
    """
    for group in case.groups:
        # In controller mode past-master reports it.
        if len(group.masters) > 1 and not all(node.uses_controller for node in group.masters):
            masters = " and ".join(node.label for node in group.masters)
            yield Observation(
                subject=group.label,
                evidence=f"masters: {masters}",
                remedy="stop the older one, and let it come back with brokerRole=SLAVE and its own brokerId",
            )


@check(
    "duplicate-broker-id",
    Severity.CRITICAL,
    mend="Give each slave of a group a `brokerId` of its own.",
)
def duplicate_broker_id(case: Case) -> Iterator[Observation]:
    """Two slaves of a group have one id.

    A name server keeps one address for an id: each registration replaces the other slave, and consumers see
    only one of them.
    """
    for group in case.groups:
        by_id: dict[int, list[Node]] = {}
        for node in group.slaves:
            if node.broker_id is not None:
                by_id.setdefault(node.broker_id, []).append(node)
        for broker_id, nodes in sorted(by_id.items()):
            if len(nodes) > 1:
                free = max(by_id) + 1
                yield Observation(
                    subject=group.label,
                    evidence=f"brokerId {broker_id}: {' and '.join(node.label for node in nodes)}",
                    remedy=f"brokerId={free} in the broker.conf of {nodes[-1].label}, then restart it",
                )


@check(
    "name-mismatch",
    Severity.CRITICAL,
    mend="Set the master's `brokerName` and `brokerClusterName` at the slave, and restart it.",
)
def name_mismatch(case: Case) -> Iterator[Observation]:
    """A slave has another broker name or cluster than its master.

    Its log is copied, but no consumer goes on at it when the master dies: to name servers and clients it is
    another broker. A slave of 5.x does not even find the master, whose address it learns by the name.
    """
    for pair in case.pairs:
        master, slave = pair.master, pair.slave
        if slave.name is None or master.name is None:
            continue
        for key, theirs, wanted in (
            ("brokerName", slave.name, master.name),
            ("brokerClusterName", slave.cluster, master.cluster),
        ):
            if theirs != wanted:
                yield Observation(
                    subject=slave.label,
                    evidence=f"{key} is {theirs}, that of its master {master.label} is {wanted}",
                    remedy=f"{key}={wanted} in the broker.conf of the slave, then restart it",
                )


@check(
    "role-and-id",
    Severity.CRITICAL,
    mend="A master has brokerId 0, a slave brokerRole SLAVE and a brokerId above 0.",
)
def role_and_id(case: Case) -> Iterator[Observation]:
    """Role and id contradict each other.

    A broker of RocketMQ with brokerRole SLAVE and brokerId 0 ends at its start (exit code -3); a master's
    id is silently set to 0, so that a file that should make a slave makes a second master.
    """
    for node, conf in case.with_files:
        if node.uses_controller:
            continue
        alone = Node(None, conf, node.version)
        broker_id, role = alone.broker_id, alone.role
        if broker_id is None:
            continue
        if role == "SLAVE" and broker_id == 0:
            yield Observation(
                subject=conf.path,
                evidence="brokerRole is SLAVE and brokerId is 0, which is the master's",
                remedy="brokerId=1, or another number above 0",
            )
        elif role in {"ASYNC_MASTER", "SYNC_MASTER"} and broker_id != 0:
            given = role if "brokerRole" in conf.values else f"{role}, the default"
            yield Observation(
                subject=conf.path,
                evidence=f"brokerId is {broker_id} and brokerRole is {given}",
                remedy="brokerRole=SLAVE for a slave, or brokerId=0 for a master",
            )


def _is_entry_of(entry: ListedBroker, node: Node) -> bool:
    return (entry.cluster_name, entry.broker_name, entry.broker_id) == (
        node.cluster,
        node.name,
        node.broker_id,
    )


def _listed_as(case: Case, unreachable: Node, running: Node) -> ListedBroker | None:
    """The entry by which name servers list `running` at the address of `unreachable`."""
    group: Group
    for group in case.groups:
        for entry in group.listed:
            if same_address(entry.address, unreachable.label) and _is_entry_of(entry, running):
                return entry
    return None


def _is_other_address_of_a_running_broker(case: Case, unreachable: Node) -> bool:
    return any(_listed_as(case, unreachable, node) is not None for node in case.running)

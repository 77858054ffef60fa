"""Addresses that brokers announce, and ports that are open or closed to the wrong hosts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from trioha.doctor.case import Case, Node, host_of, port_of
from trioha.doctor.facts import BrokerFacts
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity

DOCKER_BRIDGE: Final = ipaddress.ip_network("172.17.0.0/16")
"""The network of docker0, unless Docker is configured otherwise: each host has its own 172.17.0.1."""
LOOPBACK: Final = "a loopback address"


@check(
    "advertised-address-unreachable",
    Severity.CRITICAL,
    mend="Set `brokerIP1` to an address that clients reach, and restart the broker.",
)
def advertised_address_unreachable(case: Case) -> Iterator[Observation]:
    """A broker announces an address to clients at which it cannot be reached.

    It answers at the address that was named, but not at brokerIP1:listenPort, which name servers give to
    clients and slaves. RocketMQ takes the first address of the host that it finds, often that of docker0.
    """
    for node in case.running:
        broker = node.broker
        if broker is None or broker.advertised is None or broker.advertised.error is None:
            continue
        yield Observation(
            subject=node.label,
            evidence=f"it announces {broker.advertised.address}{_kind_in_words(broker.advertised.address)}: "
            f"{broker.advertised.error}",
            remedy=(
                f"open {broker.advertised.address} to clients; listenPort may have changed since its start"
                if host_of(broker.advertised.address) == _reached_host(broker)
                else f"brokerIP1={_reached_host(broker)} in its broker.conf, then restart it"
            ),
        )


@check(
    "advertised-address-of-another-broker",
    Severity.CRITICAL,
    mend="Set `brokerIP1` to an address that only this broker has, and restart the broker.",
)
def advertised_address_of_another_broker(case: Case) -> Iterator[Observation]:
    """Another broker answers at the address that a broker announces.

    Clients of this host reach a different broker than name servers name. This happens with addresses that
    each host has for itself: loopback, docker0 (172.17.0.1).
    """
    for node in case.running:
        broker = node.broker
        if broker is None or (probe := broker.advertised) is None or probe.broker_name is None:
            continue
        if (probe.broker_name, probe.broker_id) != (node.name, node.broker_id):
            yield Observation(
                subject=node.label,
                evidence=f"it announces {probe.address}{_kind_in_words(probe.address)}, where "
                f"{probe.broker_name} ({probe.broker_id}) answers",
                remedy=f"brokerIP1={_reached_host(broker)} in its broker.conf, then restart it",
            )


@check(
    "advertised-address-local",
    Severity.WARNING,
    mend="Set `brokerIP1` and `brokerIP2` to an address that clients and slaves reach.",
)
def advertised_address_local(case: Case) -> Iterator[Observation]:
    """A broker announces an address that other hosts do not reach.

    brokerIP1 (for clients) or brokerIP2 (for slaves) is a loopback or link-local address or one of docker0,
    and the broker was reached at an address of another kind. Of a file alone, addresses of docker0 and
    link-local ones are reported, and loopback if another file of its group has another kind of address.
    """
    for node in case.nodes:
        for key, users in (("brokerIP1", "clients"), ("brokerIP2", "slaves")):
            host = node.setting(key)
            kind = kind_of(host)
            if host is None or kind is None or kind == _kind_elsewhere(case, node, kind):
                continue
            remedy = "an address of this host that the others reach"
            if node.broker is not None and node.broker.peer_host:
                remedy = node.broker.peer_host
            yield Observation(
                subject=node.label,
                evidence=f"{node.place(key)} is {host}, {kind}: {users} on other hosts do not reach it",
                remedy=f"{key}={remedy}",
            )


@check(
    "ha-address-unreachable",
    Severity.CRITICAL,
    mend="Set `brokerIP2` to an address that slaves reach, and open haListenPort to them.",
)
def ha_address_unreachable(case: Case) -> Iterator[Observation]:
    """A master without connected slaves cannot be reached at the address that it announces to slaves.

    Slaves learn brokerIP2:haListenPort from the name server. If a slave is connected, a port that is closed
    to this host is right and is not reported.
    """
    for node in case.running:
        if not node.is_master or node.broker is None or (probe := node.broker.ha) is None:
            continue
        if probe.error is None or _has_slaves(node):
            continue
        if node.status is not None and node.status.source == "runtime-info" and not _is_behind(case, node):
            # 4.9 does not report its connections: there may be one.
            continue
        yield Observation(
            subject=node.label,
            evidence=f"it announces {probe.address} to slaves{_kind_in_words(probe.address)}: {probe.error}",
            remedy=f"brokerIP2={_reached_host(node.broker)} in its broker.conf, and open port "
            f"{port_of(probe.address)} to the slaves' hosts",
        )


@check(
    "vip-port-unreachable",
    Severity.WARNING,
    mend="Open `listenPort` - 2 of the master to its slaves.",
)
def vip_port_unreachable(case: Case) -> Iterator[Observation]:
    """A slave of RocketMQ cannot ask its master for topics.

    Slaves of RocketMQ send that request to the master's VIP port, listenPort - 2. If it is closed, they
    copy groups and offsets, but no topics.
    """
    for pair in case.pairs:
        broker = pair.master.broker
        if not pair.slave.version.is_rocketmq or broker is None or broker.vip is None:
            continue
        if broker.vip.error is not None:
            yield Observation(
                subject=pair.master.label,
                evidence=f"{broker.vip.address}: {broker.vip.error}; slave: {pair.slave.label}",
                remedy=f"open {broker.vip.address} to {host_of(pair.slave.label)}",
            )


@check(
    "ha-port-exposed",
    Severity.WARNING,
    mend="Open haListenPort to the slaves' hosts only, by a firewall; trioha also has "
    "`trioha.haAllowedPeers` "
    "and mutual TLS (`trioha.haTlsCert`, `trioha.haTlsKey`, `trioha.haTlsCa`).",
)
def ha_port_exposed(case: Case) -> Iterator[Observation]:
    """The HA port accepts connections from a host that is not a replica.

    RocketMQ's HA protocol has no authentication and no encryption: who reaches the port reads the whole
    log, and with a forged report of 8 bytes makes a SYNC_MASTER confirm messages that no slave has. The
    check connects from this host, or from the address of `--source`, and needs to run on a host that is not
    a broker of the group: from a broker's own host it cannot see what others reach.
    """
    for node in case.running:
        if node.broker is None or (probe := node.broker.ha) is None or probe.error is not None:
            continue
        if probe.closed_at_once or probe.is_same_host or node.setting("trioha.haTlsCert"):
            continue
        if probe.local_host in _hosts_of_group(case, node):
            continue
        port = port_of(probe.address)
        slaves = sorted({host for slave in case.slaves_of(node) for host in slave.hosts})
        if node.is_trioha:
            remedy = f"trioha.haAllowedPeers={','.join(slaves) or 'the addresses of the slaves'}"
        else:
            remedy = (
                f"allow port {port} from {', '.join(slaves) or 'the hosts of the slaves'} only, as in: "
                f"nft add rule inet filter input tcp dport {port} ip saddr != "
                f"{{ {', '.join(slaves) or '...'} }} drop"
            )
        yield Observation(
            subject=node.label,
            evidence=f"{probe.address} accepted a connection from {probe.local_host}",
            remedy=remedy,
        )


def kind_of(host: str | None) -> str | None:
    """Why other hosts do not reach an IP address, in words; None if they may."""
    if host is None:
        return None
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return LOOPBACK if host == "localhost" else None
    if address.is_loopback:
        return LOOPBACK
    if address.is_unspecified:
        return "the address of no host"
    if address.is_link_local:
        return "a link-local address"
    if address.version == 4 and address in DOCKER_BRIDGE:
        return "an address of docker0"
    return None


def _kind_in_words(address: str) -> str:
    kind = kind_of(host_of(address))
    return "" if kind is None else f" ({kind})"


def _kind_elsewhere(case: Case, node: Node, kind: str) -> str | None:
    """The kind of address that makes `kind` right for a node: that by which it was reached, and so on."""
    if node.broker is not None:
        return kind_of(node.broker.peer_host or host_of(node.broker.address))
    if kind != LOOPBACK:
        return None
    group = [other for other in case.nodes if (other.cluster, other.name) == (node.cluster, node.name)]
    hosts = [host for other in group if other is not node for host in other.hosts]
    if (dialled := node.setting("haMasterAddress")) is not None:
        hosts.append(host_of(dialled))
    return LOOPBACK if all(kind_of(host) == LOOPBACK for host in hosts) else None


def _reached_host(broker: BrokerFacts) -> str:
    return broker.peer_host or host_of(broker.address)


def _has_slaves(node: Node) -> bool:
    status = node.status
    return status is not None and any(not connection.is_probe for connection in status.connections)


def _is_behind(case: Case, master: Node) -> bool:
    """Whether a slave of `master` lacks bytes of its log."""
    end = master.max_offset or 0
    return any(slave.max_offset is not None and slave.max_offset < end for slave in case.slaves_of(master))


def _hosts_of_group(case: Case, node: Node) -> set[str]:
    """Hosts of the brokers of a node's group, and of the slaves that are connected to it."""
    hosts = {
        host
        for other in case.nodes
        if (other.cluster, other.name) == (node.cluster, node.name)
        for host in other.hosts
    }
    if node.status is not None:
        hosts |= {
            host_of(connection.address) for connection in node.status.connections if not connection.is_probe
        }
    return hosts

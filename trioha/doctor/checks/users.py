"""Users and access control: what the nodes of a group must agree on, and ports that no user protects.

See docs/auth.md, docs/protocol/acl2.md#slaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trioha.doctor.case import Case, Node, some_of
from trioha.doctor.findings import Observation, check
from trioha.doctor.user_digests import UserDigests
from trioha.severity import Severity

SWITCHES: Final = ("authenticationEnabled", "authorizationEnabled", "aclEnable")


@check(
    "access-control-differs",
    Severity.CRITICAL,
    mend="Give all nodes of a group the same switches, providers and inner account, and restart them.",
)
def access_control_differs(case: Case) -> Iterator[Observation]:
    """A slave does not check what its master checks.

    Once it is promoted, or serves reads, it admits everybody to whom the master says no. The other way round
    it is a warning: clients that the master admits are refused.
    """
    for pair in case.pairs:
        for switch in SWITCHES:
            master, slave = _is_on(pair.master, switch), _is_on(pair.slave, switch)
            if master is None or slave is None or master == slave:
                continue
            on, off = (pair.master, pair.slave) if master else (pair.slave, pair.master)
            yield Observation(
                subject=pair.label,
                evidence=f"{on.place(switch)}=true, and of {off.label} it is false",
                remedy=f"{switch}=true at {off.label}, with the same providers and users, then restart it",
                severity=None if master else Severity.WARNING,
            )


@check(
    "users-differ",
    Severity.WARNING,
    mend="RocketMQ's slaves copy no users: send changes to the whole cluster (`mqadmin -c`), or run `trioha "
    "auth push`. Of a trioha slave `trioha status` says why its copy fails.",
)
def users_differ(case: Case) -> Iterator[Observation]:
    """A slave has other users or access control lists than its master.

    A slave that is promoted checks by its own. They are compared where `--credentials` of a Super user are
    given; passwords are compared, and not kept or shown.
    """
    for pair in case.pairs:
        master, slave = _users(pair.master), _users(pair.slave)
        if master is None or slave is None:
            continue
        if names := master.differing(slave):
            yield Observation(
                subject=pair.label,
                evidence=f"not the same at both: {some_of(names)}",
                remedy="mend the slave's copy (`trioha status`)"
                if pair.slave.is_trioha
                else f"trioha auth push {pair.slave.label} --from STORE, or mqadmin copyUser and copyAcl",
            )


@check(
    "ha-port-open",
    Severity.NOTICE,
    mend="Set `trioha.haAllowedPeers`, or `trioha.haTlsCert`, `haTlsKey` and `haTlsCa` at all nodes.",
)
def ha_port_open(case: Case) -> Iterator[Observation]:
    """Users are checked, but whoever reaches the HA port may copy the whole log.

    The HA protocol has no users. trioha admits peers by their addresses or certificates; in front of a
    RocketMQ broker only the network does.
    """
    for node in case.nodes:
        if not node.is_trioha or not any(_is_on(node, switch) for switch in SWITCHES):
            continue
        if node.setting("trioha.haAllowedPeers") or node.setting("trioha.haTlsCert"):
            continue
        yield Observation(
            subject=node.label,
            evidence="neither trioha.haAllowedPeers nor trioha.haTlsCert is set, and requests of clients are "
            "checked",
            remedy="trioha.haAllowedPeers=ADDRESSES of the group's nodes",
        )


def _is_on(node: Node, switch: str) -> bool | None:
    """Whether a switch is on; None where it is not known: real brokers do not report those of users."""
    if node.setting(switch) is not None:
        return node.is_true(switch)
    return False if node.is_trioha or node.conf is not None else None


def _users(node: Node) -> UserDigests | None:
    return None if node.broker is None else node.broker.tables.users

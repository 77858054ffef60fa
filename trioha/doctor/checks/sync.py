"""What a put of a SYNC_MASTER waits for, and whose acknowledgements count.

See docs/protocol/ha.md#group-commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from trioha.doctor.case import SYNC_MASTER, Case
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity


@check(
    "sync-master-waits-for-nobody",
    Severity.CRITICAL,
    mend="Set `inSyncReplicas=2` (copies, the master's included) in the master's broker.conf and restart it.",
)
def sync_master_waits_for_nobody(case: Case) -> Iterator[Observation]:
    """A SYNC_MASTER of RocketMQ 5 confirms messages that no slave has.

    In 5.x inSyncReplicas decides how many copies a put waits for, the master's own included. The default is
    1: brokerRole=SYNC_MASTER alone waits for no slave, where 4.9 waits for one. trioha always waits for
    one. Of a file whose version is not known it is a warning.
    """
    for node in case.nodes:
        if node.role != SYNC_MASTER or node.is_trioha or node.version.is_4:
            continue
        if node.uses_controller and node.is_true("allAckInSyncStateSet"):
            continue
        if node.running_config or node.broker is None:
            copies = node.number("inSyncReplicas")
            if copies is not None and copies > 1:
                continue
            known = node.version.is_5
            given = "is not set: 1 by default" if copies is None else f"is {copies}"
            yield Observation(
                subject=node.label,
                evidence=f"brokerRole is SYNC_MASTER and inSyncReplicas {given}"
                + ("" if known else "; 5.x would wait for no slave, 4.9 waits for one"),
                remedy="inSyncReplicas=2 in its broker.conf, then restart it",
                severity=None if known else Severity.WARNING,
            )


@check(
    "too-few-slaves-in-sync",
    Severity.CRITICAL,
    mend="Bring the slaves back. `trioha status` shows what is wrong with each of them.",
)
def too_few_slaves_in_sync(case: Case) -> Iterator[Observation]:
    """A SYNC_MASTER has fewer slaves in sync than a put waits for.

    Puts end with SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT: the messages are stored, and producers that do
    not look at the send status take them for replicated. A broker of 4.9 does not report its slaves.
    """
    for node in case.running:
        needed, status = node.slave_acks_needed, node.status
        if not needed or status is None or status.in_sync_slaves is None:
            continue
        if status.source == "runtime-info" or status.in_sync_slaves >= needed:
            continue
        if node.is_true("enableAutoInSyncReplicas") and (node.number("minInSyncReplicas") or 1) <= 1:
            # sync-degrades-silently reports it.
            continue
        yield Observation(
            subject=node.label,
            evidence=f"puts wait for {needed}, in sync: {status.in_sync_slaves}",
            remedy="start the missing slaves; to accept messages without them: enableAutoInSyncReplicas=true",
        )


@check(
    "sync-degrades-silently",
    Severity.WARNING,
    mend="Set `minInSyncReplicas=2`: without a slave in sync, puts are refused then.",
)
def sync_degrades_silently(case: Case) -> Iterator[Observation]:
    """A SYNC_MASTER waits for nobody as soon as no slave is in sync.

    enableAutoInSyncReplicas lowers the number of copies to those that are in sync, down to
    minInSyncReplicas, which is 1. A producer gets SEND_OK for messages that only the master has, just when
    a slave is missing. 4.9 does not have the setting.
    """
    for node in case.nodes:
        if node.role != SYNC_MASTER or node.version.is_4 or not node.is_true("enableAutoInSyncReplicas"):
            continue
        least = node.number("minInSyncReplicas") or 1
        if least <= 1:
            yield Observation(
                subject=node.label,
                evidence=f"enableAutoInSyncReplicas is true and minInSyncReplicas is {least}",
                remedy="minInSyncReplicas=2 in its broker.conf, then restart it",
            )


@check(
    "forged-ack",
    Severity.CRITICAL,
    mend="Close the HA port to that peer, then restart the master: 4.9 believes a forged offset until then.",
)
def forged_ack(case: Case) -> Iterator[Observation]:
    """A peer has acknowledged bytes that the master does not have.

    RocketMQ believes each report at its HA port: puts of a SYNC_MASTER are confirmed though no slave has
    them. A peer that forges reports does this, and so does a slave with the log of another master. 5.x
    reports the offsets, 4.9 does not: there only a slave that is beyond the end can be seen. trioha closes
    such a connection and counts it; the finding is a warning then.
    """
    for node in case.running:
        status = node.status
        if status is None or not node.is_master:
            continue
        for connection in status.connections:
            if connection.ack_offset > status.max_offset and connection.lag_bytes < 0:
                beyond = connection.ack_offset - status.max_offset
                yield Observation(
                    subject=node.label,
                    evidence=f"{connection.address} acknowledged {connection.ack_offset}, {beyond} bytes "
                    f"beyond the end of the log at {status.max_offset}",
                    remedy=f"close port {node.ha_port} to {connection.address}, then restart the master",
                )
        refused = status.ended_connections.get("ACK_BEYOND_SENT", 0)
        if refused:
            yield Observation(
                subject=node.label,
                evidence=f"connections that ended with ACK_BEYOND_SENT since the start: {refused}; their "
                "peers acknowledged more than was sent to them",
                remedy="trioha.haAllowedPeers with the addresses of the slaves; the log names the peers",
                severity=Severity.WARNING,
            )


@check(
    "unlisted-replica",
    Severity.WARNING,
    mend="Find the peer by its address; a tap should be an observer (`trioha.haRole=observer`) or go.",
)
def unlisted_replica(case: Case) -> Iterator[Observation]:
    """A master has more connected slaves than name servers list.

    Each connection at the HA port counts as a copy, also that of a tool that only reads: its reports
    release the producers of a SYNC_MASTER. Checked where a name server lists the group.
    """
    for node in case.running:
        status = node.status
        group = next(
            (one for one in case.groups if (one.cluster, one.name) == (node.cluster, node.name)), None
        )
        if status is None or not node.is_master or group is None or not group.listed:
            continue
        replicas = [connection.address for connection in status.connections if not connection.is_probe]
        slaves = {entry.broker_id for entry in group.listed} | {one.broker_id for one in group.slaves}
        slaves -= {0, None}
        if len(replicas) > len(slaves):
            yield Observation(
                subject=node.label,
                evidence=f"connected: {', '.join(replicas)}; slaves of {group.label} that are known: "
                f"{len(slaves)}",
                remedy=f"close port {node.ha_port} to all but the slaves' hosts",
            )

"""RocketMQ 5's controller mode: controllers, ids, roles, sync-state sets and epochs.

See docs/protocol/ha.md#controller-mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from trioha.controller.bodies import Replica, ReplicaSetInfo
from trioha.doctor.case import Case, Node, same_address, some_of
from trioha.doctor.findings import Observation, check
from trioha.severity import Severity


@check(
    "controller-unreachable",
    Severity.WARNING,
    mend="Start the controller, open its port to the brokers, or correct `controllerAddr`.",
)
def controller_unreachable(case: Case) -> Iterator[Observation]:
    """A controller that brokers name does not answer.

    The others go on as long as most of them are alive. If none answers it is critical: brokers keep their
    roles, no other broker becomes master when the present one dies, and no sync-state set changes.
    """
    none_answers = all(one.error is not None for one in case.controllers)
    for controller in case.controllers:
        if controller.error is not None:
            named_by = [node.label for node in case.controlled if controller.address in node.controllers]
            yield Observation(
                subject=controller.address,
                evidence=f"{controller.error}; named by {some_of(named_by) or 'another controller'}"
                + ("; no controller answers" if none_answers else ""),
                remedy=f"start the controller at {controller.address}, or correct controllerAddr",
                severity=Severity.CRITICAL if none_answers else None,
            )


@check(
    "controllers-without-leader",
    Severity.CRITICAL,
    mend="Start the missing controllers: more than half of them must be alive to elect a leader.",
)
def controllers_without_leader(case: Case) -> Iterator[Observation]:
    """Controllers answer, and none of them leads.

    They elect one by majority. Until then brokers keep their roles, nobody becomes master, and no
    sync-state set changes. An election takes seconds.
    """
    answering = [one for one in case.controllers if one.error is None]
    if answering and not any(one.is_leader for one in answering):
        said = ", ".join(
            f"{one.address}{f' (names {one.leader})' if one.leader else ''}" for one in answering
        )
        silent = [one.address for one in case.controllers if one.error is not None]
        yield Observation(
            subject="controllers",
            evidence=f"answer without leading: {said}"
            + (f"; no answer: {some_of(silent)}" if silent else ""),
            remedy="start the controllers that do not answer; their logs say why they elect none",
        )


@check(
    "controllers-differ",
    Severity.WARNING,
    mend="Give all brokers of a group the same `controllerAddr`, with all controllers.",
)
def controllers_differ(case: Case) -> Iterator[Observation]:
    """Brokers of one group name different controllers.

    A broker that does not name a controller sends it no heartbeats: if that one becomes the leader, the
    broker is taken for dead, and leaves the sync-state set.
    """
    for group in case.groups:
        named = {node.label: set(node.controllers) for node in group.nodes if node.controllers}
        every = set().union(*named.values()) if named else set()
        lacking = {label: sorted(every - own) for label, own in named.items() if own != every}
        if lacking:
            label, missing = next(iter(lacking.items()))
            yield Observation(
                subject=group.label,
                evidence="; ".join(
                    f"{label} lacks {', '.join(addresses)}" for label, addresses in lacking.items()
                ),
                remedy=f"add {';'.join(missing)} to controllerAddr of {label}, then restart it",
            )


@check(
    "not-at-controllers",
    Severity.CRITICAL,
    mend="Look for what the controllers refused in the broker's log, or in `trioha status`.",
)
def not_at_controllers(case: Case) -> Iterator[Observation]:
    """A running broker in controller mode is not registered with the leading controller, or taken for dead.

    It gets no role, or keeps one that the controllers may give to another. Its name may be another one, its
    id that of another broker, or its heartbeats do not come through: they are sent each second, and 10 s
    without one (controllerHeartBeatTimeoutMills) are a dead broker.
    """
    leader = case.leader
    if leader is None:
        return
    for node in case.controlled:
        if node.status is None or node.name is None:
            continue
        control = node.status.control
        refusal = f"; they refused it: {control.refusal}" if control is not None and control.refusal else ""
        found = _replica(case, node)
        if found is None:
            info = case.controlled_group(node)
            known = "no group of that name" if info is None else f"ids {_ids(_replicas(info))}"
            own = "" if node.group_id is None else f", id {node.group_id}"
            yield Observation(
                subject=node.label,
                evidence=f"{leader.address} has {known}, not this broker of {node.name}{own}{refusal}",
                remedy=f"controllerAddr with {leader.address} and the right brokerName in its broker.conf, "
                "then restart it",
            )
        elif not found.is_alive:
            yield Observation(
                subject=node.label,
                evidence=f"{leader.address} takes id {found.broker_id} at {found.address} for dead{refusal}",
                remedy=f"open {leader.address} to the broker, and name it in its controllerAddr",
            )


@check(
    "group-without-master",
    Severity.CRITICAL,
    mend="Start a broker of the sync-state set. If all of them are lost, `mqadmin electMaster` makes another "
    "one master, and what only they had is lost.",
)
def group_without_master(case: Case) -> Iterator[Observation]:
    """The controllers have no master for a group.

    Only a living broker of the last sync-state set becomes master: any other one may lack messages that
    were confirmed. The group takes no messages until then.
    """
    leader = case.leader
    for name, info in sorted(({} if leader is None else leader.groups).items()):
        if info.master_id is None:
            dead = [replica for replica in info.in_sync if not replica.is_alive]
            yield Observation(
                subject=name,
                evidence=f"sync-state set {{{_ids(info.in_sync)}}}, of which do not live: "
                f"{_ids(tuple(dead)) or 'none'}; living brokers outside of it: "
                f"{_ids(tuple(one for one in info.not_in_sync if one.is_alive)) or 'none'}",
                remedy="start " + (" or ".join(one.address for one in dead) or "a broker of the group"),
            )


@check(
    "past-master",
    Severity.CRITICAL,
    mend="See that the broker reaches the leading controller: it becomes a slave then.",
)
def past_master(case: Case) -> Iterator[Observation]:
    """A broker serves as master, and the controllers have named another one.

    It has not heard of its successor. With allAckInSyncStateSet it confirms no message that its successor
    lacks; without, messages that it confirms now are lost.
    """
    for node in case.running:
        info = case.controlled_group(node) if node.uses_controller else None
        if info is None or info.master_id is None or not node.is_master:
            continue
        found = _replica(case, node)
        if found is None or found.broker_id == info.master_id:
            continue
        control = None if node.status is None else node.status.control
        own = "" if control is None or control.master_epoch is None else f" of epoch {control.master_epoch}"
        yield Observation(
            subject=node.label,
            evidence=f"it is master{own}; the controllers have broker {info.master_id} at "
            f"{info.master_address} as master of epoch {info.master_epoch}",
            remedy="open the controllers' ports to it, or stop it until they are reachable",
        )


@check(
    "outside-sync-state-set",
    Severity.WARNING,
    mend="Bring the replica to the end of its master's log: it comes in when it holds all of it.",
)
def outside_sync_state_set(case: Case) -> Iterator[Observation]:
    """A living broker is not in the sync-state set of its group.

    It does not count as a copy and cannot become master. A replica that has just connected comes in when
    it holds everything before the confirm offset at one moment; one that is too slow leaves after
    haMaxTimeSlaveNotCatchup. A broker with asyncLearner stays outside, as configured.
    """
    for node in case.running:
        found = _replica(case, node)
        info = case.controlled_group(node)
        if found is None or info is None or not found.is_alive or node.is_true("asyncLearner"):
            continue
        if found not in info.in_sync:
            client = None if node.status is None else node.status.client
            verdict = "" if client is None or not client.verdict else f"; {client.verdict}"
            yield Observation(
                subject=node.label,
                evidence=f"id {found.broker_id} is not in {{{_ids(info.in_sync)}}} of epoch "
                f"{info.master_epoch}{verdict}",
                remedy="trioha status shows its lag and connection; its disk and network must keep up",
            )


@check(
    "in-sync-minimum-not-reached",
    Severity.CRITICAL,
    mend="Bring replicas back into the set, add brokers to the group, or lower `minInSyncReplicas`.",
)
def in_sync_minimum_not_reached(case: Case) -> Iterator[Observation]:
    """The sync-state set of a master is smaller than its minInSyncReplicas.

    It refuses messages with IN_SYNC_REPLICAS_NOT_ENOUGH. If the group has fewer brokers than that, it never
    takes any. If it has just as many it is a warning: no broker may be missing.
    """
    for node in case.running:
        info = case.controlled_group(node) if node.uses_controller else None
        least = node.number("minInSyncReplicas")
        if info is None or least is None or least <= 1 or not node.is_master:
            continue
        members, size = len(info.in_sync), len(_replicas(info))
        if members < least:
            why = f"the group has only {size}" if size < least else f"the set is {{{_ids(info.in_sync)}}}"
            yield Observation(
                subject=node.label,
                evidence=f"minInSyncReplicas is {least}, in sync: {members}; {why}",
                remedy=f"start the missing replicas, or minInSyncReplicas={max(1, members)} in its file",
            )
        elif size == least:
            yield Observation(
                subject=node.label,
                evidence=f"minInSyncReplicas is {least}, and the group has {size} brokers: without one of "
                "them messages are refused",
                remedy=f"a further broker in the group, or minInSyncReplicas={least - 1}",
                severity=Severity.WARNING,
            )


@check(
    "identity-differs",
    Severity.CRITICAL,
    mend="Give the store the names that it was made with, or the broker the store that is its own.",
)
def identity_differs(case: Case) -> Iterator[Observation]:
    """The brokerIdentity of a store contradicts its broker.conf, or the running broker.

    The file has cluster, broker name and id for which the controllers know this log. A store that was
    copied from another broker has that one's id: then two brokers answer for one id. Read where the store
    is on this host.
    """
    for node, conf in case.with_files:
        identity = conf.identity
        if identity is None or not node.uses_controller:
            continue
        if identity.error is not None:
            yield Observation(
                subject=identity.path,
                evidence=identity.error,
                remedy="restore the file: the controllers have the group's ids (mqadmin getSyncStateSet)",
            )
            continue
        alone = Node(None, conf, node.version)
        names = (identity.cluster_name, identity.broker_name)
        if names != (alone.cluster, alone.name or identity.broker_name):
            yield Observation(
                subject=conf.path,
                evidence=f"{identity.path} is of {identity.cluster_name}/{identity.broker_name}, the file "
                f"says {alone.cluster}/{alone.name}",
                remedy=f"brokerClusterName={identity.cluster_name} and brokerName={identity.broker_name}, or "
                "another store",
            )
            continue
        control = None if node.status is None else node.status.control
        if control is not None and control.broker_id not in {None, identity.broker_id}:
            yield Observation(
                subject=node.label,
                evidence=f"it runs as broker {control.broker_id}, {identity.path} has {identity.broker_id}",
                remedy="restart it: it takes the id of its store",
            )
    for path, nodes in _shared_ids(case).items():
        yield Observation(
            subject=path,
            evidence=f"{' and '.join(node.label for node in nodes)} have one id",
            remedy=f"a new store for {nodes[-1].label}: it gets an id of its own and copies the master's log",
        )


@check(
    "epochs-do-not-fit",
    Severity.CRITICAL,
    mend="Keep the store aside, and let the broker begin with an empty one as a slave of its group.",
)
def epochs_do_not_fit(case: Case) -> Iterator[Observation]:
    """The epochs of a log contradict the log, those of its group, or the controllers.

    Epochs say which master wrote which bytes; a slave is cut to where its epochs and its master's agree.
    Wrong epochs let bytes of two masters pass for one's. An epoch later than that of the controllers means
    that they lost their state: brokers take no role from them.
    """
    for _, conf in case.with_files:
        file = conf.epoch_file
        if file is None:
            continue
        if file.error is not None:
            yield Observation(
                subject=file.path,
                evidence=file.error,
                remedy=f"{file.path}.bak has the state before; a node reads it by itself",
            )
        elif file.log_end_max is not None and file.last_start_offset > file.log_end_max:
            yield Observation(
                subject=file.path,
                evidence=f"epoch {file.last_epoch} begins at {file.last_start_offset}, the log's files end "
                f"at {file.log_end_max}",
                remedy="a store without this log, as a slave of its group",
            )
    for node in case.controlled:
        cache = None if node.broker is None else node.broker.epochs
        if cache is None or not cache.epochs:
            continue
        last = cache.epochs[-1]
        if last.start_offset > cache.max_offset:
            yield Observation(
                subject=node.label,
                evidence=f"epoch {last.epoch} begins at {last.start_offset}, the log ends at "
                f"{cache.max_offset}",
                remedy="stop it, and let it begin with an empty store as a slave of its group",
            )
        info = case.controlled_group(node)
        if info is not None and info.master_id is not None and last.epoch > info.master_epoch:
            yield Observation(
                subject=node.label,
                evidence=f"its log has epoch {last.epoch}, the controllers are at epoch {info.master_epoch}",
                remedy="restore the state of the controllers; brokers with later epochs take no role of them",
            )
    for group in case.groups:
        yield from _parted(group.label, [node for node in group.nodes if node.uses_controller])


def _parted(label: str, nodes: list[Node]) -> Iterator[Observation]:
    """Epochs that begin at different offsets in the logs of one group."""
    starts: dict[int, tuple[int, Node]] = {}
    for node in nodes:
        cache = None if node.broker is None else node.broker.epochs
        for epoch in () if cache is None else cache.epochs:
            start, other = starts.setdefault(epoch.epoch, (epoch.start_offset, node))
            if start != epoch.start_offset:
                yield Observation(
                    subject=label,
                    evidence=f"epoch {epoch.epoch} begins at {start} in the log of {other.label}, at "
                    f"{epoch.start_offset} in that of {node.label}",
                    remedy="trioha verify STORE --against STORE2 shows which bytes differ; keep the slave's "
                    "store aside and let it begin anew",
                )
                break


def _shared_ids(case: Case) -> dict[str, list[Node]]:
    """Nodes of one group with one id, by `cluster/name id`."""
    found: dict[str, list[Node]] = {}
    for group in case.groups:
        for node in group.nodes:
            if node.uses_controller and node.group_id is not None:
                found.setdefault(f"{group.label} id {node.group_id}", []).append(node)
    return {label: nodes for label, nodes in found.items() if len(nodes) > 1}


def _replicas(info: ReplicaSetInfo) -> tuple[Replica, ...]:
    return (*info.in_sync, *info.not_in_sync)


def _replica(case: Case, node: Node) -> Replica | None:
    """The entry of a running broker at the leading controller."""
    info = case.controlled_group(node)
    if info is None or not node.uses_controller or node.broker is None:
        return None
    replicas = _replicas(info)
    at_address = [one for one in replicas if same_address(one.address, node.broker.address)]
    if at_address:
        return at_address[0]
    return next((one for one in replicas if node.group_id is not None and node.is_replica(one)), None)


def _ids(replicas: tuple[Replica, ...]) -> str:
    return ", ".join(str(replica.broker_id) for replica in sorted(replicas, key=lambda one: one.broker_id))

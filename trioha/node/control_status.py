"""What a node of controller mode reports of its role, its group and its controllers."""

from __future__ import annotations

from typing import Final

import trio

from trioha.broker_status import ControllerLinkStatus, ControlStatus
from trioha.config.broker import BrokerConfig
from trioha.ha.replicas import ConnectedReplicas
from trioha.ha.set_commit import SetReplicas
from trioha.node.controller_agent import offsets_of
from trioha.node.roles import Control
from trioha.store.message_store import MessageStore

REASON_CHARS_MAX: Final = 200
"""Of the texts that controllers and their connections give."""


def control_status(
    config: BrokerConfig, store: MessageStore, control: Control, replicas: ConnectedReplicas
) -> ControlStatus:
    """The status of the term that has `control`, as of now; `replicas` are those of its master's side.

    Role, master and epoch are those of the term: while it ends for another role, the agent is ahead of it.
    The set, and the master's address, are those that the controllers decided last for that epoch.
    """
    agent = control.agent.status()
    role = agent.role
    if control.role is not None and (role is None or role.epoch != control.role.epoch):
        role = control.role
    offsets = offsets_of(store)
    is_master = control.role is not None and control.role.is_master
    heard_s = agent.leader_heard_s
    return ControlStatus(
        role="none" if control.role is None else "master" if is_master else "slave",
        step=agent.state.value,
        broker_id=agent.broker_id,
        master_epoch=None if role is None else role.epoch,
        master_id=None if role is None else role.master_id,
        master_address=None if role is None else role.master_address,
        log_epoch=offsets.epoch if offsets.epoch >= 0 else None,
        sync_state_set=() if role is None else tuple(sorted(role.sync_state_set)),
        sync_state_set_epoch=None if role is None else role.sync_state_set_epoch,
        in_sync_min=config.min_in_sync_replicas,
        members=(
            replicas.members(offsets.max_offset) if is_master and isinstance(replicas, SetReplicas) else ()
        ),
        confirm_offset=offsets.confirm_offset,
        leader=agent.leader,
        leader_heard_ms=None if heard_s is None else round((trio.current_time() - heard_s) * 1000),
        controllers=tuple(
            ControllerLinkStatus(
                address=link.address,
                is_connected=link.is_connected,
                is_leader=link.is_leader,
                reason=(link.reason or "")[:REASON_CHARS_MAX],
            )
            for link in agent.controllers
        ),
        refusal=(agent.refusal or "")[:REASON_CHARS_MAX],
        role_changes=agent.roles,
        role_changed_ms=agent.role_since_ms,
    )

"""Metrics of a node in controller mode; without samples on any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from trioha.broker_status import ControlStatus
from trioha.metrics.families import add_ms, counter, gauge, value_of

ROLES: Final = ("master", "slave", "none")


def control_families(control: ControlStatus | None, *, age_s: float) -> Iterator[Metric]:
    """All families; `age_s` is how old the node's role is, for times since what never was."""
    roles = gauge("control_role", "1 for the role of the node, 0 for the other ones.", "role")
    own = gauge("control_broker_id", "The id that the controllers gave the node.")
    master = gauge("control_master_id", "Id of the master that they named last.")
    epoch = gauge("control_master_epoch", "Epoch of that master.")
    log_epoch = gauge("control_log_epoch", "Last epoch of the log.")
    size = gauge("control_sync_state_set_size", "Brokers in the sync-state set.")
    set_epoch = gauge("control_sync_state_set_epoch", "Grows with each change of that set.")
    least = gauge(
        "control_sync_state_set_min", "With a smaller set a master refuses messages: minInSyncReplicas."
    )
    confirm = gauge("control_confirm_offset_bytes", "The whole sync-state set has everything before it.")
    changes = counter("control_roles_total", "Roles that the controllers gave.")
    changed = gauge("control_role_timestamp_seconds", "When they gave the last one, since 1970.")
    leader = gauge("control_leader_known", "Whether a leading controller is known.")
    silence = gauge("control_leader_silence_seconds", "Since a leading controller last answered.")
    refused = gauge("control_refused", "Whether the controllers refused the last request for a role.")
    links = gauge("control_controller_connected", "Whether there is a connection.", "controller")
    in_set = gauge("control_member_in_set", "Whether the replica is in the sync-state set.", "broker_id")
    acked = gauge(
        "control_member_ack_offset_bytes", "The replica has acknowledged everything before it.", "broker_id"
    )
    if control is not None:
        for role in ROLES:
            roles.add_metric((role,), role == control.role)
        value_of(own, control.broker_id)
        value_of(master, control.master_id)
        value_of(epoch, control.master_epoch)
        value_of(log_epoch, control.log_epoch)
        if control.sync_state_set_epoch is not None:
            value_of(size, len(control.sync_state_set))
            value_of(set_epoch, control.sync_state_set_epoch)
        value_of(least, control.in_sync_min)
        value_of(confirm, control.confirm_offset)
        value_of(changes, control.role_changes)
        add_ms(changed, (), control.role_changed_ms)
        value_of(leader, control.leader is not None)
        # Never: as old as the role, so that it grows and is seen.
        value_of(silence, age_s if control.leader_heard_ms is None else control.leader_heard_ms / 1000)
        value_of(refused, bool(control.refusal))
        for link in control.controllers:
            links.add_metric((link.address,), link.is_connected)
        for member in control.members:
            labels = (str(member.broker_id),)
            in_set.add_metric(labels, member.in_set)
            if member.ack_offset is not None:
                acked.add_metric(labels, member.ack_offset)
    yield from (roles, own, master, epoch, log_epoch, size, set_epoch, least, confirm, changes, changed)
    yield from (leader, silence, refused, links, in_set, acked)

"""Roles in a monitor's recording: which answers of a node are of one session, and the records of its role.

Theory of operation. As in a node's own recording each role has a session of its own, which begins with its
ROLE. `SampledRole` is what an answer says of the role, `is_same_session` compares it with the session's.
`RoleRecorder` makes the records of one session: each figure of controller mode when it has changed.

What a monitor does not see has the value of its kind for "not known": where an epoch begins, and of a cut all
but the bytes that the log is shorter by.
"""

from __future__ import annotations

from typing import Final

from attrs import define, evolve, field, frozen

from trioha.broker_status import ControlStatus
from trioha.recording.events import EventSink, GroupRole, Kind, SetEvent
from trioha.recording.role_records import NO_ID, record_epoch, record_leader, record_role, record_set
from trioha_monitor.view import NodeView

NOT_KNOWN: Final = -1
_ROLES: Final = {"master": GroupRole.MASTER, "slave": GroupRole.SLAVE}


@frozen(kw_only=True)
class SampledRole:
    """The role of a node, as its answer has it."""

    is_slave: bool
    broker_name: str
    broker_id: int | None
    """In controller mode the id from the controllers; None while it is not known."""
    group_role: GroupRole | None = None
    """None outside of controller mode."""
    epoch: int | None = None
    """Of its master; None while it is not known, and without a role."""

    @classmethod
    def of(cls, node: NodeView, before: SampledRole | None) -> SampledRole | None:
        """That of `node`, whose session has the role `before`; None while its answers contradict each other.

        Controllers are asked for the group of a RocketMQ broker: their answer may be of its role before, or
        name another broker as the master while it still serves as one.
        """
        is_slave, control = node.slave is not None, node.control
        plain = cls(is_slave=is_slave, broker_name=node.broker_name, broker_id=node.broker_id)
        if control is None:
            # What has been asked beside the status may be missing in an answer.
            is_known = before is not None and before.group_role is not None
            return before if is_known and before is not None and before.is_slave is is_slave else plain
        role = _ROLES.get(control.role, GroupRole.NONE)
        if role is not GroupRole.NONE and (role is GroupRole.SLAVE) is not is_slave:
            return None
        known_id = None if before is None or before.group_role is None else before.broker_id
        if names_another_master(control, known_id):
            return before
        return evolve(
            plain,
            broker_id=control.broker_id or known_id,
            group_role=role,
            epoch=None if role is GroupRole.NONE else control.master_epoch,
        )


def names_another_master(control: ControlStatus, broker_id: int | None) -> bool:
    """Whether controllers name another master than the RocketMQ broker `broker_id`, which serves as one."""
    # Only trioha nodes report a step. Of a RocketMQ master the id is that of the controllers' master.
    is_asked = control.role == "master" and not control.step
    return is_asked and None not in {broker_id, control.broker_id} and broker_id != control.broker_id


def is_same_session(before: SampledRole, now: SampledRole) -> bool:
    """Whether a node whose session has the role `before` goes on in it with the role `now`."""
    if (before.group_role, before.is_slave, before.broker_name) != (
        now.group_role,
        now.is_slave,
        now.broker_name,
    ):
        return False
    if now.group_role is None:
        return before.broker_id == now.broker_id
    return before.broker_id in {None, now.broker_id} and now.epoch in {None, before.epoch}


@define(eq=False)
class RoleRecorder:
    """Makes the records of controller mode of one session."""

    _sink: EventSink
    _role: GroupRole
    _broker_id: int = NO_ID
    _set: tuple[int | None, tuple[int, ...]] = (None, ())
    """Epoch and members of the set that was recorded last."""
    _proposed: frozenset[int] = frozenset()
    """Members of the set that the master had asked for then; empty for none."""
    _leader: str | None = None
    _confirm_offset: int | None = None
    _log_epoch: int | None = None
    _is_leader_recorded: bool = field(default=False, init=False)

    def begin(self, role: SampledRole, former: GroupRole, control: ControlStatus, *, max_offset: int) -> None:
        """Record the role with which the session begins."""
        self._broker_id = NO_ID if role.broker_id is None else role.broker_id
        has_role = self._role is not GroupRole.NONE
        record_role(
            self._sink,
            role=self._role,
            former=former,
            epoch=NOT_KNOWN if role.epoch is None else role.epoch,
            broker_id=self._broker_id,
            master_id=control.master_id if has_role and control.master_id is not None else NO_ID,
            master_address=control.master_address if has_role else None,
            max_offset=max_offset,
        )

    def note(self, control: ControlStatus, *, max_offset: int) -> None:
        """Record what has changed; `max_offset` is the end of the node's log."""
        if control.log_epoch is not None and control.log_epoch != self._log_epoch:
            self._log_epoch = control.log_epoch
            record_epoch(
                self._sink,
                control.log_epoch,
                offset=NOT_KNOWN,
                role=self._role,
                broker_id=self._broker_id,
            )
        # The other brokers of a group know its set later.
        if self._role is GroupRole.MASTER and control.sync_state_set_epoch is not None:
            self._note_set(control, control.sync_state_set_epoch)
        if not self._is_leader_recorded or control.leader != self._leader:
            self._leader, self._is_leader_recorded = control.leader, True
            record_leader(self._sink, control.leader)
        offset = control.confirm_offset
        if self._role is not GroupRole.NONE and offset is not None and offset != self._confirm_offset:
            self._confirm_offset = offset
            self._sink.emit(Kind.CONFIRMED, offset=offset, aux=max_offset)

    def _note_set(self, control: ControlStatus, set_epoch: int) -> None:
        members = frozenset(control.sync_state_set)
        required = members | {member.broker_id for member in control.members if member.is_required}
        proposed = required if required != members else frozenset()
        earlier = self._proposed
        if self._set != (set_epoch, control.sync_state_set):
            self._set = set_epoch, control.sync_state_set
            self._record_set(SetEvent.CHANGED, members, control)
            earlier = frozenset()
        elif earlier - proposed:
            self._record_set(SetEvent.REFUSED, earlier, control)
            earlier = frozenset()
        if proposed != earlier:
            self._record_set(SetEvent.PROPOSED, proposed, control)
        self._proposed = proposed

    def _record_set(self, event: SetEvent, members: frozenset[int], control: ControlStatus) -> None:
        assert control.sync_state_set_epoch is not None, "the set is known"
        record_set(
            self._sink,
            event,
            members=members,
            set_epoch=control.sync_state_set_epoch,
            confirm_offset=NOT_KNOWN if control.confirm_offset is None else control.confirm_offset,
        )

    def cut(self, *, offset: int, end_offset: int, epoch: int | None) -> None:
        """Record that the log ends at `offset` and ended at `end_offset` before, in `epoch`."""
        size = NOT_KNOWN if epoch is None else epoch
        self._sink.emit(Kind.LOG_CUT, offset=offset, aux=end_offset, size=size)

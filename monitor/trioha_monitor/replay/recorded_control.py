"""Role, group and controllers of a node at any moment of its sessions, and the events of their changes.

Theory of operation. What sessions record of controller mode (`trioha_sessions.role_lives`) is a sequence of
few records. `RecordedControl` is the state after some of them: `begun` makes it of the start of a session and
the end of the node's session before, `after` adds one record. States and events both follow from this one
state: `RecordedControls.at` gives it for a position of a session, `control_events` the events of one step,
made by the comparisons that the live view makes of a node's answers (`trioha_monitor.roles`).

A session has less than a node's answers: the set is known on its master only, of the controllers only the
address of the leader, and not when it last answered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from attrs import evolve, frozen

from trioha.broker_status import ControllerLinkStatus, ControlStatus, MemberStatus
from trioha.numbers import NATURAL64
from trioha.outside_text import REASON_MAX, clean
from trioha.recording.events import GroupRole, Kind, SetEvent
from trioha.severity import Severity
from trioha.unit_texts import format_bytes
from trioha_monitor.answers import MEMBERS_MAX
from trioha_monitor.replay.replay_timeline import NS_PER_MS, RecordedNode, SessionRun, continues
from trioha_monitor.roles import RoleHistory, compare_controllers, compare_roles, compare_sets, set_text
from trioha_monitor.view import EventKind, RoleSpan, TimelineEvent
from trioha_sessions.role_lives import RoleEvent, role_events
from trioha_sessions.state_arrays import Array

_ROLES: Final = {GroupRole.NONE: "none", GroupRole.MASTER: "master", GroupRole.SLAVE: "slave"}
_UNDECIDED: Final = {
    SetEvent.REFUSED: "was refused",
    SetEvent.UNDECIDED: "was not decided: it may be the controllers' set",
}
"""What became of a set that a master asked for, if it did not become its set."""
_CACHE_MAX: Final = 64
"""States that are cached."""


@frozen
class RecordedControl:
    """State of a node in controller mode after some records; `control` has no members."""

    control: ControlStatus
    proposed: frozenset[int] = frozenset()
    """Ids in sets that the master asked for, and that may be the controllers'."""
    has_had_leader: bool = False
    """Whether a leading controller was known in this start of the node."""


def begun(node: RecordedNode, run: SessionRun, earlier: RecordedControl | None) -> RecordedControl:
    """The state at the start of `run`; `earlier` is that at the end of the node's session before."""
    life = run.life
    assert life is not None, "only sessions of controller mode have a role"
    roles = node.roles_of_start(run)
    least = run.reader.session.identity.settings.get("minInSyncReplicas")
    goes_on = earlier is not None and len(roles) > 1
    control = ControlStatus(
        role=_ROLES[life.role],
        broker_id=run.broker_id,
        master_epoch=life.epoch if life.epoch >= 0 else None,
        master_id=life.broker_id if life.role is GroupRole.MASTER else life.master_id,
        master_address=None if life.master_address is None else clean(life.master_address),
        log_epoch=None if earlier is None else earlier.control.log_epoch,
        in_sync_min=least if type(least) is int else None,
        role_changes=sum(not each.is_waiting for each in roles),
        role_changed_ms=run.start_ns // NS_PER_MS,
    )
    if earlier is None or not goes_on:
        return RecordedControl(control)
    leader, links = earlier.control.leader, earlier.control.controllers
    return RecordedControl(
        evolve(control, leader=leader, controllers=links), has_had_leader=earlier.has_had_leader
    )


def after(state: RecordedControl, event: RoleEvent) -> RecordedControl:
    """The state after the record `event`."""
    control = state.control
    match event.kind:
        case Kind.EPOCH:
            return evolve(state, control=evolve(control, log_epoch=event.aux))
        case Kind.CONFIRMED:
            return evolve(state, control=evolve(control, confirm_offset=event.offset))
        case Kind.SYNC_STATE_SET:
            members = _members(event)
            if event.flags == SetEvent.PROPOSED:
                return evolve(state, proposed=state.proposed | frozenset(members or ()))
            if event.flags == SetEvent.REFUSED:
                return evolve(state, proposed=frozenset())
            if event.flags == SetEvent.CHANGED:
                # Without its fact only the number of members is known.
                changed = evolve(
                    control,
                    sync_state_set=members or (),
                    sync_state_set_epoch=None if members is None else event.aux,
                )
                return evolve(state, control=changed, proposed=frozenset())
        case Kind.CONTROLLER:
            leader = _leader(event)
            links = (
                ()
                if leader is None
                else (ControllerLinkStatus(address=leader, is_connected=True, is_leader=True),)
            )
            return evolve(
                state,
                control=evolve(control, leader=leader, controllers=links),
                has_had_leader=state.has_had_leader or leader is not None,
            )
    return state


def _members(event: RoleEvent) -> tuple[int, ...] | None:
    members = event.fact.get("members")
    if not isinstance(members, list):
        return None
    ids = [one for one in members if type(one) is int and NATURAL64.low <= one <= NATURAL64.high]
    return tuple(sorted(ids)[:MEMBERS_MAX])


def _leader(event: RoleEvent) -> str | None:
    """Address of the leading controller; None if the record says that none leads."""
    if not event.flags:
        return None
    address = event.fact.get("address")
    return clean(address, length_max=REASON_MAX) if isinstance(address, str) else "at an unknown address"


def control_events(
    before: RecordedControl | None, now: RecordedControl, event: RoleEvent, *, node: str, time_ms: int
) -> Iterator[TimelineEvent]:
    """The events of the record `event` of the node that is called `node`, which led from `before` to `now`.

    Of a ROLE `before` is the state at the end of the session before, None without one.
    """
    found: list[TimelineEvent] = []

    def add(kind: EventKind, text: str, severity: Severity) -> None:
        found.append(TimelineEvent(time_ms, kind, node, "", text, severity))

    earlier = None if before is None else before.control
    match event.kind:
        case Kind.ROLE:
            compare_roles(earlier, now.control, add)
        case Kind.SYNC_STATE_SET if event.flags == SetEvent.CHANGED:
            compare_sets(earlier, now.control, add)
        case Kind.SYNC_STATE_SET:
            for code, words in _UNDECIDED.items():
                if event.flags == code:
                    asked = _members(event)
                    name = f"of {event.size}" if asked is None else set_text(asked)
                    add(EventKind.SET, f"sync-state set {name} {words}", Severity.WARNING)
        case Kind.LOG_CUT:
            size = format_bytes(max(0, event.aux - event.offset))
            epoch = f"epoch {event.size}" if event.size >= 0 else "an unknown epoch"
            text = f"cut {size} of {epoch}: its log ends at {event.offset}"
            add(EventKind.CUT, text, Severity.WARNING)
        case Kind.CONTROLLER if before is not None and before.has_had_leader:
            # A node that starts has to find its controllers first.
            compare_controllers(earlier, now.control, add)
    yield from found


def events_of(run: SessionRun, records: Array) -> list[RoleEvent]:
    """Records of controller mode with their facts, in their order; of the confirm offsets only the last."""
    is_confirmed = records["kind"] == Kind.CONFIRMED
    is_wanted = ~is_confirmed
    is_wanted[np.flatnonzero(is_confirmed)[-1:]] = True
    return list(role_events(run.reader.session, [records[is_wanted]], run.reader.facts))


class RecordedControls:
    """The states of nodes at positions of their sessions. Used by one thread; may read the disk."""

    def __init__(self) -> None:
        self._cache: OrderedDict[tuple[int, int, bool], RecordedControl] = OrderedDict()
        self._ends: dict[int, tuple[int, RecordedControl]] = {}
        """End position of each session that another one of its node follows, and the state there, by run."""

    def at(self, node: RecordedNode, run: SessionRun, position: int) -> RecordedControl | None:
        """The state at `position` of `run`; None outside of controller mode, and while it is not known.

        It is known at once in the first segment of a session, in later ones when those before it were read.
        """
        earlier: RecordedControl | None = None
        for before in node.runs[: node.runs.index(run)]:
            end, known = self._ends.get(before.number, (-1, None))
            if end != before.reader.end_seq:
                known = self._state(node, before, before.reader.end_seq, earlier)
                if known is not None:
                    self._ends[before.number] = (before.reader.end_seq, known)
            earlier = known
        return self._state(node, run, position, earlier)

    def _state(
        self, node: RecordedNode, run: SessionRun, position: int, earlier: RecordedControl | None
    ) -> RecordedControl | None:
        records = None if run.life is None else run.reader.control_records(position)
        if records is None:
            return None
        # Facts are written before their records.
        key = (run.number, len(records), earlier is None)
        state = self._cache.get(key)
        if state is None:
            state = begun(node, run, earlier)
            for event in events_of(run, records):
                state = after(state, event)
            self._cache[key] = state
            while len(self._cache) > _CACHE_MAX:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return state


def with_members(
    state: RecordedControl, run: SessionRun, *, log_end: int | None, acks: Mapping[int, int | None]
) -> ControlStatus:
    """A master's control with its members; `acks` are the acknowledged offsets of its open connections, by
    their numbers."""
    control = state.control
    own_id = control.broker_id
    if control.role != "master" or own_id is None or control.sync_state_set_epoch is None:
        return control
    if any(conn not in run.broker_ids for conn in acks):
        # Older recordings do not have the ids: who is connected is not known.
        return control
    connected = {run.broker_ids[conn]: ack for conn, ack in acks.items()} | {own_id: log_end}
    in_set = set(control.sync_state_set)
    members = tuple(
        MemberStatus(
            broker_id=broker_id,
            in_set=broker_id in in_set,
            is_required=broker_id in in_set or broker_id in state.proposed,
            is_connected=broker_id in connected,
            ack_offset=connected.get(broker_id),
        )
        for broker_id in sorted(in_set | state.proposed | connected.keys())
    )
    return evolve(control, members=members)


def role_spans(node: RecordedNode, at_ns: int, *, ended_ns: int | None) -> tuple[RoleSpan, ...]:
    """The roles of a node up to a moment; it has not answered since `ended_ns`, None while it does."""
    history = RoleHistory()
    before: SessionRun | None = None
    for run in node.runs:
        if run.start_ns > at_ns:
            break
        if run.life is None:
            continue
        if before is not None and not continues(before, run):
            history.gone(at_ms=before.end_ns // NS_PER_MS)
        epoch = run.life.epoch if run.life.epoch >= 0 else None
        history.add(_ROLES[run.life.role], epoch, at_ms=run.start_ns // NS_PER_MS)
        before = run
    if ended_ns is not None:
        history.gone(at_ms=ended_ns // NS_PER_MS)
    return history.freeze()

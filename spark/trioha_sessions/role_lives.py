"""The role of a broker under controllers, as its session has it. Not for a node, which has no NumPy.

Theory of operation. A role is a life of a node, and each life has a session of its own: one ROLE at its
start, and the events of that role after it. `RoleEvents` are those of some records of a session, and what a
group of brokers must keep of them: the largest offset that was PUT_OK, and the largest confirm offset. They
add up, so a session can be cut anywhere. `role_life` makes the life of a whole session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from attrs import field, frozen

from trioha.recording.events import OLD_ROLE_SHIFT, GroupRole, Kind, PutStatus, SetEvent, code_name
from trioha.recording.reader import Session
from trioha_sessions.facts import Fact, read_facts
from trioha_sessions.invariants.event_batch import EventBatch, SessionSettings
from trioha_sessions.invariants.session_check import PART_RECORDS
from trioha_sessions.records import read_segment
from trioha_sessions.segments import read_segments
from trioha_sessions.state_arrays import Array, Ints

ROLE_KINDS: Final = (Kind.ROLE, Kind.EPOCH, Kind.SYNC_STATE_SET, Kind.LOG_CUT, Kind.CONTROLLER)
"""Rare records of controller mode."""
ROLE_EVENTS_MAX: Final = 10_000
"""Records of these kinds that are kept of a session: the first ones."""
_FACT_KINDS: Final = {
    "role": Kind.ROLE,
    "sync_state_set": Kind.SYNC_STATE_SET,
    "controller": Kind.CONTROLLER,
}
"""Kind of the record that a fact belongs to, by the fact's type."""


@frozen(eq=False)
class RoleEvents:
    """What some records of a session say of its role."""

    events: tuple[Array, ...] = ()
    """Records of `ROLE_KINDS`, at most `ROLE_EVENTS_MAX`."""
    put_ok: tuple[Array, ...] = ()
    """The WAIT_END with PUT_OK of the largest offset, if there is one, of puts that wait for the set."""
    confirmed: tuple[Array, ...] = ()
    """The CONFIRMED with the largest offset, if there is one."""

    @classmethod
    def of(cls, batch: EventBatch) -> RoleEvents:
        """Those of a part of a session; nothing of a node without controllers."""
        if not batch.settings.has_roles:
            return cls()
        columns = batch.columns
        kinds = columns["kind"]
        is_put_ok = np.zeros(len(kinds), np.bool_)
        if batch.settings.waits_for_set:
            is_put_ok = (kinds == Kind.WAIT_END) & (columns["flags"] == PutStatus.PUT_OK)
        events = batch.records[np.isin(kinds, ROLE_KINDS)][:ROLE_EVENTS_MAX]
        return cls(
            (events.copy(),) if len(events) else (),
            _largest(batch.records, np.flatnonzero(is_put_ok)),
            _largest(batch.records, np.flatnonzero(kinds == Kind.CONFIRMED)),
        )

    def __add__(self, later: RoleEvents) -> RoleEvents:
        events: list[Array] = []
        room = ROLE_EVENTS_MAX
        for some in (*self.events, *later.events):
            events.append(some[:room])
            room -= len(events[-1])
        return RoleEvents(
            tuple(events),
            _larger(self.put_ok, later.put_ok),
            _larger(self.confirmed, later.confirmed),
        )


def _largest(records: Array, places: Ints) -> tuple[Array, ...]:
    if not len(places):
        return ()
    place = places[np.argmax(records["offset"][places])]
    return (records[place : place + 1].copy(),)


def _larger(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
    if not earlier or not later:
        return earlier or later
    return later if later[0]["offset"][0] > earlier[0]["offset"][0] else earlier


@frozen
class RoleEvent:
    """A record of `ROLE_KINDS`, CONFIRMED or WAIT_END, with what its fact says."""

    seq: int
    at_ns: int
    """Wall clock of the node that recorded it."""
    kind: Kind
    flags: int
    offset: int
    aux: int
    size: int
    fact: Mapping[str, Any] = field(factory=dict)
    """Fields of the fact before it; empty without one."""


@frozen
class RoleLife:
    """One role of a broker, from its start to its end."""

    session: str
    """Name of the session's folder."""
    cluster_name: str
    broker_name: str
    broker_id: int
    """From the controllers; -1 for none yet."""
    role: GroupRole
    former: GroupRole
    """Of the same start of the node, before this one."""
    epoch: int
    """Of the master; -1 without a role."""
    master_id: int | None
    """Id of the master from the controllers; None if it is not known."""
    master_address: str | None
    log_end_offset: int
    """Of the own log when the role began."""
    waits_for_set: bool
    """Whether PUT_OK means that all of the sync-state set hold the put."""
    began: RoleEvent
    """The ROLE."""
    ended_ns: int
    """Wall clock at the session's last record."""
    events: tuple[RoleEvent, ...]
    """The records of `ROLE_KINDS`, without ROLE."""
    put_ok: RoleEvent | None
    """The WAIT_END of the largest offset that was PUT_OK while puts waited for the set."""
    confirmed: RoleEvent | None
    """The CONFIRMED with the largest offset."""

    @property
    def group(self) -> tuple[str, str]:
        """Names of cluster and broker: those who elect one master."""
        return self.cluster_name, self.broker_name

    @property
    def promised(self) -> RoleEvent | None:
        """What shows the largest offset that the group must keep; None if the role promised nothing."""
        if self.role is not GroupRole.MASTER or not self.waits_for_set:
            return None
        known = [one for one in (self.put_ok, self.confirmed) if one is not None]
        return max(known, key=_offset, default=None)


def _offset(event: RoleEvent) -> int:
    return event.offset


def role_life(
    session: Session, found: RoleEvents, facts: Sequence[Fact], *, last_ts_ns: int | None
) -> RoleLife | None:
    """The life that a session recorded; None if it has no ROLE.

    `last_ts_ns` is that of the session's last record.
    """
    events = list(role_events(session, found.events, facts))
    began = next((event for event in events if event.kind is Kind.ROLE), None)
    if began is None:
        return None
    identity, settings = session.identity, SessionSettings.of(session)
    master_id, address = began.fact.get("masterId"), began.fact.get("masterAddress")
    return RoleLife(
        session=session.path.resolve().name,
        cluster_name=identity.cluster_name,
        broker_name=identity.broker_name,
        broker_id=began.size,
        role=_group_role(began.flags & (1 << OLD_ROLE_SHIFT) - 1),
        former=_group_role(began.flags >> OLD_ROLE_SHIFT),
        epoch=began.aux,
        master_id=master_id if type(master_id) is int and master_id >= 0 else None,
        master_address=address if isinstance(address, str) else None,
        log_end_offset=began.offset,
        waits_for_set=settings.waits_for_set,
        began=began,
        ended_ns=began.at_ns if last_ts_ns is None else session.wall_of(last_ts_ns),
        events=tuple(event for event in events if event.kind is not Kind.ROLE),
        put_ok=next(role_events(session, found.put_ok, ()), None),
        confirmed=next(role_events(session, found.confirmed, ()), None),
    )


def read_life(session: Session) -> RoleLife | None:
    """The life of a session, read part by part; None if it has no ROLE.

    Raises StoreError if a segment was removed.
    """
    settings = SessionSettings.of(session)
    found = RoleEvents()
    last_ts_ns: int | None = None
    is_first = True
    for segment in read_segments(session).segments:
        for first in range(0, segment.records, PART_RECORDS):
            records = read_segment(session, segment, first=first, count=PART_RECORDS).array
            if len(records):
                found += RoleEvents.of(EventBatch(records, settings, is_first))
                last_ts_ns = int(records["ts_ns"].max())
                is_first = False
    return role_life(session, found, read_facts(session)[0], last_ts_ns=last_ts_ns)


def _group_role(code: int) -> GroupRole:
    return GroupRole(code) if code in set(GroupRole) else GroupRole.NONE


def role_events(session: Session, arrays: Sequence[Array], facts: Sequence[Fact]) -> Iterator[RoleEvent]:
    """The records in `arrays`, which are in the order of their seqs, each with its fact among `facts`.

    The kinds of the records are `ROLE_KINDS`, CONFIRMED and WAIT_END.
    """
    waiting: dict[Kind, list[Fact]] = {}
    for fact in facts:
        if fact.type_ in _FACT_KINDS:
            waiting.setdefault(_FACT_KINDS[fact.type_], []).append(fact)
    names = ("seq", "ts_ns", "kind", "flags", "offset", "aux", "size")
    for array in arrays:
        for seq, ts_ns, code, flags, offset, aux, size in zip(
            *(array[name].tolist() for name in names), strict=True
        ):
            kind = Kind(code)
            fields: Mapping[str, Any] = {}
            own = waiting.get(kind, [])
            if own and own[0].seq <= seq and not (kind is Kind.CONTROLLER and not flags):
                # The last one before the record: a record may have been dropped.
                while len(own) > 1 and own[1].seq <= seq:
                    del own[0]
                fields = own.pop(0).fields
            yield RoleEvent(seq, session.wall_of(ts_ns), kind, flags, offset, aux, size, fields)


def describe(life: RoleLife, event: RoleEvent) -> str:
    """A record of `ROLE_KINDS` as a sentence."""
    members = event.fact.get("members")
    match event.kind:
        case Kind.ROLE:
            if life.role is GroupRole.NONE:
                return "waits for a role"
            text = f"{life.former.name} to {life.role.name} in {_epoch_named(life.epoch)}"
            if life.role is GroupRole.SLAVE:
                text += (
                    f", master is {_named(life.master_id)} at {life.master_address or 'an unknown address'}"
                )
            return f"{text}; the log ends at {life.log_end_offset:,}"
        case Kind.EPOCH if event.offset < 0:
            return f"the log is in epoch {event.aux}"
        case Kind.EPOCH:
            return f"epoch {event.aux} begins at {event.offset:,}"
        case Kind.SYNC_STATE_SET:
            name = code_name(SetEvent, event.flags).lower()
            listed = f" {members}" if members is not None else f" of {event.size}"
            return f"sync-state set{listed} {name}, set epoch {event.aux}"
        case Kind.LOG_CUT:
            epoch = _epoch_named(event.size)
            return f"{event.aux - event.offset:,} bytes of {epoch} cut at {event.offset:,}"
        case _:
            address = event.fact.get("address")
            return (
                f"controller {address or 'at an unknown address'} leads"
                if event.flags
                else "no controller leads"
            )


def _epoch_named(epoch: int) -> str:
    return "an unknown epoch" if epoch < 0 else f"epoch {epoch}"


def _named(broker_id: int | None) -> str:
    return "an unknown broker" if broker_id is None else f"broker {broker_id}"

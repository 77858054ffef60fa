"""Sessions of a group of brokers under controllers, made by hand: a master dies, its slave takes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import evolve, field, frozen

from tests.sessions.sessions import WALL_NS, Event, write_session
from trioha.recording.events import (
    OLD_ROLE_SHIFT,
    CloseReason,
    ControllerEvent,
    Direction,
    GroupRole,
    HaState,
    Kind,
    PutStatus,
    SetEvent,
)

MS = 1_000_000
SETTINGS: Mapping[str, object] = {
    "enableControllerMode": True,
    "allAckInSyncStateSet": True,
    "slaveTimeout": 3000,
    "syncFlushTimeout": 5000,
    "haHousekeepingInterval": 20_000,
}
NONE, MASTER, SLAVE = GroupRole.NONE, GroupRole.MASTER, GroupRole.SLAVE
Fact = tuple[int, Mapping[str, object]]


@frozen
class Life:
    """A session, before it is written."""

    name: str
    role: GroupRole
    events: tuple[Event, ...]
    facts: tuple[Fact, ...] = ()
    broker_id: int = 0
    """That of the configuration."""
    settings: Mapping[str, object] = field(default=SETTINGS)

    def write(self, folder: Path, *, segment_records: int = 2_000_000, wall_ns: int = WALL_NS) -> Path:
        return write_session(
            folder / self.name,
            self.events,
            role="SYNC_MASTER" if self.role is MASTER else "SLAVE",
            broker_id=self.broker_id,
            settings=self.settings,
            segment_records=segment_records,
            other_facts=self.facts,
            base_ts_ns=self.events[0].ts_ns,
            wall_ns=wall_ns,
        )

    def with_event(self, kind: Kind, **changes: int) -> Life:
        """With its first record of `kind` changed."""
        place = next(at for at, event in enumerate(self.events) if event.kind == kind)
        changed = evolve(self.events[place], **changes)
        return evolve(self, events=(*self.events[:place], changed, *self.events[place + 1 :]))


def role(at_ms: int, new: GroupRole, former: GroupRole, *, epoch: int, broker_id: int, log_end: int) -> Event:
    flags = new | former << OLD_ROLE_SHIFT
    return Event(at_ms * MS, Kind.ROLE, offset=log_end, aux=epoch, size=broker_id, flags=flags)


def sync_set(at_ms: int, event: SetEvent, *, epoch: int, members: int, confirm: int) -> Event:
    return Event(at_ms * MS, Kind.SYNC_STATE_SET, offset=confirm, aux=epoch, size=members, flags=event)


def leads(at_ms: int) -> Event:
    return Event(at_ms * MS, Kind.CONTROLLER, flags=ControllerEvent.LEADER)


def put(at_ms: int, *, end: int, size: int, request: int, copies: int) -> list[Event]:
    return [
        Event(at_ms * MS, Kind.PUT, offset=end, size=size, aux=request),
        Event(at_ms * MS, Kind.WAIT_BEGIN, offset=end, aux=request, size=copies),
    ]


def put_ok(at_ms: int, *, end: int, request: int, waited_us: int) -> Event:
    return Event(at_ms * MS, Kind.WAIT_END, offset=end, aux=request, size=waited_us, flags=PutStatus.PUT_OK)


def members_fact(index: int, event: SetEvent, members: Iterable[int], set_epoch: int) -> Fact:
    return index, {
        "type": "sync_state_set",
        "event": event.name,
        "members": list(members),
        "setEpoch": set_epoch,
    }


def role_fact(*, master_id: int, address: str) -> Fact:
    return 0, {"type": "role", "masterId": master_id, "masterAddress": address}


def failover() -> dict[str, Life]:
    """Broker 1 is master of epoch 1 and dies with 100 bytes that nobody else has; broker 2 takes over.

    Broker 1 comes back, cuts these bytes, and follows. No invariant is broken.
    """
    connection = [
        Event(5 * MS, Kind.STATE, conn=1, offset=-1, flags=HaState.HANDSHAKE),
        Event(6 * MS, Kind.REQUESTED, conn=1),
        Event(6 * MS, Kind.STATE, conn=1, offset=-1, flags=HaState.TRANSFER),
        Event(6 * MS, Kind.ACK, conn=1),
    ]
    first_master = Life(
        "20260101T000000.001Z-broker-a-0",
        MASTER,
        (
            role(1, MASTER, NONE, epoch=1, broker_id=1, log_end=0),
            leads(1),
            Event(1 * MS, Kind.EPOCH, aux=1, size=1, flags=MASTER),
            sync_set(1, SetEvent.CHANGED, epoch=1, members=1, confirm=0),
            *connection,
            sync_set(8, SetEvent.PROPOSED, epoch=1, members=2, confirm=0),
            sync_set(9, SetEvent.CHANGED, epoch=2, members=2, confirm=0),
            *put(10, end=300, size=300, request=1, copies=2),
            Event(10 * MS, Kind.TRANSFER, conn=1, aux=300, size=300),
            Event(11 * MS, Kind.ACK, conn=1, offset=300, aux=300),
            put_ok(12, end=300, request=1, waited_us=2000),
            Event(20 * MS, Kind.CONFIRMED, offset=300, aux=300),
            *put(21, end=400, size=100, request=2, copies=2),
        ),
        (
            role_fact(master_id=1, address="10.0.0.1:10911"),
            (1, {"type": "controller", "address": "10.0.0.9:9878"}),
            members_fact(3, SetEvent.CHANGED, (1,), 1),
            members_fact(8, SetEvent.PROPOSED, (1, 2), 1),
            members_fact(9, SetEvent.CHANGED, (1, 2), 2),
        ),
    )
    first_slave = Life(
        "20260101T000000.004Z-broker-a-2",
        SLAVE,
        (
            role(4, SLAVE, NONE, epoch=1, broker_id=2, log_end=0),
            leads(4),
            Event(6 * MS, Kind.LINK, conn=1),
            Event(6 * MS, Kind.STATE, conn=1, flags=HaState.TRANSFER),
            Event(6 * MS, Kind.EPOCH, aux=1, size=2, flags=SLAVE),
            Event(11 * MS, Kind.RECEIVED, conn=1, aux=300, size=300),
            Event(11 * MS, Kind.REPORTED, conn=1, offset=300, aux=300),
            Event(12 * MS, Kind.HEARTBEAT, conn=1, offset=300, aux=300, flags=Direction.RECEIVED),
            Event(30 * MS, Kind.CLOSED, conn=1, offset=300, aux=300, flags=CloseReason.EOF),
        ),
        (role_fact(master_id=1, address="10.0.0.1:10911"),),
        broker_id=2,
    )
    second_master = Life(
        "20260101T000000.100Z-broker-a-0",
        MASTER,
        (
            role(100, MASTER, SLAVE, epoch=2, broker_id=2, log_end=300),
            leads(100),
            Event(100 * MS, Kind.EPOCH, offset=300, aux=2, size=2, flags=MASTER),
            sync_set(100, SetEvent.CHANGED, epoch=3, members=1, confirm=300),
            *put(110, end=500, size=200, request=1, copies=1),
            put_ok(110, end=500, request=1, waited_us=0),
            Event(120 * MS, Kind.CONFIRMED, offset=500, aux=500),
            Event(130 * MS, Kind.CONTROLLER, flags=ControllerEvent.LOST),
            leads(140),
        ),
        (
            role_fact(master_id=2, address="10.0.0.2:10911"),
            (1, {"type": "controller", "address": "10.0.0.9:9878"}),
            members_fact(3, SetEvent.CHANGED, (2,), 3),
            (9, {"type": "controller", "address": "10.0.0.8:9878"}),
        ),
    )
    second_slave = Life(
        "20260101T000000.200Z-broker-a-1",
        SLAVE,
        (
            role(200, SLAVE, NONE, epoch=2, broker_id=1, log_end=400),
            leads(200),
            Event(210 * MS, Kind.LOG_CUT, offset=300, aux=400, size=1),
            Event(210 * MS, Kind.EPOCH, offset=300, aux=2, size=1, flags=SLAVE),
            Event(211 * MS, Kind.CONFIRMED, offset=300, aux=300),
        ),
        (role_fact(master_id=2, address="10.0.0.2:10911"),),
        broker_id=1,
    )
    return {
        "first master": first_master,
        "first slave": first_slave,
        "second master": second_master,
        "second slave": second_slave,
    }


def write_group(folder: Path, lives: Iterable[Life]) -> Path:
    """A folder of sessions."""
    for life in lives:
        life.write(folder)
    return folder

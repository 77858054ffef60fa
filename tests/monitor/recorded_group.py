"""Sessions of a group of three under controllers, two minutes long: its master is killed and comes back.

| time | what happens |
|---|---|
| 0 s | broker 1 starts, without an id; master of epoch 1 at 0.5 s |
| 2 s, 4 s | broker 2 and broker 3 connect, and are in the set a second later |
| 30 s | the controllers lose their leader; another one leads at 33 s |
| 59 s | broker 1 stores 300 bytes that no slave receives |
| 60 s | broker 1 is killed |
| 62 s | broker 2 is master of epoch 2, broker 3 follows it, and is in the set at 64 s |
| 80 s | broker 1 starts again, follows at 81 s, cuts its 300 bytes at 82 s |
| 86 s | the set with broker 1 is not decided; it is at 88 s |
| 120 s | all stop in order |

Each second a message of 100 bytes is stored.
"""

from __future__ import annotations

from pathlib import Path

from attrs import define, field

from tests.sessions.group_sessions import SETTINGS, Life, role
from tests.sessions.sessions import WALL_NS, Event
from trioha.recording.events import (
    CloseReason,
    ControllerEvent,
    GroupRole,
    HaState,
    Kind,
    LinkEvent,
    PutStatus,
    SetEvent,
)
from trioha.recording.layout import CLOSED_NOTE

S = 10**9
MS = 10**6
LEADER, OTHER_LEADER = "10.0.1.1:9878", "10.0.1.2:9878"
NONE, MASTER, SLAVE = GroupRole.NONE, GroupRole.MASTER, GroupRole.SLAVE
KILLED_S, ELECTED_S, BACK_S, CUT_S, END_S = 60, 62, 80, 82, 120
LOST_BYTES = 300
DELAY_NS = 2 * MS
"""From one broker to another."""


def log_end(at_s: int) -> int:
    """End of the log of a broker that follows, after the message of that second."""
    return 100 * at_s


@define
class SessionBuilder:
    """Collects events and facts of one session in the order of time."""

    broker_id: int
    role: GroupRole
    started_s: float
    events: list[Event] = field(factory=list)
    facts: list[tuple[int, dict[str, object]]] = field(factory=list)
    _conns: int = 0

    def emit(self, at_s: float, kind: Kind, *, later_ns: int = 0, **fields: int) -> None:
        """An event; `later_ns` after that time."""
        self.events.append(Event(round(at_s * S) + later_ns, kind, **fields))

    def fact(self, type_: str, **fields: object) -> None:
        """A fact of the next event."""
        self.facts.append((len(self.events), {"type": type_, **fields}))

    def begin(self, former: GroupRole, *, epoch: int, broker_id: int, master_id: int, end: int) -> None:
        """The role with which the session begins."""
        self.fact(
            "role",
            role=self.role.name,
            masterId=master_id,
            masterAddress=None if master_id < 0 else f"10.0.0.{master_id}:10911",
        )
        self.events.append(
            role(
                round(self.started_s * 1000),
                self.role,
                former,
                epoch=epoch,
                broker_id=broker_id,
                log_end=end,
            )
        )

    def leads(self, at_s: float, address: str | None = LEADER) -> None:
        """A controller that leads; None for none."""
        if address is not None:
            self.fact("controller", address=address)
        event = ControllerEvent.LOST if address is None else ControllerEvent.LEADER
        self.emit(at_s, Kind.CONTROLLER, flags=event)

    def set(self, at_s: float, event: SetEvent, *members: int, epoch: int, confirm: int = 0) -> None:
        """What happens to the sync-state set."""
        self.fact("sync_state_set", event=event.name, members=list(members), setEpoch=epoch)
        self.emit(at_s, Kind.SYNC_STATE_SET, offset=confirm, aux=epoch, size=len(members), flags=event)

    def connect(self, at_s: float, *, peer: int, start: int, top: int, host: str = "") -> int:
        """A connection of the slave `peer`, which has a host of its own by default; returns its number."""
        self._conns += 1
        conn = self._conns
        self.fact("connection", conn=conn, address=f"{host or f'10.0.0.{peer}'}:4000{conn}", role="master")
        self.emit(at_s, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.HANDSHAKE)
        self.fact("replica", conn=conn, brokerId=peer)
        self.emit(at_s, Kind.REQUESTED, conn=conn, offset=start, aux=top)
        self.emit(at_s, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.TRANSFER)
        self.emit(at_s, Kind.ACK, later_ns=DELAY_NS, conn=conn, offset=start, aux=top)
        return conn

    def dial(self, at_s: float, *, master: int, own: int) -> int:
        """A slave's connection to its master; returns its number."""
        self._conns += 1
        conn = self._conns
        self.fact("connection", conn=conn, address=f"10.0.0.{master}:10912", role="slave")
        self.emit(at_s, Kind.LINK, conn=conn, flags=LinkEvent.CONNECTED)
        self.emit(at_s, Kind.STATE, conn=conn, offset=own, aux=own, flags=HaState.TRANSFER)
        self.emit(at_s, Kind.REPORTED, conn=conn, offset=own, aux=own)
        return conn

    def serve(self, at_s: int, conns: list[int], *, start: int, request: int) -> None:
        """A message that is stored and acknowledged by all."""
        end = start + 100
        self.emit(at_s, Kind.PUT, offset=end, size=100, aux=request)
        self.emit(at_s, Kind.WAIT_BEGIN, offset=end, aux=request, size=len(conns) + 1)
        for conn in conns:
            self.emit(at_s, Kind.TRANSFER, conn=conn, offset=start, aux=end, size=100)
        for conn in conns:
            self.emit(at_s, Kind.ACK, later_ns=2 * DELAY_NS, conn=conn, offset=end, aux=end)
        self.emit(at_s, Kind.CONFIRMED, later_ns=3 * DELAY_NS, offset=end, aux=end)
        self.emit(
            at_s, Kind.WAIT_END, later_ns=3 * DELAY_NS, offset=end, aux=request, size=6000,
            flags=PutStatus.PUT_OK,
        )  # fmt: skip

    def receive(self, at_s: int, conn: int, *, start: int) -> None:
        """The same message on a slave."""
        end = start + 100
        self.emit(at_s, Kind.RECEIVED, later_ns=DELAY_NS, conn=conn, offset=start, aux=end, size=100)
        self.emit(at_s, Kind.REPORTED, later_ns=DELAY_NS, conn=conn, offset=end, aux=end)
        self.emit(at_s, Kind.CONFIRMED, later_ns=DELAY_NS + 1, offset=start, aux=end)

    def end(self) -> None:
        """The recorder closed it."""
        self.fact("note", text=CLOSED_NOTE)

    def life(self) -> Life:
        """The session."""
        name = f"20260922T{round(self.started_s * 1000):09d}Z-broker-a-{self.broker_id}"
        settings = {**SETTINGS, "minInSyncReplicas": 1}
        return Life(name, self.role, tuple(self.events), tuple(self.facts), self.broker_id, settings)


def first_broker() -> list[Life]:
    """Broker 1: waits, is master, is killed, waits again, is slave."""
    waiting = SessionBuilder(1, NONE, 0.0)
    waiting.begin(NONE, epoch=-1, broker_id=-1, master_id=-1, end=0)
    waiting.leads(0.0, None)
    waiting.leads(0.3)
    waiting.end()
    master = SessionBuilder(0, MASTER, 0.5)
    master.begin(NONE, epoch=1, broker_id=1, master_id=1, end=0)
    master.leads(0.5)
    master.emit(0.5, Kind.EPOCH, aux=1, size=1, flags=MASTER)
    master.set(0.5, SetEvent.CHANGED, 1, epoch=1)
    conns: list[int] = []
    for second in range(1, KILLED_S):
        if second == 2:
            conns.append(master.connect(1.9, peer=2, start=log_end(1), top=log_end(1)))
        if second == 3:
            master.set(2.9, SetEvent.PROPOSED, 1, 2, epoch=1)
            master.set(2.95, SetEvent.CHANGED, 1, 2, epoch=2)
        if second == 4:
            conns.append(master.connect(3.9, peer=3, start=log_end(3), top=log_end(3)))
        if second == 5:
            master.set(4.9, SetEvent.PROPOSED, 1, 2, 3, epoch=2)
            master.set(4.95, SetEvent.CHANGED, 1, 2, 3, epoch=3)
        master.serve(second, conns, start=log_end(second - 1), request=second)
        if second == 30:
            master.leads(30.1, None)
        if second == 33:
            master.leads(33.1, OTHER_LEADER)
    for number in range(LOST_BYTES // 100):
        end = log_end(KILLED_S - 1) + 100 * (number + 1)
        master.emit(59.5, Kind.PUT, offset=end, size=100, aux=100 + number)
        master.emit(59.5, Kind.WAIT_BEGIN, offset=end, aux=100 + number, size=3)
    master.emit(KILLED_S, Kind.DISPATCHED, offset=log_end(KILLED_S - 1), size=1)
    own = log_end(KILLED_S - 1) + LOST_BYTES
    again = SessionBuilder(1, NONE, BACK_S)
    again.begin(NONE, epoch=-1, broker_id=1, master_id=-1, end=own)
    again.leads(BACK_S, None)
    again.leads(BACK_S + 0.5, OTHER_LEADER)
    again.end()
    slave = SessionBuilder(1, SLAVE, BACK_S + 1)
    slave.begin(NONE, epoch=2, broker_id=1, master_id=2, end=own)
    slave.leads(BACK_S + 1, OTHER_LEADER)
    kept = log_end(KILLED_S - 1)
    slave.emit(CUT_S - 0.3, Kind.LOG_CUT, offset=kept, aux=own, size=1)
    slave.emit(CUT_S - 0.3, Kind.EPOCH, offset=kept, aux=2, size=1, flags=SLAVE)
    conn = slave.dial(CUT_S - 0.1, master=2, own=kept)
    # What it lacks comes in one frame.
    start = second_log_end(CUT_S - 1)
    slave.emit(
        CUT_S - 0.1, Kind.RECEIVED, later_ns=2 * DELAY_NS, conn=conn, offset=kept, aux=start,
        size=start - kept,
    )  # fmt: skip
    slave.emit(CUT_S - 0.1, Kind.REPORTED, later_ns=2 * DELAY_NS, conn=conn, offset=start, aux=start)
    for second in range(CUT_S, END_S):
        slave.receive(second, conn, start=second_log_end(second - 1))
    slave.end()
    return [one.life() for one in (waiting, master, again, slave)]


def second_log_end(at_s: int) -> int:
    """End of the second master's log after the message of that second."""
    return log_end(KILLED_S - 1) + 100 * (at_s - ELECTED_S)


def second_broker() -> list[Life]:
    """Broker 2: slave, then master."""
    slave = SessionBuilder(2, SLAVE, 1.0)
    slave.begin(NONE, epoch=1, broker_id=2, master_id=1, end=0)
    slave.leads(1.0)
    slave.emit(1.9, Kind.EPOCH, aux=1, size=2, flags=SLAVE)
    conn = slave.dial(1.9, master=1, own=log_end(1))
    for second in range(2, KILLED_S):
        slave.receive(second, conn, start=log_end(second - 1))
    own = log_end(KILLED_S - 1)
    slave.emit(KILLED_S, Kind.CLOSED, conn=conn, offset=own, aux=own, flags=CloseReason.EOF)
    slave.end()
    master = SessionBuilder(0, MASTER, ELECTED_S)
    master.begin(SLAVE, epoch=2, broker_id=2, master_id=2, end=own)
    master.leads(ELECTED_S)
    master.leads(ELECTED_S + 0.1, OTHER_LEADER)
    master.emit(ELECTED_S + 0.1, Kind.EPOCH, offset=own, aux=2, size=2, flags=MASTER)
    master.set(ELECTED_S + 0.1, SetEvent.CHANGED, 2, epoch=4, confirm=own)
    conns: list[int] = []
    for second in range(ELECTED_S + 1, END_S):
        start = second_log_end(second - 1)
        if second == 63:
            conns.append(master.connect(62.9, peer=3, start=start, top=start))
        if second == 64:
            master.set(63.9, SetEvent.PROPOSED, 2, 3, epoch=4)
            master.set(63.95, SetEvent.CHANGED, 2, 3, epoch=5)
        if second == CUT_S:
            conns.append(master.connect(CUT_S - 0.1, peer=1, start=own, top=start))
            conn = conns[-1]
            master.emit(
                CUT_S - 0.1, Kind.TRANSFER, later_ns=DELAY_NS, conn=conn, offset=own, aux=start,
                size=start - own,
            )  # fmt: skip
            master.emit(CUT_S - 0.1, Kind.ACK, later_ns=3 * DELAY_NS, conn=conn, offset=start, aux=start)
        if second == 85:
            master.set(84.9, SetEvent.PROPOSED, 1, 2, 3, epoch=5)
        if second == 86:
            master.set(85.9, SetEvent.UNDECIDED, 1, 2, 3, epoch=5)
        if second == 88:
            master.set(87.9, SetEvent.PROPOSED, 1, 2, 3, epoch=5)
            master.set(87.95, SetEvent.CHANGED, 1, 2, 3, epoch=6)
        master.serve(second, conns, start=start, request=second)
    master.end()
    return [one.life() for one in (slave, master)]


def third_broker() -> list[Life]:
    """Broker 3: a slave of both masters."""
    first = SessionBuilder(3, SLAVE, 1.5)
    first.begin(NONE, epoch=1, broker_id=3, master_id=1, end=0)
    first.leads(1.5)
    first.emit(3.9, Kind.EPOCH, aux=1, size=3, flags=SLAVE)
    conn = first.dial(3.9, master=1, own=log_end(3))
    for second in range(4, KILLED_S):
        first.receive(second, conn, start=log_end(second - 1))
    own = log_end(KILLED_S - 1)
    first.emit(KILLED_S, Kind.CLOSED, conn=conn, offset=own, aux=own, flags=CloseReason.EOF)
    first.end()
    second_life = SessionBuilder(3, SLAVE, ELECTED_S + 0.2)
    second_life.begin(SLAVE, epoch=2, broker_id=3, master_id=2, end=own)
    second_life.leads(ELECTED_S + 0.2, OTHER_LEADER)
    second_life.emit(62.9, Kind.EPOCH, offset=own, aux=2, size=3, flags=SLAVE)
    conn = second_life.dial(62.9, master=2, own=own)
    for second in range(63, END_S):
        second_life.receive(second, conn, start=second_log_end(second - 1))
    second_life.end()
    return [one.life() for one in (first, second_life)]


def group_lives() -> dict[int, list[Life]]:
    """The sessions of each broker, by its id."""
    return {1: first_broker(), 2: second_broker(), 3: third_broker()}


def write_group(folder: Path, *, segment_records: int = 2_000_000, ahead_ns: int = 0) -> Path:
    """Write all sessions into one folder; the wall clock of broker 2 is ahead of the others by `ahead_ns`."""
    for broker_id, lives in group_lives().items():
        for life in lives:
            life.write(
                folder,
                segment_records=segment_records,
                wall_ns=WALL_NS + (ahead_ns if broker_id == 2 else 0),
            )
    return folder

"""Recorded sessions on one axis of time: nanoseconds since 1970 by the wall clocks of the masters.

A session has its own monotonic clock, and one reading of the wall clock at its start: later jumps of the
wall clock have no effect. If the sessions of a slave and of its master are both there, their clocks are
compared by the frames and acks that both recorded, and a certain offset is corrected
(`trioha_monitor.replay.clock_offsets`), so that events are shown in the order in which they happened. The
sessions of one node (cluster, broker name, broker id) are its `SessionRun`s, one for each start, and follow
each other.

In controller mode a node has a session for each role, and its id is the one that the controllers gave it.
Until they have given one, the node waits for its first role: that session belongs to the node whose first
role of that start begins next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from attrs import define, field

from trioha.errors import StoreError
from trioha.outside_text import REASON_MAX, clean
from trioha.recording.events import GroupRole
from trioha.recording.reader import find_sessions
from trioha.replica_verdict import Limits
from trioha_monitor.replay.clock_offsets import (
    RESTART_ERROR_NS,
    SAME_START_ERROR_NS,
    ClockLink,
    clock_offsets,
)
from trioha_monitor.view import ProbeCount, node_label
from trioha_sessions.clocks import links
from trioha_sessions.invariants.event_batch import SessionSettings
from trioha_sessions.role_lives import RoleEvents, RoleLife, role_life
from trioha_sessions.session_reader import SessionReader

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
QUIET_HEARTBEATS = 2
"""Heartbeats without any record after which a session that has not ended looks dead."""
LINKED_MAX = 16
"""Connections of a session that are used to compare its clock."""
ROLE_RECORDS_MAX = 64
"""The first records of a session, among which its role is searched: it is the very first one."""


@define(eq=False)
class SessionRun:
    """One session: one start of a node, in controller mode one role of it."""

    number: int
    """Index among all runs of the timeline."""
    reader: SessionReader
    limits: Limits
    life: RoleLife | None = None
    """The role, as the session's start has it; None outside of controller mode."""
    broker_ids: dict[int, int] = field(factory=dict)
    """In controller mode of a master: id of the slave of each connection, by its number."""
    addresses: dict[int, str] = field(factory=dict)
    """Peer of each connection, by its number."""
    certificates: dict[int, str] = field(factory=dict)
    """Name in the peer's certificate of each connection with TLS."""
    begin_seqs: dict[int, int] = field(factory=dict)
    """Seq of the first record of each connection."""
    probes: list[tuple[int, ProbeCount]] = field(factory=list)
    """Probe counts by the seq of their facts, in order."""
    clock_ahead_ns: int = 0
    """How far its wall clock was ahead of that by which it is shown; 0 if that is not certain."""
    clock_of: str = ""
    """Label of the node by whose clock it is shown; empty if that is its own."""
    _begins_ns: dict[int, int] = field(factory=dict)

    @property
    def quiet_ns(self) -> int:
        """A session without an end that has no record for longer than this has broken off."""
        return round(QUIET_HEARTBEATS * self.limits.heartbeat_s * NS_PER_S)

    @property
    def name(self) -> str:
        """The session's folder."""
        return self.reader.session.path.resolve().name

    @property
    def is_slave(self) -> bool:
        """Whether a slave recorded it."""
        return self.reader.session.is_slave

    @property
    def is_waiting(self) -> bool:
        """Whether the node had no role from the controllers."""
        return self.life is not None and self.life.role is GroupRole.NONE

    @property
    def broker_id(self) -> int | None:
        """Id of the node: from the controllers in controller mode; None while they have given none."""
        if self.life is None:
            return self.reader.session.identity.broker_id
        return self.life.broker_id if self.life.broker_id >= 0 else None

    @property
    def start_ns(self) -> int:
        """Start of the session, on the axis."""
        return self.wall_of(self.reader.first_ts_ns)

    @property
    def end_ns(self) -> int:
        """Time of the last record, on the axis."""
        return self.wall_of(self.reader.last_ts_ns)

    def wall_of(self, ts_ns: int) -> int:
        """A record's time on the axis."""
        return self.reader.session.wall_of(ts_ns) - self.clock_ahead_ns

    def ts_of(self, at_ns: int) -> int:
        """A moment of the axis on the session's own clock."""
        session = self.reader.session
        return at_ns + self.clock_ahead_ns - session.wall_ns + session.monotonic_ns

    def position_at(self, at_ns: int) -> int:
        """The position after the last record that is not later."""
        return self.reader.position_at(self.ts_of(at_ns))

    def age_s(self, ts_ns: int, at_ns: int) -> float | None:
        """How long before `at_ns` a time of the session was, seconds; None for UNKNOWN."""
        return None if ts_ns < 0 else max(0, at_ns - self.wall_of(ts_ns)) / NS_PER_S

    def last_ns(self, position: int) -> int:
        """Time of the last record before a position, on the axis."""
        last = self.reader.record_before(position)
        return self.start_ns if last is None else self.wall_of(int(last["ts_ns"]))

    def begin_ns(self, conn: int) -> int | None:
        """When a connection began, on the axis; None if that is not recorded."""
        known = self._begins_ns.get(conn)
        if known is None and conn in self.begin_seqs:
            ts_ns = self.reader.time_of(self.begin_seqs[conn])
            if ts_ns is not None:
                known = self._begins_ns[conn] = self.wall_of(ts_ns)
        return known

    def probes_at(self, position: int) -> dict[tuple[str, str], int]:
        """Probes before a position, by host and reason, as facts count them."""
        index = bisect_left(self.probes, position, key=_seq_of)
        return {(one.host, one.reason): one.count for _, one in self.probes[:index]}

    def address_of(self, conn: int) -> str:
        """The peer of a connection, or its number."""
        return self.addresses.get(conn, f"connection {conn}")

    def refresh(self) -> bool:
        """Read records that were added to the session; returns whether there are any."""
        if not self.reader.refresh():
            return False
        self.read_facts()
        return True

    def read_facts(self) -> None:
        """Read connections, ids of slaves and probes."""
        self.probes = []
        for fact in self.reader.facts:
            conn = fact.fields.get("conn")
            if fact.type_ == "connection" and isinstance(conn, int):
                self.addresses[conn] = clean(str(fact.fields.get("address")))
                self.begin_seqs.setdefault(conn, fact.seq)
                if certificate := fact.fields.get("certificate"):
                    self.certificates[conn] = clean(str(certificate), length_max=REASON_MAX)
            broker_id = fact.fields.get("brokerId")
            if fact.type_ == "replica" and isinstance(conn, int) and type(broker_id) is int:
                self.broker_ids[conn] = broker_id
            host, reason, count = (fact.fields.get(name) for name in ("host", "reason", "count"))
            if fact.type_ == "probes" and isinstance(count, int):
                self.probes.append((fact.seq, ProbeCount(clean(str(host)), clean(str(reason)), count)))
        self.probes.sort(key=_seq_of)


@define(eq=False)
class RecordedNode:
    """A node and its sessions."""

    key: str
    """`NodeView.address`."""
    broker_id: int | None
    """Its id, in controller mode that of the controllers; None if no session has one."""
    runs: list[SessionRun]
    """In the order of their starts; at least one."""

    def run_at(self, at_ns: int) -> SessionRun:
        """The last run that has started at `at_ns`, else the first run."""
        begun = [run for run in self.runs if run.start_ns <= at_ns]
        return begun[-1] if begun else self.runs[0]

    def next_start_ns(self, run: SessionRun) -> int | None:
        """Start of the session after `run`; None without one."""
        following = self._after(run)
        return None if following is None else following.start_ns

    def is_continued(self, run: SessionRun) -> bool:
        """Whether the node went on in another role after `run`, in the same start."""
        following = self._after(run)
        return following is not None and continues(run, following)

    def before(self, run: SessionRun) -> SessionRun | None:
        """The session before `run`; None without one."""
        number = self.runs.index(run)
        return self.runs[number - 1] if number else None

    def _after(self, run: SessionRun) -> SessionRun | None:
        number = self.runs.index(run) + 1
        return self.runs[number] if number < len(self.runs) else None

    def roles_of_start(self, run: SessionRun) -> list[SessionRun]:
        """The sessions of the start that `run` is of, up to `run`: one outside of controller mode."""
        found = [run]
        before = self.before(run)
        while before is not None and continues(before, found[0]):
            found.insert(0, before)
            before = self.before(before)
        return found


class ReplayTimeline:
    """All sessions of a replay."""

    def __init__(self, readers: Iterable[SessionReader], *, paths: Iterable[Path] = ()) -> None:
        """Put `readers` (at least one) on one axis; `paths` is where more sessions may appear."""
        self._paths = tuple(paths)
        self._log_ends: dict[int, int] = {}
        runs = [
            SessionRun(number, reader, limits_of(reader), life_of(reader))
            for number, reader in enumerate(sorted(readers, key=_begins_ns))
        ]
        by_node: dict[tuple[str, str, int | None], list[SessionRun]] = {}
        adopted = _adopted(runs)
        for run in runs:
            run.read_facts()
            identity, of = run.reader.session.identity, adopted.get(run.number, run)
            by_node.setdefault((identity.cluster_name, identity.broker_name, of.broker_id), []).append(run)
        clusters = {cluster for cluster, _, _ in by_node}
        self.nodes: list[RecordedNode] = []
        for (cluster, name, broker_id), own in sorted(by_node.items(), key=_by_id):
            prefix = "" if len(clusters) == 1 else f"{cluster}/"
            label = clean(prefix + node_label(name, broker_id))
            self.nodes.append(RecordedNode(label, broker_id, own))
        assert self.nodes, "a timeline has at least one session"
        self._compare_clocks()

    @classmethod
    def open(cls, paths: Iterable[Path | str]) -> ReplayTimeline:
        """The sessions that `paths` name: session folders, or folders of them.

        A folder may hold other folders that are not sessions. Raises StoreError for a path that is neither,
        and for a session that cannot be read.
        """
        named = tuple(map(Path, paths))
        found = find_sessions(named)
        if not found:
            raise StoreError("no session named", path=".", hint="name a session, or a folder of sessions")
        return cls([SessionReader.open(path) for path in found], paths=named)

    def with_new_sessions(self) -> ReplayTimeline | None:
        """A timeline that has the sessions that were made since, too; None if there are none.

        A node that is started again, or has another role, makes another session. One without a record is left
        out until it has one.
        """
        readers = [run.reader for run in self.runs]
        known = {reader.session.path for reader in readers}
        new = []
        found: dict[Path, None] = {}
        for named in self._paths:
            # A folder that is gone, or changes meanwhile: the next look may find it.
            with suppress(StoreError, OSError):
                found.update(dict.fromkeys(find_sessions([named])))
        for path in found:
            if path in known:
                continue
            try:
                reader = SessionReader.open(path)
            except StoreError:
                # It is being made, or damaged: the others are shown.
                continue
            if reader.records:
                new.append(reader)
        return ReplayTimeline([*readers, *new], paths=self._paths) if new else None

    def _compare_clocks(self) -> None:
        """Compare the clocks of slaves with those of their masters."""
        runs = {run.reader.session.path: run for run in self.runs}
        found = [
            ClockLink(
                runs[link.master.path].number,
                runs[link.slave.path].number,
                link.clock_offset_ns or 0,
                link.clock_error_ns,
            )
            for link in links([run.reader for run in runs.values()], connections_max=LINKED_MAX)
            if link.clock_error_ns is not None
        ]
        found += [link for node in self.nodes for link in _links_of(node)]
        by_number = {run.number: run for run in runs.values()}
        for number, clock in clock_offsets(_references(by_number.values()), found).items():
            run, reference = by_number[number], self.node_of(by_number[clock.reference])
            run.clock_ahead_ns = clock.ahead_ns if clock.is_certain else 0
            run.clock_of = reference.key if clock.is_certain and run not in reference.runs else ""

    @property
    def runs(self) -> list[SessionRun]:
        """Those of all nodes."""
        return [run for node in self.nodes for run in node.runs]

    @property
    def start_ns(self) -> int:
        """Start of the first session."""
        return min(run.start_ns for run in self.runs)

    @property
    def end_ns(self) -> int:
        """End of the last session."""
        return max(run.end_ns for run in self.runs)

    def is_deposed(self, run: SessionRun, at_ns: int) -> bool:
        """Whether a master's session had ended at a moment, and its group had a master of a later epoch."""
        return run.end_ns < at_ns and any(
            other.life is not None
            and run.life is not None
            and other.life.role is GroupRole.MASTER
            and other.life.group == run.life.group
            and other.life.epoch > run.life.epoch
            and other.start_ns <= at_ns
            for other in self.runs
        )

    def continued(self, run: SessionRun) -> SessionRun | None:
        """The master's session before `run` whose replicas `run` goes on with; None if there is none.

        In controller mode a node that is started again waits for a role first.
        """
        if run.is_slave or run.life is not None:
            return None
        before = self.node_of(run).before(run)
        return None if before is None or before.is_slave or before.life is not None else before

    def stored_ns(self, run: SessionRun, offset: int, position: int | None = None) -> int | None:
        """When a master's log first went beyond `offset`, on the axis; None if it has not.

        Before `position` of `run`, in it or in the sessions that it goes on from.
        """
        position = run.reader.end_seq if position is None else position
        while (before := self.continued(run)) is not None and self._log_end_of(before) > offset:
            run, position = before, before.reader.end_seq
        ts_ns = run.reader.max_passed_ns(offset, position)
        return None if ts_ns is None else run.wall_of(ts_ns)

    def _log_end_of(self, run: SessionRun) -> int:
        """End of the log at the end of a session that another one goes on from."""
        if run.number not in self._log_ends:
            self._log_ends[run.number] = run.reader.snapshot_at(run.reader.end_seq).log_end_offset
        return self._log_ends[run.number]

    def refresh(self) -> bool:
        """Read records that were added to the sessions; returns whether there are any."""
        return sum(run.refresh() for run in self.runs) > 0

    def node_of(self, run: SessionRun) -> RecordedNode:
        """The node of a run."""
        return next(node for node in self.nodes if run in node.runs)


def limits_of(reader: SessionReader) -> Limits:
    """The limits in a session's settings; RocketMQ's defaults for those that are missing."""
    settings = reader.session.identity.settings

    def number(name: str) -> float | None:
        value = settings.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and value > 0 else None  # type: ignore[operator,return-value]

    return Limits.of(
        gap_bytes_max=number("haMaxGapNotInSync"),
        slave_timeout_ms=number("slaveTimeout"),
        housekeeping_ms=number("haHousekeepingInterval"),
        heartbeat_ms=number("haSendHeartbeatInterval"),
    )


def life_of(reader: SessionReader) -> RoleLife | None:
    """The role with which a session begins; None outside of controller mode."""
    if not SessionSettings.of(reader.session).has_roles:
        return None
    first = reader.first_seq
    records = reader.control_records(min(first + ROLE_RECORDS_MAX, reader.end_seq))
    assert records is not None, "its first segment is read"
    return role_life(reader.session, RoleEvents((records,)), reader.facts, last_ts_ns=None)


def _adopted(runs: Sequence[SessionRun]) -> Mapping[int, SessionRun]:
    """By the number of each session without an id the session whose node it is of, where there is one.

    `runs` are in the order of their starts. Nodes may record into one folder.
    """
    adopted: dict[int, SessionRun] = {}
    taken: set[int] = set()
    for run in sorted(runs, key=_end_ns):
        if run.life is None or run.broker_id is not None:
            continue
        for other in runs:
            if (
                other.life is not None
                and other.life.group == run.life.group
                and other.broker_id is not None
                and other.start_ns >= run.end_ns
                and other.reader.session.path.parent == run.reader.session.path.parent
                and other.number not in taken
                and _is_first_role(other.life)
            ):
                taken.add(other.number)
                adopted[run.number] = other
                break
    return adopted


def continues(before: SessionRun, run: SessionRun) -> bool:
    """Whether a node changed its role from that of `before`, its session before `run`, without a stop."""
    if before.life is None or run.life is None or not before.reader.ended_in_order:
        return False
    # A node waits for a role only when it starts, and when it has lost one.
    return run.life.former is before.life.role and not (before.is_waiting and run.is_waiting)


def _is_first_role(life: RoleLife) -> bool:
    """Whether it is the first role of a start of a node."""
    return life.former is GroupRole.NONE and life.role is not GroupRole.NONE


def _links_of(node: RecordedNode) -> Iterator[ClockLink]:
    """Links between the sessions of one node in controller mode."""
    for before, run in pairwise(node.runs):
        if before.life is None or run.life is None:
            continue
        earlier, later = before.reader.session, run.reader.session
        if continues(before, run):
            ahead_ns = (later.wall_ns - later.monotonic_ns) - (earlier.wall_ns - earlier.monotonic_ns)
            yield ClockLink(before.number, run.number, ahead_ns, SAME_START_ERROR_NS)
        else:
            yield ClockLink(before.number, run.number, 0, RESTART_ERROR_NS)


def _references(runs: Iterable[SessionRun]) -> Iterator[int]:
    """Sessions that are shown by their own clocks; `runs` in any order."""
    groups = set()
    for run in sorted(runs, key=_number):
        if run.is_slave or run.is_waiting:
            continue
        if run.life is None:
            yield run.number
        elif run.life.group not in groups:
            groups.add(run.life.group)
            yield run.number


def _number(run: SessionRun) -> int:
    return run.number


def _end_ns(run: SessionRun) -> int:
    return run.end_ns


def _by_id(item: tuple[tuple[str, str, int | None], list[SessionRun]]) -> tuple[str, str, int]:
    (cluster, name, broker_id), _ = item
    return cluster, name, -1 if broker_id is None else broker_id


def _seq_of(counted: tuple[int, ProbeCount]) -> int:
    return counted[0]


def _begins_ns(reader: SessionReader) -> tuple[int, str]:
    return reader.session.wall_of(reader.first_ts_ns), reader.session.path.name

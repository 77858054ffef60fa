"""The story of one put: `trioha replay --explain`.

A put is named by its request id, by `@OFFSET` (a physical offset of its record, as message ids have it), or
as `slowest` or `failed` (the first one that failed, at or after a time if one is given).

Whole sessions are read at most three times (`trioha_analysis.put_search`): to find the put, its records if
they are not close together, and where the connections of the nodes start and had the put's end. All else is
at most a million records after the put and at the starts of its connections. One core reads them; memory does
not grow with the sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from attrs import frozen

from trioha.errors import TriohaError
from trioha.numbers import NATURAL64, parse_int
from trioha.recording.events import NO_CONNECTION, CloseReason, HaState, Kind, PutStatus, code_name
from trioha.recording.reader import Session
from trioha_analysis.causes import ACK, BEFORE_RECORDS, CAUSES, FLUSH, NO_SLAVE, SEND, cause_of
from trioha_analysis.link_work import ConnectionFrames, ConnectionStarts, compare, link_work, links_of
from trioha_analysis.put_search import (
    KINDS_OF_PUT,
    ConnectionSpan,
    connection_spans,
    first_failure,
    put_at,
    records_of_put,
    slowest_end,
)
from trioha_analysis.state_at import connection_addresses
from trioha_sessions.clocks import Link
from trioha_sessions.invariants.event_batch import EventBatch, SessionSettings
from trioha_sessions.session_reader import SessionReader
from trioha_sessions.snapshot import connection_state
from trioha_sessions.state_arrays import Array, reached_offsets, shows_request

Row = dict[str, Any]

AFTERWARDS_RECORDS_MAX: Final = 1_000_000
"""Records after a put's end that are searched for late acks of it."""
NEAR_RECORDS: Final = 131_072
"""Records before and after a known one of a put in which its others are searched first."""
REQUEST_HINT: Final = "a request id, @OFFSET, slowest or failed"


@frozen(eq=False)
class Put:
    """The records of one put."""

    reader: SessionReader
    put: np.void | None
    begin: np.void | None
    end: np.void | None

    @property
    def first(self) -> np.void:
        """The earliest record."""
        first: np.void = next(one for one in (self.put, self.begin, self.end) if one is not None)
        return first

    @property
    def end_offset(self) -> int:
        """End of its record in the log."""
        return int(self.first["offset"])


def explain(
    readers: Sequence[SessionReader], request: str, *, at_wall_ns: int | None = None
) -> dict[str, Any]:
    """The story of a put as one JSON object: its figures, `summary` and `steps` in the order of time.

    `at_wall_ns`: with `slowest` and `failed`, only puts that ended at that time, ns since 1970, or later.

    Raises TriohaError if no session has such a put.
    """
    masters = [reader for reader in readers if not reader.session.is_slave]
    if not masters:
        raise TriohaError("only a master's session has puts; name that one (and its slaves')")
    search = _search(request, at_wall_ns)
    found = [put for reader in masters if (put := search(reader)) is not None]
    if not found:
        raise TriohaError(f"--explain {request}: no put of that name in these sessions; say {REQUEST_HINT}")
    put = max(found, key=_waited_us) if request == "slowest" else min(found, key=_began_ns)
    return _story(put, readers)


def _waited_us(put: Put) -> int:
    return 0 if put.end is None else int(put.end["size"])


def _began_ns(put: Put) -> int:
    return put.reader.session.wall_of(int(put.first["ts_ns"]))


# -- the put ----------------------------------------------------------------------------------------------


def _search(request: str, at_wall_ns: int | None) -> Callable[[SessionReader], Put | None]:
    """Finds the put in a session. Raises TriohaError if `request` names none."""
    if request in {"slowest", "failed"}:
        search = slowest_end if request == "slowest" else first_failure
        return lambda reader: _put_of(reader, search(_records(reader), _from_ns(reader, at_wall_ns)))
    is_offset = request.startswith("@")
    try:
        number = parse_int(request.removeprefix("@"), NATURAL64)
    except ValueError:
        raise TriohaError(f"--explain {request}: not a put; say {REQUEST_HINT}") from None
    if is_offset:
        return lambda reader: _put_of(reader, put_at(_records(reader), number))
    return lambda reader: _put(reader, records_of_put(_records(reader), number))


def _records(reader: SessionReader) -> Iterator[Array]:
    """All records of a session."""
    return (chunk.records for chunk in reader.scan())


def _from_ns(reader: SessionReader, at_wall_ns: int | None) -> int:
    """A time on the monotonic clock of the session; 0 without one."""
    session = reader.session
    return 0 if at_wall_ns is None else at_wall_ns - session.wall_ns + session.monotonic_ns


def _put_of(reader: SessionReader, record: np.void | None) -> Put | None:
    """The put that a record of it belongs to."""
    if record is None:
        return None
    request_id, seq = int(record["aux"]), int(record["seq"])
    near = reader.records_between(max(reader.first_seq, seq - NEAR_RECORDS), seq + NEAR_RECORDS)
    found = records_of_put([near], request_id)
    if len(found) < len(KINDS_OF_PUT):
        found = records_of_put(_records(reader), request_id)
    return _put(reader, found)


def _put(reader: SessionReader, found: Mapping[Kind, np.void]) -> Put | None:
    return Put(reader, *map(found.get, KINDS_OF_PUT)) if found else None


# -- its story --------------------------------------------------------------------------------------------


@frozen
class _Step:
    wall_ns: int
    what: str
    sentence: str
    conn: int | None = None


@frozen(eq=False)
class _SlaveEnd:
    """A connection of the put, and what its slave's session has of it."""

    link: Link
    span: ConnectionSpan


def _slave_ends(put: Put, conns: Collection[int], readers: Sequence[SessionReader]) -> list[_SlaveEnd]:
    """The slaves' ends of these connections, as far as there are sessions of slaves."""
    broker_name = put.reader.session.identity.broker_name
    slaves = [
        one
        for one in readers
        if one.session.is_slave and one.session.identity.broker_name == broker_name and one.records
    ]
    if not slaves or not conns:
        return []
    sessions = [put.reader, *slaves]
    spans = [
        connection_spans(_records(one), is_slave=one.session.is_slave, put_end_offset=put.end_offset)
        for one in sessions
    ]
    work = list(
        link_work(
            one
            for index, (reader, its_spans) in enumerate(zip(sessions, spans, strict=True))
            for one in _frames(index, reader.session, its_spans)
        )
    )
    # Also the other connections that a slave's may be: the one that fits best counts.
    slave_ends = {slave for one in work if one.master.conn in conns for slave in one.slaves}
    starts = ConnectionStarts()
    compared = [
        candidate
        for one in work
        if one.master.conn in conns or not slave_ends.isdisjoint(one.slaves)
        for candidate in compare(one, starts)
    ]
    spans_of = dict(zip((one.session.path for one in sessions), spans, strict=True))
    return [
        _SlaveEnd(link, spans_of[link.slave.path][link.slave_conn])
        for link in links_of(compared)
        if link.master_conn in conns
    ]


def _frames(index: int, session: Session, spans: Mapping[int, ConnectionSpan]) -> Iterator[ConnectionFrames]:
    for conn, span in sorted(spans.items()):
        if span.start_offset is not None:
            yield ConnectionFrames(
                broker_name=session.identity.broker_name,
                is_slave=session.is_slave,
                session_index=index,
                path=session.path,
                conn=conn,
                first_seq=span.first_seq,
                start_offset=span.start_offset,
                end_offset=span.end_offset,
            )


def _story(put: Put, readers: Sequence[SessionReader]) -> dict[str, Any]:
    reader, session = put.reader, put.reader.session
    first = put.first
    end_offset = put.end_offset
    last_seq = int(first["seq"] if put.end is None else put.end["seq"]) + 1
    records = reader.records_between(int(first["seq"]), last_seq + AFTERWARDS_RECORDS_MAX)
    addresses = connection_addresses(reader)
    steps = list(_own_steps(put))
    snapshot = reader.snapshot_at(int(first["seq"]))
    open_conns = {}
    for conn, its_records in snapshot.connections():
        at = connection_state(its_records, is_slave=False)
        if not at.has_requested:
            continue
        open_conns[conn] = at
        if at.state == HaState.TRANSFER:
            sentence = (
                f"{_peer(conn, addresses)} was open: sent to {at.sent_offset}, acknowledged {at.ack_offset}"
            )
            steps.append(_Step(_began_ns(put), "open", sentence, conn))
    conns = sorted({*open_conns, *_requested(records)})
    steps += _connection_steps(put, records, addresses, conns)
    slave_ends = _slave_ends(put, conns, readers)
    for one in slave_ends:
        steps += _slave_steps(one, addresses)
    flushed = records[(records["kind"] == Kind.FLUSHED) & (records["offset"] >= end_offset)]
    if len(flushed):
        took_ms = int(flushed["aux"][0]) / 1e6
        steps.append(
            _Step(
                session.wall_of(int(flushed["ts_ns"][0])),
                "flushed",
                f"the own disk had it (that flush took {took_ms:,.3f} ms)",
            )
        )
    cause, cause_conn = _cause(put, records[records["seq"] < last_seq], frozenset(open_conns))
    began_ns = _began_ns(put)
    steps.sort(key=_when)
    status = None if put.end is None else _status(put.end)
    waited_ms = None if put.end is None else int(put.end["size"]) / 1000
    need = None if put.begin is None else int(put.begin["size"]) - 1
    return {
        "session": session.path.resolve().name,
        "brokerName": session.identity.broker_name,
        "brokerId": session.identity.broker_id,
        "request": int(first["aux"]),
        "startOffset": None if put.put is None else end_offset - int(put.put["size"]),
        "endOffset": end_offset,
        "atMs": began_ns / 1e6,
        "acksNeeded": need,
        "status": status,
        "waitedMs": waited_ms,
        "cause": cause,
        "causeConn": cause_conn,
        "summary": _summary(put, cause, cause_conn, addresses, has_slaves=bool(open_conns)),
        "clocks": [_clock(one.link) for one in slave_ends],
        "steps": [
            {
                "atMs": step.wall_ns / 1e6,
                "afterMs": (step.wall_ns - began_ns) / 1e6,
                "what": step.what,
                "conn": step.conn,
                "sentence": step.sentence,
            }
            for step in steps
        ],
    }


def _when(step: _Step) -> int:
    return step.wall_ns


def _own_steps(put: Put) -> Iterator[_Step]:
    wall_of = put.reader.session.wall_of
    if put.put is not None:
        size, end = int(put.put["size"]), int(put.put["offset"])
        sentence = f"stored at {end - size}, {size:,} bytes, to {end}"
        yield _Step(wall_of(int(put.put["ts_ns"])), "stored", sentence)
    if put.begin is not None:
        need = int(put.begin["size"]) - 1
        sentence = f"began to wait for {need} acks" if need else "began to wait for the own disk only"
        yield _Step(wall_of(int(put.begin["ts_ns"])), "waits", sentence)
    if put.end is not None:
        waited_ms = int(put.end["size"]) / 1000
        sentence = f"answered {_status(put.end)}, having waited {waited_ms:,.3f} ms"
        yield _Step(wall_of(int(put.end["ts_ns"])), "answered", sentence)


def _requested(records: Array) -> list[int]:
    """Connections that these records show a request of: others are probes."""
    conns: list[int] = np.unique(records["conn"][shows_request(records)]).tolist()
    return [conn for conn in conns if conn != NO_CONNECTION]


def _connection_steps(
    put: Put, records: Array, addresses: dict[int, str], conns: Sequence[int]
) -> Iterator[_Step]:
    """Sent, acknowledged (late acks too), refused and ended on each connection."""
    wall_of, end_offset = put.reader.session.wall_of, put.end_offset
    end_seq = None if put.end is None else int(put.end["seq"])
    kind = records["kind"]
    for conn in conns:
        own = records["conn"] == conn
        peer = _peer(conn, addresses)
        frames = records[own & (kind == Kind.TRANSFER)]
        frames = frames[reached_offsets(frames) >= end_offset]
        if len(frames) and frames["offset"][0] < end_offset:
            frame = frames[0]
            sentence = (
                f"its last byte went to {peer} in a frame of {frame['size']:,} bytes at {frame['offset']}"
            )
            yield _Step(wall_of(int(frame["ts_ns"])), "sent", sentence, conn)
        acks = records[own & (kind == Kind.ACK) & (records["offset"] >= end_offset)]
        if len(acks):
            late = end_seq is not None and int(acks["seq"][0]) > end_seq
            sentence = f"{peer} acknowledged {acks['offset'][0]}" + (", too late" if late else "")
            yield _Step(wall_of(int(acks["ts_ns"][0])), "acked", sentence, conn)
        ends = records[own & np.isin(kind, (Kind.CLOSED, Kind.REFUSED))]
        if end_seq is not None:
            ends = ends[ends["seq"] < end_seq]
        for ended in ends:
            reason = code_name(CloseReason, int(ended["flags"]))
            verb = "ended" if ended["kind"] == Kind.CLOSED else "was refused"
            yield _Step(wall_of(int(ended["ts_ns"])), verb, f"{peer} {verb}: {reason}", conn)


def _slave_steps(end: _SlaveEnd, addresses: dict[int, str]) -> Iterator[_Step]:
    """The slave's steps, at times of the master's clock."""
    link, slave = end.link, end.link.slave
    peer = f"the slave {slave.identity.broker_id} ({_peer(link.master_conn, addresses)})"
    for ts_ns, what, name in (
        (end.span.taken_ns, "received", "took its last byte"),
        (end.span.acked_ns, "reported", "reported it"),
    ):
        if ts_ns is not None:
            yield _Step(link.master_wall_ns(slave.wall_of(ts_ns)), what, f"{peer} {name}", link.master_conn)


def _cause(put: Put, records: Array, opened: frozenset[int]) -> tuple[str | None, int | None]:
    """Cause of a put by its records; `opened`: connections that were open just before them."""
    if put.begin is None or put.end is None:
        return None, None
    reader, first_seq = put.reader, int(put.first["seq"])

    def before() -> Iterator[Array]:
        for count in BEFORE_RECORDS:
            yield reader.records_between(max(reader.first_seq, first_seq - count), first_seq)

    batch = EventBatch(records, SessionSettings.of(reader.session), is_first=False)
    end = int(np.searchsorted(batch.records["seq"], put.end["seq"]))
    cause, conn = cause_of(batch, end, before=before, opened=opened)
    return CAUSES[cause], None if conn == NO_CONNECTION else conn


def _summary(
    put: Put, cause: str | None, conn: int | None, addresses: dict[int, str], *, has_slaves: bool
) -> str:
    if put.end is None:
        if put.begin is None:
            return "It waited for nothing."
        return "It was never answered: the node stopped, or the producer went away, while it waited."
    status, waited_ms = _status(put.end), int(put.end["size"]) / 1000
    begun = f"{status} after {waited_ms:,.3f} ms"
    peer = "" if conn is None else _peer(conn, addresses)
    is_ok = status == PutStatus.PUT_OK.name
    match cause:
        case None:
            return f"{begun}; the begin of its wait is not in the recording."
        case _ if cause == CAUSES[NO_SLAVE]:
            others = "" if has_slaves else "; no connection was open"
            return f"{begun}: fewer slaves were in sync than it needed{others}."
        case _ if cause == CAUSES[FLUSH]:
            return f"{begun}: it waited for the own disk."
        case _ if cause == CAUSES[SEND] and is_ok:
            return f"{begun}: {peer} was last, and most of the time went before it was sent to it."
        case _ if cause == CAUSES[ACK] and is_ok:
            return f"{begun}: {peer} was last, and most of the time went from sending it to the ack."
        case _ if cause == CAUSES[ACK]:
            return f"{begun}: {peer} was sent it and did not acknowledge it in time."
        case _ if cause == CAUSES[SEND]:
            return f"{begun}: it was not sent to the slaves that had not acknowledged it."
        case _:
            return f"{begun}: it had to wait for nothing."


def _clock(link: Link) -> Row:
    return {
        "session": link.slave.path.resolve().name,
        "brokerId": link.slave.identity.broker_id,
        "conn": link.master_conn,
        "slaveConn": link.slave_conn,
        "frames": link.frames,
        "aheadMs": None if link.clock_offset_ns is None else link.clock_offset_ns / 1e6,
        "uncertainMs": None if link.clock_error_ns is None else link.clock_error_ns / 1e6,
    }


def _peer(conn: int, addresses: dict[int, str]) -> str:
    address = addresses.get(conn)
    return f"connection {conn} ({address})" if address else f"connection {conn}"


def _status(end: np.void) -> str:
    return code_name(PutStatus, int(end["flags"]))

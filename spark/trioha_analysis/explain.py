"""The story of one put: `trioha replay --explain`. Needs no Spark.

A put is named by its request id, by `@OFFSET` (a physical offset of its record, as message ids have it), or
as `slowest` or `failed` (the first one that failed, at or after a time if one is given).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from attrs import frozen

from trioha.errors import TriohaError
from trioha.numbers import NATURAL64, parse_int
from trioha.recording.clocks import Link, links
from trioha.recording.events import NO_CONNECTION, CloseReason, HaState, Kind, PutStatus, code_name
from trioha.recording.invariants.event_batch import EventBatch, SessionSettings
from trioha.recording.session_reader import SessionReader
from trioha.recording.snapshot import connection_state
from trioha.recording.state_arrays import Array, reached_offsets, shows_request
from trioha_analysis.causes import ACK, BEFORE_RECORDS, CAUSES, FLUSH, NO_SLAVE, SEND, cause_of
from trioha_analysis.state_at import connection_addresses

Row = dict[str, Any]

AFTERWARDS_RECORDS_MAX: Final = 1_000_000
"""Records after a put's end that are searched for late acks of it."""
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

    Raises TriohaError if no session has such a put.
    """
    masters = [reader for reader in readers if not reader.session.is_slave]
    if not masters:
        raise TriohaError("only a master's session has puts; name that one (and its slaves')")
    found = [put for reader in masters if (put := _find(reader, request, at_wall_ns)) is not None]
    if not found:
        raise TriohaError(f"--explain {request}: no put of that name in these sessions; say {REQUEST_HINT}")
    put = max(found, key=_waited_us) if request == "slowest" else min(found, key=_began_ns)
    its_links = [link for link in links(readers) if link.master is put.reader.session]
    slaves = {
        link.slave.path: reader for link in its_links for reader in readers if reader.session is link.slave
    }
    return _story(put, its_links, slaves)


def _waited_us(put: Put) -> int:
    return 0 if put.end is None else int(put.end["size"])


def _began_ns(put: Put) -> int:
    return put.reader.session.wall_of(int(put.first["ts_ns"]))


# -- the put ----------------------------------------------------------------------------------------------


def _find(reader: SessionReader, request: str, at_wall_ns: int | None) -> Put | None:
    session = reader.session
    from_ns = 0 if at_wall_ns is None else at_wall_ns - session.wall_ns + session.monotonic_ns
    if request in {"slowest", "failed"}:
        end = None
        for records in _chunks(reader):
            ends = records[(records["kind"] == Kind.WAIT_END) & (records["ts_ns"] >= from_ns)]
            if request == "failed":
                ends = ends[ends["flags"] != PutStatus.PUT_OK]
                if len(ends):
                    end = ends[0]
                    break
            elif len(ends):
                slowest = ends[ends["size"].argmax()]
                end = slowest if end is None or slowest["size"] > end["size"] else end
        return None if end is None else _records_of(reader, int(end["aux"]))
    if request.startswith("@"):
        offset = _number(request, request[1:])
        for records in _chunks(reader):
            puts = records[records["kind"] == Kind.PUT]
            inside = puts[(puts["offset"] > offset) & (puts["offset"] - puts["size"] <= offset)]
            if len(inside):
                return _records_of(reader, int(inside["aux"][0]))
        return None
    return _records_of(reader, _number(request, request))


def _number(request: str, text: str) -> int:
    try:
        return parse_int(text, NATURAL64)
    except ValueError:
        raise TriohaError(f"--explain {request}: not a put; say {REQUEST_HINT}") from None


def _records_of(reader: SessionReader, request_id: int) -> Put | None:
    by_kind: dict[int, np.void] = {}
    for records in _chunks(reader):
        kind = records["kind"]
        of_put = (kind == Kind.PUT) | (kind == Kind.WAIT_BEGIN) | (kind == Kind.WAIT_END)
        for record in records[of_put & (records["aux"] == request_id)]:
            by_kind.setdefault(int(record["kind"]), record)
        if Kind.WAIT_END in by_kind:
            break
    if not by_kind:
        return None
    return Put(reader, by_kind.get(Kind.PUT), by_kind.get(Kind.WAIT_BEGIN), by_kind.get(Kind.WAIT_END))


def _chunks(reader: SessionReader) -> Iterator[Array]:
    for chunk in reader.scan():
        yield chunk.records


# -- its story --------------------------------------------------------------------------------------------


@frozen
class _Step:
    wall_ns: int
    what: str
    sentence: str
    conn: int | None = None


def _story(put: Put, its_links: Sequence[Link], slaves: Mapping[Path, SessionReader]) -> dict[str, Any]:
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
    steps += _connection_steps(put, records, addresses, open_conns)
    for link in its_links:
        steps += _slave_steps(put, link, slaves[link.slave.path], addresses)
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
        "clocks": [_clock(link) for link in its_links],
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


def _connection_steps(
    put: Put, records: Array, addresses: dict[int, str], open_conns: Collection[int]
) -> Iterator[_Step]:
    """Sent, acknowledged (late acks too), refused and ended on each connection; probes are left out."""
    wall_of, end_offset = put.reader.session.wall_of, put.end_offset
    end_seq = None if put.end is None else int(put.end["seq"])
    kind = records["kind"]
    conns: list[int] = np.unique(records["conn"][records["conn"] != NO_CONNECTION]).tolist()
    for conn in conns:
        own = records["conn"] == conn
        if conn not in open_conns and not shows_request(records[own]).any():
            continue
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


def _slave_steps(put: Put, link: Link, reader: SessionReader, addresses: dict[int, str]) -> Iterator[_Step]:
    """The slave's steps, at times of the master's clock."""
    end_offset = put.end_offset
    found: set[int] = set()
    peer = f"the slave {reader.session.identity.broker_id} ({_peer(link.master_conn, addresses)})"
    for records in _chunks(reader):
        own = records[records["conn"] == link.slave_conn]
        for kind, what, name in (
            (Kind.RECEIVED, "received", "took its last byte"),
            (Kind.REPORTED, "reported", "reported it"),
        ):
            of_kind = own[own["kind"] == kind]
            enough = of_kind[reached_offsets(of_kind) >= end_offset]
            # A slave that had the bytes when it connected did not receive them in this session.
            if kind == Kind.RECEIVED:
                enough = enough[enough["offset"] < end_offset]
            if len(enough) and kind not in found:
                found.add(kind)
                wall_ns = link.master_wall_ns(reader.session.wall_of(int(enough["ts_ns"][0])))
                yield _Step(wall_ns, what, f"{peer} {name}", link.master_conn)
        if len(found) == 2:
            return


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

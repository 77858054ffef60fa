"""How events become state, the one definition of it. Not for a node, which has no NumPy.

`aggregate` makes a `SessionPart` of records: counters and progress of each connection, counters of the node.
`combine` joins parts of one session that follow each other. It is associative, and `combine([aggregate(a),
aggregate(b)])` is `aggregate(a and b)`: a session can be cut anywhere, aggregated in parallel, and joined.
`trioha_sessions.figures` makes the figures of the joined part.

Theory of operation. Counts, last values and largest values add up (`ConnectionCounters`). Two figures of a
master's connection need earlier events: the lag needs the last ack, and an ack's latency the frames in flight
(`Progress`). A part that begins within a connection has neither. It keeps its first events as they are
(`ConnectionEvents`), up to the first ack that covers everything sent before the part, and aggregates the rest
from there; joined to an earlier part, the kept events are aggregated too. There are about as many of them as
frames in flight.

Offsets only grow on a connection, so its final offset is the largest. A slave may replace its own log between
two connections, so of the node the last offset counts.

KEYFRAME records repeat events of earlier segments and are ignored, unless no segment came before
(`is_first`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
from attrs import evolve, field, frozen
from numpy.typing import NDArray

from trioha.recording.events import HaState, Kind, LinkEvent
from trioha.recording.state import FRAME_KINDS, LOG_END_KINDS, STAGES, UNKNOWN
from trioha_sessions.counters import ConnectionCounters, NodeCounters
from trioha_sessions.histogram import Histogram
from trioha_sessions.invariants.event_batch import (
    HEARTBEAT_RECEIVED,
    Columns,
    EventBatch,
    EventStream,
    GroupedEvents,
    SessionSettings,
)
from trioha_sessions.progress import KEPT_MAX, ConnectionEvents, Progress, no_events
from trioha_sessions.snapshot import keyframes_to_events
from trioha_sessions.state_arrays import (
    Array,
    Bools,
    first_covering,
    kind_mask,
    last_log_end,
    log_ends,
)
from trioha_sessions.time_series import TimeGrid, TimeSeries

_IS_OF_CONNECTION: Final = kind_mask((*LOG_END_KINDS, HEARTBEAT_RECEIVED))
"""By code of an `EventBatch`: a LINK says nothing of its connection."""


@frozen(eq=False)
class ConnectionPart:
    """One connection, by some of its events."""

    counters: ConnectionCounters
    head: ConnectionEvents = field(factory=no_events)
    """First events, not aggregated until the part before is known; empty for a slave."""
    progress: Progress | None = None
    """Of the events after the head; None if there are none."""

    def followed_by(self, later: ConnectionPart, grid: TimeGrid) -> ConnectionPart:
        """This part and the one after it together."""
        counters = self.counters + later.counters
        if self.progress is None:
            return ConnectionPart(counters, self.head + later.head, later.progress).bounded(grid)
        progress = self.progress.after(later.head, grid)
        if later.progress is not None:
            progress = progress.followed_by(later.progress)
        return ConnectionPart(counters, self.head, progress)

    def bounded(self, grid: TimeGrid) -> ConnectionPart:
        """This part with at most `KEPT_MAX` events in its head.

        A longer one is of a connection without an ack for so long. It is aggregated as if nothing came
        before: the lag up to its first ack does not count.
        """
        if len(self.head) <= KEPT_MAX:
            return self
        return ConnectionPart(self.counters, no_events(), evolve(self.finished(grid), knows_before=False))

    def finished(self, grid: TimeGrid) -> Progress:
        """Lag and latency when nothing came before."""
        progress = Progress().after(self.head, grid)
        return progress if self.progress is None else progress.followed_by(self.progress)


@frozen(eq=False)
class SessionPart:
    """One session, by some of its records."""

    grid: TimeGrid
    node: NodeCounters = field(factory=NodeCounters)
    connections: Mapping[int, ConnectionPart] = field(factory=dict)
    """By connection number; without those of `probes`."""
    probes: Mapping[int, int] = field(factory=dict)
    """`CloseReason` by connection number of connections of a master's session that began and ended in this
    part without a request. Other probes are those whose figures have no `requested_ts_ns`."""


def combine(parts: Iterable[SessionPart]) -> SessionPart:
    """Join `parts` of one session, at least one, that follow each other."""
    return reduce(_combine, parts)


def _combine(earlier: SessionPart, later: SessionPart) -> SessionPart:
    assert earlier.grid == later.grid, "parts of one session have one grid"
    connections = dict(earlier.connections)
    for conn, part in later.connections.items():
        known = connections.get(conn)
        connections[conn] = part if known is None else known.followed_by(part, earlier.grid)
    probes = {**earlier.probes, **later.probes}
    return SessionPart(earlier.grid, earlier.node + later.node, connections, probes)


def aggregate(records: Array, *, is_slave: bool, grid: TimeGrid, is_first: bool = False) -> SessionPart:
    """Aggregate `records` of one session, in the order of their seq.

    `is_slave`: whether a slave recorded them. `is_first`: no records came before, so that KEYFRAMEs count.
    """
    return aggregate_batch(EventBatch(records, SessionSettings(is_slave, {}), is_first), grid)


def aggregate_batch(batch: EventBatch, grid: TimeGrid) -> SessionPart:
    """As `aggregate`, of records that other rules share."""
    raw = batch.raw
    node = _aggregate_node(batch.columns if batch.repeated is None else Columns(raw), raw, grid)
    is_key = None
    if batch.repeated is not None:
        # Unlike invariants, figures need every event that a KEYFRAME repeats.
        is_key = raw["kind"] == Kind.KEYFRAME
        records = raw.copy()
        records[is_key] = keyframes_to_events(raw[is_key])
        node = _node_at_keyframes(Columns(records[is_key])) + node
        batch = EventBatch(records, batch.settings, is_first=False)
    grouped = _of_connections(batch.connections)
    shows_request = batch.requests
    probes = {} if batch.settings.is_slave else _probes(grouped, shows_request)
    connections = {
        conn: _aggregate_connection(
            grouped, group, shows_request, is_key, is_slave=batch.settings.is_slave, grid=grid
        )
        for group, conn in enumerate(grouped.keys.tolist())
        if conn not in probes
    }
    return SessionPart(grid, node, connections, probes)


def _probes(grouped: GroupedEvents, shows_request: Bools) -> dict[int, int]:
    """Connections that began and ended in these records without a request: `CloseReason` by number."""
    ends = grouped.stream((Kind.CLOSED,))
    if not len(ends):
        return {}
    ended = np.flatnonzero(np.diff(ends.bounds))
    births = grouped.stream((Kind.STATE,))
    rows = births.rows[births["flags"] == HaState.HANDSHAKE]
    has_birth = np.diff(np.append(np.searchsorted(rows, grouped.begins), len(rows))) > 0
    assert grouped.places is not None, "connections are sorted"
    row_requests = shows_request[grouped.places]
    probes: dict[int, int] = {}
    for group in ended[has_birth[ended]].tolist():
        if not row_requests[grouped.begins[group] : grouped.ends[group]].any():
            last = int(ends.bounds[group + 1]) - 1
            probes[int(grouped.keys[group])] = int(ends["flags"][last])
    return probes


def _of_connections(grouped: GroupedEvents) -> GroupedEvents:
    """`grouped` without records that say nothing of their connection (LINK)."""
    is_of_connection = _IS_OF_CONNECTION[grouped.codes]
    if is_of_connection.all():
        return grouped
    rows = np.flatnonzero(is_of_connection)
    begins = np.searchsorted(rows, np.append(grouped.begins, len(grouped.codes)))
    has_any = np.diff(begins) > 0
    assert grouped.places is not None, "connections are sorted"
    return GroupedEvents(
        grouped.columns,
        grouped.codes[rows],
        grouped.places[rows],
        grouped.keys[has_any],
        begins[:-1][has_any],
    )


def _node_at_keyframes(stated: Columns) -> NodeCounters:
    offset, kind = stated["offset"], stated["kind"]
    return NodeCounters(
        put_offset=_last(offset[kind == Kind.PUT]),
        flushed_offset=_last(offset[kind == Kind.FLUSHED]),
        dispatched_offset=_last(offset[kind == Kind.DISPATCHED]),
        # They are in the order of the connections: the largest is the latest.
        max_offset=_largest(log_ends(stated)[1]),
    )


def _aggregate_node(columns: Columns, raw: Array, grid: TimeGrid) -> NodeCounters:
    """`columns`: the fields of `raw`, with or without its KEYFRAMEs."""
    if not len(raw):
        return NodeCounters()
    kind = columns["kind"]
    counts = np.bincount(raw["kind"], minlength=256)
    puts, ended, flushed, dispatched, dropped, linked = (
        Columns(columns, np.flatnonzero(kind == code) if counts[code] else np.zeros(0, np.int64))
        for code in (Kind.PUT, Kind.WAIT_END, Kind.FLUSHED, Kind.DISPATCHED, Kind.DROPPED, Kind.LINK)
    )
    waited_us, status = np.maximum(ended["size"], 0), ended["flags"]
    return NodeCounters(
        events=len(raw),
        dropped=int(dropped["aux"].sum()),
        first_ts_ns=int(raw["ts_ns"][0]),
        last_ts_ns=int(raw["ts_ns"].max()),
        puts=len(puts["size"]),
        put_bytes=int(puts["size"].sum()),
        put_offset=_last(puts["offset"]),
        flushed_offset=_last(flushed["offset"]),
        dispatched_offset=_last(dispatched["offset"]),
        max_offset=last_log_end(columns),
        waits_begun=int(counts[Kind.WAIT_BEGIN]),
        waits={
            code: Histogram.of(waited_us[status == code])
            for code in np.flatnonzero(np.bincount(status)).tolist()
        },
        connects=int(np.count_nonzero(linked["flags"] == LinkEvent.CONNECTED)),
        kinds={code: int(counts[code]) for code in np.flatnonzero(counts).tolist()},
        put_series=TimeSeries.over(grid, puts["ts_ns"], puts["offset"]),
    )


class _OfKind:
    """The records of a kind of one connection, by field."""

    def __init__(self, stream: EventStream, group: int, is_key: Bools | None) -> None:
        """`is_key`: which records of the batch repeat earlier ones as KEYFRAMEs; None if none does."""
        self._stream = stream
        self._own = slice(*stream.bounds[group : group + 2].tolist())
        self.rows = stream.rows[self._own]
        """Places in the group's stream; shape (n,)."""
        self.is_key = (
            np.zeros(len(self.rows), np.bool_) if is_key is None else is_key[stream.places[self._own]]
        )
        """Shape (n,)."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._stream[name][self._own]

    @property
    def count(self) -> int:
        """How many of them are events of their own, not repeated by KEYFRAMEs."""
        return len(self) - int(np.count_nonzero(self.is_key))


def _aggregate_connection(
    grouped: GroupedEvents,
    group: int,
    shows_request: Bools,
    is_key: Bools | None,
    *,
    is_slave: bool,
    grid: TimeGrid,
) -> ConnectionPart:
    """`shows_request`: which records of the batch show a request; `is_key`: which repeat earlier ones as
    KEYFRAMEs, None if none does."""
    begin, end = int(grouped.begins[group]), int(grouped.ends[group])
    ts_ns, max_offset = grouped.rows["ts_ns"][begin:end], grouped.rows["aux"][begin:end]

    def of(*kinds: int) -> _OfKind:
        return _OfKind(grouped.stream(kinds), group, is_key)

    frames = of(Kind.RECEIVED if is_slave else Kind.TRANSFER)
    acks, reports = of(Kind.ACK), of(Kind.REPORTED)
    went_out, came_in = of(Kind.HEARTBEAT), of(HEARTBEAT_RECEIVED)
    states, ended, requests = of(Kind.STATE), of(Kind.CLOSED), of(Kind.REQUESTED)
    frame_end = frames["offset"] + frames["size"]
    offsets: dict[str, int] = {}
    series: dict[str, TimeSeries] = {}
    for stage, kinds in STAGES[is_slave].items():
        reached = [
            (some, frame_end if kind in FRAME_KINDS else some["offset"])
            for kind in kinds
            for some in (of(kind),)
        ]
        offsets[stage] = max(_largest(values) for _, values in reached)
        series[stage] = reduce(
            TimeSeries.__add__,
            (TimeSeries.over(grid, ts_ns[some.rows - begin], values) for some, values in reached),
        )
    shows = shows_request[grouped.places_of(begin, end)]
    counters = ConnectionCounters(
        first_seq=int(grouped.rows["seq"][begin]),
        first_ts_ns=int(ts_ns[0]),
        requested_ts_ns=int(ts_ns[shows.argmax()]) if shows.any() else UNKNOWN,
        last_ts_ns=int(ts_ns.max()),
        state=int(states["flags"][-1]) if len(states) else UNKNOWN,
        close_reason=int(ended["flags"][-1]) if len(ended) else UNKNOWN,
        closed_ts_ns=_largest(ts_ns[ended.rows - begin]),
        frames=frames.count,
        body_bytes=int(frames["size"][~frames.is_key].sum()),
        heartbeats_sent=went_out.count,
        heartbeats_received=came_in.count,
        acks=(reports if is_slave else acks).count,
        refused=len(of(Kind.REFUSED)),
        request_offset=int(requests["offset"][0]) if len(requests) else UNKNOWN,
        max_offset=_largest(max_offset),
        max_series=TimeSeries.over(grid, ts_ns, max_offset),
        sent_offset=offsets.get("sent", UNKNOWN),
        ack_offset=offsets.get("ack", UNKNOWN),
        received_offset=offsets.get("received", UNKNOWN),
        reported_offset=offsets.get("reported", UNKNOWN),
        sent_series=series.get("sent", TimeSeries()),
        ack_series=series.get("ack", TimeSeries()),
        received_series=series.get("received", TimeSeries()),
        reported_series=series.get("reported", TimeSeries()),
    )
    if is_slave:
        return ConnectionPart(counters)
    in_flight = np.flatnonzero(~frames.is_key & (frame_end >= 0))
    acked = np.flatnonzero(acks["offset"] >= 0)
    events = ConnectionEvents(
        ts_ns,
        max_offset,
        frames.rows[in_flight] - begin,
        frames["offset"][in_flight],
        frame_end[in_flight],
        acks.rows[acked] - begin,
        acks["offset"][acked],
        ended.rows - begin,
    )
    is_stated = is_key is not None and bool(is_key[grouped.places_of(begin, end)].any())
    has_start = is_stated or bool((states["flags"] == HaState.HANDSHAKE).any())
    return _split(counters, events, grid, has_start=has_start)


def _split(
    counters: ConnectionCounters, events: ConnectionEvents, grid: TimeGrid, *, has_start: bool
) -> ConnectionPart:
    """Aggregate from where no earlier event counts: the connection's start, or an ack of all sent before."""
    if has_start:
        return ConnectionPart(counters, no_events(), Progress().after(events, grid))
    starts = events.start_offset[events.start_offset >= 0]
    if len(starts):
        (first,) = first_covering(events.ack_offset, starts[:1])
        if first < len(events.acks):
            at = int(events.acks[first]) + 1
            head = events.cut(0, at)
            # The head sets the state, but its figures are left to the join with the part before.
            known = evolve(
                Progress().after(head, grid),
                lag=Histogram(),
                latency=Histogram(),
                lag_series=TimeSeries(),
                latency_series=TimeSeries(),
            )
            return ConnectionPart(counters, head, known.after(events.cut(at), grid)).bounded(grid)
    return ConnectionPart(counters, events, None).bounded(grid)


def _largest(values: NDArray[np.integer[Any]]) -> int:
    return int(values.max()) if len(values) else UNKNOWN


def _last(values: NDArray[np.integer[Any]]) -> int:
    return int(values[-1]) if len(values) else UNKNOWN

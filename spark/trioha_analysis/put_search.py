"""Questions about a put that need whole sessions: answered range by range, and the answers are joined.

A question starts without an answer, `add` reads records of one range after the other, and `followed_by`
joins it with the answer of the range after it. An answer has a few records, or a few numbers for each
connection, however long the session is: it is what tasks of `trioha_spark.explain` send back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, Self

import numpy as np
from attrs import define, evolve, field, frozen

from trioha.recording.events import NO_CONNECTION, Kind, PutStatus
from trioha.recording.session_reader import SessionReader
from trioha.recording.state_arrays import Array, reached_offsets

FRAMES_AND_ACKS: Final = {False: (Kind.TRANSFER, Kind.ACK), True: (Kind.RECEIVED, Kind.REPORTED)}
"""Kinds of a connection's frames and acks, by whether a slave recorded them."""


class Question(Protocol):
    """What is asked of a session, with the answer of the records that were read."""

    @property
    def is_done(self) -> bool:
        """Whether later records do not change the answer."""

    def add(self, records: Array) -> None:
        """Read the records that come next."""

    def followed_by(self, later: Self) -> Self:
        """The answer of this range and the one after it."""


Scan = Callable[[Sequence[tuple[SessionReader, Question]]], Sequence[Question]]
"""Answers questions by reading whole sessions; the questions that are given have no answer yet."""


def scan_here(asked: Sequence[tuple[SessionReader, Question]]) -> Sequence[Question]:
    """A `Scan` in this process, one session after the other."""
    for reader, question in asked:
        for chunk in reader.scan():
            question.add(chunk.records)
            if question.is_done:
                break
    return [question for _, question in asked]


@define(eq=False)
class SlowestEnd:
    """The WAIT_END of the put that waited longest; of several the first."""

    from_ns: int
    """Only those of this monotonic time or later."""
    end: np.void | None = None

    is_done = False

    def add(self, records: Array) -> None:
        """Read the records that come next."""
        ends = _ends(records, self.from_ns)
        if len(ends):
            self._take(ends[ends["size"].argmax()])

    def followed_by(self, later: SlowestEnd) -> SlowestEnd:
        """The answer of this range and the one after it."""
        joined = evolve(self)
        if later.end is not None:
            joined._take(later.end)
        return joined

    def _take(self, end: np.void) -> None:
        if self.end is None or end["size"] > self.end["size"]:
            self.end = end.copy()


@define(eq=False)
class FirstFailure:
    """The first WAIT_END that is not PUT_OK."""

    from_ns: int
    """Only those of this monotonic time or later."""
    end: np.void | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is one."""
        return self.end is not None

    def add(self, records: Array) -> None:
        """Read the records that come next."""
        ends = _ends(records, self.from_ns)
        failed = ends[ends["flags"] != PutStatus.PUT_OK]
        if self.end is None and len(failed):
            self.end = failed[0].copy()

    def followed_by(self, later: FirstFailure) -> FirstFailure:
        """The answer of this range and the one after it."""
        return later if self.end is None else self


def _ends(records: Array, from_ns: int) -> Array:
    ends: Array = records[(records["kind"] == Kind.WAIT_END) & (records["ts_ns"] >= from_ns)]
    return ends


@define(eq=False)
class PutAt:
    """The first PUT whose record has a physical offset."""

    offset: int
    put: np.void | None = None

    @property
    def is_done(self) -> bool:
        """Whether there is one."""
        return self.put is not None

    def add(self, records: Array) -> None:
        """Read the records that come next."""
        puts = records[records["kind"] == Kind.PUT]
        inside = puts[(puts["offset"] > self.offset) & (puts["offset"] - puts["size"] <= self.offset)]
        if self.put is None and len(inside):
            self.put = inside[0].copy()

    def followed_by(self, later: PutAt) -> PutAt:
        """The answer of this range and the one after it."""
        return later if self.put is None else self


@define(eq=False)
class RecordsOfPut:
    """The first PUT, WAIT_BEGIN and WAIT_END of a request."""

    request_id: int
    by_kind: dict[int, np.void] = field(factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether the wait's end is there, after which there is nothing of the request."""
        return int(Kind.WAIT_END) in self.by_kind

    @property
    def is_whole(self) -> bool:
        """Whether all three are there."""
        return len(self.by_kind) == 3

    def add(self, records: Array) -> None:
        """Read the records that come next."""
        if self.is_done:
            return
        kind = records["kind"]
        of_put = (kind == Kind.PUT) | (kind == Kind.WAIT_BEGIN) | (kind == Kind.WAIT_END)
        for record in records[of_put & (records["aux"] == self.request_id)]:
            self.by_kind.setdefault(int(record["kind"]), record.copy())

    def followed_by(self, later: RecordsOfPut) -> RecordsOfPut:
        """The answer of this range and the one after it."""
        if self.is_done:
            return self
        return evolve(self, by_kind={**later.by_kind, **self.by_kind})


@frozen(kw_only=True)
class ConnectionSpan:
    """Where the frames and acks of a connection are, and when it had a put's end."""

    first_seq: int
    """Of its first frame or ack."""
    start_offset: int | None = None
    """Start of its first frame in the log; None without frames."""
    end_offset: int = 0
    """Largest end of a frame."""
    taken_ns: int | None = None
    """Monotonic time of the first frame that has the last byte of the put."""
    acked_ns: int | None = None
    """Monotonic time of the first ack, or report, that covers the put."""

    def followed_by(self, later: ConnectionSpan) -> ConnectionSpan:
        """The span of this range and the one after it."""
        return ConnectionSpan(
            first_seq=self.first_seq,
            start_offset=later.start_offset if self.start_offset is None else self.start_offset,
            end_offset=max(self.end_offset, later.end_offset),
            taken_ns=later.taken_ns if self.taken_ns is None else self.taken_ns,
            acked_ns=later.acked_ns if self.acked_ns is None else self.acked_ns,
        )


@define(eq=False)
class ConnectionSpans:
    """The spans of all connections of a session."""

    is_slave: bool
    """Whether a slave recorded it."""
    put_end_offset: int
    spans: dict[int, ConnectionSpan] = field(factory=dict)
    """By connection."""

    is_done = False

    def add(self, records: Array) -> None:
        """Read the records that come next."""
        frame_kind, ack_kind = FRAMES_AND_ACKS[self.is_slave]
        kind = records["kind"]
        some = records[((kind == frame_kind) | (kind == ack_kind)) & (records["conn"] != NO_CONNECTION)]
        for conn in np.unique(some["conn"]).tolist():
            own = some[some["conn"] == conn]
            self._take(conn, self._span(own[own["kind"] == frame_kind], own[own["kind"] == ack_kind], own))

    def _span(self, frames: Array, acks: Array, both: Array) -> ConnectionSpan:
        reached = reached_offsets(frames)
        # A slave that had the bytes when it connected did not receive them in this session.
        taken = frames[(reached >= self.put_end_offset) & (frames["offset"] < self.put_end_offset)]
        acked = acks[reached_offsets(acks) >= self.put_end_offset]
        return ConnectionSpan(
            first_seq=int(both["seq"][0]),
            start_offset=int(frames["offset"][0]) if len(frames) else None,
            end_offset=int(reached.max()) if len(frames) else 0,
            taken_ns=int(taken["ts_ns"][0]) if len(taken) else None,
            acked_ns=int(acked["ts_ns"][0]) if len(acked) else None,
        )

    def _take(self, conn: int, span: ConnectionSpan) -> None:
        known = self.spans.get(conn)
        self.spans[conn] = span if known is None else known.followed_by(span)

    def followed_by(self, later: ConnectionSpans) -> ConnectionSpans:
        """The answer of this range and the one after it."""
        joined = evolve(self, spans=dict(self.spans))
        for conn, span in later.spans.items():
            joined._take(conn, span)
        return joined

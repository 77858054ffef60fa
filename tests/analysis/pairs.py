"""Sessions of a master and a slave with known producers and step times."""

from __future__ import annotations

import random
from pathlib import Path

from tests.sessions.sessions import Event, write_session
from trioha.recording.events import Kind

PUT_NS = 40_000
WAIT_BEGIN_NS = 10_000
WAIT_END_NS = 20_000
THINK_NS = 500_000
RECORD_BYTES = 1000
CONN = 1


def closed_loop(writers: int, *, rounds: int, seed: int = 1, think_ns: int = THINK_NS) -> list[Event]:
    """`writers` put at once, wait for one slave, which takes 0.3 to 3 ms, and think for 0.5 ms."""
    chance = random.Random(seed)
    return _rounds(rounds, writers, chance, lambda ended_ns: ended_ns + think_ns)


def open_loop(*, every_ns: int, rounds: int, seed: int = 1) -> list[Event]:
    """A put every `every_ns`, which is longer than the slave takes."""
    chance = random.Random(seed)
    begins = iter(range(every_ns, every_ns * (rounds + 2), every_ns))
    return _rounds(rounds, 1, chance, lambda _: next(begins))


def _rounds(rounds, writers, chance, begin_at) -> list[Event]:
    ts_ns, top, request = 1_000, 0, 0
    events = [Event(ts_ns, Kind.ACK, conn=CONN, offset=0, aux=0)]
    for number in range(rounds):
        ts_ns = begin_at(ts_ns)
        start, first = top, request
        for _ in range(writers):
            ts_ns += PUT_NS
            top, request = top + RECORD_BYTES, request + 1
            events.append(Event(ts_ns, Kind.PUT, offset=top, aux=request, size=RECORD_BYTES))
        for index in range(writers):
            ts_ns += WAIT_BEGIN_NS
            end = start + (index + 1) * RECORD_BYTES
            events.append(Event(ts_ns, Kind.WAIT_BEGIN, offset=end, aux=first + index + 1, size=2))
        ts_ns += 20_000
        events.append(Event(ts_ns, Kind.TRANSFER, conn=CONN, offset=start, aux=top, size=top - start))
        ts_ns += round(min(3_000_000, 300_000 * chance.paretovariate(2.5)))
        events.append(Event(ts_ns, Kind.ACK, conn=CONN, offset=top, aux=top))
        ts_ns += 30_000
        for index in range(writers):
            ts_ns += WAIT_END_NS
            end = start + (index + 1) * RECORD_BYTES
            events.append(Event(ts_ns, Kind.WAIT_END, offset=end, aux=first + index + 1, size=400))
        if number % 50 == 0:
            events.append(Event(ts_ns, Kind.FLUSHED, offset=top, aux=5_000_000))
    return events


def write_pair(path: Path, events: list[Event], *, role: str = "SYNC_MASTER") -> Path:
    """The master's session."""
    return write_session(path, events, role=role, addresses={CONN: "127.0.0.1:1"})

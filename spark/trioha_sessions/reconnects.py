"""Which new connection of a slave continues which lost one: the one rule for live view, replay and Spark.

A slave's port changes with every connection, so a master's connections alone do not identify replicas. A new
connection is joined to a lost one only if there is exactly one candidate. Candidates are lost connections
that no other connection continues:

1. those of the same identity, if both have one: a certificate's name, or the watched slave. Connections of
   different identities are never joined; those of one identity are joined from any host;
2. else those of the same address (host and port), as when a sample missed a connection for a moment;
3. else those of the same host;
4. and of several, those lost in the last `FRESH_NS`, if there are any: a slave that left this host long ago
   does not make the return of another one uncertain.

A lost connection that several connections of one moment could continue is joined to none of them. If several
slaves of one host (or behind one NAT) were away at once, the rule says that a slave came back, but not which:
`Arrival.candidates`. Each such arrival uses up one of its candidates, and when all are used up they are
forgotten, so that the next loss on this host is unambiguous again.

Offsets are not used: slaves in step have the same ones, a slave that verifies its tail requests less than it
has acknowledged, and so does one that lost the tail of its log.

Only a connection that requested the log takes part, from its request on. Callers leave out probes (health
checks, port scans).

A replica is its connections one after the other, with an `Outage` after each one that ended: it has its last
ack then, while the log's end moves on, so its lag goes on growing. The outage ends when the replica is back;
else with the recording, after `LOST_NS`, or when others have used up its place, and the replica is forgotten.

No clock and no I/O: times are ns on any one clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby
from typing import Final, Generic, TypeVar

from attrs import define, evolve, field, frozen

K = TypeVar("K", bound=Hashable)
_STEPS: Final = ("identity", "address", "host")
"""What candidates and a new connection have in common, the strongest first."""

FRESH_NS: Final = 300 * 10**9
"""A connection lost within this time is preferred to those lost earlier on the same host."""
LOST_NS: Final = 300 * 10**9
"""How long a replica without a connection is shown, and its lag counted: then it is forgotten."""
LOST_PER_HOST_MAX: Final = 64
"""Lost connections of one host that are kept: the latest ones."""


@frozen
class Connection(Generic[K]):
    """A connection of a slave to one master: what identifies its replica."""

    key: K
    """The caller's key, unique among connections."""
    address: str
    """The peer, `host:port`; empty if unknown, and then only an identity joins it."""
    identity: str = ""
    """Identity of the replica on any connection: a certificate's name, a watched slave. Empty if unknown."""

    @property
    def host(self) -> str:
        """The address without its port; empty if unknown."""
        host, _, port = self.address.rpartition(":")
        return host or port


@frozen
class Arrival(Generic[K]):
    """A new connection; without `previous` and `candidates` it is of a new replica."""

    connection: Connection[K]
    previous: K | None = None
    """Key of the lost connection that it continues."""
    candidates: tuple[K, ...] = ()
    """Keys of the lost connections of which it continues one, if it is not known which."""

    @property
    def is_reconnect(self) -> bool:
        """Whether a replica came back, known or not."""
        return self.previous is not None or bool(self.candidates)


@frozen
class Span(Generic[K]):
    """A connection from its request to its end."""

    connection: Connection[K]
    came_ns: int
    """Time of its request for the log."""
    lost_ns: int | None
    """When it ended; None while it is open."""


@define(eq=False)
class _Lost(Generic[K]):
    connection: Connection[K]
    at_ns: int
    places_taken: int = 0
    """Arrivals with this candidate that were joined to none."""


_Index = dict[tuple[str, str], dict[K, _Lost[K]]]


class Reconnects(Generic[K]):
    """The lost connections of one master, to be continued by new ones."""

    def __init__(self) -> None:
        self._lost: dict[K, _Lost[K]] = {}
        # By step and its value.
        self._index: _Index[K] = {}

    def lost(self, connection: Connection[K], *, at_ns: int) -> None:
        """Add `connection`, which had requested the log, as lost.

        Its `identity` is the one known by now; it may have been unknown when the connection came.
        """
        self.forget(connection.key)
        self._lost[connection.key] = lost = _Lost(connection, at_ns)
        for place in _places(connection):
            self._index.setdefault(place, {})[connection.key] = lost
        of_host = self._index.get(("host", connection.host), {})
        if len(of_host) > LOST_PER_HOST_MAX:
            self.forget(next(iter(of_host)))

    def forget(self, key: K) -> None:
        """Remove the lost connection `key`, if there is one, from the candidates."""
        lost = self._lost.pop(key, None)
        if lost is None:
            return
        for place in _places(lost.connection):
            del self._index[place][key]
            if not self._index[place]:
                del self._index[place]

    def came(self, connections: Iterable[Connection[K]], *, at_ns: int) -> list[Arrival[K]]:
        """Join `connections`, which requested the log at one moment; returns their arrivals in their order.

        Lost connections that one of them continues are removed.
        """
        new = list(connections)
        arrivals: dict[K, Arrival[K]] = {}
        for what in _STEPS:
            candidates = {
                one.key: self._candidates(what, one, at_ns=at_ns) for one in new if one.key not in arrivals
            }
            wanted = Counter(lost.connection.key for found in candidates.values() for lost in found)
            for one in new:
                found = candidates.get(one.key, [])
                if len(found) == 1 and wanted[found[0].connection.key] == 1:
                    arrivals[one.key] = Arrival(one, previous=found[0].connection.key)
                    self.forget(found[0].connection.key)
                elif found:
                    arrivals[one.key] = self._one_of(one, found)
        return [arrivals.get(one.key, Arrival(one)) for one in new]

    def __contains__(self, key: object) -> bool:
        """Whether the lost connection `key` may still be continued."""
        return key in self._lost

    def _candidates(self, what: str, connection: Connection[K], *, at_ns: int) -> list[_Lost[K]]:
        place = next((place for place in _places(connection) if place[0] == what), None)
        if place is None:
            return []
        of_place = self._index.get(place, {}).values()
        found = [lost for lost in of_place if not _are_different(lost.connection, connection)]
        return [lost for lost in found if at_ns - lost.at_ns <= FRESH_NS] or found

    def _one_of(self, connection: Connection[K], found: list[_Lost[K]]) -> Arrival[K]:
        """The arrival of a connection with several candidates, or one that others want too."""
        left = [lost for lost in found if lost.connection.key in self._lost]
        for lost in left:
            lost.places_taken += 1
        if any(lost.places_taken >= len(left) for lost in left):
            for lost in left:
                self.forget(lost.connection.key)
        return Arrival(connection, candidates=tuple(lost.connection.key for lost in left))


def pair(spans: Iterable[Span[K]], reconnects: Reconnects[K] | None = None) -> list[Arrival[K]]:
    """The arrivals of all connections of a recording, in the order of time.

    `reconnects`, an empty one if given, holds the lost connections that may still be continued afterwards.

    Connections of one time are of one moment; connections lost at that time were lost before it.
    """
    reconnects = Reconnects() if reconnects is None else reconnects
    return [arrival for _, arrivals in _paired(spans, reconnects) for arrival in arrivals]


def _paired(spans: Iterable[Span[K]], reconnects: Reconnects[K]) -> Iterator[tuple[int, list[Arrival[K]]]]:
    """The arrivals of each moment, with its time; `reconnects` is as of that moment then."""
    turns: list[tuple[int, int, int, Span[K]]] = []
    for number, span in enumerate(spans):
        turns.append((span.came_ns, 1, number, span))
        if span.lost_ns is not None:
            lost_ns = max(span.lost_ns, span.came_ns)
            turns.append((lost_ns, 0 if lost_ns > span.came_ns else 2, number, span))
    for (at_ns, turn), group in groupby(sorted(turns, key=_turn), key=_moment):
        connections = [span.connection for _, _, _, span in group]
        if turn == 1:
            yield at_ns, reconnects.came(connections, at_ns=at_ns)
        else:
            for connection in connections:
                reconnects.lost(connection, at_ns=at_ns)


@frozen
class Outage(Generic[K]):
    """Time of a replica without a connection."""

    lost: K
    """Its last connection before."""
    began_ns: int
    """When that ended."""
    ended_ns: int
    """When the next one requested the log, or the replica was forgotten, or the recording ended."""
    next: K | None = None
    """The next connection; None if the replica did not come back, or is not known to be back."""


@define(eq=False)
class Replica(Generic[K]):
    """One replica of a master: its connections one after the other."""

    connections: list[K]
    reconnects: int
    """How often it reconnected, also where its earlier connection is not known."""
    outages: list[Outage[K]] = field(factory=list)
    """One after each connection that ended, in their order."""


def replicas(spans: Iterable[Span[K]], *, end_ns: int) -> list[Replica[K]]:
    """The replicas of a recording that ends at `end_ns`, in the order of their first connections."""
    spans = list(spans)
    lost_ns = {
        span.connection.key: max(span.lost_ns, span.came_ns) for span in spans if span.lost_ns is not None
    }
    reconnects: Reconnects[K] = Reconnects()
    found: list[Replica[K]] = []
    of_connection: dict[K, Replica[K]] = {}
    for at_ns, arrivals in _paired(spans, reconnects):
        for arrival in arrivals:
            key, previous = arrival.connection.key, arrival.previous
            if previous is None:
                replica = Replica([key], int(arrival.is_reconnect))
                found.append(replica)
            else:
                replica = of_connection[previous]
                replica.connections.append(key)
                replica.reconnects += 1
                last = replica.outages[-1]
                replica.outages[-1] = evolve(last, ended_ns=min(last.ended_ns, at_ns), next=key)
            of_connection[key] = replica
            if key in lost_ns:
                began_ns = lost_ns[key]
                replica.outages.append(Outage(key, began_ns, max(began_ns, min(end_ns, began_ns + LOST_NS))))
            for candidate in arrival.candidates:
                if candidate not in reconnects:
                    place = of_connection[candidate].outages
                    place[-1] = evolve(place[-1], ended_ns=min(place[-1].ended_ns, at_ns))
    return found


def _places(connection: Connection[K]) -> list[tuple[str, str]]:
    """Keys of a connection in the index: step and value."""
    places = zip(_STEPS, (connection.identity, connection.address, connection.host), strict=True)
    return [place for place in places if place[1]]


def _are_different(one: Connection[K], other: Connection[K]) -> bool:
    return bool(one.identity and other.identity and one.identity != other.identity)


def _turn(turn: tuple[int, int, int, Span[K]]) -> tuple[int, int, int]:
    return turn[:3]


def _moment(turn: tuple[int, int, int, Span[K]]) -> tuple[int, int]:
    return turn[:2]

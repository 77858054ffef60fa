"""Which new connection of a slave continues which lost one: the one rule for live view, replay and Spark.

A slave's port changes with every connection, so a master's connections do not say which of them are one
replica. A new connection is joined to a lost one only where there is exactly one candidate. The candidates
are, of the connections that were lost and that no other one continues:

1. those of the same identity, where both have one: a certificate's name, or which watched slave it is. Two
   different identities are never joined, and one identity is joined from any host;
2. else those of the very same address (host and port), as when a sample missed a connection for a moment;
3. else those of the same host;
4. and of several, those that were lost in the last `FRESH_NS`, if there are such: a slave that left this host
   long ago does not make the return of another one uncertain.

A lost connection that several new ones of one moment could continue is joined to none of them. Where several
slaves of one host (or behind one NAT) were away at once, the rule says that a slave came back, but not which:
`Arrival.candidates`. Each such arrival takes one place among its candidates, and when all their places are
taken they are forgotten: the next loss on this host is told apart again.

Offsets decide nothing: slaves in step have the same ones, a slave that verifies its tail asks for less than
it has acknowledged, and one that lost the tail of its log does too.

Only a connection that asked for the log takes part, from its request on: a probe (a health check, a port
scan) is neither a new connection nor a lost one here. Callers leave probes out.

No clock and no I/O: times are ns on any clock that the caller keeps to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import Final, Generic, TypeVar

from attrs import define, frozen

K = TypeVar("K", bound=Hashable)
_STEPS: Final = ("identity", "address", "host")
"""What candidates have in common with a new connection, in the order in which it counts."""

FRESH_NS: Final = 300 * 10**9
"""Time since a loss within which it is preferred to earlier ones of the same host."""
LOST_PER_HOST_MAX: Final = 64
"""Lost connections of one host that are remembered: the latest ones."""


@frozen
class Connection(Generic[K]):
    """A connection of a slave to one master, as far as it tells its replica from others."""

    key: K
    """The caller's name for it; no two connections share one."""
    address: str
    """The peer, `host:port`; empty if it is not known, and then only an identity joins it."""
    identity: str = ""
    """What names the replica on any connection: a certificate's name, a watched slave. Empty if unknown."""

    @property
    def host(self) -> str:
        """The address without its port; empty if the address is not known."""
        host, _, port = self.address.rpartition(":")
        return host or port


@frozen
class Arrival(Generic[K]):
    """What is known of a new connection. With neither a `previous` nor `candidates` it is a new replica."""

    connection: Connection[K]
    previous: K | None = None
    """Key of the lost connection that it continues."""
    candidates: tuple[K, ...] = ()
    """Keys of the lost connections one of which it continues, where it is not known which."""

    @property
    def is_reconnect(self) -> bool:
        """Whether a replica came back, known by name or not."""
        return self.previous is not None or bool(self.candidates)


@frozen
class Span(Generic[K]):
    """A connection from its request to its end."""

    connection: Connection[K]
    came_ns: int
    """When it asked for the log."""
    lost_ns: int | None
    """When it ended; None while it is open."""


@define(eq=False)
class _Lost(Generic[K]):
    connection: Connection[K]
    at_ns: int
    places_taken: int = 0
    """Arrivals that could have been it and were joined to none."""


_Index = dict[tuple[str, str], dict[K, _Lost[K]]]


class Reconnects(Generic[K]):
    """The connections that one master lost, and which new ones continue them."""

    def __init__(self) -> None:
        self._lost: dict[K, _Lost[K]] = {}
        # By step and its value.
        self._index: _Index[K] = {}

    def lost(self, connection: Connection[K], *, at_ns: int) -> None:
        """`connection`, which had asked for the log, ended.

        Its `identity` is what is known of it by now, which may be more than when it came.
        """
        self.forget(connection.key)
        self._lost[connection.key] = lost = _Lost(connection, at_ns)
        for place in _places(connection):
            self._index.setdefault(place, {})[connection.key] = lost
        of_host = self._index.get(("host", connection.host), {})
        if len(of_host) > LOST_PER_HOST_MAX:
            self.forget(next(iter(of_host)))

    def forget(self, key: K) -> None:
        """The lost connection `key`, if there is one, is no candidate any more."""
        lost = self._lost.pop(key, None)
        if lost is None:
            return
        for place in _places(lost.connection):
            del self._index[place][key]
            if not self._index[place]:
                del self._index[place]

    def came(self, connections: Iterable[Connection[K]], *, at_ns: int) -> list[Arrival[K]]:
        """What is known of `connections`, which asked for the log at one moment, in their order.

        Lost connections that one of them continues are forgotten.
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

    def identified(self, connection: Connection[K]) -> K | None:
        """Key of the lost connection that `connection`, which came before it had an identity, continues.

        None if there is not exactly one of its identity; else that one is forgotten.
        """
        found = self._index.get(("identity", connection.identity), {}) if connection.identity else {}
        if len(found) != 1:
            return None
        (key,) = found
        self.forget(key)
        return key

    def _candidates(self, what: str, connection: Connection[K], *, at_ns: int) -> list[_Lost[K]]:
        place = next((place for place in _places(connection) if place[0] == what), None)
        if place is None:
            return []
        of_place = self._index.get(place, {}).values()
        found = [lost for lost in of_place if not _are_different(lost.connection, connection)]
        return [lost for lost in found if at_ns - lost.at_ns <= FRESH_NS] or found

    def _one_of(self, connection: Connection[K], found: list[_Lost[K]]) -> Arrival[K]:
        """The arrival of a connection that continues one of several, or that competes for one."""
        left = [lost for lost in found if lost.connection.key in self._lost]
        for lost in left:
            lost.places_taken += 1
        if any(lost.places_taken >= len(left) for lost in left):
            for lost in left:
                self.forget(lost.connection.key)
        return Arrival(connection, candidates=tuple(lost.connection.key for lost in left))


def pair(spans: Iterable[Span[K]], reconnects: Reconnects[K] | None = None) -> list[Arrival[K]]:
    """What is known of each connection of a whole recording, by the time at which it came.

    `reconnects`, a new one if given, then says which of the lost ones may still be continued.

    Connections that came at the same time came at one moment, as those in one sample of a monitor do, and
    what was lost at that time was lost before it.
    """
    turns: list[tuple[int, int, int, Span[K]]] = []
    for number, span in enumerate(spans):
        turns.append((span.came_ns, 1, number, span))
        if span.lost_ns is not None:
            lost_ns = max(span.lost_ns, span.came_ns)
            turns.append((lost_ns, 0 if lost_ns > span.came_ns else 2, number, span))
    reconnects = Reconnects() if reconnects is None else reconnects
    arrivals: list[Arrival[K]] = []
    for (at_ns, turn), group in groupby(sorted(turns, key=_turn), key=_moment):
        connections = [span.connection for _, _, _, span in group]
        if turn == 1:
            arrivals += reconnects.came(connections, at_ns=at_ns)
        else:
            for connection in connections:
                reconnects.lost(connection, at_ns=at_ns)
    return arrivals


def _places(connection: Connection[K]) -> list[tuple[str, str]]:
    """Where a connection is found: what is known of it, by the name of the step that uses it."""
    places = zip(_STEPS, (connection.identity, connection.address, connection.host), strict=True)
    return [place for place in places if place[1]]


def _are_different(one: Connection[K], other: Connection[K]) -> bool:
    return bool(one.identity and other.identity and one.identity != other.identity)


def _turn(turn: tuple[int, int, int, Span[K]]) -> tuple[int, int, int]:
    return turn[:3]


def _moment(turn: tuple[int, int, int, Span[K]]) -> tuple[int, int]:
    return turn[:2]

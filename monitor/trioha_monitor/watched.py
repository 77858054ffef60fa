"""All that the monitor knows of nodes and name servers: observations in, views out. Pure: no clock, no I/O.

The live source (`trioha_monitor.live`) and the replay of a monitor's recording
(`trioha_monitor.replay.answers`) drive this one state, so that a replay shows what was seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy

from attrs import Factory, frozen

from trioha.outside_text import clean
from trioha.severity import Severity
from trioha_monitor.cluster import Cluster, ReplicaLag, Sample
from trioha_monitor.observations import ClockStep, Gap, Listing, Observation
from trioha_monitor.timeline import Timeline
from trioha_monitor.view import ClusterView, EventKind, Health, NameServerView, TimelineEvent


@frozen(kw_only=True)
class Start:
    """What a monitor watches at one moment; a recording begins with it."""

    at_ms: int
    interval_ms: int
    """How often each node is asked."""
    named: tuple[str, ...] = ()
    """Nodes that the user named, `host:port`."""
    name_servers: tuple[str, ...] = ()
    shown: tuple[str, ...] = Factory(lambda self: self.named, takes_self=True)
    """Nodes that are shown, found ones included, in their order."""


class Watched:
    """The state of nodes and name servers."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._timeline = Timeline()
        self._cluster = Cluster(start.shown, interval_ms=start.interval_ms, timeline=self._timeline)
        self._found: dict[str, tuple[str, ...]] = {}
        """Addresses by the name server that lists them."""
        self._name_servers = {
            address: NameServerView(clean(address), Health.CONNECTING)
            for address in dict.fromkeys(start.name_servers)
        }
        self._listed_ms: dict[str, int] = {}
        """When each name server answered last."""
        self._listed_invalid: set[str] = set()
        """Name servers that listed an invalid address."""
        self._last: dict[tuple[str, bool], Sample | Listing] = {}
        """The last answer and the last failure of each node and name server."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nodes that are shown, in order."""
        return self._cluster.addresses

    def observe(self, seen: Observation) -> None:
        """Handle an observation, in the order of time. Those of what is not watched are ignored.

        Raises RemoteProtocolError for an impossible answer of a node, of which nothing is kept.
        """
        match seen:
            case Sample():
                self._cluster.observe(seen)
                if seen.address in self._cluster:
                    self._last[seen.address, seen.status is not None] = seen
            case Listing() if seen.name_server not in self._name_servers:
                pass
            case Listing(brokers=None):
                self._not_listed(seen)
            case Listing(brokers=brokers):
                self._listed(seen, brokers or ())
            case ClockStep(at_ms=at_ms, by_ms=by_ms):
                way = "ahead" if by_ms > 0 else "back"
                text = f"this machine's wall clock was set {way} by {abs(by_ms) / 1000:.1f} s"
                self._timeline.add(EventKind.CLOCK, text, at_ms=at_ms, severity=Severity.WARNING)
            case Gap(at_ms=at_ms, count=count, reason=reason):
                text = f"{f'{count} ' if count else ''}answers are missing here: {clean(reason)}"
                self._timeline.add(EventKind.MARK, text, at_ms=at_ms, severity=Severity.WARNING)

    def view(self, now_ms: int) -> ClusterView:
        """The view at `now_ms`, which is not before the last observation."""
        return self._cluster.view(
            now_ms,
            name_servers=tuple(self._view_name_server(address, now_ms) for address in self._name_servers),
        )

    def lags(self) -> Iterator[ReplicaLag]:
        """The lag of each replica, by the last answers."""
        return self._cluster.lags()

    def events(self) -> tuple[TimelineEvent, ...]:
        """The events that are kept, oldest first."""
        return self._timeline.freeze()

    def opening(self, *, at_ms: int) -> tuple[Start, tuple[Observation, ...]]:
        """What a recording that begins at `at_ms` begins with: these observations make this state again.

        They have the present figures. Events, graphs and lost connections are not in them.
        """
        shown = self._cluster.addresses
        start = Start(
            at_ms=at_ms,
            interval_ms=self._start.interval_ms,
            named=self._start.named,
            name_servers=tuple(self._name_servers),
            shown=shown,
        )
        present = {*shown, *self._name_servers}
        last = [seen for (address, _), seen in self._last.items() if address in present]
        return start, tuple(sorted(last, key=_opening_order))

    def copy(self) -> Watched:
        """The same state, which goes on by itself. Frozen values are shared."""
        shared = [self._start, *self._last.values(), *self._cluster.shared_values()]
        return deepcopy(self, {id(value): value for value in shared})

    def _view_name_server(self, address: str, now_ms: int) -> NameServerView:
        view = self._name_servers[address]
        listed_ms = self._listed_ms.get(address)
        age_s = None if listed_ms is None else max(0, now_ms - listed_ms) / 1000
        return NameServerView(view.address, view.health, view.reason, age_s)

    def _listed(self, seen: Listing, brokers: Sequence[str]) -> None:
        address, at_ms = seen.name_server, seen.at_ms
        was = self._name_servers[address]
        if was.health is Health.DOWN:
            self._timeline.add(
                EventKind.NODE,
                "name server answers again",
                at_ms=at_ms,
                node=was.address,
                severity=Severity.GOOD,
            )
        self._name_servers[address] = NameServerView(was.address, Health.UP)
        self._listed_ms[address] = at_ms
        self._last[address, True] = seen
        self._found[address] = tuple(brokers)
        if seen.invalid and address not in self._listed_invalid:
            self._listed_invalid.add(address)
            self._timeline.add(
                EventKind.NODE,
                f"lists {seen.invalid} brokers with invalid addresses",
                at_ms=at_ms,
                node=was.address,
                severity=Severity.WARNING,
            )
        found = (each for addresses in self._found.values() for each in addresses)
        self._cluster.want((*self._start.named, *found), at_ms=at_ms)
        present = {*self._cluster.addresses, *self._name_servers}
        self._last = {key: last for key, last in self._last.items() if key[0] in present}

    def _not_listed(self, seen: Listing) -> None:
        was, reason = self._name_servers[seen.name_server], clean(seen.fault)
        if was.health is not Health.DOWN:
            self._timeline.add(
                EventKind.NODE,
                f"name server does not answer: {reason}",
                at_ms=seen.at_ms,
                node=was.address,
                severity=Severity.CRITICAL,
            )
        self._name_servers[seen.name_server] = NameServerView(was.address, Health.DOWN, reason)
        self._last[seen.name_server, False] = seen


def _opening_order(seen: Sample | Listing) -> tuple[int, int]:
    """Name servers, masters, slaves, failures: a slave is looked for among the connections of its master."""
    if isinstance(seen, Listing):
        return 0, seen.at_ms
    if seen.status is None:
        return 3, seen.at_ms
    return 1 if seen.status.client is None else 2, seen.at_ms

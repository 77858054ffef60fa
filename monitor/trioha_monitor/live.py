"""The live source of views: asks nodes, finds them through name servers, and folds what they say.

Each node has one task, one connection and at most one question in flight (`trioha_monitor.feed.watch_node`).
Name servers are asked every few seconds for all brokers of all clusters; brokers come and go with their
answers. A name server that does not answer changes nothing: the nodes known before are asked on.

The views' axis is the wall clock at the start plus the monotonic time since. When the wall clock itself is
set, that is an event on the timeline, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio
from attrs import define, frozen

from trioha.broker_status import BrokerStatus
from trioha.errors import ConfigError, TriohaError
from trioha.remoting.address import parse_address
from trioha.remoting.client import open_client
from trioha.remoting.name_server import BrokerGroup, fetch_broker_groups
from trioha_monitor.cluster import Cluster, Sample
from trioha_monitor.faults import BORDER, fault_of_this_program
from trioha_monitor.feed import FeedTimes, OpenSession, reason_of, remoting_session, watch_node
from trioha_monitor.series import Severity
from trioha_monitor.texts import clean
from trioha_monitor.timeline import Timeline
from trioha_monitor.view import EventKind, Health, NameServerView, Show, ViewFeed

LIVE_TIMES = FeedTimes()
"""Ten questions a second to each node, ten views a second."""
DISCOVERY_INTERVAL_S = 3.0
"""Pause between two questions to a name server, in seconds."""
NAMES_BYTES_MAX = 256 * 1024
"""Largest answer of a name server: one that lists a thousand brokers has 150 KB."""
JUMP_MS = 1000
"""A wall clock that moves by more against the monotonic one has been set, in milliseconds."""

AskNames = Callable[[], Awaitable[tuple[BrokerGroup, ...]]]
"""One question to a name server."""
OpenNames = Callable[[str, FeedTimes], AbstractAsyncContextManager[AskNames]]
"""Opens a connection to a name server; tests replace it."""


@asynccontextmanager
async def name_server_session(address: str, times: FeedTimes) -> AsyncIterator[AskNames]:
    """A session over RocketMQ's remoting protocol: 106."""
    connecting = open_client(
        address, connect_timeout_s=times.connect_timeout_s, frame_bytes_max=NAMES_BYTES_MAX
    )
    async with connecting as client:
        yield partial(fetch_broker_groups, client, timeout_s=times.request_timeout_s)


@define(eq=False)
class Axis:
    """The views' time, in milliseconds since 1970; it never goes back."""

    _wall_ms: Callable[[], int]
    _start_ms: int
    _start_s: float
    _offset_ms: int = 0
    """How far the wall clock was from this axis when it was last compared."""

    @classmethod
    def start(cls, wall_ms: Callable[[], int]) -> Axis:
        """The axis that begins now, inside a trio run."""
        return cls(wall_ms, wall_ms(), trio.current_time())

    def now_ms(self) -> int:
        """Now."""
        return self._start_ms + round((trio.current_time() - self._start_s) * 1000)

    def jump_ms(self) -> int:
        """By how much the wall clock was set since the last call; 0 if it was not."""
        offset_ms = self._wall_ms() - self.now_ms()
        jumped_ms = offset_ms - self._offset_ms
        self._offset_ms = offset_ms
        return jumped_ms if abs(jumped_ms) > JUMP_MS else 0


@frozen
class LiveSettings:
    """What the live source does its work with; tests replace it."""

    times: FeedTimes = LIVE_TIMES
    discovery_interval_s: float = DISCOVERY_INTERVAL_S
    open_session: OpenSession = remoting_session
    open_names: OpenNames = name_server_session
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


def live_views(
    addresses: Sequence[str] = (),
    *,
    name_servers: Sequence[str] = (),
    settings: LiveSettings | None = None,
) -> ViewFeed:
    """Views of the nodes at `addresses` and of all that the `name_servers` list (`host:port` each)."""
    chosen = settings or LiveSettings()

    async def feed(show: Show) -> None:
        await _Live(addresses, name_servers, chosen, show).run()

    return feed


class _Live:
    """One run of the source."""

    def __init__(
        self, addresses: Sequence[str], name_servers: Sequence[str], settings: LiveSettings, show: Show
    ) -> None:
        self._settings = settings
        self._show = show
        self._named = tuple(dict.fromkeys(addresses))
        self._axis = Axis.start(settings.wall_ms)
        self._timeline = Timeline()
        self._cluster = Cluster(
            self._named, interval_ms=round(settings.times.interval_s * 1000), timeline=self._timeline
        )
        self._found: dict[str, tuple[str, ...]] = {}
        """Addresses by the name server that listed them last."""
        self._names = {
            address: NameServerView(clean(address), Health.CONNECTING)
            for address in dict.fromkeys(name_servers)
        }
        self._answered_ms: dict[str, int] = {}
        self._misled: set[str] = set()
        """Name servers that listed what is no address."""
        self._watched: dict[str, trio.CancelScope] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._watch_all(nursery)
            for address in self._names:
                nursery.start_soon(self._ask_names, address, nursery)
            while True:
                self._publish()
                await trio.sleep(self._settings.times.refresh_s)

    def _publish(self) -> None:
        now_ms = self._axis.now_ms()
        jump_ms = self._axis.jump_ms()
        if jump_ms:
            self._timeline.add(
                EventKind.CLOCK,
                f"this machine's wall clock was set {'ahead' if jump_ms > 0 else 'back'} by "
                f"{abs(jump_ms) / 1000:.1f} s",
                at_ms=now_ms,
                severity=Severity.WARNING,
            )
        names = tuple(self._view_names(address, now_ms) for address in self._names)
        self._show(self._cluster.view(now_ms, name_servers=names))

    def _view_names(self, address: str, now_ms: int) -> NameServerView:
        view = self._names[address]
        answered_ms = self._answered_ms.get(address)
        age_s = None if answered_ms is None else max(0, now_ms - answered_ms) / 1000
        return NameServerView(view.address, view.health, view.reason, age_s)

    def _hear(self, address: str, status: BrokerStatus | None, fault: str | None) -> None:
        self._cluster.observe(Sample(address, self._axis.now_ms(), status, fault))

    def _watch_all(self, nursery: trio.Nursery) -> None:
        """Watch each node that is shown, and no other."""
        shown = self._cluster.addresses
        for address in shown:
            if address not in self._watched:
                scope = self._watched[address] = trio.CancelScope()
                nursery.start_soon(self._watch, address, scope)
        for address in self._watched.keys() - set(shown):
            self._watched.pop(address).cancel()

    async def _watch(self, address: str, scope: trio.CancelScope) -> None:
        with scope:
            await watch_node(address, self._hear, self._settings.times, self._settings.open_session)

    async def _ask_names(self, address: str, nursery: trio.Nursery) -> None:
        """Ask one name server for ever, over a new connection after every fault."""
        settings = self._settings
        while True:
            with BORDER.around(address) as crossing:
                try:
                    async with settings.open_names(address, settings.times) as ask:
                        while True:
                            with trio.fail_after(settings.times.request_timeout_s):
                                groups = await ask()
                            self._take_names(address, groups, nursery)
                            await trio.sleep(settings.discovery_interval_s)
                except* (TriohaError, OSError, trio.TooSlowError) as group:
                    self._lose_names(address, reason_of(group, settings.times))
            if crossing.error is not None:
                self._lose_names(address, fault_of_this_program(crossing.error))
            await trio.sleep(settings.times.back_off_s_max)

    def _take_names(self, address: str, groups: tuple[BrokerGroup, ...], nursery: trio.Nursery) -> None:
        now_ms = self._axis.now_ms()
        was = self._names[address]
        if was.health is Health.DOWN:
            self._timeline.add(
                EventKind.NODE, "name server answers again", at_ms=now_ms, node=was.address,
                severity=Severity.GOOD,
            )  # fmt: skip
        self._names[address] = NameServerView(was.address, Health.UP)
        self._answered_ms[address] = now_ms
        named = [each for group in groups for each in group.addresses.values()]
        self._found[address] = tuple(each for each in named if _is_address(each))
        if len(self._found[address]) < len(named) and address not in self._misled:
            self._misled.add(address)
            self._timeline.add(
                EventKind.NODE,
                f"lists {len(named) - len(self._found[address])} brokers under no address at all",
                at_ms=now_ms,
                node=was.address,
                severity=Severity.WARNING,
            )
        found = (each for addresses in self._found.values() for each in addresses)
        self._cluster.want((*self._named, *found), at_ms=now_ms)
        self._watch_all(nursery)

    def _lose_names(self, address: str, fault: str) -> None:
        was, reason = self._names[address], clean(fault)
        if was.health is not Health.DOWN:
            self._timeline.add(
                EventKind.NODE,
                f"name server does not answer: {reason}",
                at_ms=self._axis.now_ms(),
                node=was.address,
                severity=Severity.BAD,
            )
        self._names[address] = NameServerView(was.address, Health.DOWN, reason)


def _is_address(text: str) -> bool:
    """Whether what a name server lists can be dialled, and drawn as it is."""
    try:
        parse_address(text)
    except ConfigError:
        return False
    return clean(text) == text

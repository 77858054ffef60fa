"""The live source of views: asks nodes for their status, and name servers for nodes.

Each node has one task, one connection and at most one request in flight (`watch_node`). A node that refuses,
hangs, closes its connection or sends malformed answers ends its own connection only: the listener gets the
reason, and after a back-off up to `back_off_s_max` there is a new connection. The same holds for faults of
this program: `BOUNDARY` counts and logs them. The cost of an answer is bounded, since it is parsed in the
thread that draws: a frame has at most `FRAME_BYTES_MAX`, its JSON at most the parts of `JSON_LIMITS`, and a
node whose answers come to more than `ANSWER_BYTES_PER_S` is asked less often.

Topics and groups are asked for by tasks of their own, while the screen shows them
(`trioha_monitor.consumption_feed`).

Name servers are asked every few seconds for all brokers of all clusters. If a name server does not answer,
the nodes that it listed stay.

The views' axis is the wall clock at the start plus the monotonic time since. When the wall clock is set, that
is only an event on the timeline.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final

import trio
from attrs import Factory, define, evolve, frozen

from trioha.broker_status import BrokerStatus
from trioha.errors import ConfigError, PeerError, TriohaError
from trioha.net.error_boundary import ErrorBoundary
from trioha.outside_text import clean
from trioha.remoting.address import parse_address
from trioha.remoting.client import NO_SECURITY, ClientSecurity, open_client
from trioha.remoting.fastjson import JsonLimits
from trioha.remoting.name_server import BrokerGroup, fetch_broker_groups
from trioha.remoting.status_reader import StatusReader, StatusUpdates
from trioha_monitor.answers import CONNECTIONS_MAX
from trioha_monitor.cluster import Sample
from trioha_monitor.consumption import Consumption, ConsumptionSample
from trioha_monitor.consumption_feed import (
    INTERVAL_S,
    Demand,
    OpenConsumption,
    consumption_session,
    watch_consumption,
)
from trioha_monitor.control_feed import ControlFeed
from trioha_monitor.faults import BOUNDARY, fault_of_this_program
from trioha_monitor.observations import ClockStep, Listing, Observation
from trioha_monitor.view import ConsumptionView, Show, ViewFeed
from trioha_monitor.watched import Start, Watched

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest answer of a node: ten thousand connections are 3 MB."""
JSON_LIMITS: Final = JsonLimits(containers_max=50_000, dialect_chars_max=64 * 1024)
"""Limits of an answer's JSON; RocketMQ answers these requests in standard JSON."""
ANSWER_BYTES_PER_S: Final = 4 * 1024 * 1024
"""Largest rate at which answers of one node are parsed."""
UNREQUESTED_MAX: Final = 1000
"""Unrequested frames that a node may send between two answers; updates come one by one."""

Ask = Callable[[], Awaitable[BrokerStatus]]
"""One request to one node."""
OnAnswer = Callable[[str, BrokerStatus | None, str | None], None]
"""Listener: its arguments are the address, and an answer or the reason why there is none."""


@frozen
class FeedTimes:
    """Intervals and timeouts, in seconds."""

    interval_s: float = 0.1
    """Pause between two requests to one node."""
    refresh_s: float = 0.1
    """Pause between two views, with or without new answers: ages of figures are shown."""
    connect_timeout_s: float = 1.0
    """Timeout of a connection attempt."""
    request_timeout_s: float = 1.0
    """Timeout of a request; it closes the connection."""
    back_off_s_min: float = 0.25
    """Pause before the first new connection."""
    back_off_s_max: float = 2.0
    """Longest pause before a new connection."""


OpenSession = Callable[[str, FeedTimes], AbstractAsyncContextManager[Ask]]
"""Opens a connection to a node and returns the function that requests its status; tests replace it."""


@asynccontextmanager
async def remoting_session(
    address: str, times: FeedTimes, *, security: ClientSecurity = NO_SECURITY
) -> AsyncIterator[Ask]:
    """A session over RocketMQ's remoting protocol: updates of 907 from trioha, else 907 if known, else 28.

    Of a RocketMQ broker in controller mode its controllers are asked, too.
    """
    connect = partial(
        open_client,
        connect_timeout_s=times.connect_timeout_s,
        frame_bytes_max=FRAME_BYTES_MAX,
        security=security,
    )
    updates = StatusUpdates(times.interval_s)
    async with connect(address, on_request=updates.receive) as client, trio.open_nursery() as nursery:
        control = ControlFeed(client, connect=connect, timeout_s=times.request_timeout_s)
        nursery.start_soon(control.run)
        reader = StatusReader(
            client,
            with_table=True,
            updates=updates,
            connections_max=CONNECTIONS_MAX,
            limits=JSON_LIMITS,
        )
        unrequested_before = 0

        async def ask() -> BrokerStatus:
            nonlocal unrequested_before
            status = await reader.fetch(timeout_s=times.request_timeout_s)
            statistics = client.statistics
            unrequested = statistics.late_responses + statistics.server_requests
            if unrequested - unrequested_before > UNREQUESTED_MAX:
                raise PeerError(
                    f"sent {unrequested - unrequested_before} unrequested frames", address=address
                )
            unrequested_before = unrequested
            return await control.with_control(status, reader.config)

        yield ask
        nursery.cancel_scope.cancel()


async def watch_node(
    address: str,
    on_answer: OnAnswer,
    times: FeedTimes,
    open_session: OpenSession,
    *,
    boundary: ErrorBoundary = BOUNDARY,
) -> None:
    """Request the status of the node at `address` for ever; `on_answer` gets each answer, or its failure."""
    back_off_s = times.back_off_s_min
    while True:
        answered = False
        fault = "closed the connection"

        def answer(status: BrokerStatus) -> None:
            nonlocal answered
            on_answer(address, status, None)
            answered = True

        with boundary.around(address) as guarded:
            try:
                async with open_session(address, times) as ask:
                    await _ask_forever(ask, answer, times)
            except* (TriohaError, OSError, trio.TooSlowError) as group:
                fault = reason_of(group, times)
        if guarded.error is not None:
            fault = fault_of_this_program(guarded.error)
        on_answer(address, None, fault)
        if answered:
            back_off_s = times.back_off_s_min
        await trio.sleep(back_off_s)
        back_off_s = min(2 * back_off_s, times.back_off_s_max)


async def _ask_forever(ask: Ask, answer: Callable[[BrokerStatus], None], times: FeedTimes) -> None:
    while True:
        asked_at_s = trio.current_time()
        with trio.fail_after(times.request_timeout_s):
            status = await ask()
        answer(status)
        # A node with slow or long answers is asked less often, never twice at once.
        pause_s = max(times.interval_s, status.answer_bytes / ANSWER_BYTES_PER_S)
        await trio.sleep_until(max(asked_at_s + pause_s, trio.current_time()))


def reason_of(group: BaseExceptionGroup[BaseException], times: FeedTimes) -> str:
    """The reason of a failure in a few words."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case trio.TooSlowError():
            return f"no answer within {times.request_timeout_s:g} s"
        case PeerError():
            return error.reason.removeprefix("cannot connect: ")
        case OSError():
            return error.strerror or str(error) or type(error).__name__
        case _:
            return str(error)


LIVE_TIMES = FeedTimes()
"""Ten requests a second to each node, ten views a second."""
DISCOVERY_INTERVAL_S = 3.0
"""Pause between two requests to a name server, in seconds."""
NAMES_BYTES_MAX = 256 * 1024
"""Largest answer of a name server: a thousand brokers are 150 KB."""
JUMP_MS = 1000
"""A larger change of the wall clock against the monotonic clock means that it was set, in milliseconds."""

AskNames = Callable[[], Awaitable[tuple[BrokerGroup, ...]]]
"""One request to a name server."""
OnObserved = Callable[[Observation, Watched], None]
"""Listener: its arguments are an observation, and the state that has handled it. It returns at once."""
OpenNames = Callable[[str, FeedTimes], AbstractAsyncContextManager[AskNames]]
"""Opens a connection to a name server; tests replace it."""


@asynccontextmanager
async def name_server_session(
    address: str, times: FeedTimes, *, security: ClientSecurity = NO_SECURITY
) -> AsyncIterator[AskNames]:
    """A session over RocketMQ's remoting protocol: 106."""
    connecting = open_client(
        address,
        connect_timeout_s=times.connect_timeout_s,
        frame_bytes_max=NAMES_BYTES_MAX,
        security=security,
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
    """Difference between the wall clock and this axis at the last comparison."""

    @classmethod
    def start(cls, wall_ms: Callable[[], int]) -> Axis:
        """An axis that starts now, inside a trio run."""
        return cls(wall_ms, wall_ms(), trio.current_time())

    def now_ms(self) -> int:
        """The current time."""
        return self._start_ms + round((trio.current_time() - self._start_s) * 1000)

    def jump_ms(self) -> int:
        """By how much the wall clock was set since the last call; 0 if it was not set."""
        offset_ms = self._wall_ms() - self.now_ms()
        jumped_ms = offset_ms - self._offset_ms
        self._offset_ms = offset_ms
        return jumped_ms if abs(jumped_ms) > JUMP_MS else 0


@frozen
class LiveSettings:
    """Intervals, clocks and connections of the live source; tests replace them."""

    times: FeedTimes = LIVE_TIMES
    discovery_interval_s: float = DISCOVERY_INTERVAL_S
    open_session: OpenSession = remoting_session
    open_names: OpenNames = name_server_session
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    demand: Demand = Factory(Demand)
    """Whether topics and groups are asked for."""
    on_observed: OnObserved = lambda *_: None
    open_consumption: OpenConsumption = consumption_session

    @classmethod
    def with_security(
        cls, security: ClientSecurity, *, times: FeedTimes, on_observed: OnObserved
    ) -> LiveSettings:
        """Connections that sign and encrypt."""
        return cls(
            times,
            on_observed=on_observed,
            open_session=partial(remoting_session, security=security),
            open_names=partial(name_server_session, security=security),
            open_consumption=partial(consumption_session, security=security),
        )


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
        self._axis = Axis.start(settings.wall_ms)
        self._name_servers = tuple(dict.fromkeys(name_servers))
        self._state = Watched(
            Start(
                at_ms=self._axis.now_ms(),
                interval_ms=round(settings.times.interval_s * 1000),
                named=tuple(dict.fromkeys(addresses)),
                name_servers=self._name_servers,
            )
        )
        self._watched: dict[str, trio.CancelScope] = {}
        self._consumption = Consumption()
        self._consumption_view: ConsumptionView | None = None
        self._consumption_due_ms = 0
        """When the view of topics and groups is made again."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._watch_all(nursery)
            for address in self._name_servers:
                nursery.start_soon(self._ask_names, address, nursery)
            while True:
                self._publish()
                await trio.sleep(self._settings.times.refresh_s)

    def _observe(self, seen: Observation) -> None:
        self._state.observe(seen)
        self._settings.on_observed(seen, self._state)

    def _publish(self) -> None:
        now_ms = self._axis.now_ms()
        jump_ms = self._axis.jump_ms()
        if jump_ms:
            self._observe(ClockStep(now_ms, jump_ms))
        view = self._state.view(now_ms)
        if self._settings.demand.is_wanted and now_ms >= self._consumption_due_ms:
            self._consumption_due_ms = now_ms + round(INTERVAL_S * 1000)
            self._consumption_view = self._consumption.view(view.nodes, now_ms=now_ms)
        self._show(evolve(view, consumption=self._consumption_view))

    def _on_consumption(self, sample: ConsumptionSample) -> None:
        self._consumption.observe(sample)
        self._consumption_due_ms = 0

    def _on_answer(self, address: str, status: BrokerStatus | None, fault: str | None) -> None:
        self._observe(Sample(address, self._axis.now_ms(), status, fault))

    def _watch_all(self, nursery: trio.Nursery) -> None:
        """Watch exactly the nodes that are shown."""
        shown = self._state.addresses
        for address in shown:
            if address not in self._watched:
                scope = self._watched[address] = trio.CancelScope()
                nursery.start_soon(self._watch, address, scope)
        for address in self._watched.keys() - set(shown):
            self._watched.pop(address).cancel()
            self._consumption.forget((address,))

    async def _watch(self, address: str, scope: trio.CancelScope) -> None:
        settings = self._settings
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    watch_node, address, self._on_answer, settings.times, settings.open_session
                )
                nursery.start_soon(
                    partial(
                        watch_consumption,
                        address,
                        self._on_consumption,
                        demand=settings.demand,
                        open_session=settings.open_consumption,
                        now_ms=self._axis.now_ms,
                    )
                )

    async def _ask_names(self, address: str, nursery: trio.Nursery) -> None:
        """Request the brokers of one name server for ever, over a new connection after every failure."""
        settings = self._settings
        while True:
            with BOUNDARY.around(address) as guarded:
                try:
                    async with settings.open_names(address, settings.times) as ask:
                        while True:
                            with trio.fail_after(settings.times.request_timeout_s):
                                groups = await ask()
                            self._listed(address, groups)
                            self._watch_all(nursery)
                            await trio.sleep(settings.discovery_interval_s)
                except* (TriohaError, OSError, trio.TooSlowError) as group:
                    self._not_listed(address, reason_of(group, settings.times))
            if guarded.error is not None:
                self._not_listed(address, fault_of_this_program(guarded.error))
            await trio.sleep(settings.times.back_off_s_max)

    def _listed(self, address: str, groups: tuple[BrokerGroup, ...]) -> None:
        named = [each for group in groups for each in group.addresses.values()]
        brokers = tuple(each for each in named if _is_address(each))
        self._observe(Listing(address, self._axis.now_ms(), brokers, len(named) - len(brokers)))

    def _not_listed(self, address: str, fault: str) -> None:
        self._observe(Listing(address, self._axis.now_ms(), fault=fault))


def _is_address(text: str) -> bool:
    """Whether an entry of a name server is an address that can be connected to and drawn."""
    try:
        parse_address(text)
    except ConfigError:
        return False
    return clean(text) == text

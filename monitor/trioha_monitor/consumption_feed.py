"""Asks nodes for topics, groups and their lag, while the screen shows them.

Each node has one task and one connection of its own, beside that of its status, so that a long answer delays
no verdict. A round of requests follows `INTERVAL_S` after the last one, later for long answers: these cost
brokers a look at every queue. Nothing is asked while nobody looks. Answers are parsed in a worker thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final

import trio
from attrs import evolve

from trioha.errors import PeerError, TriohaError
from trioha.net.threads import run_in_thread
from trioha.remoting.client import NO_SECURITY, ClientSecurity, RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand, request
from trioha_monitor.consumption import (
    ConsumptionSample,
    Members,
    parse_consume_stats,
    parse_members,
    parse_topics,
)
from trioha_monitor.faults import BOUNDARY, fault_of_this_program

INTERVAL_S: Final = 5.0
"""Pause between two rounds of requests to a node."""
ANSWER_BYTES_PER_S: Final = 512 * 1024
"""A node with long answers is asked less often."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest answer: RocketMQ's own limit."""
REQUEST_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_S: Final = 1.0
BACK_OFF_S: Final = 5.0
GROUPS_PER_ROUND: Final = 64
"""Groups whose members are asked for in one round; the others follow in the next rounds."""

AskRound = Callable[[], Awaitable[ConsumptionSample]]
"""One round of requests to one node; `at_ms` of the result is 0."""
OpenConsumption = Callable[[str], AbstractAsyncContextManager[AskRound]]
"""Opens a connection to a node; tests replace it."""
OnSample = Callable[[ConsumptionSample], None]


class Demand:
    """Whether a screen shows topics and groups: set in the screen's thread, read by the feed."""

    def __init__(self, *, is_wanted: bool = False) -> None:
        self._is_wanted = is_wanted
        self._changed: trio.Event | None = None
        """What `wait` waits for."""
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether nodes are asked."""
        return self._is_wanted

    def want(self, *, is_wanted: bool) -> None:
        """Ask nodes from now on, or stop."""
        self._is_wanted = is_wanted
        if self._token is not None:
            # RunFinishedError: the feed has ended.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._wake)

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def wait(self) -> None:
        """Return as soon as topics and groups are shown."""
        self._token = trio.lowlevel.current_trio_token()
        while not self._is_wanted:
            if self._changed is None or self._changed.is_set():
                self._changed = trio.Event()
            await self._changed.wait()


class _Rounds:
    """Makes the requests of one connection."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client
        self._next_group = 0
        self._knows_topics = True
        self.answer_bytes = 0
        """Of the last round."""

    async def ask(self) -> ConsumptionSample:
        """One round. Raises PeerError and RemoteProtocolError."""
        self.answer_bytes = 0
        stats = await self._request(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
        groups, more = await run_in_thread(lambda: parse_consume_stats(stats.body))
        topics = await self._topics()
        names = sorted({progress.group for progress in groups})
        members: dict[str, Members | None] = {}
        start = self._next_group if self._next_group < len(names) else 0
        for name in names[start : start + GROUPS_PER_ROUND]:
            members[name] = await self._members(name)
        self._next_group = start + GROUPS_PER_ROUND
        return ConsumptionSample(
            self._client.address, 0, groups=groups, topics=topics, members=members, more=more
        )

    async def _topics(self) -> dict[str, int] | None:
        if not self._knows_topics:
            return None
        try:
            answer = await self._request(RequestCode.GET_ALL_TOPIC_CONFIG)
        except PeerError as error:
            if error.code is None:
                raise
            # A broker that does not answer it, or not this account: topics of groups are shown.
            self._knows_topics = False
            return None
        return await run_in_thread(lambda: parse_topics(answer.body))

    async def _members(self, group: str) -> Members | None:
        try:
            answer = await self._request(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        except PeerError as error:
            if error.code is None:
                raise
            return None
        return parse_members(answer.body)

    async def _request(self, code: RequestCode, **fields: str) -> RemotingCommand:
        answer = await self._client.request(request(code, ext_fields=fields), timeout_s=REQUEST_TIMEOUT_S)
        self.answer_bytes += len(answer.body)
        if answer.code != ResponseCode.SUCCESS:
            raise PeerError(
                f"{code.name} was answered with {response_code_name(answer.code)} ({answer.code}): "
                f"{(answer.remark or '').strip()[:100]}",
                address=self._client.address,
                code=answer.code,
            )
        return answer


@asynccontextmanager
async def consumption_session(
    address: str, *, security: ClientSecurity = NO_SECURITY
) -> AsyncIterator[AskRound]:
    """A session over RocketMQ's remoting protocol; each round ends its pause."""
    connecting = open_client(
        address,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        frame_bytes_max=FRAME_BYTES_MAX,
        security=security,
    )
    async with connecting as client:
        rounds = _Rounds(client)

        async def ask() -> ConsumptionSample:
            await trio.sleep(rounds.answer_bytes / ANSWER_BYTES_PER_S)
            return await rounds.ask()

        yield ask


async def watch_consumption(
    address: str,
    on_sample: OnSample,
    *,
    demand: Demand,
    open_session: OpenConsumption,
    now_ms: Callable[[], int],
) -> None:
    """Ask the node at `address` for ever, while there is `demand`; `on_sample` gets answers and failures."""
    while True:
        await demand.wait()
        fault = ""
        with BOUNDARY.around(address) as guarded:
            try:
                async with open_session(address) as ask:
                    while demand.is_wanted:
                        sample = await ask()
                        on_sample(evolve(sample, address=address, at_ms=now_ms()))
                        await trio.sleep(INTERVAL_S)
            except* (TriohaError, OSError, trio.TooSlowError) as group:
                fault = _reason(group)
        if guarded.error is not None:
            fault = fault_of_this_program(guarded.error)
        if fault:
            on_sample(ConsumptionSample(address, now_ms(), fault=fault))
            await trio.sleep(BACK_OFF_S)


def _reason(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return (error.reason if isinstance(error, PeerError) else str(error)) or type(error).__name__

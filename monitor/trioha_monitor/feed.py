"""Asks one node, for ever: over one connection, with at most one question in flight.

Whatever the node does (refuses, hangs, answers half, answers nonsense, goes away) ends in a word on it to
whoever listens, a pause that grows up to `back_off_s_max`, and a new connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio
from attrs import frozen

from trioha.errors import PeerError, TriohaError
from trioha.remoting.client import open_client
from trioha.remoting.codes import ResponseCode
from trioha.remoting.status import BrokerStatus
from trioha.remoting.status_reader import StatusReader

Ask = Callable[[], Awaitable[BrokerStatus]]
"""One question to one node."""
Hear = Callable[[str, BrokerStatus | None, str | None], None]
"""Whoever is told what came of a question: the address, and an answer or why there is none."""


@frozen
class FeedTimes:
    """How often, and how patiently. All in seconds."""

    interval_s: float = 0.1
    """Pause between two questions to one node."""
    refresh_s: float = 0.1
    """Pause between two views, with or without new answers: what is shown ages visibly."""
    connect_timeout_s: float = 1.0
    """How long a connection may take."""
    request_timeout_s: float = 1.0
    """How long an answer may take; the connection is given up then, since a late answer helps nobody."""
    back_off_s_min: float = 0.25
    """Pause before the first new try."""
    back_off_s_max: float = 2.0
    """Longest pause before a new try."""


OpenSession = Callable[[str, FeedTimes], AbstractAsyncContextManager[Ask]]
"""Opens a connection to a node and gives the means to ask it; tests replace it."""


@asynccontextmanager
async def remoting_session(address: str, times: FeedTimes) -> AsyncIterator[Ask]:
    """A session over RocketMQ's remoting protocol: updates of 907 from trioha, else 907 if known, else 28."""
    async with open_client(address, connect_timeout_s=times.connect_timeout_s) as client:
        reader = StatusReader(client, with_table=True, every_s=times.interval_s)
        yield partial(reader.fetch, timeout_s=times.request_timeout_s)


async def watch_node(address: str, hear: Hear, times: FeedTimes, open_session: OpenSession) -> None:
    """Ask the node at `address` for ever; `hear` is told each answer, or why there is none."""
    back_off_s = times.back_off_s_min
    while True:
        answered = False
        fault = "closed the connection"

        def answer(status: BrokerStatus) -> None:
            nonlocal answered
            answered = True
            hear(address, status, None)

        try:
            async with open_session(address, times) as ask:
                await _ask_forever(ask, answer, times)
        except* (TriohaError, OSError, trio.TooSlowError) as group:
            fault = reason_of(group, times)
        hear(address, None, fault)
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
        # A node that answers slowly is asked less often, never twice at once.
        await trio.sleep_until(max(asked_at_s + times.interval_s, trio.current_time()))


def reason_of(group: BaseExceptionGroup[BaseException], times: FeedTimes) -> str:
    """A few words on the first thing that went wrong."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case trio.TooSlowError():
            return f"no answer within {times.request_timeout_s:g} s"
        case PeerError(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
            return "not a broker: it knows no request for its status"
        case PeerError():
            return error.reason.removeprefix("cannot connect: ")
        case OSError():
            return error.strerror or str(error) or type(error).__name__
        case _:
            return str(error)

"""Asks one node, for ever: over one connection, with at most one question in flight.

Whatever the node does (refuses, hangs, answers half, answers nonsense, goes away) ends this connection at
most: the listener gets the reason, and after a pause that grows up to `back_off_s_max` there is a new
connection. That holds for faults of this program, too: `BORDER` counts and logs them.

What an answer may cost is bounded, since it is parsed in the thread that draws: a frame has no more than
`FRAME_BYTES_MAX`, its JSON no more parts than `JSON_LIMITS`, and a node whose answers come to more than
`ANSWER_BYTES_PER_S` is asked less often.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import trio
from attrs import frozen

from trioha.broker_status import BrokerStatus
from trioha.errors import PeerError, TriohaError
from trioha.net.border import ConnectionBorder
from trioha.remoting.client import open_client
from trioha.remoting.codes import ResponseCode
from trioha.remoting.fastjson import JsonLimits
from trioha.remoting.status_reader import StatusReader
from trioha_monitor.accept import CONNECTIONS_MAX
from trioha_monitor.faults import BORDER, fault_of_this_program

FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest answer of a node: one that lists ten thousand connections has 3 MB."""
JSON_LIMITS: Final = JsonLimits(containers_max=50_000, dialect_chars_max=64 * 1024)
"""What parsing an answer may cost; every answer of RocketMQ to these requests is standard JSON."""
ANSWER_BYTES_PER_S: Final = 4 * 1024 * 1024
"""Answers of one node are parsed no faster."""
UNASKED_MAX: Final = 1000
"""Frames that a node may send between two answers without being asked for them; updates come one by one."""

Ask = Callable[[], Awaitable[BrokerStatus]]
"""One question to one node."""
OnAnswer = Callable[[str, BrokerStatus | None, str | None], None]
"""Listener: gets the address, and an answer or the reason why there is none."""


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
    connecting = open_client(
        address, connect_timeout_s=times.connect_timeout_s, frame_bytes_max=FRAME_BYTES_MAX
    )
    async with connecting as client:
        reader = StatusReader(
            client,
            with_table=True,
            every_s=times.interval_s,
            connections_max=CONNECTIONS_MAX,
            limits=JSON_LIMITS,
        )
        unasked_before = 0

        async def ask() -> BrokerStatus:
            nonlocal unasked_before
            status = await reader.fetch(timeout_s=times.request_timeout_s)
            counted = client.statistics
            unasked = counted.late_responses + counted.server_requests
            if unasked - unasked_before > UNASKED_MAX:
                raise PeerError(
                    f"sent {unasked - unasked_before} frames that it was not asked for", address=address
                )
            unasked_before = unasked
            return status

        yield ask


async def watch_node(
    address: str,
    hear: OnAnswer,
    times: FeedTimes,
    open_session: OpenSession,
    *,
    border: ConnectionBorder = BORDER,
) -> None:
    """Ask the node at `address` for ever; `hear` gets each answer, or why there is none."""
    back_off_s = times.back_off_s_min
    while True:
        answered = False
        fault = "closed the connection"

        def answer(status: BrokerStatus) -> None:
            nonlocal answered
            hear(address, status, None)
            answered = True

        with border.around(address) as crossing:
            try:
                async with open_session(address, times) as ask:
                    await _ask_forever(ask, answer, times)
            except* (TriohaError, OSError, trio.TooSlowError) as group:
                fault = reason_of(group, times)
        if crossing.error is not None:
            fault = fault_of_this_program(crossing.error)
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
        # A node that answers slowly or at length is asked less often, never twice at once.
        pause_s = max(times.interval_s, status.answer_bytes / ANSWER_BYTES_PER_S)
        await trio.sleep_until(max(asked_at_s + pause_s, trio.current_time()))


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

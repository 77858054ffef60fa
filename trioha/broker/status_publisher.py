"""Publishes a node's status to its subscribers (docs/ha-status.md).

Theory of operation. Twenty monitors with ten requests a second each cost the node a few per cent of the puts
that it could store, since each request wakes it, is decoded and answered. So a monitor subscribes to a number
of updates. These are sent at multiples of its interval on the node's clock: the status is encoded once for
all subscribers of one interval, and only the node's own timer wakes it. The runtime table (28), whose figures
change slowly, is sent along once a second.

An update is dropped for a subscriber whose earlier bytes still wait to be sent. Closed or exhausted
subscriptions are dropped. If the status cannot be collected, that is logged, nothing is sent, and the
subscribers get the error when they send a request.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio
from attrs import define

from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.connections import Push
from trioha.remoting.status_subscription import StatusSubscription

log = structlog.get_logger(__name__)

TABLE_EVERY_S = 1.0
"""How often the runtime table is sent along."""


@define
class _Subscriber:
    every_s: float
    left: int
    due_s: float
    table: int
    """Number of the last table that it has received, or of the newest one when it subscribed."""


class StatusPublisher:
    """Holds the subscriptions and sends their updates."""

    def __init__(self, status: Callable[[], bytes], table: Callable[[], Awaitable[bytes]]) -> None:
        """`status` gives the current body of an answer to 907, `table` that of an answer to 28."""
        self._collect_status = status
        self._collect_table = table
        self._subscribers: dict[int, _Subscriber] = {}
        """By connection."""
        self._changed = trio.Event()
        self._table = b""
        """The newest table's frame."""
        self._tables = 0
        """Number of tables so far."""
        self._table_due_s = -math.inf

    @property
    def subscribers(self) -> int:
        """Number of connections with a subscription."""
        return len(self._subscribers)

    def subscribe(self, connection: int, updates: StatusSubscription) -> None:
        """Start a subscription of `connection`, which replaces its last one."""
        if updates.count:
            every_s = updates.every_ms / 1000
            due_s = _next_s(trio.current_time(), every_s)
            self._subscribers[connection] = _Subscriber(every_s, updates.count, due_s, self._tables)
            self._changed.set()
        else:
            self._subscribers.pop(connection, None)

    async def run(self, push: Push) -> None:
        """Send updates when they are due, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                due_s = min((subscriber.due_s for subscriber in self._subscribers.values()), default=math.inf)
                with trio.move_on_at(due_s):
                    await self._changed.wait()
                self._changed = trio.Event()
                now_s = trio.current_time()
                due = [
                    number for number, subscriber in self._subscribers.items() if subscriber.due_s <= now_s
                ]
                if due:
                    self._send(push, due, now_s)
                    if now_s >= self._table_due_s:
                        # A task of its own: the table waits for the disk, updates do not.
                        self._table_due_s = math.inf
                        nursery.start_soon(self._renew_table)

    def _send(self, push: Push, due: list[int], now_s: float) -> None:
        try:
            status = encode(
                request(RequestCode.GET_BROKER_HA_STATUS, body=self._collect_status(), oneway=True)
            )
        except Exception as error:
            log.error("status cannot be collected", exc_info=error)
            for connection in due:
                del self._subscribers[connection]
            return
        with_table = self._table + status
        for connection in due:
            subscriber = self._subscribers[connection]
            subscriber.left -= 1
            subscriber.due_s = _next_s(now_s, subscriber.every_s)
            is_open = push(connection, status if subscriber.table == self._tables else with_table)
            subscriber.table = self._tables
            if not is_open or not subscriber.left:
                del self._subscribers[connection]

    async def _renew_table(self) -> None:
        try:
            body = await self._collect_table()
            self._table = encode(request(RequestCode.GET_BROKER_RUNTIME_INFO, body=body, oneway=True))
            self._tables += 1
        except Exception as error:
            log.error("runtime table cannot be collected", exc_info=error)
        self._table_due_s = trio.current_time() + TABLE_EVERY_S


def _next_s(now_s: float, every_s: float) -> float:
    """The next multiple of `every_s` after now, where a multiple that equals now up to rounding is past."""
    return (math.floor(now_s / every_s + 1e-6) + 1) * every_s

"""Ordered pops: a queue gives its next messages when the last ones are acknowledged, or their time is over.

See docs/pop.md#ordered-pops.

They have no check points. What was handed out is in `trioha.metadata.consumer_orders`, where the group goes
on in the table of offsets: at the first message that is not acknowledged.

A queue that is blocked for a time is one of the `Deadlines`: what waits for it is woken when the time is
over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio
from attrs import evolve, frozen

from trioha.broker.deadlines import Deadlines
from trioha.broker.pop.positions import PopPositions
from trioha.broker.pop_records import GroupQueue
from trioha.metadata.consumer_orders import ConsumerOrders, Order
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.remoting.pop_handle import PoppedQueue, PopSource
from trioha.store.reads import GetResult

if TYPE_CHECKING:
    from trioha.broker.pop.receive import CheckedPop, Taken


@frozen(eq=False)
class _Blocked:
    """A queue that is blocked by an order, until its time is over or another order takes its place."""

    orders: ConsumerOrders
    queue: GroupQueue
    order: Order
    over: Callable[[GroupQueue, Order], None]
    """Called at the time."""

    @property
    def is_over(self) -> bool:
        """As `Ending`."""
        return self.orders.find(self.queue) is not self.order

    def end(self) -> None:
        """As `Ending`."""
        if not self.is_over:
            self.over(self.queue, self.order)


class OrderedPops:
    """Hands out messages in order. Run it."""

    def __init__(
        self,
        orders: ConsumerOrders,
        positions: PopPositions,
        *,
        now_ms: Callable[[], int],
        on_free: Callable[[GroupQueue], None] = lambda _queue: None,
    ) -> None:
        """`on_free` is called when a queue is free: all is acknowledged, or its time is over."""
        self._orders = orders
        self._positions = positions
        self._now_ms = now_ms
        self._on_free = on_free
        self._deadlines = Deadlines()

    async def run(self) -> None:
        """Tell when queues are free whose time is over, those of a former start, too; until cancelled."""
        for queue, order in self._orders.items():
            self._watch(queue, order)
        await self._deadlines.run()

    def _put(self, queue: GroupQueue, order: Order) -> None:
        """Raises TableFull."""
        self._orders.put(queue, order)
        self._watch(queue, order)

    def _watch(self, queue: GroupQueue, order: Order) -> None:
        """Tell that the queue is free: now, or when its time is over."""
        left_ms = order.blocked_until_ms() - self._now_ms()
        if left_ms <= 0:
            self._on_free(queue)
            return
        blocked = _Blocked(self._orders, queue, order, self._watch)
        self._deadlines.add(trio.current_time() + left_ms / 1000, blocked)

    def blocked_until_ms(self, queue: GroupQueue, attempt_id: str | None) -> int:
        """When the queue may be popped, ms since 1970; 0 if it may be now."""
        order = self._orders.find(queue)
        if order is None or (attempt_id is not None and attempt_id == order.attempt_id):
            return 0
        if order.offsets[-1] < (self._positions.find(queue) or 0):
            # A promoted slave may have a newer copy of the offset, or an administrator has moved it.
            return 0
        until_ms = order.blocked_until_ms()
        return until_ms if until_ms > self._now_ms() else 0

    def note(
        self, pop: CheckedPop, taken: Taken, queue: GroupQueue, offset: int, result: GetResult
    ) -> PoppedQueue:
        """Note that messages are handed out, of a queue that may be popped; how the answer names them."""
        before, header = self._orders.find(queue), pop.header
        again: dict[int, int] = {}
        if before is not None:
            more = 0 if header.attempt_id is not None and header.attempt_id == before.attempt_id else 1
            for one in set(before.left).intersection(result.queue_offsets):
                if times := before.times_given.get(one, 0) + more:
                    again[one] = times
        order = Order(
            taken.pop_ms,
            header.invisible_ms,
            result.queue_offsets,
            times_given=again,
            attempt_id=header.attempt_id,
            last_pop_ms=self._now_ms(),
        )
        self._put(queue, order)
        # What is not acknowledged is given again from there.
        self._positions.set(queue, offset)
        times_given = tuple(again.get(one, 0) for one in result.queue_offsets)
        return PoppedQueue(PopSource.TOPIC, queue[2], offset, result.queue_offsets, times_given)

    def _order(self, queue: GroupQueue, offset: int, pop_ms: int) -> Order | None:
        """The pop that a handle is of; None if it is over. Raises BadRequestError."""
        order = self._orders.find(queue)
        if order is None or order.pop_ms != pop_ms or offset < (self._positions.find(queue) or 0):
            return None
        if offset not in order.offsets:
            raise BadRequestError(
                f"offset {offset} was not handed out by this pop", code=ResponseCode.MESSAGE_ILLEGAL
            )
        return order

    def ack(self, queue: GroupQueue, offset: int, *, pop_ms: int) -> None:
        """A message is acknowledged. Raises BadRequestError."""
        order = self._order(queue, offset, pop_ms)
        if order is None:
            return
        order = evolve(order, acked_bits=order.acked_bits | 1 << order.offsets.index(offset))
        self._positions.set(queue, order.next_offset)
        self._put(queue, order)

    def change(self, queue: GroupQueue, offset: int, *, pop_ms: int, invisible_ms: int) -> int:
        """A message is given again so long after now; returns how long after the pop that is.

        Raises BadRequestError.
        """
        order = self._order(queue, offset, pop_ms)
        visible_ms = self._now_ms() + invisible_ms
        if order is not None:
            self._put(queue, evolve(order, visible_ms={**order.visible_ms, offset: visible_ms}))
        return visible_ms - pop_ms

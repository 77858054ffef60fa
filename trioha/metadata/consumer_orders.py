"""consumerOrderInfo.json: what ordered pops have handed out, and what of it is acknowledged.

See docs/pop.md#ordered-pops.

`{"table":{"topic@group":{queueId:order}}}`, an order:

| key | value |
|---|---|
| popTime, i | when the messages were handed out (ms), and for how long |
| o | the first queue offset, then those of the others less the first |
| ot | offset -> when the message is given again (ms), of those whose time was changed |
| oc | offset -> how often the message was given before, if it was |
| l | when the queue was popped last, ms |
| cm | bit i: message i is acknowledged |
| a | attemptId of the pop |

No slave of RocketMQ's has a copy of it. A trioha slave asks its master for it by request 402 with
`ORDERS_FIELD`; a trioha master answers with that field and the table, a RocketMQ broker with request modes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import field, frozen

from trioha.metadata.table import MetadataTable, TableFull, wall_clock_ms
from trioha.metadata.values import int_map, members, natural, pop_value, signed, text
from trioha.numbers import NATURAL32, parse_int

MESSAGES_MAX: Final = 64
"""Of one order: a pop has 32."""
ORDERS_FIELD: Final = "triohaConsumerOrders"
"""Field of the request of a slave, and of its answer: "true"."""
IDLE_MS: Final = 24 * 3600 * 1000
"""A queue that was not popped for so long is forgotten."""
GroupQueue = tuple[str, str, int]
"""Group, topic and queue id."""


@frozen
class Order:
    """What the last ordered pop of a queue has handed out to a group. Never changed."""

    pop_ms: int
    """When, ms since 1970."""
    invisible_ms: int
    """For how long."""
    offsets: tuple[int, ...]
    """Queue offsets of the messages, ascending."""
    acked_bits: int = 0
    """Bit i: message i is acknowledged."""
    visible_ms: Mapping[int, int] = field(factory=dict)
    """By offset, when messages are given again whose time was changed, ms since 1970."""
    times_given: Mapping[int, int] = field(factory=dict)
    """By offset, how often a message was given before; those that were not are missing."""
    attempt_id: str | None = None
    last_pop_ms: int = 0

    @property
    def left(self) -> tuple[int, ...]:
        """Offsets of the messages that are not acknowledged."""
        return tuple(one for index, one in enumerate(self.offsets) if not self.acked_bits >> index & 1)

    @property
    def next_offset(self) -> int:
        """Where the group goes on: at the first message that is not acknowledged."""
        return min(self.left, default=self.offsets[-1] + 1)

    def blocked_until_ms(self) -> int:
        """When the next messages may be handed out, ms since 1970; 0 if all are acknowledged."""
        due_ms = self.pop_ms + self.invisible_ms
        return max((self.visible_ms.get(offset, due_ms) for offset in self.left), default=0)

    @classmethod
    def of(cls, value: object) -> Order:
        """From its JSON value. Raises ValueError."""
        fields = dict(members(value, "an order"))
        listed = fields.get("o")
        if not isinstance(listed, list) or not 0 < len(listed) <= MESSAGES_MAX:
            raise ValueError("o is not a list of offsets")
        first, *others = (natural(one, "o") for one in listed)
        return cls(
            pop_value(fields, "popTime", natural, 0),
            pop_value(fields, "i", natural, 0),
            (first, *(first + one for one in others)),
            pop_value(fields, "cm", natural, 0),
            int_map(fields.get("ot") or {}, "ot"),
            int_map(fields.get("oc") or {}, "oc"),
            pop_value(fields, "a", text, "") or None,
            pop_value(fields, "l", signed, 0),
        )

    def to_json(self) -> dict[str, object]:
        """Its JSON value, keys in the order of RocketMQ's file."""
        first = self.offsets[0]
        fields: dict[str, object] = {"a": self.attempt_id} if self.attempt_id else {}
        fields |= {"cm": self.acked_bits, "i": self.invisible_ms, "l": self.last_pop_ms}
        fields["o"] = [first, *(one - first for one in self.offsets[1:])]
        if self.times_given:
            fields["oc"] = dict(self.times_given)
        if self.visible_ms:
            fields["ot"] = dict(self.visible_ms)
        fields["popTime"] = self.pop_ms
        return fields


class ConsumerOrders(MetadataTable):
    """The last ordered pops of all groups and queues."""

    file_name = "consumerOrderInfo.json"

    def __init__(self, *, orders_max: int = 500_000, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        """`orders_max`: trioha.consumerOffsetsMax."""
        super().__init__(now_ms=now_ms)
        self._orders: dict[GroupQueue, Order] = {}
        self.orders_max = orders_max

    def _load(self, fields: dict[str, object]) -> None:
        orders: dict[GroupQueue, Order] = {}
        for key, queues in members(fields.pop("table", {}), "table").items():
            orders |= orders_of(key, queues)
        for name in ("orderInfoCount", "orderedConsumptionLevel"):
            fields.pop(name, None)
        self._orders = orders

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        orders, from_ms = dict(self._orders), self._now_ms() - IDLE_MS
        return lambda: _document(_in_use(orders, from_ms))

    def find(self, queue: GroupQueue) -> Order | None:
        """What was handed out last."""
        return self._orders.get(queue)

    def items(self) -> list[tuple[GroupQueue, Order]]:
        """What was handed out last, of all groups and queues."""
        return list(self._orders.items())

    def by_key(self) -> dict[str, dict[int, Order]]:
        """Those of queues that are in use, by `topic@group` and queue id."""
        return _by_key(_in_use(self._orders, self._now_ms() - IDLE_MS))

    def replace_all(self, orders: Mapping[GroupQueue, Order]) -> None:
        """Be a copy of another broker's table."""
        self._orders = dict(orders)
        self._note_change()

    def put(self, queue: GroupQueue, order: Order) -> None:
        """The queue was popped, or something is acknowledged or changed. Raises TableFull."""
        if queue not in self._orders and len(self._orders) >= self.orders_max:
            raise TableFull(
                f"more than {self.orders_max} queues are popped in order, trioha.consumerOffsetsMax"
            )
        self._orders[queue] = order
        self._note_change()


def orders_of(key: str, queues: object) -> dict[GroupQueue, Order]:
    """Those of an entry `topic@group` of the table. Raises ValueError."""
    topic, _, group = key.partition("@")
    return {
        (group, topic, parse_int(queue_id, NATURAL32)): Order.of(order)
        for queue_id, order in members(queues, key).items()
    }


def orders_json(queues: Mapping[int, Order]) -> dict[int, object]:
    """The JSON value of an entry of the table."""
    return {queue_id: order.to_json() for queue_id, order in queues.items()}


def _in_use(orders: Mapping[GroupQueue, Order], from_ms: int) -> dict[GroupQueue, Order]:
    return {queue: order for queue, order in orders.items() if order.last_pop_ms >= from_ms}


def _by_key(orders: Mapping[GroupQueue, Order]) -> dict[str, dict[int, Order]]:
    table: dict[str, dict[int, Order]] = {}
    for (group, topic, queue_id), order in orders.items():
        table.setdefault(f"{topic}@{group}", {})[queue_id] = order
    return table


def _document(orders: Mapping[GroupQueue, Order]) -> dict[str, object]:
    table = {key: orders_json(queues) for key, queues in _by_key(orders).items()}
    return {"orderInfoCount": len(orders), "orderedConsumptionLevel": "QUEUE", "table": table}

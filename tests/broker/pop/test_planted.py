"""Defects that the model of `test_model` finds, each with steps that meet it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from unittest.mock import patch

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.broker.pop.test_model import Model
from tests.broker.sending import WallClock
from tests.simulation.planting import Defect, plants
from trioha.broker.pop.ordered import OrderedPops
from trioha.broker.pop.positions import PopPositions
from trioha.broker.pop.puts import PopPuts
from trioha.broker.pop.records import Acknowledgement, CheckPoint
from trioha.broker.pop_records import GroupQueue
from trioha.metadata.consumer_orders import Order
from trioha.store.messages import AppendResult, Message

PLANTED: list[Defect] = []
_plants = partial(plants, PLANTED)
AGAIN = "an acknowledged message comes again"
LOST = "a message that is not acknowledged does not come again"
FOUND: Mapping[str, tuple[str, list[tuple[str, int | None]]]] = {
    "an acknowledgement is answered, and names a check point that there is not": (
        AGAIN, [("send", 2), ("take", 2), ("ack", 0)],
    ),
    "a group is moved past one message more than its check point lists": (LOST, [("send", 4), ("take", 1)]),
    "what is given again has no acknowledgement in the log": (
        AGAIN, [("send", 1), ("take", 1), ("wait", 40), ("take", 1), ("ack", 0), ("promote", None)],
    ),
    "a promoted slave goes on at the offsets of its last copy": (
        AGAIN, [("send", 2), ("take", 2), ("ack", 0), ("promote", None)],
    ),
    "a queue that is popped in order is never blocked": (
        "messages come before those ahead of them are done",
        [("send", 4), ("take_in_order", 1), ("take_in_order", 1)],
    ),
    "an acknowledgement in order counts for what is before it, too": (
        "a message is passed over in order",
        [("send", 6), ("take_in_order", 2), ("ack_in_order", 1), ("wait", 40), ("take_in_order", 1)],
    ),
}  # fmt: skip
"""By defect, what the model says, and the steps."""


def _misnamed(matches: Callable[[Acknowledgement], bool]) -> Iterator[None]:
    """These acknowledgements belong to no check point."""
    make = PopPuts._message

    def make_other(self: PopPuts, record: CheckPoint | Acknowledgement, revive_queue_id: int) -> Message:
        if isinstance(record, Acknowledgement) and matches(record):
            record = evolve(record, pop=evolve(record.pop, start_offset=record.pop.start_offset + 1000))
        return make(self, record, revive_queue_id)

    with patch.object(PopPuts, "_message", make_other):
        yield


@_plants("an acknowledgement is answered, and names a check point that there is not")
def acknowledgements_lost() -> Iterator[None]:
    yield from _misnamed(lambda record: not record.is_batch)


@_plants("what is given again has no acknowledgement in the log")
def revivals_repeated() -> Iterator[None]:
    yield from _misnamed(lambda record: record.is_batch)


@_plants("a group is moved past one message more than its check point lists")
def one_too_far() -> Iterator[None]:
    move = PopPositions.handed_out

    def move_on(self: PopPositions, queue: GroupQueue, offset: int, check_point: AppendResult) -> None:
        move(self, queue, offset + 1, check_point)

    with patch.object(PopPositions, "handed_out", move_on):
        yield


@_plants("a promoted slave goes on at the offsets of its last copy")
def nothing_restored() -> Iterator[None]:
    with patch.object(PopPositions, "restore", lambda *_arguments, **_options: None):
        yield


@_plants("a queue that is popped in order is never blocked")
def never_blocked() -> Iterator[None]:
    with patch.object(OrderedPops, "blocked_until_ms", lambda *_arguments: 0):
        yield


@_plants("an acknowledgement in order counts for what is before it, too")
def acknowledged_to_there() -> Iterator[None]:
    with patch.object(Order, "next_offset", property(_after_acknowledged)):
        yield


def _after_acknowledged(order: Order) -> int:
    number = order.acked_bits.bit_length()
    return order.offsets[number - 1] + 1 if number else order.offsets[0]


def _play(root, steps):
    async def play():
        await Model(root, WallClock()).run(steps)

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))


def _reasons(error: BaseException) -> Iterator[str]:
    """Of failed assertions, in groups or not."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _reasons(one)
    else:
        assert isinstance(error, AssertionError), error
        yield str(error).splitlines()[0]


@pytest.mark.parametrize("defect", PLANTED, ids=lambda defect: defect.what)
def test_a_planted_defect_is_found(defect, tmp_path):
    reason, steps = FOUND[defect.what]
    sound, broken = tmp_path / "sound", tmp_path / "broken"
    sound.mkdir()
    broken.mkdir()
    _play(sound, steps)
    with defect.planted(), pytest.raises((AssertionError, ExceptionGroup)) as found:
        _play(broken, steps)
    assert list(_reasons(found.value)) == [reason]

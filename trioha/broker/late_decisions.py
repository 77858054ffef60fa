"""Decisions on transactions that came before their half message was in the table.

A decision waits until the service has followed dispatch past its half message, also when its connection ends:
many a producer ends right after its last decision. It is carried out or refused, whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import structlog
import trio
from attrs import define, field

from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

DECISION_WAIT_S: Final = 10.0
"""How long a decision waits for its half message, which dispatch has not reached yet."""


@define(eq=False)
class LateDecision:
    """A decision that waits."""

    queue_offset: int
    """Of its half message."""
    decide: Callable[[], None]
    """Carries it out. Raises BadRequestError."""
    _is_over: trio.Event = field(factory=trio.Event)
    _error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        """The decision is carried out, or has failed."""
        self._error = error
        self._is_over.set()

    async def ended(self) -> None:
        """Wait until the decision is carried out. Raises BadRequestError, or what `decide` has raised."""
        await self._is_over.wait()
        if self._error is not None:
            raise self._error


class LateDecisions:
    """All decisions that wait: one for each half message at most."""

    def __init__(self, followed: Watermark) -> None:
        """`followed`: half messages before it are in the table."""
        self._followed = followed
        self._offsets: set[int] = set()
        self._added, self._to_decide = trio.open_memory_channel[LateDecision](math.inf)

    def add(self, queue_offset: int, decide: Callable[[], None]) -> LateDecision:
        """Call `decide` when the half message is in the table. Raises BadRequestError if one waits."""
        if queue_offset in self._offsets:
            raise BadRequestError(
                "another decision waits for the same half message", code=ResponseCode.SYSTEM_BUSY
            )
        self._offsets.add(queue_offset)
        decision = LateDecision(queue_offset, decide)
        self._added.send_nowait(decision)
        return decision

    async def run(self) -> None:
        """Carry them out until cancelled, each after `DECISION_WAIT_S` at most."""
        async with trio.open_nursery() as nursery:
            async for decision in self._to_decide:
                nursery.start_soon(self._carry_out, decision)

    async def _carry_out(self, decision: LateDecision) -> None:
        is_in_table = False
        with trio.move_on_after(DECISION_WAIT_S):
            is_in_table = await self._followed.reached(decision.queue_offset + 1)
        self._offsets.remove(decision.queue_offset)
        try:
            if not is_in_table:
                raise BadRequestError(
                    "the half message is not dispatched yet; a check will follow",
                    code=ResponseCode.SYSTEM_BUSY,
                )
            decision.decide()
        except BadRequestError as error:
            decision.end(error)
        except Exception as error:
            # The connection reports it, too, unless it has ended.
            log.error("a decision failed", exc_info=error)
            decision.end(error)
        else:
            decision.end(None)

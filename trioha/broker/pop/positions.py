"""Where groups pop on: offsets that are ahead of the table of offsets until their check points are safe.

Theory of operation. A pop moves its group past the messages that it hands out, before anything else is read.
The table of offsets, which is written to a file and copied by slaves, follows when the check point is on disk
and each slave has it that may become the master. A RocketMQ broker commits at once: a slave that has the
offset and not the check point never gives the messages again, as nothing names them any more.

A master that starts knows from the check points in its log what the table lacks (`PendingPops.positions`).
`ConsumerOffsets.pops_complete_to` says from which record on to look: check points before it are in the table,
also if an administrator has set the offset back since.

An offset that anybody else commits meanwhile is a reset, and counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import trio
from attrs import define, field

from trioha.broker.pop_records import GroupQueue
from trioha.metadata.offsets import ConsumerOffsets
from trioha.store.messages import AppendResult

PUBLISH_S: Final = 0.1
"""Between two looks at whether check points are safe, while some are not."""
END_S: Final = 1.0
"""How long the end of a term waits for the last ones."""
STEPS_MAX: Final = 1024
"""Check points of one queue that wait to be safe; beyond that every second one joins the next."""


@define
class _Ahead:
    """A group in a queue that is ahead of the table."""

    committed: int | None
    """What the table has, as far as we know."""
    offset: int
    """Where it pops on."""
    steps: deque[tuple[int, int, int]] = field(factory=deque)
    """Start and end of check points in the log, and the queue offset after their messages, ascending."""


class PopPositions:
    """Where groups pop on. Run it."""

    def __init__(
        self, offsets: ConsumerOffsets, *, safe_offset: Callable[[], int], log_end: Callable[[], int]
    ) -> None:
        """`safe_offset`: the end of what this master's loss does not take; `log_end`: the log's end."""
        self._offsets = offsets
        self._safe_offset = safe_offset
        self._log_end = log_end
        self._ahead: dict[GroupQueue, _Ahead] = {}
        self._unsafe = trio.Event()
        """Set while a check point is not known to be safe."""

    def restore(self, positions: Mapping[GroupQueue, int], *, log_end: int) -> None:
        """Move groups past what the check points in the log before `log_end` cover. Raises TableFull."""
        for queue, offset in positions.items():
            if offset > (self._offsets.find(*queue) or 0):
                self._offsets.commit(*queue, offset)
        self._offsets.pops_complete_to = log_end

    def find(self, queue: GroupQueue) -> int | None:
        """Where the group pops on; None if it has no offset there."""
        ahead = self._current(queue)
        return self._offsets.find(*queue) if ahead is None else ahead.offset

    def _current(self, queue: GroupQueue) -> _Ahead | None:
        ahead = self._ahead.get(queue)
        if ahead is not None and self._offsets.find(*queue) != ahead.committed:
            del self._ahead[queue]
            return None
        return ahead

    def set(self, queue: GroupQueue, offset: int) -> None:
        """The group goes on at `offset`, whatever was handed out before. Raises TableFull."""
        self._ahead.pop(queue, None)
        self._offsets.commit(*queue, offset)

    def pass_over(self, queue: GroupQueue, offset: int) -> None:
        """The group goes on at `offset`: nothing before it is for the group. Raises TableFull."""
        ahead = self._current(queue)
        if ahead is None:
            self._offsets.commit(*queue, offset)
        else:
            # The table must not pass the check points before it.
            start, end, _ = ahead.steps[-1]
            ahead.steps[-1] = start, end, offset
            ahead.offset = offset

    def handed_out(self, queue: GroupQueue, offset: int, check_point: AppendResult) -> None:
        """The group goes on at `offset`, after messages whose check point was appended."""
        ahead = self._current(queue)
        if ahead is None:
            ahead = self._ahead[queue] = _Ahead(self._offsets.find(*queue), offset)
        ahead.offset = offset
        ahead.steps.append((check_point.physical_offset, check_point.end_offset, offset))
        if len(ahead.steps) > STEPS_MAX:
            starts = [start for start, _, _ in ahead.steps]
            kept = list(ahead.steps)[::-2][::-1]
            ahead.steps = deque(kept)
            ahead.steps[0] = starts[0], *kept[0][1:]
        self._unsafe.set()

    def publish(self) -> bool:
        """Commit the offsets whose check points are safe; whether all are."""
        safe_offset = self._safe_offset()
        for queue in list(self._ahead):
            ahead = self._current(queue)
            if ahead is None:
                continue
            offset = None
            while ahead.steps and ahead.steps[0][1] <= safe_offset:
                offset = ahead.steps.popleft()[2]
            if offset is not None:
                self._offsets.commit(*queue, offset)
                ahead.committed = offset
            if not ahead.steps:
                del self._ahead[queue]
        self._offsets.pops_complete_to = min(
            (ahead.steps[0][0] for ahead in self._ahead.values()), default=self._log_end()
        )
        return not self._ahead

    async def run(self) -> None:
        """Commit until cancelled; then wait up to `END_S` until all is committed."""
        try:
            while True:
                await self._unsafe.wait()
                await self._publish_all()
                self._unsafe = trio.Event()
        finally:
            with trio.move_on_after(END_S, shield=True):
                await self._publish_all()

    async def _publish_all(self) -> None:
        """Publish until all is safe: disk and slaves have no common event to wait for."""
        while self._ahead and not self.publish():  # noqa: ASYNC110
            await trio.sleep(PUBLISH_S)

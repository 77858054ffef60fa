"""Delivers delayed messages when they are due.

See docs/protocol/store.md#delayed-transactional-and-retried-messages,
docs/protocol/store.md#configuration-files.

Theory of operation. Each delay level has a queue in the schedule topic, in which messages are due one after
the other: they wait equally long. So only the first undelivered message of each level counts. One task
sleeps until the earliest of these is due, or until the dispatcher reports entries in an empty queue of the
schedule topic, and reads only the queues of these levels. A due message is put into its real topic as a new
record, without waiting for disk or slaves, as RocketMQ does.

The level's offset in delayOffset.json, which slaves copy, follows later: when the delivered record is on disk
and each slave that may become master has it. A restarted or promoted master goes on at that offset. With
RocketMQ's, which follows at once, it would pass over a message whose delivered record went down with the old
master. Here a message may be delivered twice after a crash, and none is lost. While a slave is stuck,
delivery goes on and the offset waits.

Due times are wall clock times. The wall clock may be set, and a computer may sleep while trio's clock stands
still: no sleep is longer than `CLOCK_CHECK_S`. A message is due its level's delay after its store time, which
is the clock's at the put. A message that seems to be due later than its delay from now, by more than
`LEAD_MS_MAX`, is due at once: the clock or messageDelayLevel has changed. No other message comes sooner or
later for it.

A put that is refused for now (a full disk, too few slaves) is tried again after `RETRY_S`, and the level
waits. A record that cannot be delivered, now or later, is logged and skipped.

Only a master delivers: the records reach slaves by replication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog
import trio
from attrs import define, field, frozen

from trioha.broker.delayed_messages import delivered
from trioha.broker.puts import PutService
from trioha.errors import StoreError
from trioha.metadata.offsets import DelayOffsets
from trioha.metadata.table import wall_clock_ms
from trioha.store.consume_queues import Queue
from trioha.store.entry_queue import Entry
from trioha.store.message_store import MessageStore
from trioha.store.put_status import PutStatus
from trioha.store.record import Record, RecordError, decode_record
from trioha.store.tags import DelayLevels
from trioha.store.time_steps import LEAD_MS_MAX
from trioha.store.topics import SCHEDULE_TOPIC

log = structlog.get_logger(__name__)

CLOCK_CHECK_S: Final = 5.0
"""Longest sleep while messages wait."""
RETRY_S: Final = 1.0
"""Before the next try of a put that was refused, or of a queue that could not be read."""
PUBLISH_S: Final = 0.1
"""Between two looks at whether deliveries are safe, while some are not."""
END_S: Final = 1.0
"""How long the end of delivery waits for the last ones."""
UNPUBLISHED_MAX: Final = 1024
"""Steps of one level that wait to be safe; beyond that every second one joins the next."""
SLICE_MESSAGES: Final = 64
"""Messages of one level that are delivered before other tasks and levels run."""
_AT_ONCE: Final = float("-inf")
_NEVER: Final = float("inf")
_REFUSED_FOR_GOOD: Final = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))


@frozen
class DelayProgress:
    """How far one delay level is."""

    level: int
    delivered_offset: int
    """Queue offset of the next message to deliver."""
    max_offset: int
    """Queue offset after the last message."""


@define
class _Level:
    """One delay level with a queue."""

    level: int
    offset: int
    """Queue offset of the next message to deliver. Moved by delivery; never beyond the queue's end."""
    due_ms: float
    """When to look at it again, wall clock: its first message is due, or a try follows. Infinite for a level
    without messages."""
    is_stalled: bool = False
    """Whether the last try failed for now."""
    unpublished: deque[tuple[int, int]] = field(factory=deque)
    """Physical end of what was delivered, and `offset` after that, both ascending: not known to be safe."""

    def delivered_to(self, end_offset: int) -> None:
        """All before `offset` is delivered by records that end at `end_offset` at most."""
        steps = self.unpublished
        if steps and steps[-1][0] == end_offset:
            steps.pop()
        steps.append((end_offset, self.offset))
        if len(steps) > UNPUBLISHED_MAX:
            self.unpublished = deque(list(steps)[::-2][::-1])


class DelayedDelivery:
    """Delivers the delayed messages of a master's store. Run it; give it what the dispatcher has written."""

    def __init__(
        self,
        store: MessageStore,
        puts: PutService,
        offsets: DelayOffsets,
        *,
        delay_levels: DelayLevels,
        safe_offset: Callable[[], int] | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`safe_offset`: the end of what this master's loss does not take, by default the log's end.

        `now_ms`: the wall clock, ms since 1970.
        """
        self._store = store
        self._puts = puts
        self._offsets = offsets
        self._delay_levels = delay_levels
        self._safe_offset = safe_offset or (lambda: store.commit_log.max_offset)
        self._now_ms = now_ms
        self._unsafe = trio.Event()
        """Set while a level has deliveries that are not safe yet."""
        self._levels: dict[int, _Level] = {}
        self._changed = trio.Event()
        """Set when a level is to be looked at earlier than `run` sleeps for."""
        self.delivered = 0
        """Messages delivered since the start."""
        self.skipped = 0
        """Records that could not be delivered."""
        for queue in store.queues:
            if queue.topic == SCHEDULE_TOPIC:
                # The end of a log that was cut is before the offset that is known.
                offset = min(offsets.find(queue.queue_id + 1) or 0, queue.max_offset)
                self._levels[queue.queue_id + 1] = _Level(queue.queue_id + 1, offset, _AT_ONCE)

    def arrived(self, queues: Iterable[Queue]) -> None:
        """Entries have come to these queues."""
        for queue in queues:
            if queue.topic == SCHEDULE_TOPIC:
                self._wake(queue.queue_id + 1)

    def _wake(self, number: int) -> None:
        level = self._levels.get(number)
        if level is None:
            # The queue is new: an offset that is known for it is of a log that is gone.
            level = self._levels[number] = _Level(number, 0, _AT_ONCE)
        elif level.due_ms != _NEVER:
            # Its first message is known: what comes later is due later.
            return
        level.due_ms = _AT_ONCE
        self._changed.set()

    def progress(self) -> list[DelayProgress]:
        """How far each level with a queue is."""
        return [
            DelayProgress(level.level, level.offset, 0 if queue is None else queue.max_offset)
            for level in sorted(self._levels.values(), key=lambda level: level.level)
            for queue in (self._store.queues.find(SCHEDULE_TOPIC, level.level - 1),)
        ]

    async def run(self) -> None:
        """Deliver until cancelled; then wait up to `END_S` until the offsets of what was delivered are
        published."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._publish_when_safe)
                nursery.start_soon(self._deliver_when_due)
        finally:
            with trio.move_on_after(END_S, shield=True):
                await self._publish_all()

    async def _publish_when_safe(self) -> None:
        while True:
            await self._unsafe.wait()
            await self._publish_all()
            self._unsafe = trio.Event()

    async def _publish_all(self) -> None:
        """Publish until all deliveries are safe: disk and slaves have no common event to wait for."""
        while not self._publish():  # noqa: ASYNC110
            await trio.sleep(PUBLISH_S)

    def _publish(self) -> bool:
        """Publish the offsets of deliveries that are safe; whether all are."""
        is_all = True
        safe_offset = self._safe_offset()
        for level in self._levels.values():
            steps, offset = level.unpublished, None
            while steps and steps[0][0] <= safe_offset:
                offset = steps.popleft()[1]
            if offset is not None:
                self._offsets.put(level.level, offset)
            is_all = is_all and not steps
        return is_all

    async def _deliver_when_due(self) -> None:
        while True:
            self._changed = trio.Event()
            now_ms = self._now_ms()
            for level in [level for level in self._levels.values() if self._is_to_check(level, now_ms)]:
                self._deliver_slice(level, now_ms)
                await trio.lowlevel.checkpoint()
            first_ms = min((level.due_ms for level in self._levels.values()), default=_NEVER)
            sleep_s = (first_ms - self._now_ms()) / 1000
            if sleep_s > 0:
                with trio.move_on_after(sleep_s if first_ms == _NEVER else min(sleep_s, CLOCK_CHECK_S)):
                    await self._changed.wait()

    def _is_to_check(self, level: _Level, now_ms: int) -> bool:
        """Whether a level's first message may be due."""
        return level.due_ms <= now_ms or (
            level.due_ms != _NEVER and not self._is_credible(level.level, level.due_ms, now_ms)
        )

    def _is_credible(self, level: int, due_ms: float, now_ms: int) -> bool:
        """Whether a message that was put by now can be due then."""
        delay_ms = self._delay_levels.delay_ms(level)
        return delay_ms is None or due_ms <= now_ms + max(delay_ms, RETRY_S * 1000) + LEAD_MS_MAX

    def _deliver_slice(self, level: _Level, now_ms: int) -> None:
        """Deliver due messages of a level, `SLICE_MESSAGES` at most, and set when to look at it again."""
        queue = self._store.queues.find(SCHEDULE_TOPIC, level.level - 1)
        if queue is None:
            # The log was started again without records.
            del self._levels[level.level]
            return
        end_offset = self._store.commit_log.max_offset
        start_offset = level.offset = max(level.offset, queue.min_offset)
        level.due_ms = _NEVER if level.offset >= queue.max_offset else now_ms
        try:
            for entry in queue.entries(level.offset, SLICE_MESSAGES):
                due_ms = self._due_ms(level.level, entry, now_ms)
                if due_ms > now_ms:
                    level.due_ms = due_ms
                    break
                if not self._deliver(level, entry):
                    level.due_ms = now_ms + RETRY_S * 1000
                    break
                level.offset = entry.queue_offset + entry.messages
        except StoreError as error:
            self._stall(level, str(error))
            level.due_ms = now_ms + RETRY_S * 1000
        if level.offset >= queue.max_offset:
            level.due_ms = _NEVER
        elif level.offset == start_offset and level.due_ms <= now_ms:
            self._stall(level, "the queue's next entry cannot be read")
            level.due_ms = now_ms + RETRY_S * 1000
        log_ = self._store.commit_log
        if log_.max_offset > end_offset:
            level.delivered_to(log_.max_offset)
        else:
            # Nothing was put: the offset is as safe as the deliveries before it.
            level.delivered_to(level.unpublished[-1][0] if level.unpublished else 0)
        if not self._publish():
            self._unsafe.set()

    def _due_ms(self, level: int, entry: Entry, now_ms: int) -> int:
        """When an entry's message is due; blank entries are at once."""
        if entry.is_blank:
            return now_ms
        return entry.tags_code if self._is_credible(level, entry.tags_code, now_ms) else now_ms

    def _deliver(self, level: _Level, entry: Entry) -> bool:
        """Whether the entry is done: its message was put, or is skipped."""
        if entry.is_blank:
            return True
        view = self._store.reads.record_at(entry.physical_offset)
        try:
            if view is None or len(view) != entry.size:
                raise ValueError("there is no record of its size at its offset")
            record = decode_record(view)
            assert isinstance(record, Record), "reads give no blanks"
            if record.topic != SCHEDULE_TOPIC:
                raise ValueError(f"the record there is of topic {record.topic!r}")
            message = delivered(record)
        except (RecordError, ValueError) as error:
            self._skip(entry, str(error))
            return True
        result = self._puts.put(message)
        if result.status is PutStatus.PUT_OK:
            if level.is_stalled:
                level.is_stalled = False
                log.info("delayed messages are delivered again", level=level.level)
            self.delivered += 1
            return True
        reason = result.append.reason or result.status.name
        if result.status in _REFUSED_FOR_GOOD:
            self._skip(entry, reason)
            return True
        self._stall(level, reason)
        return False

    def _stall(self, level: _Level, reason: str) -> None:
        if not level.is_stalled:
            level.is_stalled = True
            log.error("delayed messages cannot be delivered now", level=level.level, reason=reason)

    def _skip(self, entry: Entry, reason: str) -> None:
        self.skipped += 1
        log.error("delayed message cannot be delivered", offset=entry.physical_offset, reason=reason)

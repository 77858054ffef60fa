"""Delivers timer messages when they are due (docs/protocol/timer.md#delivery).

Theory of operation. The log alone says what is pending: records of the timer topic wait, and copies of them
in their real topics are done (`trioha.broker.timer_records`). When a node becomes the master, it counts what
waits in all of its log. From then on this task follows the queue of the timer topic, and takes away what it
has delivered. Nothing else is stored: a node that was killed, or a slave that is promoted, counts anew, and
does not deliver what has a copy in its log. A timer whose copy went down with another node comes again.

A slot is delivered when it is over, the first one first, by puts that wait for neither disk nor slaves. A put
that is refused for now is tried again after `RETRY_S`, and later slots wait. A record that the disk does not
give is tried again after `READ_AGAIN_S`, and holds up no other. One that can never be delivered is logged and
skipped.

A timer far ahead of its record is put anew before the record gets old (`PendingTimer.rolls_at`), so that
retention by age deletes no record that waits.

Slots are wall clock times. The wall clock may be set, and a computer may sleep while trio's clock stands
still: no sleep is longer than `CLOCK_CHECK_S`. A step of the clock back delays timers, a step forward
delivers them early.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog
import trio
from attrs import frozen

from trioha.broker.pop_records import is_pop_record
from trioha.broker.puts import PutService
from trioha.broker.rates import RateWindows
from trioha.broker.timer_messages import TimerSettings, delivered, rolled
from trioha.broker.timer_records import PendingTimer, PendingTimers, has_slot
from trioha.errors import StoreError
from trioha.metadata.table import wall_clock_ms
from trioha.store.consume_queues import Queue
from trioha.store.message_properties import parse_properties
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Record, RecordError, decode_checked
from trioha.store.topics import TIMER_TOPIC

log = structlog.get_logger(__name__)

CLOCK_CHECK_S: Final = 1.0
"""Longest sleep while timers wait."""
RETRY_S: Final = 1.0
"""Before the next try of a put that was refused, or of a queue that could not be read."""
READ_AGAIN_S: Final = 60
"""Before the next try of a record that the disk does not give."""
SLICE_TIMERS: Final = 64
"""Timers that are read or delivered before other tasks run."""
_REFUSED_FOR_GOOD: Final = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))


class _NotNowError(Exception):
    """A put is refused for now, for the reason that is its text."""


@frozen
class TimerProgress:
    """How far delivery is."""

    late_s: int = 0
    """How long the first timer that waits is overdue; 0 if none is."""
    unread: int = 0
    """Entries of the timer topic that were not read yet."""
    pending: int = 0
    """Messages that wait."""
    stored_per_s: float = 0.0
    """Timers that came, over the last 10 s."""
    delivered_per_s: float = 0.0
    """Timers that were delivered, over the last 10 s."""


class TimerDelivery:
    """Delivers the timers of a master's store. Run it; give it what the dispatcher has written."""

    def __init__(
        self,
        store: MessageStore,
        puts: PutService,
        settings: TimerSettings,
        *,
        count: Callable[[], Awaitable[PendingTimers]],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`count` returns what waits when this node becomes the master, once that is known.

        `now_ms`: the wall clock, ms since 1970.
        """
        self._store = store
        self._puts = puts
        self.settings = settings
        self._count = count
        self._now_ms = now_ms
        self._timers = PendingTimers(roll_window_ms=settings.roll_window_ms)
        self._next_offset = -1
        """In the timer topic, of the entry that is read next; -1 before what waits is counted."""
        self._changed = trio.Event()
        self._is_stalled = False
        """Whether the last try failed for now."""
        now_s = trio.current_time()
        self._rates = RateWindows(now_s), RateWindows(now_s)
        """Of timers that came, and of those that were delivered."""
        self.done_ms: int | None = None
        """The timers of slots before it, of those that were put before it, are delivered, ms since 1970; None
        until that is known."""
        self._passed: set[int] = set()
        """Of the first slot, queue offsets of records that were put anew, or that could not be read."""
        self.delivered = 0
        """Timers whose time has come since the start, skipped ones included."""
        self.skipped = 0
        """Records that could not be delivered."""

    def arrived(self, queues: Iterable[Queue]) -> None:
        """Entries have come to these queues."""
        if any(queue.topic == TIMER_TOPIC for queue in queues):
            self._changed.set()

    def waiting(self, slot_ms: int) -> int:
        """How many timers wait for a slot, of those that were read."""
        return self._timers.waiting(slot_ms)

    def progress(self) -> TimerProgress:
        """How far it is."""
        now_s, now_ms = trio.current_time(), self._now_ms()
        stored, done = (rates.rates_per_s(now_s)[0] for rates in self._rates)
        first_ms = self._timers.first_ms
        late_ms = 0 if first_ms is None else now_ms - first_ms - self.settings.precision_ms
        return TimerProgress(
            late_s=max(0, late_ms // 1000),
            unread=self._unread,
            pending=self._timers.figures()[0],
            stored_per_s=stored,
            delivered_per_s=done,
        )

    @property
    def _unread(self) -> int:
        return self._store.reads.max_offset(TIMER_TOPIC, 0) - max(0, self._next_offset)

    def pending(self) -> PendingTimers | None:
        """What waits; None until it is counted."""
        return None if self._next_offset < 0 else self._timers

    def first_ms(self) -> int | None:
        """No timer that waits is due before this moment, ms since 1970; None until that is known."""
        if self._next_offset < 0 or self._unread:
            return None
        now_ms = self._now_ms()
        first_ms = self._timers.first_ms
        return now_ms if first_ms is None else min(first_ms, now_ms)

    async def run(self) -> None:
        """Deliver until cancelled."""
        self._timers = await self._count()
        self._next_offset = self._timers.next_offset
        looked_ms, end_offset = 0, -1
        while True:
            self._changed = trio.Event()
            if end_offset < 0:
                looked_ms, end_offset = self._whole_ms(self._now_ms()), self._store.commit_log.max_offset
            try:
                busy = self._follow() or await self._deliver_due()
            except (StoreError, _NotNowError) as error:
                self._stall(str(error))
                await trio.sleep(RETRY_S)
                continue
            if busy:
                await trio.lowlevel.checkpoint()
                continue
            if self._store.dispatcher.position >= end_offset:
                self.done_ms, end_offset = looked_ms, -1
            first_ms = self._timers.first_ms
            sleep_s = CLOCK_CHECK_S
            if first_ms is not None:
                due_ms = first_ms + self.settings.precision_ms
                sleep_s = min(max(due_ms - self._now_ms(), 1) / 1000, CLOCK_CHECK_S)
            with trio.move_on_after(sleep_s):
                await self._changed.wait()

    def _follow(self) -> bool:
        """Read what has come to the timer topic, a slice at most; whether there may be more."""
        queue = self._store.queues.find(TIMER_TOPIC, 0)
        if queue is None:
            return False
        self._next_offset = max(self._next_offset, queue.min_offset)
        for entry in queue.entries(self._next_offset, SLICE_TIMERS):
            if not entry.is_blank:
                record = self._record(entry.physical_offset, entry.size)
                if record is not None and has_slot(record.properties_raw):
                    properties = parse_properties(record.properties_raw)
                    is_pop = is_pop_record(record, properties)
                    self._timers.add(record, properties, is_pop=is_pop)
                    self._rates[0].add(1, trio.current_time())
            self._next_offset = entry.queue_offset + entry.messages
        return self._next_offset < queue.max_offset

    def _record(self, physical_offset: int, size: int) -> Record | None:
        """The record of the timer topic there; None if there is none of that size. Raises StoreError."""
        view = self._store.reads.record(physical_offset, size)
        try:
            record = None if view is None else decode_checked(view)
        except RecordError:
            return None
        return record if record is not None and record.topic == TIMER_TOPIC else None

    async def _deliver_due(self) -> bool:
        """Deliver the first slot, if it is over, or roll what is to roll then; whether there was one."""
        timers = self._timers
        first_ms = timers.first_ms
        if first_ms is None or self._whole_ms(self._now_ms()) <= first_ms:
            return False
        left = [found for found in timers.at(first_ms) if found[1].queue_offset not in self._passed]
        for number, (key, timer) in enumerate(left, 1):
            self._handle(key, timer)
            if number % SLICE_TIMERS == 0:
                await trio.lowlevel.checkpoint()
        if not left:
            timers.end_slot(first_ms)
            self._passed.clear()
        return True

    def _whole_ms(self, time_ms: int) -> int:
        """The beginning of the slot that a time is in."""
        return time_ms // self.settings.precision_ms * self.settings.precision_ms

    def _handle(self, key: int, timer: PendingTimer) -> None:
        """Deliver or roll a timer. Raises _NotNowError if the put is refused for now."""
        is_due = self._whole_ms(self._now_ms()) > timer.slot_ms
        try:
            self._put(timer, delivered if is_due else rolled)
        except StoreError as error:
            # Others do not wait for a bad sector.
            log.error("timer cannot be read now", reason=str(error), retry_s=READ_AGAIN_S)
            self._timers.look_at(key, self._whole_ms(self._now_ms()) + 1000 * READ_AGAIN_S)
            self._passed.add(timer.queue_offset)
            return
        if is_due:
            self.delivered += 1
            self._rates[1].add(1, trio.current_time())
            self._timers.done(key, timer, now_ms=self._now_ms())
        else:
            # The new record takes its place when it is read.
            self._passed.add(timer.queue_offset)

    def _put(self, timer: PendingTimer, make: Callable[..., Message]) -> None:
        """Put the message that `make` makes of a timer's record, or skip it. Raises StoreError, and
        _NotNowError if the put is refused for now."""
        try:
            record = self._record(timer.physical_offset, timer.size)
            if record is None:
                raise ValueError("there is no record of its size at its offset")
            message = make(record, now_ms=self._now_ms(), enqueued_ms=self._whole_ms(timer.stored_ms))
        except ValueError as error:
            self._skip(timer.physical_offset, str(error))
            return
        result = self._puts.put(message)
        reason = result.append.reason or result.status.name
        if result.status in _REFUSED_FOR_GOOD:
            self._skip(timer.physical_offset, reason)
        elif result.status is not PutStatus.PUT_OK:
            raise _NotNowError(reason)
        elif self._is_stalled:
            self._is_stalled = False
            log.info("timers are delivered again")

    def _stall(self, reason: str) -> None:
        if not self._is_stalled:
            self._is_stalled = True
            log.error("timers cannot be delivered now", reason=reason, retry_s=RETRY_S)

    def _skip(self, physical_offset: int, reason: str) -> None:
        self.skipped += 1
        log.error("timer cannot be delivered", offset=physical_offset, reason=reason)

"""Gives popped messages again that nobody has acknowledged in time.

See docs/pop.md#revival, docs/protocol/pop.md#revival.

Theory of operation. Check points and acknowledgements come to the revive topic when they are due, which is
the timers' work: an acknowledgement that was put in time is there when the timers of its check point's time
are delivered. A round reads what has come to each queue of the topic. A check point is kept until all of its
messages are done. `GRACE_MS` after its time, what is left is put to the group's retry topic, where pops read
it; then an acknowledgement is put for it (tag `bAck`). So the log itself says that a message was given again:
a node that starts, or a slave that is promoted, reads both and does nothing twice.

The offset of `REVIVE_GROUP` follows when the records of the revival are safe (on disk, and held by each slave
that may become the master): it is that of the last check point of which, and before which, all is done.
It only shortens the next start.

| what cannot be given again | what happens |
|---|---|
| topic or group is not known | put off: a later check point, then an acknowledgement of the old one |
| the record cannot be read now | the same |
| the record is gone from the log | passed over |
| the put is refused for now | the whole queue waits `RETRY_S` |
| the put is refused for good | logged, and passed over |

A RocketMQ broker passes over what is of a topic or group that it does not know: a slave that is promoted
before its first copy of both loses the messages.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog
import trio
from attrs import define, evolve, field

from trioha.broker.pop.positions import PopPositions
from trioha.broker.pop.puts import PopPuts
from trioha.broker.pop.records import (
    ACK,
    BATCH_ACK,
    CHECK_POINT,
    REVIVE_GROUP,
    Acknowledgement,
    CheckPoint,
    Pop,
    decode_acknowledgement,
    decode_check_point,
)
from trioha.broker.pop.settings import PopSettings
from trioha.broker.puts import PutService
from trioha.errors import RemoteProtocolError, StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.numbers import I32
from trioha.remoting.command import BadRequestError
from trioha.store.consume_queues import Queue
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Host, Record, RecordError, decode_record
from trioha.store.topics import RETRY_TOPIC_PREFIX

log = structlog.get_logger(__name__)

GRACE_MS: Final = 2000
"""An acknowledgement that comes so long after its message's time still counts, as in RocketMQ."""
RETRY_S: Final = 1.0
SLICE_ENTRIES: Final = 64
"""Records that are read, or check points that are revived, before other tasks run."""
ACKNOWLEDGED_MAX: Final = 10_000
"""Pops of one queue whose acknowledgements are remembered."""
PUT_OFF_S: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""How long messages are put off that cannot be given again, each time they cannot; as in RocketMQ."""
FIRST_POP: Final = "1ST_POP_TIME"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
_REFUSED_FOR_GOOD: Final = frozenset((PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED))


class _NotNowError(Exception):
    """A put is refused for now, for the reason that is its text."""


@define
class _Open:
    """A check point with messages that are not done."""

    point: CheckPoint
    queue_offset: int
    """Of its record, in the revive topic."""
    left: set[int]
    """Queue offsets of its messages that are not acknowledged."""
    revived: list[int] = field(factory=list)
    """Those that were given again, whose acknowledgement is not put yet."""


@define
class _ReviveQueue:
    """One queue of the revive topic."""

    next_offset: int
    """Of the entry that is read next."""
    open: dict[Pop, _Open] = field(factory=dict)
    """In the order of the queue."""
    check_points: deque[int] = field(factory=deque)
    """Queue offsets of the check points that were read, from the first one that may be open; ascending."""
    acknowledged: OrderedDict[Pop, set[int]] = field(factory=OrderedDict)
    """Offsets that were acknowledged last, for check points that come later: a stalled timer makes one come
    after its acknowledgements, and a RocketMQ broker's timer may deliver one twice."""
    done: deque[tuple[int, int]] = field(factory=deque)
    """End of the log when they were done, and queue offset, of check points that are done: not safe yet."""
    is_stalled: bool = False


class Revival:
    """Gives messages again on a master. Run it; give it what the dispatcher has written."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        settings: PopSettings,
        *,
        puts: PutService,
        pop_puts: PopPuts,
        positions: PopPositions,
        timers_done_ms: Callable[[], int | None],
        slot_of: Callable[[int], int],
        safe_offset: Callable[[], int],
        host: Callable[[], Host],
        now_ms: Callable[[], int],
        interval_s: float,
    ) -> None:
        """`timers_done_ms`: the timers of slots before it are delivered, ms since 1970; None until that is
        known. `slot_of`: the slot of a time. `safe_offset`: the end of what this master's loss does not
        take. `interval_s`: between two rounds, reviveInterval."""
        self._store = store
        self._metadata = metadata
        self._settings = settings
        self._puts = puts
        self._pop_puts = pop_puts
        self._positions = positions
        self._timers_done_ms = timers_done_ms
        self._slot_of = slot_of
        self._safe_offset = safe_offset
        self._host = host
        self._now_ms = now_ms
        self._interval_s = interval_s
        self._queue_ids = {queue.queue_id for queue in store.queues if queue.topic == pop_puts.topic}
        """Queues of the revive topic."""
        self._queues: dict[int, _ReviveQueue] = {}
        self.revived = 0
        """Messages that were given again since the start."""
        self.lost = 0
        """Messages that could not be given again, for good."""
        self.unreadable = 0
        """Records of the revive topic in an unknown format."""

    def arrived(self, queues: Iterable[Queue]) -> None:
        """Entries have come to these queues."""
        for queue in queues:
            if queue.topic == self._pop_puts.topic:
                self._queue_ids.add(queue.queue_id)

    @property
    def waiting(self) -> int:
        """Messages of check points that came to the revive topic and are not done."""
        return sum(len(one.left) for queue in self._queues.values() for one in queue.open.values())

    async def run(self) -> None:
        """Give messages again until cancelled."""
        while True:
            await self.round()
            await trio.sleep(self._interval_s)

    async def round(self) -> None:
        """Read what has come, and give again what is due. Cancelled, it leaves what the next round does."""
        timers_done_ms = self._timers_done_ms()
        if timers_done_ms is None:
            return
        now_ms, end_offset = self._now_ms(), self._store.commit_log.max_offset
        # All that was put by now is in the queues then, late acknowledgements included.
        await self._store.dispatcher.dispatched.reached(end_offset)
        for queue_id in sorted(self._queue_ids):
            queue = self._store.queues.find(self._pop_puts.topic, queue_id)
            if queue is not None:
                await self._round(queue, now_ms=now_ms, timers_done_ms=timers_done_ms)
        self._publish()

    async def _round(self, queue: Queue, *, now_ms: int, timers_done_ms: int) -> None:
        state = self._queues.get(queue.queue_id)
        if state is None:
            state = self._queues[queue.queue_id] = _ReviveQueue(self._first_offset(queue))
        try:
            while self._follow(queue, state):
                await trio.lowlevel.checkpoint()
            for number, one in enumerate(list(state.open.values()), 1):
                if (
                    one.point.revive_ms + GRACE_MS <= now_ms
                    and self._slot_of(one.point.revive_ms) < timers_done_ms
                ):
                    self._revive(queue.queue_id, state, one)
                if number % SLICE_ENTRIES == 0:
                    await trio.lowlevel.checkpoint()
        except (StoreError, _NotNowError) as error:
            if not state.is_stalled:
                state.is_stalled = True
                log.error(
                    "popped messages cannot be given again now", queue=queue.queue_id, reason=str(error)
                )
            return
        if state.is_stalled:
            state.is_stalled = False
            log.info("popped messages are given again", queue=queue.queue_id)

    def _first_offset(self, queue: Queue) -> int:
        last = self._metadata.consumer_offsets.find(REVIVE_GROUP, queue.topic, queue.queue_id)
        # The end of a log that was cut is before the offset that is known.
        return queue.min_offset if last is None else min(last + 1, queue.max_offset)

    # -- reading

    def _follow(self, queue: Queue, state: _ReviveQueue) -> bool:
        """Read what has come, a slice at most; whether there may be more. Raises StoreError."""
        state.next_offset = max(state.next_offset, queue.min_offset)
        before = state.next_offset
        for entry in queue.entries(state.next_offset, SLICE_ENTRIES):
            if not entry.is_blank:
                self._read(state, entry.physical_offset, entry.queue_offset)
            state.next_offset = entry.queue_offset + entry.messages
        return before < state.next_offset < queue.max_offset

    def _read(self, state: _ReviveQueue, physical_offset: int, queue_offset: int) -> None:
        record = self._record(physical_offset)
        if record is None:
            return
        properties = parse_properties(record.properties_raw)
        try:
            match properties.get("TAGS"):
                case tag if tag == CHECK_POINT:
                    self._open(state, decode_check_point(record.body), queue_offset)
                case tag if tag in {ACK, BATCH_ACK}:
                    found = decode_acknowledgement(record.body)
                    self._acknowledge(state, self._named(found.pop), found.offsets)
                case _:
                    self.unreadable += 1
        except (RemoteProtocolError, ValueError) as error:
            self.unreadable += 1
            log.error(
                "record of the revive topic is in an unknown format",
                offset=physical_offset,
                reason=str(error),
            )

    def _record(self, physical_offset: int) -> Record | None:
        """The record there; None if there is none. Raises StoreError."""
        view = self._store.reads.record_at(physical_offset)
        try:
            record = None if view is None else decode_record(view, check_crc=False)
        except RecordError:
            return None
        return record if isinstance(record, Record) else None

    def _named(self, pop: Pop) -> Pop:
        """Records without a broker name are this broker's."""
        return pop if pop.broker_name else evolve(pop, broker_name=self._settings.broker_name)

    def _open(self, state: _ReviveQueue, point: CheckPoint, queue_offset: int) -> None:
        pop = self._named(point.pop)
        point = evolve(point, pop=pop)
        left = set(point.left) - state.acknowledged.get(pop, set())
        known = state.open.pop(pop, None)
        if known is not None:
            # The same record once more: what is acknowledged stays so.
            left &= known.left
        state.check_points.append(queue_offset)
        if left:
            state.open[pop] = _Open(point, queue_offset, left)

    def _acknowledge(self, state: _ReviveQueue, pop: Pop, offsets: tuple[int, ...]) -> None:
        state.acknowledged.setdefault(pop, set()).update(offsets)
        state.acknowledged.move_to_end(pop)
        if len(state.acknowledged) > ACKNOWLEDGED_MAX:
            state.acknowledged.popitem(last=False)
        one = state.open.get(pop)
        if one is None:
            return
        one.left.difference_update(offsets)
        if not one.left and not one.revived:
            del state.open[pop]

    # -- giving again

    def _revive(self, revive_queue_id: int, state: _ReviveQueue, one: _Open) -> None:
        """Give the messages of a check point again. Raises _NotNowError and StoreError."""
        point = one.point
        try:
            if one.left and not self._is_known(point.pop):
                self._put_off(revive_queue_id, one, sorted(one.left))
            for offset in sorted(one.left):
                self._give_again(revive_queue_id, one, offset)
        finally:
            self._note_revived(revive_queue_id, one)
        del state.open[point.pop]
        state.done.append((self._store.commit_log.max_offset, one.queue_offset))

    def _is_known(self, pop: Pop) -> bool:
        """Whether topic and group are known; a retry topic need not be."""
        return self._metadata.groups.find(pop.group) is not None and (
            pop.topic.startswith(RETRY_TOPIC_PREFIX) or self._metadata.topics.find(pop.topic) is not None
        )

    def _give_again(self, revive_queue_id: int, one: _Open, offset: int) -> None:
        """Put a message to the retry topic. Raises _NotNowError."""
        pop, reads = one.point.pop, self._store.reads
        try:
            at = reads.physical_offset(pop.topic, pop.queue_id, offset)
            record = None if at is None else self._record(at)
        except StoreError as error:
            log.error("popped message cannot be read now", topic=pop.topic, offset=offset, reason=str(error))
            self._put_off(revive_queue_id, one, [offset])
            return
        if record is None or record.topic != pop.topic:
            # Its file was deleted: it is older than fileReservedTime.
            one.left.discard(offset)
            one.revived.append(offset)
            return
        try:
            topic = self._retry_topic(pop)
            message = self._retry(record, one.point, topic)
        except (TableFull, ValueError) as error:
            self._give_up(one, offset, str(error))
            return
        result = self._puts.put(message)
        reason = result.append.reason or result.status.name
        if result.status in _REFUSED_FOR_GOOD:
            self._give_up(one, offset, reason)
            return
        if result.status is not PutStatus.PUT_OK:
            raise _NotNowError(reason)
        self.revived += 1
        one.left.discard(offset)
        one.revived.append(offset)

    def _give_up(self, one: _Open, offset: int, reason: str) -> None:
        self.lost += 1
        log.error(
            "popped message cannot be given again", topic=one.point.pop.topic, offset=offset, reason=reason
        )
        one.left.discard(offset)
        one.revived.append(offset)

    def _retry_topic(self, pop: Pop) -> str:
        """The name of the group's retry topic, made if it is missing. Raises TableFull, ValueError."""
        name = self._settings.retry_topic(pop.group, pop.topic)
        if self._metadata.topics.find(name) is None:
            self._metadata.topics.create_retry_topic(name, queue_nums=1)
        queue = (pop.group, name, 0)
        if self._positions.find(queue) is None and self._store.reads.min_offset(name, 0) == 0:
            self._positions.set(queue, 0)
        return name

    def _retry(self, record: Record, point: CheckPoint, topic: str) -> Message:
        """The message that is given again. Raises ValueError."""
        properties = parse_properties(record.properties_raw)
        if record.reconsume_times == 0 or FIRST_POP not in properties:
            properties[FIRST_POP] = str(point.pop.pop_ms)
        properties[ORIGIN_GROUP] = point.pop.group
        message = Message.again(record, topic=topic, queue_id=0, properties=encode_properties(properties))
        times = record.reconsume_times + (0 if point.is_suspended else 1)
        return evolve(message, born_host=self._host(), reconsume_times=min(times, I32.high))

    def _put_off(self, revive_queue_id: int, one: _Open, offsets: list[int]) -> None:
        """Give messages again later: each gets a check point of its own. Raises _NotNowError."""
        point = one.point
        now_ms = self._now_ms()
        delay_s = PUT_OFF_S[min(point.put_off, len(PUT_OFF_S) - 1)]
        # Another time: it must not have the name of the check point that is done.
        pop_ms = point.pop.pop_ms + 1
        for offset in offsets:
            later = CheckPoint(
                evolve(point.pop, start_offset=offset, pop_ms=pop_ms),
                max(0, now_ms - pop_ms) + 1000 * delay_s,
                (0,),
                is_suspended=point.is_suspended,
                put_off=point.put_off + 1,
            )
            self._put(later, revive_queue_id)
            one.left.discard(offset)
            one.revived.append(offset)

    def _note_revived(self, revive_queue_id: int, one: _Open) -> None:
        """Put the acknowledgement of what was given again. Raises _NotNowError."""
        if one.revived:
            offsets = tuple(sorted(one.revived))
            self._put(
                Acknowledgement(one.point.pop, offsets, one.point.revive_ms, is_batch=True), revive_queue_id
            )
            one.revived.clear()

    def _put(self, record: CheckPoint | Acknowledgement, revive_queue_id: int) -> None:
        try:
            result = self._pop_puts.put_at_once(record, revive_queue_id=revive_queue_id)
        except BadRequestError as error:
            raise _NotNowError(error.reason) from None
        if result.status is not PutStatus.PUT_OK:
            raise _NotNowError(result.append.reason or result.status.name)

    # -- what is done

    def _publish(self) -> None:
        """Commit what is done and safe."""
        safe_offset = self._safe_offset()
        for queue_id, state in self._queues.items():
            while state.done and state.done[0][0] <= safe_offset:
                state.done.popleft()
            open_offsets = [one.queue_offset for one in state.open.values()]
            unsafe_offsets = [queue_offset for _, queue_offset in state.done]
            first_offset = min([*open_offsets, *unsafe_offsets, state.next_offset])
            done = None
            while state.check_points and state.check_points[0] < first_offset:
                done = state.check_points.popleft()
            if done is None:
                continue
            try:
                self._metadata.consumer_offsets.commit(REVIVE_GROUP, self._pop_puts.topic, queue_id, done)
            except TableFull as full:
                log.error("offset of the revive group cannot be kept", reason=str(full))

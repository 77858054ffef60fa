"""POP_MESSAGE: hands out messages of a topic, now or when there are some.

See docs/pop.md, docs/protocol/pop.md#answer-of-a-pop.

Theory of operation. A pop looks at the queues of its topic and at those of the group's retry topic. From each
it takes the next messages, puts a check point that lists them, and moves the group past them, all in one turn
of the loop: no other pop can see the same messages, and no lock is needed. The answer waits until the check
points are where the broker's role wants puts to be; the group's committed offset follows when they are safe
(`trioha.broker.pop.positions`). A client that is gone by then has the messages given again by the revival.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial
from itertools import count
from typing import Final

from attrs import define, field

from trioha.broker.pop.handed_out import HandedOut
from trioha.broker.pop.ordered import OrderedPops
from trioha.broker.pop.polls import PollKey, PopPolls, wait_s, waiting
from trioha.broker.pop.positions import PopPositions
from trioha.broker.pop.puts import PopPuts
from trioha.broker.pop.records import CheckPoint, Pop
from trioha.broker.pop.settings import PopSettings, retry_topic
from trioha.broker.pop_records import GroupQueue
from trioha.broker.pull_checks import PullSettings, consuming_group
from trioha.broker.puts import PutAnswer, PutResult
from trioha.broker.remarks import no_queue, no_topic
from trioha.broker.traffic import BrokerTraffic
from trioha.errors import StoreError
from trioha.ha.group_commit import Commit
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import Perm, TopicConfig, is_retry_topic_name
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.pop_handle import (
    ORDERED_REVIVE_QUEUE,
    PopHandle,
    PoppedQueue,
    PopSource,
    as_popped,
)
from trioha.remoting.pop_message import MESSAGES_MAX, InitMode, PopAnswer, PopFilter, PopRequest
from trioha.remoting.serving import Peer, WaitingAnswer
from trioha.remoting.subscriptions import TAG, Subscription
from trioha.store.message_store import MessageStore
from trioha.store.reads import GetResult, GetStatus, ReadLimits

LATE_MS: Final = 500
"""A pop that comes so long after its own end is refused."""
SCANS_MAX: Final = 4
"""Reads of one queue in one turn of the loop that find nothing for the group."""
NO_MESSAGES: Final = "NO_MESSAGE_IN_QUEUE"
_READ: Final = int(Perm.READ)
_NOTHING: Final = frozenset(
    (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
)


@define
class CheckedPop:
    """A pop that passed all checks."""

    request: RemotingCommand
    header: PopRequest
    topic: TopicConfig
    tag_codes: Collection[int] | None
    born_ms: int
    """When it began to wait, ms since 1970."""
    is_whole: bool = True
    """Whether all queues were looked at to their ends, the last time."""


@define
class Taken:
    """What a pop has taken."""

    pop_ms: int
    revive_queue_id: int
    messages_left: int
    """How many more it may take."""
    bytes_left: int
    queues: list[PoppedQueue] = field(factory=list)
    records: list[bytes] = field(factory=list)
    puts: list[PutResult | Commit] = field(factory=list)
    """Of the check points."""
    rest: int = 0
    """Messages that are left in the queues."""
    is_whole: bool = True
    """Whether all queues were looked at to their ends, unless it is full."""

    @property
    def is_full(self) -> bool:
        """Whether it may take no more."""
        return self.messages_left <= 0 or (self.bytes_left <= 0 and bool(self.records))


class PopProcessor:
    """Answers pops."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        settings: PopSettings,
        *,
        pulls: Callable[[], PullSettings],
        puts: PopPuts,
        positions: PopPositions,
        ordered: OrderedPops,
        handed_out: HandedOut,
        polls: PopPolls,
        is_restored: Callable[[], bool],
        timers_enabled: bool,
        now_ms: Callable[[], int],
        log_end: Callable[[], int | None],
        traffic: BrokerTraffic | None = None,
    ) -> None:
        """`pulls`: how pulls are answered now; `log_end` as for them. No message is handed out before
        `is_restored` says so: where groups are is not known."""
        self._store = store
        self._metadata = metadata
        self._settings = settings
        self._pulls = pulls
        self._puts = puts
        self._positions = positions
        self._ordered = ordered
        self._handed_out = handed_out
        self._polls = polls
        self._is_restored = is_restored
        self._timers_enabled = timers_enabled
        self._now_ms = now_ms
        self._log_end = log_end
        self._traffic = traffic
        self._revive_queues = count()
        self.random: Callable[[int], int] = random.randrange

    def answer(
        self, request: RemotingCommand, peer: Peer
    ) -> RemotingCommand | PutAnswer[RemotingCommand] | WaitingAnswer:
        """The response, now or later."""
        try:
            pop = self._checked(request, peer)
        except BadRequestError as error:
            return refusal(request, error)
        header = pop.header
        timeout_s = wait_s(born_ms=pop.born_ms, poll_ms=header.poll_ms, now_ms=self._now_ms())
        found = self._look(pop, is_over=timeout_s <= 0)
        if found is not None:
            return found
        key = PollKey(header.topic, header.group, header.queue_id)
        look = partial(self._look_again, pop)
        answer = waiting(self._polls, key, peer.connection, look, timeout_s=timeout_s)
        if answer is None:
            return self._empty(pop, self._new(), ResponseCode.POLLING_FULL)
        if not pop.is_whole:
            answer.wake()
        return answer

    def _look_again(
        self, pop: CheckedPop, is_over: bool
    ) -> RemotingCommand | PutAnswer[RemotingCommand] | None:
        answer = self._look(pop, is_over=is_over)
        if answer is None and not pop.is_whole:
            # Other requests have their turn first.
            self._polls.has_more(pop.header.topic, pop.header.group, pop.header.queue_id)
        return answer

    def _look(self, pop: CheckedPop, *, is_over: bool) -> RemotingCommand | PutAnswer[RemotingCommand] | None:
        """Look into the queues: the answer, or None to wait on."""
        taken = self._new()
        try:
            if self._is_restored():
                self._take(pop, taken)
        except (StoreError, TableFull) as error:
            return refusal(pop.request, BadRequestError(str(error)))
        except BadRequestError as error:
            return refusal(pop.request, error)
        if taken.records:
            if taken.rest:
                self._polls.has_more(pop.header.topic, pop.header.group, pop.header.queue_id)
            return self._puts.answer(taken.puts, lambda _statuses: self._found(pop, taken))
        pop.is_whole = taken.is_whole
        return self._empty(pop, taken, ResponseCode.POLLING_TIMEOUT) if is_over else None

    def _new(self) -> Taken:
        return Taken(
            self._now_ms(),
            next(self._revive_queues) % self._settings.revive_queues,
            0,
            self._pulls().bytes_max,
        )

    # -- checks

    def _checked(self, request: RemotingCommand, peer: Peer) -> CheckedPop:
        """The pop, if it passes all checks. Raises BadRequestError."""
        header, pulls, now_ms = PopRequest.of(request), self._pulls(), self._now_ms()
        where = f"the broker[{pulls.broker_ip}] pop message"
        if pulls.is_slave:
            raise BadRequestError(
                f"{where} is forbidden because this broker is a slave",
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
            )
        end_ms = (header.born_ms or now_ms) + header.poll_ms
        if header.born_ms and now_ms - end_ms > LATE_MS:
            raise BadRequestError(f"{where} is timeout too much", code=ResponseCode.POLLING_TIMEOUT)
        if not pulls.broker_permission & _READ:
            raise BadRequestError(f"{where} is forbidden", code=ResponseCode.NO_PERMISSION)
        if header.messages_max > MESSAGES_MAX:
            raise BadRequestError(
                f"{where}'s num is greater than {MESSAGES_MAX}", code=ResponseCode.INVALID_PARAMETER
            )
        if not self._timers_enabled:
            raise BadRequestError(f"{where} is forbidden because timerWheelEnable is false")
        topic = readable_topic(self._metadata, header.topic)
        if not -1 <= header.queue_id < topic.read_queue_nums:
            raise no_queue(
                header.topic,
                header.queue_id,
                queues=topic.read_queue_nums,
                peer=peer,
                code=ResponseCode.INVALID_PARAMETER,
            )
        self.check_group(header.group, header.topic)
        if header.invisible_ms < 0:
            raise BadRequestError("invisibleTime is negative", code=ResponseCode.INVALID_PARAMETER)
        return CheckedPop(
            request, header, topic, tag_codes_of(header.topic, header.filter), header.born_ms or now_ms
        )

    def check_group(self, name: str, topic: str) -> None:
        """Raises BadRequestError for a group that may not pop a topic. One that is not known is made."""
        consuming_group(self._metadata.groups, name, is_slave=False)
        if not is_retry_topic_name(self._settings.retry_topic(name, topic)):
            # Its messages could not be given again.
            raise BadRequestError(
                f"group {name[:300]} and topic {topic} make no name of a retry topic",
                code=ResponseCode.INVALID_PARAMETER,
            )

    # -- taking messages

    def _take(self, pop: CheckedPop, taken: Taken) -> None:
        """Take messages. Raises BadRequestError, StoreError, TableFull."""
        header = pop.header
        taken.messages_left = max(header.messages_max, 0)
        self._store.dispatcher.catch_up()
        chance = self.random(100)
        if header.is_ordered:
            taken.revive_queue_id = ORDERED_REVIVE_QUEUE
            self._take_topic(pop, taken, chance)
            return
        is_retry_first = chance < self._settings.retry_first_percent
        if is_retry_first:
            self._take_retries(pop, taken, chance)
        self._take_topic(pop, taken, chance)
        if not is_retry_first:
            self._take_retries(pop, taken, chance)

    def _take_topic(self, pop: CheckedPop, taken: Taken, chance: int) -> None:
        queues = pop.topic.read_queue_nums
        if pop.header.queue_id >= 0:
            self._take_queue(pop, taken, pop.header.topic, pop.header.queue_id, PopSource.TOPIC)
            return
        for number in range(queues):
            self._take_queue(pop, taken, pop.header.topic, (chance - number) % queues, PopSource.TOPIC)

    def _take_retries(self, pop: CheckedPop, taken: Taken, chance: int) -> None:
        before = len(taken.records)
        for source in self._settings.retry_sources(chance):
            name = retry_topic(pop.header.group, pop.header.topic, source)
            topic = self._metadata.topics.find(name)
            # A promoted slave may have the messages before the topic.
            queues = 1 if topic is None else topic.read_queue_nums
            for number in range(queues):
                self._take_queue(pop, taken, name, (chance - number) % queues, source)
            if len(taken.records) > before:
                return

    def _take_queue(
        self, pop: CheckedPop, taken: Taken, topic: str, queue_id: int, source: PopSource
    ) -> None:
        reads, queue = self._store.reads, (pop.header.group, topic, queue_id)
        if self._store.queues.find(topic, queue_id) is None:
            return
        offset = self._positions.find(queue)
        if offset is None:
            offset = self._first_offset(pop, topic, queue_id, source)
            self._positions.set(queue, offset)
        if taken.is_full or self._handed_out.is_full(queue):
            taken.rest += max(0, reads.max_offset(topic, queue_id, log_end=self._log_end()) - offset)
            return
        if pop.header.is_ordered and self._ordered.blocked_until_ms(queue, pop.header.attempt_id):
            return
        offset, result = self._read(pop, taken, queue, offset)
        if result.status is not GetStatus.FOUND:
            return
        if pop.header.is_ordered:
            popped = self._ordered.note(pop, taken, queue, offset, result)
            self._add(pop, taken, popped, result, next_offset=offset)
            return
        self._hand_out(pop, taken, queue, source, offset=offset, result=result)

    def _read(self, pop: CheckedPop, taken: Taken, queue: GroupQueue, offset: int) -> tuple[int, GetResult]:
        """Where reading began that found messages or the queue's end, and the result. Moves the group past
        what is not for it, or is not there."""
        _, topic, queue_id = queue
        limits = ReadLimits(taken.messages_left, max(1, taken.bytes_left))
        for _ in range(SCANS_MAX):
            result = self._store.reads.get(
                topic, queue_id, offset, limits=limits, tag_codes=pop.tag_codes, log_end=self._log_end()
            )
            next_offset = result.next_begin_offset
            if result.status is GetStatus.FOUND or result.status in _NOTHING or next_offset == offset:
                break
            if result.status is GetStatus.NO_MATCHED_MESSAGE:
                self._positions.pass_over(queue, next_offset)
            elif self._store.dispatcher.position < self._store.commit_log.max_offset:
                # The queue will have the offset soon.
                break
            else:
                self._positions.set(queue, next_offset)
            offset = next_offset
        else:
            taken.is_whole = taken.is_whole and offset >= result.max_offset
        taken.rest += max(0, result.max_offset - result.next_begin_offset)
        return offset, result

    def _first_offset(self, pop: CheckedPop, topic: str, queue_id: int, source: PopSource) -> int:
        """Where a new group begins."""
        reads = self._store.reads
        low = reads.min_offset(topic, queue_id)
        if source is not PopSource.TOPIC or pop.header.init_mode is InitMode.MIN:
            return low
        if self._settings.begins_at_recent and low <= 0:
            at = reads.physical_offset(topic, queue_id, 0)
            if at is not None and self._store.commit_log.max_offset - at <= self._pulls().recent_bytes:
                return 0
        return max(0, reads.max_offset(topic, queue_id) - 1)

    def _hand_out(
        self,
        pop: CheckedPop,
        taken: Taken,
        queue: GroupQueue,
        source: PopSource,
        *,
        offset: int,
        result: GetResult,
    ) -> None:
        """Take the messages of a read. Raises BadRequestError if their check point is refused."""
        header, name = pop.header, self._settings.broker_name
        _, topic, queue_id = queue
        point = CheckPoint(
            Pop(topic, header.group, queue_id, name, offset, taken.pop_ms),
            header.invisible_ms,
            tuple(one - offset for one in result.queue_offsets),
        )
        try:
            put = self._puts.put(point, revive_queue_id=taken.revive_queue_id)
        except BadRequestError:
            if taken.records:
                # What was taken before is answered.
                taken.rest += result.messages
                return
            raise
        appended = put.append if isinstance(put, PutResult) else put.appended
        self._positions.handed_out(queue, result.next_begin_offset, appended)
        self._handed_out.add(queue, result.messages, due_ms=point.revive_ms)
        taken.puts.append(put)
        popped = PoppedQueue(source, queue_id, offset, result.queue_offsets)
        self._add(pop, taken, popped, result, next_offset=result.next_begin_offset)

    def _add(
        self, pop: CheckedPop, taken: Taken, popped: PoppedQueue, result: GetResult, *, next_offset: int
    ) -> None:
        """Add the messages of a read to the answer."""
        header, settings = pop.header, self._settings
        taken.queues.append(popped)
        for record, offset in zip(result.records, result.queue_offsets, strict=True):
            data = bytes(record)
            if popped.source is not PopSource.TOPIC and not settings.keeps_retry_topic:
                handle = PopHandle(
                    popped.start_offset,
                    taken.pop_ms,
                    header.invisible_ms,
                    taken.revive_queue_id,
                    popped.source,
                    settings.broker_name,
                    popped.queue_id,
                    offset,
                )
                data = as_popped(data, header.topic, handle)
            taken.records.append(data)
        taken.messages_left -= len(result.queue_offsets)
        taken.bytes_left -= result.total_bytes
        if self._traffic is not None:
            self._traffic.note_pull(
                header.group,
                header.topic,
                popped.queue_id,
                next_offset=next_offset,
                messages=result.messages,
                total_bytes=result.total_bytes,
            )

    # -- answers

    def _found(self, pop: CheckedPop, taken: Taken) -> RemotingCommand:
        return response_to(
            pop.request,
            ResponseCode.SUCCESS,
            remark=GetStatus.FOUND.value,
            ext_fields=self._fields(pop, taken),
            body=b"".join(taken.records),
        )

    def _empty(self, pop: CheckedPop, taken: Taken, code: ResponseCode) -> RemotingCommand:
        return response_to(pop.request, code, remark=NO_MESSAGES, ext_fields=self._fields(pop, taken))

    def _fields(self, pop: CheckedPop, taken: Taken) -> dict[str, str]:
        header = pop.header
        return PopAnswer(
            taken.pop_ms,
            header.invisible_ms,
            ORDERED_REVIVE_QUEUE if header.is_ordered else taken.revive_queue_id,
            taken.rest,
            taken.queues,
            is_ordered=header.is_ordered,
        ).to_ext_fields()


def refusal(request: RemotingCommand, error: BadRequestError) -> RemotingCommand:
    """The answer to a pop that is refused."""
    return response_to(request, error.code, remark=error.reason, ext_fields=PopAnswer().to_ext_fields())


def readable_topic(metadata: MetadataStore, name: str) -> TopicConfig:
    """The topic of a pop. Raises BadRequestError."""
    topic = metadata.topics.find(name)
    if topic is None:
        raise no_topic(name[:300])
    if not topic.is_readable:
        raise BadRequestError(
            f"the topic[{name}] peeking message is forbidden", code=ResponseCode.NO_PERMISSION
        )
    return topic


def tag_codes_of(topic: str, wanted: PopFilter) -> Collection[int] | None:
    """Hash codes of the tags that a pop asks for; None for all messages. Raises BadRequestError."""
    try:
        subscription = Subscription.parse(topic, wanted.expression, expression_type=wanted.expression_type)
    except ValueError:
        raise BadRequestError(
            "parse the consumer's subscription failed", code=ResponseCode.SUBSCRIPTION_PARSE_FAILED
        ) from None
    if not subscription.is_tag_type:
        raise BadRequestError(
            f"The broker does not support consumer to filter message by "
            f"{(subscription.expression_type or TAG)[:100]}"
        )
    return subscription.tag_codes

"""What may be popped, without taking it: PEEK_MESSAGE, NOTIFICATION and POLLING_INFO.

See docs/protocol/pop.md#requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from attrs import frozen

from trioha.broker.pop.ordered import OrderedPops
from trioha.broker.pop.polls import ALL_QUEUES, PollKey, PopPolls, wait_s, waiting
from trioha.broker.pop.positions import PopPositions
from trioha.broker.pop.receive import NO_MESSAGES, PopProcessor, readable_topic, refusal, tag_codes_of
from trioha.broker.pop.settings import PopSettings, retry_topic
from trioha.broker.pop_records import GroupQueue
from trioha.broker.remarks import no_queue
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.pop_message import (
    MESSAGES_MAX,
    NotificationRequest,
    PeekRequest,
    PollingInfoRequest,
    PopAnswer,
    notification_fields,
    polling_info_fields,
)
from trioha.remoting.serving import Handler, Peer, WaitingAnswer
from trioha.store.message_store import MessageStore
from trioha.store.reads import GetStatus, ReadLimits

BYTES_MAX: Final = 256 * 1024
"""Of the messages of one queue that a peek is answered with."""


@frozen
class _Place:
    """Which queues of a group are looked at."""

    group: str
    topic: TopicConfig
    queue_id: int
    is_ordered: bool = False


class PopInquiries:
    """Handles what takes no messages."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        settings: PopSettings,
        *,
        pops: PopProcessor,
        is_slave: bool,
        positions: PopPositions,
        ordered: OrderedPops,
        polls: PopPolls,
        notices: PopPolls,
        now_ms: Callable[[], int],
        log_end: Callable[[], int | None],
    ) -> None:
        """`polls` are pops that wait, `notices` notifications."""
        self._store = store
        self._metadata = metadata
        self._settings = settings
        self._pops = pops
        self._is_slave = is_slave
        self._positions = positions
        self._ordered = ordered
        self._polls = polls
        self._notices = notices
        self._now_ms = now_ms
        self._log_end = log_end

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notification,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    def peek(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """PEEK_MESSAGE: the next messages, as they are stored."""
        header = PeekRequest.of(request)
        try:
            place = self._place(header.group, header.topic, header.queue_id, peer)
            left, rest = min(header.messages_max, MESSAGES_MAX), 0
            records: list[memoryview] = []
            for queue in self._queues(place):
                offset = self._offset(queue)
                rest += max(0, self._end(queue) - offset)
                if left <= 0:
                    continue
                result = self._store.reads.get(
                    queue[1], queue[2], offset, limits=ReadLimits(left, BYTES_MAX), log_end=self._log_end()
                )
                if result.status is GetStatus.FOUND:
                    records += result.records
                    left -= result.messages
        except (BadRequestError, StoreError) as error:
            return refusal(
                request, error if isinstance(error, BadRequestError) else BadRequestError(str(error))
            )
        return response_to(
            request,
            ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND,
            remark=GetStatus.FOUND.value if records else NO_MESSAGES,
            ext_fields=PopAnswer(rest=rest).to_ext_fields(),
            slices=tuple(records),
        )

    def notification(self, request: RemotingCommand, peer: Peer) -> RemotingCommand | WaitingAnswer:
        """NOTIFICATION: the answer when there is a message, or when the time is over.

        Raises BadRequestError.
        """
        header = NotificationRequest.of(request)
        place = self._place(header.group, header.topic, header.queue_id, peer, is_ordered=header.is_ordered)
        look = partial(
            self._look, request, place, tag_codes_of(header.topic, header.filter), header.attempt_id
        )
        now_ms = self._now_ms()
        timeout_s = wait_s(born_ms=header.born_ms or now_ms, poll_ms=header.poll_ms, now_ms=now_ms)
        answer = look(timeout_s <= 0)
        if answer is not None:
            return answer
        key = PollKey(header.topic, header.group, header.queue_id)
        later = waiting(self._notices, key, peer.connection, look, timeout_s=timeout_s)
        if later is None:
            return _notice(request, has_messages=False, is_full=True)
        return later

    def polling_info(self, request: RemotingCommand, peer: Peer) -> RemotingCommand:
        """POLLING_INFO. Raises BadRequestError."""
        header = PollingInfoRequest.of(request)
        self._place(header.group, header.topic, header.queue_id, peer)
        waiting_now = self._polls.waiting(PollKey(header.topic, header.group, header.queue_id))
        return response_to(request, ResponseCode.SUCCESS, ext_fields=polling_info_fields(waiting_now))

    # -- looking

    def _place(
        self, group: str, topic: str, queue_id: int, peer: Peer, *, is_ordered: bool = False
    ) -> _Place:
        """What a request names. Raises BadRequestError."""
        if self._is_slave:
            raise BadRequestError(
                "the broker is a slave: ask its master", code=ResponseCode.SERVICE_NOT_AVAILABLE
            )
        config = readable_topic(self._metadata, topic)
        if not ALL_QUEUES <= queue_id < config.read_queue_nums:
            raise no_queue(
                topic,
                queue_id,
                queues=config.read_queue_nums,
                peer=peer,
                code=ResponseCode.INVALID_PARAMETER,
            )
        self._pops.check_group(group, topic)
        return _Place(group, config, queue_id, is_ordered)

    def _queues(self, place: _Place) -> Iterator[GroupQueue]:
        """Those that there are: of the topic, then of its retry topics, which ordered pops do not read."""
        wanted = range(place.topic.read_queue_nums) if place.queue_id == ALL_QUEUES else (place.queue_id,)
        names = [(place.topic.name, wanted)]
        for source in () if place.is_ordered else self._settings.retry_sources(0):
            name = retry_topic(place.group, place.topic.name, source)
            found = self._metadata.topics.find(name)
            names.append((name, range(1 if found is None else found.read_queue_nums)))
        for name, queue_ids in names:
            for queue_id in queue_ids:
                if self._store.queues.find(name, queue_id) is not None:
                    yield place.group, name, queue_id

    def _offset(self, queue: GroupQueue) -> int:
        """Where the group pops on; at the queue's start if it has no offset."""
        offset = self._positions.find(queue)
        return self._store.reads.min_offset(queue[1], queue[2]) if offset is None else offset

    def _end(self, queue: GroupQueue) -> int:
        return self._store.reads.max_offset(queue[1], queue[2], log_end=self._log_end())

    def _look(
        self,
        request: RemotingCommand,
        place: _Place,
        tag_codes: Collection[int] | None,
        attempt_id: str | None,
        is_over: bool,
    ) -> RemotingCommand | None:
        """The answer to a notification; None to wait on. Raises BadRequestError."""
        try:
            has_messages = any(
                self._has_message(queue, tag_codes)
                for queue in self._queues(place)
                if not (place.is_ordered and self._ordered.blocked_until_ms(queue, attempt_id))
            )
        except StoreError as error:
            raise BadRequestError(str(error)) from error
        if has_messages or is_over:
            return _notice(request, has_messages=has_messages, is_full=False)
        return None

    def _has_message(self, queue: GroupQueue, tag_codes: Collection[int] | None) -> bool:
        offset = self._offset(queue)
        if self._end(queue) <= offset:
            return False
        if tag_codes is None:
            return True
        result = self._store.reads.get(
            queue[1],
            queue[2],
            offset,
            limits=ReadLimits(1, BYTES_MAX),
            tag_codes=tag_codes,
            log_end=self._log_end(),
        )
        return result.status is GetStatus.FOUND


def _notice(request: RemotingCommand, *, has_messages: bool, is_full: bool) -> RemotingCommand:
    fields = notification_fields(has_messages=has_messages, is_full=is_full)
    return response_to(request, ResponseCode.SUCCESS, ext_fields=fields)

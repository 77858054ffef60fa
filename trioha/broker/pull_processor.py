"""PULL_MESSAGE and LITE_PULL_MESSAGE: messages of a queue, now or when there are some.

See docs/protocol/remoting.md#pulls.

Checks are made in the broker's order, with its codes and remarks. One check differs: where the subscription
of a request is newer than that of the last heartbeat, the broker answers SUBSCRIPTION_NOT_LATEST, and a
consumer of 5.x that has just started loses 20 s to it. Here the pull is answered, without a filter: the
consumer compares tags itself, and gets no fewer messages than its new subscription wants.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import trio
from attrs import define, frozen

from trioha.broker.clients import ClientRegistry
from trioha.broker.half_messages import refuse_own_group
from trioha.broker.long_polls import LongPoll, LongPolls
from trioha.broker.rates import MidnightTotals, RateWindows, local_date
from trioha.broker.remarks import SEE_FAQ, broker_refuses_pulls
from trioha.broker.slave_reads import MASTER_ID, REPEAT_S, always, is_elsewhere, suggested_broker_id
from trioha.broker.traffic import BrokerTraffic
from trioha.deferred import Deferred
from trioha.errors import StoreError
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import READ_WRITE, Perm, TopicConfig
from trioha.net.transport import release
from trioha.remoting import compiled
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.found_head import FoundHead
from trioha.remoting.pull_forms import KnownPull, PullForm
from trioha.remoting.pull_message import PullFlag, PullRequest, PullResponseHeader
from trioha.remoting.serving import Peer
from trioha.remoting.subscriptions import TAG, Subscription
from trioha.store.message_store import MessageStore
from trioha.store.reads import GetResult, GetStatus, ReadLimits

DISPATCH_S: Final = 1.0
"""How long a pull beyond a queue's end waits for records that are stored and not dispatched."""
SUSPEND_S_MAX: Final = 90.0
"""A connection without traffic is closed after 120 s."""

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND: Final = GetStatus.FOUND
_SUCCESS: Final = int(ResponseCode.SUCCESS)
# Plain numbers: an operation on members of a flag costs as much as a lookup in three tables.
_READ: Final = int(Perm.READ)
_COMMITS: Final = int(PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND)
_EMPTY: Final = frozenset((GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE))
_LOOKED_AT: Final = frozenset((GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING))
"""The read has passed entries of the queue."""


@frozen
class PullSettings:
    """How pulls are answered."""

    is_slave: bool = False
    broker_permission: int = int(READ_WRITE)
    broker_ip: str = "127.0.0.1"
    """brokerIP1, for remarks."""
    messages_max: int = 32
    """maxTransferCountOnMessageInMemory."""
    bytes_max: int = 256 * 1024
    """maxTransferBytesOnMessageInMemory."""
    long_polling: bool = True
    """longPollingEnable."""
    short_polling_s: float = 1.0
    """shortPollingTimeMills."""
    slave_read: bool = False
    """slaveReadEnable."""
    recent_bytes: int = 1 << 62
    """A message farther from the log's end is not in memory any more: accessMessageInMemoryMaxRatio."""


def no_limit() -> int | None:
    """For brokers that give consumers all records."""
    return None


def memory_bytes(percent: int) -> int:
    """So much of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * percent // 100


@frozen
class PullStatistics:
    """Pulls since the node started; the rates are over the last 10 s, 60 s and 600 s."""

    messages: int = 0
    """Messages given to consumers."""
    messages_until_today: int = 0
    """Messages given before the last local midnight."""
    messages_until_yesterday: int = 0
    """Messages given before the midnight before that."""
    found_per_s: tuple[float, ...] = ()
    """Pulls that were given messages."""
    missed_per_s: tuple[float, ...] = ()
    """Pulls that were given none."""
    messages_per_s: tuple[float, ...] = ()


@define
class _Pull:
    """A pull that passed all checks. Never changed, and not frozen for the reason of `RemotingCommand`."""

    request: RemotingCommand
    header: PullRequest
    group: SubscriptionGroup
    limits: ReadLimits
    tag_codes: Collection[int] | None
    topic: TopicConfig
    subscription: Subscription
    settings: PullSettings
    head: FoundHead | None = None
    """Of the answers to pulls of its form, if it has one."""


class PullProcessor:
    """Answers pulls."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        polls: LongPolls,
        *,
        settings: PullSettings | None = None,
        traffic: BrokerTraffic | None = None,
        log_end: Callable[[], int | None] = no_limit,
        is_following: Callable[[], bool] = always,
    ) -> None:
        """Pulls are counted by group and topic in `traffic`. `log_end` says where the log ends for consumers,
        None if all of it is for them; `is_following` whether a slave is connected to its master."""
        self._store = store
        self._metadata = metadata
        self._clients = clients
        self._polls = polls
        self.settings = settings or PullSettings()
        self._traffic = traffic
        self._log_end = log_end
        self._is_following = is_following
        now_s = trio.current_time()
        self._messages = 0
        self._midnights = MidnightTotals(local_date())
        self._found_rates = RateWindows(now_s)
        self._missed_rates = RateWindows(now_s)
        self._message_rates = RateWindows(now_s)

    def answer(self, request: RemotingCommand, peer: Peer) -> RemotingCommand | Awaitable[RemotingCommand]:
        """The response to a pull, or an awaitable of it where it waits for messages.

        Dropping the awaitable ends the wait. Raises BadRequestError for a request that is refused.
        """
        pull = self._checked(request, peer)
        header = pull.header
        if header.flags & _COMMITS == _COMMITS:
            self._commit(header, header.commit_offset)
        result = self._read(pull, header.queue_offset)
        if result.status is _FOUND:
            return self._respond(pull, result)
        timeout_s = self._suspend_s(header)
        if timeout_s <= 0 or not self._waits(result, header.queue_offset):
            return self._respond(pull, result)
        if not _is_at_end(result, header.queue_offset):
            if not self.settings.is_slave:
                timeout_s = min(timeout_s, DISPATCH_S)
            elif self._is_following():
                timeout_s = min(timeout_s, REPEAT_S)
        waiting = _WaitingPull(self, pull)
        poll = self._polls.open(
            (header.topic, header.queue_id), peer.connection, waiting, timeout_s=timeout_s
        )
        if poll is None:
            raise BadRequestError(
                "too many pulls wait for messages, trioha.longPollsMax", code=ResponseCode.SYSTEM_BUSY
            )
        waiting.begin(poll)
        return waiting

    def answer_at_once(
        self, form: PullForm, pull: compiled.kernel.Pull, fits: Callable[[int], bool]
    ) -> tuple[bytes, tuple[memoryview, ...]] | None:
        """The answer to a pull of a known form, as `remoting.serving.PullHandler`. Raises BadRequestError."""
        kept = form.kept
        if type(kept) is not _Pull or not self._still_holds(kept):
            return None
        header = kept.header
        if header.flags & _COMMITS == _COMMITS:
            self._commit(header, header.commit_offset if pull.commit_offset < 0 else pull.commit_offset)
        result = self._read(kept, pull.queue_offset)
        if result.status is not _FOUND or kept.head is None:
            return None
        answer = PullResponseHeader(
            self._suggested_broker_id(kept, result),
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
        )
        body_bytes = result.total_bytes
        head = kept.head.frame(answer, opaque=pull.opaque, body_bytes=body_bytes)
        if not fits(len(head) + body_bytes):
            release(list(result.records))
            return None
        # A pull counts when nothing can keep its answer from being sent.
        self._count(kept, result, result.next_begin_offset)
        return head, result.records

    def answer_later(self, pull: _Pull, offset: int) -> RemotingCommand | int:
        """The response to a pull that waits, or the queue offset to wait for: each entry is looked at once.

        Raises BadRequestError.
        """
        result = self._read(pull, offset)
        if result.status is GetStatus.NO_MATCHED_MESSAGE:
            # Not for this consumer.
            return result.next_begin_offset
        return offset if self._waits(result, offset) else self._respond(pull, result)

    def answer_now(self, pull: _Pull) -> RemotingCommand:
        """The response to a pull whose time is over. Raises BadRequestError."""
        return self._respond(pull, self._read(pull, pull.header.queue_offset))

    def statistics(self) -> PullStatistics:
        """Pulls up to now."""
        now_s = trio.current_time()
        self._midnights.turn(local_date(), self._messages)
        return PullStatistics(
            messages=self._messages,
            messages_until_today=self._midnights.until_today,
            messages_until_yesterday=self._midnights.until_yesterday,
            found_per_s=self._found_rates.rates_per_s(now_s),
            missed_per_s=self._missed_rates.rates_per_s(now_s),
            messages_per_s=self._message_rates.rates_per_s(now_s),
        )

    # -- checks ----------------------------------------------------------------------------------------

    def _checked(self, request: RemotingCommand, peer: Peer) -> _Pull:
        if type(request) is not KnownPull or request.form is None:
            return self._check(request, peer)
        kept = request.form.kept
        if type(kept) is not _Pull or not self._still_holds(kept):
            request.form.kept = pull = self._check(request, peer)
            pull.head = FoundHead(request, remark=_FOUND.value)
            return pull
        return _Pull(
            request,
            kept.header.at(request.queue_offset, request.commit_offset),
            kept.group,
            kept.limits,
            kept.tag_codes,
            kept.topic,
            kept.subscription,
            kept.settings,
            kept.head,
        )

    def _still_holds(self, kept: _Pull) -> bool:
        """Whether the checks of a pull would end in the same way: settings, topic, group and subscription are
        replaced when they change, and none of them depends on the offsets."""
        header, group = kept.header, kept.group
        if (
            kept.settings is not self.settings
            or self._metadata.groups.find(header.group) is not group
            or self._metadata.topics.find(header.topic) is not kept.topic
        ):
            return False
        if header.has(PullFlag.SUBSCRIPTION):
            return True
        consumers = self._clients.consumers.get(header.group)
        return (
            consumers is not None
            and consumers.subscriptions.get(header.topic) is kept.subscription
            and (group.consume_broadcast_enable or not consumers.is_broadcasting)
        )

    def _check(self, request: RemotingCommand, peer: Peer) -> _Pull:
        header = PullRequest.of(request)
        settings = self.settings
        if not settings.broker_permission & _READ:
            raise broker_refuses_pulls(settings.broker_ip)
        group = self._group(header.group)
        topic = self._metadata.topics.find(header.topic)
        if topic is None:
            raise BadRequestError(
                f"topic[{header.topic}] not exist, apply first please! {SEE_FAQ}",
                code=ResponseCode.TOPIC_NOT_EXIST,
            )
        if not topic.is_readable:
            raise BadRequestError(
                f"the topic[{header.topic}] pulling message is forbidden", code=ResponseCode.NO_PERMISSION
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise BadRequestError(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[/{peer.address}]",
                code=ResponseCode.SYSTEM_ERROR,
            )
        subscription = self._subscription(header, group)
        tag_codes = subscription.tag_codes
        if not header.has(PullFlag.SUBSCRIPTION) and subscription.version < header.subscription_version:
            tag_codes = None
        messages_max, bytes_max = settings.messages_max, settings.bytes_max
        if header.messages_max < messages_max:
            messages_max = max(header.messages_max, 1)
        if header.bytes_max is not None and header.bytes_max < bytes_max:
            bytes_max = max(header.bytes_max, 1)
        limits = ReadLimits(messages_max, bytes_max)
        return _Pull(request, header, group, limits, tag_codes, topic, subscription, settings)

    def _group(self, name: str) -> SubscriptionGroup:
        groups = self._metadata.groups
        try:
            # A slave has its master's groups, and makes none.
            group = groups.find_or_default(name) if self.settings.is_slave else groups.find_or_create(name)
        except TableFull as full:
            raise BadRequestError(str(full), code=ResponseCode.SYSTEM_ERROR) from None
        if group is None:
            raise BadRequestError(
                f"subscription group [{name[:300]}] does not exist, {SEE_FAQ}",
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        if not group.consume_enable:
            raise BadRequestError(
                f"subscription group no permission, {name}", code=ResponseCode.NO_PERMISSION
            )
        return group

    def _subscription(self, header: PullRequest, group: SubscriptionGroup) -> Subscription:
        """The subscription that filters the pull. Raises BadRequestError."""
        if header.has(PullFlag.SUBSCRIPTION):
            try:
                subscription = Subscription.parse(
                    header.topic,
                    header.subscription,
                    version=header.subscription_version,
                    expression_type=header.expression_type,
                )
            except ValueError:
                raise BadRequestError(
                    "parse the consumer's subscription failed", code=ResponseCode.SUBSCRIPTION_PARSE_FAILED
                ) from None
        else:
            subscription = self._registered_subscription(header, group)
        if not subscription.is_tag_type:
            raise BadRequestError(
                "The broker does not support consumer to filter message by "
                f"{(subscription.expression_type or TAG)[:100]}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return subscription

    def _registered_subscription(self, header: PullRequest, group: SubscriptionGroup) -> Subscription:
        consumers = self._clients.consumers.get(header.group)
        if consumers is None:
            raise BadRequestError(
                f"the consumer's group info not exist{SEE_FAQ}", code=ResponseCode.SUBSCRIPTION_NOT_EXIST
            )
        if not group.consume_broadcast_enable and consumers.is_broadcasting:
            raise BadRequestError(
                f"the consumer group[{header.group}] can not consume by broadcast way",
                code=ResponseCode.NO_PERMISSION,
            )
        subscription = consumers.subscriptions.get(header.topic)
        if subscription is None:
            raise BadRequestError(
                f"the consumer's subscription not exist{SEE_FAQ}", code=ResponseCode.SUBSCRIPTION_NOT_EXIST
            )
        return subscription

    # -- reading ---------------------------------------------------------------------------------------

    def _commit(self, header: PullRequest, offset: int) -> None:
        """Keep the offset that a pull which may wait brings along; on a slave as well, like 5.x."""
        refuse_own_group(header.group)
        try:
            self._metadata.consumer_offsets.commit(header.group, header.topic, header.queue_id, offset)
        except TableFull as full:
            raise BadRequestError(str(full), code=ResponseCode.SYSTEM_ERROR) from None

    def _suspend_s(self, header: PullRequest) -> float:
        if not header.has(PullFlag.SUSPEND):
            return 0.0
        if not self.settings.long_polling:
            return self.settings.short_polling_s
        return min(header.suspend_timeout_ms / 1000, SUSPEND_S_MAX)

    def _waits(self, result: GetResult, offset: int) -> bool:
        """Whether a pull that may wait does, after this result of a read at `offset`."""
        if _is_at_end(result, offset):
            return True
        if self.settings.is_slave:
            return is_elsewhere(result.status)
        # A consumer that comes from a slave may be past messages that this broker has not dispatched yet. It
        # must not be sent back: RocketMQ's client would pause for 10 s, and receive them again.
        store = self._store
        return (
            result.status is GetStatus.OFFSET_OVERFLOW_BADLY
            and store.dispatcher.position < store.commit_log.max_offset
        )

    def _read(self, pull: _Pull, offset: int) -> GetResult:
        header, reads, log_end = pull.header, self._store.reads, self._log_end()
        try:
            if not pull.tag_codes:
                found = reads.get_common(header.topic, header.queue_id, offset, pull.limits, log_end)
                if found is not None:
                    return found
            return reads.get(
                header.topic,
                header.queue_id,
                offset,
                limits=pull.limits,
                tag_codes=pull.tag_codes,
                log_end=log_end,
                joined=True,
            )
        except StoreError as error:
            raise BadRequestError(str(error), code=ResponseCode.SYSTEM_ERROR) from error

    def _respond(self, pull: _Pull, result: GetResult) -> RemotingCommand:
        status = result.status
        asked = pull.header
        offset = asked.queue_offset
        next_offset = result.next_begin_offset
        if status is _FOUND:
            code = _SUCCESS
        elif status in _EMPTY:
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[status]
        suggested = self._suggested_broker_id(pull, result)
        if self.settings.is_slave and code == ResponseCode.PULL_OFFSET_MOVED:
            # The slave may lag its master, which decides.
            code, next_offset, suggested = ResponseCode.PULL_RETRY_IMMEDIATELY, offset, pull.group.broker_id
        header = PullResponseHeader(suggested, next_offset, result.min_offset, result.max_offset)
        self._count(pull, result, next_offset)
        return response_to(
            pull.request,
            code,
            remark=status.value,
            ext_fields=header.to_ext_fields(version=pull.request.version),
            slices=result.records,
        )

    def _count(self, pull: _Pull, result: GetResult, next_offset: int) -> None:
        """Count a pull that is answered; `next_offset` is the one in the answer."""
        messages, asked, now_s = result.messages, pull.header, trio.current_time()
        if self._traffic is not None:
            self._traffic.note_pull(
                asked.group,
                asked.topic,
                asked.queue_id,
                next_offset=next_offset,
                messages=messages,
                total_bytes=result.total_bytes,
            )
        if result.records:
            self._messages += messages
            self._found_rates.add(1, now_s)
            self._message_rates.add(messages, now_s)
        else:
            self._missed_rates.add(1, now_s)

    def _suggested_broker_id(self, pull: _Pull, result: GetResult) -> int:
        if not self.settings.slave_read:
            return MASTER_ID
        header, lag_bytes = pull.header, 0
        if result.status in _LOOKED_AT:
            at = self._store.reads.physical_offset(
                header.topic, header.queue_id, result.next_begin_offset - 1
            )
            lag_bytes = 0 if at is None else self._store.commit_log.max_offset - at
        return suggested_broker_id(pull.group, is_slow=lag_bytes > self.settings.recent_bytes)


class _WaitingPull(Deferred[RemotingCommand]):
    """A pull that waits until its queue has a message for it, or its time is over."""

    __slots__ = ("_answer", "_error", "_offset", "_poll", "_processor", "_pull")

    def __init__(self, processor: PullProcessor, pull: _Pull) -> None:
        super().__init__()
        self._processor = processor
        self._pull = pull
        self._offset = pull.header.queue_offset
        """Entries before it are not for the consumer."""
        self._poll: LongPoll | None = None
        self._answer: RemotingCommand | None = None
        self._error: Exception | None = None

    def begin(self, poll: LongPoll) -> None:
        """Wait until `poll` calls."""
        self._poll = poll
        if poll.is_over:
            self.ended()

    def arrived(self) -> None:
        """Entries have come to the queue."""
        try:
            answer = self._processor.answer_later(self._pull, self._offset)
        except Exception as error:  # noqa: BLE001 - `result` raises it, for the border of requests
            self._end(None, error)
            return
        if isinstance(answer, RemotingCommand):
            self._end(answer, None)
        else:
            self._offset = answer

    def ended(self) -> None:
        """The time is over."""
        try:
            answer = self._processor.answer_now(self._pull)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(None, error)
        else:
            self._end(answer, None)

    def _end(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        self._answer, self._error = answer, error
        self._close()
        self._ready()

    def _close(self) -> None:
        if self._poll is not None:
            poll, self._poll = self._poll, None
            poll.close()

    def result(self) -> RemotingCommand:
        """The response."""
        answer, self._answer = self._answer, None
        if answer is None:
            assert self._error is not None
            raise self._error
        return answer

    def abandon(self) -> None:
        """Wait no more."""
        super().abandon()
        self._close()
        if self._answer is not None:
            # Slices would keep the space of deleted files.
            release(list(self._answer.slices))
            self._answer = None


def _is_at_end(result: GetResult, offset: int) -> bool:
    """Whether a read found that the queue has nothing yet at `offset`."""
    if result.status in _EMPTY:
        return offset == 0
    return result.status is GetStatus.OFFSET_OVERFLOW_ONE or (
        result.status is GetStatus.OFFSET_FOUND_NULL and result.next_begin_offset == offset
    )

"""Receives the messages of a topic: a push consumer over pulls.

See docs/protocol/remoting.md#pulls, docs/protocol/remoting.md#clients-and-groups.

```
Consumer
+- assignment           chooses queues: all, or this member's share of them
|  +- pull loops        one for each assigned queue
+- commits              every `COMMIT_INTERVAL_S`, and at the end
```

A consumer of a group is a member of it: members share the queues by averaging, and continue where the group
was. Queues are assigned anew when a broker reports a change of members or of the group's offsets, which an
administrator has reset, and every `REBALANCE_INTERVAL_S`. A
consumer without a group receives all queues and commits nothing.

A pull loop pulls one queue with long polling and hands over batches in order. It waits while messages beyond
`unacknowledged_max` or `unacknowledged_bytes_max` are not acknowledged, so a slow application holds at most
these and one pull for each queue. What was acknowledged is committed; what was not is delivered again, to the
member that has the queue next.

A message whose handling failed is given back with `send_back`. Its broker stores a copy in the group's retry
topic, after a delay that grows with each retry, and after `reconsume_times_max` retries in the group's
dead-letter topic. A consumer of a group receives the retry topic beside its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from types import TracebackType
from typing import Final, Self

import structlog
import trio
from attrs import define, evolve, field, frozen
from attrs.validators import ge

from trioha.client.answers import check, number_field, object_body, refusal
from trioha.client.cluster import Cluster, ClusterPlace, in_background
from trioha.client.failed_brokers import FailedBrokers
from trioha.client.messages import ReceivedMessage, received_messages
from trioha.client.progress import QueueProgress
from trioha.client.pulls import GROUP_OF_NONE, PULL_CODES, pull_request, queue_fields
from trioha.client.routes import TopicNotFoundError
from trioha.errors import PeerError, RemoteProtocolError
from trioha.metadata.topics import retry_topic
from trioha.numbers import I64
from trioha.remoting.allocation import allocate
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.route import MASTER_ID, MessageQueue, TopicRoute
from trioha.remoting.subscriptions import Subscription
from trioha.store.topics import RETRY_TOPIC_PREFIX

log = structlog.get_logger(__name__)

COMMIT_INTERVAL_S: Final = 5.0
REBALANCE_INTERVAL_S: Final = 20.0
RETRY_PAUSE_S: Final = 1.0
"""After a request that failed."""
TOPIC_PAUSE_S: Final = 0.1
"""Until a topic that does not exist yet is asked for again; doubled up to RETRY_PAUSE_S."""
EMPTY_PAUSE_S: Final = 0.1
"""The least time between pulls for a broker that does not hold pulls without messages."""
FAILURES_MAX: Final = 5
"""Without `follow`, so many failed pulls of a queue, or failed assignments, in a row end the consumer."""
ANSWER_MARGIN_S: Final = 15.0
"""How much longer than its suspension the answer to a pull may take."""
BATCHES_MAX: Final = 16
"""Batches that were pulled and wait for `receive`."""
MEMBERS_MAX: Final = 65536
END_TIMEOUT_S: Final = 2.0
"""How long the last commits may take."""
REQUEST_TIMEOUT_S: Final = 3.0


class Start(Enum):
    """Where a consumer starts in a queue without a committed offset."""

    FIRST = "first"
    LAST = "last"
    TIME = "time"
    OFFSET = "offset"
    """A queue offset, or the queue's first or end where it has none so low or high."""
    BEFORE_END = "before end"
    """So many messages before the end."""


@frozen
class StartAt:
    """Start, and its time."""

    start: Start
    timestamp_ms: int = 0
    """With TIME: messages stored from then on, ms since 1970."""
    offset: int = 0
    """With OFFSET: of each queue; with BEFORE_END: messages of each queue."""


@frozen
class ConsumerSettings:
    """How a topic is consumed."""

    topic: str
    expression: str = "*"
    """`*`, or tags with `||` between them."""
    group: str | None = None
    """None: all queues, without commits."""
    start_at: StartAt = StartAt(Start.LAST)
    follow: bool = True
    """Wait for new messages; else end where the queues ended when they were first pulled."""
    pull_messages_max: int = field(default=32, validator=ge(1))
    suspend_s: float = field(default=15.0, validator=ge(0))
    """How long a broker holds a pull without messages."""
    unacknowledged_max: int = field(default=4096, validator=ge(1))
    unacknowledged_bytes_max: int = field(default=64 * 1024 * 1024, validator=ge(1))
    reconsume_times_max: int = field(default=16, validator=ge(0))
    """Retries of a message that is sent back, before the dead-letter topic gets it."""

    @property
    def group_name(self) -> str:
        """The group in requests: each of them must have one."""
        return self.group or GROUP_OF_NONE


@define(eq=False)
class _Assigned:
    """A queue that this consumer has."""

    queue: MessageQueue
    scope: trio.CancelScope
    is_new: bool
    """Whether the queue came to the topic after the consumer started."""
    progress: QueueProgress | None = None
    """None until the start offset is known."""
    is_finished: bool = False
    """Whether its end was reached, without `follow`."""
    failures: int = 0
    """Pulls that failed since the last answer."""
    committed_at: str | None = None
    """Address of the broker that has the committed offset; None if it may have lost it."""


class Consumer:
    """Receives messages for the length of its block; acknowledged messages are committed at its end, too.

    ```
    async with Consumer("127.0.0.1:9876", ConsumerSettings("Orders", group="billing")) as consumer:
        async for batch in consumer:
            ...
            consumer.acknowledge(batch)
    ```

    Entering raises PeerError if no name server answers, or if the topic does not exist, without `follow`.
    """

    def __init__(self, place: Cluster | str | Sequence[str], settings: ConsumerSettings) -> None:
        """`place`: name servers (`host:port;host:port`), or a cluster that others share (`open_cluster`).

        Raises ConfigError for addresses that cannot be ones, ValueError for an expression without a tag.
        """
        self._place = ClusterPlace(place)
        self._settings = settings
        Subscription.parse(settings.topic, settings.expression)
        self._open_cluster: Cluster | None = None
        self._stack = AsyncExitStack()
        self._is_topic_new = False
        """Whether the topic did not exist at the start: all its messages come after it."""
        self._subscriptions: Mapping[str, Subscription] = {}
        """By topic: of the topic and, for a group, of its retry topic."""
        self._assigned: dict[MessageQueue, _Assigned] = {}
        self._known_queues: frozenset[MessageQueue] = frozenset()
        """Queues of the topic that were there at the last assignment."""
        self._resets: dict[MessageQueue, int] = {}
        """New offsets of queues that wait to be assigned again."""
        self._rebalance_due = trio.Event()
        self._less_unacknowledged = trio.Event()
        self._failed_brokers = FailedBrokers()
        self._failure: PeerError | RemoteProtocolError | None = None
        """Why a queue cannot be pulled, without `follow`."""
        self._send, self._receive = trio.open_memory_channel[tuple[ReceivedMessage, ...]](BATCHES_MAX)
        self.positioned = trio.Event()
        """Set when the queues that were there first have their start offsets."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._open_cluster = cluster = await stack.enter_async_context(self._place.open())
            subscriptions = self._subscribe()
            try:
                await cluster.routes.fetch(self._settings.topic)
            except TopicNotFoundError:
                if not self._settings.follow:
                    raise
                self._is_topic_new = True
            if self._settings.group is not None:
                await stack.enter_async_context(
                    cluster.consuming(
                        self._settings.group,
                        subscriptions,
                        on_members_changed=self.rebalance,
                        on_reset=self.reset,
                    )
                )
            stack.push_async_callback(self._commit_at_the_end)
            await stack.enter_async_context(in_background(self._run, self._run_commits))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    def _subscribe(self) -> tuple[Subscription, ...]:
        settings = self._settings
        version = round(trio.current_time() * 1000) & I64.high
        subscriptions = [Subscription.parse(settings.topic, settings.expression, version=version)]
        if settings.group is not None:
            subscriptions.append(Subscription.parse(retry_topic(settings.group), "*", version=version))
        self._subscriptions = {subscription.topic: subscription for subscription in subscriptions}
        return tuple(subscriptions)

    async def _commit_at_the_end(self) -> None:
        with trio.move_on_after(END_TIMEOUT_S, shield=True):
            await self.commit()

    @property
    def _cluster(self) -> Cluster:
        if self._open_cluster is None:
            raise RuntimeError("the consumer is not open: use `async with Consumer(...) as consumer`")
        return self._open_cluster

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer has now."""
        return tuple(self._assigned)

    async def receive(self) -> tuple[ReceivedMessage, ...]:
        """The next messages of some queue, in their order; at least one.

        Without `follow`: raises trio.EndOfChannel when all queues are at their ends, and PeerError or
        RemoteProtocolError for queues that cannot be assigned or pulled.
        """
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            if self._failure is not None:
                raise self._failure from None
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[ReceivedMessage, ...]:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def acknowledge(self, messages: Iterable[ReceivedMessage]) -> None:
        """Note that these messages were handled, in any order: they need not be delivered again."""
        for message in messages:
            assigned = self._assigned.get(message.queue)
            if assigned is not None and assigned.progress is not None:
                assigned.progress.acknowledge(message.queue_offset)
        self._wake_pulls()

    async def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Give a message back whose handling failed: it is delivered again later, as another message.

        `delay_level` is an index, from 1, of the broker's delay levels; 0 leaves it to the broker, which
        waits longer for each retry, and -1 sends the message to the dead-letter topic. Raises PeerError if
        the broker did not store it; then, as after a cancellation, the message stays unacknowledged.
        """
        group = self._settings.group
        assert group is not None, "retries belong to a group"
        fields = {
            "offset": str(message.physical_offset),
            "group": group,
            "delayLevel": str(delay_level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._settings.reconsume_times_max),
        }
        address = await self._master_of(message.queue)
        answer = await self._cluster.request(
            address, request(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=fields)
        )
        check(answer, address, f"the retry of message {message.queue_offset} of {message.queue}")
        self.acknowledge((message,))
        if not any(queue.topic.startswith(RETRY_TOPIC_PREFIX) for queue in self._assigned):
            # The first message of the group that is sent back may have made the retry topic.
            self.rebalance()

    def _wake_pulls(self) -> None:
        """Fewer messages are unacknowledged: loops that wait for room look again."""
        self._less_unacknowledged.set()
        self._less_unacknowledged = trio.Event()

    def rebalance(self) -> None:
        """Assign the queues anew, soon."""
        self._rebalance_due.set()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue at these offsets in those of the queues that this consumer has.

        Messages that were received and are not acknowledged yet are forgotten.
        """
        for queue, offset in offsets.items():
            assigned = self._assigned.pop(queue, None)
            if assigned is not None:
                assigned.scope.cancel()
                self._resets[queue] = offset
                log.info("offset was reset", queue=str(queue), offset=offset)
        self._wake_pulls()
        self.rebalance()

    # -- assignment ------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Assign queues and pull them, until cancelled or, without `follow`, finished or failed."""
        async with self._send, trio.open_nursery() as loops:
            pause_s = TOPIC_PAUSE_S
            failures = 0
            while True:
                self._rebalance_due = trio.Event()
                if self._failure is not None:
                    loops.cancel_scope.cancel()
                    return
                try:
                    await self._assign(loops)
                except TopicNotFoundError as error:
                    # A topic that is not there yet: its first message must not wait for long.
                    if not self._settings.follow:
                        return
                    log.debug("topic not found", topic=self._settings.topic, reason=error.reason)
                    wait_s, pause_s = pause_s, min(2 * pause_s, RETRY_PAUSE_S)
                except PeerError as error:
                    log.warning("queues not assigned", topic=self._settings.topic, reason=str(error))
                    wait_s = RETRY_PAUSE_S
                    failures += 1
                    if not self._settings.follow and failures >= FAILURES_MAX:
                        self._failure = error
                        self._rebalance_due.set()
                else:
                    failures = 0
                    wait_s = REBALANCE_INTERVAL_S
                    if self._is_finished():
                        return
                with trio.move_on_after(wait_s):
                    await self._rebalance_due.wait()

    def _is_finished(self) -> bool:
        return not self._settings.follow and all(assigned.is_finished for assigned in self._assigned.values())

    async def _assign(self, loops: trio.Nursery) -> None:
        """Start loops for queues that are assigned now, end those of others. Raises PeerError."""
        route = await self._cluster.routes.fetch(self._settings.topic)
        queues = route.read_queues(self._settings.topic)
        wanted = set(queues)
        group = self._settings.group
        if group is not None:
            if self._is_topic_new and not self._known_queues:
                # Its brokers are known only now.
                await self._cluster.send_heartbeats()
            members = await self._members(route, group)
            retry_queues = await self._retry_queues(group)
            wanted = {
                queue
                for of_topic in (queues, retry_queues)
                for queue in allocate(of_topic, members, member=self._cluster.client_id)
            }
        for queue in self._assigned.keys() - wanted:
            assigned = self._assigned.pop(queue)
            assigned.scope.cancel()
            self._wake_pulls()
            await self._commit(assigned)
        for queue in sorted(wanted - self._assigned.keys()):
            is_new = self._is_topic_new or (bool(self._known_queues) and queue not in self._known_queues)
            assigned = self._assigned[queue] = _Assigned(queue, trio.CancelScope(), is_new)
            if queue in self._resets:
                assigned.progress = QueueProgress(self._resets[queue])
            loops.start_soon(self._pull_queue, assigned)
        self._resets.clear()
        self._known_queues |= set(queues)
        self._note_positions()

    async def _retry_queues(self, group: str) -> Sequence[MessageQueue]:
        """The queues of the group's retry topic; none if no broker has it yet. Raises PeerError."""
        topic = retry_topic(group)
        try:
            return (await self._cluster.routes.fetch(topic)).read_queues(topic)
        except TopicNotFoundError:
            return ()

    async def _members(self, route: TopicRoute, group: str) -> list[str]:
        """The members of the group, this one among them. Raises PeerError if they are not known."""
        failure: PeerError | None = None
        asked = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": group})
        for address in route.addresses():
            try:
                answer = await self._cluster.request(address, asked, timeout_s=REQUEST_TIMEOUT_S)
                check(answer, address, "the members of the group")
                members = _members(answer, address)
                if self._cluster.client_id in members:
                    return members
                failure = PeerError(f"this client is not a member of {group} there", address=address)
            except PeerError as error:
                failure = error
        raise failure or PeerError("the topic has no broker", address=self._cluster.routes.source)

    # -- pulling ---------------------------------------------------------------------------------------

    async def _pull_queue(self, assigned: _Assigned) -> None:
        with assigned.scope:
            pause_s = TOPIC_PAUSE_S
            while True:
                try:
                    await self._pull_until_finished(assigned)
                except (PeerError, RemoteProtocolError) as error:
                    self._note_failure(error)
                    assigned.failures += 1
                    # A broker that starts again may have lost the last commits.
                    assigned.committed_at = None
                    if assigned.failures == 2:
                        # The first one may be the end of a connection, which is made again.
                        log.warning("pulls fail", queue=str(assigned.queue), reason=str(error))
                    if not self._settings.follow and assigned.failures >= FAILURES_MAX:
                        self._failure = error
                        self._rebalance_due.set()
                        return
                    if isinstance(error, PeerError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
                        await trio.sleep(pause_s)
                        pause_s = min(2 * pause_s, RETRY_PAUSE_S)
                    else:
                        await trio.sleep(RETRY_PAUSE_S)
                        # The broker may have been replaced.
                        self._rebalance_due.set()
                else:
                    assigned.is_finished = True
                    self._rebalance_due.set()
                    return

    async def _pull_until_finished(self, assigned: _Assigned) -> None:
        """Pull one queue; returns at its end, without `follow`. Raises PeerError, RemoteProtocolError."""
        settings = self._settings
        if assigned.progress is None:
            offset = await self._start_offset(assigned)
            assigned.progress = QueueProgress(offset)
            self._note_positions()
        progress = assigned.progress
        broker_id = MASTER_ID
        end_offset: int | None = None
        while True:
            await self._wait_for_room()
            asked_offset = progress.next_offset
            address = await self._address_of(assigned.queue, broker_id=broker_id)
            asked_s = trio.current_time()
            answer = await self._cluster.request(
                address,
                self._pull_request(assigned.queue, progress),
                timeout_s=settings.suspend_s + ANSWER_MARGIN_S,
            )
            if answer.code not in PULL_CODES:
                raise refusal(answer, address, f"the pull of {assigned.queue}")
            assigned.failures = 0
            next_offset = number_field(answer, "nextBeginOffset", address)
            max_offset = number_field(answer, "maxOffset", address)
            broker_id = number_field(answer, "suggestWhichBrokerId", address)
            if end_offset is None:
                end_offset = max_offset
            if answer.code == ResponseCode.SUCCESS:
                await self._deliver(assigned, answer, next_offset)
            elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
                if next_offset != progress.next_offset:
                    log.warning(
                        "offset is not in the queue",
                        queue=str(assigned.queue),
                        offset=progress.next_offset,
                        continued_at=next_offset,
                    )
                progress.skip_to(next_offset)
                # Brokers of 5.x answer so when an administrator has reset the group's offset: it is no longer
                # the committed one.
                assigned.committed_at = None
            elif next_offset > progress.next_offset:
                progress.skip_to(next_offset)
            if not settings.follow and progress.next_offset >= end_offset:
                return
            if answer.code != ResponseCode.SUCCESS and next_offset == asked_offset:
                await trio.sleep_until(asked_s + EMPTY_PAUSE_S)

    def _pull_request(self, queue: MessageQueue, progress: QueueProgress) -> RemotingCommand:
        settings = self._settings
        return pull_request(
            queue,
            queue_offset=progress.next_offset,
            messages_max=settings.pull_messages_max,
            subscription=self._subscriptions[queue.topic],
            group=settings.group_name,
            suspend_s=settings.suspend_s if settings.follow else None,
        )

    async def _deliver(self, assigned: _Assigned, answer: RemotingCommand, next_offset: int) -> None:
        """Hand over the messages of a pull that are wanted."""
        progress = assigned.progress
        assert progress is not None, "it is pulled"
        start_at = self._start_at(assigned.queue)
        tags = frozenset(self._subscriptions[assigned.queue.topic].tags)
        batch = []
        for message in received_messages(answer.body, assigned.queue):
            if message.queue_offset < progress.next_offset or (tags and message.tag not in tags):
                continue
            if start_at.start is Start.TIME and message.store_timestamp_ms < start_at.timestamp_ms:
                # 4.9 starts at the last message if none is late enough.
                continue
            progress.deliver(message.queue_offset, message.size_bytes)
            batch.append(message)
        if next_offset > progress.next_offset:
            progress.skip_to(next_offset)
        if batch:
            await self._send.send(tuple(batch))

    async def _wait_for_room(self) -> None:
        settings = self._settings
        while True:
            known = [assigned.progress for assigned in self._assigned.values() if assigned.progress]
            if (
                sum(progress.unacknowledged for progress in known) < settings.unacknowledged_max
                and sum(progress.unacknowledged_bytes for progress in known)
                < settings.unacknowledged_bytes_max
            ):
                return
            await self._less_unacknowledged.wait()

    async def _address_of(self, queue: MessageQueue, *, broker_id: int = MASTER_ID) -> str:
        """Where to read: the broker of that id or the master; a slave if they are gone. Raises PeerError."""
        route = await self._cluster.routes.find(queue.topic)
        address = route.pull_address(queue.broker_name, broker_id=broker_id, avoided=self._failed_brokers)
        if address is None:
            raise PeerError(f"{queue} has no broker", address=self._cluster.routes.source)
        return address

    async def _master_of(self, queue: MessageQueue) -> str:
        """Where to write. Raises PeerError."""
        address = (await self._cluster.routes.find(queue.topic)).master(queue.broker_name)
        if address is None:
            raise PeerError(f"{queue} has no master", address=self._cluster.routes.source)
        return address

    def _note_failure(self, error: PeerError | RemoteProtocolError) -> None:
        """Read from another broker of the same name for a while, if this one did not answer."""
        if isinstance(error, PeerError) and error.code is None:
            self._failed_brokers.add(error.address)

    # -- offsets ---------------------------------------------------------------------------------------

    def _start_at(self, queue: MessageQueue) -> StartAt:
        """Where to start in a queue without an offset of the group; a retry topic is the group's own."""
        return _FIRST if queue.topic.startswith(RETRY_TOPIC_PREFIX) else self._settings.start_at

    async def _start_offset(self, assigned: _Assigned) -> int:
        """Where to start in a queue: the group's offset, else as the settings say. Raises PeerError."""
        queue, settings = assigned.queue, self._settings
        start_at = self._start_at(queue)
        if settings.group is not None:
            committed = await self._committed_offset(queue, settings.group)
            if committed is not None:
                return committed
        start = Start.FIRST if assigned.is_new else start_at.start
        if start is Start.FIRST:
            return await self._offset(RequestCode.GET_MIN_OFFSET, queue)
        if start is Start.LAST:
            return await self._offset(RequestCode.GET_MAX_OFFSET, queue)
        if start in {Start.OFFSET, Start.BEFORE_END}:
            low = await self._offset(RequestCode.GET_MIN_OFFSET, queue)
            high = await self._offset(RequestCode.GET_MAX_OFFSET, queue)
            wanted = start_at.offset if start is Start.OFFSET else high - start_at.offset
            return min(max(low, wanted), high)
        return await self._offset(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=str(start_at.timestamp_ms)
        )

    async def _committed_offset(self, queue: MessageQueue, group: str) -> int | None:
        """The group's offset; None if it has none. 4.9 answers 0 for a new group in a young queue."""
        fields = {**queue_fields(queue), "consumerGroup": group, "setZeroIfNotFound": "false"}
        address = await self._address_of(queue)
        answer = await self._cluster.request(
            address,
            # The field is one of 5.x.
            evolve(
                request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields), version=int(Version.V5_3_3)
            ),
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        check(answer, address, f"the offset of {group} in {queue}")
        return number_field(answer, "offset", address)

    async def _offset(self, code: RequestCode, queue: MessageQueue, **fields: str) -> int:
        address = await self._address_of(queue)
        answer = await self._cluster.request(
            address, request(code, ext_fields={**queue_fields(queue), **fields})
        )
        check(answer, address, f"an offset of {queue}")
        return number_field(answer, "offset", address)

    async def _run_commits(self) -> None:
        """Commit offsets every `COMMIT_INTERVAL_S`, until cancelled."""
        while True:
            await trio.sleep(COMMIT_INTERVAL_S)
            await self.commit()

    async def commit(self) -> None:
        """Commit the offsets of all queues that have moved; a broker that is not reached gets them later."""
        for assigned in list(self._assigned.values()):
            await self._commit(assigned)

    async def _commit(self, assigned: _Assigned) -> None:
        progress, group = assigned.progress, self._settings.group
        if group is None or progress is None:
            return
        offset = progress.committable_offset
        if offset == progress.committed_offset and assigned.committed_at is not None:
            try:
                if await self._address_of(assigned.queue) == assigned.committed_at:
                    return
            except PeerError:
                return
        fields = {
            **queue_fields(assigned.queue),
            "consumerGroup": group,
            "commitOffset": str(offset),
        }
        try:
            address = await self._address_of(assigned.queue)
            answer = await self._cluster.request(
                address,
                request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields),
                timeout_s=REQUEST_TIMEOUT_S,
            )
            check(answer, address, f"the commit of {assigned.queue}")
        except PeerError as error:
            self._note_failure(error)
            log.warning("offset not committed", queue=str(assigned.queue), reason=str(error))
        else:
            progress.committed_offset = offset
            assigned.committed_at = address

    def _note_positions(self) -> None:
        if self._known_queues and all(assigned.progress for assigned in self._assigned.values()):
            self.positioned.set()


_FIRST: Final = StartAt(Start.FIRST)


def _members(answer: RemotingCommand, address: str) -> list[str]:
    ids = object_body(answer, address).get("consumerIdList")
    if (
        not isinstance(ids, list)
        or len(ids) > MEMBERS_MAX
        or not all(isinstance(member, str) for member in ids)
    ):
        raise PeerError("an answer without a usable consumerIdList", address=address)
    return ids

"""Checks of pulls: topic, queue, group and subscription (docs/protocol/remoting.md#pulls).

Checks are made in the broker's order, with its codes and remarks. One check differs: where the subscription
of a request is newer than that of the last heartbeat, the broker answers SUBSCRIPTION_NOT_LATEST, and a
consumer of 5.x that has just started loses 20 s to it. Here the pull is answered, without a filter: the
consumer compares tags itself, and gets no fewer messages than its new subscription wants.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from attrs import define, frozen

from trioha.broker.clients import ClientRegistry
from trioha.broker.remarks import SEE_FAQ, broker_refuses_pulls, no_queue, no_topic
from trioha.metadata.groups import GroupTable, SubscriptionGroup
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.metadata.topics import READ_WRITE, Perm, TopicConfig
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.found_head import FoundHead
from trioha.remoting.pull_forms import KnownPull
from trioha.remoting.pull_message import PullFlag, PullRequest
from trioha.remoting.serving import Peer
from trioha.remoting.subscriptions import TAG, Subscription
from trioha.store.reads import GetStatus, ReadLimits

# A plain number: operations on members of a flag are slow.
_READ: Final = int(Perm.READ)


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


@define
class Pull:
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


class PullChecks:
    """Checks the pulls of a broker."""

    def __init__(self, metadata: MetadataStore, clients: ClientRegistry) -> None:
        self._metadata = metadata
        self._clients = clients

    def checked(self, request: RemotingCommand, peer: Peer, settings: PullSettings) -> Pull:
        """The pull, if it passes all checks. Raises BadRequestError."""
        if type(request) is not KnownPull or request.form is None:
            return self._check(request, peer, settings)
        kept = request.form.kept
        if type(kept) is not Pull or not self.still_hold(kept, settings):
            request.form.kept = pull = self._check(request, peer, settings)
            pull.head = FoundHead(request, remark=GetStatus.FOUND.value)
            return pull
        return Pull(
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

    def still_hold(self, kept: Pull, settings: PullSettings) -> bool:
        """Whether the checks of a pull would end in the same way: settings, topic, group and subscription are
        replaced when they change, and none of them depends on the offsets."""
        header, group = kept.header, kept.group
        if (
            kept.settings is not settings
            or self._metadata.groups.entries.get(header.group) is not group
            or self._metadata.topics.entries.get(header.topic) is not kept.topic
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

    def _check(self, request: RemotingCommand, peer: Peer, settings: PullSettings) -> Pull:
        header = PullRequest.of(request)
        if not settings.broker_permission & _READ:
            raise broker_refuses_pulls(settings.broker_ip)
        group = consuming_group(self._metadata.groups, header.group, is_slave=settings.is_slave)
        topic = self._metadata.topics.find(header.topic)
        if topic is None:
            raise no_topic(header.topic)
        if not topic.is_readable:
            raise BadRequestError(
                f"the topic[{header.topic}] pulling message is forbidden", code=ResponseCode.NO_PERMISSION
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise no_queue(
                header.topic,
                header.queue_id,
                queues=topic.read_queue_nums,
                peer=peer,
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
        return Pull(request, header, group, limits, tag_codes, topic, subscription, settings)

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


def consuming_group(groups: GroupTable, name: str, *, is_slave: bool) -> SubscriptionGroup:
    """The group of a consumer, made by a master if it is not known. Raises BadRequestError if it may not
    consume."""
    try:
        # A slave has its master's groups, and makes none.
        group = groups.find_or_default(name) if is_slave else groups.find_or_create(name)
    except TableFull as full:
        raise BadRequestError(str(full), code=ResponseCode.SYSTEM_ERROR) from None
    if group is None:
        raise BadRequestError(
            f"subscription group [{name[:300]}] does not exist, {SEE_FAQ}",
            code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )
    if not group.consume_enable:
        raise BadRequestError(f"subscription group no permission, {name}", code=ResponseCode.NO_PERMISSION)
    return group

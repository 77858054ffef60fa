"""Retry and dead-letter topics of consumer groups: where a failed message goes.

See docs/protocol/remoting.md#clients-and-groups.

A message that a consumer could not consume comes back to the broker as CONSUMER_SEND_MSG_BACK or, where
that fails, as an ordinary send to `%RETRY%group`. Up to the group's maximum it is stored in the retry
topic, with a delay; after that in `%DLQ%group`, to which no consumer subscribes by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trioha.broker.remarks import SEE_FAQ, topic_refuses_sends
from trioha.metadata.groups import GroupTable, SubscriptionGroup
from trioha.metadata.table import TableFull
from trioha.metadata.topics import TopicConfig, TopicTable, dead_letter_topic, is_topic_name, retry_topic
from trioha.remoting.codes import ResponseCode, Version
from trioha.remoting.command import BadRequestError
from trioha.store.topics import RETRY_TOPIC_PREFIX

DEAD_LETTER_QUEUES: Final = 1
UNIT_SUBSCRIPTION: Final = 2
"""Bit of topicSysFlag: the topic's consumers are in unit mode."""


class Retries:
    """Finds and makes retry and dead-letter topics."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        *,
        consumes_in_order: Callable[[str], bool] = lambda _group: False,
    ) -> None:
        """`consumes_in_order` says whether a group has locked queues."""
        self._topics = topics
        self._groups = groups
        self._consumes_in_order = consumes_in_order

    def group(self, name: str) -> SubscriptionGroup:
        """The group, made if it may be. Raises BadRequestError."""
        try:
            # A group exists only with a name that makes a legal retry topic.
            group = self._groups.find_or_create(name) if name and is_topic_name(retry_topic(name)) else None
        except TableFull as full:
            raise BadRequestError(str(full)) from None
        if group is None:
            raise BadRequestError(
                f"subscription group not exist, {name[:300]} {SEE_FAQ}",
                code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            )
        return group

    def retry_topic(self, group: SubscriptionGroup, *, unit_mode: bool) -> TopicConfig:
        """The group's retry topic, made if it is missing. Raises BadRequestError."""
        return self._writable(
            retry_topic(group.name),
            queue_nums=group.retry_queue_nums,
            sys_flag=UNIT_SUBSCRIPTION if unit_mode else 0,
        )

    def dead_letter_topic(self, group: SubscriptionGroup) -> TopicConfig:
        """The group's dead-letter topic, made if it is missing. Raises BadRequestError."""
        return self._writable(dead_letter_topic(group.name), queue_nums=DEAD_LETTER_QUEUES, sys_flag=0)

    def _writable(self, name: str, *, queue_nums: int, sys_flag: int) -> TopicConfig:
        try:
            topic = self._topics.create_retry_topic(name, queue_nums=queue_nums, sys_flag=sys_flag)
        except (TableFull, ValueError) as error:
            raise BadRequestError(str(error)) from None
        if not topic.is_writable:
            raise topic_refuses_sends(name)
        return topic

    def topic_of_send(
        self, topic: str, *, reconsume_times: int, max_reconsume_times: int | None, version: int
    ) -> str:
        """Where an ordinary send to `topic` goes: a retry beyond its maximum to the dead-letter topic.

        `version` is the sender's, and the rule is that of its version's broker: in 4.9 a message is a dead
        letter when `reconsume_times` is the maximum, in 5.x when it is above. In 5.x, all that a group sends
        that consumes in order are dead letters, since its consumers retry by themselves. Raises
        BadRequestError.
        """
        if not topic.startswith(RETRY_TOPIC_PREFIX):
            return topic
        group = self.group(topic[len(RETRY_TOPIC_PREFIX) :])
        times_max = allowed_retries(group, max_reconsume_times, version=version)
        if version < Version.V5_0_0:
            is_over = reconsume_times >= times_max
        else:
            is_over = reconsume_times > times_max or self._consumes_in_order(group.name)
        return self.dead_letter_topic(group).name if is_over else topic


def allowed_retries(group: SubscriptionGroup, asked: int | None, *, version: int) -> int:
    """How often a message is retried: as the consumer says, if its `version` can, else as its group says."""
    return group.retry_max_times if asked is None or version < Version.V3_4_9 else asked

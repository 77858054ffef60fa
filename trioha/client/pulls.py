"""The request that pulls messages of a queue (docs/protocol/remoting.md#pulls)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.pull_message import PullFlag
from trioha.remoting.route import MessageQueue
from trioha.remoting.subscriptions import Subscription

GROUP_OF_NONE: Final = "trioha-consume"
"""The group in the pulls of a client that is a member of none: each of them must have one."""
PULL_CODES: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
)
"""Of answers to pulls that were not refused."""


def queue_fields(queue: MessageQueue) -> Mapping[str, str]:
    """The header fields that name a queue of the broker."""
    return MappingProxyType({"topic": queue.topic, "queueId": str(queue.queue_id)})


def pull_request(
    queue: MessageQueue,
    *,
    queue_offset: int,
    messages_max: int,
    subscription: Subscription,
    group: str = GROUP_OF_NONE,
    suspend_s: float | None = None,
) -> RemotingCommand:
    """A pull of messages from `queue_offset` on; with `suspend_s` it waits so long where there are none."""
    flags = PullFlag.SUBSCRIPTION
    if suspend_s is not None:
        flags |= PullFlag.SUSPEND
    return request(
        RequestCode.PULL_MESSAGE,
        ext_fields={
            **queue_fields(queue),
            "consumerGroup": group,
            "queueOffset": str(queue_offset),
            "maxMsgNums": str(messages_max),
            "sysFlag": str(int(flags)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(round((suspend_s or 0.0) * 1000)),
            "subscription": subscription.expression,
            "subVersion": str(subscription.version),
            "expressionType": subscription.expression_type,
        },
    )

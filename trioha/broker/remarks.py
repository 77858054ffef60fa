"""Remarks of RocketMQ's brokers that several requests are refused with."""

from __future__ import annotations

from typing import Final

from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.remoting.serving import Peer

SEE_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
"""End of some remarks of 4.9."""


def broker_refuses_sends(broker_ip: str) -> BadRequestError:
    """brokerPermission does not let clients write."""
    return BadRequestError(
        f"the broker[{broker_ip}] sending message is forbidden", code=ResponseCode.NO_PERMISSION
    )


def broker_refuses_pulls(broker_ip: str) -> BadRequestError:
    """brokerPermission does not let clients read."""
    return BadRequestError(
        f"the broker[{broker_ip}] pulling message is forbidden", code=ResponseCode.NO_PERMISSION
    )


def topic_refuses_sends(topic: str) -> BadRequestError:
    """The topic's permission does not let clients write."""
    return BadRequestError(
        f"the topic[{topic}] sending message is forbidden", code=ResponseCode.NO_PERMISSION
    )


def no_topic(topic: str) -> BadRequestError:
    """There is no such topic for a consumer."""
    return BadRequestError(
        f"topic[{topic}] not exist, apply first please! {SEE_FAQ}", code=ResponseCode.TOPIC_NOT_EXIST
    )


def no_queue(topic: str, queue_id: int, *, queues: int, peer: Peer, code: int) -> BadRequestError:
    """A topic with so many queues for consumers has no such one; requests have codes of their own for it."""
    return BadRequestError(
        f"queueId[{queue_id}] is illegal, topic:[{topic}] "
        f"topicConfig.readQueueNums:[{queues}] consumer:[/{peer.address}]",
        code=code,
    )

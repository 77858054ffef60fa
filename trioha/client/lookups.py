"""Single messages of a cluster: by their place in a queue, by an id, by a key.

See docs/protocol/remoting.md#offsets-and-queries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trioha.client.answers import check, refusal
from trioha.client.cluster import Cluster
from trioha.client.messages import ReceivedMessage, received_messages, stored_messages
from trioha.client.pulls import PULL_CODES, pull_request
from trioha.errors import PeerError
from trioha.numbers import NATURAL64
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.route import MessageQueue
from trioha.remoting.subscriptions import Subscription
from trioha.store.record import parse_offset_message_id

REQUEST_TIMEOUT_S: Final = 10.0
"""A query reads index and log."""
QUERY_MESSAGES_MAX: Final = 64
"""Messages in a broker's answer to a query."""
_GONE: Final = "can not find message by the offset"
"""In the remark of a broker that has no message there."""


async def message_at(cluster: Cluster, queue: MessageQueue, queue_offset: int) -> ReceivedMessage | None:
    """The message at a place of a queue; None if there is none (any more). Raises PeerError,
    RemoteProtocolError."""
    route = await cluster.routes.fetch(queue.topic)
    address = route.pull_address(queue.broker_name)
    if address is None:
        known = ", ".join(sorted(route.brokers))
        raise PeerError(
            f"no broker {queue.broker_name} has {queue.topic}, but {known}", address=cluster.routes.source
        )
    asked = pull_request(
        queue, queue_offset=queue_offset, messages_max=1, subscription=Subscription.parse(queue.topic, "*")
    )
    answer = await cluster.request(address, asked, timeout_s=REQUEST_TIMEOUT_S)
    if answer.code not in PULL_CODES:
        raise refusal(answer, address, f"the pull of {queue}")
    if answer.code != ResponseCode.SUCCESS:
        return None
    found = received_messages(answer.body, queue)
    return next((message for message in found if message.queue_offset == queue_offset), None)


async def message_by_offset_id(cluster: Cluster, offset_message_id: str) -> ReceivedMessage | None:
    """The message with an offset message id, from the broker whose address is in it; None if it is gone.

    Only brokers of the cluster are asked: an id may come from anywhere. Raises ValueError for a text that is
    no such id, PeerError, RemoteProtocolError.
    """
    host, physical_offset = parse_offset_message_id(offset_message_id)
    groups = await cluster.routes.broker_groups()
    wanted = str(host)
    name = next((group.broker_name for group in groups if wanted in group.addresses.values()), None)
    if name is None:
        raise PeerError(
            f"the message was stored by {wanted}, which is no broker of the cluster: give its place, "
            "TOPIC@BROKER:QUEUE:OFFSET",
            address=cluster.routes.source,
        )
    asked = request(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(physical_offset)})
    answer = await cluster.request(wanted, asked, timeout_s=REQUEST_TIMEOUT_S)
    if answer.code == ResponseCode.SYSTEM_ERROR and _GONE in (answer.remark or ""):
        return None
    check(answer, wanted, f"message {offset_message_id}")
    return next(stored_messages(answer.body, name), None)


async def messages_by_key(
    cluster: Cluster,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int = NATURAL64.high,
    limit: int = QUERY_MESSAGES_MAX,
) -> tuple[ReceivedMessage, ...]:
    """The newest messages of a topic with a key, or with this message id, oldest first.

    `begin_ms` and `end_ms`: when they were stored, ms since 1970. Brokers find messages by the hash of the
    key: others with the same hash are left out here. Raises PeerError, also if only one of the topic's
    brokers does not answer, and RemoteProtocolError.
    """

    def is_wanted(message: ReceivedMessage) -> bool:
        return key in message.keys or key == message.message_id

    return await _query(
        cluster,
        topic,
        {
            "topic": topic, "key": key, "maxNum": str(limit), "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
        },
        is_wanted,
        limit=limit,
    )  # fmt: skip


async def message_by_id(cluster: Cluster, topic: str, message_id: str) -> ReceivedMessage | None:
    """The newest message of a topic with the id that its producer gave it; None if there is none.

    Raises PeerError, RemoteProtocolError.
    """
    fields = {
        "topic": topic, "key": message_id, "maxNum": "32", "beginTimestamp": "0",
        "endTimestamp": str(NATURAL64.high), "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip
    found = await _query(cluster, topic, fields, lambda message: message.message_id == message_id, limit=1)
    return found[0] if found else None


async def _query(
    cluster: Cluster,
    topic: str,
    fields: dict[str, str],
    is_wanted: Callable[[ReceivedMessage], bool],
    *,
    limit: int,
) -> tuple[ReceivedMessage, ...]:
    """The newest messages that a QUERY_MESSAGE of each broker of the topic finds, oldest first."""
    route = await cluster.routes.fetch(topic)
    found: list[ReceivedMessage] = []
    for broker_name in sorted(route.brokers):
        address = route.pull_address(broker_name)
        if address is None:
            continue
        asked = request(RequestCode.QUERY_MESSAGE, ext_fields=fields)
        answer = await cluster.request(address, asked, timeout_s=REQUEST_TIMEOUT_S)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            continue
        check(answer, address, f"the query of {topic}")
        found += [message for message in stored_messages(answer.body, broker_name) if is_wanted(message)]
    found.sort(key=lambda message: (message.store_timestamp_ms, message.queue, message.queue_offset))
    return tuple(found[-limit:])

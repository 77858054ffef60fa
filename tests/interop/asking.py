"""What tests ask name servers and brokers, trioha's and RocketMQ's, and how they wait for an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import trio

from tests.node_process import ANSWER_WITHIN_S, wait_dispatched
from tests.waiting import wait_until
from trioha.metadata.pretty_json import parse_pretty
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.fastjson import parse_json
from trioha.remoting.name_server import fetch_broker_groups

QUEUES = 4
"""Of the topics of tests."""


def ask(address: str, code: int, **fields: str) -> RemotingCommand:
    """The answer of a name server or broker to one request."""

    async def main() -> RemotingCommand:
        async with open_client(address, connect_timeout_s=ANSWER_WITHIN_S) as client:
            return await client.request(request(code, ext_fields=fields), timeout_s=ANSWER_WITHIN_S)

    return trio.run(main)


def groups(address: str) -> dict[str, dict[int, str]]:
    """Addresses of brokers by name and id, as a name server has them."""

    async def main() -> dict[str, dict[int, str]]:
        async with open_client(address, connect_timeout_s=ANSWER_WITHIN_S) as client:
            found = await fetch_broker_groups(client, timeout_s=ANSWER_WITHIN_S)
            return {group.broker_name: dict(group.addresses) for group in found}

    return trio.run(main)


def topics(address: str) -> set[str]:
    """All topics that a name server has."""
    body = bytes(ask(address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
    return set(json.loads(body)["topicList"])


def wait_for_route(address: str, topic: str, *broker_names: str) -> None:
    """Wait until a name server has the topic on these brokers, or on any."""

    def has_route() -> bool:
        found = set(queue_datas(address, topic))
        return found == set(broker_names) if broker_names else bool(found)

    wait_until(has_route, f"{topic} is registered")


def wait_for_groups(address: str, wanted: Mapping[str, Mapping[int, str]]) -> None:
    """Wait until a name server has these brokers and no others. Real ones may register after 10 s."""
    wait_until(lambda: groups(address) == wanted, f"registered are {wanted}")


def queue_datas(address: str, topic: str) -> dict[str, Any]:
    """The topic's queues by broker, as a name server knows them; none if it has no route."""
    answer = ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    route = parse_json(answer.body)
    assert isinstance(route, dict), answer
    return {queues["brokerName"]: queues for queues in route["queueDatas"]}


def tables(address: str) -> list[Any]:
    """Topics, groups, offsets and delay offsets of a broker, as it gives them to its slaves."""
    codes = (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
    )
    return [parse_pretty(bytes(ask(address, code).body).decode()) for code in codes]


def max_offset(address: str, topic: str, queue_id: int = 0) -> int:
    """How many messages a queue of a broker has."""
    answer = ask(address, RequestCode.GET_MAX_OFFSET, topic=topic, queueId=str(queue_id))
    return int(answer.ext_fields.get("offset") or 0)


def max_offsets(address: str, topic: str) -> dict[int, int]:
    """Ends of the topic's queues, which have all that is in the broker's log now."""
    wait_dispatched(address)
    return {queue_id: max_offset(address, topic, queue_id) for queue_id in range(QUEUES)}


def committed(address: str, group: str, topic: str) -> dict[int, int]:
    """The group's offsets by queue, as a broker has them."""
    found = {}
    for queue_id in range(QUEUES):
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        answer = ask(address, RequestCode.QUERY_CONSUMER_OFFSET, **fields)
        if answer.code == ResponseCode.SUCCESS:
            found[queue_id] = int(answer.ext_fields["offset"])
    return found


def commit(address: str, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Set the group's offsets by queue."""
    for queue_id, offset in offsets.items():
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        answer = ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, **fields, commitOffset=str(offset))
        assert answer.code == ResponseCode.SUCCESS, answer


def make_topic(address: str, topic: str) -> None:
    """Make a topic, as an administrator makes it: with a fixed number of queues, at this broker only."""
    queues = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
    kind = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    fields = {"topic": topic, "defaultTopic": "TBW102", **queues, **kind}
    answer = ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer

"""Popping of real 5.5.0 brokers and of trioha: the same requests, the same answers."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import trio

from tests.interop.asking import committed, max_offset
from tests.interop.java import JavaDrivers
from tests.interop.popping import PopClient, pop_client, records_of, with_topic
from tests.interop.rocketmq import NEWEST
from tests.interop.world import running
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode, ResponseCode

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

SHORT_MS = 2000
"""Invisible time of what is to come again."""
_topics = count(1)
NAMES = {"brokerName": "interop", "brokerClusterName": "interop"}


@pytest.fixture(scope="module", params=[pytest.param("rocketmq", marks=pytest.mark.nightly), "trioha"])
def broker(
    request: pytest.FixtureRequest, drivers: JavaDrivers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a master that is shared by the tests of this module: each has a topic of its own."""
    root = tmp_path_factory.mktemp("pop") / "store"
    if request.param == "trioha":
        with running(root, role="ASYNC_MASTER", **NAMES) as node:
            yield node.listen_address
        return
    with drivers.lent(NEWEST) as java:
        master = java.open_broker(root, role="ASYNC_MASTER", timerWheelEnable=True, **NAMES)
        yield master.listen_address


@pytest.fixture
async def client(broker: str) -> AsyncIterator[PopClient]:
    async with pop_client(broker) as opened:
        yield opened


@pytest.fixture
async def topic(broker: str) -> str:
    """A topic of the test's own, with four queues."""
    return await with_topic(broker, f"T{next(_topics)}")


async def test_each_message_is_given_once_and_what_is_acknowledged_never_again(client, topic, broker):
    for queue_id in range(4):
        await client.send(topic, f"{queue_id}-a", f"{queue_id}-b", queue_id=queue_id)
    first = await client.pop(topic, maxMsgNums=5)
    second = await client.pop(topic, pollTime=2000)
    assert (first.code, first.answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert len(first.messages) == 5
    assert int(first.fields["restNum"]) == 3
    assert int(second.fields["restNum"]) == 0
    assert sorted(first.bodies + second.bodies) == sorted(
        f"{queue_id}-{name}" for queue_id in range(4) for name in "ab"
    )
    assert not any(message.record.reconsume_times for message in first.messages + second.messages)
    third = await client.pop(topic)
    assert (third.code, third.answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert (third.fields["startOffsetInfo"], third.fields["msgOffsetInfo"]) == ("", "")
    await client.ack_all(first.messages + second.messages)
    assert await client.is_over(topic)
    moved = await trio.to_thread.run_sync(committed, broker, "G", topic)
    assert [moved[queue_id] for queue_id in range(1, 4)] == [2, 2, 2]


async def test_what_is_not_acknowledged_comes_again_from_the_retry_topic(client, topic):
    await client.send(topic, "a", "b", "c", TAGS="x", COLOUR="red")
    popped = await client.pop(topic, invisibleTime=SHORT_MS)
    await client.ack_all(message for message in popped.messages if message.body == "b")
    again = await client.pop_all(topic, 2)
    assert sorted(message.body for message in again) == ["a", "c"]
    for message in again:
        assert message.real_topic == f"%RETRY%G_{topic}"
        assert message.record.reconsume_times == 1
        properties = message.properties
        assert (properties["TAGS"], properties["COLOUR"]) == ("x", "red")
        assert properties["ORIGIN_GROUP"] == "G"
        assert properties["1ST_POP_TIME"] == popped.fields["popTime"]
        assert properties["UNIQ_KEY"] == f"{topic}-{message.body}"
    await client.ack_all(again)
    assert await client.is_over(topic)


async def test_a_message_that_is_left_again_keeps_its_first_pop_time_and_is_counted(client, topic):
    await client.send(topic, "a")
    first = await client.pop(topic, invisibleTime=SHORT_MS)
    (second,) = await client.pop_all(topic, 1, invisibleTime=SHORT_MS)
    (third,) = await client.pop_all(topic, 1)
    assert [second.record.reconsume_times, third.record.reconsume_times] == [1, 2]
    assert third.properties["1ST_POP_TIME"] == first.fields["popTime"]
    assert second.real_topic == third.real_topic
    await client.ack_all([third])


async def test_a_batch_acknowledges_what_its_bits_name(client, topic):
    await client.send(topic, *"abcde")
    popped = await client.pop(topic, invisibleTime=SHORT_MS)
    left = [message for message in popped.messages if message.body in "bd"]
    answer = await client.batch_ack([message for message in popped.messages if message not in left])
    assert (answer.code, dict(answer.ext_fields)) == (ResponseCode.SUCCESS, {})
    again = await client.pop_all(topic, 2)
    assert sorted(message.body for message in again) == ["b", "d"]
    await client.batch_ack(again)
    assert await client.is_over(topic)
    empty = await client.ask(RequestCode.BATCH_ACK_MESSAGE)
    assert empty.code == ResponseCode.NO_MESSAGE


async def test_a_changed_message_comes_at_its_new_time_unless_its_new_handle_is_acknowledged(client, topic):
    await client.send(topic, "early", "done")
    popped = await client.pop(topic)
    early, done = sorted(popped.messages, key=lambda message: message.body, reverse=True)
    changed = await client.change(early, SHORT_MS)
    assert changed.handle.pop_ms > early.handle.pop_ms
    assert changed.handle.revive_queue_id == early.handle.revive_queue_id
    await client.ack_all([await client.change(done, SHORT_MS)])
    (again,) = await client.pop_all(topic, 1)
    assert (again.body, again.record.reconsume_times) == ("early", 1)
    await client.ack_all([again])
    assert await client.is_over(topic)


async def test_a_suspended_message_is_not_counted(client, topic):
    await client.send(topic, "a")
    (message,) = (await client.pop(topic)).messages
    await client.change(message, SHORT_MS, suspend="true")
    (again,) = await client.pop_all(topic, 1)
    assert again.record.reconsume_times == 0
    await client.ack_all([again])


async def test_a_pop_that_waits_is_woken_by_a_message(client, topic):
    await client.pop(topic)
    found = []

    async def wait(queue_id):
        found.append(await client.pop(topic, pollTime=60_000, queueId=queue_id))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, -1)
        await waiting(client, topic, -1)
        await client.send(topic, "a", queue_id=3)
    assert found[0].bodies == ["a"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 2)
        await waiting(client, topic, 2)
        await client.send(topic, "other", queue_id=1)
        await client.send(topic, "b", queue_id=2)
    assert found[1].bodies == ["b"]


async def waiting(client: PopClient, topic: str, queue_id: int) -> None:
    """Until one pop waits for a key."""
    fields = {"consumerGroup": "G", "topic": topic, "queueId": queue_id}
    with trio.fail_after(30):
        while True:
            answer = await client.ask(RequestCode.POLLING_INFO, fields)
            if answer.ext_fields["pollingNum"] == "1":
                return
            await trio.sleep(0.02)


async def test_a_pop_that_waits_is_woken_by_a_message_that_is_given_again(client, topic):
    await client.send(topic, "a")
    await client.pop(topic, invisibleTime=SHORT_MS)
    again = await client.pop(topic, pollTime=55_000)
    assert again.bodies == ["a"]
    await client.ack_all(again.messages)


async def test_a_pop_that_waits_in_vain_is_answered_when_its_time_is_over(client, topic):
    answer = await client.pop(topic, pollTime=1000, invisibleTime=30_000)
    assert (answer.code, answer.answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert int(answer.fields["invisibleTime"]) == 30_000
    assert answer.fields["msgOffsetInfo"] == answer.fields["startOffsetInfo"] == ""


async def test_a_filter_takes_its_tags_and_passes_over_the_rest(client, topic):
    for index, tag in enumerate("abcab"):
        await client.send(topic, f"{tag}{index}", TAGS=tag)
    popped = await client.pop(topic, exp="a || c")
    assert popped.bodies == ["a0", "a3", "c2"]
    assert {message.handle.start_offset for message in popped.messages} == {0}
    assert (await client.pop(topic)).bodies in ([], ["b4"])
    await client.ack_all(popped.messages)
    await client.send(topic, "x", TAGS="x")
    none = await client.pop(topic, exp="a")
    assert none.code == ResponseCode.POLLING_TIMEOUT


async def test_where_a_new_group_begins(client, topic):
    await client.send(topic, *"abc")
    assert (await client.pop(topic, "FromMin", initMode=0)).bodies == ["a", "b", "c"]
    # The queue begins in memory: RocketMQ then gives all, too.
    assert (await client.pop(topic, "FromMax", initMode=1)).bodies == ["a", "b", "c"]


async def test_one_queue_alone_is_popped_by_its_id(client, topic):
    for queue_id in range(2):
        await client.send(topic, f"{queue_id}", queue_id=queue_id)
    assert (await client.pop(topic, queueId=1)).bodies == ["1"]
    assert (await client.pop(topic, queueId=1)).bodies == []
    assert (await client.pop(topic)).bodies == ["0"]


async def test_groups_have_each_message(client, topic):
    await client.send(topic, "a")
    for group in ("G1", "G2"):
        popped = await client.pop(topic, group)
        assert popped.bodies == ["a"]
        await client.ack_all(popped.messages)


# -- in order ------------------------------------------------------------------------------------------------


async def test_in_order_a_queue_is_blocked_until_all_is_acknowledged(client, topic):
    await client.send(topic, *"abcd")
    first = await client.pop(topic, order="true", maxMsgNums=2)
    assert (first.bodies, first.fields["reviveQid"]) == (["a", "b"], "999")
    assert first.fields["orderCountInfo"] == "0 0 0"
    blocked = await client.pop(topic, order="true")
    assert (blocked.code, blocked.fields["orderCountInfo"]) == (ResponseCode.POLLING_TIMEOUT, "")
    await client.ack_all(first.messages[:1])
    assert (await client.pop(topic, order="true")).bodies == []
    await client.ack_all(first.messages[1:])
    rest = await client.pop(topic, order="true")
    assert (rest.bodies, rest.fields["startOffsetInfo"]) == (["c", "d"], "0 0 2")
    await client.ack_all(rest.messages)
    assert (await client.pop(topic, order="true")).bodies == []


async def test_in_order_what_is_left_is_given_again_with_its_count(client, topic):
    await client.send(topic, *"abc")
    first = await client.pop(topic, order="true", invisibleTime=1000, maxMsgNums=2)
    await client.ack_all(first.messages[:1])
    second = await client.pop(topic, order="true", pollTime=30_000)
    assert second.bodies == ["b", "c"]
    assert second.fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"
    assert second.fields["startOffsetInfo"] == "0 0 1"
    stale = await client.ack(first.messages[1])
    assert stale.code == ResponseCode.SUCCESS
    assert (await client.pop(topic, order="true")).bodies == []
    await client.ack_all(second.messages)


async def test_in_order_an_acknowledgement_wakes_a_pop_that_waits(client, topic):
    await client.send(topic, *"ab")
    first = await client.pop(topic, order="true", maxMsgNums=1)
    found = []

    async def wait():
        found.append(await client.pop(topic, order="true", pollTime=60_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await waiting(client, topic, -1)
        await client.ack_all(first.messages)
    assert found[0].bodies == ["b"]


async def test_in_order_the_same_attempt_is_given_the_same_messages(client, topic):
    await client.send(topic, *"ab")
    first = await client.pop(topic, order="true", attemptId="one")
    second = await client.pop(topic, order="true", attemptId="one")
    assert first.bodies == second.bodies == ["a", "b"]
    assert second.fields["orderCountInfo"] == "0 0 0"
    assert (await client.pop(topic, order="true", attemptId="two")).bodies == []
    await client.ack_all(second.messages)


async def test_in_order_a_change_keeps_the_pop_time(client, topic):
    await client.send(topic, "a", "b")
    popped = await client.pop(topic, order="true", maxMsgNums=1)
    changed = await client.change(popped.messages[0], 1000)
    assert changed.handle.pop_ms == popped.messages[0].handle.pop_ms
    assert changed.handle.revive_queue_id == 999
    again = await client.pop(topic, order="true", pollTime=30_000)
    assert again.bodies == ["a", "b"]
    assert again.fields["orderCountInfo"] == "0 qo0%0 1;0 0 0"
    await client.ack_all(again.messages)


async def test_in_order_an_offset_that_was_not_given_is_refused(client, topic):
    await client.send(topic, *"ab")
    popped = await client.pop(topic, order="true", maxMsgNums=1)
    wrong = await client.ack(popped.messages[0], offset=1)
    assert wrong.code == ResponseCode.MESSAGE_ILLEGAL
    await client.ack_all(popped.messages)


# -- refusals ------------------------------------------------------------------------------------------------


ZEROS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


async def test_pops_that_are_refused(client, topic):
    late_ms = time.time_ns() // 1_000_000 - 10_000
    cases = [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER, "the broker[127.0.0.1] pop message's num is"),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER, f"queueId[4] is illegal, topic:[{topic}]"),
        ({"exp": "x >", "expType": "SQL92"}, None, None),
        ({"bornTime": late_ms, "pollTime": 1000}, ResponseCode.POLLING_TIMEOUT, "the broker[127.0.0.1] pop"),
    ]
    unknown = await client.pop("Unknown")
    assert (unknown.code, unknown.fields) == (ResponseCode.TOPIC_NOT_EXIST, ZEROS)
    assert "topic[Unknown] not exist, apply first please!" in (unknown.answer.remark or "")
    for changes, code, remark in cases:
        refused = await client.pop(topic, **changes)
        if code is not None:
            assert (refused.code, (refused.answer.remark or "")[: len(remark)]) == (code, remark)
        else:
            assert refused.code in {ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR}
        assert refused.fields == ZEROS


async def test_a_group_that_is_not_known_is_made(client, topic):
    await client.send(topic, "a")
    assert (await client.pop(topic, "Unheard")).bodies == ["a"]
    answer = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "Unheard"})
    assert (answer.code, json.loads(bytes(answer.body))["groupName"]) == (ResponseCode.SUCCESS, "Unheard")


async def test_the_settings_of_a_group_that_is_not_known_are_those_of_a_new_one(client):
    answer = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "NeverSeen"})
    group = json.loads(bytes(answer.body))
    assert (answer.code, group["groupName"], group["retryMaxTimes"]) == (0, "NeverSeen", 16)
    assert group.get("consumeMessageOrderly", False) is False


async def test_acknowledgements_that_are_refused(client, topic):
    await client.send(topic, "a")
    (message,) = (await client.pop(topic)).messages
    cases = [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"queueId": -1}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 7}, ResponseCode.NO_MESSAGE),
        ({"extraInfo": "0 1"}, ResponseCode.SYSTEM_ERROR),
    ]
    for changes, code in cases:
        refused = await client.ack(message, **changes)
        assert (refused.code, dict(refused.ext_fields)) == (code, {}), changes
    await client.ack_all([message, message])


async def test_an_acknowledgement_that_is_too_late_is_answered_with_success(client, topic):
    await client.send(topic, "a")
    (message,) = (await client.pop(topic, invisibleTime=SHORT_MS)).messages
    (again,) = await client.pop_all(topic, 1)
    await client.ack_all([message, again])
    assert await client.is_over(topic)


async def test_changes_that_are_refused(client, topic):
    await client.send(topic, "a")
    (message,) = (await client.pop(topic)).messages
    cases = [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": 1}, ResponseCode.NO_MESSAGE),
    ]
    for changes, code in cases:
        fields = {**message.fields(), "invisibleTime": 1000, **changes}
        refused = await client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        assert refused.code == code, changes
        assert refused.ext_fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
    await client.ack_all([message])


# -- dead letters, peeks, notifications, modes ---------------------------------------------------------------


async def test_a_popped_message_is_sent_to_the_dead_letters_of_its_group(client, topic, broker):
    await client.send(topic, "a")
    await client.pop(topic, "Dead", invisibleTime=SHORT_MS)
    (message,) = await client.pop_all(topic, 1, "Dead")
    fields = {
        "group": "Dead", "offset": message.record.physical_offset, "delayLevel": -1,
        "originMsgId": message.properties["UNIQ_KEY"], "originTopic": message.real_topic,
        "unitMode": "false", "maxReconsumeTimes": 0,
    }  # fmt: skip
    answer = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    assert answer.code == ResponseCode.SUCCESS
    await client.ack_all([message])
    await trio.to_thread.run_sync(
        lambda: wait_until(lambda: max_offset(broker, "%DLQ%Dead") == 1, "the dead letter is there")
    )


async def test_a_peek_moves_nothing(client, topic):
    await client.send(topic, *"abc")
    fields = {"consumerGroup": "Peeking", "topic": topic, "queueId": 0, "maxMsgNums": 2}
    found = await client.ask(RequestCode.PEEK_MESSAGE, fields)
    # What is left includes what the answer has.
    assert (found.code, found.ext_fields) == (ResponseCode.SUCCESS, {**ZEROS, "restNum": "3"})
    assert [record.body for record in records_of(found.whole_body)] == [b"a", b"b"]
    popped = await client.pop(topic, "Peeking")
    assert popped.bodies == ["a", "b", "c"]
    empty = await client.ask(RequestCode.PEEK_MESSAGE, fields)
    assert (empty.code, empty.ext_fields["restNum"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    assert not empty.whole_body
    await client.ack_all(popped.messages)


async def test_a_notification_says_that_there_is_a_message(client, topic):
    await client.pop(topic)

    async def ask(poll_ms):
        now_ms = time.time_ns() // 1_000_000
        fields = {
            "consumerGroup": "G",
            "topic": topic,
            "queueId": -1,
            "pollTime": poll_ms,
            "bornTime": now_ms,
        }
        answer = await client.ask(RequestCode.NOTIFICATION, fields)
        assert answer.ext_fields["pollingFull"] == "false"
        return answer.code, answer.ext_fields["hasMsg"]

    assert await ask(500) == (ResponseCode.SUCCESS, "false")
    found = []

    async def wait():
        found.append(await ask(50_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await client.send(topic, "a")
    assert found == [(ResponseCode.SUCCESS, "true")]
    assert await ask(500) == (ResponseCode.SUCCESS, "true")
    popped = await client.pop(topic)
    assert popped.bodies == ["a"]
    await client.ack_all(popped.messages)


async def test_request_modes_of_groups(client, topic):
    mode = {"topic": topic, "consumerGroup": "Modes", "mode": "POP", "popShareQueueNum": -1}

    async def set_mode(**changes):
        body = json.dumps({**mode, **changes}).encode()
        answer = await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
        return answer.code, answer.remark

    assert await set_mode() == (0, None)
    answer = await client.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    assert json.loads(bytes(answer.body))["messageRequestModeMap"][topic] == {"Modes": mode}
    assert await set_mode(topic="%RETRY%Modes") == (16, "retry topic is not allowed to set mode")
    assert await set_mode(topic="Unknown") == (17, "topic[Unknown] not exist")
    assert (await set_mode(consumerGroup="ModesNew"))[0] == 0

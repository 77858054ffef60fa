"""Messages that a consumer could not consume: retry topic, delay levels, dead-letter topic, refusals."""

import json

import pytest
import trio

from tests.broker.sending import GROUP, TOPIC, Sending, properties_of
from tests.remoting.recorded import VECTORS
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.topics import TopicConfig, TopicTable
from trioha.remoting.codes import ResponseCode, Version
from trioha.store.put_status import PutStatus
from trioha.store.record import offset_message_id

RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
SEE_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
LEVELS = " ".join(["1s"] * 18)


@pytest.fixture
async def broker(tmp_path, wall):
    return Sending(tmp_path, wall, levels=LEVELS)


async def test_a_failed_message_is_delivered_to_the_retry_topic_when_its_delay_is_over(
    broker, nursery, autojump_clock
):
    nursery.start_soon(broker.delivery.run)
    await broker.send(b"body", properties={"TAGS": "t", "KEYS": "k"})
    answer = await broker.send_back()
    assert (answer.code, answer.remark, answer.ext_fields) == (ResponseCode.SUCCESS, None, {})
    await trio.sleep(2)
    first, waiting, retried = broker.records()
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    assert (retried.topic, retried.queue_id, retried.reconsume_times) == (RETRY, 0, 1)
    assert (retried.body, retried.flag, retried.sys_flag) == (first.body, first.flag, first.sys_flag)
    assert (retried.born_timestamp_ms, retried.born_host) == (first.born_timestamp_ms, first.born_host)
    assert properties_of(retried) == {
        "TAGS": "t", "KEYS": "k", "CLUSTER": "cluster", "WAIT": "false", "DELAY": "3", "RETRY_TOPIC": TOPIC,
        "ORIGIN_MESSAGE_ID": first.message_id, "REAL_TOPIC": RETRY, "REAL_QID": "0",
    }  # fmt: skip


async def test_every_retry_waits_a_level_longer_and_names_the_first_message(broker, nursery, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await broker.send()
    levels = []
    for number in range(1, 5):
        last = broker.records()[-1]
        await broker.send_back(last.physical_offset)
        levels.append(broker.records()[-1].queue_id + 1)
        await trio.sleep(2)
        retried = broker.records()[-1]
        assert (retried.topic, retried.reconsume_times) == (RETRY, number)
        assert properties_of(retried)["ORIGIN_MESSAGE_ID"] == broker.records()[0].message_id
        assert properties_of(retried)["RETRY_TOPIC"] == TOPIC
    assert levels == [3, 4, 5, 6]


async def test_messages_sent_back_are_counted_by_group_and_first_topic(broker, nursery, autojump_clock):
    await broker.send()
    await broker.send_back(delay_level=1)
    # Also that of a retry, which is in another topic.
    await broker.send_back(broker.records()[-1].physical_offset, delay_level=1)
    await broker.send_back(1 << 40)
    assert broker.sent_back == [(GROUP, TOPIC)] * 2


async def test_nothing_is_sent_back_to_a_broker_without_write_permission(broker, autojump_clock):
    await broker.send()
    broker.send_back_processor.configure(broker_permission=4)
    answer = await broker.send_back()
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[192.0.2.1] sending message is forbidden"
    broker.send_back_processor.configure(broker_permission=6)
    assert (await broker.send_back()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (5, 5), (99, 18), (0, 3)])
async def test_the_consumer_may_choose_the_delay_level(broker, asked, given, autojump_clock):
    await broker.send()
    await broker.send_back(delay_level=asked)
    assert broker.records()[-1].queue_id == given - 1


@pytest.mark.parametrize(
    ("reconsume_times", "fields", "topic"),
    [
        (15, {}, "SCHEDULE_TOPIC_XXXX"),
        (16, {}, DEAD),
        (0, {"delay_level": -1}, DEAD),
        (1, {"maxReconsumeTimes": "2"}, "SCHEDULE_TOPIC_XXXX"),
        (2, {"maxReconsumeTimes": "2"}, DEAD),
        # Without its own maximum, or from a client older than 3.4.9, the group's counts.
        (4, {"maxReconsumeTimes": None}, "SCHEDULE_TOPIC_XXXX"),
        (5, {"maxReconsumeTimes": None}, DEAD),
        (5, {"version": Version.V3_4_9 - 1}, DEAD),
        (5, {"version": Version.V3_4_9}, "SCHEDULE_TOPIC_XXXX"),
        (2**31 - 1, {}, DEAD),
    ],
)
async def test_after_its_retries_a_message_goes_to_the_dead_letter_topic(
    broker, reconsume_times, fields, topic, autojump_clock
):
    broker.groups.put(SubscriptionGroup(GROUP, retry_max_times=5))
    await broker.send(reconsume_times=reconsume_times)
    assert (await broker.send_back(**fields)).code == ResponseCode.SUCCESS
    stored = broker.records()[-1]
    assert stored.topic == topic
    if topic == DEAD:
        assert (stored.queue_id, broker.topics.find(DEAD).queue_nums) == (0, 1)
        assert properties_of(stored)["DELAY"] == "0"


async def test_retries_without_delay_levels_come_at_once(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, levels="")
    await broker.send()
    assert (await broker.send_back()).code == ResponseCode.SUCCESS
    assert broker.records()[-1].topic == RETRY


async def test_retry_queues_are_as_many_as_the_group_has(broker, nursery, autojump_clock):
    broker.groups.put(SubscriptionGroup(GROUP, retry_queue_nums=3))
    await broker.send()
    for _ in range(40):
        await broker.send_back(delay_level=1)
    queues = {properties_of(record)["REAL_QID"] for record in broker.records("SCHEDULE_TOPIC_XXXX")}
    assert queues == {"0", "1", "2"}
    assert broker.topics.find(RETRY).queue_nums == 3


async def test_unit_mode_is_a_flag_of_the_retry_topic(broker, autojump_clock):
    await broker.send()
    await broker.send_back(unitMode="true")
    assert broker.topics.find(RETRY).sys_flag == 2


async def test_a_group_without_retry_queues_drops_its_failed_messages(broker, autojump_clock):
    broker.groups.put(SubscriptionGroup(GROUP, retry_queue_nums=0))
    await broker.send()
    assert (await broker.send_back()).code == ResponseCode.SUCCESS
    assert len(broker.records()) == 1
    assert broker.topics.find(RETRY) is None


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"offset": 7777777}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, 7777777"),
        ({"offset": 3}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, 3"),
        ({"offset": -1}, ResponseCode.SYSTEM_ERROR, "look message by offset failed, -1"),
        (
            {"group": ""},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist,  {SEE_FAQ}",
        ),
        (
            {"group": "a b/c"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, a b/c {SEE_FAQ}",
        ),
        (
            {"group": "g" * 256},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {'g' * 256} {SEE_FAQ}",
        ),
    ],
)
async def test_a_message_that_cannot_be_retried_is_refused(broker, fields, code, remark, autojump_clock):
    await broker.send()
    answer = await broker.send_back(fields.pop("offset", 0), **fields)
    assert (answer.code, answer.remark) == (code, remark)
    assert len(broker.records()) == 1
    assert broker.groups.entries.keys() <= {GROUP}


async def test_a_group_is_not_made_where_groups_are_not(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, auto_create=False)
    await broker.send()
    answer = await broker.send_back()
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.topics.find(RETRY) is None


@pytest.mark.parametrize("name", [RETRY, DEAD])
async def test_a_topic_that_may_not_be_written_is_not(broker, name, autojump_clock):
    broker.topics.put(TopicConfig(name, 1, 1, 4))
    await broker.send()
    answer = await broker.send_back(delay_level=-1)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden",
    )  # fmt: skip


async def test_a_refused_put_is_answered_with_its_status(broker, autojump_clock):
    await broker.send()
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    answer = await broker.send_back()
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")


async def test_a_slave_makes_neither_topics_nor_groups(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, is_slave=True)
    broker.put()
    answer = await broker.send_back()
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
    assert (broker.topics.find(RETRY), broker.groups.find(GROUP)) == (None, None)


async def test_the_answer_waits_until_a_new_topic_is_in_its_file(broker, nursery, autojump_clock):
    await broker.send()
    topics = broker.send_back_processor._topics = broker.retries._topics = TopicTable()
    answers = []

    async def send_back():
        answers.append(await broker.send_back())

    nursery.start_soon(send_back)
    await trio.sleep(1)
    assert answers == []
    topics.note_written(topics.changes.offset)
    await trio.sleep(1)
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]


# -- sends to the retry topic: how clients retry where the broker has refused -----------------------------


@pytest.mark.parametrize(
    ("version", "in_order", "reconsume_times", "topic"),
    [
        (Version.V4_9_7, False, 15, RETRY),
        (Version.V4_9_7, False, 16, DEAD),
        (Version.V5_3_3, False, 16, RETRY),
        (Version.V5_3_3, False, 17, DEAD),
        (Version.V5_3_3, True, 15, DEAD),
        (Version.V5_3_3, True, 16, DEAD),
        (Version.V4_9_7, True, 15, RETRY),
    ],
)
async def test_a_send_to_the_retry_topic_counts_its_retries(
    broker, version, in_order, reconsume_times, topic
):
    if in_order:
        broker.ordered.add(GROUP)
    answer = await broker.send(
        topic=RETRY, queue_id=-1, reconsume_times=reconsume_times, max_reconsume_times=16, version=version,
        properties={"RETRY_TOPIC": TOPIC, "DELAY": "18"},
    )  # fmt: skip
    assert answer.code == ResponseCode.SUCCESS
    (stored,) = broker.records()
    assert (stored.topic, stored.reconsume_times) == (
        topic if topic == DEAD else "SCHEDULE_TOPIC_XXXX", reconsume_times,
    )  # fmt: skip
    assert properties_of(stored)["RETRY_TOPIC"] == TOPIC
    if topic == DEAD:
        assert properties_of(stored)["DELAY"] == "-1"
        assert broker.topics.find(DEAD).is_readable
    else:
        assert properties_of(stored)["REAL_TOPIC"] == RETRY


async def test_a_send_to_the_retry_topic_of_an_unknown_group_is_refused(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, auto_create=False)
    answer = await broker.send(topic=RETRY, queue_id=0)
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {GROUP} {SEE_FAQ}",
    )  # fmt: skip
    assert broker.log.is_empty


# -- recorded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store-4.9.7", "store-5.3.3"])
async def test_a_retry_has_the_properties_that_a_real_broker_gave_it(broker, name, autojump_clock):
    described = json.loads((VECTORS / name / "expected.json").read_text())["messages"]
    (real,) = [one for one in described if one.get("topic") == "SCHEDULE_TOPIC_XXXX" and one["queueId"] == 2]
    (first,) = [
        one for one in described
        if one.get("topic") == "VecA"
        and one["properties"].get("UNIQ_KEY") == real["properties"]["UNIQ_KEY"]
    ]  # fmt: skip
    raw = "".join(f"{key}\x01{value}\x02" for key, value in first["properties"].items()).encode()
    offset = broker.put(topic="VecA", properties=raw)
    await broker.send_back(offset, group="vec_group")
    mine = properties_of(broker.records()[-1])
    # Only the place in the log, which the id is made of, is another.
    assert mine.pop("ORIGIN_MESSAGE_ID") == offset_message_id(broker.log.store_host.packed, offset)
    assert real["properties"].pop("ORIGIN_MESSAGE_ID") == first["msgId"]
    assert mine == real["properties"]

"""Pops, acknowledgements and what comes again, in virtual time."""

import json
from base64 import b64encode

import pytest
import trio
import trio.lowlevel
from attrs import evolve

from tests.broker.consuming import Waiting
from tests.broker.pop.popping import GROUP, RETRY, REVIVE, TOPIC, Popped, Popping, bodies, popped
from tests.store.support import VECTORS
from trioha.broker.pop.handed_out import SPARE_SECONDS, HandedOut
from trioha.broker.pop.records import REVIVE_GROUP
from trioha.broker.timer_messages import delivered
from trioha.metadata.consumer_orders import ConsumerOrders
from trioha.metadata.pretty_json import encode_pretty, parse_pretty
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.pop_handle import PopHandle, PopSource
from trioha.store.message_properties import parse_properties
from trioha.store.put_status import PutStatus
from trioha.store.record import decode_record
from trioha.store.topics import TIMER_TOPIC


@pytest.fixture
async def broker(tmp_path, wall):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        yield broker


async def test_a_pop_hands_out_messages_of_all_queues_and_moves_the_group_past_them(broker, autojump_clock):
    broker.put(b"0", b"1", b"2", queue_id=0)
    broker.put(b"3", b"4", queue_id=1)
    answer = await broker.pop(messages=4)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert answer.ext_fields["restNum"] == "1"
    first = popped(answer)
    assert len(first) == 4
    second = await broker.take()
    assert bodies(first + second) == [b"0", b"1", b"2", b"3", b"4"]
    answer = await broker.pop()
    assert (answer.code, answer.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    await trio.sleep(1)
    assert (broker.committed(0), broker.committed(1)) == (3, 2)


async def test_what_is_acknowledged_does_not_come_again_and_the_rest_does(broker, autojump_clock):
    broker.put(*[b"%d" % number for number in range(6)])
    found = await broker.take(invisible_ms=20_000)
    for one in found[:4]:
        assert (await broker.ack(one)).code == ResponseCode.SUCCESS
    await trio.sleep(19)
    assert await broker.take() == []
    await trio.sleep(6)
    again = await broker.take()
    assert bodies(again) == [b"4", b"5"]
    for one in again:
        properties = parse_properties(one.record.properties_raw)
        assert one.record.topic == TOPIC
        assert one.record.reconsume_times == 1
        assert properties["ORIGIN_GROUP"] == GROUP
        assert properties["1ST_POP_TIME"] == str(found[0].handle.pop_ms)
        assert one.topic == RETRY
        await broker.ack(one)
    await trio.sleep(60)
    assert await broker.take() == []
    assert broker.pops.revival.revived == 2
    assert broker.pops.revival.waiting == 0


async def test_a_changed_message_comes_at_its_new_time_only(broker, autojump_clock):
    broker.put(b"sooner", b"later", b"suspended")
    sooner, later, suspended = await broker.take(invisible_ms=20_000)
    assert (await broker.change(sooner, 5_000)).code == ResponseCode.SUCCESS
    assert (await broker.change(later, 60_000)).code == ResponseCode.SUCCESS
    await broker.change(suspended, 5_000, suspend="true")
    await trio.sleep(10)
    again = await broker.take(invisible_ms=600_000)
    assert {one.body: one.record.reconsume_times for one in again} == {b"sooner": 1, b"suspended": 0}
    await trio.sleep(30)
    assert await broker.take() == []
    await trio.sleep(25)
    assert bodies(await broker.take()) == [b"later"]


async def test_a_batch_of_acknowledgements(broker, autojump_clock):
    broker.put(*[b"%d" % number for number in range(4)])
    found = await broker.take()
    first = found[0].handle
    ack = {
        "c": GROUP, "t": TOPIC, "r": "0", "so": first.start_offset, "q": 0, "rq": first.revive_queue_id,
        "pt": first.pop_ms, "it": first.invisible_ms, "b": b64encode(bytes([0b1011])).decode(),
    }  # fmt: skip
    body = json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode()
    assert (await broker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body=body)).code == ResponseCode.SUCCESS
    assert (await broker.ask(RequestCode.BATCH_ACK_MESSAGE, {})).code == ResponseCode.NO_MESSAGE
    await trio.sleep(30)
    assert bodies(await broker.take()) == [b"2"]


async def test_tags_are_filtered_and_passed_over(broker, autojump_clock):
    for number in range(6):
        broker.put(b"%d" % number, tag="ab"[number % 2])
    answer = await broker.pop(exp="a", expType="TAG")
    assert answer.ext_fields["startOffsetInfo"] == "0 0 0"
    assert answer.ext_fields["msgOffsetInfo"] == "0 0 0,2,4"
    assert (await broker.pop(exp="a")).code == ResponseCode.POLLING_TIMEOUT
    await trio.sleep(1)
    assert broker.committed() == 6


async def test_a_waiting_pop_is_woken_by_a_message(broker, nursery, autojump_clock):
    waiting = Waiting(nursery)
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8, "invisibleTime": 20_000,
        "pollTime": 15_000, "bornTime": 0, "initMode": 0,
    }  # fmt: skip
    waiting.add("woken", broker.finish(broker.start(RequestCode.POP_MESSAGE, fields)))
    await trio.sleep(3)
    broker.put(b"new", queue_id=1)
    await trio.sleep(1)
    answer, at_s = waiting.answers["woken"]
    assert (bodies(popped(answer)), at_s) == ([b"new"], 3)
    waiting.add("in vain", broker.finish(broker.start(RequestCode.POP_MESSAGE, fields)))
    await trio.sleep(20)
    answer, at_s = waiting.answers["in vain"]
    assert (answer.code, at_s) == (ResponseCode.POLLING_TIMEOUT, pytest.approx(4 + 14.95))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nope"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"messages": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"bornTime": 1, "pollTime": 1}, ResponseCode.POLLING_TIMEOUT),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"exp": "a > 1", "expType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
        ({"group": "g" * 255}, ResponseCode.INVALID_PARAMETER),
        ({"invisible_ms": 4 * 24 * 3_600_000}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_pops_that_are_refused(broker, fields, code, autojump_clock):
    broker.put(b"message")
    answer = await broker.pop(**fields)
    assert answer.code == code
    assert answer.ext_fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


async def test_acknowledgements_that_are_refused(broker, autojump_clock):
    broker.put(b"message")
    (one,) = await broker.take()
    good = one.handle
    one.handle = evolve(good, queue_offset=5)
    assert (await broker.ack(one)).code == ResponseCode.NO_MESSAGE
    one.handle = evolve(good, revive_queue_id=8)
    assert (await broker.ack(one)).code == ResponseCode.MESSAGE_ILLEGAL
    one.handle = evolve(good, queue_id=9)
    assert (await broker.ack(one)).code == ResponseCode.MESSAGE_ILLEGAL
    one.handle = good
    # A RocketMQ broker answers 0 here.
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    assert (await broker.ack(one)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.puts.refusal = None
    await trio.sleep(30)
    assert bodies(await broker.take()) == [b"message"]


async def test_a_slave_refuses_pops_and_acknowledgements(tmp_path, wall, autojump_clock):
    slave = Popping(tmp_path, wall, is_slave=True)
    slave.put(b"message")
    assert (await slave.pop()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    one = Popped(slave.store_record(), PopHandle(0, 1, 2, 0, PopSource.TOPIC, "broker-a", 0, 0))
    assert (await slave.ack(one)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await slave.change(one, 1000)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert slave.committed() is None


async def test_nothing_is_handed_out_whose_check_point_is_refused(broker, autojump_clock):
    broker.put(b"message")
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    assert (await broker.pop()).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.puts.refusal = None
    assert bodies(await broker.take()) == [b"message"]


# -- slaves of a SYNC_MASTER ---------------------------------------------------------------------------------


async def test_an_acknowledgement_is_answered_when_a_slave_has_it(tmp_path, wall, nursery, autojump_clock):
    broker = Popping(tmp_path, wall, copies=1)
    answers = []

    async def acknowledge(one):
        answers.append((await broker.ack(one)).code)

    broker.put(b"0", b"1")
    broker.acknowledge()
    async with broker.running():
        async with trio.open_nursery() as pop:
            found = []

            async def take():
                found.extend(await broker.take())

            pop.start_soon(take)
            await trio.sleep(1)
            # Nothing is handed out before a slave has the check point.
            assert found == []
            broker.acknowledge()
        assert bodies(found) == [b"0", b"1"]
        nursery.start_soon(acknowledge, found[0])
        await trio.sleep(1)
        assert answers == []
        broker.acknowledge()
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert answers == [ResponseCode.SUCCESS]
        # The slave is late: the acknowledgement counts here all the same.
        begun_s = trio.current_time()
        assert (await broker.ack(found[1])).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert trio.current_time() - begun_s == 3.0
        broker.acknowledge()
        await trio.sleep(30)
        assert await broker.take() == []


async def test_acknowledgements_that_come_together_are_records_as_single_ones_are(broker, autojump_clock):
    broker.put(*[b"%d" % number for number in range(6)])
    found = await broker.take()
    await broker.ack(found[0])
    beyond = Popped(found[0].record, evolve(found[0].handle, queue_offset=7))
    answers = await broker.ack_run(found[1], beyond, *found[2:4])
    assert [answer.code for answer in answers] == [0, ResponseCode.NO_MESSAGE, 0, 0]
    # The first one is due at once: each is put by itself.
    due = Popped(found[4].record, evolve(found[4].handle, invisible_ms=0))
    assert [answer.code for answer in await broker.ack_run(due, found[4])] == [0, 0]
    broker.dispatch()
    timers = broker.store.reads.get("rmq_sys_wheel_timer", 0, 0).records
    _, single, *others = [decode_record(data) for data in timers]
    assert len(others) == 4
    for one, record in zip(found[1:], others, strict=False):
        offset = one.handle.queue_offset
        assert json.loads(record.body) == json.loads(single.body) | {"ao": offset}
        properties = parse_properties(record.properties_raw)
        assert properties == parse_properties(single.properties_raw) | {"UNIQ_KEY": properties["UNIQ_KEY"]}
        assert properties["UNIQ_KEY"].split("@")[2] == str(offset)
        assert (record.born_host, record.store_host) == (single.born_host, single.store_host)
    await trio.sleep(30)
    assert bodies(await broker.take()) == [b"5"]


async def test_acknowledgements_that_come_together_are_answered_when_a_slave_has_them(
    tmp_path, wall, nursery, autojump_clock
):
    broker = Popping(tmp_path, wall, copies=1)
    broker.put(*[b"%d" % number for number in range(4)])
    async with broker.running():
        found = await broker.take()
        broker.acknowledge()
        waiting = Waiting(nursery)
        waiting.add("first", broker.ack_run(*found[:2]))
        await trio.sleep(1)
        assert waiting.answers == {}
        broker.acknowledge()
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        answers, _ = waiting.answers["first"]
        assert [answer.code for answer in answers] == [0, 0]
        # The slave is late.
        answers = await broker.ack_run(*found[2:])
        assert [answer.code for answer in answers] == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 2
        broker.acknowledge()
        await trio.sleep(30)
        assert await broker.take() == []


async def test_an_acknowledgement_without_a_slave_is_stored_here_alone(tmp_path, wall, autojump_clock):
    broker = Popping(tmp_path, wall, copies=1)
    broker.put(b"message")
    async with broker.running():
        (one,) = await broker.take()
        answer = await broker.ack(one)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "SLAVE_NOT_AVAILABLE")
        await trio.sleep(30)
        assert await broker.take() == []


# -- offsets and check points --------------------------------------------------------------------------------


async def test_an_offset_is_committed_when_its_check_point_is_safe(tmp_path, wall, autojump_clock):
    safe = [0]
    broker = Popping(tmp_path, wall, safe_offset=lambda: safe[0])
    async with broker.running():
        broker.put(b"0", b"1", b"2")
        assert len(await broker.take(messages=2)) == 2
        await trio.sleep(10)
        assert broker.committed() == 0
        # The next pop goes on all the same.
        assert bodies(await broker.take()) == [b"2"]
        safe[0] = broker.log.max_offset
        await trio.sleep(1)
        assert broker.committed() == 3


async def test_an_offset_that_is_reset_meanwhile_counts(tmp_path, wall, autojump_clock):
    safe = [0]
    broker = Popping(tmp_path, wall, safe_offset=lambda: safe[0])
    async with broker.running():
        broker.put(b"0", b"1", b"2")
        assert len(await broker.take()) == 3
        broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
        safe[0] = broker.log.max_offset
        await trio.sleep(1)
        assert bodies(await broker.take()) == [b"1", b"2"]


async def test_a_killed_master_hands_out_nothing_again_that_is_acknowledged(tmp_path, wall, autojump_clock):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        broker.put(*[b"%d" % number for number in range(6)])
        await broker.take(messages=1)
        await trio.sleep(1)
        broker.write_tables()
        # All of this is in the log alone.
        found = await broker.take()
        for one in found[:3]:
            assert (await broker.ack(one)).code == ResponseCode.SUCCESS
    broker.kill()
    again = Popping(tmp_path, wall)
    assert again.committed() == 1
    async with again.running():
        assert await again.take() == []
        assert again.committed() == 6
        await trio.sleep(30)
        assert bodies(await again.take()) == [b"0", b"4", b"5"]


async def test_a_reset_after_the_last_write_of_the_offsets_stays_over_a_restart(
    tmp_path, wall, autojump_clock
):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        broker.put(b"0", b"1", b"2")
        for one in await broker.take():
            await broker.ack(one)
        await trio.sleep(1)
        broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    broker.stop()
    again = Popping(tmp_path, wall)
    async with again.running():
        assert bodies(await again.take()) == [b"1", b"2"]


# -- revival -------------------------------------------------------------------------------------------------


async def test_what_was_given_again_is_not_given_again_by_a_master_that_knows_no_offset_of_the_revival(
    tmp_path, wall, autojump_clock
):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        broker.put(b"0", b"1")
        await broker.take()
        await trio.sleep(30)
        for one in await broker.take(invisible_ms=600_000):
            assert (await broker.ack(one)).code == ResponseCode.SUCCESS
    # No table was written: the next master has the log alone.
    broker.kill()
    again = Popping(tmp_path, wall)
    again.metadata.groups.find_or_create(GROUP)
    async with again.running():
        await trio.sleep(30)
        assert await again.take() == []
        assert again.pops.revival.revived == 0


async def test_check_points_of_unknown_groups_and_topics_are_kept(tmp_path, wall, autojump_clock):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        broker.put(b"0", b"1")
        found = await broker.take()
        await broker.ack(found[0])
    broker.kill()
    again = Popping(tmp_path, wall, queues=0)
    async with again.running():
        await trio.sleep(40)
        assert again.pops.revival.revived == 0
        again.metadata.topics.put(TopicConfig(TOPIC, 2, 2))
        again.metadata.groups.find_or_create(GROUP)
        await trio.sleep(60)
        assert bodies(await again.take()) == [b"1"]
        assert again.pops.revival.revived == 1


async def test_an_acknowledgement_counts_that_comes_before_its_check_point(tmp_path, wall, autojump_clock):
    """A real slave that is promoted late delivers first what its timer had not read."""
    broker = Popping(tmp_path, wall)
    async with broker.running():
        broker.put(b"0", b"1")
        found = await broker.take(invisible_ms=20_000)
        await broker.ack(found[0])
        broker.dispatch()
        *_, entry = broker.store.queues.find(TIMER_TOPIC, 0).entries(0, 9)
        waiting = decode_record(broker.log.read(entry.physical_offset, entry.size))
        broker.puts.put(delivered(waiting, now_ms=wall.now_ms(), enqueued_ms=wall.now_ms()))
    broker.kill()
    again = Popping(tmp_path, wall)
    again.metadata.groups.find_or_create(GROUP)
    async with again.running():
        await trio.sleep(30)
        assert bodies(await again.take()) == [b"1"]


async def test_the_offset_of_the_revival_waits_for_its_records(tmp_path, wall, autojump_clock):
    safe = [0]
    broker = Popping(tmp_path, wall, safe_offset=lambda: safe[0])
    async with broker.running():
        broker.put(b"0")
        await broker.take()
        await trio.sleep(30)
        assert broker.pops.revival.revived == 1
        assert broker.metadata.consumer_offsets.find(REVIVE_GROUP, REVIVE, 0) is None
        safe[0] = broker.log.max_offset
        await trio.sleep(2)
        # That of the check point, its acknowledgement comes after it.
        assert broker.metadata.consumer_offsets.find(REVIVE_GROUP, REVIVE, 0) == 0


async def test_a_refused_put_is_tried_again(broker, autojump_clock):
    broker.put(b"0")
    await broker.take()
    broker.puts.refuses = lambda message: message.topic == RETRY
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    await trio.sleep(40)
    assert broker.pops.revival.revived == 0
    broker.puts.refusal = None
    await trio.sleep(3)
    assert bodies(await broker.take()) == [b"0"]


@pytest.mark.parametrize("is_v2", [False, True])
async def test_retry_topics_of_both_names(tmp_path, wall, is_v2, autojump_clock):
    broker = Popping(tmp_path, wall, enable_retry_topic_v2=is_v2)
    async with broker.running():
        broker.put(b"0")
        await broker.take(invisible_ms=10_000)
        await trio.sleep(15)
        (one,) = await broker.take(invisible_ms=10_000)
        assert one.topic == (f"%RETRY%{GROUP}+{TOPIC}" if is_v2 else RETRY)
        # Once more: it stays in that topic.
        await trio.sleep(15)
        (again,) = await broker.take()
        assert (again.topic, again.record.reconsume_times) == (one.topic, 2)
        await broker.ack(again)
        await trio.sleep(60)
        assert await broker.take() == []


# -- messages in flight --------------------------------------------------------------------------------------


async def test_a_group_that_acknowledges_nothing_has_no_more_of_a_queue_than_the_limit_and_one_pop(
    tmp_path, wall, nursery, autojump_clock
):
    limits = {"enable_pop_message_threshold": True, "pop_inflight_message_threshold": 3}
    broker = Popping(tmp_path, wall, **limits)
    broker.put(*[b"%d" % number for number in range(12)])
    async with broker.running():
        found = [one for _ in range(2) for one in await broker.take(messages=2, queueId=0)]
        answer = await broker.pop(messages=2, queueId=0)
        assert (answer.code, answer.ext_fields["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "8")
        # Other groups and queues have limits of their own.
        broker.put(b"other", queue_id=1)
        assert bodies(await broker.take(messages=1, queueId=0, group="other")) == [b"0"]
        assert bodies(await broker.take(queueId=1)) == [b"other"]
        # A change leaves a message in flight, and what comes twice counts once; an acknowledgement wakes.
        await broker.change(found[3], 10_000)
        waiting = Waiting(nursery)
        waiting.add("woken", broker.take(messages=1, queueId=0, pollTime=15_000))
        await trio.sleep(1)
        assert waiting.answers == {}
        await broker.ack(found[0])
        await trio.sleep(0.1)
        assert bodies(waiting.answers["woken"][0]) == [b"4"]
        # Nobody acknowledges: their time is over, and they come again by the retry topic.
        assert await broker.take(queueId=0) == []
        await trio.sleep(30)
        again = await broker.take(messages=32, queueId=0)
        assert {b"1", b"2", b"3", b"4"} < {one.body for one in again}
        assert bodies(one for one in again if one.topic == TOPIC) == [
            b"10",
            b"11",
            *[b"%d" % n for n in range(5, 10)],
        ]


def test_seconds_without_messages_in_flight_are_forgotten():
    counted = HandedOut(3, now_ms=lambda: 0)
    queue = (GROUP, TOPIC, 0)
    for number in range(3 * SPARE_SECONDS):
        counted.add(queue, 1, due_ms=1000 * number)
        counted.remove(queue, 1, due_ms=1000 * number)
        counted.remove(queue, 5, due_ms=1000 * number)
    assert not counted.is_full(queue)
    assert len(counted._seconds) <= SPARE_SECONDS + 1
    assert not counted._due
    assert not counted._totals


# -- ordered pops --------------------------------------------------------------------------------------------


async def test_an_ordered_queue_is_blocked_until_its_messages_are_acknowledged(broker, autojump_clock):
    broker.put(*[b"%d" % number for number in range(4)])
    first = await broker.take(messages=2, order="true", queueId=0)
    assert [one.body for one in first] == [b"0", b"1"]
    assert await broker.take(order="true", queueId=0) == []
    await broker.ack(first[0])
    assert await broker.take(order="true", queueId=0) == []
    assert broker.committed() == 1
    await broker.ack(first[1])
    answer = await broker.pop(order="true", queueId=0)
    assert answer.ext_fields["orderCountInfo"] == "0 0 0"
    assert [one.body for one in popped(answer)] == [b"2", b"3"]
    await trio.sleep(21)
    answer = await broker.pop(order="true", queueId=0)
    assert answer.ext_fields["orderCountInfo"] == "0 qo0%2 1;0 qo0%3 1;0 0 1"
    assert answer.ext_fields["reviveQid"] == "999"
    assert broker.metadata.topics.find(RETRY) is None


async def _ordered_pop_at(broker, nursery):
    """The messages of an ordered pop that waits, and when it was answered, in seconds after now."""
    waiting, begun_s = Waiting(nursery), trio.current_time()
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 8, "invisibleTime": 10_000,
        "pollTime": 60_000, "bornTime": 0, "initMode": 0, "order": "true",
    }  # fmt: skip
    waiting.add("pop", broker.finish(broker.start(RequestCode.POP_MESSAGE, fields)))
    await trio.sleep(61)
    answer, at_s = waiting.answers["pop"]
    return popped(answer), at_s - begun_s


async def test_a_waiting_pop_is_woken_when_an_ordered_queue_is_blocked_no_more(
    broker, nursery, autojump_clock
):
    broker.put(b"0", b"1")
    await broker.take(order="true", invisible_ms=10_000)
    found, at_s = await _ordered_pop_at(broker, nursery)
    assert (bodies(found), at_s) == ([b"0", b"1"], pytest.approx(10, abs=0.002))
    # Times that were changed count.
    found = await broker.take(order="true", invisible_ms=50_000)
    await broker.change(found[0], 4_000)
    await broker.change(found[1], 7_000)
    found, at_s = await _ordered_pop_at(broker, nursery)
    assert (bodies(found), at_s) == ([b"0", b"1"], pytest.approx(7, abs=0.002))


async def test_a_master_that_starts_wakes_pops_when_the_time_of_a_former_one_is_over(
    tmp_path, wall, nursery, autojump_clock
):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        broker.put(b"message")
        await broker.take(order="true", invisible_ms=10_000)
    broker.stop()
    broker = Popping(tmp_path, wall)
    async with broker.running():
        found, at_s = await _ordered_pop_at(broker, nursery)
    assert (bodies(found), at_s) == ([b"message"], pytest.approx(10, abs=0.002))


async def test_the_same_attempt_is_given_the_same_messages(broker, autojump_clock):
    broker.put(b"0", b"1")
    first = await broker.pop(order="true", attemptId="a")
    again = await broker.pop(order="true", attemptId="a")
    assert bodies(popped(first)) == bodies(popped(again)) == [b"0", b"1"]
    assert again.ext_fields["orderCountInfo"] == "0 0 0"
    assert (await broker.pop(order="true", attemptId="b")).code == ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize("copied_offset", [0, 1])
async def test_a_promoted_slave_goes_on_with_the_orders_of_its_master(
    tmp_path, wall, copied_offset, autojump_clock
):
    broker = Popping(tmp_path, wall)
    broker.put(*[b"%d" % number for number in range(4)])
    async with broker.running():
        first = await broker.take(messages=2, order="true", queueId=0)
        await broker.ack(first[0])
        orders = dict(broker.metadata.consumer_orders.items())
    broker.kill()
    promoted = Popping(tmp_path, wall)
    promoted.metadata.consumer_orders.replace_all(orders)
    promoted.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, copied_offset)
    async with promoted.running():
        assert await promoted.take(order="true", queueId=0) == []
        assert (await promoted.ack(first[1])).code == 0
        assert [one.body for one in await promoted.take(order="true", queueId=0)] == [b"2", b"3"]


async def test_an_order_that_is_before_the_groups_offset_blocks_nothing(broker, autojump_clock):
    broker.put(*[b"%d" % number for number in range(4)])
    await broker.take(messages=2, order="true", queueId=0)
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 2)
    assert [one.body for one in await broker.take(order="true", queueId=0)] == [b"2", b"3"]


def test_orders_are_read_and_written_as_rocketmq_does():
    path = VECTORS / "pop-5.5.0/consumerOrderInfo.json"
    orders = ConsumerOrders(now_ms=lambda: 1795805660000)
    orders.load(parse_pretty(path.read_text()))
    order = orders.find(("PO", "PF", 0))
    assert (order.offsets, order.left, order.next_offset) == ((0, 1, 2, 3), (2, 3), 2)
    assert parse_pretty(encode_pretty(orders.snapshot()())) == parse_pretty(path.read_text())

"""Pops, acknowledgements and what comes again, in virtual time."""

import pytest
import trio

from tests.broker.pop.popping import GROUP, RETRY, TOPIC, Popping, bodies, popped
from trioha.remoting.codes import ResponseCode
from trioha.store.message_properties import parse_properties


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

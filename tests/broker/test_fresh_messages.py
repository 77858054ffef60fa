"""What a client asks for right after its SEND_OK is there, though queues and index are built later."""

import pytest

from tests.broker.consuming import GROUP, TOPIC, Broker
from tests.store.support import message
from trioha.metadata.groups import SubscriptionGroup
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.store.message_properties import encode_properties

V5 = int(Version.V5_3_3)
OF_QUEUE = {"topic": TOPIC, "queueId": "0"}


@pytest.fixture
async def broker(tmp_path):
    """With a message that was stored and not dispatched."""
    broker = Broker(tmp_path)
    store = broker.store
    store.commit_log.append(message(b"first", topic=TOPIC, properties=encode_properties({"KEYS": "k"})))
    yield broker
    store.close()


async def test_it_is_found_by_key(broker):
    fields = {"topic": TOPIC, "key": "k", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    assert (await broker.ask(RequestCode.QUERY_MESSAGE, fields)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.GET_MAX_OFFSET, {}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": str(2**60)}),
    ],
)
async def test_its_queue_ends_after_it(broker, code, fields):
    answer = await broker.ask(code, OF_QUEUE | fields, version=V5)
    assert answer.ext_fields == {"offset": "1"}


async def test_a_new_group_begins_with_it(broker):
    fields = OF_QUEUE | {"consumerGroup": "new"}
    answer = await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields, version=V5)
    assert (answer.code, answer.ext_fields) == (ResponseCode.SUCCESS, {"offset": "0"})


async def test_topic_and_group_count_it(broker):
    broker.metadata.groups.put(SubscriptionGroup(GROUP))
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 0)
    topic = await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, version=V5)
    assert b'"maxOffset":1' in topic.whole_body
    broker.store.commit_log.append(message(b"second", topic=TOPIC))
    group = await broker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}, version=V5)
    assert b'"brokerOffset":2' in group.whole_body

"""The consumer: queues, offsets, members and their shares; in virtual time."""

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from tests.client.fakes import NAME_SERVER, FakeNameServer, ServedBroker, fake_cluster, opened, route_body
from trioha.client.consumer import COMMIT_INTERVAL_S, Consumer, ConsumerSettings, Start, StartAt
from trioha.client.routes import TopicNotFoundError
from trioha.errors import PeerError
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request, response_to

TOPIC = "Orders"
FIRST = StartAt(Start.FIRST)


@pytest.fixture
async def world(tmp_path):
    """A broker with four queues behind a name server: the cluster and its broker."""
    async with (
        fake_cluster(ns=FakeNameServer(Orders=route_body({"broker-a": 4}))) as fake,
        trio.open_nursery() as nursery,
    ):
        broker = ServedBroker(tmp_path)
        broker.attach(fake, nursery)
        yield fake, broker
        nursery.cancel_scope.cancel()


def settings(**changes):
    return ConsumerSettings(TOPIC, **{"start_at": FIRST, **changes})


@asynccontextmanager
async def consuming(fake, **changes):
    """A consumer of the topic, from its first message on."""
    async with opened(fake) as cluster, Consumer(cluster, settings(**changes)) as consumer:
        yield consumer


async def receive(consumer, number, *, acknowledge=True):
    """Receive until there are at least this number of messages."""
    messages = []
    while len(messages) < number:
        batch = await consumer.receive()
        messages += batch
        if acknowledge:
            consumer.acknowledge(batch)
    return messages


def bodies(messages, queue_id=None):
    return [message.body for message in messages if queue_id is None or message.queue.queue_id == queue_id]


async def test_messages_that_are_there_and_those_that_come_are_received_in_order(world, autojump_clock):
    fake, broker = world
    for queue_id in range(4):
        broker.put(*(b"%d-%d" % (queue_id, number) for number in range(50)), queue_id=queue_id)
    async with consuming(fake) as consumer:
        messages = await receive(consumer, 200)
        for queue_id in range(4):
            assert bodies(messages, queue_id) == [b"%d-%d" % (queue_id, number) for number in range(50)]
        await trio.sleep(100)
        broker.put(b"new", queue_id=2)
        (message,) = await receive(consumer, 1)
        assert (message.body, message.queue.queue_id, message.queue_offset) == (b"new", 2, 50)
    # No member of any group, nothing committed.
    assert broker.count(RequestCode.HEART_BEAT) == 0
    assert broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) == 0


async def test_waiting_takes_one_pull_in_15_virtual_seconds_for_each_queue(world, autojump_clock):
    fake, broker = world
    async with consuming(fake):
        await trio.sleep(151)
    assert broker.count(RequestCode.PULL_MESSAGE) == 4 * 11


@pytest.mark.parametrize(("start", "expected"), [(Start.FIRST, 4), (Start.LAST, 1)])
async def test_a_consumer_starts_at_the_first_or_the_last_message(world, autojump_clock, start, expected):
    fake, broker = world
    broker.put(b"a", b"b", b"c")
    async with consuming(fake, start_at=StartAt(start)) as consumer:
        await consumer.positioned.wait()
        broker.put(b"d")
        messages = await receive(consumer, expected)
    assert bodies(messages) == [b"a", b"b", b"c", b"d"][-expected:]


async def test_a_consumer_starts_at_a_time(world, autojump_clock):
    fake, broker = world
    broker.put(b"old")
    for body in (b"new-1", b"new-2"):
        broker.put(body)
    times = [broker.broker.store.reads.store_timestamp(TOPIC, 0, offset) for offset in range(3)]
    start_at = StartAt(Start.TIME, times[1])
    expected = [body for body, at in zip((b"old", b"new-1", b"new-2"), times, strict=True) if at >= times[1]]
    async with consuming(fake, start_at=start_at) as consumer:
        assert bodies(await receive(consumer, len(expected))) == expected
    later = StartAt(Start.TIME, times[-1] + 60_000)
    async with consuming(fake, start_at=later, follow=False) as consumer:
        with pytest.raises(trio.EndOfChannel):
            await consumer.receive()


async def test_without_follow_a_consumer_ends_where_the_queues_end(world, autojump_clock):
    fake, broker = world
    broker.put(*(b"%d" % number for number in range(100)), queue_id=1)
    broker.put(b"x", queue_id=3)
    async with consuming(fake, follow=False) as consumer:
        messages = [message async for batch in consumer for message in batch]
    assert len(messages) == 101
    assert bodies(messages, 1) == [b"%d" % number for number in range(100)]


async def test_only_wanted_tags_are_received(world, autojump_clock):
    fake, broker = world
    for tag in ("a", "b", "c", "Aa", "BB"):
        broker.put(tag.encode(), tag=tag)
    # Aa and BB have one hash code: the broker sends both.
    async with consuming(fake, expression="b || Aa", follow=False) as consumer:
        messages = [message async for batch in consumer for message in batch]
    assert bodies(messages) == [b"b", b"Aa"]


async def test_a_topic_that_does_not_exist_is_an_error_or_waited_for(tmp_path, autojump_clock):
    name_server = FakeNameServer()
    async with fake_cluster(ns=name_server) as fake, trio.open_nursery() as nursery:
        broker = ServedBroker(tmp_path)
        broker.attach(fake, nursery)
        async with opened(fake) as cluster:
            with pytest.raises(TopicNotFoundError):
                async with Consumer(cluster, settings(follow=False)):
                    pass
            async with Consumer(cluster, settings(start_at=StartAt(Start.LAST))) as consumer:
                await trio.sleep(10)
                name_server.topics[TOPIC] = route_body({"broker-a": 4})
                broker.put(b"first")
                assert bodies(await receive(consumer, 1)) == [b"first"]
        nursery.cancel_scope.cancel()


async def test_a_group_continues_at_what_it_acknowledged(world, autojump_clock):
    fake, broker = world
    broker.put(*(b"%d" % number for number in range(10)))
    async with consuming(fake, group="g") as consumer:
        batch = await receive(consumer, 10, acknowledge=False)
        # Not in order: the first one is missing.
        consumer.acknowledge([*batch[:3], *batch[4:8]])
    assert broker.committed("g", 0) == 3
    async with consuming(fake, group="g") as consumer:
        assert bodies(await receive(consumer, 7)) == [b"%d" % number for number in range(3, 10)]
    assert broker.committed("g", 0) == 10


async def test_a_new_group_starts_at_the_last_message_and_stays_there(world, autojump_clock):
    fake, broker = world
    broker.put(b"before")
    async with consuming(fake, group="g", start_at=StartAt(Start.LAST)) as consumer:
        await consumer.positioned.wait()
    assert broker.committed("g", 0) == 1
    broker.put(b"between")
    async with consuming(fake, group="g", start_at=StartAt(Start.LAST)) as consumer:
        assert bodies(await receive(consumer, 1)) == [b"between"]


async def test_offsets_are_committed_every_5_virtual_seconds_if_they_moved(world, autojump_clock):
    fake, broker = world
    broker.put(b"a", b"b")
    async with consuming(fake, group="g") as consumer:
        await receive(consumer, 2)
        await trio.sleep(COMMIT_INTERVAL_S + 1)
        assert broker.committed("g", 0) == 2
        commits = broker.count(RequestCode.UPDATE_CONSUMER_OFFSET)
        await trio.sleep(10 * COMMIT_INTERVAL_S)
        assert broker.count(RequestCode.UPDATE_CONSUMER_OFFSET) == commits


async def test_members_share_the_queues_and_take_over_from_one_that_leaves(world, autojump_clock):
    fake, broker = world
    async with consuming(fake, group="g") as first:
        await first.positioned.wait()
        assert len(first.queues) == 4
        async with consuming(fake, group="g") as second:
            # The broker notifies both: no wait of 20 s.
            await trio.sleep(1)
            assert len(first.queues) == len(second.queues) == 2
            assert {*first.queues, *second.queues} == {*first.queues, *second.queues}
            for queue_id in range(4):
                broker.put(b"%d" % queue_id, queue_id=queue_id)
            received = bodies(await receive(first, 2)) + bodies(await receive(second, 2))
            assert sorted(received) == [b"0", b"1", b"2", b"3"]
        await trio.sleep(1)
        assert len(first.queues) == 4
        # What the second member acknowledged was committed when it left.
        for queue_id in range(4):
            broker.put(b"new-%d" % queue_id, queue_id=queue_id)
        assert sorted(bodies(await receive(first, 4))) == [b"new-%d" % number for number in range(4)]


async def test_a_consumer_survives_the_end_of_its_connections(world, autojump_clock):
    fake, broker = world
    broker.put(b"a")
    async with opened(fake) as cluster, Consumer(cluster, settings(group="g")) as consumer:
        assert bodies(await receive(consumer, 1)) == [b"a"]
        for address in (NAME_SERVER, "broker-a:10911"):
            fake.down.add(address)
            fake.cut(address)
        await trio.sleep(60)
        fake.down.clear()
        broker.put(b"b")
        assert bodies(await receive(consumer, 1)) == [b"b"]
        await trio.sleep(30)
        assert broker.broker.consumers.clients.consumers["g"].client_ids == [cluster.client_id]


async def test_an_application_that_does_not_acknowledge_stops_the_pulls(world, autojump_clock):
    fake, broker = world
    for queue_id in range(4):
        broker.put(*(b"%d" % number for number in range(200)), queue_id=queue_id)
    async with consuming(fake, unacknowledged_max=50, pull_messages_max=10) as consumer:
        batches = []
        with trio.move_on_after(100):
            while True:
                batches.append(await consumer.receive())
        received = sum(map(len, batches))
        assert 50 <= received <= 50 + 4 * 10
        for batch in batches:
            consumer.acknowledge(batch)
        await receive(consumer, 800 - received)


async def test_pulls_that_are_refused_end_a_consumer_that_does_not_follow(world, autojump_clock):
    fake, broker = world
    broker.put(b"a", b"b")
    groups = broker.broker.metadata.groups
    groups.put(evolve(groups.find_or_create("g"), consume_enable=False))
    with pytest.raises(PeerError, match="NO_PERMISSION"):
        async with consuming(fake, group="g", follow=False) as consumer:
            await consumer.receive()


async def test_a_refused_group_ends_a_consumer_that_does_not_follow(world, autojump_clock):
    fake, broker = world
    broker.put(b"message")

    def refuse(asked, peer):
        if asked.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return response_to(asked, ResponseCode.SYSTEM_ERROR, remark="no permission for the group")
        return broker(asked, peer)

    fake.servers["broker-a:10911"].handler = refuse
    async with consuming(fake, group="g", follow=False) as consumer:
        with pytest.raises(PeerError, match="no permission for the group"):
            await consumer.receive()


async def test_an_offset_beyond_the_queue_is_moved_into_it(world, autojump_clock):
    fake, broker = world
    broker.put(b"a", b"b")
    broker.broker.metadata.groups.find_or_create("g")
    broker.broker.metadata.consumer_offsets.commit("g", TOPIC, 0, 77)
    async with consuming(fake, group="g") as consumer:
        await consumer.positioned.wait()
        await trio.sleep(1)
        broker.put(b"c")
        assert bodies(await receive(consumer, 1)) == [b"c"]


async def test_queues_that_a_topic_gets_later_are_read_from_their_start(tmp_path, autojump_clock):
    name_server = FakeNameServer(Orders=route_body({"broker-a": 2}))
    async with fake_cluster(ns=name_server) as fake, trio.open_nursery() as nursery:
        broker = ServedBroker(tmp_path)
        broker.attach(fake, nursery)
        broker.put(b"old", queue_id=0)
        async with consuming(fake, start_at=StartAt(Start.LAST)) as consumer:
            await consumer.positioned.wait()
            broker.put(b"new", queue_id=3)
            name_server.topics[TOPIC] = route_body({"broker-a": 4})
            assert bodies(await receive(consumer, 1)) == [b"new"]
        nursery.cancel_scope.cancel()


# -- retries -------------------------------------------------------------------------------------------------


def with_retry_topic(fake, group="g"):
    """The name server knows the retry topic of a group."""
    fake.handlers[NAME_SERVER].topics[f"%RETRY%{group}"] = route_body({"broker-a": 1})


async def test_a_message_that_is_sent_back_is_received_again(world, autojump_clock):
    fake, broker = world
    broker.put(b"m0", b"m1", b"m2", tag="x")
    with_retry_topic(fake)
    async with consuming(fake, group="g", expression="x") as consumer:
        batch = await consumer.receive()
        await consumer.send_back(batch[1], delay_level=4)
        consumer.acknowledge((batch[0], batch[2]))
        (again,) = await consumer.receive()
        assert (again.body, again.topic, again.queue.topic) == (b"m1", TOPIC, "%RETRY%g")
        consumer.acknowledge((again,))
    assert broker.committed("g", 0) == 3
    assert broker.committed("g", 0, topic="%RETRY%g") == 1
    (sent_back,) = (
        command for command in broker.requests if command.code == RequestCode.CONSUMER_SEND_MSG_BACK
    )
    assert sent_back.ext_fields == {
        "offset": str(batch[1].physical_offset), "group": "g", "delayLevel": "4",
        "originMsgId": batch[1].message_id, "originTopic": TOPIC, "unitMode": "false",
        "maxReconsumeTimes": "16",
    }  # fmt: skip


async def test_a_retry_that_is_refused_leaves_the_message_unacknowledged(world, autojump_clock):
    fake, broker = world
    broker.put(b"m0", b"m1")
    broker.refuses_retries = True
    async with consuming(fake, group="g") as consumer:
        batch = await consumer.receive()
        consumer.acknowledge(batch[:1])
        with pytest.raises(PeerError, match=r"the retry of message 1 of Orders@broker-a:0 .*refused"):
            await consumer.send_back(batch[1])
    assert broker.committed("g", 0) == 1


@pytest.mark.parametrize("start_at", [StartAt(Start.LAST), StartAt(Start.TIME, 1 << 50)])
async def test_a_retry_topic_is_read_from_its_first_message(world, autojump_clock, start_at):
    fake, broker = world
    broker.put(b"old")
    with_retry_topic(fake)
    broker.put(b"retried", topic="%RETRY%g")
    async with consuming(fake, group="g", start_at=start_at) as consumer:
        assert bodies(await consumer.receive()) == [b"retried"]


async def test_a_retry_topic_that_comes_later_is_read_within_20_virtual_seconds(world, autojump_clock):
    fake, broker = world
    broker.put(b"m0")
    async with consuming(fake, group="g") as consumer:
        (message,) = await consumer.receive()
        await consumer.send_back(message)
        await trio.sleep(5)
        with_retry_topic(fake)
        with trio.fail_after(20):
            assert bodies(await consumer.receive()) == [b"m0"]


async def test_a_heartbeat_has_the_retry_topic_beside_the_topic(world, autojump_clock):
    fake, broker = world
    async with consuming(fake, group="g", expression="a||b"):
        group = broker.broker.consumers.clients.consumers["g"]
        expressions = {topic: found.expression for topic, found in group.subscriptions.items()}
    assert expressions == {TOPIC: "a||b", "%RETRY%g": "*"}


@pytest.mark.parametrize("is_acknowledged", [False, True])
async def test_a_group_whose_offsets_are_reset_continues_there(world, autojump_clock, is_acknowledged):
    fake, broker = world
    broker.put(*(b"%d" % number for number in range(5)))
    async with consuming(fake, group="g") as consumer:
        first = await receive(consumer, 5, acknowledge=is_acknowledged)
        await consumer.commit()
        began_s = trio.current_time()
        fields = {"topic": TOPIC, "group": "g", "timestamp": "0", "isForce": "true"}
        answer = await broker.broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        assert answer.code == ResponseCode.SUCCESS
        again = await receive(consumer, 5, acknowledge=False)
        # The pull that waits at the old end does not delay it.
        assert trio.current_time() - began_s < 1.0
        assert bodies(again) == bodies(first)
        assert len(consumer.queues) == 4
        await consumer.commit()
        assert broker.committed("g", 0) == 0
        consumer.acknowledge(again)
    assert broker.committed("g", 0) == 5


async def test_an_offset_that_is_reset_at_a_broker_of_5_is_committed_again(world, autojump_clock):
    """It says so to the next pull only, and refuses commits before that with SUCCESS."""
    fake, broker = world
    reset = set()

    def answer(asked, peer):
        queue = asked.ext_fields.get("queueId")
        if queue in reset and asked.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            return response_to(asked, ResponseCode.SUCCESS, remark="Offset has been previously reset")
        if queue in reset and asked.code == RequestCode.PULL_MESSAGE:
            reset.remove(queue)
            moved = {"nextBeginOffset": "0", "minOffset": "0", "maxOffset": "5", "suggestWhichBrokerId": "0"}
            return response_to(asked, ResponseCode.PULL_OFFSET_MOVED, ext_fields=moved)
        return broker(asked, peer)

    broker.put(*(b"%d" % number for number in range(5)))
    fake.servers["broker-a:10911"].handler = answer
    async with consuming(fake, group="g") as consumer:
        first = await receive(consumer, 5)
        await consumer.commit()
        assert broker.committed("g", 0) == 5
        reset.add("0")
        broker.broker.metadata.consumer_offsets.commit("g", TOPIC, 0, 0)
        assert bodies(await receive(consumer, 5)) == bodies(first)
    assert broker.committed("g", 0) == 5


@pytest.mark.parametrize("body", [b"", b"[]", b'{"offsetTable":[]}', b'{"offsetTable":{"q":5}}',
    b'{"offsetTable":{{"topic":"Orders","brokerName":"broker-a","queueId":0}:-5}}'])  # fmt: skip
async def test_a_reset_that_is_not_understood_changes_nothing(world, autojump_clock, body):
    fake, broker = world
    broker.put(b"0")
    async with consuming(fake, group="g") as consumer:
        await receive(consumer, 1)
        reset = request(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            ext_fields={"topic": TOPIC, "group": "g"},
            body=body,
            oneway=True,
        )
        (group,) = broker.broker.consumers.clients.consumers.values()
        for connection in group.members:
            fake.servers["broker-a:10911"].connections.push(connection, encode(reset), may_wait=True)
        broker.put(b"1")
        assert bodies(await receive(consumer, 1)) == [b"1"]

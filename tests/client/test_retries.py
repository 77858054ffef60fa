"""Retries on a real node: delays, the number of retries, and dead letters."""

import pytest
import trio

from tests.ports import free_port
from trioha.client.cluster import open_cluster
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.client.messages import Message
from trioha.client.producer import Producer

pytestmark = [pytest.mark.process]

FIRST = StartAt(Start.FIRST)


@pytest.fixture
def name_server(start_node):
    """The name server of a node with short delays."""
    address = f"127.0.0.1:{free_port()}"
    delays = {"messageDelayLevel": "1s 1s 1s 1s 1s 1s"}
    start_node(role="ASYNC_MASTER", namesrvAddr=address, **{"trioha.withNamesrv": "true"}, **delays)
    return address


async def test_a_message_is_retried_so_often_and_is_a_dead_letter_then(name_server):
    consumer_settings = ConsumerSettings("Orders", group="g", start_at=FIRST, reconsume_times_max=2)
    received = []
    with trio.fail_after(60):
        async with open_cluster(name_servers=(name_server,)) as cluster:
            async with Producer(cluster) as producer:
                for number in range(3):
                    await producer.send(Message("Orders", b"m%d" % number))
            async with Consumer(cluster, consumer_settings) as consumer:
                while len(received) < 5:
                    for message in await consumer.receive():
                        received.append((message.body, message.reconsume_times, message.topic))
                        if message.body == b"m1":
                            await consumer.send_back(message)
                        else:
                            consumer.acknowledge((message,))
            dead_settings = ConsumerSettings("%DLQ%g", start_at=FIRST)
            async with Consumer(cluster, dead_settings) as dead_letters:
                (dead,) = await dead_letters.receive()
    assert sorted(received) == [
        (b"m0", 0, "Orders"), (b"m1", 0, "Orders"), (b"m1", 1, "Orders"), (b"m1", 2, "Orders"),
        (b"m2", 0, "Orders"),
    ]  # fmt: skip
    assert (dead.body, dead.reconsume_times) == (b"m1", 3)

"""What `trioha.client` promises to a program that uses it."""

import math

import pytest
import trio

from tests.client.fakes import FakeNameServer, FakeSends, fake_cluster, opened, route_body
from trioha.client import Consumer, ConsumerSettings, Message, Producer, ProducerSettings, SendError
from trioha.errors import ConfigError

NAME_SERVER = "ns:9876"


def routes():
    return FakeNameServer(T=route_body({"a": 1}))


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"body": "text"}, r"write text\.encode\(\)"),
        ({"body": 5}, "write bytes"),
        ({"topic": b"T"}, "write its name"),
        ({"topic": ""}, "write its name"),
        ({"keys": "order-42"}, r"write keys=\('order-42',\)"),
        ({"keys": (42,)}, "write keys="),
        ({"properties": {"a": 1}}, "write str"),
        ({"properties": ["a"]}, "not a dict"),
        ({"tag": 5}, "tag"),
    ],
)
def test_a_field_of_another_type_is_refused_with_what_to_write(fields, hint):
    with pytest.raises(TypeError, match=hint):
        Message(**{"topic": "T", "body": b"x", **fields})


@pytest.mark.parametrize("place", ["", ";", (), "localhost", ("a:1", "b")])
def test_name_servers_that_cannot_be_ones_are_refused_at_the_call(place):
    with pytest.raises(ConfigError, match=r"(?i)host:port"):
        Producer(place)
    with pytest.raises(ConfigError, match=r"(?i)host:port"):
        Consumer(place, ConsumerSettings("T"))


async def test_a_producer_outside_of_its_block_says_how_it_is_used():
    with pytest.raises(RuntimeError, match="async with"):
        await Producer(NAME_SERVER).send(Message("T", b"x"))


async def test_a_lost_name_server_is_a_send_error_after_three_tries(autojump_clock):
    async with fake_cluster(ns=routes(), a=FakeSends()) as fake:
        fake.down.add(NAME_SERVER)
        async with opened(fake) as cluster, Producer(cluster) as producer:
            with pytest.raises(SendError, match="cannot connect") as refused:
                await producer.send(Message("T", b"x"))
    assert (refused.value.attempts, refused.value.status) == (3, "NO_ANSWER")


async def test_without_a_limit_a_send_waits_for_name_server_and_broker(autojump_clock):
    sends = FakeSends()
    results = []

    async def send(producer):
        results.append(await producer.send(Message("T", b"x")))

    async with fake_cluster(ns=routes(), a=sends) as fake:
        fake.down |= {NAME_SERVER, "a:10911"}
        patient = ProducerSettings(attempts_max=0, timeout_s=math.inf)
        async with (
            opened(fake) as cluster,
            Producer(cluster, patient) as producer,
            trio.open_nursery() as sending,
        ):
            sending.start_soon(send, producer)
            await trio.sleep(1000)
            assert [error.address for error in producer.failing] == [NAME_SERVER]
            fake.down.clear()
            await trio.sleep(5)
            assert list(producer.failing) == []
    assert [result.status for result in results] == ["PUT_OK"]
    assert sends.bodies == [b"x"]


async def test_a_producer_opens_and_closes_a_cluster_of_its_own(autojump_clock):
    async with Producer("127.0.0.1:1;127.0.0.1:2") as producer:
        assert producer._cluster.routes.source == "127.0.0.1:1;127.0.0.1:2"
    with pytest.raises(RuntimeError, match="not open"):
        await producer.send(Message("T", b"x"))

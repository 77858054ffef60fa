"""The producer: queues in turn, attempts, routes; in virtual time."""

import zlib

import pytest
import trio

from tests.client.fakes import NAME_SERVER, FakeNameServer, FakeSends, fake_cluster, opened, route_body
from trioha.client.messages import Message
from trioha.client.producer import Producer, ProducerSettings, SendError, queue_of_key
from trioha.client.routes import REFRESH_INTERVAL_S, TopicNotFoundError
from trioha.errors import PeerError
from trioha.recording.events import PutStatus
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.route import MessageQueue

MESSAGE = Message("T", b"hello", tag="x", keys=("k",))
TWO = route_body({"a": 2, "b": 2})


async def send(fake, number=1, *, message=MESSAGE, settings=None, **options):
    """Send the message so many times; the results."""
    async with opened(fake) as cluster, Producer(cluster, settings) as producer:
        return [await producer.send(message, **options) for _ in range(number)]


async def test_queues_of_all_brokers_are_sent_to_in_turn(autojump_clock):
    a, b = FakeSends(), FakeSends()
    async with fake_cluster(ns=FakeNameServer(T=TWO), a=a, b=b) as fake:
        results = await send(fake, 8)
    queues = [result.queue for result in results]
    assert len(set(queues[:4])) == 4
    assert queues[:4] == queues[4:]
    assert len(a.sends) == len(b.sends) == 4
    assert {result.status for result in results} == {"PUT_OK"}
    assert len({result.message_id for result in results}) == 8


async def test_a_send_is_that_of_a_java_producer(autojump_clock):
    sends = FakeSends()
    async with fake_cluster(ns=FakeNameServer(T=route_body({"a": 1})), a=sends) as fake:
        (result,) = await send(fake)
    ((header, command),) = sends.sends
    assert (header.topic, header.default_topic, header.queue_id, header.sys_flag) == ("T", "TBW102", 0, 0)
    assert command.body == b"hello"
    assert sends.properties() == {"KEYS": "k", "TAGS": "x", "UNIQ_KEY": result.message_id, "WAIT": "true"}
    assert (result.queue_offset, result.attempts) == (0, 1)


async def test_large_bodies_are_compressed(autojump_clock):
    sends = FakeSends()
    async with fake_cluster(ns=FakeNameServer(T=route_body({"a": 1})), a=sends) as fake:
        await send(fake, message=Message("T", b"x" * 4096))
    ((header, command),) = sends.sends
    assert header.sys_flag == 0x301
    assert zlib.decompress(command.body) == b"x" * 4096


async def test_messages_of_one_key_go_to_one_queue(autojump_clock):
    a, b = FakeSends(), FakeSends()
    async with fake_cluster(ns=FakeNameServer(T=TWO), a=a, b=b) as fake:
        results = await send(fake, 5, sharding_key="order-7")
    assert len({result.queue for result in results}) == 1
    queues = [MessageQueue("T", "a", number) for number in range(8)]
    assert len({queue_of_key(queues, str(key)) for key in range(100)}) == 8


@pytest.mark.parametrize(
    "failure",
    [
        ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, None,
    ],
)  # fmt: skip
async def test_a_refused_or_unanswered_send_is_tried_at_another_broker(autojump_clock, failure):
    a, b = FakeSends(*[failure] * 9), FakeSends()
    async with fake_cluster(ns=FakeNameServer(T=TWO), a=a, b=b) as fake:
        results = await send(fake, 4)
    assert {result.queue.broker_name for result in results} == {"b"}
    assert max(result.attempts for result in results) == 2
    assert len(b.sends) == 4
    # The same message: consumers may drop what they get twice.
    assert a.properties(0)["UNIQ_KEY"] in {b.properties(number)["UNIQ_KEY"] for number in range(4)}


async def test_a_send_without_a_connection_is_tried_at_another_broker(autojump_clock):
    b = FakeSends()
    async with fake_cluster(ns=FakeNameServer(T=TWO), b=b) as fake:
        results = await send(fake, 4)
    assert [result.queue.broker_name for result in results] == ["b"] * 4


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, 207])
async def test_a_send_that_is_refused_for_good_is_not_tried_again(autojump_clock, code):
    sends = FakeSends(code)
    async with fake_cluster(ns=FakeNameServer(T=route_body({"a": 4})), a=sends) as fake:
        with pytest.raises(SendError) as caught:
            await send(fake)
    assert (caught.value.code, caught.value.attempts, len(sends.sends)) == (code, 1, 1)


@pytest.mark.parametrize("status", [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE])
async def test_a_stored_message_is_a_result_whatever_its_status(autojump_clock, status):
    sends = FakeSends(status)
    async with fake_cluster(ns=FakeNameServer(T=route_body({"a": 4})), a=sends) as fake:
        (result,) = await send(fake)
    assert (result.status, len(sends.sends)) == (status.name, 1)


async def test_a_broker_that_never_answers_costs_the_timeout_and_no_more(autojump_clock):
    sends = FakeSends(*[None] * 9)
    async with fake_cluster(ns=FakeNameServer(T=route_body({"a": 4})), a=sends) as fake:
        start_s = trio.current_time()
        with pytest.raises(SendError) as caught:
            await send(fake, settings=ProducerSettings(timeout_s=6, attempt_timeout_s=4))
        assert trio.current_time() - start_s == pytest.approx(6)
    assert (caught.value.status, caught.value.attempts) == ("NO_ANSWER", 2)


async def test_a_new_topic_is_sent_to_the_brokers_that_create_topics(autojump_clock):
    sends = FakeSends()
    servers = FakeNameServer(TBW102=route_body({"a": 8}, perm=7))
    async with fake_cluster(ns=servers, a=sends) as fake:
        results = await send(fake, 8)
    assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}
    assert {header.default_topic_queue_nums for header, _ in sends.sends} == {4}


async def test_a_topic_that_nobody_creates_is_an_error(autojump_clock):
    async with fake_cluster(ns=FakeNameServer()) as fake:
        with pytest.raises(TopicNotFoundError):
            await send(fake)


async def test_the_next_name_server_is_asked_when_one_does_not_answer(autojump_clock):
    sends = FakeSends()
    async with fake_cluster(a=sends) as fake:
        fake.add("other:9876", FakeNameServer(T=route_body({"a": 1})))
        from trioha.client.cluster import open_cluster

        servers = (NAME_SERVER, "other:9876")
        async with open_cluster(name_servers=servers, open_connection=fake.connect) as cluster:
            async with Producer(cluster) as producer:
                await producer.send(MESSAGE)
            fake.down.add("other:9876")
            fake.cut("other:9876")
            with pytest.raises(PeerError, match="Connection refused"):
                await cluster.routes.fetch("T")
    assert len(sends.sends) == 1


async def test_a_broker_that_was_replaced_is_found_by_the_next_attempt(autojump_clock):
    old, new = FakeSends(), FakeSends()
    name_server = FakeNameServer(T=route_body({"a": 1}))
    async with (
        fake_cluster(ns=name_server, a=old, a2=new) as fake,
        opened(fake) as cluster,
        Producer(cluster) as producer,
    ):
        await producer.send(MESSAGE)
        name_server.topics["T"] = route_body({"a": 1}, brokers={"a": {0: "a2:10911"}})
        fake.down.add("a:10911")
        fake.cut("a:10911")
        result = await producer.send(MESSAGE)
    assert (result.attempts, len(old.sends), len(new.sends)) == (2, 1, 1)


async def test_routes_are_fetched_again_every_30_virtual_seconds(autojump_clock):
    name_server = FakeNameServer(T=route_body({"a": 1}))
    async with fake_cluster(ns=name_server, a=FakeSends()) as fake, opened(fake) as cluster:
        await cluster.routes.find("T")
        await cluster.routes.find("T")
        assert len(name_server.requests) == 1
        await trio.sleep(3 * REFRESH_INTERVAL_S + 1)
        assert len(name_server.requests) == 4
        # A topic that was deleted stays until a request fails.
        del name_server.topics["T"]
        await trio.sleep(REFRESH_INTERVAL_S)
        assert (await cluster.routes.find("T")).master("a") == "a:10911"


async def test_a_producer_is_a_member_of_its_group_while_it_is_open(autojump_clock):
    seen = []

    class Broker(FakeSends):
        def __call__(self, asked, peer):
            seen.append(asked.code)
            return super().__call__(asked, peer)

    async with (
        fake_cluster(ns=FakeNameServer(T=route_body({"a": 1})), a=Broker()) as fake,
        opened(fake) as cluster,
        Producer(cluster) as producer,
    ):
        await producer.send(MESSAGE)
        await trio.sleep(61)
    assert seen[0] == RequestCode.SEND_MESSAGE_V2
    assert seen.count(RequestCode.HEART_BEAT) >= 2
    assert seen[-1] == RequestCode.UNREGISTER_CLIENT


async def test_messages_in_flight_are_limited(autojump_clock):
    sends = FakeSends(*[None] * 9)
    async with fake_cluster(ns=FakeNameServer(T=route_body({"a": 4})), a=sends) as fake:
        settings = ProducerSettings(in_flight_max=3, attempts_max=1)
        async with (
            opened(fake) as cluster,
            Producer(cluster, settings) as producer,
            trio.open_nursery() as nursery,
        ):
            for _ in range(9):
                nursery.start_soon(producer.send, MESSAGE)
            await trio.sleep(1)
            assert len(sends.sends) == 3
            nursery.cancel_scope.cancel()

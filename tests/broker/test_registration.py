"""A broker and its name servers, in virtual time."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from trioha.broker.registration import BrokerEntry, BrokerRegistration
from trioha.errors import PeerError
from trioha.metadata.registration import body_crc, parse_registration
from trioha.metadata.topics import TopicConfig, TopicTable
from trioha.remoting.address import Address
from trioha.remoting.client import ConnectionLostError, RemotingClient, running
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import RemotingServer

PERIOD_S = 30.0
ENTRY = BrokerEntry("C", "broker-a", 1, "b:10911", "b:10912")


def change(topics, *names):
    for name in names:
        topics.put(TopicConfig(name))


@define
class NameServer:
    """Notes what it is asked, and answers as its test says."""

    asked: list[tuple[float, int, tuple[str, ...]]] = field(factory=list)
    """Seconds since the start, request code, and topics of a registration."""
    dialled: list[float] = field(factory=list)
    requests: list[RemotingCommand] = field(factory=list)
    is_down: bool = False
    hangs: bool = False
    refuses: bool = False
    answer: dict[str, str] = field(factory=dict)
    routes: dict[str, object] = field(factory=dict)
    """By topic."""
    server: RemotingServer = field(init=False)
    cut: trio.CancelScope = field(factory=trio.CancelScope)

    def __attrs_post_init__(self):
        self.server = RemotingServer(self)

    def __call__(self, request, _):
        topics = ()
        if request.code == RequestCode.REGISTER_BROKER:
            assert request.ext_fields["bodyCrc32"] == str(body_crc(request.body))
            sent = parse_registration(request.body, compressed=False, version=request.version)
            topics = tuple(sent.topics)
        self.asked.append((trio.current_time(), request.code, topics))
        self.requests.append(request)
        if self.hangs:
            return _never()
        if self.refuses:
            return response_to(request, 1, remark="no")
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = self.routes.get(request.ext_fields["topic"])
            return response_to(request, 17 if route is None else 0, body=json.dumps(route).encode())
        return response_to(request, 0, ext_fields=self.answer)


async def _never():
    await trio.sleep_forever()


class World:
    """Name servers by address, and a broker that registers with them."""

    def __init__(self, nursery):
        self._nursery = nursery
        self.servers: dict[str, NameServer] = {}
        self.began_s = trio.current_time()
        self.topics = TopicTable(now_ms=lambda: 7)
        change(self.topics, "T", "U")
        self.masters: list[str] = []

    def add(self, address, **behaviour):
        self.servers[address] = NameServer(**behaviour)
        return self.servers[address]

    def start(self, entry=ENTRY):
        registration = BrokerRegistration(
            list(self.servers),
            entry,
            self.topics,
            period_s=PERIOD_S,
            timeout_s=10.0,
            on_master=self.masters.append,
            connect=self._connect,
        )
        self._nursery.start_soon(registration.run)
        return registration

    @asynccontextmanager
    async def _connect(self, address):
        server = self.servers[address]
        server.dialled.append(trio.current_time() - self.began_s)
        if server.is_down:
            raise ConnectionLostError("cannot connect: refused", address=address)
        ours, theirs = trio.testing.memory_stream_pair()
        server.cut = trio.CancelScope()

        async def serve():
            with server.cut:
                await server.server.serve_stream(theirs, Address("192.0.2.1", 1))
            await theirs.aclose()

        self._nursery.start_soon(serve)
        client = RemotingClient(ours, address)
        async with running(client):
            yield client


@pytest.fixture
async def world():
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()


async def test_all_topics_are_registered_at_once_and_in_every_period(world, autojump_clock):
    server = world.add("ns:1")
    world.start()
    await trio.sleep(61)
    assert server.asked == [(at_s, 103, ("T", "U")) for at_s in (0.0, 30.0, 60.0)]
    assert dict(server.requests[0].ext_fields) == {
        "brokerName": "broker-a",
        "brokerAddr": "b:10911",
        "clusterName": "C",
        "haServerAddr": "b:10912",
        "brokerId": "1",
        "compressed": "false",
        "bodyCrc32": server.requests[0].ext_fields["bodyCrc32"],
    }
    assert server.dialled == [0.0]


async def test_topics_that_have_changed_are_registered_at_once_and_alone(world, autojump_clock):
    server = world.add("ns:1")
    world.start()
    await trio.sleep(10)
    change(world.topics, "V")
    await trio.sleep(1)
    change(world.topics, "W", "X")
    await trio.sleep(31)
    assert server.asked == [
        (0.0, 103, ("T", "U")),
        (10.0, 103, ("V",)),
        (11.0, 103, ("W", "X")),
        (41.0, 103, ("T", "U", "V", "W", "X")),
    ]


async def test_name_servers_that_are_down_or_hang_delay_no_other(world, autojump_clock):
    down, hanging, well = world.add("ns:1", is_down=True), world.add("ns:2", hangs=True), world.add("ns:3")
    world.start()
    await trio.sleep(1)
    change(world.topics, "V")
    await trio.sleep(65)
    assert [at_s for at_s, _, _ in well.asked] == [0.0, 1.0, 31.0, 61.0]
    # 1, 2, 4 ... seconds between attempts, at most a period.
    assert down.dialled == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 61.0]
    # 10 s for an answer, then a new connection.
    assert hanging.dialled == [0.0, 11.0, 23.0, 37.0, 55.0]
    down.is_down = False
    await trio.sleep(30)
    assert [topics for _, _, topics in down.asked] == [("T", "U", "V")]


async def test_a_lost_connection_is_made_anew_and_everything_registered(world, autojump_clock):
    server = world.add("ns:1")
    world.start()
    await trio.sleep(10)
    server.cut.cancel()
    await trio.sleep(10)
    assert server.asked == [(0.0, 103, ("T", "U")), (11.0, 103, ("T", "U"))]


async def test_a_refused_registration_is_tried_again(world, autojump_clock):
    server = world.add("ns:1", refuses=True)
    world.start()
    await trio.sleep(2)
    server.refuses = False
    await trio.sleep(32)
    assert [at_s for at_s, _, _ in server.asked] == [0.0, 1.0, 3.0, 33.0]


async def test_a_slave_is_told_where_its_master_is(world, autojump_clock):
    first, second = (
        world.add("ns:1"),
        world.add("ns:2", answer={"haServerAddr": "m:10912", "masterAddr": "m:1"}),
    )
    world.start()
    await trio.sleep(1)
    assert world.masters == ["m:10912"]
    first.answer = {"haServerAddr": "new:10912"}
    await trio.sleep(30)
    assert sorted(world.masters) == ["m:10912", "m:10912", "new:10912"]
    assert second.asked


async def test_a_broker_that_stops_unregisters_wherever_it_is_connected(world, autojump_clock):
    down, well, other = world.add("ns:1", is_down=True), world.add("ns:2"), world.add("ns:3")
    registration = world.start()
    await trio.sleep(10)
    before_s = trio.current_time()
    await registration.stop()
    assert trio.current_time() == before_s
    for server in (well, other):
        assert [code for _, code, _ in server.asked] == [103, 104]
        assert dict(server.requests[-1].ext_fields) == {
            "brokerName": "broker-a",
            "brokerAddr": "b:10911",
            "clusterName": "C",
            "brokerId": "1",
        }
    assert down.asked == []


async def test_a_name_server_that_hangs_holds_up_a_stop_for_1_virtual_second(world, autojump_clock):
    hanging = world.add("ns:1")
    registration = world.start()
    await trio.sleep(10)
    hanging.hangs = True
    before_s = trio.current_time()
    await registration.stop()
    assert trio.current_time() - before_s == 1.0


@pytest.mark.parametrize(("permission", "perm"), [(6, 7), (4, 4), (2, 2), (0, 0)])
async def test_topics_have_no_permission_that_the_broker_lacks(world, autojump_clock, permission, perm):
    server = world.add("ns:1")
    world.topics.put(TopicConfig("V", perm=7))
    world.start(evolve(ENTRY, permission=permission))
    await trio.sleep(1)
    sent = parse_registration(server.requests[0].body, compressed=False, version=407)
    assert sent.topics["V"].perm == perm
    assert sent.data_version.counter == 3


async def test_a_changed_permission_is_registered_for_all_topics_with_a_new_version(world, autojump_clock):
    server = world.add("ns:1")
    registration = world.start()
    await trio.sleep(10)
    registration.set_permission(4)
    await trio.sleep(1)
    assert server.asked == [(0.0, 103, ("T", "U")), (10.0, 103, ("T", "U"))]
    before, after = (
        parse_registration(request.body, compressed=False, version=request.version)
        for request in server.requests
    )
    # Name servers ignore the queues of a broker whose version they know.
    assert after.data_version != before.data_version
    assert {topic.perm for topic in after.topics.values()} == {4}


# -- routes --------------------------------------------------------------------------------------------------


async def test_the_queues_of_a_topic_at_all_brokers_are_asked_of_a_name_server_that_answers(world):
    down, up = world.add("ns:1", is_down=True), world.add("ns:2")
    registration = world.start()
    await registration.registered.wait()
    up.routes["T"] = {
        "queueDatas": [
            {"brokerName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in ("a", "b")
        ],
        "brokerDatas": [],
    }
    found = await registration.read_queues("T")
    assert [(queue.broker_name, queue.queue_id) for queue in found] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
        ("b", 1),
    ]
    assert await registration.read_queues("Unknown") == ()
    assert down.requests == []
    up.refuses = True
    with pytest.raises(PeerError, match="GET_ROUTEINFO_BY_TOPIC was refused: no"):
        await registration.read_queues("T")


async def test_without_a_name_server_there_is_no_route(world):
    world.add("ns:1", is_down=True)
    with pytest.raises(PeerError, match="the broker is registered with no name server"):
        await world.start().read_queues("T")

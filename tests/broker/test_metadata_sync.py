"""A slave that copies its master's metadata, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, evolve, field
from structlog.testing import capture_logs

from tests.broker.test_metadata_processor import processor
from tests.metadata.test_replica import replica, store
from trioha.broker.metadata_sync import CODES, OF_5X, PAGE_ENTRIES, MasterAddress, MetadataSync
from trioha.config.keys.metadata import OffsetRegression
from trioha.metadata.consumer_orders import Order
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.replica import CopiedTable
from trioha.metadata.table import wall_clock_ms
from trioha.metadata.topics import TopicConfig
from trioha.remoting.address import Address
from trioha.remoting.client import ConnectionLostError, RemotingClient, running
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.fastjson import JsonBudget, JsonLimits
from trioha.remoting.server import RemotingServer
from trioha.remoting.serving import Peer

ALL_CODES = [int(code) for code in CODES.values()]
OLD_CODES = [int(code) for table, code in CODES.items() if table not in OF_5X]


@define
class Master:
    """Answers with its tables, and as its test says."""

    tables: MetadataStore = field(factory=store)
    asked: list[tuple[float, int]] = field(factory=list)
    """Seconds since the start, request code."""
    answers: dict[int, Callable[[RemotingCommand], Any]] = field(factory=dict)
    """Instead of those of the tables."""
    is_down: bool = False

    def __call__(self, request, peer):
        self.asked.append((trio.current_time(), request.code))
        if request.code in self.answers:
            return self.answers[request.code](request)
        return processor(self.tables).handlers[request.code](request, peer)


class World:
    """Brokers by address, and a slave."""

    def __init__(self, nursery):
        self._nursery = nursery
        self.brokers: dict[str, Master] = {}
        self.slave = store()
        self.replica = replica(self.slave)
        self.sync: MetadataSync | None = None
        self.connections = 0

    def add(self, address="m:1"):
        self.brokers[address] = Master()
        return self.brokers[address]

    def start(self, master=None, **settings):
        self.sync = MetadataSync(
            self.replica,
            MasterAddress("m:1") if master is None else master,
            broker_name="b",
            policy=OffsetRegression.KEEP,
            connect=self._connect,
            **settings,
        )
        self._nursery.start_soon(self.sync.run)
        return self.sync

    @asynccontextmanager
    async def _connect(self, address):
        broker = self.brokers[address]
        self.connections += 1
        if broker.is_down:
            raise ConnectionLostError("cannot connect: refused", address=address)
        ours, theirs = trio.testing.memory_stream_pair()
        server = RemotingServer(broker)

        async def serve():
            await server.serve_stream(theirs, Address("192.0.2.1", 1))
            await theirs.aclose()

        self._nursery.start_soon(serve)
        client = RemotingClient(ours, address)
        async with running(client):
            yield client


@asynccontextmanager
async def open_world():
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()


async def test_all_tables_are_copied_after_3_seconds_and_every_10_seconds(autojump_clock):
    async with open_world() as world:
        master = world.add()
        master.tables.topics.put(TopicConfig("T"))
        master.tables.consumer_offsets.commit("G", "T", 0, 5)
        master.tables.delay_offsets.put(3, 7)
        master.tables.groups.find_or_create("G")
        sync = world.start()
        await trio.sleep(24)
        assert master.asked == [(at_s, code) for at_s in (3.0, 13.0, 23.0) for code in ALL_CODES]
        slave = world.slave
        assert list(slave.topics.entries) == ["T"]
        assert list(slave.groups.entries) == ["G"]
        assert slave.topics.version == master.tables.topics.version
        assert slave.groups.version == master.tables.groups.version
        assert (slave.consumer_offsets.find("G", "T", 0), slave.delay_offsets.find(3)) == (5, 7)
        # The second and third copies have changed nothing, so that no file is written.
        changes = [slave.topics, slave.groups, slave.consumer_offsets, slave.delay_offsets]
        assert [table.changes.offset for table in changes] == [1, 1, 1, 1]
        status = sync.status()
        assert status.master_address == "m:1"
        assert {name: (one.age_ms, one.failures) for name, one in status.tables.items()} == {
            table.value: (1000, 0) for table in CopiedTable if table is not CopiedTable.USERS
        }
        assert (status.tables["topics"].entries, status.tables["topics"].changes) == (1, 1)


async def test_delay_offsets_are_copied_as_soon_as_the_log_has_caught_up(autojump_clock):
    async with open_world() as world:
        master = world.add()
        master.tables.delay_offsets.put(3, 7)
        world.start(has_caught_up=lambda: trio.current_time() >= 5.5)
        await trio.sleep(5)
        assert world.slave.delay_offsets.find(3) is None
        await trio.sleep(2)
        assert world.slave.delay_offsets.find(3) == 7
        await trio.sleep(10)
        assert {at_s for at_s, _ in master.asked} == {3.0, 6.0, 16.0}


async def test_each_step_fails_by_itself_is_logged_once_and_recovers(autojump_clock):
    async with open_world() as world:
        master = world.add()
        master.tables.topics.put(TopicConfig("T"))
        master.answers = {
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda asked: response_to(
                asked, ResponseCode.SYSTEM_ERROR, remark="No topic in this broker"
            ),
            RequestCode.GET_ALL_CONSUMER_OFFSET: lambda asked: response_to(
                asked, 0, body=b'{"offsetTable":['
            ),
        }
        with capture_logs() as logged:
            sync = world.start()
            await trio.sleep(24)
            assert [one.failures for one in sync.status().tables.values()] == [3, 3, 0, 0, 0, 0, 0, 0]
            assert "No topic in this broker" in sync.status().tables["topics"].error
            master.answers = {}
            await trio.sleep(10)
        assert list(world.slave.topics.entries) == ["T"]
        assert {one.error for one in sync.status().tables.values()} == {""}
        events = [(entry["event"], entry["table"]) for entry in logged if "cop" in entry["event"]]
        assert events.count(("metadata cannot be copied", "topics")) == 1
        assert events.count(("metadata cannot be copied", "consumerOffsets")) == 1
        assert events.count(("metadata is copied again", "topics")) == 1


async def test_an_answer_that_does_not_come_delays_the_next_step_by_its_timeout(autojump_clock):
    async def never():
        await trio.sleep_forever()

    async with open_world() as world:
        master = world.add()
        master.answers = {RequestCode.GET_ALL_CONSUMER_OFFSET: lambda _asked: never()}
        world.start()
        await trio.sleep(8)
        assert master.asked[:4] == [(3.0, 21), (3.0, 43), (6.0, 45), (6.0, 201)]


async def test_timers_are_asked_for_once_of_a_master_without_a_timer_wheel(autojump_clock):
    async with open_world() as world:
        master = world.add()
        timers = {CopiedTable.TIMER_METRICS, CopiedTable.TIMER_CHECK_POINT}
        master.answers = {
            CODES[table]: lambda asked: response_to(asked, ResponseCode.SYSTEM_ERROR, remark="null")
            for table in timers
        }
        sync = world.start()
        await trio.sleep(14)
        status = sync.status()
        assert set(status.tables) == set(CopiedTable) - {*timers, CopiedTable.USERS}
        assert sum(one.failures for one in status.tables.values()) == 0
        assert [code for _, code in master.asked].count(RequestCode.GET_TIMER_METRICS) == 1


async def test_tables_of_5x_are_asked_for_once_of_a_master_of_4_9(autojump_clock):
    async with open_world() as world:
        master = world.add()
        master.answers = {
            CODES[table]: lambda asked: response_to(asked, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            for table in OF_5X
        }
        sync = world.start()
        await trio.sleep(14)
        assert [code for _, code in master.asked] == ALL_CODES + OLD_CODES
        assert set(sync.status().tables) == set(CopiedTable) - {*OF_5X, CopiedTable.USERS}


async def test_orders_of_ordered_pops_are_copied_from_masters_that_have_them_to_give(autojump_clock):
    async with open_world() as world:
        master = world.add()
        first = Order(1, 20_000, (4, 6), 1, {6: 7}, {6: 2}, "attempt", wall_clock_ms())
        master.tables.consumer_orders.put(("G", "T", 0), first)
        master.tables.consumer_orders.put(("H", "T", 3), evolve(first, offsets=(9,)))
        sync = world.start()
        await trio.sleep(4)
        orders = world.slave.consumer_orders
        assert dict(orders.items()) == dict(master.tables.consumer_orders.items())
        assert sync.status().tables["consumerOrders"].entries == 2
        # A RocketMQ broker answers the same request with its modes.
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        master.answers = {code: lambda asked: response_to(asked, 0, body=b'{"messageRequestModeMap":{}}')}
        await trio.sleep(20)
        assert len(orders.items()) == 2
        assert "consumerOrders" not in sync.status().tables
        assert sum(one.failures for one in sync.status().tables.values()) == 0


async def test_the_address_of_a_name_server_is_used_at_once(autojump_clock):
    async with open_world() as world:
        first, second = world.add("m:1"), world.add("n:1")
        address = MasterAddress(own="s:1")
        world.start(address)
        await trio.sleep(5)
        assert world.connections == 0
        address.receive("m:1")
        await trio.sleep(1)
        address.receive("n:1")
        await trio.sleep(1)
        assert {at_s for at_s, _ in first.asked} == {5.0}
        assert {at_s for at_s, _ in second.asked} == {6.0}
        # A slave that was promoted is named as master itself.
        address.receive("s:1")
        await trio.sleep(20)
        assert world.connections == 2


@pytest.mark.parametrize(
    ("config", "is_copied"),
    [
        (b"brokerName=b\nbrokerId=0\nhaListenPort=10912\n", True),
        (b"brokerName=other\nbrokerId=0\nhaListenPort=10912\n", False),
        (b"brokerName=b\nbrokerId=1\nhaListenPort=10912\n", False),
        (b"brokerName=b\nbrokerId=0\nhaListenPort=20912\n", False),
    ],
)
async def test_a_guessed_address_must_be_the_masters(autojump_clock, config, is_copied):
    async with open_world() as world:
        master = world.add("m:10911")
        master.answers = {RequestCode.GET_BROKER_CONFIG: lambda asked: response_to(asked, 0, body=config)}
        master.tables.topics.put(TopicConfig("T"))
        sync = world.start(MasterAddress(ha_address=Address("m", 10912)))
        await trio.sleep(4)
        assert (list(world.slave.topics.entries) == ["T"]) is is_copied
        assert ("trioha.masterAddress" in sync.status().tables["topics"].error) is not is_copied


async def test_a_table_that_changes_between_two_pages_is_asked_for_again(autojump_clock):
    async with open_world() as world:
        master = world.add()
        for number in range(PAGE_ENTRIES + 500):
            master.tables.topics.put(TopicConfig(f"T{number}"))
        served = []

        def change(asked):
            served.append(asked.ext_fields["topicSeq"])
            if len(served) == 2:
                master.tables.topics.delete("T1")
            return processor(master.tables).handlers[asked.code](asked, Peer(Address("192.0.2.1", 1), 1))

        master.answers = {RequestCode.GET_ALL_TOPIC_CONFIG: change}
        world.start()
        await trio.sleep(4)
        assert served == ["0", str(PAGE_ENTRIES), "0", str(PAGE_ENTRIES)]
        assert world.slave.topics.entries == master.tables.topics.entries


def page(*, names: int, name_chars: int = 1, counter: object = 1) -> bytes:
    """A page of topics."""
    table = {f"{number}{'x' * name_chars}": {} for number in range(names)}
    return json.dumps({"dataVersion": {"counter": counter}, "topicConfigTable": table}).encode()


@pytest.mark.parametrize(
    ("body", "reason", "pages"),
    [
        (page(names=1, name_chars=400_000), "an answer of more than 1000000 bytes", 3),
        (page(names=40), "more than 100 entries", 3),
        (page(names=20).replace(b"{}", b"[[],[],[]]"), "JSON of more than 200 objects and arrays", 3),
        (page(names=20).replace(b"{}", b"[1,2,3,4]"), "JSON of more than 300 values", 4),
        (page(names=1, counter="9" * 2000), "a dataVersion of 2014 characters", 1),
    ],
)
async def test_pages_without_end_are_refused_at_a_limit(autojump_clock, monkeypatch, body, reason, pages):
    monkeypatch.setattr("trioha.broker.metadata_sync.PAGES_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("trioha.metadata.replica.ENTRIES_MAX", 100)
    limits = JsonLimits(containers_max=200, dialect_chars_max=0, values_max=300)
    monkeypatch.setattr("trioha.broker.metadata_sync.JsonBudget", partial(JsonBudget, limits=limits))
    async with open_world() as world:
        master = world.add()
        master.answers[RequestCode.GET_ALL_TOPIC_CONFIG] = lambda asked: response_to(
            asked, 0, ext_fields={"totalTopicNum": "2147483647"}, body=body
        )
        sync = world.start()
        await trio.sleep(5)
        assert sync.status().tables["topics"].error == reason
        assert [code for _, code in master.asked].count(RequestCode.GET_ALL_TOPIC_CONFIG) == pages
        assert world.slave.topics.entries == store().topics.entries


async def test_settings_that_are_no_brokers_are_not_read(autojump_clock):
    async with open_world() as world:
        master = world.add("m:10911")
        master.answers[RequestCode.GET_BROKER_CONFIG] = lambda asked: response_to(
            asked, 0, body=b"a=b\n" * (1 << 18) + b"a"
        )
        sync = world.start(MasterAddress(ha_address=Address("m", 10912)))
        await trio.sleep(4)
        assert "at most 1048576 are read" in sync.status().tables["topics"].error

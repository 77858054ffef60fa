"""Status updates: subscribers, times and numbers."""

import math
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from tests.broker.test_processor import Broker
from trioha.broker.status_publisher import StatusPublisher
from trioha.remoting.address import Address
from trioha.remoting.client import RemotingClient
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode
from trioha.remoting.server import RemotingServer
from trioha.remoting.status_reader import UPDATES, StatusReader, StatusUpdates
from trioha.remoting.status_subscription import StatusSubscription
from trioha.store.disk_use import DiskUse


class Pushes:
    """Connections that accept pushed frames, with their times."""

    def __init__(self, *connections):
        self.connections = set(connections)
        self.seen = []
        self.tables = []

    def __call__(self, connection, frame):
        decoder = FrameDecoder()
        decoder.feed(frame)
        while (command := decoder.next_command()) is not None:
            assert command.is_oneway
            if connection in self.connections:
                seen = self.seen if command.code == RequestCode.GET_BROKER_HA_STATUS else self.tables
                seen.append((round(trio.current_time(), 3), connection, bytes(command.body)))
        return connection in self.connections


@pytest.fixture
def collected():
    return []


@pytest.fixture
def updates(collected):
    def collect_status():
        collected.append(round(trio.current_time(), 3))
        return b"%d" % len(collected)

    async def collect_table():
        await trio.sleep(0.15)
        return b"of %.2f" % trio.current_time()

    return StatusPublisher(collect_status, collect_table)


async def test_subscribers_of_one_interval_get_the_same_update_at_the_same_time(
    updates, collected, nursery, autojump_clock
):
    push = Pushes(1, 2)
    nursery.start_soon(updates.run, push)
    await trio.sleep(0.03)
    updates.subscribe(1, StatusSubscription(100, 3))
    await trio.sleep(0.05)
    updates.subscribe(2, StatusSubscription(100, 3))
    await trio.sleep(5)
    assert push.seen == [
        (0.1, 1, b"1"), (0.1, 2, b"1"), (0.2, 1, b"2"), (0.2, 2, b"2"), (0.3, 1, b"3"), (0.3, 2, b"3"),
    ]  # fmt: skip
    assert collected == [0.1, 0.2, 0.3]
    assert updates.subscribers == 0


async def test_each_subscriber_has_its_own_interval(updates, nursery, autojump_clock):
    push = Pushes(1, 2)
    nursery.start_soon(updates.run, push)
    updates.subscribe(1, StatusSubscription(1000, 2))
    updates.subscribe(2, StatusSubscription(300, 3))
    await trio.sleep(5)
    assert [(at_s, number) for at_s, number, _ in push.seen] == [
        (0.3, 2), (0.6, 2), (0.9, 2), (1.0, 1), (2.0, 1),
    ]  # fmt: skip


async def test_a_new_subscription_replaces_or_ends_the_last_one(updates, nursery, autojump_clock):
    push = Pushes(1, 2)
    nursery.start_soon(updates.run, push)
    updates.subscribe(1, StatusSubscription(100, 50))
    updates.subscribe(2, StatusSubscription(100, 50))
    await trio.sleep(0.25)
    updates.subscribe(1, StatusSubscription(1000, 1))
    updates.subscribe(2, StatusSubscription(100, 0))
    await trio.sleep(5)
    assert [(at_s, number) for at_s, number, _ in push.seen] == [
        (0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2), (1.0, 1),
    ]  # fmt: skip


async def test_subscriptions_of_closed_connections_are_dropped(updates, collected, nursery, autojump_clock):
    push = Pushes(1)
    nursery.start_soon(updates.run, push)
    updates.subscribe(1, StatusSubscription(100, 50))
    await trio.sleep(0.15)
    push.connections.clear()
    await trio.sleep(5)
    assert collected == [0.1, 0.2]
    assert updates.subscribers == 0


async def test_without_subscribers_no_status_is_collected(updates, collected, nursery, autojump_clock):
    nursery.start_soon(updates.run, Pushes())
    await trio.sleep(1000)
    assert collected == []


async def test_the_table_is_sent_along_once_a_second_and_delays_no_update(updates, nursery, autojump_clock):
    push = Pushes(1, 2)
    nursery.start_soon(updates.run, push)
    updates.subscribe(1, StatusSubscription(100, 25))
    await trio.sleep(1.05)
    updates.subscribe(2, StatusSubscription(500, 2))
    await trio.sleep(5)
    assert push.tables == [
        # Asked for at 0.1, there at 0.25; again a second later, when something is sent.
        (0.3, 1, b"of 0.25"), (1.5, 1, b"of 1.45"), (1.5, 2, b"of 1.45"),
    ]  # fmt: skip
    assert [at_s for at_s, number, _ in push.seen if number == 1] == [round(n / 10, 1) for n in range(1, 26)]


async def test_a_status_that_cannot_be_collected_ends_its_subscriptions_only(nursery, autojump_clock):
    faults = [OSError("the disk is gone"), KeyError("a bug"), None]

    def collect_status():
        fault = faults.pop(0)
        if fault is not None:
            raise fault
        return b"well"

    async def collect_table():
        raise OSError("the disk is gone")

    updates, push = StatusPublisher(collect_status, collect_table), Pushes(1)
    nursery.start_soon(updates.run, push)
    with capture_logs() as logs:
        for _ in range(3):
            updates.subscribe(1, StatusSubscription(100, 1))
            await trio.sleep(2)
    assert [body for _, _, body in push.seen] == [b"well"]
    status, table = "status cannot be collected", "runtime table cannot be collected"
    assert [entry["event"] for entry in logs] == [status, table, status, table, table]


@asynccontextmanager
async def served(broker):
    """A reader of a broker that sends updates, and the server."""
    server = RemotingServer(broker.processor)
    ours, theirs = memory_stream_pair()
    updates = StatusUpdates(0.1)
    client = RemotingClient(ours, "node", on_request=updates.receive)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.updates.run, server.connections.push)
        nursery.start_soon(server.serve_stream, theirs, Address("192.0.2.1", 4711))
        async with trio.open_nursery() as of_client:
            of_client.start_soon(client._run)
            yield StatusReader(client, updates=updates, with_table=True), server
            of_client.cancel_scope.cancel()
        await ours.aclose()
        await trio.sleep(1)
        assert broker.updates.subscribers == 0
        nursery.cancel_scope.cancel()


async def test_a_reader_gets_every_update_with_one_request_for_many(tmp_path, autojump_clock):
    broker = Broker(tmp_path)
    # Worker threads do not follow virtual time: the disk is asked before.
    broker.info._disk, broker.info._disk_until_s = DiskUse.of(tmp_path), math.inf
    fetches = 2 * UPDATES
    async with served(broker) as (reader, server):
        offsets = []
        for _ in range(fetches):
            next_s = trio.current_time() + 0.1
            status = await reader.fetch()
            offsets.append(status.max_offset)
            assert status.max_offset == broker.log.max_offset
            assert status.table.disk_total_bytes
            await broker.send()
            await trio.sleep_until(next_s)
        assert offsets == sorted(set(offsets))
        # The table once, by itself; the status again when half of what was promised has come.
        assert server.statistics.requests == 1 + -(-fetches // (1 + UPDATES // 2))

"""A name server on real sockets."""

import random
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from tests.namesrv.test_recordings import SESSIONS
from tests.namesrv.values import body_with, identity, register, topics
from tests.remoting.recorded import frames
from trioha.errors import ConfigError, PeerError
from trioha.namesrv.server import NameServer
from trioha.namesrv.settings import NameServerSettings
from trioha.remoting.address import parse_address
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.name_server import fetch_broker_groups


@asynccontextmanager
async def serving(folder, **settings):
    """A name server on loopback, and its address."""
    server = await NameServer.open(
        NameServerSettings(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=folder / "kv.json", **settings
        )
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(lambda *, task_status: server.run(task_status=task_status))
            yield server, str(address)
            nursery.cancel_scope.cancel()


async def registered(client, *, name="broker-a", broker_id=0):
    who = identity(broker_id, name=name)
    fields = {
        "brokerName": who.broker_name,
        "brokerAddr": who.address,
        "clusterName": who.cluster_name,
        "haServerAddr": "h:1",
        "brokerId": str(broker_id),
    }
    body = body_with(topics("T", "U"))
    return await client.request(request(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body))


async def test_brokers_are_removed_when_the_connection_that_they_registered_on_is_closed(tmp_path):
    async with serving(tmp_path) as (server, address), open_client(address) as watcher:
        async with open_client(address) as client:
            await registered(client)
            answer = await registered(client, broker_id=1)
            assert answer.ext_fields == {"haServerAddr": "h:1", "masterAddr": "broker-a:10911"}
            (group,) = await fetch_broker_groups(watcher)
            assert group.addresses == {0: "broker-a:10911", 1: "broker-a:10912"}
        while server.registry.live:  # noqa: ASYNC110 - it has no event for tests
            await trio.sleep(0.01)
        assert await fetch_broker_groups(watcher) == ()


async def test_silent_broker_is_removed_after_120_virtual_seconds(tmp_path, autojump_clock):
    server = await NameServer.open(
        NameServerSettings(bind_address="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kv.json")
    )
    async with trio.open_nursery() as nursery:
        began_s = trio.current_time()
        await nursery.start(lambda *, task_status: server.run(task_status=task_status))
        register(server.registry, identity(), topics("T"))
        register(server.registry, identity(1), topics("T"), timeout_s=12.0)
        # It looks every 5 s, and the last moment of the timeout still counts.
        for at_s, brokers in ((14.9, 2), (15.1, 1), (124.9, 1), (125.1, 0)):
            await trio.sleep_until(began_s + at_s)
            assert len(server.registry.live) == brokers
        nursery.cancel_scope.cancel()


async def test_connections_beyond_the_limit_are_closed(tmp_path):
    async with (
        serving(tmp_path, connections_max=4) as (_, address),
        open_client(address) as first,
        open_client(address) as second,
    ):
        await fetch_broker_groups(first)
        await fetch_broker_groups(second)
        async with open_client(address) as third:
            with pytest.raises(PeerError):
                await fetch_broker_groups(third)


async def test_a_drained_name_server_answers_what_is_in_flight(tmp_path):
    async with serving(tmp_path) as (server, address), open_client(address) as client:
        await registered(client)
        await server.drain()
        assert not client.is_connected or await client.wait_lost()
        assert server.registry.live == ()


async def test_a_port_in_use_is_named(tmp_path):
    async with serving(tmp_path) as (_, address):
        port = int(address.rpartition(":")[2])
        server = await NameServer.open(
            NameServerSettings(
                bind_address="127.0.0.1", listen_port=port, kv_config_path=tmp_path / "kv.json"
            )
        )
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="cannot listen")):
            await server.run()


async def test_mutated_requests_of_real_peers_end_their_own_connection_at_most(tmp_path):
    chance = random.Random(13)
    recorded = sorted({frame for path in SESSIONS for frame in frames(path) if len(frame) < 2500})
    async with serving(tmp_path) as (server, address):
        host, port = parse_address(address).host, parse_address(address).port
        stream = await trio.open_tcp_stream(host, port)
        for _ in range(1500):
            frame = bytearray(chance.choice(recorded))
            for _ in range(chance.randint(1, 3)):
                # Behind the lengths, so that most are still frames.
                frame[chance.randrange(8, len(frame))] = chance.choice(b'{}[]":,-0919x\\\x00\xff')
            with suppress(trio.BrokenResourceError):
                await stream.send_all(frame)
                # Either an answer, or the end of the connection; a one-way request gets neither.
                with trio.move_on_after(0.05):
                    if await stream.receive_some():
                        continue
            await stream.aclose()
            stream = await trio.open_tcp_stream(host, port)
        await stream.aclose()
        async with open_client(address) as client:
            await fetch_broker_groups(client)
        assert server.statistics.requests > 300
        assert server.statistics.bugs == 0

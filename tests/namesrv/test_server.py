"""A name server on real sockets."""

import random
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing

from tests.levels import by_level
from tests.namesrv.values import body_with, identity, register, topics
from tests.remoting.recorded import NAME_SERVER_STREAMS, frames
from tests.remoting.serving import dialled
from tests.waiting import until
from trioha.errors import ConfigError, PeerError
from trioha.namesrv.server import NameServer
from trioha.namesrv.settings import NameServerSettings
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.name_server import fetch_broker_groups

MUTANTS = by_level(300, 1_500, 10_000)


@asynccontextmanager
async def serving(folder, **settings):
    """A name server on loopback, and its address."""
    settings = {"listen_port": 0, **settings}
    server = await NameServer.open(
        NameServerSettings(bind_address="127.0.0.1", kv_config_path=folder / "kv.json", **settings)
    )
    async with trio.open_nursery() as nursery:
        address = await nursery.start(lambda *, task_status: server.run(task_status=task_status))
        yield server, str(address)
        nursery.cancel_scope.cancel()


async def registered(client, *, name="broker-a", broker_id=0, topic="T"):
    who = identity(broker_id, name=name)
    fields = {
        "brokerName": who.broker_name, "brokerAddr": who.address, "clusterName": who.cluster_name,
        "haServerAddr": "h:1", "brokerId": str(broker_id),
    }  # fmt: skip
    body = body_with(topics(topic, "U"))
    return await client.request(request(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body))


async def test_brokers_are_removed_when_the_connection_that_they_registered_on_is_closed(tmp_path):
    async with serving(tmp_path) as (server, address), open_client(address) as watcher:
        async with open_client(address) as client:
            await registered(client)
            answer = await registered(client, broker_id=1)
            assert answer.ext_fields == {"haServerAddr": "h:1", "masterAddr": "broker-a:10911"}
            (group,) = await fetch_broker_groups(watcher)
            assert group.addresses == {0: "broker-a:10911", 1: "broker-a:10912"}
        await until(lambda: not server.registry.live)
        assert await fetch_broker_groups(watcher) == ()


async def test_silent_broker_is_removed_after_120_virtual_seconds(tmp_path, autojump_clock):
    began_s = trio.current_time()
    async with serving(tmp_path) as (server, _):
        register(server.registry, identity(), topics("T"))
        register(server.registry, identity(1), topics("T"), timeout_s=12.0)
        # It looks every 5 s, and the last moment of the timeout still counts.
        for at_s, brokers in ((14.9, 2), (15.1, 1), (124.9, 1), (125.1, 0)):
            await trio.sleep_until(began_s + at_s)
            assert len(server.registry.live) == brokers


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
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="cannot listen"), flatten_subgroups=True):
            async with serving(tmp_path, listen_port=port):
                raise AssertionError("not reached")


@pytest.mark.sized
@pytest.mark.timeout(by_level(120, 120, 3600))
async def test_mutated_requests_of_real_peers_end_their_own_connection_at_most(tmp_path):
    """Beside an honest broker, whose registration and route stay as they are."""
    chance = random.Random(13)
    recorded = sorted({frame for path in NAME_SERVER_STREAMS for frame in frames(path) if len(frame) < 2500})
    async with serving(tmp_path) as (server, address), open_client(address) as honest:
        await registered(honest, name="honest", topic="Honest")
        ask = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "Honest"})
        route = bytes((await honest.request(ask)).body)
        assert b"honest" in route
        stream = await dialled(address)
        for number in range(MUTANTS):
            frame = bytearray(chance.choice(recorded))
            for _ in range(chance.randint(1, 3)):
                # After the lengths, so that most are still frames.
                frame[chance.randrange(8, len(frame))] = chance.choice(b'{}[]":,-0919x\\\x00\xff')
            with suppress(trio.BrokenResourceError):
                await stream.send_all(frame)
                # Either an answer, or the end of the connection; a one-way request gets neither.
                with trio.move_on_after(0.05):
                    if await stream.receive_some():
                        continue
            await stream.aclose()
            stream = await dialled(address)
            if number % 50 == 0:
                assert bytes((await honest.request(ask)).body) == route
        await stream.aclose()
        assert bytes((await honest.request(ask)).body) == route
        assert server.statistics.requests > MUTANTS / 5
        assert server.statistics.bugs == 0

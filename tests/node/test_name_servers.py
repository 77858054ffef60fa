"""Nodes and name servers: embedded, found, lost, and the way to the master that a slave learns there."""

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from tests.node_process import run_trioha
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.config.loading import load_config
from trioha.errors import ConfigError
from trioha.node.name_servers import embedded_address
from trioha.node.replication import MasterLocation
from trioha.remoting.address import Address
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.fastjson import parse_json
from trioha.remoting.name_server import fetch_broker_groups


def groups(name_server: str) -> dict[str, dict[int, str]]:
    async def fetch() -> dict[str, dict[int, str]]:
        async with open_client(name_server) as client:
            return {group.broker_name: dict(group.addresses) for group in await fetch_broker_groups(client)}

    return trio.run(fetch)


def topics(name_server: str) -> set[str]:
    async def fetch() -> set[str]:
        async with open_client(name_server) as client:
            answer = await client.request(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        body: Any = parse_json(answer.body)
        return set(body["topicList"])

    return trio.run(fetch)


@pytest.mark.process
def test_a_pair_finds_itself_through_the_name_server_of_its_master(start_node):
    name_server = f"127.0.0.1:{free_port()}"
    # The other one is never there, and delays nobody.
    both = f"127.0.0.1:{free_port()};{name_server}"
    slave_first = start_node("slave", role="SLAVE", namesrvAddr=both)
    assert slave_first.status().client is not None
    master = start_node(
        "master", role="SYNC_MASTER", namesrvAddr=name_server, **{"trioha.withNamesrv": "true"}
    )
    wait_until(lambda: set(groups(name_server).get("interop", ())) == {0, 1})
    master.wait(connections=1)
    loaded = master.load(20, topic="Fresh")
    wait_until(lambda: "Fresh" in topics(name_server))

    assert set(loaded.statuses) <= {"PUT_OK", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    assert groups(name_server) == {"interop": {0: master.listen_address, 1: slave_first.listen_address}}
    told = slave_first.status().client
    assert told.master_address == master.ha_address
    slave_first.stop()
    assert groups(name_server) == {"interop": {0: master.listen_address}}
    master.stop()


@pytest.mark.process
@pytest.mark.full
def test_a_slave_goes_to_the_master_that_the_name_server_names_next(start_node):
    name_server = f"127.0.0.1:{free_port()}"
    common = {"namesrvAddr": name_server, "registerNameServerPeriod": 300}
    other = start_node(
        "other", role="ASYNC_MASTER", brokerName="other", **common, **{"trioha.withNamesrv": "true"}
    )
    first = start_node("first", role="ASYNC_MASTER", **common)
    slave = start_node("slave", role="SLAVE", **common)
    first.wait(connections=1)
    first.kill()
    second = start_node("second", role="ASYNC_MASTER", **common)
    assert second.ha_address != first.ha_address
    second.wait(connections=1)
    for node in (slave, second, other):
        node.stop()


@pytest.mark.process
def test_the_embedded_name_server_is_a_flag_of_the_command(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"storePathRootDir={tmp_path / 'store'}\nbrokerIP1=127.0.0.1\nnamesrvAddr=192.0.2.1:9876\n"
    )
    answer = run_trioha("node", "-c", conf, "--with-namesrv")
    assert answer.exit_code == 2
    assert "namesrvAddr: 192.0.2.1:9876 has no address of this host" in answer.stderr


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (("trioha.withNamesrv=true",), Address("127.0.0.1", 9876)),
        (("namesrvAddr=192.0.2.1:1;10.0.0.7:2;localhost:3",), Address("10.0.0.7", 2)),
        (("namesrvAddr=192.0.2.1:1;localhost:3",), Address("localhost", 3)),
        (("namesrvAddr=192.0.2.1:1",), None),
    ],
)
def test_the_embedded_name_server_has_the_first_address_of_this_host(tmp_path, settings, address):
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerIP1=10.0.0.7\n")
    config = load_config(conf, settings).config
    if address is None:
        with pytest.raises(ConfigError, match="no address of this host"):
            embedded_address(config)
    else:
        assert embedded_address(config) == address


async def test_a_slave_waits_for_the_address_of_its_master(autojump_clock):
    location = MasterLocation(None)
    assert str(location) == ""
    with pytest.raises(OSError, match="no name server has sent"):
        await location.resolve()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
        location.receive("m:10912")
        assert await location.resolve() == Address("m", 10912)
    location.receive("m:10912")
    with capture_logs() as lines:
        location.receive("nonsense")
    assert [line["log_level"] for line in lines] == ["warning"]
    location.receive("[::1]:2")
    assert await location.resolve() == Address("::1", 2)


async def test_a_configured_address_of_the_master_stays():
    location = MasterLocation(Address("m", 1))
    location.receive("other:2")
    assert await location.resolve() == Address("m", 1)

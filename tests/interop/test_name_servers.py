"""Real brokers and clients under a trioha name server, and a trioha broker under a real one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.interop.clients import RocketClients
from tests.interop.java import JavaDriver
from tests.interop.name_server import name_server
from tests.interop.rocketmq import is_5
from tests.node_process import ANSWER_WITHIN_S, TriohaNode
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.fastjson import parse_json
from trioha.remoting.name_server import fetch_broker_groups

pytestmark = [pytest.mark.interop, pytest.mark.process]

StartNode = Callable[..., TriohaNode]
REGISTERED_WITHIN_S = 120.0
"""Real brokers register when they start, or 10 s later, and every 30 s."""


@contextmanager
def trioha_name_server(folder: Path, **settings: Any) -> Iterator[str]:
    """`trioha namesrv` on a free port: its address, until the block ends, which it must do cleanly."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        "listenPort": 0,
        "kvConfigPath": folder / "kvConfig.json",
        "bindAddress": "127.0.0.1",
        **settings,
    }
    log_path = folder / "namesrv.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                *DIE_WITH_PARENT, sys.executable, "-m", "trioha", "namesrv",
                *(argument for key, value in given.items() for argument in ("-p", f"{key}={value}")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )  # fmt: skip
    with process:
        try:
            assert process.stdout is not None
            ready = dict(pair.split("=", 1) for pair in process.stdout.readline().split()[1:])
            yield ready["listen"]
            process.terminate()
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()
    assert "Traceback" not in log_path.read_text()


def ask(address: str, code: int, **fields: str) -> RemotingCommand:
    async def main() -> RemotingCommand:
        async with open_client(address, connect_timeout_s=ANSWER_WITHIN_S) as client:
            return await client.request(request(code, ext_fields=fields), timeout_s=ANSWER_WITHIN_S)

    return trio.run(main)


def groups(address: str) -> dict[str, dict[int, str]]:
    async def main() -> dict[str, dict[int, str]]:
        async with open_client(address, connect_timeout_s=ANSWER_WITHIN_S) as client:
            found = await fetch_broker_groups(client, timeout_s=ANSWER_WITHIN_S)
            return {group.broker_name: dict(group.addresses) for group in found}

    return trio.run(main)


def topics(address: str) -> set[str]:
    body = bytes(ask(address, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)
    return set(json.loads(body)["topicList"])


def printed(text: str) -> dict[str, Any]:
    """A JSON object as mqadmin prints it: with bare keys."""
    value = parse_json(text)
    assert isinstance(value, dict), text
    return value


def wait_until(condition: Callable[[], bool], what: str, *, within_s: float = REGISTERED_WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.1)


def test_real_brokers_and_clients_work_under_a_trioha_name_server(
    java: JavaDriver, clients: RocketClients, tmp_path: Path
) -> None:
    with trioha_name_server(tmp_path / "names") as names:
        master = java.open_broker(
            tmp_path / "master",
            role="ASYNC_MASTER",
            namesrvAddr=names,
            brokerName="broker-a",
            # Without it 5.x cannot delete a topic; 4.9 does not have it.
            **({"timerWheelEnable": True} if is_5(java.version) else {}),
        )
        wait_until(lambda: "broker-a" in groups(names), "the master is registered")
        slave = java.open_broker(tmp_path / "slave", role="SLAVE", namesrvAddr=names, brokerName="broker-a")
        both = {"broker-a": {0: master.listen_address, 1: slave.listen_address}}
        wait_until(lambda: groups(names) == both, "the slave is registered")

        # A topic made by an administrator, and one made by a first send.
        made = clients.mqadmin("updateTopic", names, "-c", "interop", "-t", "Made", "-r", "3", "-w", "2")
        wait_until(lambda: "Made" in topics(names), "the new topic is registered")
        sent = clients.send(names, "Sent", 12)
        wait_until(lambda: "Sent" in topics(names), "the sent topic is registered")
        bodies = clients.consume(names, "Sent", 12)
        listed = clients.mqadmin("clusterList", names)
        route = clients.mqadmin("topicRoute", names, "-t", "Made")
        all_topics = clients.mqadmin("topicList", names).split()
        wiped = clients.mqadmin("wipeWritePerm", names, "-b", "broker-a")
        read_only = clients.mqadmin("topicRoute", names, "-t", "Made")
        added = clients.mqadmin("addWritePerm", names, "-b", "broker-a")
        clients.mqadmin("updateKvConfig", names, "-s", "NS", "-k", "key", "-v", "value")
        config = clients.mqadmin("getNamesrvConfig", names)
        clients.mqadmin("updateNamesrvConfig", names, "-k", "orderMessageEnable", "-v", "true")
        changed = clients.mqadmin("getNamesrvConfig", names)
        deleted = clients.mqadmin("deleteTopic", names, "-c", "interop", "-t", "Made")
        left = topics(names)
        # What the slave asks its name server for: where the master is.
        slave.wait(maxOffset=master.max_offset)
        slave.shutdown()
        alone = groups(names)
        master.shutdown()
        none = groups(names)

    assert "success" in made
    assert {(status, broker) for status, broker, _ in sent} == {("SEND_OK", "broker-a")}
    assert sorted(bodies) == sorted(f"body-{number}" for number in range(12))
    assert master.listen_address in listed
    assert slave.listen_address in listed
    (queues,) = printed(route)["queueDatas"]
    assert (queues["writeQueueNums"], queues["readQueueNums"], queues["perm"]) == (2, 3, 6)
    assert [queues["perm"] for queues in printed(read_only)["queueDatas"]] == [4]
    assert {"Made", "Sent", "interop", "broker-a"} <= set(all_topics)
    assert "wipe write perm" in wiped
    assert "add write perm" in added
    assert "orderMessageEnable" in config
    assert [line.split()[-1] for line in changed.splitlines() if "orderMessageEnable" in line] == ["true"]
    assert "success" in deleted
    assert "Made" not in left
    assert "Sent" in left
    assert alone == {"broker-a": {0: master.listen_address}}
    assert none == {}
    assert json.loads((tmp_path / "names" / "kvConfig.json").read_text()) == {
        "configTable": {"NS": {"key": "value"}}
    }


def test_a_trioha_broker_under_a_real_name_server_is_found_by_real_clients(
    java: JavaDriver, clients: RocketClients, start_node: StartNode, tmp_path: Path
) -> None:
    with name_server(java.version, folder=tmp_path / "names") as names:
        master = start_node("master", role="ASYNC_MASTER", namesrvAddr=names, brokerName="broker-t")
        slave = start_node("slave", role="SLAVE", namesrvAddr=names, brokerName="broker-t")
        both = {"broker-t": {0: master.listen_address, 1: slave.listen_address}}
        wait_until(lambda: groups(names) == both, "both are registered")
        # The slave learned from the name server where its master is.
        master.wait(connections=1)
        sent = clients.send(names, "First", 12)
        wait_until(lambda: "First" in topics(names), "the topic of the first send is registered")
        again = clients.send(names, "First", 4)
        listed = clients.mqadmin("clusterList", names)
        all_topics = clients.mqadmin("topicList", names).split()
        slave.wait(max_offset=master.max_offset)
        # A name server of 5.x takes brokers off its lists in a thread of its own.
        slave.stop()
        alone = {"broker-t": {0: master.listen_address}}
        wait_until(lambda: groups(names) == alone, "the slave is off the list")
        master.stop()
        wait_until(lambda: groups(names) == {}, "the master is off the list")

    assert {(status, broker) for status, broker, _ in sent + again} == {("SEND_OK", "broker-t")}
    assert {queue_id for _, _, queue_id in again} == {0, 1, 2, 3}
    assert master.listen_address in listed
    assert {"First", "TBW102", "interop", "broker-t"} <= set(all_topics)


def test_a_real_broker_registers_again_with_a_name_server_that_was_started_anew(
    java: JavaDriver, tmp_path: Path
) -> None:
    if not is_5(java.version):
        pytest.skip("one version is enough: it takes as long as the broker's period")
    with trioha_name_server(tmp_path / "names", listenPort=free_port()) as names:
        broker = java.open_broker(
            tmp_path / "broker", role="ASYNC_MASTER", namesrvAddr=names, registerNameServerPeriod=10000
        )
        wait_until(lambda: "interop" in groups(names), "the broker is registered")
        before = topics(names)
    with trioha_name_server(tmp_path / "names", listenPort=names.rpartition(":")[2]) as again:
        assert again == names
        wait_until(lambda: "interop" in groups(names), "the broker is registered again")
        assert topics(names) == before
    assert broker.is_open

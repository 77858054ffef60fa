"""The configuration files of a distribution of RocketMQ, a process each: two masters, two slaves."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.node.test_name_servers import groups
from tests.node_process import load, name_server, run_trioha
from tests.waiting import wait_until

FILES = {
    "broker-a": ("broker-a", 0),
    "broker-a-s": ("broker-a", 1),
    "broker-b": ("broker-b", 0),
    "broker-b-s": ("broker-b", 1),
}
"""Broker name and id of each file of conf/2m-2s-sync and conf/2m-2s-async; the role is the folder's."""


def write_files(folder: Path, master_role: str) -> None:
    """The four files with the settings that a distribution's have."""
    folder.mkdir()
    for file, (broker_name, broker_id) in FILES.items():
        role = "SLAVE" if broker_id else master_role
        (folder / f"{file}.properties").write_text(
            f"brokerClusterName=DefaultCluster\nbrokerName={broker_name}\nbrokerId={broker_id}\n"
            f"deleteWhen=04\nfileReservedTime=48\nbrokerRole={role}\nflushDiskType=ASYNC_FLUSH\n"
        )


@pytest.fixture
def name_server_address(tmp_path):
    keys = ("bindAddress=127.0.0.1", f"kvConfigPath={tmp_path / 'kvConfig.json'}")
    with name_server("--port", "0", *(word for key in keys for word in ("-p", key))) as (_, ready):
        yield ready["listen"]


def consume(topic: str) -> list[dict[str, Any]]:
    """All messages of a topic, by a client that finds the brokers as the nodes do: by the environment."""
    read = run_trioha("consume", topic, "--from", "first")
    assert read.exit_code == 0, read.stderr
    return [json.loads(line) for line in read.stdout.splitlines()]


@pytest.mark.process
@pytest.mark.full
@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=pytest.mark.nightly)])
def test_two_masters_and_two_slaves_of_a_distribution_are_a_cluster(
    tmp_path, name_server_address, start_node, monkeypatch, kind
):
    monkeypatch.setenv("NAMESRV_ADDR", name_server_address)
    folder, master_role = tmp_path / f"2m-2s-{kind}", f"{kind.upper()}_MASTER"
    write_files(folder, master_role)
    nodes = {file: start_node(file, config_file=folder / f"{file}.properties") for file in FILES}
    for master in ("broker-a", "broker-b"):
        assert nodes[master].wait(connections=1, ack_offset=0).role == master_role
    registered = {
        name: {0: nodes[name].listen_address, 1: nodes[f"{name}-s"].listen_address}
        for name in ("broker-a", "broker-b")
    }
    wait_until(lambda: groups(name_server_address) == registered)

    for number, master in enumerate(("broker-a", "broker-b"), 1):
        loaded = load(nodes[master].listen_address, 30, topic="Both", seed=number)
        assert loaded.statuses == {"PUT_OK": 30}
        nodes[f"{master}-s"].wait(max_offset=nodes[master].max_offset)
    # Both masters register a new topic as soon as they have it.
    wait_until(lambda: len(consume("Both")) == 60)
    assert {message["brokerName"] for message in consume("Both")} == {"broker-a", "broker-b"}
    for node in nodes.values():
        node.stop()

"""`trioha doctor` on trioha nodes with real faults, and on healthy pairs."""

import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.changes import commit, has_delivered, make_group, send_delayed
from tests.node.client import endpoint
from tests.node.shims import program
from tests.node.test_name_servers import groups
from tests.node_process import FILE_BYTES, StartNode, TriohaNode, run_trioha
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.process

Findings = dict[str, dict[str, str]]

UNREACHABLE = "192.0.2.1"
"""An address of a network for documentation: no host has it."""
TIMEOUT_S = 20
"""For each request and connection, on a busy machine; an address that nothing answers at takes it."""


@pytest.fixture
def start(start_node):
    def start(name: str = "store", **settings: Any) -> TriohaNode:
        is_slave = "slave_of" in settings or settings.get("role") == "SLAVE"
        if is_slave and "trioha.masterAddress" not in settings:
            # Metadata is not copied in tests of other things.
            settings = {"trioha.metadataSyncFirst": 3_600_000, **settings}
        return start_node(name, **settings)

    return start


def examine(*arguments: str | Path) -> Findings:
    """The findings by id, the first of each; also checks the exit code.

    Metadata is late only in tests of that, however long the others take.
    """
    late = () if "--metadata-late" in arguments else ("--metadata-late", "3600")
    answer = run_trioha("doctor", "--json", "--timeout", str(TIMEOUT_S), *late, *arguments)
    assert answer.stderr == "", answer.stderr
    findings = json.loads(answer.stdout)["findings"]
    assert answer.exit_code == (1 if findings else 0), answer
    found: Findings = {}
    for finding in findings:
        found.setdefault(finding["id"], finding)
    return found


def wait_healthy(*arguments: str | Path) -> None:
    """Wait until there are no findings."""
    found: Findings = {}

    def is_healthy() -> bool:
        found.clear()
        found.update(examine(*arguments))
        return not found

    try:
        wait_until(is_healthy)
    except AssertionError:
        pytest.fail(f"still found: {found}")


def examined_pair(master: TriohaNode, slave: TriohaNode, *more: str | Path) -> Findings:
    return examine(master.listen_address, slave.listen_address, *more)


def conf_of(node: TriohaNode) -> Path:
    """The broker.conf that `node` was started with."""
    return node.root.with_name(f"{node.root.name}.conf")


def wait_in_sync(master: TriohaNode, *slaves: TriohaNode) -> None:
    """Wait until all slaves say that they receive the log, and the master counts one as a copy at least."""

    def are_in_sync() -> bool:
        status = master.status()
        connected = [one for one in status.connections if not one.is_probe]
        clients = [slave.status().client for slave in slaves]
        return (
            len(connected) == len(slaves)
            and bool(status.in_sync_slaves)
            and all(client is not None and client.state == "TRANSFER" for client in clients)
        )

    wait_until(are_in_sync)


def connected_pair(
    start: StartNode, *, role: str = "SYNC_MASTER", **settings: Any
) -> tuple[TriohaNode, TriohaNode]:
    """A pair in sync, with some messages; `settings` are the master's."""
    master = start("master", role=role, **settings)
    slave = copying_slave(start, master, master.listen_address)
    wait_in_sync(master, slave)
    assert master.load(20).statuses == {"PUT_OK": 20}
    master.wait(ack_offset=master.max_offset)
    return master, slave


def copying_slave(start: StartNode, master: TriohaNode, address: str) -> TriohaNode:
    """A slave of `master` that copies metadata from `address`."""
    return start(
        "slave",
        slave_of=master,
        **{
            "trioha.masterAddress": address,
            "trioha.metadataSyncFirst": 100,
            "trioha.metadataSyncPeriod": 500,
        },
    )


@contextmanager
def forging_peer(ha_address: str, offset: int) -> Iterator[None]:
    """A peer of the HA port that requests the log and acknowledges what it was never sent."""
    with socket.create_connection(endpoint(ha_address), timeout=10) as peer:
        peer.sendall(struct.pack(">q", 0))
        assert peer.recv(12)
        peer.sendall(struct.pack(">q", offset))
        with suppress(ConnectionResetError):
            while peer.recv(65536):
                pass
        yield


# -- healthy pairs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["SYNC_MASTER", pytest.param("ASYNC_MASTER", marks=pytest.mark.nightly)])
def test_a_healthy_pair_has_no_findings(role, start):
    master, slave = connected_pair(start, role=role)
    assert examined_pair(master, slave, conf_of(master), conf_of(slave)) == {}
    change_metadata(master)
    wait_healthy(master.listen_address, slave.listen_address, "--metadata-late", "0")
    answer = run_trioha("doctor", master.listen_address, slave.listen_address)
    assert answer.exit_code == 0
    assert answer.stdout.startswith("2 brokers, 1 pair: no findings (")


@pytest.mark.full
def test_a_healthy_pair_of_a_name_server_has_no_findings(start):
    names = f"127.0.0.1:{free_port()}"
    master = start("master", role="SYNC_MASTER", namesrvAddr=names, **{"trioha.withNamesrv": "true"})
    slave = start("slave", role="SLAVE", namesrvAddr=names, **{"trioha.metadataSyncFirst": 100})
    wait_in_sync(master, slave)
    wait_until(lambda: set(groups(names).get("interop", ())) == {0, 1})
    assert examine("--namesrv", names) == {}
    assert examined_pair(master, slave, "--namesrv", names) == {}


# -- who is who ------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_slave_that_is_stopped_does_not_answer(start):
    master, slave = connected_pair(start)
    slave.stop()
    master.wait(connections=0)
    found = examined_pair(master, slave)
    assert set(found) == {"broker-unreachable", "too-few-slaves-in-sync"}
    assert found["broker-unreachable"]["subject"] == slave.listen_address
    assert found["broker-unreachable"]["evidence"] == "cannot connect: Connection refused"
    assert found["too-few-slaves-in-sync"]["evidence"] == "puts wait for 1, in sync: 0"


@pytest.mark.full
def test_a_broker_with_access_control_refuses_without_an_account(start, tmp_path):
    rules, tools = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    rules.write_text("accounts: [{accessKey: account-1, secretKey: secret-1, admin: true}]\n")
    tools.write_text("accessKey: account-1\nsecretKey: secret-1\n")
    node = start("broker", role="ASYNC_MASTER", aclEnable="true", **{"trioha.aclFile": rules})
    found = examine(node.listen_address)
    assert set(found) == {"broker-refuses"}
    assert "No accessKey is configured" in found["broker-refuses"]["evidence"]
    assert examine(node.listen_address, "--credentials", tools).keys() == {"ha-port-open"}


@pytest.mark.nightly
def test_brokers_that_a_name_server_does_not_list_are_found(start):
    names = f"127.0.0.1:{free_port()}"
    start("other", role="ASYNC_MASTER", brokerName="o", namesrvAddr=names, **{"trioha.withNamesrv": "true"})
    wait_until(lambda: "o" in groups(names))
    master, slave = connected_pair(start)
    found = examined_pair(master, slave, "--namesrv", names)
    assert set(found) == {"not-registered"}
    assert names in found["not-registered"]["evidence"]


@pytest.mark.full
def test_a_broker_that_is_listed_with_an_unreachable_address_is_found(start):
    names = f"127.0.0.1:{free_port()}"
    node = start(
        "master",
        role="ASYNC_MASTER",
        namesrvAddr=names,
        brokerIP1=UNREACHABLE,
        brokerIP2=UNREACHABLE,
        **{"trioha.withNamesrv": "true", "trioha.bindAddress": "0.0.0.0"},
    )
    wait_until(lambda: "interop" in groups(names))
    port = node.listen_address.rpartition(":")[2]
    found = examine(f"127.0.0.1:{port}", "--namesrv", names)
    assert "registered-with-other-address" in found
    assert f"{UNREACHABLE}:{port}" in found["registered-with-other-address"]["evidence"]
    assert found["registered-with-other-address"]["remedy"].startswith("brokerIP1=127.0.0.1 ")
    assert "broker-unreachable" not in found


# -- addresses and ports ---------------------------------------------------------------------------------


@pytest.mark.nightly
def test_announced_addresses_that_are_out_of_reach_are_found(start):
    node = start(
        "master",
        role="ASYNC_MASTER",
        brokerIP1=UNREACHABLE,
        brokerIP2=UNREACHABLE,
        listenPort=free_port(),
        **{"trioha.bindAddress": "0.0.0.0"},
    )
    port = node.listen_address.rpartition(":")[2]
    found = examine(f"127.0.0.1:{port}")
    assert set(found) == {"advertised-address-unreachable", "ha-address-unreachable"}
    assert f"{UNREACHABLE}:{port}" in found["advertised-address-unreachable"]["evidence"]
    assert UNREACHABLE in found["ha-address-unreachable"]["evidence"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8 on the loopback interface")
@pytest.mark.full
def test_an_ha_port_that_is_open_to_a_host_that_is_no_replica_is_found(start):
    master, slave = connected_pair(start)
    found = examined_pair(master, slave, "--source", "127.0.0.2")
    assert set(found) == {"ha-port-exposed"}
    assert found["ha-port-exposed"]["evidence"].endswith("accepted a connection from 127.0.0.2")
    assert found["ha-port-exposed"]["remedy"] == "trioha.haAllowedPeers=127.0.0.1"


# -- copies of a put -------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_forged_acknowledgement_is_found(start):
    master, slave = connected_pair(start)
    with forging_peer(master.ha_address, 10**9):
        found = examined_pair(master, slave)
    assert set(found) == {"forged-ack"}
    assert found["forged-ack"]["severity"] == "warning"
    assert "ACK_BEYOND_SENT since the start: 1;" in found["forged-ack"]["evidence"]


# -- logs ------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_slave_below_its_masters_minimum_is_found(start, tmp_path):
    master, slave = connected_pair(start)
    slave.stop()
    master.load(150, size=(1000, 1000))
    master.stop()
    (tmp_path / "master" / "commitlog" / f"{0:020d}").unlink()
    master = start("master", role="ASYNC_MASTER")
    slave = start("slave", slave_of=master)
    wait_until(lambda: bool((client := slave.status().client) and client.verdict))
    found = examined_pair(master, slave)
    assert {"slave-below-minimum", "slave-refuses-log"} <= set(found)
    assert f"the master's begins at {FILE_BYTES}" in found["slave-below-minimum"]["evidence"]
    assert "retention-overtakes-slave" not in found


# -- metadata --------------------------------------------------------------------------------------------


def change_metadata(master: TriohaNode) -> None:
    """A topic, a group, an offset of it, and one of a delay level."""
    master.load(1)
    send_delayed(master.listen_address)
    make_group(master.listen_address)
    commit(master.listen_address, 1)
    wait_until(lambda: has_delivered(master.listen_address))


@pytest.mark.nightly
def test_metadata_that_a_slave_cannot_copy_is_found(start):
    master = start("master", role="ASYNC_MASTER")
    nowhere = f"127.0.0.1:{free_port()}"
    slave = copying_slave(start, master, nowhere)
    wait_in_sync(master, slave)
    change_metadata(master)
    expected = {
        "metadata-copy-fails", "topics-late", "groups-late", "offsets-missing", "delay-offsets-late"
    }  # fmt: skip
    # Both have run for a second.
    wait_until(lambda: expected <= set(examined_pair(master, slave, "--metadata-late", "0")))
    found = examined_pair(master, slave, "--metadata-late", "0")
    assert set(found) == expected
    assert f"from {nowhere}: " in found["metadata-copy-fails"]["evidence"]
    assert "Connection refused" in found["metadata-copy-fails"]["evidence"]
    assert "TopicTest" in found["topics-late"]["evidence"]
    assert "billing" in found["groups-late"]["evidence"]
    assert "TopicTest@billing" in found["offsets-missing"]["evidence"]
    # The tables may still be copied in time; that the slave cannot ask is found at once.
    assert set(examined_pair(master, slave)) == {"metadata-copy-fails"}


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_file_that_was_edited_after_the_start_is_found(start):
    node = start("master", role="ASYNC_MASTER")
    with conf_of(node).open("a") as file:
        file.write("slaveTimeout=4000\n")
    found = examine(node.listen_address, conf_of(node))
    assert set(found) == {"setting-not-in-effect"}
    assert "slaveTimeout is 4000, in effect is 3000" in found["setting-not-in-effect"]["evidence"]


def test_what_a_node_refuses_in_a_file_is_found(tmp_path):
    path = tmp_path / "broker.conf"
    for text, name in (
        ("brokerRole=SLAVE\nbrokerName=a\nnamesrvAddr=127.0.0.1:1\nbrokerIP1=10.0.0.1\n", "role-and-id"),
        ("trioha.haRole=spy\nbrokerName=a\nslaveTimeout=3s\n", "setting-invalid"),
    ):
        path.write_text(text)
        assert examine(path)[name]["severity"] == "critical"
        assert run_trioha("node", "-c", path).exit_code == 2


# -- settings and roles that a status has ------------------------------------------------------------------


def two_slaves(start: StartNode) -> Sequence[TriohaNode]:
    """Of one id."""
    master = start("master", role="SYNC_MASTER", **{"trioha.haDistinctBy": "connection"})
    slaves = [start(name, slave_of=master) for name in ("one", "two")]
    wait_in_sync(master, *slaves)
    return [master, *slaves]


def odd_slave(start: StartNode, **settings: Any) -> Sequence[TriohaNode]:
    """A pair whose slave has these settings."""
    master = start("master", role="ASYNC_MASTER")
    slave = start("slave", slave_of=master, **settings)
    wait_in_sync(master, slave)
    return [master, slave]


def lonely_slaves(start: StartNode) -> Sequence[TriohaNode]:
    nowhere = f"127.0.0.1:{free_port()}"
    return [
        start(name, role="SLAVE", ha_master_address=nowhere, brokerId=id_)
        for id_, name in ((1, "one"), (2, "two"))
    ]


SLOW = {"haSendHeartbeatInterval": 30_000, "haHousekeepingInterval": 60_000}
LIVE: Mapping[str, tuple[Callable[[StartNode], Sequence[TriohaNode]], str]] = {
    "no-master": (lonely_slaves, ""),
    "two-masters": (lambda start: [start(name, role="ASYNC_MASTER") for name in ("one", "two")], "127.0.0.1"),
    "duplicate-broker-id": (two_slaves, "brokerId 1"),
    "name-mismatch": (partial(odd_slave, brokerName="another"), "brokerName is another"),
    "file-sizes-differ": (
        partial(odd_slave, mappedFileSizeCommitLog=2 * FILE_BYTES),
        f"is {FILE_BYTES} at the master",
    ),
    "too-few-slaves-in-sync": (lambda start: [start(role="SYNC_MASTER")], "puts wait for 1"),
    "sync-degrades-silently": (
        lambda start: [start(role="SYNC_MASTER", enableAutoInSyncReplicas="true")],
        "minInSyncReplicas is 1",
    ),
    "heartbeat-above-housekeeping": (partial(connected_pair, **SLOW), "closes after 20000 ms"),
    "node-warns": (partial(connected_pair, inSyncReplicas=1), "a SYNC_MASTER still waits for one slave"),
}
"""Nodes by the check that finds their fault, and what it says of them."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", LIVE)
def test_a_fault_of_live_nodes_is_found(name, start):
    begin, evidence = LIVE[name]
    found = examine(*(node.listen_address for node in begin(start)))
    assert set(found) == {name}
    assert evidence in found[name]["evidence"]


# -- clocks ----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_slave_with_another_time_is_found(start, tmp_path):
    fault = tmp_path / "fault"
    fault.write_text("60")
    master = start("master", role="ASYNC_MASTER")
    slave = start("slave", slave_of=master, program=program(fault))
    wait_in_sync(master, slave)
    found = examined_pair(master, slave)
    assert set(found) == {"clocks-apart"}
    assert "ahead of its master's" in found["clocks-apart"]["evidence"]
    assert examined_pair(master, slave, "--clocks-apart", "120") == {}


# -- watching --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_fault_that_begins_and_ends_is_seen_by_a_watch(start):
    master, slave = connected_pair(start, role="ASYNC_MASTER")
    watch = subprocess.Popen(
        [
            sys.executable, "-m", "trioha", "doctor", "--watch", "--json", "--interval", "1",
            "--timeout", str(TIMEOUT_S),
            master.listen_address, slave.listen_address,
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with watch:
        try:
            assert json.loads(watch.stdout.readline())["healthy"]
            slave.stop()
            deadline = time.monotonic() + 60
            while json.loads(watch.stdout.readline())["healthy"]:
                assert time.monotonic() < deadline, "the stopped slave was not found"
            watch.send_signal(signal.SIGINT)
            assert watch.wait(60) == 1
            assert watch.stderr.read() == ""
        finally:
            if watch.poll() is None:
                watch.kill()

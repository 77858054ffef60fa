"""`trioha doctor` on real brokers: faults that are theirs. Healthy pairs are in test_world.py.

All brokers of a version run in the JVM of that version. A pair without a name server is connected by the
driver, but copies no metadata, as a pair of a user who forgot `namesrvAddr`.
"""

from __future__ import annotations

import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.doctor.changes import commit, make_group, make_topic, send_delayed
from tests.interop.commands import Findings, examine
from tests.interop.java import JavaDriver
from tests.interop.rocketmq import both_lines, is_5, only_4
from tests.interop.world import Broker, StartNode, sync_settings
from tests.node_process import FILE_BYTES, broker_status, load
from tests.waiting import wait_until
from trioha.errors import PeerError

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

PATIENT = ("--metadata-late", "3600")
"""For pairs without a name server, whose slaves never copy metadata: the test is about something else."""
CONNECTED_WITHIN_S = 150.0
"""A slave of 5.x learns its master's address 10 s after its start and dials up to 15 s after its start."""
ATTEMPTS = 5


def examined(master: Broker, slave: Broker, *more: str | Path) -> Findings:
    return examine(master.listen_address, slave.listen_address, *more)


def wait_equal(master: Broker, slave: Broker) -> None:
    """Wait until the slave has its master's log, which is not empty."""

    def is_equal() -> bool:
        try:
            end = broker_status(master.listen_address).max_offset
            return end > 0 and broker_status(slave.listen_address).max_offset == end
        except PeerError:
            # RocketMQ has no figures until a second after its start.
            return False

    wait_until(is_equal, "the slave has its master's log", within_s=CONNECTED_WITHIN_S)


@contextmanager
def forged_reports(ha_address: str, offset: int) -> Iterator[None]:
    """A peer of the HA port that requests nothing and acknowledges everything, while the block runs."""
    host, _, port = ha_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=CONNECTED_WITHIN_S) as peer:
        peer.sendall(struct.pack(">q", offset))
        peer.recv(12)
        yield


# -- copies of a put -------------------------------------------------------------------------------------


@both_lines
def test_a_sync_master_of_5_that_waits_for_nobody_is_found(java: JavaDriver, tmp_path: Path) -> None:
    settings = {"haFlowControlEnable": True} if is_5(java.version) else {}
    master = java.open_broker(
        tmp_path / "m", role="SYNC_MASTER", haTransferBatchSize=4 * 1024 * 1024, **settings
    )
    sent = load(master.listen_address, 3)
    found = examine(master.listen_address)
    assert "slaves never complete such a frame" in found["setting-out-of-range"]["evidence"]
    if is_5(java.version):
        assert set(sent.statuses) == {"PUT_OK"}
        assert set(found) == {
            "sync-master-waits-for-nobody", "flow-control-spins", "setting-out-of-range"
        }  # fmt: skip
    else:
        assert set(sent.statuses) == {"SLAVE_NOT_AVAILABLE"}
        assert set(found) == {"setting-out-of-range"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"slaveTimeout": 200}, "too-few-slaves-in-sync"),
        ({"enableAutoInSyncReplicas": True}, "sync-degrades-silently"),
    ],
    ids=["without slaves", "that lowers its copies"],
)
def test_a_sync_master_of_5_that_needs_two_copies_is_found(
    newest: JavaDriver, tmp_path: Path, settings: dict[str, object], finding: str
) -> None:
    master = newest.open_broker(tmp_path / "m", role="SYNC_MASTER", inSyncReplicas=2, **settings)
    if finding == "too-few-slaves-in-sync":
        assert set(load(master.listen_address, 1).statuses) == {"FLUSH_SLAVE_TIMEOUT"}
    assert set(examine(master.listen_address)) == {finding}


@both_lines
def test_a_forged_acknowledgement_is_found_where_a_master_reports_it(
    java: JavaDriver, tmp_path: Path
) -> None:
    # The peer reports once: its connection must last until the doctor has looked.
    master = java.open_broker(
        tmp_path / "m", role="SYNC_MASTER", haHousekeepingInterval=600_000, **sync_settings(java)
    )
    with forged_reports(master.ha_address, 10**9):
        forged = load(master.listen_address, 1)
        found = examine(master.listen_address)
    # That is the fault: no slave has the message.
    assert set(forged.statuses) == {"PUT_OK"}
    assert ("forged-ack" in found) == is_5(java.version)
    if is_5(java.version):
        assert found["forged-ack"]["severity"] == "critical"
        assert "acknowledged 1000000000" in found["forged-ack"]["evidence"]


# -- slaves that do not replicate ------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_slave_of_5_with_the_address_of_its_master_never_connects(
    newest: JavaDriver, tmp_path: Path
) -> None:
    master = newest.open_broker(tmp_path / "m", role="ASYNC_MASTER")
    slave = newest.open_broker(tmp_path / "s", role="SLAVE", haMasterAddress=master.ha_address)
    found = examined(master, slave)
    assert {"ha-master-address-ignored", "slave-without-name-server", "slave-not-connected"} <= set(found)
    assert found["ha-master-address-ignored"]["subject"] == slave.listen_address


@pytest.mark.nightly
@only_4
def test_a_slave_of_4_9_that_is_far_from_its_master_is_found(java: JavaDriver, tmp_path: Path) -> None:
    master = java.open_broker(tmp_path / "m", role="ASYNC_MASTER", haSlaveFallbehindMax=1000)
    slave = java.open_broker(tmp_path / "s", role="SLAVE")
    load(master.listen_address, 10, size=(1000, 1000))
    found = examined(master, slave, *PATIENT)
    assert set(found) == {"slave-not-in-sync", "slave-without-name-server"}


@pytest.mark.nightly
def test_a_slave_that_needs_deleted_bytes_is_found_before_and_after(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    # Logs are written by nodes, which stop faster than real brokers.
    short, long = (start_node(name, role="ASYNC_MASTER") for name in ("short", "long"))
    short.load(3, size=(1000, 1000))
    long.load(220, size=(1000, 1000))
    for node in (short, long):
        node.stop()
    deleted = shutil.copytree(long.root, tmp_path / "deleted")
    slave = java.open_broker(short.root, role="SLAVE")
    master = java.open_broker(long.root, role="ASYNC_MASTER")
    before = examined(master, slave)
    assert "retention-overtakes-slave" in before
    assert f"oldest file (0 to {FILE_BYTES})" in before["retention-overtakes-slave"]["evidence"]
    assert "fileReservedTime is 720 h" in before["retention-overtakes-slave"]["evidence"]

    (deleted / "commitlog" / f"{0:020d}").unlink()
    master = java.open_broker(deleted, role="ASYNC_MASTER")
    after = examined(master, slave)
    assert "slave-below-minimum" in after
    assert "retention-overtakes-slave" not in after
    assert f"the master's begins at {FILE_BYTES}" in after["slave-below-minimum"]["evidence"]


@pytest.mark.nightly
def test_a_slave_with_more_than_its_master_is_found(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    long = start_node("long", role="ASYNC_MASTER")
    long.load(20)
    long.stop()
    slave = java.open_broker(long.root, role="SLAVE")
    master = java.open_broker(tmp_path / "m", role="ASYNC_MASTER")
    load(master.listen_address, 1, size=(10, 10))
    assert "slave-beyond-end" in examined(master, slave)


# -- metadata --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_metadata_that_is_not_copied_is_found(java: JavaDriver, tmp_path: Path) -> None:
    master = java.open_broker(tmp_path / "m", role="ASYNC_MASTER")
    slave = java.open_broker(tmp_path / "s", role="SLAVE", ha_master_address=master.ha_address)
    load(master.listen_address, 5)
    send_delayed(master.listen_address)
    make_group(master.listen_address)
    commit(master.listen_address, 1)
    wait_equal(master, slave)

    def found() -> Findings:
        return examined(master, slave, "--metadata-late", "0")

    # The message is delivered after a second, and both have run for a second.
    expected = {"slave-without-name-server", "topics-late", "groups-late", "offsets-missing"}
    if is_5(java.version):
        expected.add("delay-offsets-late")
    wait_until(lambda: expected <= set(found()), f"{expected}", within_s=CONNECTED_WITHIN_S)
    late = found()
    assert set(late) == expected
    assert "TopicTest" in late["topics-late"]["evidence"]
    assert "billing" in late["groups-late"]["evidence"]
    assert "TopicTest@billing" in late["offsets-missing"]["evidence"]
    # With a longer limit there is still time.
    assert set(examined(master, slave, *PATIENT)) == {"slave-without-name-server"}

    if is_5(java.version):
        # It commits only for topics and groups that it has, and lets them be made at a slave.
        make_topic(slave.listen_address)
        make_group(slave.listen_address)
    commit(slave.listen_address, 3)
    ahead = examined(master, slave)
    assert "TopicTest@billing queue 0: 3 at the slave, 1 at the master" in ahead["offsets-ahead"]["evidence"]


@pytest.mark.nightly
def test_a_master_without_its_second_port_is_found(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    # On any free port, a node has no second port: no other process listens there while it is bound here.
    with socket.socket() as second:
        for attempt in count():
            master = start_node(f"master-{attempt}", role="ASYNC_MASTER")
            host, _, port = master.listen_address.rpartition(":")
            try:
                second.bind((host, int(port) - 2))
            except OSError:
                assert attempt < ATTEMPTS
            else:
                break
        slave = java.open_broker(tmp_path / "s", role="SLAVE")
        found = examined(master, slave)
    assert f"{host}:{int(port) - 2}: Connection refused" in found["vip-port-unreachable"]["evidence"]


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_lines_of_a_file_that_a_real_broker_does_not_use_are_found(java: JavaDriver, tmp_path: Path) -> None:
    master = java.open_broker(tmp_path / "m", role="ASYNC_MASTER", brokerName="filed")
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName=interop\nbrokerName=filed\nbrokerId=0\nbrokerRole=ASYNC_MASTER\n"
        "brokerIP1=127.0.0.1\nslaveTimeout=4000\nhaHousekeepingInterval=20s\n"
        + ("haSlaveFallbehindMax=1000\n" if is_5(java.version) else "inSyncReplicas=2\n")
    )
    found = examine(master.listen_address, path)
    assert set(found) == {"setting-ignored", "setting-not-in-effect", "setting-invalid"}
    assert "line 8:" in found["setting-ignored"]["evidence"]
    assert "slaveTimeout is 4000, in effect is 10000" in found["setting-not-in-effect"]["evidence"]
    assert "haHousekeepingInterval=20s" in found["setting-invalid"]["evidence"]

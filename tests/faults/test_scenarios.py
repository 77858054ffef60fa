"""Single scenarios that random plans meet too seldom, played exactly."""

import json
import time

import pytest
import trio

from tests.faults.cluster import Cluster
from tests.faults.faults import MASTER, DiskFull, FailingSync, LostLog, Shortage
from tests.faults.invariants import check_process_logs, held_messages
from tests.faults.metadata import fetch_tables
from tests.faults.peers import Guest
from tests.faults.plan import STRANGERS_MAX
from tests.faults.producer import TOPICS, LoadSettings
from tests.faults.proxy import BOTH
from tests.faults.support import plan_of, settle_and_compare
from tests.waiting import wait_until
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.process, pytest.mark.full]

SYNC_FAILS_WITHIN_S = 60
LAGGING = "faults-lagging"


def hang_with_puts_waiting(cluster, slave):
    """Hang a slave under load; returns when every sender waits for it."""
    wait_until(lambda: len(cluster.promises) >= 20)
    cluster.hang(slave)
    time.sleep(0.5)
    waiting_from = len(cluster.promises)
    time.sleep(0.2)
    assert len(cluster.promises) == waiting_from


def test_a_stranger_that_claims_to_hold_the_whole_log_releases_no_put(tmp_path):
    with Cluster(plan_of(), tmp_path) as cluster:
        cluster.begin()
        hang_with_puts_waiting(cluster, "slave-1")
        cluster.visit(MASTER, Guest.CLAIM, seed=1, stay_s=1.0)
        cluster.pause(1.0)
        cluster.kill([MASTER])
        assert cluster.violations == []


def test_a_slave_that_comes_back_before_its_old_connection_ends_is_one_copy(tmp_path):
    with Cluster(plan_of(slaves=2, in_sync_replicas=3), tmp_path) as cluster:
        cluster.begin()
        hang_with_puts_waiting(cluster, "slave-2")
        # The master is not notified of the end of this connection, nor of the slave's.
        cluster.link(0, "vanish")
        cluster.link(0, "appear")
        cluster.kill(["slave-1"])
        cluster.start("slave-1")
        cluster.keepers["slave-1"].node().wait(max_offset=cluster.keepers[MASTER].node().max_offset)
        cluster.pause(0.5)
        cluster.kill([MASTER])
        assert cluster.violations == []


def test_a_slave_that_starts_from_earliest_before_there_is_anything_gets_all(tmp_path):
    plan = plan_of(role="ASYNC_MASTER", file_bytes=65536, start_from="earliest")
    with Cluster(plan, tmp_path) as cluster:
        for name in plan.setup.nodes:
            cluster.start(name)
        master = cluster.keepers[MASTER].node()
        cluster.keepers["slave-1"].node()
        # Time for the slave to see two heartbeats of a master that is empty, and to ask once more.
        cluster.pause(1.5)
        cluster.link(0, "cut", reset=True)
        cluster.link(0, "vanish")
        cluster.produce()
        wait_until(lambda: master.max_offset > 2 * plan.setup.file_bytes)
        end_offset = cluster.settle()
        cluster.end()
    held = held_messages(cluster.store("slave-1"))
    assert (held.min_offset, held.end_offset) == (0, end_offset)


def test_a_master_whose_disk_is_full_refuses_puts_replicates_and_goes_on_by_itself(tmp_path):
    fault = DiskFull(node=MASTER, duration_s=0.0)
    plan = plan_of(file_bytes=65536, faults=[fault], role="ASYNC_MASTER")
    with Cluster(plan, tmp_path) as cluster:
        cluster.begin()
        master, slave = cluster.keepers[MASTER].node(), cluster.keepers["slave-1"].node()
        mend = fault.begin(cluster)
        wait_until(lambda: cluster.statuses.get("SERVICE_NOT_AVAILABLE", 0) >= 10)
        # What fits goes on being taken and replicated: the slave ends where the master does.
        slave.wait(max_offset=master.max_offset)
        mend()
        kept = len(cluster.promises)
        wait_until(lambda: len(cluster.promises) >= kept + 50)
        refused = cluster.statuses["SERVICE_NOT_AVAILABLE"]
        settle_and_compare(cluster)
        assert cluster.statuses["SERVICE_NOT_AVAILABLE"] == refused
        assert {keeper.starts for keeper in cluster.keepers.values()} == {1}


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_slave_whose_disk_is_full_holds_back_acks_and_goes_on_by_itself(tmp_path, is_killed):
    fault = DiskFull(node="slave-1", duration_s=0.0)
    plan = plan_of(file_bytes=65536, faults=[fault], slave_timeout_ms=300)
    with Cluster(plan, tmp_path) as cluster:
        cluster.begin()
        mend = fault.begin(cluster)
        wait_until(lambda: cluster.statuses.get("FLUSH_SLAVE_TIMEOUT", 0) >= 10)
        if is_killed:
            # It starts on the full disk.
            cluster.kill(["slave-1"])
            cluster.start("slave-1")
        slave = cluster.keepers["slave-1"].node()
        assert 0 < slave.max_offset < cluster.keepers[MASTER].node().max_offset
        mend()
        settle_and_compare(cluster)
        assert cluster.keepers["slave-1"].starts == 1 + is_killed


@pytest.mark.parametrize("name", [MASTER, "slave-1"])
def test_a_node_whose_syncs_fail_ends_and_promises_nothing_more(tmp_path, name):
    fault = FailingSync(node=name, ends_within_s=SYNC_FAILS_WITHIN_S, duration_s=0.0)
    sync = {"flush_disk_type": "SYNC_FLUSH", "slave_flush_disk_type": "SYNC_FLUSH", "ack_mode": "flushed"}
    with Cluster(plan_of(faults=[fault], slave_timeout_ms=1000, **sync), tmp_path) as cluster:
        cluster.begin()
        wait_until(lambda: len(cluster.promises) >= 20)
        mend = fault.begin(cluster)
        assert cluster.keepers[name].failed_syncs == 1
        assert cluster.violations == []
        mend()
        settle_and_compare(cluster)


def test_slaves_in_a_chain_begin_anew_when_the_first_log_of_it_is_another(tmp_path):
    """No byte of the old log is followed by one of the new: what the middle sets aside ends its own slave's
    connection, too, however long the new log has grown meanwhile."""
    fault = LostLog(duration_s=0.0)
    # Records of one length: those of the new log begin where those of the old one do, and no check of one
    # record can distinguish them.
    load = LoadSettings(concurrency=4, rate=200.0, body_bytes_max=1, topics=TOPICS[:1])
    chain = {"is_chain": True, "gap_policy": "resync", "start_from": "earliest", "load": load}
    plan = plan_of(role="ASYNC_MASTER", slaves=2, faults=[fault], file_bytes=65536, **chain)
    with Cluster(plan, tmp_path) as cluster:
        cluster.begin()
        wait_until(lambda: len(cluster.promises) >= 50)
        last, master = cluster.keepers["slave-2"].node(), cluster.keepers[MASTER].node()
        last.wait(max_offset=master.max_offset)
        mend = fault.begin(cluster)
        old_end_offset = last.max_offset
        mend()
        master = cluster.keepers[MASTER].node()
        wait_until(lambda: master.max_offset > old_end_offset)
        settle_and_compare(cluster)
        assert [keeper.starts for keeper in cluster.keepers.values()] == [2, 1, 1]
    # Both have kept what they held before.
    for slave in ("slave-1", "slave-2"):
        assert any(path.name.startswith("commitlog.") for path in cluster.store(slave).iterdir())


def commit(node, offset):
    """Commit an offset of a group that lags: not the one of the load."""

    async def ask():
        async with open_client(node.listen_address) as client:
            group = json.dumps({"groupName": LAGGING}).encode()
            fields = {
                "topic": TOPICS[0],
                "consumerGroup": LAGGING,
                "queueId": "0",
                "commitOffset": str(offset),
            }
            for asked in (
                request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group),
                request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields),
            ):
                assert (await client.request(asked, timeout_s=10)).code == ResponseCode.SUCCESS

    trio.run(ask)


def committed(node):
    """The offset of the group that lags."""
    tables = trio.run(fetch_tables, node.listen_address)
    offsets = tables.get(RequestCode.GET_ALL_CONSUMER_OFFSET.name, {}).get("offsetTable", {})
    return offsets.get(f"{TOPICS[0]}@{LAGGING}", {}).get("0")


def test_offsets_of_a_log_that_was_lost_give_way_to_those_of_the_new_one(tmp_path):
    """Also where the new queues have grown beyond them before the next copy of metadata."""
    fault = LostLog(duration_s=0.0)
    load = LoadSettings(concurrency=4, rate=200.0, body_bytes_max=10, topics=TOPICS[:1])
    settings = {"gap_policy": "resync", "start_from": "earliest", "load": load}
    with Cluster(plan_of(role="ASYNC_MASTER", faults=[fault], **settings), tmp_path) as cluster:
        cluster.begin()
        slave = cluster.keepers["slave-1"].node()
        wait_until(lambda: len(cluster.promises) >= 50)
        commit(cluster.keepers[MASTER].node(), 8)
        wait_until(lambda: committed(slave) == 8)
        slave.wait(max_offset=cluster.keepers[MASTER].node().max_offset)
        cluster.metadata_link(0, "freeze", *BOTH)
        mend = fault.begin(cluster)
        mend()
        master = cluster.keepers[MASTER].node()
        # Forgotten at the loss: all of these are in the new log.
        wait_until(lambda: len(cluster.promises) >= 60)
        wait_until(lambda: slave.status().client.state == "TRANSFER")
        slave.wait(max_offset=master.max_offset)
        commit(master, 3)
        assert committed(slave) == 8
        cluster.metadata_link(0, "thaw")
        wait_until(lambda: committed(slave) == 3)
        settle_and_compare(cluster)


@pytest.mark.parametrize("is_at_ha_port", [False, True])
def test_strangers_that_use_up_all_connections_disturb_no_connected_peer(tmp_path, is_at_ha_port):
    """A node that may have 128 files open: it stays, writes on, and serves its producer and its slave."""
    fault = Shortage(node=MASTER, is_at_ha_port=is_at_ha_port, connections=STRANGERS_MAX, duration_s=2.0)
    # Small files: new ones are opened all the time.
    plan = plan_of(faults=[fault], descriptors_max=128, file_bytes=65536)
    with Cluster(plan, tmp_path) as cluster:
        cluster.begin()
        wait_until(lambda: len(cluster.promises) >= 20)
        statuses = cluster.statuses
        slave = cluster.keepers["slave-1"].node()
        reconnects = slave.status().client.reconnects
        fault.begin(cluster)
        kept = len(cluster.promises)
        cluster.pause(fault.duration_s)
        assert len(cluster.promises) > kept
        cluster.settle()
        others = {name: number for name, number in cluster.statuses.items() if name != "PUT_OK"}
        assert others == {name: number for name, number in statuses.items() if name != "PUT_OK"}
        assert slave.status().client.reconnects == reconnects
        cluster.end()
    assert check_process_logs(cluster.log_file(name) for name in plan.setup.nodes) == []

"""Nodes that have become the master of a log in which a RocketMQ 5 master left timers and popped messages."""

import json
import shutil

import pytest

from tests.broker.pending_records import FAILOVER, KILLED_AT, SENT, TIMERS, recorded, stored
from tests.doctor.changes import ask
from tests.metrics.scraping import parsed, scrape, value
from tests.node.role_nodes import ASYNC_MASTER, put, role_node, slave_of
from tests.node_process import FILE_BYTES, run_trioha
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.broker.pending import PendingCount
from trioha.broker.timer_records import PendingTimers
from trioha.broker_status import PendingStatus
from trioha.metadata.documents import TimerCheckPoint
from trioha.node import pending_messages
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.store.queue_folders import QueueFolders
from trioha.store.topics import TIMER_TOPIC

FIRST_MS, LAST_MS, POP_MS = 1795807052000, 1796066247000, 1795806510896
FIRST_POP_SLOT_MS = 1795806615000
LEFT = PendingStatus(
    timers=8,
    timers_first_ms=FIRST_MS,
    timers_last_ms=LAST_MS,
    popped=6,
    popped_first_ms=POP_MS,
    popped_groups={"FT@FG": 6},
)
UNDELIVERED = {"mappedFileSizeCommitLog": FILE_BYTES, "timerWheelEnable": "false"}
WARNING = "a RocketMQ master left messages in the log that are not delivered"
DOUBT = "timers are counted without the check point of RocketMQ's timer"
UNREAD = "the store has RocksDB stores of a RocketMQ broker, which are not read"


def make_log(root):
    """The log of a real master that was killed: 8 timers pending, 6 popped messages not acknowledged."""
    popped = [record for record in recorded(FAILOVER) if record.physical_offset < KILLED_AT]
    stored(root.with_name("made"), [*popped, *recorded(TIMERS)[:SENT]]).close()
    # The node builds queues and index of its own sizes.
    shutil.copytree(root.with_name("made") / "commitlog", root / "commitlog")


def wait_counted(node):
    wait_until(lambda: node.status().pending is not None, "what is pending is counted")
    return node.status().pending


@pytest.mark.process
def test_a_master_says_what_a_rocketmq_master_left_in_its_log(start_node, tmp_path):
    root = tmp_path / "master"
    make_log(root)
    (root / "kvStore").mkdir()
    for name in ("CURRENT", "MANIFEST-000005", "000004.log"):
        (root / "kvStore" / name).write_bytes(b"data")
    (root / "config").mkdir()
    (root / "config/timercheck").write_bytes(b"cut")
    settings = {"trioha.metricsPort": 0, "timerWheelEnable": "false"}

    slave = start_node("master", role="SLAVE", ha_master_address=f"127.0.0.1:{free_port()}", **settings)
    assert WARNING not in slave.log_path.read_text()
    assert slave.status().pending is None
    slave.stop()
    offline = run_trioha("doctor", root)
    assert offline.exit_code == 1, offline
    assert "unread-store" in offline.stdout
    assert "kvStore" in offline.stdout
    # A node that is started on the store delivers, unless it is told not to.
    assert "pending-not-delivered" not in offline.stdout

    node = start_node("master", role="ASYNC_MASTER", **settings)
    left = PendingStatus(**{**_fields(LEFT), "unread_stores": ("kvStore (popped messages)",)})
    assert wait_counted(node) == left
    logged = node.wait_logged(UNREAD)
    warning = next(line for line in logged.splitlines() if WARNING in line)
    for said in ("warning", "8 timers due from", "6 popped messages", "FT@FG (6)", "fileReservedTime"):
        assert said in warning
    assert logged.count(WARNING) == 1
    (doubt,) = (line for line in logged.splitlines() if DOUBT in line)
    assert f"{root / 'config/timercheck'}: is damaged: 3 bytes, not 4096" in doubt
    answer = ask(node.listen_address, request(RequestCode.GET_TIMER_CHECK_POINT))
    check_point = TimerCheckPoint.decode(answer.body)
    # The first slot that waits is that of a check point of a pop.
    assert 0 < check_point.last_read_ms <= FIRST_POP_SLOT_MS
    assert check_point.master_queue_offset == 8 + 2 + 9

    status = run_trioha("status", node.listen_address)
    assert status.stdout.startswith(f"WARNING: {node.listen_address}: pending-not-delivered"), status
    found = json.loads(run_trioha("status", "--json", node.listen_address).stdout)
    (broker,) = found["brokers"]
    assert (broker["pending"]["timers"], broker["pending"]["popped"]) == (8, 6)
    assert broker["pending"]["poppedGroups"] == {"FT@FG": 6}
    doctor = json.loads(run_trioha("doctor", "--json", node.listen_address).stdout)
    assert {"pending-not-delivered", "unread-store"} <= {one["id"] for one in doctor["findings"]}
    metrics = parsed(scrape(node.metrics_address)[2])
    assert value(metrics, "trioha_pending_timers") == 8
    assert value(metrics, "trioha_pending_popped_messages") == 6
    assert value(metrics, "trioha_unread_stores") == 1


def _fields(status):
    return {name: getattr(status, name) for name in status.__slots__ if not name.startswith("_")}


@pytest.mark.process
def test_a_master_with_nothing_pending_says_nothing(start_node):
    node = start_node("master", role="ASYNC_MASTER")
    assert wait_counted(node) == PendingStatus(delivers_timers=True)
    logged = node.log_path.read_text()
    assert WARNING not in logged
    assert UNREAD not in logged
    assert "pending" not in run_trioha("status", node.listen_address).stdout


async def test_a_slave_that_becomes_master_counts_and_one_that_is_none_any_more_does_not(tmp_path):
    make_log(tmp_path / "node")
    async with role_node(tmp_path / "node", slave_of(), **UNDELIVERED) as node:
        assert (await node.status()).pending is None
        await node.change(ASYNC_MASTER)
        assert (await node.until(lambda status: status.pending is not None)).pending == LEFT
        await node.change(slave_of())
        assert (await node.status()).pending is None


async def test_the_role_does_not_wait_for_the_count_and_ends_it(tmp_path, monkeypatch):
    ended = []

    def count(*_arguments, on_step, **_options):
        try:
            while True:
                on_step(0, 1)
        finally:
            ended.append(True)

    monkeypatch.setattr(pending_messages, "count_pending", count)
    async with role_node(tmp_path, slave_of()) as node:
        await node.change(ASYNC_MASTER)
        async with open_client(node.address) as client:
            assert await put(client, b"meanwhile") == "PUT_OK"
        assert (await node.status()).pending is None
        assert not ended
        await node.change(slave_of())
        assert ended


@pytest.mark.parametrize("error", ["", "bad disk"])
async def test_only_what_was_counted_is_said_to_be_delivered(tmp_path, monkeypatch, error):
    found = PendingCount(PendingStatus(error=error), PendingTimers())
    monkeypatch.setattr(pending_messages, "count_pending", lambda *_arguments, **_options: found)
    make_log(tmp_path / "node")
    oldest = next(QueueFolders.of(tmp_path / "made").records([(TIMER_TOPIC, 0)]))
    async with role_node(tmp_path / "node", slave_of(), **UNDELIVERED) as node:
        await node.change(ASYNC_MASTER)
        await node.until(lambda status: status.pending is not None)
        async with open_client(node.address) as client:
            answer = await client.request(request(RequestCode.GET_TIMER_CHECK_POINT))
    last_read_ms = TimerCheckPoint.decode(answer.body).last_read_ms
    nothing_ms = (oldest.store_timestamp_ms - 1000) // 1000 * 1000
    assert last_read_ms == nothing_ms if error else last_read_ms > nothing_ms

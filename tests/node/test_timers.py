"""Messages with a time of delivery on live nodes: over `kill -9` and a change of masters."""

import time
from collections import Counter

import pytest

from tests.doctor.changes import ask
from tests.node_process import StartNode
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.send_message import SendMessageRequestHeader, send_request
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record

TOPIC = "Orders"
PENDING = {"soon": 1.0, "while-down": 4.0, "later": 12.0}
"""Seconds until they are due."""


def send_timer(address, key, due_ms):
    properties = encode_properties({"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)}).decode()
    header = SendMessageRequestHeader("P", TOPIC, "TBW102", 1, 0, 0, 0, 0, properties=properties)
    answer = ask(address, send_request(header, key.encode()))
    assert (answer.code, "recallHandle" in answer.ext_fields) == (ResponseCode.SUCCESS, True), answer


def delivered(root):
    """By key, when each timer was delivered, in ms since 1970, each time."""
    found = []
    log = ReadOnlyCommitLog.open(root)
    for record in log.records(log.min_offset):
        if isinstance(record, Record) and record.topic == TOPIC:
            properties = parse_properties(record.properties_raw)
            found.append((properties["UNIQ_KEY"], int(properties["TIMER_DEQUEUE_MS"])))
    return found


def queue_end(address):
    fields = {"topic": TOPIC, "queueId": "0"}
    return int(ask(address, request(RequestCode.GET_MAX_OFFSET, ext_fields=fields)).ext_fields["offset"])


@pytest.mark.process
def test_each_timer_is_delivered_once_by_a_master_that_was_killed_and_by_its_slave(
    start_node: StartNode, tmp_path
):
    master = start_node("master", role="SYNC_MASTER")
    slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    wait_until(lambda: master.status().connections, "the slave is connected")
    now_ms = time.time_ns() // 1_000_000
    due_ms = {key: now_ms + round(1000 * ahead_s) for key, ahead_s in PENDING.items()}
    for key, each_ms in due_ms.items():
        send_timer(master.listen_address, key, each_ms)
    wait_until(lambda: queue_end(master.listen_address) == 1, "the first timer is delivered")
    wait_until(
        lambda: slave.status().max_offset == master.status().max_offset, "the slave has what was delivered"
    )
    master.kill()
    slave.stop()
    again = start_node("master", role="ASYNC_MASTER")
    promoted = start_node("slave", role="ASYNC_MASTER")
    for node in (again, promoted):
        wait_until(lambda node=node: queue_end(node.listen_address) == 3, "all timers are delivered")
        pending = node.status().pending
        assert (pending.timers, pending.delivers_timers) == (0, True)
        node.stop()
    for name in ("master", "slave"):
        found = delivered(tmp_path / name)
        assert Counter(key for key, _ in found) == Counter(list(due_ms))
        assert all(at_ms >= due_ms[key] for key, at_ms in found), found


@pytest.mark.process
def test_a_slave_takes_no_timers_and_delivers_none(start_node: StartNode, tmp_path):
    master = start_node("master", role="ASYNC_MASTER")
    slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    send_timer(master.listen_address, "key", time.time_ns() // 1_000_000 + 500)
    wait_until(lambda: queue_end(slave.listen_address) == 1, "the slave has the delivered message")
    slave.stop()
    master.stop()
    assert [key for key, _ in delivered(tmp_path / "slave")] == ["key"]

"""Live state and replayed state agree: the final status of a real pair and its recordings."""

from collections import Counter

import numpy as np
import pytest

from tests.analysis import replays
from tests.spark.pair import record_pair
from trioha.recording.events import Kind, LinkEvent
from trioha.recording.reader import find_sessions, open_session
from trioha.replica_verdict import Verdict
from trioha_analysis.state_at import moment, open_readers
from trioha_monitor.replay import open_replay
from trioha_monitor.view import EventKind
from trioha_sessions.aggregate import aggregate, combine
from trioha_sessions.clocks import links
from trioha_sessions.facts import read_facts
from trioha_sessions.figures import connection_result, node_result
from trioha_sessions.invariants import check_session
from trioha_sessions.records import read_records
from trioha_sessions.time_series import TimeGrid
from trioha_spark.replay import replay

pytestmark = [pytest.mark.spark, pytest.mark.full]

PART_RECORDS = 7
"""Records of a part of the kernel's aggregate."""
RANGE_RECORDS = 60
"""Records of a range of Spark's tasks."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return record_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def rows(pair, spark):
    return replays.rows(replay([pair.sessions], spark=spark, range_records=RANGE_RECORDS).collect())


def sessions_of(folder):
    """The last session of the master, and of the slave."""
    found = {session.is_slave: session for session in map(open_session, find_sessions([folder]))}
    return found[False], found[True]


def aggregated(session):
    records = read_records(session).array
    grid = TimeGrid.over(int(records["ts_ns"][0]), int(records["ts_ns"][-1]), steps=10)
    whole = combine(
        aggregate(part, is_slave=session.is_slave, grid=grid, is_first=index == 0)
        for index, part in enumerate(np.array_split(records, len(records) // PART_RECORDS))
    )
    return node_result(whole.node), {
        conn: connection_result(conn, part, grid) for conn, part in whole.connections.items()
    }


def ends(status):
    return (status.max_offset, status.flushed_offset, status.dispatched_offset)


def test_the_faults_happened(pair):
    # A slave that stops ends its connection in order, or, with bytes that it has not read, by a reset.
    assert dict(pair.master.ended_connections) in (
        {"REQUEST_ABOVE_MAX": 1, "IO_ERROR": 1, "EOF": 1},
        {"REQUEST_ABOVE_MAX": 1, "IO_ERROR": 2},
    )
    assert pair.master.put_statuses == {"PUT_OK": 15, "FLUSH_SLAVE_TIMEOUT": 1, "SLAVE_NOT_AVAILABLE": 3}
    assert len(find_sessions([pair.sessions])) == 3


def test_the_kernel_agrees_with_the_masters_status(pair):
    session, _ = sessions_of(pair.sessions)
    node, connections = aggregated(session)
    assert (node.max_offset, node.flushed_offset, node.dispatched_offset) == ends(pair.master)
    assert {wait.status: wait.count for wait in node.waits} == pair.master.put_statuses
    assert node.puts == sum(pair.master.put_statuses.values())
    reasons = [one.close_reason for one in connections.values() if one.close_reason is not None]
    assert Counter(reasons) == pair.master.ended_connections
    facts, _ = read_facts(session)
    addresses = {fact.fields["conn"]: fact.fields["address"] for fact in facts if fact.type_ == "connection"}
    assert {
        (conn, addresses[conn], one.state, one.sent_offset, one.ack_offset, one.max_offset)
        for conn, one in connections.items()
        if one.closed_ts_ns is None
    } == {
        (
            *(one.connection_id, one.address, one.state),
            *(one.sent_offset, one.ack_offset, one.ack_offset + one.lag_bytes),
        )
        for one in pair.master.connections
    }


def test_the_kernel_agrees_with_the_slaves_status(pair):
    _, session = sessions_of(pair.sessions)
    node, connections = aggregated(session)
    client = pair.slave.client
    assert (node.max_offset, node.flushed_offset, node.dispatched_offset) == ends(pair.slave)
    assert node.connects - 1 == client.reconnects
    (link,) = connections.values()
    assert (link.state, link.reported_offset, link.received_offset) == (
        *(client.state, client.reported_offset),
        client.max_offset,
    )


def test_a_slave_with_an_archived_log_has_the_end_of_its_new_one(pair):
    session = open_session(next(path for path in find_sessions([pair.sessions]) if path.name.endswith("-1")))
    node, connections = aggregated(session)
    first, *_, last = connections.values()
    assert (first.close_reason, first.max_offset) == ("AHEAD", 66_900)
    assert node.max_offset == node.flushed_offset == node.dispatched_offset == last.max_offset
    assert last.max_offset < 66_900
    # Also while it has no connection yet: until it goes to wait for the next try.
    records = read_records(session).array
    back_off = np.flatnonzero((records["kind"] == Kind.LINK) & (records["flags"] == LinkEvent.BACK_OFF))
    before = aggregate(
        records[: back_off[0]], is_slave=True, grid=TimeGrid.over(0, 1, steps=1), is_first=True
    ).node
    assert (before.max_offset, before.flushed_offset) == (0, 0)


def test_spark_agrees_with_the_nodes_status(pair, rows):
    master, first, slave = rows["sessions"]
    assert first["maxOffset"] < 66_900
    names = ("maxOffset", "flushedOffset", "dispatchedOffset")
    assert tuple(master[name] for name in names) == ends(pair.master)
    assert tuple(slave[name] for name in names) == ends(pair.slave)
    assert {row["status"]: row["count"] for row in rows["waits"]} == pair.master.put_statuses
    (status,) = pair.master.connections
    at_master, at_slave = (row for row in rows["connections"] if row["closedAtMs"] is None)
    assert (at_master["conn"], at_master["address"]) == (status.connection_id, status.address)
    assert (at_master["state"], at_master["sentOffset"], at_master["ackOffset"]) == (
        *(status.state, status.sent_offset),
        status.ack_offset,
    )
    client = pair.slave.client
    assert (at_slave["address"], at_slave["state"], at_slave["reportedOffset"]) == (
        *(client.master_address, client.state),
        client.reported_offset,
    )
    assert rows["violations"] == []


def test_spark_names_the_faults(pair, rows):
    assert [(row["role"], row["reason"], row["offset"] < row["maxOffset"]) for row in rows["gaps"]] == [
        ("SYNC_MASTER", "REQUEST_ABOVE_MAX", False),
        ("SLAVE", "AHEAD", True),
    ]
    reconnects = [(row["role"], row["closeReason"]) for row in rows["reconnects"]]
    assert reconnects[:2] == [("SYNC_MASTER", "REQUEST_ABOVE_MAX"), ("SYNC_MASTER", "IO_ERROR")]
    assert Counter(reason for role, reason in reconnects if role != "SLAVE") == pair.master.ended_connections
    assert reconnects[3:] == [("SLAVE", "AHEAD"), ("SLAVE", "IO_ERROR")]
    causes = {(row["status"], row["cause"]) for row in rows["causes"]}
    assert {("FLUSH_SLAVE_TIMEOUT", "ack"), ("SLAVE_NOT_AVAILABLE", "no slave")} < causes


def test_the_state_at_a_time_agrees_with_the_nodes_status(pair):
    readers = open_readers([pair.sessions])
    at = moment(readers, min(reader.session.wall_of(reader.last_ts_ns) for reader in readers[::2]))
    assert [(row["maxOffset"], row["flushedOffset"], row["dispatchedOffset"]) for row in at["nodes"]] == [
        ends(pair.master),
        ends(pair.slave),
    ]
    (status,) = pair.master.connections
    row = at["connections"][0]
    assert (row["sentOffset"], row["ackOffset"], row["lagBytes"]) == (
        *(status.sent_offset, status.ack_offset),
        status.lag_bytes,
    )


def test_the_monitor_agrees_with_the_nodes_status(pair):
    view = last_view(pair.sessions)
    master, slave = view.nodes
    for node, status in ((master, pair.master), (slave, pair.slave)):
        log = node.log
        assert (log.max_offset, log.flushed_offset, log.dispatched_offset) == ends(status)
        assert (node.role, node.broker_name, node.broker_id) == (
            *(status.role, status.broker_name),
            status.broker_id,
        )
    assert {put.status: put.count for put in master.log.puts} == pair.master.put_statuses
    assert master.ended_connections == pair.master.ended_connections
    (status,), (row,) = pair.master.connections, view.replicas
    assert row.verdict is Verdict.OK
    assert (row.address, row.state, row.sent_offset, row.ack_offset, row.diff_bytes, row.in_sync) == (
        *(status.address, status.state, status.sent_offset, status.ack_offset),
        *(status.lag_bytes, status.in_sync),
    )
    client = pair.slave.client
    assert (slave.slave.state, slave.slave.reported_offset, slave.slave.master_address) == (
        *(client.state, client.reported_offset),
        client.master_address,
    )
    assert slave.slave.reconnects == client.reconnects
    assert EventKind.GAP in {event.kind for event in view.events}


def last_view(folder):
    source = open_replay([folder])
    while source.work(for_s=1.0):
        pass
    assert source.damage == ()
    return source.view_at(source.position.end_ns)


def test_master_and_slave_are_one_connection_of_one_clock(pair):
    """Both nodes have the same clock, so the offset is 0 within its error."""
    found = links(open_readers([pair.sessions]))
    assert len(found) == 3
    for link in found:
        assert abs(link.clock_offset_ns) <= link.clock_error_ns
    # To the master they are connections 2 to 4; the slave counts anew when it starts.
    assert [(link.master_conn, link.slave_conn) for link in found] == [(2, 2), (3, 3), (4, 1)]


def test_a_clean_stop_does_not_change_the_result(pair):
    for session, status in zip(sessions_of(pair.stopped), (pair.master, pair.slave), strict=True):
        node, connections = aggregated(session)
        assert (node.max_offset, node.flushed_offset, node.dispatched_offset) == ends(status)
        assert all(one.closed_ts_ns is not None for one in connections.values())
        *_, last = connections.values()
        assert (last.ack_offset or last.reported_offset) == status.max_offset
        assert last.close_reason in ({"SHUTDOWN"} if session.is_slave else {"EOF", "IO_ERROR"})
    for path in find_sessions([pair.stopped]):
        assert [one for result in check_session(open_session(path)) for one in result.violations] == []

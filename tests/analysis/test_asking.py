"""`--at` and `--explain`: the state at a time, one put, and pairs of connections of master and slave."""

import json
import time
from collections import Counter
from datetime import UTC
from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.levels import by_level
from tests.sessions.sessions import WALL_NS, Event, MasterModel, as_array, write_session
from trioha.cli import main
from trioha.distribution import Distribution
from trioha.errors import TriohaError
from trioha.recording.events import CloseReason, Direction, HaState, Kind, LinkEvent, PutStatus
from trioha.recording.reader import open_session
from trioha_analysis.arrow_tables import link_table
from trioha_analysis.causes import CAUSES, CauseCounts, cause_of, count_causes
from trioha_analysis.explain import explain
from trioha_analysis.state_at import moment, open_readers, wall_time
from trioha_sessions.clocks import links
from trioha_sessions.invariants.event_batch import EventBatch, SessionSettings
from trioha_sessions.records import read_records

MS = 1_000_000
SLAVE_AHEAD = 7 * MS
"""How far the slave's clock is ahead in these sessions."""


def master_events():
    """Request 1 waits for the network, 2 to be sent, 3 for an ack that does not come, 4 has no slave."""
    return [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.HANDSHAKE),
        Event(1 * MS, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
        Event(1 * MS, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.TRANSFER),
        Event(1 * MS, Kind.ACK, conn=1, offset=1000, aux=1000),
        Event(10 * MS, Kind.PUT, offset=1500, aux=1, size=500),
        Event(10 * MS, Kind.WAIT_BEGIN, offset=1500, aux=1, size=2),
        Event(11 * MS, Kind.TRANSFER, conn=1, offset=1000, aux=1500, size=500),
        Event(15 * MS, Kind.ACK, conn=1, offset=1500, aux=1500),
        Event(15 * MS, Kind.WAIT_END, offset=1500, aux=1, size=5000, flags=PutStatus.PUT_OK),
        Event(16 * MS, Kind.FLUSHED, offset=1500, aux=300_000),
        Event(20 * MS, Kind.PUT, offset=2000, aux=2, size=500),
        Event(20 * MS, Kind.WAIT_BEGIN, offset=2000, aux=2, size=2),
        Event(28 * MS, Kind.TRANSFER, conn=1, offset=1500, aux=2000, size=500),
        Event(30 * MS, Kind.ACK, conn=1, offset=2000, aux=2000),
        Event(30 * MS, Kind.WAIT_END, offset=2000, aux=2, size=10_000, flags=PutStatus.PUT_OK),
        Event(40 * MS, Kind.PUT, offset=2500, aux=3, size=500),
        Event(40 * MS, Kind.WAIT_BEGIN, offset=2500, aux=3, size=2),
        Event(41 * MS, Kind.TRANSFER, conn=1, offset=2000, aux=2500, size=500),
        Event(90 * MS, Kind.WAIT_END, offset=2500, aux=3, size=50_000, flags=PutStatus.FLUSH_SLAVE_TIMEOUT),
        Event(95 * MS, Kind.ACK, conn=1, offset=2500, aux=2500),
        Event(96 * MS, Kind.CLOSED, conn=1, offset=2500, aux=2500, flags=CloseReason.EOF),
        Event(97 * MS, Kind.PUT, offset=3000, aux=4, size=500),
        Event(97 * MS, Kind.WAIT_BEGIN, offset=3000, aux=4, size=2),
        Event(97 * MS, Kind.WAIT_END, offset=3000, aux=4, size=0, flags=PutStatus.SLAVE_NOT_AVAILABLE),
        Event(98 * MS, Kind.PUT, offset=3500, aux=5, size=500),
    ]


def slave_events():
    """The same at its slave, with one-way delays of 1 ms."""
    events = [
        Event(0, Kind.LINK, conn=4, flags=LinkEvent.CONNECTED),
        Event(0, Kind.REPORTED, conn=4, offset=1000, aux=1000),
        Event(12 * MS, Kind.RECEIVED, conn=4, offset=1000, aux=1500, size=500),
        Event(14 * MS, Kind.REPORTED, conn=4, offset=1500, aux=1500),
        Event(29 * MS, Kind.RECEIVED, conn=4, offset=1500, aux=2000, size=500),
        Event(29 * MS, Kind.REPORTED, conn=4, offset=2000, aux=2000),
        Event(42 * MS, Kind.RECEIVED, conn=4, offset=2000, aux=2500, size=500),
        Event(42 * MS, Kind.HEARTBEAT, conn=4, offset=2500, aux=2500, flags=Direction.RECEIVED),
        Event(94 * MS, Kind.REPORTED, conn=4, offset=2500, aux=2500),
    ]
    return [Event(e.ts_ns + SLAVE_AHEAD, e.kind, e.conn, e.offset, e.aux, e.size, e.flags) for e in events]


@pytest.fixture
def folder(tmp_path):
    write_session(tmp_path / "20260101-a-0", master_events(), addresses={1: "10.0.0.2:41000"})
    write_session(tmp_path / "20260101-a-1", slave_events(), role="SLAVE", broker_id=1)
    return tmp_path


def causes_of(batch):
    """Cause and connection of each wait of a whole session."""
    found = [
        cause_of(batch, end, before=lambda: (), opened=frozenset()) for end in batch.wait_pairs.ends.tolist()
    ]
    return [(CAUSES[cause], conn) for cause, conn in found]


def test_causes_are_those_of_the_sessions_puts(folder):
    session = open_session(folder / "20260101-a-0")
    batch = EventBatch(read_records(session).array, SessionSettings.of(session), True)
    assert causes_of(batch) == [("ack", 1), ("send", 1), ("ack", 1), ("no slave", -1)]


def causes_by_parts(session, records, cuts):
    """Waiting times by status, cause and connection, of parts of a session that are joined."""
    parts = [
        count_causes(
            EventBatch(records[begin:end], SessionSettings.of(session), is_first=begin == 0),
            before=lambda begin=begin: (records[max(0, begin - count) : begin] for count in (1, 50, 10_000)),
        )
        for begin, end in pairwise([0, *sorted(cuts), len(records)])
        if begin < end
    ]
    found = reduce(CauseCounts.__add__, parts).finished().waited_us.items()
    return [(key, us.buckets.tolist(), us.weights.tolist()) for key, us in found]


@given(st.integers(0, 10_000), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_causes_do_not_depend_on_how_a_session_is_split(folder, seed, data):
    session = open_session(folder / "20260101-a-0")
    events = MasterModel(seed).run(data.draw(st.integers(1, 300)))
    if not events:
        return
    records = as_array(folder / "20260101-a-0", events).copy()
    records["seq"] = np.arange(len(records))
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=6))
    assert causes_by_parts(session, records, cuts) == causes_by_parts(session, records, [])


def test_flush_is_the_cause_if_it_was_later_than_the_ack(folder):
    session = open_session(folder / "20260101-a-0")
    events = [
        Event(0, Kind.WAIT_BEGIN, offset=300, aux=1, size=1),
        Event(1, Kind.WAIT_BEGIN, offset=400, aux=2, size=1),
        Event(5, Kind.FLUSHED, offset=300),
        Event(6, Kind.WAIT_END, offset=300, aux=1, flags=PutStatus.PUT_OK),
        Event(9, Kind.WAIT_END, offset=400, aux=2, flags=PutStatus.FLUSH_DISK_TIMEOUT),
    ]
    path = write_session(folder / "sync" / "session", events)
    setting = SessionSettings(False, {"flushDiskType": "SYNC_FLUSH"})
    assert not session.is_slave
    batch = EventBatch(read_records(open_session(path)).array, setting, True)
    assert causes_of(batch) == [("flush", -1), ("flush", -1)]


def counts_of(path):
    """Number of puts by status, cause and connection, from a replay."""
    session = open_session(path)
    batch = EventBatch(read_records(session).array, SessionSettings.of(session), True)
    counts = count_causes(batch, before=lambda: ()).finished().waited_us
    return Counter(
        {
            (
                PutStatus(status).name,
                None if CAUSES[cause] == "unknown" else CAUSES[cause],
                None if conn < 0 else conn,
            ): waited_us.total
            for (status, cause, conn), waited_us in counts.items()
        }
    )


def stories_of(path):
    """The same from the explanations of all its puts."""
    readers = open_readers([path])
    ids = {
        int(record["aux"])
        for record in read_records(open_session(path)).array
        if record["kind"] == Kind.WAIT_END
    }
    stories = [explain(readers, str(request)) for request in sorted(ids)]
    return Counter((story["status"], story["cause"], story["causeConn"]) for story in stories)


def test_timeout_with_an_open_silent_connection_is_not_caused_by_a_missing_slave(tmp_path):
    events = [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.HANDSHAKE),
        Event(1 * MS, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
        Event(1 * MS, Kind.STATE, conn=1, offset=-1, aux=1000, flags=HaState.TRANSFER),
        Event(1 * MS, Kind.ACK, conn=1, offset=1000, aux=1000),
        # Frozen: nothing of it is recorded any more.
        Event(20 * MS, Kind.PUT, offset=1500, aux=1, size=500),
        Event(20 * MS, Kind.WAIT_BEGIN, offset=1500, aux=1, size=2),
        Event(70 * MS, Kind.WAIT_END, offset=1500, aux=1, size=50_000, flags=PutStatus.FLUSH_SLAVE_TIMEOUT),
    ]
    path = write_session(tmp_path / "silent", events)
    assert counts_of(path) == stories_of(path) == {("FLUSH_SLAVE_TIMEOUT", "send", None): 1}
    summary = explain(open_readers([path]), "1")["summary"]
    assert "it was not sent to the slaves that had not acknowledged it" in summary
    # An open probe could not have acknowledged it.
    probe = [
        Event(e.ts_ns, e.kind, e.conn, e.offset, e.aux, e.size, e.flags) for e in (events[0], *events[4:])
    ]
    path = write_session(tmp_path / "probe", probe)
    assert counts_of(path) == stories_of(path) == {("FLUSH_SLAVE_TIMEOUT", "no slave", None): 1}
    assert "no connection was open" in explain(open_readers([path]), "1")["summary"]


WAIT_THAT_TIMES_OUT = (
    Event(0, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
    Event(0, Kind.ACK, conn=1, offset=1000, aux=1000),
    Event(20 * MS, Kind.PUT, offset=1500, aux=1, size=500),
    Event(20 * MS, Kind.WAIT_BEGIN, offset=1500, aux=1, size=2),
    Event(70 * MS, Kind.WAIT_END, offset=1500, aux=1, size=50_000, flags=PutStatus.FLUSH_SLAVE_TIMEOUT),
    Event(70 * MS, Kind.TRANSFER, conn=1, offset=1000, aux=1500, size=500),
)
"""The frame has the time of the end and is recorded after it."""


def test_explain_and_replay_count_no_frame_recorded_after_the_end_of_a_wait_at_the_same_time(tmp_path):
    path = write_session(tmp_path / "session", WAIT_THAT_TIMES_OUT)
    assert counts_of(path) == stories_of(path) == {("FLUSH_SLAVE_TIMEOUT", "send", None): 1}


@pytest.mark.parametrize("cut", range(1, len(WAIT_THAT_TIMES_OUT)))
def test_no_part_counts_a_frame_recorded_after_the_end_of_a_wait_at_the_same_time(tmp_path, cut):
    session = open_session(write_session(tmp_path / "session", WAIT_THAT_TIMES_OUT))
    records = read_records(session).array
    ((key, _, _),) = causes_by_parts(session, records, [cut])
    assert key == (PutStatus.FLUSH_SLAVE_TIMEOUT, CAUSES.index("send"), -1)


def test_explain_and_replay_count_no_flush_recorded_after_the_end_of_a_wait(tmp_path):
    events = [
        Event(0, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
        Event(20 * MS, Kind.PUT, offset=1500, aux=1, size=500),
        Event(20 * MS, Kind.WAIT_BEGIN, offset=1500, aux=1, size=2),
        Event(21 * MS, Kind.TRANSFER, conn=1, offset=1000, aux=1500, size=500),
        Event(30 * MS, Kind.ACK, conn=1, offset=1500, aux=1500),
        Event(30 * MS, Kind.WAIT_END, offset=1500, aux=1, size=10_000, flags=PutStatus.PUT_OK),
        Event(31 * MS, Kind.FLUSHED, offset=1500, aux=300_000),
    ]
    path = write_session(tmp_path / "session", events, settings={"flushDiskType": "SYNC_FLUSH"})
    assert counts_of(path) == stories_of(path) == {("PUT_OK", "ack", 1): 1}


@pytest.mark.sized
def test_explain_and_replay_agree_on_the_cause_of_each_put(tmp_path):
    for seed in range(by_level(2, 12, 200)):
        path = write_session(tmp_path / str(seed), MasterModel(seed).run(220))
        assert stories_of(path) == counts_of(path), seed


def test_connections_of_master_and_slave_are_joined_and_their_clocks_compared(folder):
    (link,) = links(open_readers([folder]))
    assert (link.master_conn, link.slave_conn, link.frames) == (1, 4, 3)
    assert (link.clock_offset_ns, link.clock_error_ns) == (SLAVE_AHEAD, 1 * MS)
    assert link.master_wall_ns(WALL_NS + SLAVE_AHEAD) == WALL_NS


def test_ack_time_is_split_into_both_one_way_delays_and_the_slaves_time(folder):
    (link,) = links(open_readers([folder]))
    table = link_table([link])
    (row,) = table.to_pylist()
    assert (row["aheadMs"], row["uncertainMs"]) == (SLAVE_AHEAD / MS, 1.0)
    for name, expected in (("thereMs", (1, 1, 1)), ("slaveMs", (2, 52, 52)), ("backMs", (1, 1, 1))):
        # A percentile is at most a thousandth above the true one.
        assert tuple(row[name].values()) == pytest.approx(expected, rel=1e-3), name
    assert link.ack_mostly == "slave"
    assert evolve(link, slave_ns=Distribution(MS, MS, MS, 1)).ack_mostly == "network"


def test_clock_offset_is_unknown_without_acks(tmp_path):
    acks = (Kind.ACK, Kind.HEARTBEAT)
    write_session(tmp_path / "20260101-a-0", [e for e in master_events() if e.kind not in acks])
    write_session(tmp_path / "20260101-a-1", slave_events(), role="SLAVE", broker_id=1)
    (link,) = links(open_readers([tmp_path]))
    assert (link.frames, link.clock_offset_ns, link.to_slave_ns, link.to_master_ns) == (3, None, None, None)
    assert link.slave_ns is not None
    assert link.ack_mostly is None


def test_story_of_a_put_has_its_steps_on_both_nodes_at_the_masters_time(folder):
    story = explain(open_readers([folder]), "1")
    assert (story["status"], story["waitedMs"], story["acksNeeded"]) == ("PUT_OK", 5.0, 1)
    assert (story["startOffset"], story["endOffset"]) == (1000, 1500)
    assert [(step["afterMs"], step["what"]) for step in story["steps"]] == [
        (0.0, "stored"),
        (0.0, "waits"),
        (0.0, "open"),
        (1.0, "sent"),
        (2.0, "received"),
        (4.0, "reported"),
        (5.0, "answered"),
        (5.0, "acked"),
        (6.0, "flushed"),
    ]
    assert story["summary"] == (
        "PUT_OK after 5.000 ms: connection 1 (10.0.0.2:41000) was last, "
        "and most of the time went from sending it to the ack."
    )


def test_put_is_found_by_request_id_offset_or_rank(folder):
    readers = open_readers([folder])
    late = "was sent it and did not acknowledge it in time"
    unsent = "most of the time went before it was sent to it"
    for request, request_id, summary in (
        ("slowest", 3, late),
        ("failed", 3, late),
        ("@1999", 2, unsent),
        ("@1500", 2, unsent),
        ("4", 4, "fewer slaves were in sync than it needed; no connection was open"),
        ("5", 5, "waited for nothing"),
    ):
        story = explain(readers, request)
        assert story["request"] == request_id, request
        assert summary in story["summary"], request
    assert [step["sentence"] for step in explain(readers, "3")["steps"] if step["what"] == "acked"] == [
        "connection 1 (10.0.0.2:41000) acknowledged 2500, too late"
    ]
    assert explain(readers, "failed", at_wall_ns=wall_time("+0.095", readers))["request"] == 4
    for request in ("77", "@99999", "nonsense"):
        with pytest.raises(TriohaError, match="a request id, @OFFSET, slowest or failed"):
            explain(readers, request)


def test_state_at_a_time_has_all_nodes_and_connections(folder):
    readers = open_readers([folder])
    found = moment(readers, wall_time("+0.0285", readers))
    assert [(row["brokerId"], row["maxOffset"], row["flushedOffset"]) for row in found["nodes"]] == [
        (0, 2000, 1500),
        (1, 1500, None),
    ]
    master, slave = found["connections"]
    assert (master["state"], master["sentOffset"], master["ackOffset"], master["lagBytes"]) == (
        *("TRANSFER", 2000, 1500, 500),
    )
    assert master["heardMsAgo"] == 13.5
    # Its clock is 7 ms ahead: what it had at 21.5 ms of the master's.
    assert (slave["receivedOffset"], slave["reportedOffset"]) == (1500, 1500)


def test_state_and_probes_at_a_moment_follow_the_rules_of_the_kernel(tmp_path):
    path = write_session(
        tmp_path / "session",
        [
            Event(1, Kind.STATE, conn=1, offset=-1, aux=1000, flags=200),
            Event(2, Kind.REQUESTED, conn=1, offset=400, aux=1000),
            # A monitor samples a connection that was not sent anything yet.
            Event(3, Kind.HEARTBEAT, conn=2, offset=-1, aux=1000, flags=Direction.SENT),
        ],
    )
    readers = open_readers([path])
    found = moment(readers, wall_time("end", readers))
    assert [(row["conn"], row["state"], row["lagBytes"]) for row in found["connections"]] == [
        (1, "200", None)
    ]
    assert [row["probes"] for row in found["nodes"]] == [1]


def test_times_have_several_notations(folder):
    readers = open_readers([folder])
    for text, after_ms in (
        ("+1.5", 1500),
        ("50%", 50.5),
        ("2026-09-21T14:13:20.25Z", 250),
        ("2026-09-21T16:13:20.25+02:00", 250),
        ("14:13:20.25", 250),
        ("14:13", -20_000),
        ("16:13:20+02:00", 0),
        ("begin", 0),
        ("end", 101),
    ):
        assert wall_time(text, readers, zone=UTC) == WALL_NS + round(after_ms * MS), text
    for text in ("soon", "25:00", "+x", "1%%", ""):
        with pytest.raises(TriohaError, match=r"not a time.*; say 03:12:00 or 2026-"):
            wall_time(text, readers)


def test_clock_times_are_in_the_local_zone(folder, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert main(["replay", str(folder), "--at", "16:13:20.0285"]) == 0
        local = capsys.readouterr().out
        assert main(["replay", str(folder), "--at", "14:13:20.0285Z"]) == 0
        assert capsys.readouterr().out == local
        assert "2026-09-21 16:13:20.028 CEST (UTC+02:00)" in local
        assert main(["replay", str(folder), "--explain", "slowest"]) == 0
        assert "2026-09-21 16:13:20.040 CEST (UTC+02:00)" in capsys.readouterr().out
    finally:
        monkeypatch.undo()
        time.tzset()


def test_command_answers_without_java(folder, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", "")
    assert main(["replay", str(folder), "--explain", "failed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cause"] == "ack"
    assert main(["replay", str(folder), "--explain", "slowest"]) == 0
    shown = capsys.readouterr().out
    assert "FLUSH_SLAVE_TIMEOUT after 50.000 ms" in shown
    assert "clock offset of slave 1: +7.000 ms ± 1.000 ms" in shown
    assert main(["replay", str(folder), "--at", "+0.05"]) == 0
    assert "TRANSFER" in capsys.readouterr().out
    assert main(["replay", str(folder), "--at", "+999"]) == 0
    assert "none of these sessions covers that time" in capsys.readouterr().out

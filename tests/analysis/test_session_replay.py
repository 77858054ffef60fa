"""Replays: figures of connections and nodes as counted by hand, tables, and invariance under cutting."""

import re
from datetime import UTC
from pathlib import Path

import pytest
from attrs import evolve

from tests.analysis.replays import MS, arrow_tables, document, master_events, replay_here
from tests.sessions.sessions import WALL_NS, Event, MasterModel, slave_events, write_session
from trioha.recording.events import CloseReason, HaState, Kind
from trioha_analysis import seconds
from trioha_analysis.replay_plan import series_grid
from trioha_analysis.reports.session_summary import session_points


def test_connection_of_a_master_has_the_figures_counted_by_hand(result):
    first, second = document(result)["connections"][:2]
    assert first == {
        "session": "20260101T000000.000Z-broker-a-0",
        "brokerName": "broker-a",
        "brokerId": 0,
        "role": "SYNC_MASTER",
        "conn": 1,
        "address": "10.0.0.2:41000",
        "openedAtMs": WALL_NS // MS,
        "closedAtMs": WALL_NS // MS + 20,
        "state": "SHUTDOWN",
        "closeReason": "EOF",
        "bytes": 1000,
        "frames": 2,
        "acks": 2,
        # No lag from 1 to 2 ms and from 4 to 10 ms; 500 bytes from 2 to 4 ms and from 10 to 20 ms.
        "lagBytes": {"p50": 500, "p99": 500, "max": 500},
        "ackLatencyMs": {"p50": 2.0, "p99": 2.0, "max": 2.0},
        "unacknowledgedFrames": 1,
        "requestOffset": 1000,
        "sentOffset": 2000,
        "ackOffset": 1500,
        "receivedOffset": None,
        "reportedOffset": None,
        "maxOffset": 2000,
        "heartbeatsSent": 0,
        "heartbeatsReceived": 0,
        "refused": 0,
    }
    assert (second["state"], second["closeReason"], second["closedAtMs"]) == ("TRANSFER", None, None)
    assert (second["sentOffset"], second["ackOffset"], second["maxOffset"]) == (2000, 2000, 2000)
    assert second["ackLatencyMs"] == {"p50": 3.0, "p99": 3.0, "max": 3.0}


def test_connections_of_a_slave_have_what_it_received_and_reported(result):
    rows = document(result)["connections"][2:]
    assert [(row["conn"], row["receivedOffset"], row["reportedOffset"]) for row in rows] == [
        (1, 1300, 1300),
        (2, 1500, 1300),
    ]
    assert {row["address"] for row in rows} == {"10.0.0.1:10912"}
    assert {(row["role"], row["brokerId"], row["sentOffset"], row["ackOffset"]) for row in rows} == {
        ("SLAVE", 1, None, None)
    }


def test_sessions_have_their_nodes_and_reconnects(result):
    master, slave = document(result)["sessions"]
    assert (master["role"], master["events"], master["dropped"], master["puts"]) == ("SYNC_MASTER", 22, 3, 2)
    assert (master["putBytes"], master["maxOffset"], master["reconnects"]) == (1000, 2000, 1)
    assert (master["durationMs"], master["damage"], master["waitsOpen"]) == (45.0, [], 0)
    assert (slave["role"], slave["maxOffset"], slave["reconnects"]) == ("SLAVE", 1500, 1)


def test_waits_are_counted_by_put_status(result):
    assert [(row["status"], row["count"], row["waitedMs"]["max"]) for row in document(result)["waits"]] == [
        ("PUT_OK", 1, 2.0),
        ("FLUSH_SLAVE_TIMEOUT", 1, 20.0),
    ]


def test_invariants_are_checked_and_violations_reported(result):
    rows = document(result)
    assert [
        (row["brokerId"], row["invariant"], row["violations"])
        for row in rows["invariants"]
        if row["violations"]
    ] == [(0, "nothing-dropped", 1)]
    (dropped,) = rows["violations"]
    assert (dropped["severity"], dropped["seq"], dropped["conn"]) == ("warning", 21, None)
    assert dropped["atMs"] == WALL_NS // MS + 45
    assert dropped["sentence"].startswith("3 events were dropped")
    # The master's session lacks settings; the slave's has no acks.
    unchecked = {(row["brokerId"], row["invariant"]) for row in rows["invariants"] if row["checked"] is None}
    assert {(0, "timeout-after-its-time"), (1, "ack-within-sent"), (0, "report-within-log")} <= unchecked


def test_waits_have_their_causes(result):
    rows = document(result)["causes"]
    assert [(row["status"], row["cause"], row["conn"], row["address"], row["count"]) for row in rows] == [
        ("PUT_OK", "ack", 1, "10.0.0.2:41000", 1),
        ("FLUSH_SLAVE_TIMEOUT", "ack", 1, "10.0.0.2:41000", 1),
    ]
    assert [row["waitedMs"]["max"] for row in rows] == [2.0, 20.0]


def test_connections_have_a_row_for_each_second(result):
    rows = arrow_tables(result)["seconds"].to_pylist()
    names = ("brokerId", "conn", "state", "lagBytes", "lagSeconds", "ackLatencyMs")
    # The byte at 1500 was stored at 10 ms; connection 2 came at 41 ms. Steps are 1 ms.
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, 1, "SHUTDOWN", 500, 0.03, 2.0),
        (0, 2, "TRANSFER", 500, 0.033, 3.0),
        (1, 1, "READY", None, None, None),
        (1, 2, "TRANSFER", None, None, None),
    ]
    assert [(row["sentOffset"], row["ackOffset"], row["receivedOffset"]) for row in rows] == [
        (2000, 1500, None),
        (2000, 2000, None),
        (None, None, 1300),
        (None, None, 1500),
    ]
    assert [row["bytesPerSecond"] for row in rows] == [1000.0, 500.0, 300.0, 200.0]
    assert {row["atMs"] for row in rows} == {WALL_NS // MS}


def test_states_are_unknown_after_the_last_kept_event(result, monkeypatch):
    monkeypatch.setattr(seconds, "EVENTS_MAX", 2)
    states = [
        state
        for one in result.sessions
        for state in seconds.seconds_table(evolve(one, events=one.events[:2]))["state"].to_pylist()
    ]
    assert states == [None] * 4


def test_lag_is_the_maximum_of_each_second(tmp_path):
    """500 bytes are unacknowledged from 0.2 s to 2.5 s, 200 more from 1.1 s; then 300 in two frames.

    Steps of time series are 5 ms: what is still owed at the end of a second is known to that.
    """
    events = [
        Event(0, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
        Event(0, Kind.ACK, conn=1, offset=1000, aux=1000),
        Event(200 * MS, Kind.TRANSFER, conn=1, offset=1000, aux=1500, size=500),
        Event(1100 * MS, Kind.TRANSFER, conn=1, offset=1500, aux=1700, size=200),
        Event(2500 * MS, Kind.ACK, conn=1, offset=1700, aux=1700),
        # Stored and sent, in two frames, before an ack of the first one comes.
        Event(4100 * MS, Kind.HEARTBEAT, conn=1, offset=1700, aux=2000),
        Event(4400 * MS, Kind.TRANSFER, conn=1, offset=1700, aux=2000, size=100),
        Event(4500 * MS, Kind.ACK, conn=1, offset=1800, aux=2000),
        Event(4900 * MS, Kind.TRANSFER, conn=1, offset=1800, aux=2000, size=200),
        Event(4950 * MS, Kind.ACK, conn=1, offset=2000, aux=2000),
        Event(6200 * MS, Kind.HEARTBEAT, conn=1, offset=2000, aux=2000),
    ]
    table = arrow_tables(replay_here(write_session(tmp_path / "session", events)))["seconds"]
    names = ("lagBytes", "lagSeconds", "ackLatencyMs", "bytesPerSecond")
    assert [
        ((row["atMs"] - WALL_NS // MS) // 1000, *(row[name] for name in names)) for row in table.to_pylist()
    ] == [
        (0, 500, 0.795, None, 500.0),
        (1, 700, 1.795, None, 200.0),
        (2, 700, 2.3, 2300.0, 0.0),
        (4, 300, 0.845, 100.0, 150.0),
        (6, 0, 0.0, None, 0.0),
    ]


def test_lag_of_a_replica_grows_while_it_is_not_connected(tmp_path):
    """A slave is away from 2 s to 8 s, and from 12.5 s on; each second has a put of 100 bytes."""
    s = 1000 * MS
    events = [
        *(Event(second * s, Kind.PUT, offset=1100 + 100 * second, size=100) for second in range(15)),
        Event(100 * MS, Kind.REQUESTED, conn=1, offset=1100, aux=1100),
        Event(100 * MS, Kind.ACK, conn=1, offset=1100, aux=1100),
        Event(1 * s, Kind.TRANSFER, conn=1, offset=1100, aux=1200, size=100),
        Event(1 * s + 5 * MS, Kind.ACK, conn=1, offset=1200, aux=1200),
        Event(2 * s, Kind.CLOSED, conn=1, offset=1200, aux=1300, flags=CloseReason.EOF),
        Event(8 * s, Kind.REQUESTED, conn=2, offset=1200, aux=1900),
        Event(8 * s, Kind.ACK, conn=2, offset=1200, aux=1900),
        Event(8 * s, Kind.TRANSFER, conn=2, offset=1200, aux=1900, size=700),
        Event(8 * s + 10 * MS, Kind.ACK, conn=2, offset=1900, aux=1900),
        Event(12 * s + 10 * MS, Kind.ACK, conn=2, offset=2300, aux=2300),
        Event(12 * s + 500 * MS, Kind.CLOSED, conn=2, offset=2300, aux=2300, flags=CloseReason.HOUSEKEEPING),
    ]
    addresses = {1: "10.0.0.2:41000", 2: "10.0.0.2:41001"}
    events.sort(key=lambda event: event.ts_ns)
    result = replay_here(write_session(tmp_path / "session", events, addresses=addresses), range_records=4)
    (replica,) = result.sessions[0].replicas
    assert (replica.name, replica.conns, replica.reconnects) == ("10.0.0.2:41001", (1, 2), 1)
    rows = arrow_tables(result)
    names = ("conn", "nextConn", "closeReason", "awayMs", "ackOffset", "lagBytes", "lagSeconds")
    # Steps are 10 ms: the byte at 1200 was stored at 2 s, that at 1900 at 9 s.
    assert [tuple(row[name] for name in names) for row in rows["outages"].to_pylist()] == [
        (1, 2, "EOF", 6000.0, 1200, 600, 5.99),
        (2, None, "HOUSEKEEPING", 1500.0, 2300, 200, 0.99),
    ]
    names = ("conn", "isConnected", "lagBytes", "lagSeconds", "maxOffset", "ackOffset", "replica")
    away = [
        ((row["atMs"] - WALL_NS // MS) // 1000, *(row[name] for name in names))
        for row in rows["seconds"].to_pylist()
        if not row["isConnected"]
    ]
    assert away == [
        (2, 1, False, 100, 0.99, 1300, 1200, replica.name),
        (3, 1, False, 200, 1.99, 1400, 1200, replica.name),
        (4, 1, False, 300, 2.99, 1500, 1200, replica.name),
        (5, 1, False, 400, 3.99, 1600, 1200, replica.name),
        (6, 1, False, 500, 4.99, 1700, 1200, replica.name),
        (7, 1, False, 600, 5.99, 1800, 1200, replica.name),
        (12, 2, False, 400, 3.0, 2300, 2300, replica.name),
        (13, 2, False, 100, 0.99, 2400, 2300, replica.name),
        (14, 2, False, 200, 0.99, 2500, 2300, replica.name),
    ]


def test_lag_of_a_replica_goes_on_in_the_next_recording_of_its_master(tmp_path):
    """The master ends at 2 s and is back 1 s later; one slave is back 3 s after that, the other is not."""
    s = 1000 * MS
    addresses = {1: "10.0.0.2:41000", 2: "10.0.0.3:41000"}
    first = [
        event
        for conn in addresses
        for event in (
            Event(conn * MS, Kind.REQUESTED, conn=conn, offset=1000, aux=1000),
            Event(conn * MS, Kind.ACK, conn=conn, offset=1000, aux=1000),
        )
    ]
    second = [
        *(Event(second * s, Kind.PUT, offset=1100 + 100 * second, size=100) for second in range(5)),
        Event(3 * s, Kind.REQUESTED, conn=1, offset=1000, aux=1400),
        Event(3 * s, Kind.ACK, conn=1, offset=1400, aux=1400),
    ]
    result = replay_here(
        write_session(tmp_path / "1", [*first, Event(2 * s, Kind.PUT, offset=1000)], addresses=addresses),
        write_session(
            tmp_path / "2",
            sorted(second, key=lambda event: event.ts_ns),
            addresses={1: "10.0.0.2:41007"},
            wall_ns=WALL_NS + 3 * s,
        ),
        range_records=2,
    )
    assert [one.name for one in result.sessions[1].replicas] == ["10.0.0.2:41007", "10.0.0.3:41000"]
    rows = arrow_tables(result)
    names = ("replica", "conn", "nextConn", "closeReason", "awayMs", "ackOffset", "lagBytes", "lagSeconds")
    assert [tuple(row[name] for name in names) for row in rows["outages"].to_pylist()] == [
        ("10.0.0.2:41007", None, 1, None, 3000.0, 1000, 300, 2.995),
        ("10.0.0.3:41000", None, None, None, 4000.0, 1000, 500, 3.995),
    ]
    names = ("replica", "conn", "isConnected", "lagBytes", "lagSeconds", "ackOffset")
    away = [
        tuple(row[name] for name in names) for row in rows["seconds"].to_pylist() if not row["isConnected"]
    ]
    assert away == [
        *(("10.0.0.2:41007", None, False, 100 * at, at - 0.005, 1000) for at in (1, 2, 3)),
        *(("10.0.0.3:41000", None, False, 100 * at, at - 0.005, 1000) for at in (1, 2, 3, 4)),
        ("10.0.0.3:41000", None, False, 500, 3.995, 1000),
    ]
    report = " ".join(one.text for one in session_points(result.sessions[1], {1: "two", -3: "three"}, UTC))
    assert "Replica two was away for 3 s" in report
    assert ": it was away when this recording of its master began." in report


def test_steps_of_series_divide_seconds_and_are_bounded():
    for hours, step_ns, steps_max in ((0.01, 50 * MS, 1500), (1, 1000 * MS, 3700), (100, 5000 * MS, 86_400)):
        grid = series_grid(7, 7 + round(hours * 3.6e12), wall_ns=WALL_NS + 123)
        assert (grid.step_ns, grid.steps <= steps_max) == (step_ns, True)
        assert (WALL_NS + 123 + grid.origin_ns - 7) % step_ns == 0


def test_reconnects_have_their_duration_and_resent_bytes(result):
    master, slave = arrow_tables(result)["reconnects"].to_pylist()
    assert master == {
        "session": "20260101T000000.000Z-broker-a-0",
        "brokerName": "broker-a",
        "brokerId": 0,
        "role": "SYNC_MASTER",
        "conn": 2,
        "address": "10.0.0.2:41001",
        "previousConn": 1,
        "closeReason": "EOF",
        "closedAtMs": WALL_NS / MS + 20,
        "awayMs": 20.0,
        "previousOffset": 1500,
        "requestOffset": 1500,
        # The frame from 1500 to 2000 was sent twice.
        "resentBytes": 500,
    }
    assert (slave["previousConn"], slave["conn"], slave["previousOffset"], slave["closeReason"]) == (
        *(1, 2, 1300),
        "EOF",
    )


def test_connection_to_a_slave_does_not_replace_its_own_ones(tmp_path):
    guest = [
        Event(94, Kind.STATE, conn=7, offset=-1, aux=1300, flags=HaState.HANDSHAKE),
        Event(94, Kind.REQUESTED, conn=7, offset=1000, aux=1300),
        Event(94, Kind.ACK, conn=7, offset=1000, aux=1300),
        Event(95, Kind.CLOSED, conn=7, offset=1000, aux=1300, flags=CloseReason.EOF),
    ]
    events = sorted([*slave_events(), *guest], key=lambda event: event.ts_ns)
    path = write_session(
        *(tmp_path / "session", events),
        role="SLAVE",
        broker_id=1,
        addresses={1: "10.0.0.1:10912", 2: "10.0.0.1:10912", 7: "10.0.0.9:50000"},
        served={7},
    )
    rows = document(replay_here(path))
    assert len(rows["connections"]) == 3
    assert [(row["previousConn"], row["conn"]) for row in rows["reconnects"]] == [(1, 2)]
    assert rows["sessions"][0]["reconnects"] == 1


def served_connection(conn, *, began_ms, ended_ms, offset=0):
    """A slave's connection from its request on."""
    own = [
        Event(began_ms * MS, Kind.STATE, conn=conn, offset=-1, aux=1000, flags=HaState.HANDSHAKE),
        Event(began_ms * MS, Kind.REQUESTED, conn=conn, offset=offset, aux=1000),
        Event(began_ms * MS, Kind.ACK, conn=conn, offset=offset, aux=1000),
    ]
    if ended_ms is None:
        return own
    return [
        *own,
        Event(ended_ms * MS, Kind.CLOSED, conn=conn, offset=offset, aux=1000, flags=CloseReason.EOF),
    ]


def in_order(*connections):
    return sorted((event for events in connections for event in events), key=lambda event: event.ts_ns)


def test_lost_slaves_of_one_host_are_not_confused(tmp_path):
    events = in_order(
        served_connection(1, began_ms=0, ended_ms=10),
        served_connection(2, began_ms=1, ended_ms=11),
        served_connection(3, began_ms=20, ended_ms=30),
        served_connection(4, began_ms=21, ended_ms=None),
        served_connection(5, began_ms=40, ended_ms=None),
    )
    addresses = {conn: f"10.0.0.2:{41000 + conn}" for conn in range(1, 6)}
    path = write_session(tmp_path / "session", events, addresses=addresses)
    rows = document(replay_here(path))
    assert [(row["conn"], row["previousConn"], row["awayMs"]) for row in rows["reconnects"]] == [
        (3, None, None),
        (4, None, None),
        (5, 3, 10),
    ]
    assert rows["sessions"][0]["reconnects"] == 3


def test_slaves_of_one_address_are_distinguished_by_certificate(tmp_path):
    events = in_order(
        *(served_connection(conn, began_ms=conn, ended_ms=10 + conn) for conn in (1, 2)),
        *(served_connection(conn, began_ms=20 + conn, ended_ms=None) for conn in (3, 4)),
    )
    path = write_session(
        *(tmp_path / "session", events),
        addresses={conn: f"203.0.113.1:{41000 + conn}" for conn in range(1, 5)},
        certificates={1: "slave-a", 2: "slave-b", 3: "slave-b", 4: "slave-a"},
    )
    rows = document(replay_here(path))
    assert [(row["conn"], row["previousConn"]) for row in rows["reconnects"]] == [(3, 2), (4, 1)]


def test_refused_offsets_are_a_table(tmp_path):
    """A gap, a divergence, a mismatch; and a reason that is new."""
    reasons = (CloseReason.GAP, CloseReason.DIVERGED, CloseReason.OFFSET_MISMATCH, 99)
    events = [
        event
        for conn, reason in enumerate(reasons)
        for event in (
            Event(conn * MS, Kind.REPORTED, conn=conn, offset=1000, aux=1000),
            Event(conn * MS, Kind.REFUSED, conn=conn, offset=900 + conn, aux=1000, flags=reason),
            Event(conn * MS, Kind.CLOSED, conn=conn, offset=1000, aux=1000, flags=reason),
        )
    ]
    path = write_session(
        tmp_path / "session", events, role="SLAVE", broker_id=1, addresses={1: "10.0.0.1:10912"}
    )
    found = arrow_tables(replay_here(path))["gaps"].to_pylist()
    columns = ("reason", "offset", "maxOffset", "address", "sentence")
    assert [tuple(row[name] for name in columns) for row in found] == [
        *(
            (
                "GAP",
                900,
                1000,
                None,
                "the master's log has no record at 900; the own log ends at 1000",
            ),
            (
                "DIVERGED",
                901,
                1000,
                "10.0.0.1:10912",
                "the own log and the master's differ at 901; the own log ends at 1000",
            ),
            (
                "OFFSET_MISMATCH",
                902,
                1000,
                None,
                "the master pushed offset 902; the own log ends at 1000",
            ),
            ("99", 903, 1000, None, "refused 903; the own log ends at 1000"),
        )
    ]
    assert {(row["atMs"] > 0, row["role"]) for row in found} == {(True, "SLAVE")}


def test_latency_of_a_session_includes_all_connections(result):
    master, slave = document(result)["sessions"]
    assert master["ackLatencyMs"] == pytest.approx({"p50": 2.0, "p99": 3.0, "max": 3.0}, rel=1e-3)
    assert slave["ackLatencyMs"] is None


def test_events_of_connections_are_a_table(result):
    rows = [row for row in arrow_tables(result)["events"].to_pylist() if row["brokerId"] == 1]
    assert [(row["kind"], row["what"]) for row in rows[:5]] == [
        ("LINK", "CONNECTING"),
        ("LINK", "CONNECTED"),
        ("STATE", "TRANSFER"),
        ("CLOSED", "EOF"),
        ("STATE", "READY"),
    ]


def test_documentation_has_every_column_of_every_table(result):
    text = (Path(__file__).parents[2] / "docs" / "session-analysis.md").read_text()
    everywhere = {"session", "brokerName", "brokerId"}
    for name, table in arrow_tables(result).items():
        (row,) = re.findall(rf"^\| `{name}` \|.*\|(.*)\|$", text, re.MULTILINE)
        documented = set(re.findall(r"`(\w+)`", row)) - {"unknown", "network", "slave"}
        assert documented == set(table.column_names) - everywhere, name


def test_one_session_is_replayed_by_its_own_path(recordings):
    path = recordings / "20260101T000001.000Z-broker-a-1"
    rows = document(replay_here(path))
    assert [row["session"] for row in rows["sessions"]] == [path.name]
    assert len(rows["connections"]) == 2


def test_result_does_not_depend_on_ranges_and_segments(tmp_path):
    events = MasterModel(11).run(700)
    addresses = {conn: f"10.0.0.9:{conn}" for conn in range(1, 50)}
    plain = write_session(tmp_path / "a" / "session", events, addresses=addresses)
    rolled = write_session(tmp_path / "b" / "session", events, segment_records=150, addresses=addresses)
    whole = document(replay_here(plain))
    cut = document(replay_here(rolled, range_records=70))
    # Keyframes are records too, and have numbers.
    for row in (*whole["violations"], *cut["violations"]):
        del row["seq"]
    for row in (*whole["invariants"], *cut["invariants"]):
        if row["invariant"] in {"no-record-missing", "clock-goes-forward"}:
            del row["checked"]
    assert cut["sessions"][0].pop("events") > whole["sessions"][0].pop("events")
    assert cut == whole


def test_damaged_session_is_replayed_without_the_lost_records(tmp_path):
    path = write_session(tmp_path / "session", master_events())
    (segment,) = (path / "events").iterdir()
    data = bytearray(segment.read_bytes())
    data[64 + 4 * 48 + 24] ^= 1
    segment.write_bytes(data[:-10])
    (row,) = document(replay_here(path))["sessions"]
    # The first put is lost; the torn DROPPED at the end does not count.
    assert (row["events"], row["puts"], row["lost"], row["dropped"]) == (20, 1, 1, 0)
    (line,) = row["damage"]
    assert line == f"{segment} at byte {64 + 4 * 48}: wrong check word or seq"


def test_session_without_events_has_empty_tables(tmp_path):
    path = write_session(tmp_path / "session", [])
    rows = document(replay_here(path))
    assert [(row["events"], row["maxOffset"]) for row in rows["sessions"]] == [(0, None)]
    assert (rows["connections"], rows["waits"]) == ([], [])

"""Health checks at the HA port: only counted by host and reason, in old and new recordings."""

import json

import pytest

from tests.analysis.replays import arrow_tables, document, replay_here, report_of
from tests.sessions.sessions import Event, write_session
from trioha.cli import replay as command
from trioha.recording.events import CloseReason, Direction, HaState, Kind, PutStatus
from trioha.recording.probes import ProbeCount, probes_line
from trioha.recording.reader import open_session
from trioha_analysis.explain import explain
from trioha_analysis.state_at import moment, open_readers, wall_time
from trioha_sessions.clocks import links
from trioha_sessions.facts import Fact, probe_counts
from trioha_sessions.invariants import check_session

S = 10**9
HOUR = 3600
HTTP = int.from_bytes(b"GET / HT", "big")
CHECKER, SCANNER = "10.0.0.7", "10.0.0.8"
FIRST_PROBE = 100
"""First connection number of probes."""


def of_slave(conn, *, begin, end, top):
    """A slave's connection from second `begin` on: a put each second, acknowledged 2 ms later."""
    at = begin * S
    events = [
        Event(at, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.HANDSHAKE),
        Event(at + 1000, Kind.REQUESTED, conn=conn, offset=top, aux=top),
        Event(at + 1000, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.TRANSFER),
        Event(at + 1000, Kind.ACK, conn=conn, offset=top, aux=top),
    ]
    for second in range(begin, HOUR if end is None else end):
        at, top = second * S + 400_000_000, top + 100
        put = second + 1
        events += [
            Event(at, Kind.PUT, offset=top, aux=put, size=100),
            Event(at, Kind.WAIT_BEGIN, offset=top, aux=put, size=2),
            Event(at + 1000, Kind.TRANSFER, conn=conn, offset=top - 100, aux=top, size=100),
            Event(at + 2_000_000, Kind.ACK, conn=conn, offset=top, aux=top),
            Event(at + 2_000_000, Kind.WAIT_END, offset=top, aux=put, size=2000, flags=PutStatus.PUT_OK),
            Event(at + 3_000_000, Kind.HEARTBEAT, conn=conn, offset=top, aux=top, flags=Direction.RECEIVED),
        ]
    if end is not None:
        at = end * S
        events += [
            Event(at, Kind.CLOSED, conn=conn, offset=top, aux=top, flags=CloseReason.EOF),
            Event(at, Kind.STATE, conn=conn, offset=top, aux=top, flags=HaState.SHUTDOWN),
        ]
    return events


def of_probe(conn, second):
    """A probe recorded as a slave's connection; each tenth one speaks HTTP."""
    at, top = second * S + 100_000_000, 100 * second
    events = [Event(at, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.HANDSHAKE)]
    reason = CloseReason.EOF
    if second % 10 == 0:
        reason = CloseReason.REQUEST_ABOVE_MAX
        events += [
            Event(at + 1000, Kind.REQUESTED, conn=conn, offset=HTTP, aux=top),
            Event(at + 1000, Kind.REFUSED, conn=conn, offset=HTTP, aux=top, flags=reason),
        ]
    return [
        *events,
        Event(at + 2000, Kind.CLOSED, conn=conn, offset=-1, aux=top, flags=reason),
        Event(at + 2000, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.SHUTDOWN),
    ]


def slave_events():
    """The slave is away from second 1800 to 1803."""
    return [
        *of_slave(1, begin=0, end=1800, top=0),
        *of_slave(2, begin=1803, end=None, top=180_000),
    ]


ADDRESSES = {1: f"{SCANNER}:41001", 2: f"{SCANNER}:41002"}
"""The slave's host sends probes, too."""


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """Each probe has its events: one probe a second, the last one still open."""
    probes = [event for second in range(HOUR) for event in of_probe(FIRST_PROBE + second, second)]
    late = FIRST_PROBE + HOUR
    probes.append(Event(HOUR * S, Kind.STATE, conn=late, offset=-1, aux=0, flags=HaState.HANDSHAKE))
    hosts = {FIRST_PROBE + n: f"{CHECKER if n % 3 else SCANNER}:{20_000 + n}" for n in range(HOUR + 1)}
    events = sorted([*slave_events(), *probes], key=lambda event: event.ts_ns)
    folder = tmp_path_factory.mktemp("older") / "20260101T000000.000Z-broker-a-0"
    return write_session(folder, events, addresses={**ADDRESSES, **hosts}, segment_records=9000)


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """The node recorded counts only."""
    folder = tmp_path_factory.mktemp("newer") / "20260101T000000.000Z-broker-a-0"
    path = write_session(folder, slave_events(), addresses=ADDRESSES, segment_records=9000)
    with (path / "facts.jsonl").open("a") as facts:
        for minute in range(1, 61):
            for host, reason, count in (
                (CHECKER, "EOF", 36 * minute),
                (SCANNER, "EOF", 18 * minute),
                (CHECKER, "REQUEST_ABOVE_MAX", 4 * minute),
                (SCANNER, "REQUEST_ABOVE_MAX", 2 * minute),
            ):
                fact = {"seq": 0, "type": "probes", "host": host, "reason": reason, "count": count}
                facts.write(json.dumps(fact) + "\n")
        facts.write(
            json.dumps({"seq": 0, "type": "probes", "host": SCANNER, "reason": "NONE", "count": 1}) + "\n"
        )
    return path


PROBES = [
    {"host": CHECKER, "reason": "EOF", "count": 2160},
    {"host": SCANNER, "reason": "EOF", "count": 1080},
    {"host": CHECKER, "reason": "REQUEST_ABOVE_MAX", "count": 240},
    {"host": SCANNER, "reason": "REQUEST_ABOVE_MAX", "count": 120},
    {"host": SCANNER, "reason": "NONE", "count": 1},
]
LINE = (
    "3,601 probes (connections that asked for nothing): 10.0.0.7 EOF 2,160, 10.0.0.8 EOF 1,080, "
    "10.0.0.7 REQUEST_ABOVE_MAX 240, 10.0.0.8 REQUEST_ABOVE_MAX 120, 10.0.0.8 NONE 1"
)


@pytest.fixture(params=[pytest.param("older", marks=pytest.mark.full), "newer"])
def path(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def result(path):
    # Cut through connections, probes among them.
    return replay_here(path, range_records=997)


def test_probes_are_counted_and_in_no_other_table(result):
    rows = document(result)
    (session,) = rows["sessions"]
    assert (session["connections"], session["reconnects"], session["probes"]) == (2, 1, 3601)
    assert [row["conn"] for row in rows["connections"]] == [1, 2]
    (back,) = rows["reconnects"]
    assert (back["conn"], back["previousConn"], back["awayMs"]) == (2, 1, 3000)
    assert rows["gaps"] == []
    assert rows["violations"] == []
    assert [{name: row[name] for name in ("host", "reason", "count")} for row in rows["probes"]] == PROBES
    tables = arrow_tables(result)
    assert set(tables["seconds"]["conn"].to_pylist()) == {1, 2}
    assert set(tables["events"]["conn"].to_pylist()) == {1, 2}
    assert tables["probes"]["count"].to_pylist() == [row["count"] for row in PROBES]


def test_report_and_text_have_one_line_of_probes(result, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    html = report_of(result).html()
    assert html.count(LINE) == 1
    assert "conn 100" not in html
    command._print(document(result))
    shown = capsys.readouterr().out
    assert shown.count("probes (") == 1
    assert LINE in shown
    assert CHECKER not in shown.replace(LINE, "")


def test_state_and_explanation_ignore_probes(path):
    readers = open_readers([path])
    at = moment(readers, wall_time("+1700.1000015s", readers))
    assert [row["conn"] for row in at["connections"]] == [1]
    assert at["nodes"][0]["probes"] == (1 if "older" in str(path) else 0)
    story = explain(readers, "3000")
    assert {step["conn"] for step in story["steps"]} == {None, 2}
    assert story["cause"] == "ack"


def test_invariants_hold_and_clocks_are_compared_despite_probes(path, tmp_path):
    assert not any(result.count for result in check_session(open_session(path)))
    slave = [
        Event(event.ts_ns + 1_000_000, Kind.RECEIVED, conn=1, offset=event.offset, aux=event.aux, size=100)
        for event in of_slave(1, begin=0, end=20, top=0)
        if event.kind == Kind.TRANSFER
    ]
    slave_path = write_session(
        tmp_path / "slave", slave, role="SLAVE", broker_id=1, addresses={1: "10.0.0.1:10912"}
    )
    found = links(open_readers([path, slave_path]), connections_max=4)
    assert [(link.master_conn, link.slave_conn) for link in found] == [(1, 1)]


def test_slaves_own_connection_without_a_report_is_not_a_probe(tmp_path):
    """Connections to a slave may be probes; its own ones are not."""
    events = [
        Event(0, Kind.STATE, conn=1, offset=0, aux=0, flags=HaState.HANDSHAKE),
        Event(1, Kind.CLOSED, conn=1, offset=0, aux=0, flags=CloseReason.EOF),
        Event(2, Kind.STATE, conn=7, offset=-1, aux=0, flags=HaState.HANDSHAKE),
        Event(3, Kind.CLOSED, conn=7, offset=-1, aux=0, flags=CloseReason.NO_REQUEST),
        Event(4, Kind.STATE, conn=2, offset=0, aux=0, flags=HaState.HANDSHAKE),
    ]
    path = write_session(
        *(tmp_path / "session", events),
        role="SLAVE",
        broker_id=1,
        addresses={1: "10.0.0.1:10912", 2: "10.0.0.1:10912", 7: "10.0.0.9:50000"},
        served={7},
    )
    rows = document(replay_here(path))
    assert [row["conn"] for row in rows["connections"]] == [1, 2]
    assert rows["sessions"][0]["reconnects"] == 1
    assert [(row["host"], row["reason"], row["count"]) for row in rows["probes"]] == [
        ("10.0.0.9", "NO_REQUEST", 1)
    ]


def test_slave_that_requests_beyond_the_end_is_not_a_probe(tmp_path):
    """It requested a valid offset, so the refusal is reported."""
    events = [
        Event(0, Kind.STATE, conn=1, offset=-1, aux=500, flags=HaState.HANDSHAKE),
        Event(1, Kind.REQUESTED, conn=1, offset=900, aux=500),
        Event(1, Kind.REFUSED, conn=1, offset=900, aux=500, flags=CloseReason.REQUEST_ABOVE_MAX),
        Event(2, Kind.CLOSED, conn=1, offset=-1, aux=500, flags=CloseReason.REQUEST_ABOVE_MAX),
    ]
    rows = document(replay_here(write_session(tmp_path / "s", events)))
    assert [row["conn"] for row in rows["connections"]] == [1]
    assert [row["reason"] for row in rows["gaps"]] == ["REQUEST_ABOVE_MAX"]
    assert rows["probes"] == []


def test_connection_with_a_dropped_request_is_not_a_probe(tmp_path):
    events = [
        Event(0, Kind.DROPPED, aux=7),
        Event(2, Kind.CLOSED, conn=1, offset=400, aux=500, flags=CloseReason.EOF),
    ]
    rows = document(replay_here(write_session(tmp_path / "s", events)))
    assert [row["conn"] for row in rows["connections"]] == [1]


def test_invalid_probe_counts_are_ignored():
    facts = [
        Fact(0, "probes", {"host": "a", "reason": "EOF", "count": 3}),
        Fact(0, "probes", {"host": "a", "reason": "EOF", "count": -4}),
        Fact(0, "probes", {"host": "a", "reason": "EOF", "count": "many"}),
        Fact(0, "probes", {"host": 7, "reason": "EOF", "count": 9}),
        Fact(0, "probes", {"host": "b", "reason": "EOF", "count": 0}),
    ]
    counts = probe_counts(facts, {5: 99, 6: 1}, {6: "a"})
    assert counts == [ProbeCount("a", "EOF", 4), ProbeCount("unknown", "99", 1)]


def test_line_names_a_bounded_number_of_hosts():
    assert probes_line([]) == ""
    assert probes_line([ProbeCount("a", "EOF", 1)]) == (
        "1 probe (a connection that asked for nothing): a EOF 1"
    )
    many = [ProbeCount(f"h{number}", "EOF", 2) for number in range(20)]
    assert probes_line(many).endswith("h6 EOF 2, h7 EOF 2, others 24")

"""Roles of a group in documents, tables and reports."""

import json
import re
from datetime import UTC
from html import unescape

import pytest
from attrs import evolve

from tests.analysis.replays import arrow_tables, document, replay_here, report_of
from tests.sessions.group_sessions import failover, write_group
from tests.sessions.sessions import WALL_NS, slave_events, write_session
from trioha.recording.events import Kind
from trioha_analysis.reports.role_timeline import role_timeline
from trioha_sessions.role_lives import ROLE_KINDS


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = write_group(tmp_path_factory.mktemp("group"), failover().values())
    return replay_here(folder, range_records=4)


def test_a_document_has_the_events_of_each_role(result):
    rows = document(result)["roles"]
    assert [row["kind"] for row in rows if row["brokerControllerId"] == 1 and row["role"] == "SLAVE"] == [
        *("ROLE", "CONTROLLER", "LOG_CUT", "EPOCH")
    ]
    cut = next(row for row in rows if row["kind"] == "LOG_CUT")
    assert cut == {
        "session": "20260101T000000.200Z-broker-a-1",
        "brokerName": "broker-a",
        "brokerId": 1,
        "brokerControllerId": 1,
        "role": "SLAVE",
        "atMs": (WALL_NS + 210_000_000) / 1e6,
        "seq": 2,
        "kind": "LOG_CUT",
        "epoch": 1,
        "offset": 300,
        "endOffset": 400,
        "setEpoch": None,
        "members": None,
        "address": None,
        "sentence": "100 bytes of epoch 1 cut at 300",
    }
    proposed = next(row for row in rows if "proposed" in row["sentence"])
    assert (proposed["members"], proposed["setEpoch"], proposed["epoch"]) == ([1, 2], 1, 1)
    followed = next(row for row in rows if row["kind"] == "ROLE" and row["role"] == "SLAVE")
    assert followed["address"] == "10.0.0.1:10911"


def test_invariants_of_a_group_are_rows_without_a_session(result):
    rows = [row for row in document(result)["invariants"] if row["session"] is None]
    assert [(row["brokerName"], row["invariant"], row["violations"]) for row in rows] == [
        ("broker-a", name, 0)
        for name in ("one-master-per-epoch", "epochs-go-forward", "confirmed-is-kept", "cut-was-not-put-ok")
    ]
    assert all(row["checked"] for row in rows)


def test_an_invariant_that_nothing_shows_is_not_checked(tmp_path):
    """One slave alone: no master's session says what was promised."""
    rows = document(replay_here(failover()["first slave"].write(tmp_path)))["invariants"]
    checked = {row["invariant"]: row["checked"] for row in rows if row["session"] is None}
    assert (checked["confirmed-is-kept"], checked["cut-was-not-put-ok"]) == (None, None)
    assert checked["one-master-per-epoch"] == 1


def test_a_violation_of_a_group_names_its_record(tmp_path):
    lives = failover()
    lives["second slave"] = lives["second slave"].with_event(Kind.LOG_CUT, offset=299)
    replayed = replay_here(write_group(tmp_path, lives.values()))
    (row,) = document(replayed)["violations"]
    assert (row["session"], row["brokerId"], row["seq"], row["atMs"]) == (
        *("20260101T000000.200Z-broker-a-1", 1, 2),
        WALL_NS // 10**6 + 210,
    )
    assert arrow_tables(replayed)["violations"]["conn"].to_pylist() == [None]
    assert "do not hold" in report_of(replayed).html()


def test_tables_have_the_roles(result):
    table = arrow_tables(result)["roles"]
    assert table.num_rows == len(document(result)["roles"])
    assert [1, 2] in table["members"].to_pylist()


def test_a_timeline_has_a_row_for_each_broker_and_a_bar_for_each_role(result):
    html = unescape(role_timeline([one.life for one in result.sessions if one.life], UTC))
    assert re.findall(">(broker [0-9]+)<", html) == ["broker 1", "broker 2"]
    bars = re.findall(r"<title>([A-Z]+ to [A-Z]+)[^<]*</title><rect x=\"[0-9.]+\" y=\"([0-9.]+)\"", html)
    rows = sorted({y for _, y in bars}, key=float)
    assert sorted((rows.index(y), words.split()[-1]) for words, y in bars) == [
        *((0, "MASTER"), (0, "SLAVE"), (1, "MASTER"), (1, "SLAVE"))
    ]
    assert {"epoch 1", "epoch 2"} >= set(re.findall(">(epoch [0-9]+)<", html)) != set()
    marks = re.findall(r'<text class="mark"[^>]*>[^<]+<title>([^<]*)</title>', html)
    assert [text.split(",")[0] for text in marks if "sync-state set" in text] == [
        *("sync-state set [1] changed", "sync-state set [1", "sync-state set [2] changed")
    ]
    assert sum("cut at" in text for text in marks) == marks.count("no controller leads") == 1


def test_a_report_has_the_timeline_and_what_happened(result):
    html = unescape(report_of(result, zone=UTC).html())
    for text in ("Roles and epochs of broker-a", "100 bytes of epoch 1 cut at 300", "no controller leads"):
        assert text in html
    # Four roles: of a table's cells, not of a hover text.
    assert html.count("<td>NONE to MASTER in epoch 1; the log ends at 0</td>") == 1


def test_a_report_without_controllers_has_no_roles(tmp_path):
    path = write_session(tmp_path / "s", slave_events(), role="SLAVE")
    assert "Roles" not in report_of(replay_here(path)).html().split("</head>")[1]


def test_text_of_a_recording_is_escaped(tmp_path):
    life = failover()["first master"]
    facts = ((0, {"type": "role", "masterId": 1}), (1, {"type": "controller", "address": "<b>x</b>:1"}))
    events = (*life.events[:1], life.events[1])
    html = report_of(replay_here(evolve(life, events=events, facts=facts).write(tmp_path))).html()
    assert "<b>x</b>" not in html


def test_a_reader_passes_over_kinds_that_it_does_not_know(tmp_path):
    """As a reader of before passes over those of controller mode: the figures are those without them."""
    life = failover()["first master"]
    of_roles = {*ROLE_KINDS, Kind.CONFIRMED}
    unknown = tuple(
        evolve(event, kind=event.kind + 40) if event.kind in of_roles else event for event in life.events
    )
    without = tuple(event for event in life.events if event.kind not in of_roles)
    found, expected = (
        document(replay_here(evolve(life, events=events, facts=()).write(tmp_path / name)))
        for name, events in (("unknown", unknown), ("without", without))
    )
    assert found["sessions"][0]["events"] == len(life.events)
    for document_ in (found, expected):
        for table in ("sessions", "connections", "invariants"):
            for row in document_[table]:
                # Counts of records, and the time of the first one.
                for name in ("events", "beganAtMs", "durationMs", "checked"):
                    row.pop(name, None)
    assert found == expected
    assert found["connections"][0]["ackOffset"] == 300
    assert found["roles"] == []


def test_a_session_of_before_reads_as_it_did(tmp_path):
    """Without minor version and the tables of controller mode."""
    life = failover()["first slave"]
    path = life.write(tmp_path)
    expected = document(replay_here(path))
    file = path / "session.json"
    old = json.loads(file.read_text())
    assert old.pop("minor_version") == 1
    for name in ("roles", "set_events", "controller_events"):
        del old[name]
    file.write_text(json.dumps(old))
    assert document(replay_here(path)) == expected

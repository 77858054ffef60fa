"""Sessions of a real pair under a controller: roles, epochs, sets, cuts, and invariants of its group."""

from typing import Any

import numpy as np
import pytest

from tests.analysis.replays import Replayed, document, replay_here
from tests.node.recorded_failover import record_failovers
from trioha.recording.events import Kind
from trioha.recording.reader import find_sessions, open_session
from trioha.severity import Severity
from trioha_analysis.packing import pack_segment
from trioha_monitor.replay import open_replay
from trioha_monitor.view import EventKind
from trioha_sessions.records import read_records
from trioha_sessions.segments import read_segments

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    return record_failovers(tmp_path_factory.mktemp("failovers"))


@pytest.fixture(scope="module")
def result(sessions):
    return replay_here(sessions)


def roles_of(result: Replayed, broker_id: int) -> list[tuple[str, int | None]]:
    """Role and epoch of each life of a broker that had one, in the order of their starts."""
    rows = [row for row in document(result)["roles"] if row["kind"] == "ROLE"]
    return [
        (row["role"], row["epoch"])
        for row in sorted(rows, key=lambda row: row["atMs"])
        if row["brokerControllerId"] == broker_id and row["role"] != "NONE"
    ]


def test_each_life_records_its_role_and_epoch(result):
    assert roles_of(result, 1) == [("MASTER", 1), ("SLAVE", 2), ("MASTER", 3)]
    roles = roles_of(result, 2)
    # It may have followed the first master again between its restart and its election.
    assert [roles[0], *roles[-2:]] == [("SLAVE", 1), ("MASTER", 2), ("SLAVE", 3)]
    assert set(roles[1:-2]) <= {("SLAVE", 1)}


def test_all_invariants_hold_and_those_of_the_group_were_judged(result):
    (group,) = result.groups
    assert group.broker_name == "broker-x"
    assert [result.violations for result in group.results] == [()] * 4
    assert [result.invariant.name for result in group.results if not result.checked] == []
    broken = [
        (session.name, result.violations)
        for session in result.sessions
        for result in session.invariants
        if result.count and result.invariant.severity is Severity.CRITICAL
    ]
    assert broken == []


def test_the_cut_and_the_epochs_are_recorded(result):
    rows = document(result)["roles"]
    (cut,) = [row for row in rows if row["kind"] == "LOG_CUT"]
    assert (cut["brokerControllerId"], cut["epoch"], cut["role"]) == (1, 1, "SLAVE")
    epochs = {
        (row["brokerControllerId"], row["epoch"], row["offset"]) for row in rows if row["kind"] == "EPOCH"
    }
    begins = {epoch: offset for _, epoch, offset in epochs}
    assert {(broker_id, epoch) for broker_id, epoch, _ in epochs} == {
        (b, e) for b in (1, 2) for e in (1, 2, 3)
    }
    # Both brokers begin an epoch at the same byte.
    assert len(epochs) == 6
    assert (begins[1], cut["offset"]) == (0, begins[2])
    assert cut["endOffset"] > cut["offset"]
    assert begins[3] > begins[2]


def test_sets_name_their_members_and_controllers_their_addresses(result):
    rows = document(result)["roles"]
    sets: list[dict[str, Any]] = [row for row in rows if row["kind"] == "SYNC_STATE_SET"]
    changed = [tuple(row["members"]) for row in sets if " changed" in row["sentence"]]
    assert {(1,), (1, 2), (2,)} == set(changed)
    assert all(row["members"] is not None for row in sets)
    assert any(" undecided" in row["sentence"] for row in sets)
    sentences = [row["sentence"] for row in rows if row["kind"] == "CONTROLLER" and row["role"] == "MASTER"]
    assert "no controller leads" in sentences
    assert {row["address"] for row in rows if row["kind"] == "CONTROLLER" and row["address"]} == {
        row["address"] for row in rows if row["kind"] == "CONTROLLER" and " leads" in row["sentence"]
    } - {None}


def test_nothing_is_recorded_for_a_put_but_what_was(sessions):
    """The confirm offset moves with each put, and is recorded at most every 200 ms."""
    puts = 0
    for path in find_sessions([sessions]):
        records = read_records(open_session(path)).array
        moved = records[records["kind"] == Kind.CONFIRMED]
        puts += int(np.count_nonzero(records["kind"] == Kind.PUT))
        seconds = (int(records["ts_ns"][-1]) - int(records["ts_ns"][0])) / 1e9
        # The first one, and the last one at the end.
        assert len(moved) <= seconds / 0.2 + 2
        assert (np.diff(moved["offset"]) != 0).all()
    assert puts >= 400


def test_the_monitor_replays_the_roles_of_each_broker(sessions, result):
    source = open_replay([sessions])
    while source.work(for_s=1.0):
        pass
    view = source.view_at(source.position.end_ns)
    nodes = {node.broker_id: node for node in view.nodes}
    assert [node.label for node in view.nodes] == ["broker-x #1", "broker-x #2"]
    for broker_id in (1, 2):
        spans = [
            (span.role.upper(), span.epoch)
            for span in nodes[broker_id].roles
            if span.role not in {"", "none"}
        ]
        assert spans == roles_of(result, broker_id)
    # The first broker was down once, and waited for its role at each start. It stopped first.
    assert [span.role for span in nodes[1].roles] == ["none", "master", "", "none", "slave", "master", ""]
    events = [(event.node, event.kind) for event in view.events]
    assert events.count(("broker-x #1", EventKind.CUT)) == 1
    assert ("broker-x #2", EventKind.CONTROLLER) in events
    masters = [
        node.control
        for at_ns in range(source.position.start_ns, source.position.end_ns, 50_000_000)
        for node in source.view_at(at_ns).nodes
        if node.control is not None
        and node.control.role == "master"
        # Not between a role and its first set.
        and node.control.sync_state_set_epoch is not None
    ]
    # Connections name the ids of their slaves.
    connected = {tuple(one.broker_id for one in control.members if one.is_connected) for control in masters}
    assert {(1,), (2,), (1, 2)} <= connected
    assert {control.sync_state_set for control in masters} == {(1,), (1, 2), (2,)}
    assert None in {control.leader for control in masters if control.broker_id == 2}


def test_packed_sessions_replay_as_they_were(sessions, result):
    expected = document(result)
    for path in find_sessions([sessions]):
        session = open_session(path)
        for segment in read_segments(session).segments:
            pack_segment(session, segment)
    assert not list(sessions.glob("*/events/*.seg"))
    found = document(replay_here(sessions))
    assert found["roles"] == expected["roles"]
    assert [(row["invariant"], row["checked"], row["violations"]) for row in found["invariants"]] == [
        (row["invariant"], row["checked"], row["violations"]) for row in expected["invariants"]
    ]

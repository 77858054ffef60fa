"""Replays of sessions of controller mode: roles, epochs, sets, cuts and controllers at any moment."""

import asyncio

import pytest
from attrs import evolve

from tests.monitor.recorded_group import (
    CUT_S,
    END_S,
    LEADER,
    LOST_BYTES,
    MS,
    OTHER_LEADER,
    S,
    SessionBuilder,
    group_lives,
    log_end,
    second_log_end,
    write_group,
)
from tests.monitor.test_replay import finish, opened, plain
from tests.sessions.sessions import WALL_NS, Event, slave_events, write_session
from trioha.broker_status import ControlStatus, MemberStatus
from trioha.recording.events import CloseReason, GroupRole, Kind, SetEvent
from trioha.replica_verdict import Verdict
from trioha.severity import Severity
from trioha_monitor.app import MonitorApp
from trioha_monitor.rendering import RenderContext, palette_of
from trioha_monitor.replay import open_replay
from trioha_monitor.replay.clock_offsets import ClockLink, ClockOffset, clock_offsets
from trioha_monitor.view import EventKind, Health
from trioha_monitor.widgets.graph import replica_marks

START_MS = WALL_NS // MS


def sessions_in(folder):
    return sorted(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_group(tmp_path_factory.mktemp("group"))


@pytest.fixture(scope="module")
def source(folder):
    return opened(*sessions_in(folder))


def at(source, second):
    return source.view_at(WALL_NS + round(second * S))


def node_of(view, broker_id):
    return next(node for node in view.nodes if node.broker_id == broker_id)


def control_of(view, broker_id):
    return node_of(view, broker_id).control


def spans(node):
    return [((span.time_ms - START_MS) / 1000, span.role, span.epoch) for span in node.roles]


ROLES = {
    1: [
        (0.0, "none", None),
        (0.5, "master", 1),
        (60.0, "", None),
        (80.0, "none", None),
        (81.0, "slave", 2),
    ],
    2: [(1.0, "slave", 1), (62.0, "master", 2)],
    3: [(1.5, "slave", 1), (62.2, "slave", 2)],
}


def test_each_broker_has_one_row_with_its_roles_up_to_the_moment(source):
    for second in (0.2, 1.2, 30.0, 60.5, 62.1, 75.0, 80.5, 119.0):
        nodes = {node.label: node for node in at(source, second).nodes}
        assert list(nodes) == ["broker-a #1", "broker-a #2", "broker-a #3"]
        for broker_id, roles in ROLES.items():
            begun = [span for span in roles if span[0] <= second]
            assert spans(nodes[f"broker-a #{broker_id}"]) == begun, second
    # How long it has been up does not begin anew with a role.
    assert [(node.health, node.for_s) for node in nodes.values()] == [
        (Health.UP, 119.0 - start_s) for start_s in (80, 1, 1.5)
    ]
    started = [
        event.text.partition(" (")[0]
        for event in at(source, END_S - 1).events
        if event.kind is EventKind.NODE
    ]
    assert started == [
        *["its recording begins"] * 3,
        "its recording breaks off: killed, or cut off from its disk",
        "started again: recording 2 begins",
    ]


def test_a_killed_broker_is_down_until_it_starts_again(source):
    down = node_of(at(source, 70), 1)
    assert (down.health, down.for_s) == (Health.DOWN, 10.0)
    # Its last figures stay.
    assert control_of(at(source, 70), 1).role == "master"
    waiting = node_of(at(source, 80.2), 1)
    assert (waiting.health, waiting.control and waiting.control.role) == (Health.UP, "none")
    # Between two roles it is up.
    assert node_of(at(source, 80.8), 1).health is Health.UP
    assert node_of(at(source, 61), 2).health is Health.UP


def test_a_moment_has_role_epoch_set_confirm_offset_and_leader(source):
    first = control_of(at(source, 3.5), 1)
    assert first == ControlStatus(
        role="master",
        broker_id=1,
        master_epoch=1,
        master_id=1,
        master_address="10.0.0.1:10911",
        log_epoch=1,
        sync_state_set=(1, 2),
        sync_state_set_epoch=2,
        in_sync_min=1,
        members=(
            MemberStatus(broker_id=1, in_set=True, is_required=True, is_connected=True, ack_offset=300),
            MemberStatus(broker_id=2, in_set=True, is_required=True, is_connected=True, ack_offset=300),
        ),
        confirm_offset=log_end(3),
        leader=LEADER,
        controllers=first.controllers,
        role_changes=1,
        role_changed_ms=START_MS + 500,
    )
    assert [(link.address, link.is_leader) for link in first.controllers] == [(LEADER, True)]
    assert control_of(at(source, 31), 1).leader is None
    assert control_of(at(source, 31), 1).controllers == ()
    assert control_of(at(source, 34), 1).leader == OTHER_LEADER
    waiting = control_of(at(source, 0.2), 1)
    assert (waiting.role, waiting.broker_id, waiting.master_epoch, waiting.role_changes) == (
        "none",
        None,
        None,
        0,
    )
    slave = control_of(at(source, 100), 3)
    assert (slave.role, slave.master_epoch, slave.master_id, slave.log_epoch) == ("slave", 2, 2, 2)
    # Only a master records the set.
    assert (slave.sync_state_set_epoch, slave.members) == (None, ())
    assert slave.confirm_offset == second_log_end(98)
    assert slave.role_changes == 2
    # A log that has no epoch of this role yet ends in that of the role before.
    assert control_of(at(source, 62.5), 3).log_epoch == 1
    assert control_of(at(source, CUT_S), 1).log_epoch == 2


def test_members_are_those_of_the_set_of_a_proposal_and_those_connected(source):
    for second, in_set, proposed, connected in (
        (62.5, {2}, set(), {2}),
        (63.93, {2}, {3}, {2, 3}),
        (84, {2, 3}, set(), {1, 2, 3}),
        (85.5, {2, 3}, {1}, {1, 2, 3}),
        # Nobody knows what became of the proposal.
        (87, {2, 3}, {1}, {1, 2, 3}),
        (90, {1, 2, 3}, set(), {1, 2, 3}),
    ):
        view = at(source, second)
        members = control_of(view, 2).members
        assert {one.broker_id for one in members if one.in_set} == in_set, second
        assert {one.broker_id for one in members if one.is_required} == in_set | proposed, second
        assert {one.broker_id for one in members if one.is_connected} == connected, second
        assert node_of(view, 2).in_sync_replicas == len(in_set) - 1
        # The rows of replicas say the same.
        rows = {row.label: row.in_sync for row in view.replicas if row.master == "broker-a #2"}
        assert rows == {f"broker-a #{one}": one in in_set for one in connected - {2}}, second


def test_the_replicas_of_a_dead_master_are_those_of_its_successor(source):
    dead = at(source, 61)
    assert {(row.master, row.label) for row in dead.replicas} == {
        ("broker-a #1", "broker-a #2"),
        ("broker-a #1", "broker-a #3"),
    }
    (row,) = at(source, 70).replicas
    assert (row.master, row.label, row.verdict) == ("broker-a #2", "broker-a #3", Verdict.OK)
    # Before it is connected a slave is a row of its own, and not one of the dead master; a broker that waits
    # for its role has none.
    (row,) = at(source, 62.5).replicas
    assert (row.master, row.label, row.verdict) == ("", "broker-a #3", Verdict.SILENT)
    assert [row.label for row in at(source, 80.2).replicas] == ["broker-a #3"]


def test_a_replica_that_comes_back_is_known_by_its_id(tmp_path):
    """Without sessions of the slaves, which are on one host: both are lost, and the second one comes back."""
    master = SessionBuilder(0, GroupRole.MASTER, 0.5)
    master.begin(GroupRole.NONE, epoch=1, broker_id=1, master_id=1, end=0)
    master.set(0.5, SetEvent.CHANGED, 1, 2, 3, epoch=1)
    conns = [master.connect(1, peer=peer, start=0, top=0, host="10.0.0.9") for peer in (2, 3)]
    for conn in conns:
        master.emit(5, Kind.CLOSED, conn=conn, flags=CloseReason.EOF)
    conns.append(master.connect(6, peer=3, start=0, top=0, host="10.0.0.9"))
    master.emit(9, Kind.DISPATCHED)
    source = opened(master.life().write(tmp_path))
    lost = at(source, 5.5)
    assert [row.is_connected for row in lost.replicas] == [False, False]
    assert [one.is_connected for one in control_of(lost, 1).members] == [True, False, False]
    # As the master counts: they are in its set until the controllers say otherwise.
    assert node_of(lost, 1).in_sync_replicas == 2
    rows = at(source, 8).replicas
    assert [(row.key % (1 << 31), row.is_connected, row.reconnects) for row in rows] == [
        (conns[0], False, 0),
        (conns[1], True, 1),
    ]


def test_what_is_in_sync_under_controllers_is_said_by_the_set_only(tmp_path):
    """Broker 1 lacks more than haMaxGapNotInSync when it comes back."""
    (life,) = [one for one in group_lives()[2] if one.role is GroupRole.MASTER]
    strict = {"haMaxGapNotInSync": 150, "enableControllerMode": True}
    under_controllers = evolve(life, settings={**life.settings, **strict})
    without = evolve(life, settings={**strict, "enableControllerMode": False}, name="other")
    kinds = [
        {event.kind for event in at(opened(one.write(tmp_path)), END_S).events}
        for one in (under_controllers, without)
    ]
    assert [EventKind.SYNC in some for some in kinds] == [False, True]


def test_a_master_does_not_complain_of_the_slaves_that_it_refused(tmp_path):
    """Its row at another master was a slave's until it was elected."""
    lives = group_lives()
    refused = [
        *lives[2][1].events[:9],
        Event(63 * S, Kind.CLOSED, conn=1, offset=0, flags=CloseReason.REQUEST_ABOVE_MAX),
    ]
    second = evolve(lives[2][1], events=tuple(refused), facts=lives[2][1].facts[:6])
    # The first master is alive, and does not know yet.
    first = lives[1][1]
    late = Event(70 * S, Kind.DISPATCHED, offset=5900)
    for life in (evolve(first, events=(*first.events, late)), lives[2][0], second):
        life.write(tmp_path)
    rows = at(opened(*sessions_in(tmp_path)), 64).replicas
    verdicts = {(row.master, row.label): row.verdict for row in rows}
    assert verdicts["broker-a #1", "broker-a #2"] is not Verdict.DIVERGED


def test_changes_of_roles_sets_controllers_and_cuts_are_events(source):
    kinds = {EventKind.ROLE, EventKind.SET, EventKind.CUT, EventKind.CONTROLLER}
    found = [
        ((event.time_ms - START_MS) / 1000, event.node[-1], event.kind.value, event.text, event.severity)
        for event in at(source, END_S).events
        if event.kind in kinds
    ]
    good, notice, warning, bad = Severity.GOOD, Severity.NOTICE, Severity.WARNING, Severity.CRITICAL
    asked = "was not decided: it may be the controllers' set"
    assert found == [
        (0.5, "1", "role", "is master of epoch 1; had no role", notice),
        (2.95, "1", "set", "sync-state set {1, 2}, 2 came in", good),
        (4.95, "1", "set", "sync-state set {1, 2, 3}, 3 came in", good),
        (30.1, "1", "controller", "no controller leads", bad),
        (33.1, "1", "controller", f"controller {OTHER_LEADER} leads", good),
        (62.0, "2", "role", "is master of epoch 2; was slave of broker 1 in epoch 1", warning),
        (62.1, "2", "controller", f"controller {OTHER_LEADER} leads in place of {LEADER}", good),
        (62.2, "3", "role", "is slave of broker 2 in epoch 2; was slave of broker 1 in epoch 1", notice),
        (62.2, "3", "controller", f"controller {OTHER_LEADER} leads in place of {LEADER}", good),
        (63.95, "2", "set", "sync-state set {2, 3}, 3 came in", good),
        (80.0, "1", "role", "has no role; was master of epoch 1", bad),
        (81.0, "1", "role", "is slave of broker 2 in epoch 2; had no role", notice),
        (81.7, "1", "cut", f"cut {LOST_BYTES} B of epoch 1: its log ends at {log_end(59)}", warning),
        (85.9, "2", "set", f"sync-state set {{1, 2, 3}} {asked}", warning),
        (87.95, "2", "set", "sync-state set {1, 2, 3}, 1 came in", good),
    ]


def test_in_later_segments_the_state_is_known_when_those_before_were_read(tmp_path, source):
    folder = write_group(tmp_path, segment_records=100)
    read_so_far = opened(*sessions_in(folder), work=False)
    assert node_of(at(read_so_far, 1.4), 2).control == node_of(at(source, 1.4), 2).control
    # Roles are those of the sessions, and known at once.
    late = node_of(at(read_so_far, 50), 2)
    assert (late.control, spans(late)) == (None, [(1.0, "slave", 1)])
    finish(read_so_far)
    for second in (1.4, 50, 70, 90):
        assert plain(at(read_so_far, second)) == plain(at(source, second))
    assert at(read_so_far, END_S).events == at(source, END_S).events


def test_a_role_that_begins_while_it_is_replayed_is_shown(tmp_path):
    """A role is a session of its own, which is not there when the replay is opened."""
    slave, master = group_lives()[2]
    slave.write(tmp_path)
    source = open_replay([tmp_path], clock_s=lambda: 0.0)
    finish(source)
    source.seek(source.position.end_ns // MS)
    source.check_growth()
    assert spans(source.view().nodes[0]) == ROLES[2][:1]
    path = master.write(tmp_path)
    whole = segment_of(path).read_bytes()
    # The recorder has written no record yet.
    segment_of(path).write_bytes(whole[:64])
    source.check_growth()
    assert len(source.names) == 1
    segment_of(path).write_bytes(whole)
    # A folder that is no session, and sorts before, does not hide it.
    damaged = tmp_path / "0-damaged"
    damaged.mkdir()
    (damaged / "session.json").write_text("{")
    source.check_growth()
    finish(source)
    (node,) = source.view().nodes
    assert (spans(node), node.health) == (ROLES[2], Health.UP)
    # It stays at the end, and has the events of both.
    assert source.position.at_ns == source.position.end_ns
    texts = [event.text for event in source.view().events if event.kind is EventKind.ROLE]
    assert texts == ["is master of epoch 2; was slave of broker 1 in epoch 1"]


def segment_of(path):
    (segment,) = (path / "events").glob("*.seg")
    return segment


# -- which session is whose ----------------------------------------------------------------------------------


def test_sessions_without_an_id_are_of_the_brokers_whose_first_roles_follow(tmp_path):
    """Two brokers that start for the first time at once, and record into one folder."""
    lives = group_lives()
    waiting = lives[1][0]
    late = evolve(
        waiting,
        name="20260922T000000001Z-broker-a-2",
        events=tuple(evolve(event, ts_ns=event.ts_ns + 100 * MS) for event in waiting.events),
    )
    for life in (waiting, late, lives[1][1], lives[2][0]):
        life.write(tmp_path)
    source = opened(*sessions_in(tmp_path))
    view = at(source, 10)
    assert {node.label: spans(node) for node in view.nodes} == {
        "broker-a #1": [(0.0, "none", None), (0.5, "master", 1)],
        "broker-a #2": [(0.1, "none", None), (1.0, "slave", 1)],
    }


def test_recordings_without_facts_say_neither_who_is_connected_nor_the_set(tmp_path):
    master = group_lives()[1][1]

    def without(kind):
        facts = tuple(fact for fact in master.facts if fact[1]["type"] != kind)
        return opened(evolve(master, facts=facts, name=kind).write(tmp_path))

    control = control_of(at(without("replica"), 10), 1)
    assert (control.sync_state_set, control.members) == ((1, 2, 3), ())
    view = at(without("sync_state_set"), 10)
    control = control_of(view, 1)
    assert (control.sync_state_set, control.sync_state_set_epoch, control.members) == ((), None, ())
    assert EventKind.SET not in {event.kind for event in view.events}


def test_a_slave_that_refuses_a_cut_says_so(tmp_path):
    closed = [
        evolve(event, flags=CloseReason.CUT_REFUSED) if event.kind == Kind.CLOSED else event
        for event in slave_events()[:10]
    ]
    source = opened(write_session(tmp_path / "s", closed, role="SLAVE", broker_id=1))
    view = source.view_at(source.position.end_ns)
    (node,) = view.nodes
    assert node.slave.complaint == "CUT_REFUSED: its last connection ended with CUT_REFUSED"
    assert (EventKind.GAP, "connection ended (CUT_REFUSED)", Severity.CRITICAL) in [
        (event.kind, event.text, event.severity) for event in view.events
    ]


# -- clocks --------------------------------------------------------------------------------------------------


def test_brokers_whose_clocks_differ_are_shown_by_the_clock_of_the_first_master(tmp_path, source):
    """The clock of broker 2 is 5 s ahead: as a slave, and as the master of those who are compared with it."""
    apart = opened(*sessions_in(write_group(tmp_path, ahead_ns=5 * S)))
    view = at(apart, END_S - 1)
    assert {node.broker_id: spans(node) for node in view.nodes} == ROLES
    clocks = [event.text for event in view.events if event.kind is EventKind.CLOCK]
    assert clocks == ["its clock was 5.0 s ahead of that of broker-a #1, by which it is shown"]
    assert [event.text for event in view.events if event.kind is not EventKind.CLOCK] == [
        event.text for event in at(source, END_S - 1).events
    ]


def test_clocks_are_compared_along_the_most_certain_path():
    links = [
        ClockLink(reference=1, other=2, ahead_ns=100, error_ns=30),
        ClockLink(reference=3, other=2, ahead_ns=40, error_ns=5),
        # The direct comparison is less certain than the way over 2.
        ClockLink(reference=1, other=3, ahead_ns=90, error_ns=60),
        ClockLink(reference=5, other=6, ahead_ns=7, error_ns=0),
    ]
    assert clock_offsets([1], links) == {
        1: ClockOffset(0, 0, 1),
        2: ClockOffset(100, 30, 1),
        3: ClockOffset(60, 35, 1),
    }
    assert clock_offsets([1, 3], links)[2] == ClockOffset(40, 5, 3)
    assert ClockOffset(-31, 30, 1).is_certain
    assert not ClockOffset(30, 30, 1).is_certain


# -- screens -------------------------------------------------------------------------------------------------


def context_at(second):
    async def nothing(_show):
        raise AssertionError("not run")

    palette = palette_of(MonitorApp(nothing))
    return RenderContext(palette, end_ms=START_MS + round(second * 1000), span_ms=120_000)


def test_role_changes_and_cuts_are_marks_on_the_graphs_of_replicas(source):
    view = at(source, 100)
    rows = {row.label: row for row in view.replicas}

    def marks(label):
        found = replica_marks(rows[label], view, context_at(100))
        return sorted(((mark.time_ms - START_MS) / 1000, mark.is_role_change) for mark in found)

    role_changes = {label: [at_s for at_s, is_role in marks(label) if is_role] for label in rows}
    assert role_changes == {
        "broker-a #1": [0.5, 62.0, 80.0, 81.0],
        "broker-a #3": [62.0, 62.2],
    }
    assert (81.7, False) in marks("broker-a #1")
    assert (81.7, False) not in marks("broker-a #3")


def drawn(app):
    """The text of the screen."""
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()
    )


def in_app(source, steps):
    async def run():
        app = MonitorApp(source, playback=source)
        async with app.run_test(size=(120, 40)) as pilot:
            while app.monitor_screen.view is None or source.overview_share < 1:
                await pilot.pause(0.01)
            result = steps(pilot, app)
            assert asyncio.iscoroutine(result)
            await result
        assert app.failure is None

    asyncio.run(run())


async def seen_at(pilot, app, source, second):
    wanted_ms = START_MS + round(second * 1000)
    source.seek(wanted_ms)
    while app.monitor_screen.view is None or app.monitor_screen.view.time_ms != wanted_ms:
        await pilot.pause(0.01)
    app.monitor_screen.redraw()
    await pilot.pause()
    return drawn(app)


def test_screen_6_follows_a_replay_forward_and_back(folder):
    source = opened(*sessions_in(folder))

    async def steps(pilot, app):
        await pilot.press("6")
        first = await seen_at(pilot, app, source, 50)
        assert "6 Roles" in first
        assert "MASTER e1" in first
        assert "e2" not in first
        later = await seen_at(pilot, app, source, 100)
        assert "MASTER e2" in later
        assert "SLAVE e2" in later
        assert "cut 300 B of epoch 1" in later
        assert "✗✗✗" in later
        chart = [line for line in later.splitlines() if "◆" in line]
        assert any(" 2 " in line and "█" in line for line in chart)
        # Back: nothing of what comes later is shown.
        assert await seen_at(pilot, app, source, 50) == first

    in_app(source, steps)

"""What a monitor records of controller mode: a replay shows the roles, sets and controllers that it saw."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import define, evolve, field

from tests.monitor.builders import MASTER, SLAVE, connection, master, slave
from tests.monitor.test_cluster import Play
from tests.monitor.test_roles import LEADER, OTHER_LEADER, SOCKET, as_master, as_slave, control
from tests.waiting import wait_until
from trioha.broker_status import ControlStatus, MemberStatus
from trioha.recording.events import CloseReason, GroupRole, Kind, SetEvent
from trioha.recording.reader import find_sessions, open_session
from trioha_monitor.capture import MonitorRecording
from trioha_monitor.replay import open_replay
from trioha_monitor.view import ClusterView, EventKind, Health
from trioha_sessions.invariants.group import check_group, check_groups
from trioha_sessions.invariants.session_check import check_session
from trioha_sessions.records import read_records
from trioha_sessions.role_lives import describe, read_life
from trioha_sessions.session_reader import SessionReader

ONE, TWO = MASTER, SLAVE


def member(broker_id, ack, *, in_set=True, asked=False):
    return MemberStatus(
        broker_id=broker_id,
        in_set=in_set,
        is_required=in_set or asked,
        is_connected=ack is not None,
        ack_offset=ack,
    )


def waiting(address, broker_id, *, offset=1000):
    """A node that has no role yet."""
    status = slave(offset, address=address, broker_id=broker_id or 1)
    return evolve(
        status,
        client=evolve(status.client, master_address=None, state="READY"),
        control=ControlStatus(role="none", step="discovering", broker_id=broker_id),
    )


@define
class Recorded(Play):
    """Records the views of answers."""

    path: Path
    recording: MonitorRecording = field(init=False)
    views: list[ClusterView] = field(factory=list)

    def __attrs_post_init__(self):
        Play.__init__(self, ONE, TWO)
        self.recording = MonitorRecording(self.path)
        self.recording.start()

    def see(self, *statuses, for_s=0.5, down=""):
        """Answers, one each 100 ms; `down` names a node that does not answer."""
        for _ in range(round(for_s * 10)):
            view = self.tell(*statuses)
            if down:
                self.now_ms -= 100
                view = self.fail(down)
            self.views.append(view)
            self.recording.note(view)

    def stop(self):
        return self.recording.stop()


def failover(path):
    """Broker 1 is master of epoch 4 and broker 2 its slave; then the reverse, in epoch 5."""
    seen = Recorded(path)
    acked = (member(1, 1000), member(2, 1000))
    of_set = {"confirm_offset": 1000, "sync_state_set_epoch": 7}
    seen.see(as_master(ONE, 1, 4, members=acked, **of_set), as_slave(TWO, 2, 4, ONE, 1), for_s=2)
    ahead = (member(1, 1500), member(2, 1000))
    longer = as_master(ONE, 1, 4, offset=1500, members=ahead, **of_set)
    behind = connection(SOCKET, sent=1500, ack=1000, lag=500)
    seen.see(evolve(longer, connections=(behind,)), as_slave(TWO, 2, 4, ONE, 1))
    # The master's last 500 bytes were not replicated: it cuts them as a slave.
    alone = {
        "sync_state_set": (2,),
        "sync_state_set_epoch": 8,
        "leader": OTHER_LEADER,
        "confirm_offset": 1000,
    }
    new_master = as_master(TWO, 2, 5, peer=False, members=(member(2, 1000),), **alone)
    slave = as_slave(ONE, 1, 5, TWO, 2)
    longer = as_slave(ONE, 1, 5, TWO, 2, offset=1500)
    seen.see(with_control(longer, log_epoch=4, leader=OTHER_LEADER), new_master)
    seen.see(with_control(slave, leader=None), new_master)
    alone["members"] = (member(1, 1000, in_set=False, asked=True), member(2, 1000))
    seen.see(with_control(slave, leader=None), as_master(TWO, 2, 5, **alone))
    both = {**alone, "sync_state_set": (1, 2), "sync_state_set_epoch": 9, "members": acked}
    seen.see(slave, as_master(TWO, 2, 5, **both), for_s=2)
    return seen


def with_control(status, **changes):
    return evolve(status, control=evolve(status.control, **changes))


def replay_of(path):
    source = open_replay([path], clock_s=lambda: 0.0)
    while source.work(for_s=1.0):
        pass
    return source


def sessions_of(path):
    """In the order of their starts, then by names of nodes."""
    return sorted(
        map(open_session, find_sessions([path])),
        key=lambda one: (one.wall_ns, str(one.identity.settings["address"])),
    )


def lives_of(path, address):
    own = [one for one in sessions_of(path) if one.identity.settings["address"] == address]
    lives = [read_life(one) for one in own]
    assert None not in lives
    return [life for life in lives if life is not None]


def spans(node):
    return [(span.time_ms, span.role, span.epoch) for span in node.roles]


def figures(status):
    """What the Roles screen shows of a node, except how long ago it was."""
    if status is None:
        return ()
    is_master = status.role == "master"
    return (
        status.role,
        status.broker_id,
        status.master_epoch,
        status.master_id,
        status.master_address,
        status.log_epoch,
        status.in_sync_min,
        status.confirm_offset,
        status.leader,
        # Of a group only its master has the set.
        (status.sync_state_set, status.sync_state_set_epoch, status.members) if is_master else None,
    )


def test_a_replay_shows_the_recorded_roles_sets_and_controllers(tmp_path):
    seen = failover(tmp_path)
    source = replay_of(seen.stop())
    for number, view in enumerate(seen.views):
        again = source.view_at(view.time_ms * 1_000_000)
        assert [(node.label, node.role, node.health) for node in again.nodes] == [
            (node.label, node.role, node.health) for node in view.nodes
        ], number
        assert [(row.master, row.label, row.ack_offset) for row in again.replicas if row.is_connected] == [
            (row.master_label, row.label, row.ack_offset) for row in view.replicas if row.is_connected
        ], number
        for node, was in zip(again.nodes, view.nodes, strict=True):
            assert figures(node.control) == figures(was.control), (number, node.label)
            # A recording begins later than the role did.
            assert spans(node) == spans(was), number
            assert node.log.max_offset == was.log.max_offset


def test_a_replay_has_the_events_of_roles_that_were_seen(tmp_path):
    seen = failover(tmp_path)
    view = replay_of(seen.stop()).view_at(seen.now_ms * 1_000_000)

    def texts(kind, of):
        return [(event.node, event.text) for event in of.events if event.kind is kind]

    for kind in (EventKind.ROLE, EventKind.CONTROLLER):
        assert texts(kind, view) == texts(kind, seen.views[-1])
        assert texts(kind, view)
    assert texts(EventKind.SET, view) == [("broker-a #2", "sync-state set {1, 2}, 1 came in")]
    assert texts(EventKind.CUT, view) == [("broker-a #1", "cut 500 B of epoch 4: its log ends at 1000")]
    # Connections end with a role, and no node stops or starts.
    assert {text for _, text in texts(EventKind.LOST, view)} == {
        "connection ended: SHUTDOWN",
        f"connection ended: SHUTDOWN, 500 B behind ({SOCKET})",
    }
    assert len(texts(EventKind.NODE, view)) == 4


def test_each_role_is_a_session_with_the_records_of_its_side(tmp_path):
    path = failover(tmp_path).stop()
    assert [(one.identity.role, one.identity.broker_id) for one in sessions_of(path)] == [
        ("SYNC_MASTER", 0),
        ("SLAVE", 2),
        ("SLAVE", 1),
        ("SYNC_MASTER", 0),
    ]
    sides = {
        "SYNC_MASTER": {Kind.PUT, Kind.ACK, Kind.HEARTBEAT, Kind.SYNC_STATE_SET},
        "SLAVE": {Kind.RECEIVED, Kind.REPORTED},
    }
    for session in sessions_of(path):
        kinds = set(read_records(session).array["kind"].tolist())
        own, other = sides.values() if session.identity.role != "SLAVE" else reversed(sides.values())
        assert kinds >= own
        assert not kinds & other
        assert session.identity.settings["enableControllerMode"] is True
        assert session.identity.settings["minInSyncReplicas"] == 1
    assert [
        (life.broker_id, life.role, life.former, life.epoch, life.master_id, life.log_end_offset)
        for address in (ONE, TWO)
        for life in lives_of(path, address)
    ] == [
        (1, GroupRole.MASTER, GroupRole.NONE, 4, 1, 1000),
        (1, GroupRole.SLAVE, GroupRole.MASTER, 5, 2, 1500),
        (2, GroupRole.SLAVE, GroupRole.NONE, 4, 1, 1000),
        (2, GroupRole.MASTER, GroupRole.SLAVE, 5, 2, 1000),
    ]


def test_the_events_of_a_role_are_sentences(tmp_path):
    first, second = lives_of(failover(tmp_path).stop(), ONE)
    assert [describe(first, event) for event in first.events] == [
        "the log is in epoch 4",
        "sync-state set [1, 2] changed, set epoch 7",
        f"controller {LEADER} leads",
    ]
    assert [describe(second, event) for event in (second.began, *second.events)] == [
        "MASTER to SLAVE in epoch 5, master is broker 2 at 10.0.0.2:10911; the log ends at 1,500",
        "the log is in epoch 4",
        f"controller {OTHER_LEADER} leads",
        "500 bytes of epoch 4 cut at 1,000",
        "the log is in epoch 5",
        "no controller leads",
        f"controller {LEADER} leads",
    ]


def test_the_invariants_hold_in_a_recording_of_roles(tmp_path):
    sessions = sessions_of(failover(tmp_path).stop())
    for session in sessions:
        assert [one.count for one in check_session(session) if one.count] == []
    (group,) = check_groups(sessions)
    assert {one.invariant.name: (one.checked, one.count) for one in group.results} == {
        "one-master-per-epoch": (4, 0),
        # A monitor's sessions begin later than the roles, and have no PUT_OK.
        "epochs-go-forward": (0, 0),
        "confirmed-is-kept": (0, 0),
        "cut-was-not-put-ok": (0, 0),
    }


def test_masters_of_unknown_epochs_are_not_compared(tmp_path):
    """A RocketMQ master whose controllers do not answer has one."""
    path = failover(tmp_path).stop()
    masters = [lives_of(path, ONE)[0], lives_of(path, TWO)[1]]
    result = check_group([evolve(life, epoch=-1) for life in masters]).results[0]
    assert (result.checked, result.count) == (0, 0)
    result = check_group([evolve(life, epoch=3) for life in masters]).results[0]
    assert (result.checked, result.count) == (2, 1)


def test_a_monitor_that_starts_late_breaks_no_invariant_of_the_nodes_own_recordings(tmp_path):
    """Its first set of an epoch is an earlier one than the node's last, in a session that began later."""
    lives = lives_of(failover(tmp_path).stop(), ONE)
    own = [evolve(life, is_sampled=False) for life in lives]
    late = evolve(lives[0], began=evolve(lives[0].began, at_ns=own[-1].ended_ns))
    assert [one.count for one in check_group([*own, late]).results] == [0, 0, 0, 0]
    # As a recording of the node itself it would be one.
    late = evolve(late, is_sampled=False)
    assert [one.count for one in check_group([*own, late]).results] == [0, 1, 0, 0]


def test_a_proposal_is_recorded_until_it_is_decided_or_withdrawn(tmp_path):
    seen = Recorded(tmp_path)
    members = member(1, 1000), member(2, 1000, in_set=False, asked=True)
    alone = {"sync_state_set": (1,), "sync_state_set_epoch": 3}
    asked = as_master(ONE, 1, 4, members=members, **alone)
    quiet = as_master(ONE, 1, 4, members=members[:1], **alone)
    for status in (quiet, asked, quiet, asked, as_master(ONE, 1, 4, sync_state_set_epoch=4)):
        seen.see(status, as_slave(TWO, 2, 4, ONE, 1))
    (life,) = lives_of(seen.stop(), ONE)
    sets = [
        (SetEvent(event.flags).name, event.fact["members"], event.aux)
        for event in life.events
        if event.kind is Kind.SYNC_STATE_SET
    ]
    assert sets == [
        ("CHANGED", [1], 3),
        ("PROPOSED", [1, 2], 3),
        ("REFUSED", [1, 2], 3),
        ("PROPOSED", [1, 2], 3),
        ("CHANGED", [1, 2], 4),
    ]


def test_a_node_that_does_not_answer_has_no_role_meanwhile(tmp_path):
    """It goes on in its session if it has the same role again, and in another one if it has not."""
    seen = Recorded(tmp_path)
    other = as_slave(TWO, 2, 4, ONE, 1)
    seen.see(as_master(ONE, 1, 4), other, for_s=1)
    for status in (as_master(ONE, 1, 4), waiting(ONE, 1)):
        seen.see(other, down=ONE, for_s=2)
        seen.see(status, other, for_s=1)
    seen.see(as_slave(ONE, 1, 5, TWO, 2), other, for_s=1)
    path = seen.stop()
    assert [(life.role.name, life.former.name) for life in lives_of(path, ONE)] == [
        ("MASTER", "NONE"),
        ("NONE", "NONE"),
        ("SLAVE", "NONE"),
    ]
    # Connections that end with a node have no reason.
    records = read_records(sessions_of(path)[0]).array
    assert records[records["kind"] == Kind.CLOSED]["flags"].tolist() == [CloseReason.NONE]
    source = replay_of(path)
    down_ms = 0
    for number, view in enumerate(seen.views):
        again, was = source.view_at(view.time_ms * 1_000_000).nodes[0], view.nodes[0]
        assert (again.health, spans(again)) == (was.health, spans(was)), number
        if again.health is not Health.DOWN:
            down_ms = 0
            continue
        down_ms = down_ms or view.time_ms
        assert again.reason == "did not answer the monitor: Connection refused"
        assert again.for_s == (view.time_ms - down_ms) / 1000


def test_a_node_without_an_id_is_the_node_that_has_one_later(tmp_path):
    """Two nodes start at once in one recording: their sessions without an id are told apart by addresses."""
    seen = Recorded(tmp_path)
    seen.see(waiting(ONE, None), waiting(TWO, None))
    seen.see(waiting(ONE, None), waiting(TWO, 2))
    seen.see(waiting(ONE, 1), as_slave(TWO, 2, 1, ONE, 1))
    seen.see(as_master(ONE, 1, 1), as_slave(TWO, 2, 1, ONE, 1))
    path = seen.stop()
    assert [life.broker_id for life in (*lives_of(path, ONE), *lives_of(path, TWO))] == [-1, 1, -1, 2]
    nodes = replay_of(path).view_at(seen.now_ms * 1_000_000).nodes
    assert [(node.label, [span.role for span in node.roles]) for node in nodes] == [
        ("broker-a #1", ["none", "master"]),
        ("broker-a #2", ["none", "slave"]),
    ]


def test_the_session_of_a_role_is_closed_while_the_recording_goes_on(tmp_path):
    seen = Recorded(tmp_path)
    seen.see(as_master(ONE, 1, 4), as_slave(TWO, 2, 4, ONE, 1))
    seen.see(as_slave(ONE, 1, 5, TWO, 2), as_master(TWO, 2, 5))
    (path,) = tmp_path.iterdir()

    def closed():
        if len(list(path.glob("*/session.json"))) < 4:
            return []
        return [SessionReader(one).ended_in_order for one in sessions_of(path)]

    # Views are recorded in a thread.
    wait_until(lambda: closed() == [True, True, False, False], "two closed sessions")
    seen.stop()
    assert closed() == [True] * 4


def rocketmq(role, broker_id, epoch, master_id):
    """What a monitor finds out of a RocketMQ broker."""
    found = control(role, broker_id or 0, epoch or 0, master_id or 0, step="")
    return evolve(found, broker_id=broker_id, master_epoch=epoch, master_id=master_id)


def as_rocketmq(status, answer):
    return evolve(status, control=answer)


def test_nothing_is_recorded_of_a_rocketmq_broker_while_its_role_is_not_that_of_the_controllers(tmp_path):
    """The status has the new role at once, the answer of the controllers is asked for after it."""
    seen = Recorded(tmp_path)
    other = as_slave(TWO, 2, 4, ONE, 1)
    before = rocketmq("master", 1, 4, 1)
    seen.see(as_rocketmq(as_master(ONE, 1, 4), before), other, for_s=1)
    as_slave_now = as_slave(ONE, 1, 5, TWO, 2, offset=3000)
    seen.see(as_rocketmq(as_slave_now, before), other)
    seen.see(as_rocketmq(as_slave_now, rocketmq("slave", 1, 5, 2)), other, for_s=1)
    first, second = lives_of(seen.stop(), ONE)
    assert (first.role, first.epoch, second.role, second.epoch) == (GroupRole.MASTER, 4, GroupRole.SLAVE, 5)
    assert (second.began.at_ns - first.began.at_ns) // 1_000_000 == 1500


def test_a_rocketmq_master_keeps_its_id_when_the_controllers_name_another_master(tmp_path):
    """Of a broker that serves as master the controllers' master is shown: another one for a moment."""
    seen = Recorded(tmp_path)
    other = as_slave(TWO, 2, 4, ONE, 1)
    seen.see(as_rocketmq(as_master(ONE, 1, 4), rocketmq("master", 1, 4, 1)), other)
    seen.see(as_rocketmq(as_master(ONE, 1, 4), rocketmq("master", 2, 5, 2)), other)
    seen.see(as_rocketmq(as_slave(ONE, 1, 5, TWO, 2), rocketmq("slave", 1, 5, 2)), as_master(TWO, 2, 5))
    path = seen.stop()
    lives = [(life.broker_id, life.role.name, life.epoch) for life in lives_of(path, ONE)]
    assert lives == [(1, "MASTER", 4), (1, "SLAVE", 5)]
    assert [node.label for node in replay_of(path).view().nodes] == ["broker-a #1", "broker-a #2"]


def test_an_epoch_that_is_known_later_is_of_the_same_role(tmp_path):
    """No controller answers at first, nor for a while later."""
    seen = Recorded(tmp_path)
    other = as_slave(TWO, 2, 4, ONE, 1)
    unknown = rocketmq("master", None, None, None)
    for answer in (unknown, rocketmq("master", 1, 4, 1), unknown):
        seen.see(as_rocketmq(as_master(ONE, 1, 4), answer), other)
    path = seen.stop()
    assert [(life.broker_id, life.epoch) for life in lives_of(path, ONE)] == [(-1, -1), (1, 4)]
    node = replay_of(path).view_at(seen.now_ms * 1_000_000).nodes[0]
    assert (node.label, spans(node)) == ("broker-a #1", [(seen.views[0].time_ms, "master", 4)])


def as_plain_master(offset=1000):
    return master(offset, address=ONE)


@pytest.mark.parametrize(
    "again",
    [lambda: slave(1000, address=ONE), lambda: evolve(as_plain_master(), broker_name="broker-b")],
    ids=["slave", "name"],
)
def test_another_role_without_controllers_is_another_session(tmp_path, again):
    seen = Recorded(tmp_path)
    other = slave(1000, address=TWO, broker_id=2)
    seen.see(as_plain_master(), other)
    seen.see(again(), other)
    own = [one for one in sessions_of(seen.stop()) if one.identity.settings["address"] == ONE]
    status = again()
    assert [(one.identity.broker_name, one.identity.role) for one in own] == [
        ("broker-a", "SYNC_MASTER"),
        (status.broker_name, status.role),
    ]
    assert [read_life(one) for one in own] == [None, None]


def test_a_log_that_is_set_aside_is_no_cut(tmp_path):
    seen = Recorded(tmp_path)
    other = as_master(TWO, 2, 4)
    for offset, start in ((1000, 0), (0, 0), (700, 500), (600, 500)):
        status = as_slave(ONE, 1, 4, TWO, 2, offset=offset)
        seen.see(evolve(status, min_offset=start), other)
    (life,) = lives_of(seen.stop(), ONE)
    cuts = [(event.offset, event.aux) for event in life.events if event.kind is Kind.LOG_CUT]
    assert cuts == [(600, 700)]

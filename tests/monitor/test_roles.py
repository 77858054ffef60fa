"""Controller mode in the monitor: roles, sets and controllers from answers to events, rows and the chart."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve

from tests.monitor.builders import MASTER, SLAVE, connection, master, slave
from tests.monitor.test_cluster import Play
from trioha.broker_status import ControllerLinkStatus, ControlStatus, MemberStatus
from trioha.errors import RemoteProtocolError
from trioha.severity import Severity
from trioha_monitor import control_feed
from trioha_monitor.answers import CONTROLLERS_MAX, MEMBERS_MAX, AnswerFilter
from trioha_monitor.app import MonitorApp
from trioha_monitor.cluster import Sample
from trioha_monitor.control_feed import AGAIN_S, EVERY_S, ControlFeed
from trioha_monitor.rendering import RenderContext, palette_of
from trioha_monitor.roles import SPANS_MAX, RoleHistory
from trioha_monitor.view import EventKind, Health, NodeView, RoleSpan
from trioha_monitor.widgets.role_chart import role_chart

LEADER = "10.0.0.9:9878"
OTHER_LEADER = "10.0.0.8:9878"
SOCKET = "127.0.0.1:40001"


def control(role, broker_id, epoch, master_id, **changes):
    base = ControlStatus(
        role=role,
        step="following",
        broker_id=broker_id,
        master_epoch=epoch,
        master_id=master_id,
        master_address=f"10.0.0.{master_id}:10911",
        log_epoch=epoch,
        sync_state_set=(1, 2),
        sync_state_set_epoch=epoch,
        in_sync_min=1,
        leader=LEADER,
        leader_heard_ms=100,
        controllers=(ControllerLinkStatus(address=LEADER, is_connected=True, is_leader=True),),
        role_changes=1,
    )
    return evolve(base, **changes)


def as_master(address, broker_id, epoch, *, offset=1000, peer=True, **changes):
    connections = [connection(SOCKET, sent=offset, ack=offset, lag=0)] if peer else []
    status = master(offset, *connections, address=address)
    return evolve(
        status,
        ha_address=f"{address}0",
        control=control("master", broker_id, epoch, broker_id, **changes),
    )


def as_slave(address, broker_id, epoch, of, master_id, *, offset=1000):
    status = slave(offset, address=address, broker_id=broker_id)
    client = evolve(status.client, master_address=f"{of}0", local_address=SOCKET)
    return evolve(status, client=client, control=control("slave", broker_id, epoch, master_id))


def texts(play, kind):
    view = play.cluster.view(play.now_ms)
    return [(event.node, event.text, event.severity) for event in view.events if event.kind is kind]


def test_a_role_change_is_an_event_of_each_broker_and_their_labels_and_rows_stay():
    play = Play(MASTER, SLAVE)
    play.tell(as_master(MASTER, 1, 4), as_slave(SLAVE, 2, 4, MASTER, 1), for_s=3)
    assert [node.label for node in play.cluster.view(play.now_ms).nodes] == ["broker-a #1", "broker-a #2"]
    assert texts(play, EventKind.ROLE) == []
    # Connections end with a role.
    for address in (MASTER, SLAVE):
        play.cluster.observe(Sample(address, play.now_ms, fault="closed the connection"))
    view = play.tell(as_slave(MASTER, 1, 5, SLAVE, 2), as_master(SLAVE, 2, 5), for_s=3)
    assert texts(play, EventKind.ROLE) == [
        (
            "broker-a #1",
            "is slave of broker 2 in epoch 5; was master of epoch 4",
            Severity.WARNING,
        ),
        (
            "broker-a #2",
            "is master of epoch 5; was slave of broker 1 in epoch 4",
            Severity.WARNING,
        ),
    ]
    assert [node.label for node in view.nodes] == ["broker-a #1", "broker-a #2"]
    assert [node.health for node in view.nodes] == [Health.UP, Health.UP]
    (row,) = view.replicas
    assert (row.master_label, row.label, row.is_connected) == ("broker-a #2", "broker-a #1", True)
    # Nothing was lost, and nobody was down.
    kinds = {event.kind for event in view.events}
    assert EventKind.LOST not in kinds
    assert [text for kind, text in play.events() if kind is EventKind.NODE] == [
        "answers: SYNC_MASTER trioha 0.1.0",
        "answers: SLAVE trioha 0.1.0",
    ]
    first, second = (node.roles for node in view.nodes)
    assert [(span.role, span.epoch) for span in first] == [("master", 4), ("slave", 5)]
    assert [(span.role, span.epoch) for span in second] == [("slave", 4), ("master", 5)]


def test_a_second_failure_in_a_row_is_a_node_that_is_down():
    play = Play()
    play.tell(as_master(MASTER, 1, 4))
    view = play.fail(for_s=0.1)
    assert view.nodes[0].health is Health.UP
    view = play.fail(for_s=0.1)
    assert (view.nodes[0].health, view.nodes[0].reason) == (Health.DOWN, "Connection refused")
    assert [span.role for span in view.nodes[0].roles] == ["master", ""]
    # It is so again after the next answer, if that was not long ago.
    play.tell(as_master(MASTER, 1, 4))
    assert play.fail(for_s=0.1).nodes[0].health is Health.UP
    play.tell(as_master(MASTER, 1, 4))
    play.now_ms += 2000
    assert play.fail(for_s=0.1).nodes[0].health is Health.DOWN
    # Without controller mode no connection ends with a role.
    play = Play()
    play.tell(master(1000))
    assert play.fail(for_s=0.1).nodes[0].health is Health.DOWN


def test_the_replicas_of_a_dead_master_are_those_of_its_successor():
    play = Play(MASTER, SLAVE, "127.0.0.1:10931")
    third = as_slave("127.0.0.1:10931", 3, 4, MASTER, 1)
    play.tell(as_master(MASTER, 1, 4), third, as_slave(SLAVE, 2, 4, MASTER, 1), for_s=2)
    play.fail(MASTER, for_s=1)
    view = play.tell(as_master(SLAVE, 2, 5), as_slave("127.0.0.1:10931", 3, 5, SLAVE, 2), for_s=3)
    assert view.nodes[0].health is Health.DOWN
    (row,) = view.replicas
    assert (row.master_label, row.label) == ("broker-a #2", "broker-a #3")
    # A slave that does not say its master's address has the living one.
    fourth = as_slave("127.0.0.1:10931", 3, 5, SLAVE, 2)
    bare = evolve(fourth, client=evolve(fourth.client, master_address=None, local_address=None))
    view = play.tell(as_master(SLAVE, 2, 5), bare, for_s=3)
    assert [row.master_label for row in view.replicas] == ["broker-a #2"]
    # It comes back, in its old role first.
    view = play.tell(as_master(MASTER, 1, 4, peer=False), for_s=1)
    assert view.nodes[0].is_master


def test_changes_of_the_set_are_events_of_the_master_only():
    play = Play(MASTER, SLAVE)
    play.tell(as_master(MASTER, 1, 4), as_slave(SLAVE, 2, 4, MASTER, 1))
    alone = {"sync_state_set": (1,), "sync_state_set_epoch": 5}
    play.tell(as_master(MASTER, 1, 4, **alone))
    play.tell(as_master(MASTER, 1, 4, sync_state_set=(1, 3), sync_state_set_epoch=6))
    play.tell(as_master(MASTER, 1, 4, sync_state_set=(1, 2), sync_state_set_epoch=7))
    play.tell(as_master(MASTER, 1, 4, **alone, in_sync_min=2))
    later = as_slave(SLAVE, 2, 4, MASTER, 1)
    play.tell(evolve(later, control=evolve(later.control, **alone)))
    assert [each[1:] for each in texts(play, EventKind.SET)] == [
        ("sync-state set {1}, 2 left", Severity.WARNING),
        ("sync-state set {1, 3}, 3 came in", Severity.GOOD),
        ("sync-state set {1, 2}, 2 came in and 3 left", Severity.WARNING),
        (
            "sync-state set {1}, 2 left: 1 in the set, fewer than minInSyncReplicas 2: messages are refused",
            Severity.CRITICAL,
        ),
    ]


def test_a_leader_that_is_lost_and_found_and_a_refusal_are_events():
    play = Play()
    play.tell(as_master(MASTER, 1, 4))
    lost = ControllerLinkStatus(address=LEADER, reason="cannot connect: refused")
    play.tell(as_master(MASTER, 1, 4, leader=None, controllers=(lost,)))
    play.tell(as_master(MASTER, 1, 4))
    play.tell(as_master(MASTER, 1, 4, leader=OTHER_LEADER))
    play.tell(as_master(MASTER, 1, 4, leader=OTHER_LEADER, refusal="2012: none to elect"), for_s=1)
    assert [each[1:] for each in texts(play, EventKind.CONTROLLER)] == [
        (f"no controller leads: {LEADER}: cannot connect: refused", Severity.CRITICAL),
        (f"controller {LEADER} leads", Severity.GOOD),
        (f"controller {OTHER_LEADER} leads in place of {LEADER}", Severity.GOOD),
        ("refused by the controllers: 2012: none to elect", Severity.WARNING),
    ]


def test_a_role_that_is_not_known_for_a_while_is_no_change():
    """Of a RocketMQ broker whose controllers do not answer only master or slave is known."""
    play = Play()
    play.tell(as_master(MASTER, 1, 4))
    unknown = {"master_epoch": None, "master_id": None, "sync_state_set_epoch": None, "sync_state_set": ()}
    known = control("master", 1, 4, 1)
    play.tell(evolve(as_master(MASTER, 1, 4), control=evolve(known, **unknown)))
    play.tell(as_master(MASTER, 1, 4))
    assert texts(play, EventKind.ROLE) == texts(play, EventKind.SET) == []
    (node,) = play.cluster.view(play.now_ms).nodes
    assert node.label == "broker-a #1"
    assert [(span.role, span.epoch) for span in node.roles] == [("master", 4)]
    # Nor is its first set, after the change of a role.
    play.tell(as_master(MASTER, 1, 4, sync_state_set=(), sync_state_set_epoch=None))
    play.tell(as_master(MASTER, 1, 4))
    assert texts(play, EventKind.SET) == []


def test_a_log_that_becomes_shorter_is_a_cut_and_a_role_without_a_successor_is_bad():
    play = Play()
    play.tell(as_master(MASTER, 1, 4))
    play.tell(as_slave(MASTER, 1, 5, SLAVE, 2, offset=700), for_s=1)
    assert texts(play, EventKind.CUT) == [
        ("broker-a #1", "its log ends at 700, before it ended at 1000", Severity.WARNING)
    ]
    assert texts(play, EventKind.GAP) == []
    play.tell(evolve(as_slave(MASTER, 1, 5, SLAVE, 2, offset=700), control=control("none", 1, 5, 2)))
    assert texts(play, EventKind.ROLE)[-1] == (
        *("broker-a #1", "has no role; was slave of broker 2 in epoch 5", Severity.CRITICAL),
    )


def test_of_controller_mode_impossible_numbers_are_refused_and_long_lists_and_texts_cut():
    for wrong in (
        {"master_epoch": 2**63},
        {"confirm_offset": -2},
        {"sync_state_set": (2**64,)},
        {"members": (MemberStatus(broker_id=1, ack_offset=-7),)},
    ):
        status = evolve(as_master(MASTER, 1, 4), control=control("master", 1, 4, 1, **wrong))
        with pytest.raises(RemoteProtocolError, match="impossible"):
            AnswerFilter().check(status)
    link = ControllerLinkStatus(address="c\x1b[31m:1", reason="no \x07answer " * 100)
    hostile = control(
        "ma\x1bster",
        1,
        4,
        1,
        members=tuple(MemberStatus(broker_id=number) for number in range(5000)),
        sync_state_set=tuple(range(5000)),
        controllers=(link,) * 5000,
        refusal="r\n" * 5000,
    )
    kept = AnswerFilter().check(evolve(as_master(MASTER, 1, 4), control=hostile)).status.control
    assert (len(kept.members), len(kept.sync_state_set)) == (MEMBERS_MAX, MEMBERS_MAX)
    assert len(kept.controllers) == CONTROLLERS_MAX
    shown = f"{kept.role}{kept.refusal}{kept.controllers[0].address}{kept.controllers[0].reason}"
    assert shown.isprintable()
    assert len(shown) < 1000


def test_the_history_of_roles_is_bounded_and_has_no_repetitions():
    history = RoleHistory()
    history.gone(at_ms=0)
    assert history.freeze() == ()
    for number in range(2 * SPANS_MAX):
        history.add("master", number, at_ms=number)
        history.add("master", number, at_ms=number + 1)
    frozen = history.freeze()
    assert len(frozen) == SPANS_MAX
    assert frozen[-1] == RoleSpan(2 * SPANS_MAX - 1, "master", 2 * SPANS_MAX - 1)
    assert history.freeze() is frozen


def test_an_epoch_that_becomes_known_later_is_that_of_the_role_from_its_start():
    history = RoleHistory()
    for at_ms, role, epoch in ((1, "slave", None), (5, "slave", 4), (9, "slave", None), (12, "master", 5)):
        history.add(role, epoch, at_ms=at_ms)
    assert history.freeze() == (RoleSpan(1, "slave", 4), RoleSpan(12, "master", 5))


def chart(*spans, width=52, end_ms=120_000):
    context = RenderContext(palette_of(MonitorApp(_no_feed)), end_ms=end_ms, span_ms=120_000)
    lines = role_chart([NodeView("n", broker_name="b", broker_id=1, roles=spans)], context, width=width)
    return ["".join(text for text, _ in line) for line in lines]


async def _no_feed(show):
    await trio.sleep_forever()


def test_the_chart_has_a_broker_on_each_line_and_the_newest_moment_on_the_right():
    # 47 columns of 2.55 s.
    lines = chart(
        RoleSpan(-50_000, "slave", 4),
        RoleSpan(30_000, "", None),
        RoleSpan(60_000, "none", None),
        RoleSpan(90_000, "master", 5),
    )
    assert lines == [
        "b #1 " + "─" * 10 + "✗" * 12 + "◆" + "·" * 11 + "◆ 5 " + "█" * 9,
        "     -2 min" + " " * 38 + "now",
    ]
    assert [len(line) for line in lines] == [52, 52]


def test_the_chart_leaves_out_what_is_shorter_than_a_column_or_too_old():
    (line, _) = chart(
        RoleSpan(-500_000, "master", 1),
        RoleSpan(-400_000, "slave", 2),
        RoleSpan(60_000, "none", None),
        RoleSpan(60_010, "slave", 3),
    )
    assert line == "b #1 " + "─" * 22 + "◆" + "─" * 24
    assert chart(RoleSpan(0, "slave", 1), width=12) == []


# -- RocketMQ's brokers ------------------------------------------------------------------------------------

CONFIG = {"enableControllerMode": "true", "controllerAddr": LEADER, "brokerId": "2"}


class Controllers:
    """In place of `fetch_control`: what the controllers say, and when they were asked."""

    def __init__(self, monkeypatch):
        self.role = "slave"
        self.takes_s = 0.1
        self.asked_s: list[float] = []
        monkeypatch.setattr(control_feed, "fetch_control", self._fetch)

    async def _fetch(self, *_, **__):
        self.asked_s.append(round(trio.current_time(), 3))
        role = self.role
        await trio.sleep(self.takes_s)
        return control(role, 2, 4 if role == "slave" else 5, 1)


@asynccontextmanager
async def running_feed():
    feed = ControlFeed(None, connect=lambda _: None, timeout_s=1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run)
        yield feed
        nursery.cancel_scope.cancel()


def rocketmq(*, is_master):
    status = master(1000) if is_master else slave(1000)
    return evolve(status, flushed_offset=None)


async def test_controllers_of_a_rocketmq_broker_are_asked_each_5_s_and_when_its_role_changes(
    monkeypatch, autojump_clock
):
    controllers = Controllers(monkeypatch)
    async with running_feed() as feed:
        first = await feed.with_control(rocketmq(is_master=False), CONFIG)
        assert (first.control is not None and first.control.role, trio.current_time()) == ("slave", 0.1)
        for _ in range(70):
            await trio.sleep(0.1)
            await feed.with_control(rocketmq(is_master=False), CONFIG)
        assert len(controllers.asked_s) == 2
        assert EVERY_S <= controllers.asked_s[1] <= EVERY_S + 0.11
        # Its role is another one: the old one is shown until the controllers have answered.
        flipped_s = trio.current_time()
        shown = []
        for _ in range(4):
            status = await feed.with_control(rocketmq(is_master=True), CONFIG)
            shown.append((status.control.role, status.control.master_epoch))
            await trio.sleep(AGAIN_S)
            controllers.role = "master"
        assert controllers.asked_s[2] - flipped_s <= AGAIN_S
        assert shown == [("slave", 4), ("slave", 4), ("master", 5), ("master", 5)]


async def test_the_time_since_the_leader_answered_goes_on_between_two_questions(monkeypatch, autojump_clock):
    Controllers(monkeypatch)
    async with running_feed() as feed:
        await feed.with_control(rocketmq(is_master=False), CONFIG)
        await trio.sleep(3)
        status = await feed.with_control(rocketmq(is_master=False), CONFIG)
        assert status.control.leader_heard_ms == 100 + 3_100


async def test_slow_controllers_delay_only_the_first_status_by_a_second(monkeypatch, autojump_clock):
    controllers = Controllers(monkeypatch)
    controllers.takes_s = 2.5
    async with running_feed() as feed:
        status = await feed.with_control(rocketmq(is_master=True), CONFIG)
        assert status.control == ControlStatus(role="master")
        assert trio.current_time() == 1.0


async def test_others_are_not_asked(monkeypatch, autojump_clock):
    controllers = Controllers(monkeypatch)
    async with running_feed() as feed:
        node = as_master(MASTER, 1, 4)
        assert await feed.with_control(node, None) is node
        plain = rocketmq(is_master=True)
        assert await feed.with_control(plain, {"enableControllerMode": "false"}) is plain
        assert await feed.with_control(plain, {}) is plain
    assert controllers.asked_s == []

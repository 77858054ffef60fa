from __future__ import annotations

import pytest
from attrs import evolve

from tests.monitor.builders import MASTER, SILENT, SLAVE, connection, example_snapshot, master, slave
from trioha.remoting.status import BrokerStatus, ConnectionStatus
from trioha_monitor.history import Bucket, Grade
from trioha_monitor.model import (
    CONNECTIONS_MAX,
    LOST_KEPT_S,
    ClusterModel,
    ConnectionView,
    Health,
    LinkState,
    NodeView,
    Sample,
)


class Cluster:
    """A model that is fed one master."""

    def __init__(self) -> None:
        self.model = ClusterModel([MASTER], interval_s=0.2)

    def answer(self, at_s: float, max_offset: int, *connections: ConnectionStatus) -> None:
        self.model.observe(Sample(MASTER, at_s=at_s, status=master(max_offset, *connections)))

    def fail(self, at_s: float, fault: str) -> None:
        self.model.observe(Sample(MASTER, at_s=at_s, fault=fault))

    def node(self, now_s: float) -> NodeView:
        return self.model.snapshot(now_s).nodes[0]

    def links(self, now_s: float) -> tuple[ConnectionView, ...]:
        return self.model.snapshot(now_s).connections


def slave_at(port: int, ack: int, *, of: int = 1000, host: str = "127.0.0.1") -> ConnectionStatus:
    return connection(f"{host}:{port}", sent=of, ack=ack, lag=of - ack)


def test_a_node_that_was_not_asked_yet_is_connecting_and_claims_nothing() -> None:
    node = ClusterModel([MASTER], interval_s=0.2).snapshot(5.0).nodes[0]
    assert node == NodeView(address=MASTER, health=Health.CONNECTING, reason="", for_s=0.0)


def test_nodes_come_in_the_order_in_which_they_were_named() -> None:
    model = ClusterModel([SLAVE, SILENT, MASTER], interval_s=0.2)
    model.observe(Sample(MASTER, at_s=1.0, status=master(10)))
    assert [node.address for node in model.snapshot(2.0).nodes] == [SLAVE, SILENT, MASTER]


def test_rates_are_the_slope_of_the_offset_over_two_seconds() -> None:
    cluster = Cluster()
    cluster.answer(0.0, 0)
    assert cluster.node(0.0).rate_bytes_per_s is None
    for tick in range(1, 21):
        cluster.answer(tick * 0.25, tick * 500)
    assert cluster.node(5.0).rate_bytes_per_s == 2000.0
    for tick in range(21, 29):
        cluster.answer(tick * 0.25, 10_000)
    assert cluster.node(7.0).rate_bytes_per_s == 0.0


def test_the_rate_of_a_connection_is_that_of_what_was_sent_whatever_the_master_counts() -> None:
    cluster = Cluster()
    for tick in range(5):
        sent = evolve(connection("10.0.0.2:4", sent=tick * 100, ack=0, lag=0), transferred_bytes_per_s=7)
        cluster.answer(float(tick), 1000, sent)
    assert cluster.links(4.0)[0].rate_bytes_per_s == 100.0


def test_an_offset_that_goes_back_starts_the_rate_anew() -> None:
    cluster = Cluster()
    cluster.answer(0.0, 5000)
    cluster.answer(1.0, 6000)
    cluster.answer(2.0, 100)
    assert cluster.node(2.0).rate_bytes_per_s is None
    cluster.answer(3.0, 400)
    assert cluster.node(3.0).rate_bytes_per_s == 300.0


def test_a_node_is_down_since_its_last_answer_and_keeps_what_it_last_said() -> None:
    cluster = Cluster()
    cluster.answer(10.0, 1000, slave_at(5000, 900))
    cluster.fail(11.0, "Connection refused")
    cluster.fail(13.0, "no answer within 1 s")
    node = cluster.node(14.0)
    assert (node.health, node.reason, node.for_s) == (Health.DOWN, "no answer within 1 s", 4.0)
    assert (node.max_offset, node.name, node.rate_bytes_per_s) == (1000, "broker-a #0", None)
    link = node.connections[0]
    assert (link.link, link.for_s, link.rate_bytes_per_s, link.grade) == (
        LinkState.STALE,
        4.0,
        None,
        Grade.LOST,
    )


def test_a_node_that_never_answered_is_down_since_the_first_try() -> None:
    cluster = Cluster()
    cluster.fail(3.0, "Connection refused")
    cluster.fail(4.0, "Connection refused")
    node = cluster.node(5.0)
    assert (node.health, node.for_s, node.role, node.max_offset) == (Health.DOWN, 2.0, "", None)


def test_a_node_that_answers_again_is_up_from_then_on() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000)
    cluster.fail(2.0, "Connection refused")
    cluster.answer(6.0, 1000)
    node = cluster.node(6.5)
    assert (node.health, node.reason, node.for_s) == (Health.UP, "", 0.5)


def test_a_node_is_late_after_a_second_without_an_answer() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000)
    assert cluster.node(2.0).health is Health.UP
    late = cluster.node(2.5)
    assert (late.health, late.for_s) == (Health.LATE, 1.5)


def test_a_node_that_is_asked_rarely_is_not_late_between_two_questions() -> None:
    model = ClusterModel([MASTER], interval_s=10.0)
    model.observe(Sample(MASTER, at_s=0.0, status=master(1)))
    assert model.snapshot(29.0).nodes[0].health is Health.UP
    assert model.snapshot(31.0).nodes[0].health is Health.LATE


def test_a_rare_question_leaves_no_holes_in_the_history() -> None:
    model = ClusterModel([MASTER], interval_s=3.0)
    for tick in range(20):
        status = master(100, connection("10.0.0.2:1", sent=100, ack=90, lag=10))
        model.observe(Sample(MASTER, at_s=tick * 3.1, status=status))
    assert None not in model.snapshot(60.0).connections[0].history.buckets


def test_the_history_of_lag_keeps_the_worst_and_its_grade() -> None:
    cluster = Cluster()
    cluster.answer(100.0, 1000, slave_at(5000, 900))
    cluster.answer(100.2, 1000, evolve(slave_at(5000, 400), in_sync=False))
    cluster.answer(100.4, 1000, slave_at(5000, 1000))
    assert cluster.links(100.5)[0].history.buckets == (Bucket(600, Grade.BEHIND),)


def test_an_ack_beyond_the_log_is_shown_as_it_is_and_counts_as_no_lag() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 1500))
    link = cluster.links(1.0)[0]
    assert link.lag_bytes == -500
    assert link.history.buckets == (Bucket(0, Grade.GOOD),)


def test_a_connection_that_is_listed_no_longer_is_lost_and_its_lag_grows_with_the_log() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 900))
    cluster.answer(2.0, 1500)
    cluster.answer(3.0, 4000)
    link = cluster.links(4.0)[0]
    assert (link.link, link.lag_bytes, link.lag_ms, link.for_s) == (LinkState.LOST, 3100, None, 2.0)
    assert link.history.buckets[-1] == Bucket(3100, Grade.LOST)


def test_the_only_new_connection_of_a_host_continues_the_only_lost_one() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 900), slave_at(5001, 1000))
    lost = cluster.links(1.0)[0]
    cluster.answer(2.0, 2000, slave_at(5001, 2000, of=2000))
    cluster.answer(3.0, 2000, slave_at(5001, 2000, of=2000), slave_at(6000, 950, of=2000))
    again, other = cluster.links(4.0)
    assert (again.serial, again.address, again.link, again.for_s) == (
        lost.serial, "127.0.0.1:6000", LinkState.LIVE, 1.0,
    )  # fmt: skip
    assert [bucket.lag_bytes for bucket in again.history.buckets if bucket] == [100, 1100, 1050]
    assert other.address == "127.0.0.1:5001"


def test_two_lost_connections_of_one_host_are_not_guessed_at_and_go_when_both_are_back() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 900), slave_at(5001, 800))
    before = {link.serial for link in cluster.links(1.0)}
    cluster.answer(2.0, 1000)
    cluster.answer(3.0, 1000, slave_at(6000, 850))
    assert [link.link.value for link in cluster.links(3.0)] == ["LOST", "LOST", "LIVE"]
    cluster.answer(4.0, 1000, slave_at(6000, 850), slave_at(6001, 920))
    after = cluster.links(4.0)
    assert [link.address for link in after] == ["127.0.0.1:6000", "127.0.0.1:6001"]
    assert not before & {link.serial for link in after}


def test_a_slave_of_another_host_takes_nobodys_place() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 900, host="10.0.0.2"))
    cluster.answer(2.0, 1000, slave_at(5000, 900, host="10.0.0.3"))
    assert [(link.address, link.link.value) for link in cluster.links(2.0)] == [
        ("10.0.0.2:5000", "LOST"), ("10.0.0.3:5000", "LIVE"),
    ]  # fmt: skip


def test_a_lost_connection_is_forgotten_after_a_while() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 900))
    cluster.answer(2.0, 1000)
    cluster.answer(2.0 + LOST_KEPT_S - 1, 1000)
    assert len(cluster.links(400.0)) == 1
    cluster.answer(2.0 + LOST_KEPT_S, 1000)
    assert cluster.links(400.0) == ()


def test_a_host_that_once_had_two_slaves_may_have_one_after_the_loss_was_forgotten() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, slave_at(5000, 900), slave_at(5001, 900))
    cluster.answer(2.0, 1000, slave_at(5001, 900))
    late = 3.0 + LOST_KEPT_S
    cluster.answer(late, 1000, slave_at(5001, 900))
    cluster.answer(late + 1, 1000)
    cluster.answer(late + 2, 1000, slave_at(7000, 900))
    assert [(link.address, link.link.value) for link in cluster.links(late + 2)] == [
        ("127.0.0.1:7000", "LIVE")
    ]


def test_a_peer_cannot_fill_the_screen_or_the_memory() -> None:
    cluster = Cluster()
    crowd = [slave_at(port, 900) for port in range(CONNECTIONS_MAX + 44)]
    cluster.answer(1.0, 1000, *crowd)
    node = cluster.node(1.0)
    assert (len(node.connections), node.hidden_connections, node.live_connections) == (256, 44, 300)
    for turn in range(1, 6):
        cluster.answer(1.0 + turn, 1000, *[slave_at(turn * 1000 + n, 900) for n in range(200)])
    assert len(cluster.links(7.0)) <= 2 * CONNECTIONS_MAX


def test_text_of_a_peer_is_made_safe_for_a_terminal() -> None:
    status = evolve(
        master(1, connection("\x1b[2J\n:1", sent=1, ack=1, lag=0, state="\x07" * 500)),
        broker_name="a\x1b]0;x\x07" + "n" * 1000,
        version="\u202ereversed",
    )
    model = ClusterModel([MASTER], interval_s=0.2)
    model.observe(Sample(MASTER, at_s=1.0, status=status))
    node = model.snapshot(1.0).nodes[0]
    for text in (node.name, node.version, node.connections[0].address, node.connections[0].state):
        assert text.isprintable()
        assert len(text) <= 64


@pytest.mark.parametrize(
    ("status", "what"),
    [
        (master(2**63), "max offset"),
        (evolve(master(1), flushed_offset=-(2**63) - 1), "flushed offset"),
        (evolve(master(1), in_sync_slaves=10**400), "number of slaves in sync"),
        (master(1, connection("10.0.0.2:1", sent=1, ack=2**70, lag=0)), "ack offset"),
        (slave(1, reported=10**30), "reported offset"),
    ],
)
def test_a_figure_that_no_log_can_have_is_a_wrong_answer(status: BrokerStatus, what: str) -> None:
    model = ClusterModel([MASTER], interval_s=0.2)
    model.observe(Sample(MASTER, at_s=1.0, status=status))
    node = model.snapshot(1.0).nodes[0]
    assert (node.health, node.reason) == (Health.DOWN, f"answered with an impossible {what}")


def test_a_slave_shows_its_master_and_what_it_reported() -> None:
    model = ClusterModel([SLAVE], interval_s=0.2)
    model.observe(Sample(SLAVE, at_s=1.0, status=slave(700, reported=650)))
    node = model.snapshot(1.0).nodes[0]
    assert node.slave is not None
    assert (node.role, node.max_offset, node.slave.reported_offset, node.slave.master_address) == (
        "SLAVE", 700, 650, "127.0.0.1:10912",
    )  # fmt: skip


def test_a_node_that_changes_its_role_is_shown_in_the_new_one() -> None:
    model = ClusterModel([SLAVE], interval_s=0.2)
    model.observe(Sample(SLAVE, at_s=1.0, status=slave(700)))
    model.observe(Sample(SLAVE, at_s=2.0, status=master(700, slave_at(5000, 700), address=SLAVE)))
    node = model.snapshot(2.0).nodes[0]
    assert (node.role, node.slave, node.live_connections) == ("SYNC_MASTER", None, 1)


def test_a_broker_that_does_not_tell_the_state_of_a_connection_is_not_said_to_be_behind() -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, evolve(slave_at(5000, 1000), state=None))
    link = cluster.links(1.0)[0]
    assert (link.state, link.lag_ms, link.grade) == ("CONNECTED", 0, Grade.GOOD)
    cluster.answer(2.0, 1000, evolve(slave_at(5000, 100), state=None, in_sync=False))
    assert cluster.links(2.0)[0].grade is Grade.BEHIND


@pytest.mark.parametrize("state", ["READY", "HANDSHAKE", "SUSPEND", "SHUTDOWN"])
def test_a_connection_that_does_not_transfer_is_not_good(state: str) -> None:
    cluster = Cluster()
    cluster.answer(1.0, 1000, evolve(slave_at(5000, 1000), state=state))
    link = cluster.links(1.0)[0]
    assert (link.state, link.grade) == (state, Grade.BEHIND)


def test_the_example_has_a_live_and_a_lost_connection() -> None:
    snapshot = example_snapshot()
    assert [node.health.value for node in snapshot.nodes] == ["UP", "UP", "DOWN", "CONNECTING"]
    assert [link.link.value for link in snapshot.connections] == ["LIVE", "LOST"]

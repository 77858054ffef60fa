"""Topics, groups and their lag: what is read of answers, the rows that are made, and when nodes are asked."""

import json

import pytest
import trio

from tests.broker.consuming import GROUP, TOPIC, Broker
from tests.monitor.fake_node import FakeNode
from tests.monitor.scenes import NOW_MS, group
from tests.remoting.recorded import answers
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.codes import RequestCode
from trioha_monitor import consumption
from trioha_monitor.consumption import (
    CLIENTS_MAX,
    Consumption,
    ConsumptionSample,
    GroupProgress,
    Members,
    is_system_topic,
    parse_consume_stats,
    parse_members,
    parse_topics,
)
from trioha_monitor.consumption_feed import BACK_OFF_S, INTERVAL_S, Demand, watch_consumption
from trioha_monitor.panes.groups import details_of
from trioha_monitor.view import Health, NodeView

MASTER = NodeView(
    address="m:10911", health=Health.UP, role="SYNC_MASTER", broker_name="broker-a", broker_id=0, cluster="C"
)
SLAVE = NodeView(
    address="s:10911", health=Health.UP, role="SLAVE", broker_name="broker-a", broker_id=1, cluster="C"
)
DOWN = NodeView(
    address="m:10911",
    health=Health.DOWN,
    role="SYNC_MASTER",
    broker_name="broker-a",
    broker_id=0,
    cluster="C",
)


def progress(name="g", topic="T", *, lag=5, per_s=0.0):
    return GroupProgress(name, topic, 4, lag, per_s, NOW_MS - 9000 if lag else None)


def sample(address, *groups, **changes):
    return ConsumptionSample(address, NOW_MS, groups=groups, **changes)


# -- answers -------------------------------------------------------------------------------------------------


async def test_the_offsets_of_all_groups_are_read(tmp_path):
    broker = Broker(tmp_path)
    for name in (GROUP, "other"):
        broker.metadata.groups.find_or_create(name)
    broker.put(b"a", b"b", b"c", queue_id=0)
    broker.put(b"d", queue_id=1)
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    answer = await broker.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    groups, more = parse_consume_stats(answer.body)
    (mine,) = (one for one in groups if one.group == GROUP)
    assert (mine.topic, mine.queues, mine.lag, mine.read_per_s) == (TOPIC, 4, 3, 0.0)
    assert mine.oldest_ms == broker.store.reads.store_timestamp(TOPIC, 0, 0)
    assert more == 0
    assert not [one for one in groups if one.group == "other"]


def recorded(session, code):
    """The body of a real broker's answer."""
    answer = answers(f"remoting-{session}")[code]
    assert answer.code == 0
    return bytes(answer.body)


@pytest.mark.parametrize(
    ("session", "expected"),
    [
        ("4.9.7/087-adm-brokerConsumeStats--master", {("CG_SPEC_push", "TopicSpec", 4, 1): 1795234161847}),
        ("5.3.3/066-adm-brokerConsumeStats--master", {("CG_SPEC_push", "TopicSpec", 4, 3): 1795234410099}),
    ],
)
def test_the_offsets_of_real_brokers_are_read(session, expected):
    groups, more = parse_consume_stats(recorded(session, RequestCode.GET_BROKER_CONSUME_STATS))
    found = {(one.group, one.topic, one.queues, one.lag): one.oldest_ms for one in groups}
    assert found.items() >= expected.items()
    assert (len(groups), more) == (5, 0)


@pytest.mark.parametrize("session", ["4.9.7/004-slavesync-a--mastervip", "5.3.3/003-slavesync-a--mastervip"])
def test_topics_of_real_brokers_are_read(session):
    topics = parse_topics(recorded(session, RequestCode.GET_ALL_TOPIC_CONFIG))
    assert topics["TBW102"] == 4


def test_members_of_a_real_broker_are_read():
    body = recorded("4.9.7/019-consumerConnection--master", RequestCode.GET_CONSUMER_CONNECTION_LIST)
    assert parse_members(body) == Members(
        ("192.0.2.2@22101#1551254727907 (127.0.0.1:53906)",), 1, "CLUSTERING"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"consumeStatsList":[1]}',
        b'{"consumeStatsList":[{"g":[{"offsetTable":{"x":{}}}]}]}',
        b'{"consumeStatsList":[{"g":[{"offsetTable":{{"topic":"T"}:{"brokerOffset":"x"}}}]}]}',
        b'{"consumeStatsList":[{"g":[{"offsetTable":{{"topic":"T"}:{"brokerOffset":1e400}}}]}]}',
    ],
)
def test_an_answer_of_another_shape_is_a_fault_of_its_node(body):
    with pytest.raises(RemoteProtocolError):
        parse_consume_stats(body)


def test_what_is_read_of_an_answer_is_bounded(monkeypatch):
    monkeypatch.setattr(consumption, "GROUPS_MAX", 3)
    queue = '{"brokerName":"b","queueId":0,"topic":"T"}'
    stats = f'[{{"consumeTps":1.5,"offsetTable":{{{queue}:{{"brokerOffset":9,"consumerOffset":4}}}}}}]'
    body = '{"consumeStatsList":[' + ",".join(f'{{"g{number}":{stats}}}' for number in range(5)) + "]}"
    groups, more = parse_consume_stats(body.encode())
    assert ([one.group for one in groups], more) == (["g0", "g1", "g2"], 2)
    assert (groups[0].lag, groups[0].read_per_s, groups[0].oldest_ms) == (5, 1.5, None)
    connections = [{"clientId": f"c{number}", "clientAddr": "h:1"} for number in range(100)]
    members = parse_members(json.dumps({"connectionSet": connections}).encode())
    assert (len(members.clients), members.count, members.model) == (CLIENTS_MAX, 100, "")


# -- rows ----------------------------------------------------------------------------------------------------


def test_the_masters_lag_is_shown_and_the_brokers_that_give_messages():
    state = Consumption()
    members = {"g": Members(("c1 (h:1)",), 1, "CLUSTERING")}
    state.observe(sample("s:10911", progress(lag=8, per_s=90.0)))
    state.observe(sample("m:10911", progress(lag=5, per_s=10.0), members=members))
    view = state.view([SLAVE, MASTER], now_ms=NOW_MS + 1000)
    (row,) = view.rows
    assert (row.group, row.topic, row.broker, row.lag, row.queues) == ("g", "T", "broker-a", 5, 4)
    assert (row.lag_s, row.age_s, row.read_per_s) == (10.0, 1.0, 100.0)
    assert row.sources == (("broker-a #1", 90.0), ("broker-a #0", 10.0))
    assert (row.members, row.clients, row.model) == (1, ("c1 (h:1)",), "CLUSTERING")
    assert (view.pairs, view.hidden_rows, view.faults) == (1, 0, ())


def test_a_slaves_figures_are_shown_while_its_master_is_down():
    state = Consumption()
    state.observe(sample("m:10911", progress(lag=5, per_s=10.0), members={"g": None}))
    state.observe(sample("s:10911", progress(lag=8, per_s=90.0)))
    (row,) = state.view([DOWN, SLAVE], now_ms=NOW_MS).rows
    assert (row.lag, row.sources, row.members) == (8, (("broker-a #1", 90.0),), None)
    # Figures of a node that is UP and has not answered for its groups for long are not preferred.
    state.observe(ConsumptionSample("s:10911", NOW_MS + 60_000, groups=(progress(lag=9),)))
    (row,) = state.view([MASTER, SLAVE], now_ms=NOW_MS + 60_000).rows
    assert row.lag == 9


def test_topics_without_a_group_are_listed_and_system_topics_are_not():
    state = Consumption()
    topics = {"T": 4, "Invoices": 8, "TBW102": 8, "rmq_sys_wheel_timer": 1, "broker-a": 1, "C": 16}
    state.observe(sample("m:10911", progress(), topics=topics))
    first, second = state.view([MASTER], now_ms=NOW_MS).rows
    assert (first.topic, first.group) == ("T", "g")
    assert (second.topic, second.group, second.queues, second.lag) == ("Invoices", "", 8, None)
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")


def test_rows_are_bounded_and_those_with_the_largest_lag_stay(monkeypatch):
    monkeypatch.setattr(consumption, "ROWS_MAX", 2)
    state = Consumption()
    state.observe(sample("m:10911", *(progress(f"g{lag}", lag=lag) for lag in (3, 9, 1, 7)), more=5))
    view = state.view([MASTER], now_ms=NOW_MS)
    assert [row.lag for row in view.rows] == [9, 7]
    assert (view.hidden_rows, view.pairs) == (7, 4)


def test_a_fault_is_shown_beside_the_last_answers_and_a_dropped_node_is_forgotten():
    state = Consumption()
    state.observe(sample("m:10911", progress()))
    state.observe(ConsumptionSample("m:10911", NOW_MS + 9000, fault="no permission\x1b[2J"))
    view = state.view([MASTER], now_ms=NOW_MS + 9000)
    assert len(view.rows) == 1
    assert view.faults == ("broker-a #0: no permission\N{REPLACEMENT CHARACTER}[2J",)
    state.forget(["m:10911"])
    assert state.view([MASTER], now_ms=NOW_MS).rows == ()


def test_members_of_groups_that_are_gone_are_forgotten():
    state = Consumption()
    members = {"g": Members(("c (h:1)",), 1, "CLUSTERING")}
    state.observe(sample("m:10911", progress(), members=members))
    state.observe(sample("m:10911"))
    state.observe(sample("m:10911", progress()))
    (row,) = state.view([MASTER], now_ms=NOW_MS).rows
    assert row.members is None


def test_the_chosen_row_says_who_consumes_from_where():
    assert details_of(group(1, "g", "T", sources=(("broker-a #1", 2.0),), members=3)) == [
        "reads from broker-a #1 2.0/s",
        "3 members (clustering): 10.0.0.5@4711 (10.0.0.5:50123), 10.0.0.6@81 (10.0.0.6:41200) and 1 more",
    ]
    assert details_of(group(1, "g", "T", sources=(), members=0, clients=())) == [
        "reads nothing now",
        "no member is connected",
    ]


# -- requests ------------------------------------------------------------------------------------------------


Watched = tuple[FakeNode[ConsumptionSample], Demand, list[ConsumptionSample]]


@pytest.fixture
async def watched(nursery):
    async def answer():
        await trio.lowlevel.checkpoint()
        return ConsumptionSample("", 0, groups=(progress(),))

    node, demand, samples = FakeNode(answer), Demand(), []

    async def watch():
        await watch_consumption(
            "m:10911", samples.append, demand=demand, open_session=node.session, now_ms=lambda: 77
        )

    nursery.start_soon(watch)
    await trio.testing.wait_all_tasks_blocked()
    return node, demand, samples


async def test_nodes_are_asked_while_the_screen_is_shown(watched, autojump_clock):
    node, demand, samples = watched
    await trio.sleep(100)
    assert (node.connected_at_s, samples) == ([], [])
    demand.want(is_wanted=True)
    await trio.sleep(2 * INTERVAL_S + 1)
    assert [b - a for a, b in zip(node.asked_at_s, node.asked_at_s[1:], strict=False)] == [INTERVAL_S] * 2
    assert (samples[0].address, samples[0].at_ms, samples[0].fault) == ("m:10911", 77, "")
    demand.want(is_wanted=False)
    await trio.sleep(100)
    assert (len(node.asked_at_s), len(node.connected_at_s), node.open_sessions) == (3, 1, 0)
    demand.want(is_wanted=True)
    await trio.sleep(1)
    assert (len(node.asked_at_s), len(node.connected_at_s)) == (4, 2)


async def test_a_node_that_refuses_is_asked_again_after_a_pause(watched, autojump_clock):
    node, demand, samples = watched
    answer = node.behaviour

    async def refuse():
        raise PeerError("no permission", address="m:10911")

    node.behaviour = refuse
    demand.want(is_wanted=True)
    await trio.sleep(BACK_OFF_S + 1)
    assert [one.fault for one in samples] == ["no permission"] * 2
    node.behaviour = answer
    await trio.sleep(BACK_OFF_S)
    assert samples[-1].fault == ""
    assert len(samples[-1].groups) == 1

"""A real and a trioha broker in one cluster, each with a slave of the other kind: what only looks at them.

Each test has topics and groups of its own. `make test` has one world, with the newest RocketMQ.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.doctor.changes import commit as commit_for_doctor
from tests.doctor.changes import has_delivered, make_group, send_delayed
from tests.interop.asking import QUEUES, ask, commit, make_topic, queue_datas, tables, wait_for_route
from tests.interop.commands import consume, examine, produce, status
from tests.interop.java import JavaStore
from tests.interop.logs import assert_same_log
from tests.interop.messages import assert_order_within_queues, bodies, expected
from tests.interop.rocketmq import is_5, version_params
from tests.interop.world import FIRST_SENDS, REAL, SHARED, TRIOHA, World, running
from tests.node_process import (
    ANSWER_WITHIN_S,
    FILE_BYTES,
    WITHIN_S,
    TriohaNode,
    call_trioha,
    load,
    wait_dispatched,
)
from tests.processes import DIE_WITH_PARENT
from tests.waiting import wait_until
from trioha.client.cluster import open_cluster
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.remoting.codes import RequestCode
from trioha.replica_verdict import Verdict
from trioha_monitor.app import MonitorApp
from trioha_monitor.live import LIVE_TIMES, LiveSettings, live_views
from trioha_monitor.panes.events import EventsPane
from trioha_monitor.panes.log import LogPane
from trioha_monitor.panes.replicas import ReplicasPane
from trioha_monitor.panes.slave import SlavePane
from trioha_monitor.view import ClusterView, EventKind, Health, ReplicaView

pytestmark = [
    pytest.mark.interop,
    pytest.mark.process,
    pytest.mark.parametrize("java_of_module", version_params(), indirect=True),
]

MONITOR = LiveSettings(
    # A JVM that has just started on a busy machine takes its time over a first answer.
    times=evolve(LIVE_TIMES, connect_timeout_s=ANSWER_WITHIN_S, request_timeout_s=ANSWER_WITHIN_S),
    discovery_interval_s=0.5,
)
COPIED_WITHIN_S = 250.0
"""A slave of 5.x copies metadata by itself for the first time 63 s after its start."""


# -- replication -----------------------------------------------------------------------------------------


def test_puts_that_are_ok_are_on_the_slave_at_once_in_both_directions(shared: World) -> None:
    for name, pair in shared.pairs.items():
        loaded = load(pair.master.listen_address, 200, topic=f"Loaded-{name}")
        # No waiting: what was acknowledged is there at this moment.
        end = pair.master.max_offset
        assert pair.slave.max_offset == end
        assert loaded.statuses == {"PUT_OK": 200}
        assert_same_log(pair.master.root, pair.slave.root, end=end, file_bytes=FILE_BYTES)


def test_status_and_doctor_find_both_pairs_healthy(shared: World) -> None:
    assert examine("--namesrv", shared.names) == {}
    real, trioha = shared.pairs[REAL], shared.pairs[TRIOHA]
    said = status(real.master.listen_address)
    assert said["role"] == "SYNC_MASTER"
    assert said["version"] == "V" + shared.java.version.replace(".", "_")
    assert (said["minOffset"], said["maxOffset"]) == (0, real.master.max_offset)
    # 4.9.7 does not list its connections (docs/protocol/ha.md#status-requests).
    places = [(one["ackOffset"], one["lagBytes"]) for one in said["connections"]]
    assert places == ([(said["maxOffset"], 0)] if is_5(shared.java.version) else [])
    said = status(trioha.slave.listen_address)
    assert (said["role"], said["brokerId"], said["maxOffset"]) == ("SLAVE", 1, trioha.master.max_offset)
    if is_5(shared.java.version):
        assert said["client"]["masterAddress"] == trioha.master.ha_address
        assert said["client"]["maxOffset"] == said["maxOffset"]


# -- clients ---------------------------------------------------------------------------------------------


def test_first_sends_make_a_topic_at_both_brokers(shared: World) -> None:
    assert shared.first_sends == {"SEND_OK": FIRST_SENDS}
    offsets = shared.offsets(SHARED)
    assert sum(offsets.values()) >= FIRST_SENDS
    assert all(offsets.values()), offsets
    for address in shared.name_servers.values():
        assert {queues["writeQueueNums"] for queues in queue_datas(address, SHARED).values()} == {QUEUES}


@pytest.mark.parametrize(
    "mode",
    [
        "concurrent",
        *(pytest.param(mode, marks=pytest.mark.full) for mode in ("orderly", "broadcast", "lite")),
    ],
)
def test_a_consumer_gets_every_message_of_both_brokers_once(shared: World, mode: str) -> None:
    before = shared.offsets(SHARED)
    consumers = {
        kind: shared.java.consume(address, group=f"{mode}-{kind}", topic=SHARED, mode=mode)
        for kind, address in shared.name_servers.items()
    }
    for kind, address in shared.name_servers.items():
        prefix = f"{mode}-{kind}-"
        assert shared.java.produce(address, 16, topic=SHARED, prefix=prefix) == {"SEND_OK": 16}
    # What was SEND_OK is on the slaves.
    assert all(pair.is_equal() for pair in shared.pairs.values())
    after = shared.offsets(SHARED)
    assert sum(after.values()) == sum(before.values()) + 32
    for consumer in consumers.values():
        messages = consumer.received(sum(after.values()))
        assert Counter(message["broker"] for message in messages) == after
        assert {body: count for body, count in bodies(messages).items() if count > 1} == {}
        new = [message for message in messages if message["body"].startswith(f"{mode}-")]
        assert bodies(new) == expected(16, f"{mode}-real-") + expected(16, f"{mode}-trioha-")
        if mode == "orderly":
            assert_order_within_queues(messages)
        consumer.end()


def test_triohas_clients_and_rocketmqs_get_each_others_messages(shared: World) -> None:
    topic = "OfBoth"
    shared.make_topic(topic)
    ours = [{"body": f"m{number}", "tags": "tag", "keys": [f"key-{number}"]} for number in range(20)]
    # A large body is compressed on its way.
    ours.append({"body": "y" * 20_000, "tags": "tag"})
    assert set(produce(topic, shared.names, ours)) == {"PUT_OK"}
    consumer = shared.java.consume(shared.names, group="of-both", topic=topic)
    received = consumer.received(21)
    consumer.end()
    assert bodies(received) == bodies(ours)
    by_body = {message["body"]: message for message in received}
    assert (by_body["m7"]["tags"], by_body["m7"]["keys"]) == ("tag", "key-7")

    assert shared.java.produce(shared.names, 20, topic=topic, tags="b", prefix="java") == {"SEND_OK": 20}
    assert bodies(consume(topic, shared.names, "--from", "first", "--tags", "b")) == expected(20, "java")
    # As a group, in two parts.
    first = consume(topic, shared.names, "--group", "parts", "--from", "first", "--limit", "30")
    rest = consume(topic, shared.names, "--group", "parts", "--from", "first")
    found = [(message["brokerName"], message["queueId"], message["queueOffset"]) for message in first + rest]
    assert len(found) == len(set(found)) == 41


@pytest.mark.full
def test_trioha_is_given_again_what_it_sent_back(shared: World) -> None:
    topic = "SentBack"
    shared.make_topic(topic)
    # Enough for both brokers.
    assert shared.java.produce(shared.names, 16, topic=topic) == {"SEND_OK": 16}
    received = trio.run(receive_with_failures, shared.names, topic, 18)
    assert sorted(received) == sorted(
        [*((f"m{number}", 0, topic) for number in range(16)), *((body, 1, topic) for body in FAILING)]
    )


FAILING = ("m1", "m8")
"""Their handling fails once."""


async def receive_with_failures(name_server: str, topic: str, number: int) -> list[tuple[str, int, str]]:
    """Body, retries and topic of each message that a group receives."""
    settings = ConsumerSettings(topic, group="retrying", start_at=StartAt(Start.FIRST))
    received: list[tuple[str, int, str]] = []
    with trio.fail_after(WITHIN_S):
        async with (
            open_cluster(name_servers=(name_server,)) as cluster,
            Consumer(cluster, settings) as consumer,
        ):
            while len(received) < number:
                for message in await consumer.receive():
                    received.append((message.body.decode(), message.reconsume_times, message.topic))
                    if received[-1][0] in FAILING and message.reconsume_times == 0:
                        await consumer.send_back(message)
                    else:
                        consumer.acknowledge((message,))
    return received


@pytest.mark.full
def test_an_administrator_resets_the_offsets_of_a_live_consumer(shared: World) -> None:
    topic = "Reset"
    shared.make_topic(topic)
    assert shared.java.produce(shared.names, 16, topic=topic) == {"SEND_OK": 16}
    received, again = trio.run(receive_around_a_reset, shared, topic)
    assert sorted(received) == sorted(again) == sorted(f"m{number}" for number in range(16))
    # A member that starts now receives none of them a third time.
    committed = [
        offset
        for pair in shared.pairs.values()
        for offset in tables(pair.master.listen_address)[2]["offsetTable"]["Reset@reset"].values()
    ]
    assert sum(committed) == 16


async def receive_around_a_reset(shared: World, topic: str) -> tuple[list[str], list[str]]:
    """What a group receives before and after mqadmin has reset its offsets."""
    settings = ConsumerSettings(topic, group="reset", start_at=StartAt(Start.FIRST))
    received: list[list[str]] = []
    with trio.fail_after(WITHIN_S):
        async with (
            open_cluster(name_servers=(shared.names,)) as cluster,
            Consumer(cluster, settings) as consumer,
        ):
            for _ in range(2):
                part: list[str] = []
                while len(part) < 16:
                    batch = await consumer.receive()
                    consumer.acknowledge(batch)
                    part += [message.body.decode() for message in batch]
                received.append(part)
                if len(received) == 1:
                    await consumer.commit()
                    said = await trio.to_thread.run_sync(
                        shared.java.mqadmin,
                        "resetOffsetByTime", shared.names, "-g", "reset", "-t", topic, "-s", "0",
                    )  # fmt: skip
                    assert "#offset" in said, said
    return received[0], received[1]


@pytest.mark.full
def test_a_group_is_shared_with_a_java_consumer(shared: World, tmp_path: Path) -> None:
    """Both allocate queues by the same rule: no queue is left out, and none is consumed twice for long."""
    topic, java = "SharedGroup", shared.java
    shared.make_topic(topic)
    assert java.produce(shared.names, 4, topic=topic, prefix="before") == {"SEND_OK": 4}
    member = java.consume(shared.names, group="shared", topic=topic)
    member.received(4)
    output = tmp_path / "trioha.ndjson"
    with output.open("w") as stdout:
        process = subprocess.Popen(
            [
                *DIE_WITH_PARENT,
                sys.executable,
                "-m",
                "trioha",
                "consume",
                topic,
                "--namesrv",
                shared.names,
                "--group",
                "shared",
                "--follow",
            ],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        wanted: set[str] = set()

        def own() -> set[str]:
            """What trioha has printed so far, in whole lines."""
            lines, _, _ = output.read_text().rpartition("\n")
            return {json.loads(line)["body"] for line in lines.splitlines()}

        def missing() -> set[str]:
            return wanted - own() - set(bodies(member.received(0)))

        deadline_s = time.monotonic() + WITHIN_S
        for batch in count():
            assert process.poll() is None
            java.produce(shared.names, 8, topic=topic, prefix=f"b{batch}-")
            wanted |= {f"b{batch}-{number}" for number in range(8)}
            if own() & wanted and batch >= 3:
                break
            assert time.monotonic() < deadline_s, "trioha was given no queue"
        wait_until(lambda: not missing(), f"all of {len(wanted)} messages are consumed")
    finally:
        process.terminate()
        _, stderr = process.communicate(timeout=WITHIN_S)
        member.end()
    assert process.returncode == 0, stderr


# -- mqadmin ---------------------------------------------------------------------------------------------


def test_mqadmin_prints_the_cluster_its_topics_and_the_replication_of_both_masters(shared: World) -> None:
    listed = shared.java.mqadmin("clusterList", shared.names)
    for pair in shared.pairs.values():
        assert pair.master.listen_address in listed
        assert pair.slave.listen_address in listed
    assert {SHARED, "TBW102", REAL, TRIOHA} <= set(shared.java.mqadmin("topicList", shared.names).split())
    rows = [
        line.split() for line in shared.java.mqadmin("topicStatus", shared.names, "-t", SHARED).splitlines()
    ]
    ends = {name: sum(int(row[3]) for row in rows if row and row[0] == name) for name in shared.pairs}
    assert ends == shared.offsets(SHARED)
    if is_5(shared.java.version):
        for pair in shared.pairs.values():
            address = pair.master.listen_address
            said = shared.java.mqadmin("haStatus", shared.names, "-b", address).split()
            assert said[said.index("#MasterAddr") + 1] == address
            assert said[said.index("#MasterCommitLogMaxOffset") + 1] == str(pair.master.max_offset)
            assert said[said.index("#SlaveNum") + 1] == "1"


# -- trioha's own administration ---------------------------------------------------------------------------


def test_triohas_commands_administer_real_and_trioha_brokers_alike(shared: World) -> None:
    topic, group = "Administered", "administered"

    def run(*arguments: str) -> dict[str, Any]:
        done = call_trioha(*arguments, "--namesrv", shared.names, "--json")
        assert done.exit_code == 0, done
        return json.loads(done.stdout)

    made = run("topic", "create", topic, "--queues", "2")
    assert [broker["brokerName"] for broker in made["brokers"]] == [REAL, TRIOHA]
    wait_for_route(shared.names, topic, REAL, TRIOHA)
    listed = [one for one in run("topic", "list")["topics"] if one["topic"] == topic]
    assert [(one["brokerName"], one["readQueueNums"], one["perm"]) for one in listed] == [
        (REAL, 2, 6), (TRIOHA, 2, 6)
    ]  # fmt: skip
    sent = [{"body": f"m{number}", "keys": [f"key-{number}"]} for number in range(16)]
    assert set(produce(topic, shared.names, sent)) == {"PUT_OK"}
    for pair in shared.pairs.values():
        wait_dispatched(pair.master.listen_address)
    queues = run("topic", "status", topic)["queues"]
    assert {queue["brokerName"] for queue in queues} == {REAL, TRIOHA}
    assert sum(queue["maxOffset"] for queue in queues) == 16

    # The last message of each of the four queues, whichever broker has it.
    last = consume(topic, shared.names, "-o", "-1", "-e")
    assert len(last) == 4
    for message in {message["brokerName"]: message for message in last}.values():
        place = f"{topic}@{message['brokerName']}:{message['queueId']}:{message['queueOffset']}"
        assert run("message", "get", place) == message
        assert run("message", "get", message["offsetMsgId"]) == message
        assert run("message", "get", message["msgId"], "--topic", topic) == message
        assert run("message", "query", topic, message["keys"][0]) == message

    def offsets() -> int:
        return sum(one["consumerOffset"] for one in run("group", "status", group)["queues"])

    assert len(consume(topic, shared.names, "--group", group, "--from", "first")) == 16
    (of_group,) = [one for one in run("group", "list")["groups"] if one["group"] == group]
    assert (of_group["lag"], of_group["topics"]) == (0, [topic])
    assert offsets() == 16
    back = run("group", "reset", group, topic, "--to", "first")["queues"]
    assert [queue["offset"] for queue in back] == [0, 0, 0, 0]
    assert len(consume(topic, shared.names, "--group", group)) == 16
    run("group", "reset", group, topic, "--to", "last")
    assert consume(topic, shared.names, "--group", group) == []

    if is_5(shared.java.version):
        # It runs without timers here, deletes the topic, and answers with an error then (docs/interop.md).
        refused = call_trioha("topic", "delete", topic, "--namesrv", shared.names)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert "getTimerMessageStore" in refused.stderr
        deleted_at = ("--broker", shared.pairs[TRIOHA].master.listen_address)
        done = call_trioha("topic", "delete", topic, *deleted_at)
        assert done.exit_code == 0, done
    else:
        gone = run("topic", "delete", topic)
        assert [broker["brokerName"] for broker in gone["brokers"]] == [REAL, TRIOHA]
    assert topic not in {one["topic"] for one in run("topic", "list", "--all")["topics"]}


# -- metadata --------------------------------------------------------------------------------------------


def test_slaves_of_either_kind_have_the_tables_of_masters_of_the_other(shared: World) -> None:
    topic, group = "Copied", "copied-group"

    def compared(address: str) -> object:
        """Without versions and the fields that only some versions have."""
        topics, groups, offsets, _ = tables(address)
        copied = topics["topicConfigTable"].get(topic, {})
        own = groups["subscriptionGroupTable"].get(group, {})
        return (
            [copied.get(key) for key in ("readQueueNums", "writeQueueNums", "perm")],
            own.get("retryMaxTimes"),
            offsets["offsetTable"].get(f"{topic}@{group}"),
        )

    def copied(slave: JavaStore | TriohaNode) -> object:
        """The slave's tables; one of 5.x begins a copy now, one of 4.9 after 10 s at most by itself."""
        if isinstance(slave, JavaStore):
            slave.sync_metadata()
        return compared(slave.listen_address)

    for pair in shared.pairs.values():
        master = pair.master.listen_address
        make_topic(master, topic)
        made = shared.java.mqadmin("updateSubGroup", shared.names, "-b", master, "-g", group, "-r", "7")
        assert "success" in made, made
        commit(master, group, topic, {1: 5})
        assert compared(master) == ([QUEUES, QUEUES, 6], 7, {"1": 5})
        wait_until(lambda: copied(pair.slave) == compared(master), "all is copied")  # noqa: B023
        # An administrator's change follows with the next copy.
        ask(master, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
        wait_until(lambda: copied(pair.slave)[0] == [None] * 3, "the topic is gone")  # type: ignore[index] # noqa: B023
    metadata = shared.pairs[REAL].slave.status().metadata  # type: ignore[union-attr]
    assert {name: one.error for name, one in metadata.tables.items() if one.error} == {}
    assert ("requestModes" in metadata.tables) is is_5(shared.java.version)


@pytest.mark.nightly
def test_real_slaves_copy_metadata_by_themselves_and_the_doctor_finds_nothing(
    shared: World, tmp_path: Path
) -> None:
    for pair in shared.pairs.values():
        send_delayed(pair.master.listen_address)
        make_group(pair.master.listen_address)
        commit_for_doctor(pair.master.listen_address, 1)
        wait_until(lambda: has_delivered(pair.master.listen_address), "a delayed message")  # noqa: B023
    wait_until(
        lambda: examine("--namesrv", shared.names, "--metadata-late", "0") == {},
        "all metadata is copied",
        within_s=COPIED_WITHIN_S,
    )


# -- the monitor -----------------------------------------------------------------------------------------


def view_that(is_so: Callable[[ClusterView], bool], names: str) -> ClusterView:
    """The first view of these sources that is as wanted."""

    async def watch() -> ClusterView:
        views: list[ClusterView] = []
        found = trio.Event()

        def show(view: ClusterView) -> None:
            views.append(view)
            if is_so(view):
                found.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(live_views(name_servers=[names], settings=MONITOR), show)
            with trio.move_on_after(WITHIN_S):
                await found.wait()
            nursery.cancel_scope.cancel()
        assert found.is_set(), f"never so; at last: {views[-1]} {views[-1].events}"
        return next(view for view in views if is_so(view))

    return trio.run(watch)


def test_the_monitor_finds_all_brokers_and_shows_that_they_are_followed(shared: World) -> None:
    real = shared.pairs[REAL].master
    with running(
        real.root.with_name("third"),
        role="SLAVE",
        ha_master_address=real.ha_address,
        brokerName=REAL,
        brokerId=2,
    ) as third:
        third.wait(max_offset=real.max_offset)
        end = real.max_offset

        def row_of(view: ClusterView, address: str) -> ReplicaView | None:
            return next((row for row in view.replicas if row.node == address), None)

        def is_followed(view: ClusterView) -> bool:
            master = next((node for node in view.nodes if node.address == real.listen_address), None)
            rows = [row_of(view, pair.slave.listen_address) for pair in shared.pairs.values()]
            return (
                # Answers come one by one: a slave's own word makes a row before its master is found.
                master is not None
                and master.limits.are_reported
                and master.log.disk_ratio is not None
                and all(
                    row is not None
                    and row.diff_bytes == 0
                    and row.ack_offset is not None
                    and row.verdict is Verdict.OK
                    for row in rows
                )
                # Between two answers that are far apart, a node is LATE.
                and all(source.health is Health.UP for source in (*view.nodes, *view.name_servers))
            )

        view = view_that(is_followed, shared.names)
        master = next(node for node in view.nodes if node.address == real.listen_address)
        assert (master.role, master.cluster, master.broker_id) == ("SYNC_MASTER", "interop", 0)
        assert master.version == "V" + shared.java.version.replace(".", "_")
        assert master.source == ("907" if is_5(shared.java.version) else "28")
        assert master.log.max_offset == end
        row = row_of(view, shared.pairs[REAL].slave.listen_address)
        # 4.9.7 lists no slaves: the slave's own end stands for its ack.
        assert row is not None
        assert (row.master, row.ack_offset) == (real.listen_address, end)
        found = [event for event in view.events if event.text == "found by the name server"]
        assert {event.kind for event in found} == {EventKind.NODE}
        asyncio.run(look_at_screens(shared, third, end=end))


async def look_at_screens(shared: World, third: TriohaNode, *, end: int) -> None:
    """The same on the screens themselves: what an operator reads, before and after a slave is killed."""
    real, version = shared.pairs[REAL].master.listen_address, shared.java.version
    first = [real, third.listen_address]
    app = MonitorApp(live_views(first, name_servers=[shared.names], settings=MONITOR))
    async with app.run_test(size=(200, 50)) as pilot:
        panes = app.monitor_screen.panes
        replicas, slave_pane, log, events = (panes[name] for name in ("replicas", "slave", "log", "events"))
        assert isinstance(replicas, ReplicasPane)
        assert isinstance(slave_pane, SlavePane)
        assert isinstance(log, LogPane)
        assert isinstance(events, EventsPane)

        async def until(shown: Callable[[], list[str]], *texts: str) -> None:
            async with asyncio.timeout(WITHIN_S):
                while not all(text in "\n".join(shown()) for text in texts):
                    await pilot.pause(0.1)

        table = replicas.table
        await until(lambda: table.lines, "● OK", f"{end:,}", " 0 B ", "in step")
        text = "2 slaves, 2 in sync" if is_5(version) else "this version does not list its replicas"
        await until(lambda: replicas.nodes.lines, "● UP", "SYNC_MASTER", version.replace(".", "_"), text)
        await pilot.press("c")
        if is_5(version):
            assert f"#MasterAddr\t{real}\n#MasterCommitLogMaxOffset\t{end}\n#SlaveNum\t2\n" in app.clipboard
            lines = [line.split() for line in app.clipboard.splitlines() if line.startswith("127.")]
            assert [line[1:3] for line in lines if line[1] == str(end)] == [[str(end), "0"]] * 2
        await pilot.press("2")
        await until(lambda: slave_pane.ladder.lines, "acked  ", "dispatched ")
        await pilot.press("3")
        await until(lambda: log.facts.lines, f"0 to {end:,}", "Puts")
        await pilot.press("4")
        await until(lambda: events.table.lines, "found by the name server")
        third.kill()
        await until(lambda: events.table.lines, "no longer answers")
        await pilot.press("1")
        await until(lambda: table.lines, "✗ SILENT", "gone")
        await until(lambda: replicas.nodes.lines, "✗ DOWN", "● UP")
    assert app.failure is None

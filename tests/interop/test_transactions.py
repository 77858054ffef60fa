"""RocketMQ's own TransactionMQProducer on trioha nodes: decisions, checks, a kill, a promoted slave."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.interop.asking import wait_for_route
from tests.interop.java import JavaConsumer, JavaDriver
from tests.interop.messages import bodies, expected
from tests.interop.name_server import trioha_name_server
from tests.interop.rocketmq import is_5
from tests.interop.transactions import COMMIT, OPS, ROLLBACK, UNKNOWN, TransactionProducer
from tests.interop.world import StartNode
from tests.node_process import TriohaNode, run_trioha
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TOPIC = "TopicTransactions"
FAST_CHECKS = {"transactionTimeOut": 3000, "transactionCheckInterval": 500, "transactionCheckMax": 60}
"""A decision that follows its message at once comes before the time-out, however busy the machine."""
CHECK_INTERVAL_MS = 4000
ONE_CHECK = {"transactionTimeOut": 200, "transactionCheckInterval": CHECK_INTERVAL_MS}
"""An answer comes before the next check."""
SLOW_CHECKS = {"transactionTimeOut": 200, "transactionCheckInterval": 3_600_000}


def settings_of(ports: dict[str, object], **more: object) -> dict[str, object]:
    return {"role": "ASYNC_MASTER", **ports, "trioha.withNamesrv": "true", **more}


@pytest.fixture
def ports() -> dict[str, object]:
    """Of a node that is started more than once."""
    return {"namesrvAddr": f"127.0.0.1:{free_port()}", "listenPort": free_port()}


def wait_for_decisions(root: Path, number: int) -> None:
    """Wait until the log of a store has so many decisions. They are one-way requests."""

    def are_decided() -> bool:
        printed = run_trioha("inspect", "--json", root)
        records = [json.loads(line) for line in printed.stdout.splitlines()]
        # Each op record lists the offsets of one half message or of several.
        ops = [base64.b64decode(record["body"]) for record in records if record.get("topic") == OPS]
        return len([offset for op in ops for offset in op.split(b",") if offset]) >= number

    wait_until(are_decided, f"{number} decisions")


def received_exactly(consumer: JavaConsumer, wanted: Counter[str], node: TriohaNode) -> None:
    """Exactly these messages come: none is delivered twice, and none that was rolled back or given up."""
    number = wanted.total()
    assert bodies(consumer.received(number)) == wanted, node.log()
    assert bodies(consumer.received(number + 1, within_s=1.5)) == wanted


def test_transactions_are_committed_rolled_back_decided_by_checks_and_given_up(
    java: JavaDriver, start_node: StartNode, ports: dict[str, object]
) -> None:
    checks_max = 10
    node = start_node("broker", **settings_of(ports, **{**FAST_CHECKS, "transactionCheckMax": checks_max}))
    name_server = str(ports["namesrvAddr"])
    producer = TransactionProducer.start(java, name_server)
    sent = producer.send(5, topic=TOPIC, prefix="committed", decision=COMMIT)
    assert [each["status"] for each in sent] == ["SEND_OK"] * 5
    assert all(each["transactionId"] == each["msgId"] for each in sent)
    producer.send(5, topic=TOPIC, prefix="rolled-back", decision=ROLLBACK)
    unknown = producer.send(5, topic=TOPIC, prefix="late", decision=UNKNOWN, decision_of_check=COMMIT)
    producer.send(5, topic=TOPIC, prefix="dropped", decision=UNKNOWN, decision_of_check=ROLLBACK)
    producer.send(1, topic=TOPIC, prefix="undecided", decision=UNKNOWN)
    given_up = "TRANS_CHECK_MAX_TIME_TOPIC"
    wait_for_route(name_server, given_up)
    consumer = java.consume(name_server, group="consumers", topic=TOPIC)
    other = java.consume(name_server, group="others", topic=given_up)
    received_exactly(other, Counter(["undecided0"]), node)
    received_exactly(consumer, expected(5, "committed") + expected(5, "late"), node)
    checks = producer.checks(1)
    assert set(bodies(checks)) == set(expected(5, "late") + expected(5, "dropped")) | {"undecided0"}
    assert {check["topic"] for check in checks} == {TOPIC}
    asked = {check["body"]: (check["queueId"], check["transactionId"]) for check in checks}
    for number, each in enumerate(unknown):
        assert asked[f"late{number}"] == (each["queueId"], each["transactionId"])
    # Before the producer's first heartbeat nobody can be asked.
    times = [int(check["times"]) for check in checks if check["body"] == "undecided0"]
    assert times == list(range(checks_max + 1 - len(times), checks_max + 1)), node.log()
    producer.end()
    consumer.end()
    other.end()


def test_open_transactions_go_on_after_a_kill(
    java: JavaDriver, start_node: StartNode, ports: dict[str, object]
) -> None:
    # Op records as the version's own broker writes them.
    op_interval_ms = 300 if is_5(java.version) else 0
    more = {"transactionOpBatchInterval": op_interval_ms, "flushConsumerOffsetInterval": 100}
    node = start_node("broker", **settings_of(ports, **SLOW_CHECKS, **more))
    name_server = str(ports["namesrvAddr"])
    producer = TransactionProducer.start(java, name_server)
    producer.send(3, topic=TOPIC, prefix="committed", decision=COMMIT)
    producer.send(3, topic=TOPIC, prefix="rolled-back", decision=ROLLBACK)
    producer.send(4, topic=TOPIC, prefix="late", decision=UNKNOWN, decision_of_check=COMMIT)
    wait_for_decisions(node.root, 6)
    node.kill()
    node = start_node("broker", **settings_of(ports, **ONE_CHECK, **more))
    assert bodies(producer.checks(4)) == expected(4, "late"), node.log()
    consumer = java.consume(name_server, group="consumers", topic=TOPIC)
    received_exactly(consumer, expected(3, "committed") + expected(4, "late"), node)
    assert len(producer.checks(5, within_s=1.5 * CHECK_INTERVAL_MS / 1000)) == 4
    consumer.end()
    producer.end()


@pytest.mark.nightly
def test_a_promoted_slave_checks_the_open_transactions_of_its_master(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    with trioha_name_server(tmp_path / "names") as names:
        # The promoted slave takes its master's address: clients find it without the topic's route.
        common = {"namesrvAddr": names, "listenPort": free_port()}
        master = start_node("master", role="SYNC_MASTER", **common, **SLOW_CHECKS)
        slave = start_node(
            "slave", role="SLAVE", ha_master_address=master.ha_address, namesrvAddr=names, **SLOW_CHECKS
        )
        master.wait(connections=1)
        producer = TransactionProducer.start(java, names)
        producer.send(3, topic=TOPIC, prefix="committed", decision=COMMIT)
        producer.send(4, topic=TOPIC, prefix="late", decision=UNKNOWN, decision_of_check=COMMIT)
        wait_for_decisions(master.root, 3)
        master.wait(ack_offset=master.max_offset)
        master.kill()
        slave.stop()
        promoted = start_node("slave", role="ASYNC_MASTER", **common, **FAST_CHECKS)
        # A first send makes the topic on the promoted slave, if it has not copied its master's.
        producer.send(1, topic=TOPIC, prefix="after", decision=COMMIT)
        assert set(bodies(producer.checks(4))) == set(expected(4, "late")), promoted.log()
        consumer = java.consume(names, group="consumers", topic=TOPIC)
        wanted = expected(3, "committed") + expected(4, "late") + expected(1, "after")
        received_exactly(consumer, wanted, promoted)
        consumer.end()
        producer.end()


@pytest.mark.nightly
def test_open_transactions_go_on_when_a_store_changes_between_a_real_broker_and_trioha(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    sent = expected(2, "committed") + expected(2, "theirs") + expected(2, "ours")
    with trioha_name_server(tmp_path / "names") as names:
        settings = {"role": "ASYNC_MASTER", "namesrvAddr": names, "transactionTimeOut": 200}
        if is_5(java.version):
            settings["transactionOpBatchInterval"] = 200
        real = java.open_broker(tmp_path / "broker", **settings, transactionCheckInterval=3_600_000)
        wait_for_route(names, "TBW102")
        producer = TransactionProducer.start(java, names)
        producer.send(2, topic=TOPIC, prefix="committed", decision=COMMIT)
        producer.send(2, topic=TOPIC, prefix="rolled-back", decision=ROLLBACK)
        producer.send(2, topic=TOPIC, prefix="theirs", decision=UNKNOWN, decision_of_check=COMMIT)
        wait_for_decisions(real.root, 4)
        real.shutdown()
        # Both nodes have one address: the producer may still have the first node's route.
        common = {"role": "ASYNC_MASTER", "namesrvAddr": names, "listenPort": free_port()}
        node = start_node("broker", **common, **FAST_CHECKS)
        assert set(bodies(producer.checks(2))) == set(expected(2, "theirs")), node.log()
        consumer = java.consume(names, group="consumers", topic=TOPIC)
        received_exactly(consumer, expected(2, "committed") + expected(2, "theirs"), node)
        consumer.end()
        node.stop()
        node = start_node("broker", **common, **SLOW_CHECKS)
        producer.send(2, topic=TOPIC, prefix="ours", decision=UNKNOWN, decision_of_check=COMMIT)
        node.stop()
        # Longer than 5.x gathers op records: until then its broker checks, and commits, again.
        real = java.open_broker(tmp_path / "broker", **settings, transactionCheckInterval=CHECK_INTERVAL_MS)
        wait_for_route(names, TOPIC)
        consumer = java.consume(names, group="others", topic=TOPIC)
        assert bodies(consumer.received(6)) == sent
        consumer.end()
        producer.end()

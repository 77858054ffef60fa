"""Slaves that copy their master's metadata, and pairs that exchange their roles: live nodes."""

import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import trio
import trustme

from tests.node.test_transactions import (
    decide_by_checks,
    delivered,
    end_of,
    half_message,
    place_of,
)
from tests.node.wire import now_ms, send_to
from tests.node_process import StartNode, TriohaNode, run_trioha
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.metadata.pretty_json import parse_pretty
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.end_transaction import Decision

pytestmark = pytest.mark.process

QUICK = {"trioha.metadataSyncFirst": 50, "trioha.metadataSyncPeriod": 100, "flushConsumerOffsetInterval": 100}
TABLES = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET,
)


@pytest.fixture
def start(start_node):
    return partial(start_node, messageDelayLevel="1s 2s", **QUICK)


def ask(address: str, *commands: RemotingCommand) -> list[RemotingCommand]:
    """The answers, one request after the other."""

    async def ask_all() -> list[RemotingCommand]:
        async with open_client(address) as client:
            return [await client.request(command, timeout_s=10) for command in commands]

    return trio.run(ask_all)


def tables(address: str) -> list[Any]:
    """The tables that slaves ask for."""
    answers = ask(address, *(request(code) for code in TABLES))
    return [parse_pretty(bytes(answer.body).decode()) for answer in answers]


def delivered_after_delay(node: TriohaNode, level: int) -> int:
    """How many delayed messages the node says are delivered: those that its slave has, too."""
    return int(
        {int(key): value for key, value in tables(node.listen_address)[3]["offsetTable"].items()}[level]
    )


def stop_when_copied(master: TriohaNode, slave: TriohaNode) -> None:
    """Stop both as soon as the slave has the master's log and offsets."""
    slave.wait(max_offset=master.max_offset)
    wait_until(lambda: tables(slave.listen_address)[2:] == tables(master.listen_address)[2:])
    master.stop()
    slave.stop()


def create(node: TriohaNode, topic: str, group: str) -> None:
    """A topic of one queue, and a group."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    fields |= {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    answers = ask(
        node.listen_address,
        request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields),
        request(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps({"groupName": group}).encode()
        ),
    )
    assert [answer.code for answer in answers] == [0, 0], answers


def send(node: TriohaNode, topic: str, number: int, *, delay_level: int | None = None) -> None:
    properties = "" if delay_level is None else f"DELAY\x01{delay_level}\x02"
    message = send_to(topic, b"body", properties=properties)
    answers = ask(node.listen_address, *[message] * number)
    assert {answer.code for answer in answers} <= {0, ResponseCode.SLAVE_NOT_AVAILABLE}, answers


def commit(node: TriohaNode, topic: str, group: str, offset: int) -> None:
    fields = {"topic": topic, "consumerGroup": group, "queueId": "0", "commitOffset": str(offset)}
    (answer,) = ask(node.listen_address, request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields))
    assert answer.code == 0, answer


def committed(node: TriohaNode, topic: str, group: str) -> int | None:
    fields = {"topic": topic, "consumerGroup": group, "queueId": "0"}
    (answer,) = ask(node.listen_address, request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=fields))
    return int(answer.ext_fields["offset"]) if answer.code == 0 else None


def messages(node: TriohaNode, topic: str) -> int:
    (answer,) = ask(
        node.listen_address,
        request(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": topic, "queueId": "0"}),
    )
    return int(answer.ext_fields["offset"])


def slave_of(master: TriohaNode, start: StartNode, name: str, **settings: Any) -> TriohaNode:
    return start(name, slave_of=master, **{"trioha.masterAddress": master.listen_address, **settings})


def test_the_tables_of_a_slave_are_those_of_its_master_and_an_unchanged_file_is_not_written(start):
    master = start("master", role="ASYNC_MASTER")
    create(master, "Topic", "group")
    send(master, "Topic", 10)
    commit(master, "Topic", "group", 7)
    send(master, "Topic", 3, delay_level=1)
    slave = slave_of(master, start, "slave")
    wait_until(lambda: messages(master, "Topic") == 13)
    wait_until(lambda: tables(slave.listen_address) == tables(master.listen_address))
    config = slave.root / "config"
    wait_until(lambda: (config / "subscriptionGroup.json").exists() and (config / "topics.json").exists())

    def written() -> Mapping[str, int]:
        names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")
        return {name: (config / name).stat().st_mtime_ns for name in names}

    def is_quiet() -> bool:
        """Whether some ten copies write nothing."""
        before = written()
        time.sleep(1.0)
        return written() == before

    wait_until((config / "consumerOffset.json").exists)
    wait_until(is_quiet)
    metadata = slave.status().metadata
    assert metadata.master_address == master.listen_address
    assert {copied.error for copied in metadata.tables.values()} == {""}
    assert metadata.tables["topics"].changes >= 1
    shown = run_trioha("status", "--wide", slave.listen_address)
    assert "consumerOffsets" in shown.stdout
    assert master.status().metadata is None
    # Deleted and created at the master, deleted and created at the slave.
    ask(master.listen_address, request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "Topic"}))
    create(master, "Other", "group")
    wait_until(lambda: tables(slave.listen_address)[0] == tables(master.listen_address)[0])
    assert "Topic" not in tables(slave.listen_address)[0]["topicConfigTable"]


@pytest.mark.full
def test_a_pair_that_exchanges_its_roles_twice_goes_on_where_it_was(start):
    """The exchange after which stock RocketMQ consumes old messages again and delivers delayed ones twice."""
    first = start("first", role="ASYNC_MASTER")
    create(first, "Topic", "group")
    send(first, "Topic", 50)
    send(first, "Topic", 5, delay_level=1)
    wait_until(lambda: messages(first, "Topic") == 55)
    commit(first, "Topic", "group", 30)
    second = slave_of(first, start, "second")
    wait_until(lambda: delivered_after_delay(first, 1) == 5)
    stop_when_copied(first, second)

    promoted = start("second", role="ASYNC_MASTER")
    assert committed(promoted, "Topic", "group") == 30
    send(promoted, "Topic", 10)
    commit(promoted, "Topic", "group", 60)
    send(promoted, "Topic", 2, delay_level=1)
    wait_until(lambda: messages(promoted, "Topic") == 67)
    returned = slave_of(promoted, start, "first")
    wait_until(lambda: delivered_after_delay(promoted, 1) == 7)
    stop_when_copied(promoted, returned)

    again = start("first", role="ASYNC_MASTER")
    assert committed(again, "Topic", "group") == 60
    send(again, "Topic", 1)
    wait_until(lambda: messages(again, "Topic") == 68)
    # Longer than both delay levels: nothing is delivered a second time.
    time.sleep(2.5)
    assert messages(again, "Topic") == 68
    again.stop()
    found = json.loads(run_trioha("offsets", again.root, "--group", "group", "--json").stdout)
    assert found["offsets"] == [{"group": "group", "topic": "Topic", "queueId": 0, "offset": 60}]


@pytest.mark.full
def test_a_transaction_that_was_begun_at_the_old_master_is_committed_at_the_new_one(start):
    first = start("first", role="ASYNC_MASTER")
    create(first, "Topic", "group")
    properties = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01ABC\x02"
    (half,) = ask(first.listen_address, send_to("Topic", b"body", sys_flag=4, properties=properties))
    assert half.code == 0, half
    second = slave_of(first, start, "second")
    stop_when_copied(first, second)
    promoted = start("second", role="ASYNC_MASTER")
    decision = {
        "producerGroup": "P",
        "tranStateTableOffset": half.ext_fields["queueOffset"],
        "commitLogOffset": str(int(half.ext_fields["msgId"][-16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "ABC",
    }
    (answer,) = ask(promoted.listen_address, request(RequestCode.END_TRANSACTION, ext_fields=decision))
    assert answer.code == 0, answer
    wait_until(lambda: messages(promoted, "Topic") == 1)
    returned = slave_of(promoted, start, "first")
    stop_when_copied(promoted, returned)
    # The decision is known to the old master as well.
    again = start("first", role="ASYNC_MASTER")
    (answer,) = ask(again.listen_address, request(RequestCode.END_TRANSACTION, ext_fields=decision))
    assert answer.code != 0, answer
    assert messages(again, "Topic") == 1


@pytest.mark.full
def test_transactions_that_are_open_at_the_exchange_are_checked_and_decided_at_the_new_master(start):
    never = {"transactionTimeOut": 50, "transactionCheckInterval": 3_600_000}
    decisions = {b"a": Decision.COMMIT, b"b": Decision.ROLLBACK, b"c": Decision.COMMIT}
    first = start("first", role="ASYNC_MASTER", **never)
    for body in decisions:
        (half,) = ask(first.listen_address, half_message(body))
        place = place_of(half)
    # One is decided before the exchange; the others are left open.
    (ended,) = ask(first.listen_address, end_of(*place, decisions[b"c"]))
    assert ended.code == 0, ended
    second = slave_of(first, start, "second", **never)
    stop_when_copied(first, second)
    checks = {"transactionTimeOut": 50, "transactionCheckInterval": 100, "transactionCheckMax": 1000}
    promoted = start("second", role="ASYNC_MASTER", **checks)
    assert decide_by_checks(promoted, decisions, {b"a", b"b"}) == {b"a", b"b"}
    assert delivered(promoted) == {b"a": 1, b"c": 1}


@pytest.mark.full
def test_a_slave_signs_what_it_asks_and_uses_tls(start, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    (tmp_path / "acl.yml").write_text("accounts: [{accessKey: slaves-account, secretKey: secret-1}]\n")
    master = start("master", role="ASYNC_MASTER")
    create(master, "Topic", "group")
    expected = tables(master.listen_address)
    master.stop()
    guarded = {
        "aclEnable": "true",
        "trioha.aclFile": tmp_path / "acl.yml",
        "tls.server.mode": "enforcing",
        "tls.server.certPath": tmp_path / "server.pem",
        "tls.server.keyPath": tmp_path / "server.pem",
    }
    master = start("master", role="ASYNC_MASTER", **guarded)
    secure = {
        "tls.enable": "true",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": tmp_path / "ca.pem",
        "trioha.accessKey": "slaves-account",
    }

    def errors(node: TriohaNode) -> set[str]:
        metadata = node.status().metadata
        return {copied.error for copied in metadata.tables.values()}

    wrong = slave_of(master, start, "wrong", **secure, **{"trioha.secretKey": "secret-2"})
    wait_until(lambda: any("Check signature failed" in error for error in errors(wrong)))
    assert "Topic" not in tables(wrong.listen_address)[0]["topicConfigTable"]
    slave = slave_of(master, start, "slave", **secure, **{"trioha.secretKey": "secret-1"})
    wait_until(lambda: tables(slave.listen_address)[:2] == expected[:2])
    wait_until(lambda: errors(slave) == {""})


@pytest.mark.full
@pytest.mark.parametrize(
    ("policy", "offset"), [("keep", 40), pytest.param("accept", 10, marks=pytest.mark.nightly)]
)
def test_an_offset_that_goes_back_at_the_master_is_shown_and_can_be_found_in_the_history(
    start, policy, offset
):
    master = start("master", role="ASYNC_MASTER", **{"trioha.metadataHistoryInterval": 0})
    create(master, "Topic", "group")
    send(master, "Topic", 50)
    commit(master, "Topic", "group", 40)
    slave = slave_of(master, start, "slave", **{"trioha.offsetRegression": policy})
    slave.wait(max_offset=master.max_offset)
    wait_until(lambda: committed(slave, "Topic", "group") == 40)

    def offset_at(time_ms: int) -> list[int]:
        found = run_trioha("offsets", master.root, "--at", time_ms, "--group", "group", "--json")
        return [row["offset"] for row in json.loads(found.stdout)["offsets"]]

    wait_until(lambda: offset_at(now_ms()) == [40])
    before_ms = now_ms()
    commit(master, "Topic", "group", 10)

    def has_regression() -> bool:
        metadata = slave.status().metadata
        return metadata is not None and metadata.regressions == 1

    wait_until(has_regression)
    assert committed(slave, "Topic", "group") == offset
    metadata = slave.status().metadata
    assert (metadata.policy, metadata.regressions_kept) == (policy, 1 if policy == "keep" else 0)
    assert f"trioha.offsetRegression={policy}" in run_trioha("status", "--wide", slave.listen_address).stdout
    wait_until(lambda: offset_at(now_ms()) == [10])
    assert offset_at(before_ms) == [40]


@pytest.mark.full
def test_a_name_server_gives_the_slave_its_masters_address(start):
    settings = {"namesrvAddr": f"127.0.0.1:{free_port()}", "registerNameServerPeriod": 300}
    name_server = start(
        "names", role="ASYNC_MASTER", brokerName="other", **settings, **{"trioha.withNamesrv": "true"}
    )
    master = start("master", role="ASYNC_MASTER", **settings)
    create(master, "Topic", "group")
    slave = start("slave", role="SLAVE", **settings)
    wait_until(lambda: tables(slave.listen_address)[0] == tables(master.listen_address)[0])
    for node in (slave, master, name_server):
        node.stop()

"""Nodes that change their role while they run."""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.node.client import Client
from tests.node.role_nodes import (
    ASYNC_MASTER,
    SYNC_MASTER,
    WITHIN_S,
    RoleNode,
    message,
    pull,
    put,
    role_node,
    slave_of,
)
from tests.node_process import TriohaNode, run_trioha
from tests.waiting import wait_until
from trioha.broker.delayed_delivery import DelayedDelivery
from trioha.broker.transaction_service import TransactionService
from trioha.client.messages import received_messages
from trioha.errors import TriohaError
from trioha.ha.frames import encode_report
from trioha.node.hang_watch import Work
from trioha.recording.reader import open_session
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.route import MessageQueue
from trioha.remoting.send_message import put_status_name
from trioha.remoting.server import RemotingServer
from trioha.remoting.status_reader import fetch_status
from trioha.severity import Severity
from trioha.store.flush import FlushService
from trioha.store.message_store import MessageStore
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record
from trioha_sessions.invariants import check_session

pytestmark = pytest.mark.timeout(300)

QUEUE = MessageQueue("T", "broker-a", 0)


async def bodies(node: RoleNode, *, json: bool = True) -> list[bytes]:
    """What a consumer gets of queue 0."""
    found: list[bytes] = []
    with trio.fail_after(WITHIN_S):
        async with open_client(node.address) as client:
            while True:
                answer = await client.request(pull(len(found), json=json), timeout_s=WITHIN_S)
                if answer.code != ResponseCode.SUCCESS:
                    return found
                found += [one.body for one in received_messages(answer.body, QUEUE)]


async def received(node: RoleNode, body: bytes) -> None:
    """Wait until a consumer gets `body`."""
    with trio.fail_after(WITHIN_S):
        while True:
            if body in await bodies(node):
                return
            await trio.sleep(0.02)


def assert_sound(folder: Path, roles: list[str]) -> None:
    """The sessions of `folder` are of these roles, ended, and break no invariant."""
    found = [open_session(path) for path in sorted(folder.iterdir())]
    assert [one.identity.role for one in found] == roles
    for one in found:
        violations = [violation for result in check_session(one) for violation in result.violations]
        assert [each for each in violations if each.severity is Severity.CRITICAL] == []


@pytest.mark.parametrize("json", [True, False], ids=["json", "rocketmq"])
async def test_a_pair_exchanges_its_roles_and_changes_them_back(tmp_path, json):
    sent: list[bytes] = []

    async def send(master: RoleNode) -> None:
        with trio.fail_after(WITHIN_S):
            async with open_client(master.address) as client:
                for _ in range(20):
                    sent.append(b"message %d" % len(sent))
                    assert await put(client, sent[-1], json=json) == "PUT_OK"

    async with (
        role_node(tmp_path / "a", SYNC_MASTER, **{"trioha.recordDir": tmp_path / "recorded-a"}) as a,
        role_node(tmp_path / "b", slave_of(a), **{"trioha.recordDir": tmp_path / "recorded-b"}) as b,
    ):
        await a.has_slave()
        for old, new in ((a, b), (b, a)):
            await send(old)
            end_offset = (await old.status()).max_offset
            await new.follows(end_offset)
            assert (await old.status()).role == "SYNC_MASTER"
            # Nothing is sent meanwhile: with the default replication nobody may have the longer log.
            await old.change(slave_of())
            await new.change(SYNC_MASTER)
            await old.change(slave_of(new))
            await old.follows(end_offset)
            await new.has_slave()
        await send(a)
        await a.until(lambda status: status.dispatched_offset == status.max_offset)
        assert await bodies(a, json=json) == sent
        end_offset = (await a.status()).max_offset
        await b.follows(end_offset)
    assert_sound(tmp_path / "recorded-a", ["SYNC_MASTER", "SLAVE", "SLAVE", "SYNC_MASTER"])
    assert_sound(tmp_path / "recorded-b", ["SLAVE", "SYNC_MASTER", "SLAVE", "SLAVE"])
    assert log_of(tmp_path / "a", end_offset) == log_of(tmp_path / "b", end_offset)


def log_of(folder: Path, end_offset: int) -> bytes:
    """The commit log up to `end_offset`."""
    return b"".join(file.read_bytes() for file in sorted((folder / "commitlog").iterdir()))[:end_offset]


@pytest.mark.parametrize("json", [True, False], ids=["json", "rocketmq"])
async def test_waiting_requests_of_a_master_that_loses_its_role_get_true_answers(tmp_path, json):
    settings = {"slaveTimeout": 600_000, "haMaxTimeSlaveNotCatchup": 600_000}
    answers: dict[str, RemotingCommand] = {}

    async def ask(name: str, client: RemotingClient, command: RemotingCommand) -> None:
        answers[name] = await client.request(command, timeout_s=WITHIN_S)

    async with role_node(tmp_path / "a", SYNC_MASTER, **settings) as node:
        host, port = node.ready.ha.host, node.ready.ha.port
        # A slave that reports, and acknowledges only the first message.
        async with await trio.open_tcp_stream(host, port) as slave, open_client(node.address) as client:
            await slave.send_all(encode_report(0))
            await node.until(lambda status: bool(status.connections))
            async with trio.open_nursery() as asking:
                asking.start_soon(ask, "first", client, message(b"first", json=json))
                end_offset = await grown(node, 0)
                await slave.send_all(encode_report(end_offset))
            async with trio.open_nursery() as asking:
                asking.start_soon(ask, "second", client, message(b"second", json=json))
                await grown(node, end_offset)
                asking.start_soon(ask, "pull", client, pull(0, suspend_ms=600_000, json=json, queue_id=1))
                await trio.testing.wait_all_tasks_blocked(0.01)
                client.send_oneway(message(b"one-way", json=json, is_oneway=True))
                # Requests of a connection are handled in their order.
                await fetch_status(client)
                node.roles.set(slave_of())
            reason = await client.wait_lost()
        assert put_status_name(answers["first"]) == "PUT_OK"
        assert put_status_name(answers["second"]) == "FLUSH_SLAVE_TIMEOUT"
        assert answers["pull"].code == ResponseCode.PULL_NOT_FOUND
        assert "closed" in reason
        assert (await node.status()).role == "SLAVE"
        async with open_client(node.address) as client:
            assert await put(client, b"refused", json=json) == "SERVICE_NOT_AVAILABLE"


async def grown(node: RoleNode, beyond: int) -> int:
    """Wait until the node's log ends after `beyond`; its end."""
    return (await node.until(lambda status: status.max_offset > beyond)).max_offset


async def test_ports_stay_open_between_roles_and_clients_of_that_time_are_served(tmp_path):
    over = trio.Event()
    answered: list[str] = []

    async def ask_on(node: RoleNode) -> None:
        """Connect and ask, again and again: a connection may end, but none is refused."""
        while not over.is_set():
            # Raises OSError where nobody listens.
            stream = await trio.open_tcp_stream(node.ready.listen.host, node.ready.listen.port)
            await trio.aclose_forcefully(stream)
            answered.append((await node.status()).role)

    async with role_node(tmp_path / "a", ASYNC_MASTER) as node:
        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(ask_on, node)
            for _ in range(4):
                await node.change(slave_of())
                await node.change(ASYNC_MASTER)
            over.set()
        # The last life closes the ports.
        assert {"SLAVE", "ASYNC_MASTER"} <= set(answered)
    for address in (node.ready.listen, node.ready.ha):
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream(address.host, address.port)


async def test_a_connection_of_a_past_role_ends_and_its_port_serves_the_next_one(tmp_path):
    async with role_node(tmp_path / "a", ASYNC_MASTER, **{"trioha.metricsPort": 0}) as node:
        async with open_client(node.address) as idle:
            await node.change(slave_of())
            with trio.fail_after(WITHIN_S):
                await idle.wait_lost()
        metrics = node.ready.metrics
        stream = await trio.open_tcp_stream(metrics.host, metrics.port)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            page = b"".join([part async for part in stream]).decode()
        assert 'role="SLAVE"' in page, page[:2000]


async def test_a_role_that_is_set_again_changes_nothing_and_of_several_the_last_one_counts(tmp_path):
    async with role_node(tmp_path / "a", ASYNC_MASTER) as node, open_client(node.address) as client:
        node.roles.set(ASYNC_MASTER)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert await put(client, b"same connection") == "PUT_OK"
        for _ in range(3):
            node.roles.set(slave_of())
            node.roles.set(SYNC_MASTER)
        await node.change(SYNC_MASTER)
        assert (await node.status()).role == "SYNC_MASTER"


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_new_master_with_sync_flush_has_its_log_on_disk_before_anybody_reads_it(
    tmp_path, monkeypatch, flush_disk_type
):
    """All of a new master's log is dispatched: also what only its memory would have."""
    async with role_node(tmp_path / "a", SYNC_MASTER) as a, open_client(a.address) as client:

        async def flush_nothing(_: FlushService) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(FlushService, "run", flush_nothing)
        take_role = MessageStore.take_role
        ends: list[tuple[int, int]] = []
        steps: list[str] = []
        # A long sync is no hang of the change of the role.
        monkeypatch.setattr(Work, "step", lambda work: steps.append(work.what))

        def look(store: MessageStore, **options: Any) -> None:
            assert steps.count("a change of the role") == (flush_disk_type == "SYNC_FLUSH")
            ends.append((store.commit_log.flushed.offset, store.commit_log.max_offset))
            take_role(store, **options)

        monkeypatch.setattr(MessageStore, "take_role", look)
        async with role_node(tmp_path / "b", slave_of(a), flushDiskType=flush_disk_type) as b:
            await a.has_slave()
            assert await put(client, b"1") == "PUT_OK"
            end = (await a.status()).max_offset
            await b.follows(end)
            await b.change(SYNC_MASTER)
    assert ends == [(end if flush_disk_type == "SYNC_FLUSH" else 0, end)]


async def test_a_slaves_session_with_its_master_ends_before_its_clients_are_served_to_the_end(
    tmp_path, monkeypatch
):
    """What it would receive meanwhile, such as a later epoch, is not known to the role that it changes to."""
    drain = RemotingServer.drain
    drains: list[int] = []

    async with role_node(tmp_path / "a", SYNC_MASTER) as a, role_node(tmp_path / "b", slave_of(a)) as b:
        await a.has_slave()

        async def drain_after_the_session(server: RemotingServer, *, timeout_s: float) -> None:
            if not drains:
                drains.append((await a.until(lambda status: not status.connections)).max_offset)
            await drain(server, timeout_s=timeout_s)

        monkeypatch.setattr(RemotingServer, "drain", drain_after_the_session)
        await b.change(SYNC_MASTER)
        assert drains == [0]


async def test_a_node_stops_while_it_changes_its_role(tmp_path):
    for role in (slave_of(), SYNC_MASTER, slave_of()):
        async with role_node(tmp_path / "a", ASYNC_MASTER) as node:
            node.roles.set(role)
            await trio.testing.wait_all_tasks_blocked()
    assert not (tmp_path / "a" / "abort").exists()


async def test_delivery_transactions_and_copies_of_metadata_come_and_go_with_the_role(tmp_path, monkeypatch):
    running: Counter[str] = Counter()

    def watch(service: type[Any], store_of: Callable[[Any], MessageStore]) -> None:
        run = service.run

        async def counted(one: Any) -> None:
            if str(store_of(one).settings.root) != str(tmp_path / "a"):
                return await run(one)
            running[service.__name__] += 1
            try:
                await run(one)
            finally:
                running[service.__name__] -= 1

        monkeypatch.setattr(service, "run", counted)

    watch(DelayedDelivery, lambda one: one._store)
    watch(TransactionService, lambda one: one._store)
    of_a_master = {"DelayedDelivery": 1, "TransactionService": 1}
    async with (
        role_node(tmp_path / "m", ASYNC_MASTER) as master,
        role_node(
            tmp_path / "a",
            slave_of(master),
            **{"trioha.metadataSyncFirst": 1, "trioha.metadataSyncPeriod": 50},
        ) as node,
    ):
        async with open_client(master.address) as client:
            assert await put(client, b"makes the topic") == "PUT_OK"
        await node.follows((await master.status()).max_offset)

        async def copies_metadata() -> None:
            await node.until(lambda status: status.metadata is not None and bool(status.metadata.tables))

        await copies_metadata()
        assert running.total() == 0
        await node.change(ASYNC_MASTER)
        assert (await node.status()).metadata is None
        assert running == of_a_master
        # It delivers delayed messages now, and has the topics of every broker.
        async with open_client(node.address) as client:
            assert await put(client, b"delayed", delay_level=1) == "PUT_OK"
            topics = await client.request(request(RequestCode.GET_ALL_TOPIC_CONFIG), timeout_s=WITHIN_S)
            assert b'"TBW102"' in bytes(topics.body)
        await received(node, b"delayed")
        await node.change(slave_of(master))
        await copies_metadata()
        assert running.total() == 0
        await node.change(ASYNC_MASTER)
        assert (await node.status()).metadata is None
        assert running == of_a_master


PROGRAM = """
import signal, sys
import trio
from trioha.config.broker import BrokerRole
from trioha.node import process
from trioha.node.roles import NodeRole, Roles
from trioha.cli import main

run_node = process.run_node
ROLES = {
    signal.SIGUSR1: NodeRole(BrokerRole.SLAVE, 1),
    signal.SIGUSR2: NodeRole(BrokerRole.ASYNC_MASTER, 0),
}

async def run_with_roles(*arguments, **options):
    roles = Roles(ROLES[signal.SIGUSR2])
    async def set_roles(signals):
        async for number in signals:
            roles.set(ROLES[number])
    with trio.open_signal_receiver(*ROLES) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(set_roles, signals)
            await run_node(*arguments, roles=roles, **options)
            nursery.cancel_scope.cancel()

process.run_node = run_with_roles
sys.exit(main())
"""


def role_of(node: TriohaNode) -> str:
    """The role of a node that may be between two."""
    try:
        return node.status().role
    except TriohaError:
        return ""


@pytest.mark.process
def test_a_process_under_load_changes_its_role_and_loses_no_message(start_node, tmp_path):
    node = start_node(
        "a",
        role="ASYNC_MASTER",
        program=[sys.executable, "-c", PROGRAM],
        **{"trioha.recordDir": tmp_path / "recorded"},
    )
    stored: Counter[str] = Counter()
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            with Client(node.listen_address, timeout_s=WITHIN_S) as client:
                stored.update(client.send(200, body=bytes(500)))

    producers = [threading.Thread(target=produce) for _ in range(2)]
    try:
        for producer in producers:
            producer.start()
        roles = ["ASYNC_MASTER"]
        for _ in range(3):
            for number, role in ((signal.SIGUSR1, "SLAVE"), (signal.SIGUSR2, "ASYNC_MASTER")):
                os.kill(node.pid, number)
                roles.append(role)
                wait_until(lambda: role_of(node) == role, role)  # noqa: B023
                # The producers go on in each role.
                name = "SERVICE_NOT_AVAILABLE" if role == "SLAVE" else "PUT_OK"
                before = stored[name]
                wait_until(lambda: stored[name] >= before + 200, name)  # noqa: B023
        over.set()
        for producer in producers:
            producer.join(WITHIN_S)
        os.kill(node.pid, signal.SIGTERM)
        assert node.wait_ended(within_s=WITHIN_S) == 0
    finally:
        over.set()
    assert "Traceback" not in node.log()
    assert set(stored) <= {"PUT_OK", "SERVICE_NOT_AVAILABLE", "closed"}
    log = ReadOnlyCommitLog.open(tmp_path / "a" / "commitlog")
    messages = sum(isinstance(record, Record) for record in log.records(log.min_offset))
    # A message whose answer was lost with its connection may be there, too.
    assert stored["PUT_OK"] <= messages <= stored["PUT_OK"] + stored["closed"]
    assert_sound(tmp_path / "recorded", roles)
    assert run_trioha("verify", tmp_path / "a").exit_code == 0

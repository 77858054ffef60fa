"""Pairs of node processes under a scripted controller: roles, sync-state set, epochs, equal logs.

Real controllers: tests/interop/test_failover.py.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve

from tests.controller.scripted import Group, ScriptedControllers
from tests.interop.controller import ask, broker_settings, eventually
from tests.metrics.pages import uses
from tests.metrics.scraping import parsed, scrape, values_of
from tests.node.client import Client
from tests.node.test_transactions import (
    FAST_CHECKS,
    NO_CHECKS,
    decide_by_checks,
    delivered,
    end_of,
    half_message,
    place_of,
)
from tests.node.wire import Wire
from tests.node_process import Answer, TriohaNode, run_trioha
from tests.ports import free_port
from trioha.broker_status import ControlStatus
from trioha.controller import protocol
from trioha.controller.bodies import EpochCache
from trioha.controller.header import to_request
from trioha.doctor.checks import AREAS
from trioha.doctor.findings import CHECKS
from trioha.errors import TriohaError
from trioha.net.tls import ServerTls
from trioha.recording.events import Kind
from trioha.recording.reader import find_sessions, open_session
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.end_transaction import Decision
from trioha.remoting.server import Peer, RemotingServer
from trioha.store.checkpoint import Checkpoint
from trioha.store.cut_marker import BegunCut, save_cut
from trioha.store.epochs import EpochEntry, EpochTable
from trioha_sessions.records import read_records

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
BOTH = frozenset((1, 2))
ON_ONE_HOST = {"advertised-address-local", "vip-port-unreachable"}
"""What the doctor says of brokers that announce 127.0.0.1, with listenPort in range."""
NOWHERE = "127.0.0.1:9"
"""A name server that nobody asks for in these tests."""


def answer_of(address: str, command: RemotingCommand) -> RemotingCommand:
    """The answer of a node, whose connections end whenever its role changes."""
    return eventually(f"an answer to {command.code}", lambda: ask(address, command))


class Controller:
    """A controller in a thread of this process: `ScriptedControllers` over TCP."""

    def __init__(self, scripted: ScriptedControllers, address: str) -> None:
        self.scripted = scripted
        self.address = address

    @property
    def group(self) -> Group:
        return self.scripted.group

    def elect(self, broker_id: int, *, tell: bool = True) -> None:
        """Elect a broker, and send a notice to it, as real controllers do at the death of a master."""
        self.group.elect(broker_id)
        if tell:
            self.notify(broker_id)

    def notify(self, broker_id: int) -> None:
        group = self.group
        assert group.master_id is not None
        fields = protocol.RoleNotice(
            master_id=group.master_id,
            master_address=group.addresses[group.master_id],
            master_epoch=group.epoch,
            set_epoch=group.set_epoch,
        )
        answer_of(group.addresses[broker_id], to_request(fields, body=group.set_of().to_body()))

    def wait_for_master(self, broker_id: int, member: Member) -> None:
        """Wait until they have elected a broker; `member` has the log to show."""
        eventually(
            f"master {broker_id}",
            lambda: True if self.group.master_id == broker_id else None,
            logs=member.node.log,
        )

    def wait_for_set(self, members: frozenset[int]) -> None:
        eventually(f"set {sorted(members)}", lambda: True if self.group.members == members else None)


@contextmanager
def scripted_controller(tls: ServerTls | None = None) -> Iterator[Controller]:
    ready = threading.Event()
    started: list[tuple[Controller, trio.lowlevel.TrioToken, trio.CancelScope]] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            scripted = ScriptedControllers(nursery, None)
            own: list[str] = []

            def handler(command: RemotingCommand, _: Peer) -> RemotingCommand | None:
                code = RequestCode(command.code)
                if code is RequestCode.BROKER_HEARTBEAT:
                    scripted.group.heard(protocol.Heartbeat.of(command.ext_fields))
                    return None
                return scripted.carry_out(own[0], code, evolve(command, body=bytes(command.body)))

            async def serve(task_status: trio.TaskStatus[Any]) -> None:
                server = RemotingServer(handler, tls=tls)  # type: ignore[arg-type]
                await server.serve(host="127.0.0.1", port=0, task_status=task_status)

            ((host, port),) = await nursery.start(serve)
            own.append(f"{host}:{port}")
            scripted.leader = own[0]
            token = trio.lowlevel.current_trio_token()
            started.append((Controller(scripted, own[0]), token, nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert ready.wait(60)
    controller, token, scope = started[0]
    try:
        yield controller
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join(60)
        assert not thread.is_alive()


class Member:
    """A node of the group, which may be killed and started again."""

    def __init__(self, folder: Path, name: str, controller: Controller, **settings: object) -> None:
        self.root = folder / name
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        java_only = {"timerWheelEnable", "enableCompaction"}
        common = broker_settings("broker-x", controller.address, NOWHERE, self.root, self._port)
        self._settings = {
            key: str(value).lower() if isinstance(value, bool) else value
            for key, value in {**common, **settings}.items()
            if key not in java_only
        }
        self.node = self._start()

    def _start(self) -> TriohaNode:
        return TriohaNode(self.root, role="SLAVE", **self._settings)

    def restart(self, **settings: object) -> None:
        """Start it again, with further settings."""
        self._settings |= settings
        self.node = self._start()

    def end(self) -> None:
        if self.node.is_running:
            self.node.kill()

    def log_bytes(self) -> bytes:
        """The whole log, from its files."""
        return b"".join(path.read_bytes() for path in sorted((self.root / "commitlog").iterdir()))

    def confirmed_on_disk(self) -> int:
        """The confirm offset in its checkpoint."""
        return Checkpoint.load(self.root / "checkpoint").confirm_physical_offset

    def epochs(self) -> EpochCache:
        return EpochCache.of_body(answer_of(self.address, request(RequestCode.GET_BROKER_EPOCH_CACHE)).body)

    def stored(self, number: int) -> None:
        """Store so many messages; each is PUT_OK. Waits until the node takes writes."""

        def one() -> bool | None:
            try:
                with Client(self.node.listen_address) as client:
                    return True if client.send() == {"PUT_OK": 1} else None
            except OSError:
                # Its connection ended while the node changed its role.
                return None

        eventually("a put is PUT_OK", one, logs=self.node.log)
        with Client(self.node.listen_address) as client:
            assert client.send(number) == {"PUT_OK": number}, self.node.log()


Join = Callable[..., Member]
StartPair = Callable[..., tuple[Member, Member]]


@pytest.fixture
def controller():
    with scripted_controller() as running:
        yield running


@pytest.fixture
def join(tmp_path, controller):
    with ExitStack() as members:

        def start(name: str, **settings: object) -> Member:
            member = Member(tmp_path, name, controller, **settings)
            members.callback(member.end)
            return member

        yield start


@pytest.fixture
def pair(controller, join):
    """Starts a master and its slave, both in the set; `settings` are those of both."""

    def start(**settings: object) -> tuple[Member, Member]:
        first = join("first", **settings)
        controller.wait_for_master(1, first)
        second = join("second", **settings)
        controller.wait_for_set(BOTH)
        return first, second

    return start


def stop_equal(first: Member, second: Member) -> None:
    """Stop both: their logs have the same bytes."""
    for member in (first, second):
        member.node.stop()
    assert first.log_bytes() == second.log_bytes()


def test_a_killed_master_is_replaced_and_comes_back_as_a_slave(controller, pair):
    first, second = pair()
    first.stored(100)
    first.node.kill()
    controller.elect(2)
    second.stored(100)
    first.restart()
    controller.wait_for_set(BOTH)
    second.stored(100)
    # The living master is replaced, too: both change their roles.
    controller.elect(1)
    controller.notify(2)
    first.stored(100)
    controller.wait_for_set(BOTH)
    first.stored(100)
    assert [epoch.epoch for epoch in first.epochs().epochs] == [1, 2, 3]
    assert first.epochs().epochs == second.epochs().epochs
    assert (first.epochs().broker_id, second.epochs().broker_id) == (0, 2)
    end = first.epochs().max_offset
    second.node.wait(max_offset=end)
    stop_equal(first, second)


@pytest.mark.full
def test_status_shows_roles_epochs_sets_and_the_leading_controller(controller, join):
    settings = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "inSyncReplicas": 2}
    first = join("first", **settings, **{"trioha.metricsPort": 0})
    controller.wait_for_master(1, first)

    def control_of(member: Member, role: str, epoch: int) -> ControlStatus:
        def found() -> ControlStatus | None:
            try:
                control = member.node.status().control
            except TriohaError:
                # Its connection ended while the node changed its role.
                return None
            return control if (control.role, control.master_epoch) == (role, epoch) else None

        return eventually(f"{role} of epoch {epoch}", found, logs=member.node.log)

    alone = control_of(first, "master", 1)
    assert (alone.sync_state_set, alone.in_sync_min, alone.is_set_short) == ((1,), 2, True)
    second = join("second", **settings)
    controller.wait_for_set(BOTH)
    first.stored(20)
    end = first.epochs().max_offset
    second.node.wait(max_offset=end)

    def settled(member: Member, role: str, epoch: int) -> ControlStatus:
        """Of a member that has all, when it knows the set and the confirm offset."""

        def found() -> ControlStatus | None:
            control = control_of(member, role, epoch)
            return control if (control.confirm_offset, control.sync_state_set) == (end, (1, 2)) else None

        return eventually("confirm offset and set", found, logs=member.node.log)

    master = settled(first, "master", 1)
    slave = settled(second, "slave", 1)
    for control, broker_id in ((master, 1), (slave, 2)):
        assert control.broker_id == broker_id
        assert (control.step, control.refusal) == ("following", "")
        assert (control.master_id, control.master_address) == (1, first.address)
        assert (control.log_epoch, control.role_changes) == (1, 1)
        assert (control.sync_state_set, control.is_set_short) == ((1, 2), False)
        assert control.leader == controller.address
        assert control.leader_heard_ms is not None
        assert control.leader_heard_ms < 60_000
        assert [(one.is_connected, one.is_leader) for one in control.controllers] == [(True, True)]
        assert control.role_changed_ms is not None
    assert master.sync_state_set_epoch == controller.group.set_epoch
    assert [(one.broker_id, one.in_set, one.ack_offset) for one in master.members] == [
        (1, True, end),
        (2, True, end),
    ]
    assert slave.members == ()
    values = values_of(parsed(scrape(first.node.metrics_address)[2]))
    served = {name for name, _ in values}
    named = {selector.name for use in uses() for selector in use.expression.selectors}
    assert {name for name in named if name.startswith("trioha_control_")} <= served
    assert values["trioha_control_role", frozenset({("role", "master")})] == 1
    assert values["trioha_control_member_ack_offset_bytes", frozenset({("broker_id", "2")})] == end
    assert values["trioha_slaves_needed", frozenset()] == 0
    controller.elect(2)
    controller.notify(1)
    assert control_of(second, "master", 2).role_changes == 2
    after = control_of(first, "slave", 2)
    assert (after.broker_id, after.master_id, after.master_address) == (1, 2, second.address)
    assert after.role_changed_ms is not None
    assert master.role_changed_ms is not None
    assert after.role_changed_ms > master.role_changed_ms

    def healthy() -> Answer | None:
        # The new slave connects a moment after it has its role.
        answer = run_trioha("status", "--wide", first.address, second.address)
        return answer if answer.exit_code == 0 else None

    shown = eventually("a healthy pair", healthy, logs=second.node.log)
    assert "Controller mode" in shown.stdout


@pytest.mark.full
def test_the_doctor_finds_what_is_wrong_with_a_group(controller, pair):
    first, second = pair(allAckInSyncStateSet=True)
    first.stored(20)
    second.node.wait(max_offset=first.epochs().max_offset)
    assert "controllers" in AREAS
    own = {name for name, one in CHECKS.items() if one.area == "controllers"}

    def found() -> dict[str, str]:
        answer = run_trioha("doctor", "--json", "--timeout", "20", first.address, second.address)
        findings = json.loads(answer.stdout)["findings"]
        assert {one["id"] for one in findings} <= own | ON_ONE_HOST, findings
        return {one["id"]: one["evidence"] for one in findings if one["id"] in own}

    assert found() == {}
    # The set cannot change any more.
    controller.scripted.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 1
    controller.group.members = frozenset((1,))
    assert found() == {"outside-sync-state-set": "id 2 is not in {1} of epoch 1"}
    controller.group.members = BOTH
    controller.scripted.leader, address = "127.0.0.1:1", controller.scripted.leader
    assert found() == {
        "controller-unreachable": "cannot connect: Connection refused; named by another controller",
        "controllers-without-leader": (
            f"answer without leading: {address} (names 127.0.0.1:1); no answer: 127.0.0.1:1"
        ),
    }


@pytest.mark.full
def test_what_only_a_dead_master_had_is_cut_when_it_comes_back(controller, pair):
    first, second = pair(slaveTimeout=500)
    first.stored(50)
    # Both are in the set, one is gone, and the set cannot change: stored here, and no put is PUT_OK.
    controller.scripted.refuse[RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET] = 1
    second.node.kill()
    assert first.node.load(20).statuses == {"FLUSH_SLAVE_TIMEOUT": 20}, first.node.log()
    cut = first.epochs().max_offset
    first.node.kill()
    second.restart()
    controller.scripted.refuse.clear()
    controller.elect(2)
    second.stored(50)
    first.restart()
    controller.wait_for_set(BOTH)
    second.stored(10)
    epochs = second.epochs()
    assert epochs.epochs == first.epochs().epochs
    assert epochs.epochs[1].start_offset < cut
    stop_equal(first, second)


@pytest.mark.full
def test_a_slave_keeps_confirmed_messages_that_its_masters_disk_has_lost(controller, pair, tmp_path):
    """All lost their power; the master comes back first, in its epoch, with what its disk still has."""
    first, second = pair()
    first.stored(50)
    first.node.stop()
    shutil.copytree(first.root, tmp_path / "old")
    first.restart()
    controller.wait_for_set(BOTH)
    first.stored(50)
    end = first.epochs().max_offset
    second.node.wait(max_offset=end)
    # What the slave knows to be confirmed is in its checkpoint about a second later.
    eventually("the confirm offset on disk", lambda: second.confirmed_on_disk() >= end or None)
    for member in (first, second):
        member.node.kill()
    confirmed = second.log_bytes()
    shutil.rmtree(first.root)
    shutil.copytree(tmp_path / "old", first.root)
    controller.group.members = frozenset((1,))
    controller.group.set_epoch += 1
    first.restart()
    second.restart()

    def refusal() -> str | None:
        client = second.node.status().client
        return client.verdict if client is not None and "CUT_REFUSED" in client.verdict else None

    verdict = eventually("a refusal", refusal, logs=second.node.log)
    second.node.stop()
    assert second.log_bytes() == confirmed
    # The operator gives them up.
    found = re.search(r"trioha\.haAcceptCut=(\d+)", verdict)
    second.restart(**{"trioha.haAcceptCut": found[1]})
    controller.wait_for_set(BOTH)
    first.stored(10)
    stop_equal(first, second)


@pytest.mark.full
@pytest.mark.parametrize(
    "flush_disk_type", ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=pytest.mark.nightly)]
)
def test_a_master_that_lost_power_and_is_back_at_once_follows_who_has_more(
    controller, join, tmp_path, flush_disk_type
):
    """The controllers have not noticed anything, and its slave has confirmed bytes that its disk has lost."""
    first = join("first", flushDiskType=flush_disk_type)
    first.stored(50)
    second = join("second", flushDiskType=flush_disk_type)
    controller.wait_for_set(BOTH)
    first.stored(10)
    shutil.copytree(first.root, tmp_path / "on disk")
    lost = first.epochs().max_offset
    first.stored(50)
    end = first.epochs().max_offset
    second.node.wait(max_offset=end)
    first.node.kill()
    shutil.rmtree(first.root)
    shutil.copytree(tmp_path / "on disk", first.root)
    process_id, _, _ = (first.root / "abort").read_text().partition("\n")
    (first.root / "abort").write_text(f"{process_id}\nthe boot before")
    first.restart()
    controller.wait_for_master(2, first)
    controller.notify(2)
    second.stored(50)
    controller.wait_for_set(BOTH)
    second.stored(10)
    starts = [(epoch.epoch, epoch.start_offset) for epoch in second.epochs().epochs]
    assert starts[0] == (1, 0)
    assert [epoch for epoch, _ in starts] == [1, 2]
    assert starts[1][1] >= end > lost
    stop_equal(first, second)
    assert json.loads((first.root / "trioha-doubtful-epoch.json").read_text()) == {"epoch": 1}


@pytest.mark.full
def test_a_cut_that_a_start_completes_is_in_its_session(join, tmp_path):
    member = join("first")
    member.stored(20)
    offset = member.epochs().max_offset
    member.stored(5)
    end = member.epochs().max_offset
    member.node.kill()
    save_cut(member.root / "commitlog", BegunCut(offset, end, EpochTable((EpochEntry(1, 0),))))
    member.restart(**{"trioha.recordDir": tmp_path / "sessions"})
    member.stored(5)
    member.node.stop()
    records = [
        record
        for path in find_sessions([tmp_path / "sessions"])
        for record in read_records(open_session(path)).array
        if record["kind"] == Kind.LOG_CUT
    ]
    assert [(one["offset"], one["aux"], one["size"]) for one in records] == [(offset, end, 1)]


@pytest.mark.full
def test_brokers_of_controllers_that_lost_their_state_go_on_with_their_logs(controller, join):
    """As docs/controller-mode.md says."""
    members = first, second = join("first"), join("second")
    controller.wait_for_set(BOTH)
    first.stored(10)
    controller.elect(1)
    controller.wait_for_set(BOTH)
    first.stored(40)
    assert [epoch.epoch for epoch in first.epochs().epochs] == [1, 2]
    end = first.epochs().max_offset
    second.node.wait(max_offset=end)
    for member in members:
        member.node.stop()
    controller.scripted.group = Group()
    first.restart()
    hint = "restore the state of the controllers"
    first.node.wait_logged(hint)
    assert "CONTROLLER_BROKER_NEED_TO_BE_REGISTERED" in first.node.log()
    assert first.node.load(1).statuses == {"SERVICE_NOT_AVAILABLE": 1}
    first.node.stop()
    # With a new id the epochs tell.
    (first.root / "brokerIdentity").unlink()
    first.restart()
    controller.wait_for_master(1, first)
    first.node.wait_logged("older than its log")
    assert first.node.load(1).statuses == {"SERVICE_NOT_AVAILABLE": 1}
    first.node.stop()
    controller.scripted.group = Group()
    for member in members:
        (member.root / "brokerIdentity").unlink()
        (member.root / "epochFileCheckpoint.bak").unlink(missing_ok=True)
        (member.root / "epochFileCheckpoint").write_text("1\n0\n0-0\n")
    first.restart()
    first.stored(10)
    second.restart()
    controller.wait_for_set(BOTH)
    first.stored(10)
    epochs = [(epoch.epoch, epoch.start_offset) for epoch in first.epochs().epochs]
    assert epochs == [(0, 0), (1, end)]
    stop_equal(first, second)


@pytest.mark.full
def test_transactions_that_are_open_are_decided_at_the_next_master(controller, join):
    first = join("first", **NO_CHECKS)
    controller.wait_for_master(1, first)
    second = join("second", **FAST_CHECKS)
    controller.wait_for_set(BOTH)
    first.stored(1)
    bodies = [b"%d" % number for number in range(24)]
    decisions = {body: (Decision.COMMIT, Decision.ROLLBACK)[number % 2] for number, body in enumerate(bodies)}
    with Wire(first.node.listen_address) as wire:
        opaques = wire.start(*map(half_message, bodies))
        answers = wire.answers(opaques)
        places = {body: place_of(answers[opaque]) for opaque, body in zip(opaques, bodies, strict=True)}
        decided = bodies[:8]
        ended = wire.answers(wire.start(*(end_of(*places[body], decisions[body]) for body in decided)))
        assert {answer.code for answer in ended.values()} == {ResponseCode.SUCCESS}
    # A put that all of the set have comes after the decisions, which wait for nobody.
    first.stored(1)
    first.node.kill()
    controller.elect(2)
    second.stored(1)
    # Halfs are where they were: producers may decide before they are asked.
    by_themselves = bodies[8:12]
    with Wire(second.node.listen_address) as wire:
        for body in by_themselves:
            answer = wire.ask(end_of(*places[body], decisions[body]))
            assert answer.code == ResponseCode.SUCCESS, answer
    undecided = set(bodies[12:])
    assert decide_by_checks(second.node, decisions, undecided) == undecided
    committed = {body for body, decision in decisions.items() if decision is Decision.COMMIT}
    assert delivered(second.node) == dict.fromkeys(committed, 1)


@pytest.mark.full
def test_a_node_without_a_controller_waits_and_serves_what_it_has(controller, join):
    controller.scripted.leader, leader = "127.0.0.1:1", controller.scripted.leader
    first = join("first")
    assert first.node.load(1).statuses == {"SERVICE_NOT_AVAILABLE": 1}
    assert first.epochs().broker_id == -1
    assert first.node.status().role == "SLAVE"
    controller.scripted.leader = leader
    first.stored(10)
    assert (first.root / "brokerIdentity").read_text() == "interop#broker-x#1"

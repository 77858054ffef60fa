"""The agent with a scripted controllers' group, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.controller.scripted import CLUSTER, NAME, Fault, ScriptedControllers
from tests.controller.support import ADDRESSES, OTHER, OWN, Bench, bench, running_agent
from trioha.controller import protocol
from trioha.controller.agent_status import AgentState, Offsets, SetDecision
from trioha.controller.bodies import MemberSet
from trioha.controller.heartbeats import RESIGNED_TIMEOUT_MS
from trioha.controller.identity import Application, IdentityFiles
from trioha.controller.role import Role
from trioha.errors import RemoteProtocolError
from trioha.remoting.codes import RequestCode as Code
from trioha.remoting.codes import ResponseCode


@pytest.fixture
async def running(tmp_path: Path, autojump_clock: MockClock) -> AsyncIterator[Bench]:
    """An agent that was elected: broker 1 of epoch 1."""
    async with bench(tmp_path) as started:
        await trio.sleep(0.5)
        yield started


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def decided(*members: int, set_epoch: int, is_confirmed: bool = True) -> SetDecision:
    return SetDecision(members=frozenset(members), set_epoch=set_epoch, is_confirmed=is_confirmed)


async def test_first_broker_takes_an_id_and_is_elected(
    running: Bench, autojump_clock: MockClock, tmp_path: Path
) -> None:
    assert running.agent.role == Role(
        is_master=True,
        epoch=1,
        broker_id=1,
        master_id=1,
        master_address=OWN,
        sync_state_set=frozenset((1,)),
        sync_state_set_epoch=1,
    )
    assert running.roles == [running.agent.role]
    assert running.controllers.requests == [
        Code.CONTROLLER_GET_NEXT_BROKER_ID,
        Code.CONTROLLER_APPLY_BROKER_ID,
        Code.CONTROLLER_REGISTER_BROKER,
        Code.CONTROLLER_ELECT_MASTER,
    ]
    assert running.agent.leader == "c0:1"
    assert (tmp_path / "brokerIdentity").read_text() == "check#broker-x#1"


async def test_later_broker_follows_the_master(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with bench(tmp_path, leader=None) as running:
        running.elect_other()
        running.controllers.leader = "c1:1"
        await trio.sleep(2.5)
        role = running.role
        assert (role.is_master, role.broker_id, role.master_id, role.master_address) == (False, 10, 9, OTHER)
        assert Code.CONTROLLER_ELECT_MASTER not in running.controllers.requests


async def test_heartbeats_reach_every_controller_each_second(
    running: Bench, autojump_clock: MockClock
) -> None:
    before = len(running.controllers.heartbeats)
    running.offsets = Offsets(epoch=1, max_offset=300, confirm_offset=200)
    await trio.sleep(5)
    later = running.controllers.heartbeats[before:]
    assert [sum(address == each for _, address, _ in later) for each in ADDRESSES] == [5, 5, 5]
    heartbeat = later[-1][2]
    assert (heartbeat.epoch, heartbeat.max_offset, heartbeat.confirm_offset) == (1, 300, 200)
    assert (heartbeat.broker_id, heartbeat.broker_address) == (1, OWN)
    assert (heartbeat.timeout_ms, heartbeat.election_priority) == (10_000, 2**31 - 1)


async def test_a_broker_that_hangs_sends_no_heartbeats_and_asks_for_no_election(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with bench(tmp_path) as running:
        controllers = running.controllers
        await trio.sleep(0.5)
        running.hang = "a sync has begun"
        before = len(controllers.heartbeats)
        controllers.group.master_id = None
        del controllers.requests[:]
        await trio.sleep(20)
        assert len(controllers.heartbeats) == before
        assert Code.CONTROLLER_ELECT_MASTER not in controllers.requests
        # It goes on to ask for its role: another master may be elected.
        assert Code.CONTROLLER_GET_REPLICA_INFO in controllers.requests
        assert running.agent.status().hang == "a sync has begun"
        running.hang = None
        await trio.sleep(10)
        assert len(controllers.heartbeats) > before
        assert Code.CONTROLLER_ELECT_MASTER in controllers.requests
        assert running.agent.status().hang is None


async def test_role_is_asked_for_each_5_seconds(running: Bench, autojump_clock: MockClock) -> None:
    del running.controllers.requests[:]
    await trio.sleep(20)
    assert running.controllers.requests == [Code.CONTROLLER_GET_REPLICA_INFO] * 4


async def test_notice_of_another_master_is_checked_with_the_leader_at_once(
    running: Bench, autojump_clock: MockClock
) -> None:
    running.elect_other()
    running.send_notice()
    await trio.sleep(0.01)
    role = running.role
    assert (role.is_master, role.epoch, role.master_id) == (False, 2, 9)


async def test_forged_notices_change_nothing_and_ask_the_leader_at_most_ten_times_a_second(
    running: Bench, autojump_clock: MockClock
) -> None:
    role = running.agent.role
    forged = protocol.RoleNotice(master_id=7, master_address="evil:1", master_epoch=2**31 - 1, set_epoch=9)
    body = MemberSet(frozenset((7,)), 9).to_body()
    del running.controllers.requests[:]
    for _ in range(995):
        running.agent.role_changed(forged.to_fields(), body)
        await trio.sleep(0.001)
    assert running.controllers.requests == [Code.CONTROLLER_GET_REPLICA_INFO] * 10
    assert running.agent.role == role
    # A true notice among them is not lost.
    running.elect_other()
    running.send_notice()
    await trio.sleep(0.1)
    assert running.role.master_id == 9


async def test_notice_that_does_not_read_is_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with bench(tmp_path) as running:
        for fields, body in (({"masterEpoch": "x"}, b""), ({}, b"[1]")):
            with pytest.raises(RemoteProtocolError):
                running.agent.role_changed(fields, body)


async def test_old_notice_asks_nothing(running: Bench, autojump_clock: MockClock) -> None:
    del running.controllers.requests[:]
    for _ in range(100):
        running.send_notice()
    await trio.sleep(1)
    assert running.controllers.requests == []


async def test_master_that_the_controllers_lost_asks_to_be_elected_again(
    running: Bench, autojump_clock: MockClock
) -> None:
    """As after a silence longer than the heartbeat timeout, with no other member of the set."""
    running.controllers.group.master_id = None
    await trio.sleep(6)
    role = running.role
    assert (role.is_master, role.epoch) == (True, 2)


async def test_broker_outside_of_the_set_waits_for_a_master(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with bench(tmp_path, leader=None) as running:
        running.elect_other()
        group = running.controllers.group
        group.master_id = None
        running.controllers.leader = "c0:1"
        await trio.sleep(30)
        assert running.agent.role is None
        assert "CONTROLLER_ELECT_MASTER_FAILED" in (running.agent.status().refusal or "")
        group.elect(9)
        await trio.sleep(2)
        assert running.role.master_id == 9


async def test_leader_that_moves_is_found_again(running: Bench, autojump_clock: MockClock) -> None:
    role = running.agent.role
    await running.controllers.end("c0:1")
    await trio.sleep(1.5)
    assert running.agent.leader is None
    assert running.agent.role == role
    running.controllers.leader = "c2:1"
    await trio.sleep(1.5)
    assert running.agent.leader == "c2:1"
    assert running.agent.status().controllers[0].reason == "cannot connect: refused"
    assert running.agent.role == role


async def test_leader_that_hangs_is_replaced(running: Bench, autojump_clock: MockClock) -> None:
    running.controllers.hanging.add("c0:1")
    running.controllers.leader = "c1:1"
    # Its next request, 5 s; the answer's timeout, 3 s; the others are asked each second.
    await trio.sleep(10)
    assert running.agent.leader == "c1:1"


async def test_status_says_when_a_leading_controller_last_answered(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with bench(tmp_path, leader=None) as running:
        await trio.sleep(20)
        assert running.agent.status().leader_heard_s is None
        running.controllers.leader = "c0:1"
        await trio.sleep(2)
        first_s = running.agent.status().leader_heard_s
        # It is asked for the role each 5 s.
        await trio.sleep(5)
        heard_s = running.agent.status().leader_heard_s
        assert trio.current_time() - heard_s <= 5 < heard_s - first_s + 1
        running.controllers.hanging.update(ADDRESSES)
        await trio.sleep(60)
        assert running.agent.leader is None
        # Those that do not lead were heard meanwhile: that does not count.
        heard_s = running.agent.status().leader_heard_s
        assert trio.current_time() - heard_s >= 55


async def test_status_counts_the_roles_and_has_the_time_of_the_last(
    running: Bench, autojump_clock: MockClock
) -> None:
    first = running.agent.status()
    assert first.roles == 1
    assert first.role_since_ms <= 500
    running.elect_other()
    await trio.sleep(6)
    second = running.agent.status()
    assert second.roles == 2
    assert 500 < second.role_since_ms <= 6_500
    # Another set is no other role.
    running.controllers.group.members = frozenset((1, 9))
    running.controllers.group.set_epoch += 1
    await trio.sleep(6)
    assert running.role.sync_state_set == {1, 9}
    assert running.agent.status().roles == 2


async def test_answer_not_leader_makes_the_agent_search(running: Bench, autojump_clock: MockClock) -> None:
    running.controllers.leader = "c1:1"
    known = decided(1, set_epoch=1, is_confirmed=False)
    assert await running.propose(1, 2) == known
    assert running.agent.leader is None
    # Not sent at all.
    assert await running.propose(1, 2) == known
    await trio.sleep(1.5)
    assert running.agent.leader == "c1:1"
    assert await running.propose(1, 2) == decided(1, 2, set_epoch=2)


async def test_leader_that_is_not_configured_is_dialled(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with bench(tmp_path, addresses=("c0:1",), leader="c5:1") as running:
        await trio.sleep(3)
        assert running.agent.leader == "c5:1"
        assert running.agent.role is not None
        # Two more moves leave one connection beside the configured one.
        for leader in ("c6:1", "c7:1"):
            running.controllers.leader = leader
            await trio.sleep(15)
            assert running.agent.leader == leader
        assert [link.address for link in running.agent.status().controllers] == ["c0:1", "c7:1"]


async def test_without_controllers_the_broker_waits_and_says_so_once(
    tmp_path: Path, autojump_clock: MockClock, capfd: pytest.CaptureFixture[str]
) -> None:
    async with bench(tmp_path, leader=None) as running:
        running.controllers.down.update(ADDRESSES)
        await trio.sleep(60)
        status = running.agent.status()
        assert (status.state, status.role, status.leader) == (AgentState.NO_ID, None, None)
        assert not any(link.is_connected for link in status.controllers)
        running.controllers.down.clear()
        running.controllers.leader = "c0:1"
        await trio.sleep(3)
        assert running.agent.role is not None
    said = capfd.readouterr()
    assert (said.out + said.err).count("no leading controller") == 1


async def test_set_is_altered_and_becomes_part_of_the_role(running: Bench, autojump_clock: MockClock) -> None:
    decision = await running.propose(1, 2)
    assert decision == decided(1, 2, set_epoch=2)
    await trio.sleep(0.01)
    assert running.agent.role == running.roles[-1]
    assert running.roles[-1].sync_state_set == {1, 2}
    # Nothing would change: refused.
    assert await running.propose(1, 2, set_epoch=2) == decision


async def test_proposal_without_an_answer_is_undecided(running: Bench, autojump_clock: MockClock) -> None:
    running.controllers.fault = lambda code: (
        Fault.UNANSWERED if code is Code.CONTROLLER_ALTER_SYNC_STATE_SET else Fault.NONE
    )
    assert await running.propose(1, 2) is None
    await trio.sleep(10)
    role = running.role
    assert (role.sync_state_set, role.sync_state_set_epoch) == ({1, 2}, 2)


async def test_refused_proposal_says_the_set_that_counts(running: Bench, autojump_clock: MockClock) -> None:
    running.controllers.group.members, running.controllers.group.set_epoch = frozenset((1, 5)), 7
    assert await running.propose(1, 2) == decided(1, 5, set_epoch=7)
    assert running.role.sync_state_set == {1, 5}


async def test_refused_set_brings_the_role_that_counts(running: Bench, autojump_clock: MockClock) -> None:
    running.elect_other()
    # The set of another master is no answer for this one.
    assert await running.propose(1, 9) is None
    role = running.role
    assert (role.is_master, role.master_id) == (False, 9)
    # A slave proposes nothing.
    assert await running.propose(1, 9, set_epoch=2, epoch=2) is None
    assert running.controllers.requests.count(Code.CONTROLLER_ALTER_SYNC_STATE_SET) == 1


async def test_set_of_an_earlier_epoch_is_not_proposed(running: Bench, autojump_clock: MockClock) -> None:
    """The life of epoch 1 still ends while its broker is master of epoch 2."""
    running.controllers.group.elect(1)
    await trio.sleep(6)
    assert running.role.epoch == 2
    assert await running.propose(1, 2, set_epoch=2) is None
    assert Code.CONTROLLER_ALTER_SYNC_STATE_SET not in running.controllers.requests


@pytest.mark.parametrize(
    ("code", "is_decided"),
    [
        (ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, True),
        (ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, True),
        (ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, True),
        (ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR, False),
        (ResponseCode.SYSTEM_ERROR, False),
        (ResponseCode.SYSTEM_BUSY, False),
    ],
)
async def test_code_that_does_not_refuse_a_set_for_good_leaves_it_undecided(
    running: Bench, autojump_clock: MockClock, code: ResponseCode, *, is_decided: bool
) -> None:
    running.controllers.refuse[Code.CONTROLLER_ALTER_SYNC_STATE_SET] = code
    decision = await running.propose(1, 2)
    known = decided(1, set_epoch=1)
    assert decision == (known if is_decided else None)


async def test_refusal_is_not_confirmed_if_the_leader_is_lost_after_it(
    running: Bench, autojump_clock: MockClock
) -> None:
    running.controllers.refuse[Code.CONTROLLER_ALTER_SYNC_STATE_SET] = (
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    )
    running.controllers.fault = lambda code: (
        Fault.CUT if code is Code.CONTROLLER_GET_REPLICA_INFO else Fault.NONE
    )
    decision = await running.propose(1, 2)
    assert decision == decided(1, set_epoch=1, is_confirmed=False)


async def test_id_that_another_broker_took_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with bench(tmp_path, leader=None) as running:

        def take_the_first(code: Code) -> Fault:
            if code is Code.CONTROLLER_APPLY_BROKER_ID:
                running.controllers.group.ids.setdefault(1, "faster")
            return Fault.NONE

        running.controllers.fault = take_the_first
        running.controllers.leader = "c0:1"
        await trio.sleep(3)
        assert running.agent.broker_id == 2
        assert names_in(tmp_path) == ["brokerIdentity"]


async def test_restarted_broker_applies_again_with_its_check_code(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The controllers granted the id, and the broker was killed before it wrote that down."""
    files = IdentityFiles.open(tmp_path / "brokerIdentity", cluster_name=CLUSTER, broker_name=NAME)
    files.apply_for(Application(broker_id=1, check_code="here:10911;77"))
    async with bench(tmp_path) as running:
        running.controllers.group.ids[1] = "here:10911;77"
        await trio.sleep(0.5)
        assert running.agent.broker_id == 1
        assert running.controllers.requests[0] is Code.CONTROLLER_APPLY_BROKER_ID


async def test_restarted_broker_registers_with_its_id(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        controllers = ScriptedControllers(nursery, "c0:1")
        async with running_agent(tmp_path, controllers):
            await trio.sleep(0.5)
        del controllers.requests[:]
        async with running_agent(tmp_path, controllers, epoch=1) as again:
            await trio.sleep(0.5)
            assert again.agent.role is not None
            assert (again.agent.role.is_master, again.agent.role.epoch) == (True, 1)
            assert controllers.requests == [Code.CONTROLLER_REGISTER_BROKER]
        nursery.cancel_scope.cancel()


async def test_controllers_that_lost_their_epochs_give_no_role(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with bench(tmp_path, epoch=5) as running:
        await trio.sleep(3)
        assert running.agent.role is None
        assert "their state is older than its log" in (running.agent.status().refusal or "")


@asynccontextmanager
async def back_after_power_loss(folder: Path, *, members: frozenset[int]) -> AsyncIterator[Bench]:
    """A master of epoch 4 starts, and the controllers have noticed nothing; broker 9 lives."""
    files = IdentityFiles.open(folder / "brokerIdentity", cluster_name=CLUSTER, broker_name=NAME)
    files.apply_for(Application(broker_id=1, check_code="here:10911;77"))
    files.grant()
    async with bench(folder, leader=None, epoch=4, doubtful_epoch=4) as running:
        group = running.controllers.group
        group.ids[1], group.addresses[1] = "here:10911;77", OWN
        group.alive.add(1)
        running.elect_other()
        group.master_id, group.epoch, group.members, group.set_epoch = 1, 4, members, 6
        running.controllers.leader = "c0:1"
        yield running


async def test_a_master_that_lost_power_has_another_one_elected(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with back_after_power_loss(tmp_path, members=frozenset((1, 9))) as running:
        # Between two heartbeats.
        await trio.sleep(3.5)
        role = running.role
        assert (role.is_master, role.master_id, role.epoch) == (False, 9, 5)
        assert [one.epoch for one in running.roles] == [5]
        assert running.agent.status().refusal is None
        # To the controllers it was not alive when it asked for the election, and is now.
        timeouts = [one.timeout_ms for _, address, one in running.controllers.heartbeats if address == "c0:1"]
        assert RESIGNED_TIMEOUT_MS in timeouts
        assert timeouts[-1] == 10_000
        assert 1 in running.controllers.group.alive


async def test_a_master_that_lost_power_and_is_the_only_member_is_elected_anew(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with back_after_power_loss(tmp_path, members=frozenset((1,))) as running:
        await trio.sleep(1.5)
        assert running.agent.role is None
        await trio.sleep(5)
        role = running.role
        assert (role.is_master, role.epoch) == (True, 5)
        assert [one.epoch for one in running.roles] == [5]


async def test_a_master_that_lost_power_says_once_why_it_has_no_role(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with back_after_power_loss(tmp_path, members=frozenset((1, 9))) as running:
        # No controller decides.
        running.controllers.refuse[Code.CONTROLLER_ELECT_MASTER] = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
        await trio.sleep(1.5)
        assert running.agent.role is None
        assert "may have lost the end of that epoch" in (running.agent.status().refusal or "")
        await trio.sleep(60)
        assert running.agent.role is None
        assert "may have lost the end of that epoch" in (running.agent.status().refusal or "")
        assert capsys.readouterr().out.count("refused by the controllers") == 1
        # It asks again and again, but no more than needed.
        assert 20 < running.controllers.requests.count(Code.CONTROLLER_ELECT_MASTER) <= 60
        running.controllers.refuse.clear()
        await trio.sleep(3)
        assert running.agent.role is not None


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    ],
)
async def test_broker_that_the_controllers_do_not_know_registers_again(
    running: Bench, autojump_clock: MockClock, code: ResponseCode
) -> None:
    running.controllers.refuse[Code.CONTROLLER_GET_REPLICA_INFO] = code
    await trio.sleep(5)
    running.controllers.refuse.clear()
    await trio.sleep(3)
    assert running.controllers.requests.count(Code.CONTROLLER_REGISTER_BROKER) == 2
    assert running.agent.status().refusal is None


FAULTS = st.lists(st.sampled_from(list(Fault)), max_size=12)


@given(faults=FAULTS, moves=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=4))
@pytest.mark.timeout(1200)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lost_late_and_cut_answers_end_in_one_id_and_the_latest_role(
    tmp_path_factory: pytest.TempPathFactory, faults: list[Fault], moves: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("agent")

    async def scenario() -> None:
        async with bench(folder) as running:
            left = list(faults)
            running.controllers.fault = lambda _: left.pop() if left else Fault.NONE
            for leader, pause_s in moves:
                await trio.sleep(pause_s)
                running.controllers.leader = ADDRESSES[leader]
                if pause_s % 3 == 0 and running.controllers.group.master_id == 1:
                    running.elect_other()
                    running.send_notice()
            left.clear()
            await trio.sleep(20)
            group, role = running.controllers.group, running.agent.role
            assert (role.epoch, role.master_id) == (group.epoch, group.master_id)
            assert (role.sync_state_set, role.sync_state_set_epoch) == (group.members, group.set_epoch)
            assert {broker_id for broker_id in group.ids if broker_id != 9} == {running.agent.broker_id}
            epochs = [(each.epoch, each.sync_state_set_epoch) for each in running.roles]
            assert epochs == sorted(set(epochs))

    trio.run(scenario, clock=MockClock(autojump_threshold=0))

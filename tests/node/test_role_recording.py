"""What is recorded of controller mode, in virtual time: roles, sets, cuts, confirm offset, controllers."""

import pytest
import trio
from attrs import frozen

from tests.controller.support import ADDRESSES, bench
from tests.ha.autoswitch.support import begin_epoch, open_epoch_store, put
from tests.ha.support import Events, settled
from trioha.config.broker import BrokerConfig
from trioha.controller.role import Role
from trioha.ha.sync_state_set import Proposal, SyncStateSet
from trioha.node.role_recording import (
    SetRecorder,
    record_changes,
    record_completed_cut,
    record_role,
    recorded_cut,
)
from trioha.node.roles import Control
from trioha.recording.events import OLD_ROLE_SHIFT, GroupRole, Kind, SetEvent
from trioha.store.cut_marker import BegunCut, save_cut
from trioha.store.message_store import MessageStore

ALL_ACK = BrokerConfig(all_ack_in_sync_state_set=True)


@pytest.fixture
def store(tmp_path):
    """Two messages of epoch 1, one of epoch 2."""
    opened: MessageStore = open_epoch_store(tmp_path / "store")
    begin_epoch(opened, 1)
    put(opened, b"a" * 100, b"b" * 100)
    begin_epoch(opened, 2)
    put(opened, b"c" * 100)
    return opened


def role_of(members: frozenset[int] = frozenset((1, 2)), *, is_master: bool = True) -> Role:
    return Role(
        is_master=is_master,
        epoch=2,
        broker_id=1,
        master_id=1 if is_master else 2,
        master_address="m:10911",
        sync_state_set=members,
        sync_state_set_epoch=7,
    )


async def test_a_role_is_recorded_with_what_a_record_has_no_room_for(store, tmp_path, autojump_clock):
    async with bench(tmp_path) as one:
        events = Events()
        former = role_of(is_master=False)
        record_role(events, store, Control(agent=one.agent, role=role_of(), former=former))
        end, start = store.commit_log.max_offset, store.epochs.entries[-1].start_offset
        flags = GroupRole.MASTER | GroupRole.SLAVE << OLD_ROLE_SHIFT
        assert events.of(Kind.ROLE) == [(Kind.ROLE, -1, end, 2, 1, flags)]
        assert events.of(Kind.EPOCH) == [(Kind.EPOCH, -1, start, 2, 1, GroupRole.MASTER)]
        ((*_, set_epoch, size, event),) = events.of(Kind.SYNC_STATE_SET)
        assert (set_epoch, size, event) == (7, 2, SetEvent.CHANGED)
        facts = dict(events.facts)
        assert facts["role"] == {
            "role": "MASTER",
            "former": "SLAVE",
            "epoch": 2,
            "brokerId": 1,
            "masterId": 1,
            "masterAddress": "m:10911",
            "maxOffset": end,
        }
        assert facts["sync_state_set"] == {"event": "CHANGED", "members": [1, 2], "setEpoch": 7}
        waiting = Events()
        record_role(waiting, store, Control(agent=one.agent))
        assert [(event[0], event[3], event[5]) for event in waiting.seen] == [(Kind.ROLE, -1, GroupRole.NONE)]


async def test_the_confirm_offset_is_recorded_each_200_ms_if_it_moved_and_at_the_end(
    store, tmp_path, autojump_clock
):
    confirm = [10]
    store.checkpoints.follow_confirm_offset(lambda: confirm[0])
    async with bench(tmp_path) as one, trio.open_nursery() as nursery:
        events = Events()
        control = Control(agent=one.agent, role=role_of())
        nursery.start_soon(record_changes, events, store, control, ALL_ACK)
        for _ in range(1000):
            # As with a put each ms.
            await trio.sleep(0.001)
            confirm[0] += 1
        await trio.sleep(10)
        assert events.of(Kind.CONFIRMED)[0][2] == 10
        assert len(events.of(Kind.CONFIRMED)) == 7
        confirm[0] += 5
        nursery.cancel_scope.cancel()
    *_, last = events.of(Kind.CONFIRMED)
    assert last[2:4] == (1015, store.commit_log.max_offset)


@frozen
class Case:
    """A life, and whether its confirm offset says something."""

    role: Role | None
    config: BrokerConfig
    is_recorded: bool


@pytest.mark.parametrize(
    "case",
    [
        Case(None, ALL_ACK, False),
        Case(role_of(), ALL_ACK, True),
        Case(role_of(), BrokerConfig(), False),
        Case(role_of(is_master=False), BrokerConfig(), True),
    ],
)
async def test_a_confirm_offset_is_recorded_only_where_it_is_one(store, tmp_path, case, autojump_clock):
    store.checkpoints.follow_confirm_offset(lambda: 10)
    async with bench(tmp_path) as one, trio.open_nursery() as nursery:
        events = Events()
        control = Control(agent=one.agent, role=case.role)
        nursery.start_soon(record_changes, events, store, control, case.config)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert bool(events.of(Kind.CONFIRMED)) is case.is_recorded


async def test_each_change_of_the_leading_controller_is_recorded_with_its_address(
    store, tmp_path, autojump_clock
):
    async with bench(tmp_path) as one, trio.open_nursery() as nursery:
        await trio.sleep(5)
        events = Events()
        nursery.start_soon(record_changes, events, store, Control(agent=one.agent), ALL_ACK)
        await settled()
        await one.controllers.end(ADDRESSES[0])
        await trio.sleep(5)
        one.controllers.leader = ADDRESSES[1]
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert [event[5] for event in events.of(Kind.CONTROLLER)] == [1, 0, 1]
    assert events.facts == [("controller", {"address": address}) for address in ADDRESSES[:2]]


def test_a_cut_is_recorded_for_each_epoch_that_lost_bytes(store):
    events = Events()
    end = store.commit_log.max_offset
    second = store.epochs.entries[-1].start_offset
    # The first record's end: one more of epoch 1 is cut, and all of epoch 2.
    at = store.commit_log.starts.first_from(1)
    for step in recorded_cut(events, store)(at):
        assert events.of(Kind.LOG_CUT) == []
        step()
    assert store.commit_log.max_offset == at
    assert [event[2:5] for event in events.of(Kind.LOG_CUT)] == [(at, second, 1), (second, end, 2)]


def test_a_cut_that_a_start_has_completed_is_recorded_once(store):
    """With the epochs that the log had before: those of the cut bytes are gone by then."""
    end, table = store.commit_log.max_offset, store.epochs.table
    second = table.entries[-1].start_offset
    at = store.commit_log.starts.first_from(1)
    root = store.settings.root
    save_cut(store.commit_log.directory, BegunCut.of(at, end, table))
    store.epochs.truncate_suffix(at)
    store.release()
    again = open_epoch_store(root)
    assert again.commit_log.max_offset == at
    events = Events()
    record_completed_cut(events, again)
    record_completed_cut(events, again)
    assert [event[2:5] for event in events.seen] == [(at, second, 1), (second, end, 2)]
    again.release()
    nothing = Events()
    record_completed_cut(nothing, open_epoch_store(root))
    assert nothing.seen == []


def test_a_cut_that_fails_is_not_recorded(store, monkeypatch):
    def fail(_: int) -> None:
        raise OSError("disk")

    monkeypatch.setattr(store.cutter, "steps", fail)
    events = Events()
    with pytest.raises(OSError, match="disk"):
        list(recorded_cut(events, store)(1))
    assert events.seen == []


@frozen
class Answer:
    """What a controller has after a proposal."""

    members: frozenset[int]
    set_epoch: int
    is_confirmed: bool = True


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        (None, SetEvent.UNDECIDED),
        (Answer(frozenset((1,)), 7), SetEvent.REFUSED),
        (Answer(frozenset((1, 2)), 8), None),
    ],
)
async def test_what_became_of_a_proposal_is_recorded(answer, event):
    events = Events()
    known = SyncStateSet(
        1,
        members=frozenset((1,)),
        set_epoch=7,
        epoch_start_offset=0,
        confirm_offset=0,
        log_end=lambda: 50,
    )
    recorder = SetRecorder(events, set_epoch=7)
    proposal = Proposal(frozenset((1, 2)), 7)
    recorder.proposed(known, proposal)

    async def alter(_members: frozenset[int], _known_epoch: int) -> Answer | None:
        await trio.lowlevel.checkpoint()
        return answer

    assert await recorder.asking(known, alter)(proposal.members, proposal.known_epoch) is answer
    first = (Kind.SYNC_STATE_SET, -1, 50, 7, 2, SetEvent.PROPOSED)
    assert events.seen == [first, *([] if event is None else [(*first[:5], event)])]
    # The set itself is recorded when it is known, once.
    recorder.changed(known)
    known.decided(frozenset((1, 2)), 8)
    recorder.changed(known)
    recorder.changed(known)
    assert events.seen[-1] == (Kind.SYNC_STATE_SET, -1, 50, 8, 2, SetEvent.CHANGED)
    assert len(events.of(Kind.SYNC_STATE_SET)) == (2 if event is None else 3)
    assert events.facts[-1] == ("sync_state_set", {"event": "CHANGED", "members": [1, 2], "setEpoch": 8})

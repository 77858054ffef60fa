"""The sync-state set, against a controller that accepts, refuses, is slow, or whose answers are lost."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from attrs import define, field
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trioha.ha.meter import LagClock
from trioha.ha.set_link import JOIN_LAG_BYTES, JOIN_LAG_S
from trioha.ha.sync_state_set import (
    JOIN_AGAIN_S,
    JOIN_S,
    RETRY_S,
    UNCERTAIN_S,
    Proposal,
    SetObserver,
    SyncStateSet,
)
from trioha.watermark import Watermark

OWN = 1


@define
class Notes(SetObserver):
    """What a set has said of itself."""

    proposals: list[Proposal] = field(factory=list)
    joins: list[float | None] = field(factory=list)
    """`joins_until_s` after each join."""
    changes: list[tuple[frozenset[int], frozenset[int]]] = field(factory=list)
    """Members and required replicas after each change."""

    def proposed(self, _set, proposal):
        self.proposals.append(proposal)

    def changed(self, changed):
        self.changes.append((changed.members, changed.required))

    def joined(self, joined):
        self.joins.append(joined.joins_until_s)


@define
class Master:
    """A set with a log that is only a number, and connections that are only lag clocks."""

    members: frozenset[int] = frozenset({OWN})
    all_ack: bool = True
    confirm_offset: int = 0
    max_offset: int = 1000
    epoch_start_offset: int = 1000
    flushed: Watermark | None = None
    slave_timeout_s: float = 3.0
    now_s: float = 100.0
    notes: Notes = field(factory=Notes)
    clocks: dict[int, LagClock] = field(factory=dict)
    connection_ids: dict[int, int] = field(factory=dict)
    set: SyncStateSet = field(init=False)

    def __attrs_post_init__(self):
        self.set = SyncStateSet(
            OWN,
            members=self.members,
            set_epoch=5,
            epoch_start_offset=self.epoch_start_offset,
            confirm_offset=self.confirm_offset,
            log_end=lambda: self.max_offset,
            observers=(self.notes,),
            all_ack=self.all_ack,
            flushed=self.flushed,
            slave_timeout_s=self.slave_timeout_s,
        )

    def append(self, size=100):
        self.max_offset += size
        for clock in self.clocks.values():
            clock.appended(self.max_offset, self.now_s)

    def connect(self, broker_id, *, is_learner=False, connection_id=None):
        self.connection_ids[broker_id] = connection_id or 10 * broker_id
        self.clocks[broker_id] = LagClock()
        self.clocks[broker_id].appended(self.max_offset, self.now_s)
        self.set.connected(
            broker_id,
            connection_id=self.connection_ids[broker_id],
            is_learner=is_learner,
            now_s=self.now_s,
        )

    def ack(self, broker_id, offset=None):
        offset = self.max_offset if offset is None else offset
        self.clocks[broker_id].acknowledged(offset)
        self.set.acknowledged(
            broker_id,
            offset,
            connection_id=self.connection_ids[broker_id],
            lag_clock=self.clocks[broker_id],
            now_s=self.now_s,
        )

    def come(self, broker_id, offset=None):
        """Connect with a log that ends at `offset`, or has all."""
        self.connect(broker_id)
        self.ack(broker_id, offset)

    def disconnect(self, broker_id):
        del self.clocks[broker_id]
        self.set.disconnected(broker_id, connection_id=self.connection_ids.pop(broker_id), now_s=self.now_s)

    def tick(self, after_s=5.0):
        self.now_s += after_s
        self.set.tick(self.now_s)

    def accept(self):
        proposal = self.notes.proposals.pop()
        self.set.decided(proposal.members, proposal.known_epoch + 1)

    def refuse(self, **options):
        """The controller refuses, and says at once that it has the known set; or as `options` say."""
        confirmed_s = options.get("confirmed_s", self.now_s)
        self.set.refused(self.notes.proposals.pop(), confirmed_s=confirmed_s, now_s=self.now_s)

    def join(self, *broker_ids):
        for broker_id in broker_ids:
            self.come(broker_id)
            self.accept()

    @property
    def proposed(self):
        return [set(proposal.members) for proposal in self.notes.proposals]


def with_newcomer(offset=None):
    """A lone master, and broker 2, which is no member yet."""
    master = Master()
    master.come(2, offset)
    return master


def with_members(*broker_ids):
    """A master whose set has grown."""
    master = Master()
    master.join(*broker_ids)
    return master


# -- growing ---------------------------------------------------------------------------------------------


def test_a_slave_that_has_caught_up_is_proposed_once():
    master = Master()
    master.connect(2)
    assert master.notes.proposals == []
    master.ack(2)
    master.ack(2)
    assert master.notes.proposals == [Proposal(frozenset({1, 2}), known_epoch=5)]
    master.accept()
    assert (master.set.members, master.set.set_epoch) == ({1, 2}, 6)
    assert not master.notes.proposals


def test_a_slave_below_the_confirm_offset_is_not_proposed():
    master = Master()
    master.connect(2)
    master.now_s += 1
    master.ack(2, 999)
    assert master.notes.proposals == []
    master.append()
    master.ack(2, 1000 - 1)
    assert master.notes.proposals == [], "alone, the master has confirmed its whole log"
    master.ack(2, 1100)
    assert master.proposed == [{1, 2}]


# -- joining ---------------------------------------------------------------------------------------------


def test_a_slave_that_never_holds_the_logs_end_comes_in_under_steady_load():
    """Each ack is of bytes that others have followed: RocketMQ's slave would wait for a pause of the puts."""
    master = Master()
    master.connect(2)
    for _ in range(1000):
        held = master.max_offset
        master.append()
        master.ack(2, held - 50)
        assert master.clocks[2].oldest_s is not None
        master.now_s += 0.0005
        if master.notes.proposals:
            break
    assert master.proposed == [{1, 2}]
    assert held - 50 >= master.set.confirm_offset


@pytest.mark.parametrize("all_ack", [True, False])
def test_puts_are_confirmed_by_a_joining_slave_too_which_is_no_member_yet(all_ack):
    master = Master(all_ack=all_ack)
    master.come(2, 900)
    assert (master.set.is_alone, master.set.required, master.set.size) == (False, {1}, 1)
    master.append()
    assert master.set.confirm.offset == 1000
    assert master.set.confirm_offset == (1000 if all_ack else 1100)
    assert master.set.limit is (master.set.confirm if all_ack else None)
    master.ack(2, 999)
    assert master.notes.proposals == []
    master.ack(2, 1000)
    assert (master.proposed, master.set.required) == ([{1, 2}], {1, 2})
    master.ack(2, 1050)
    assert master.set.confirm.offset == 1050


def test_without_all_ack_a_joining_slave_has_to_hold_the_logs_end_of_when_it_began_to_join():
    """The log's end itself, which RocketMQ asks for, it would hardly ever hold under load."""
    master = Master(all_ack=False)
    master.append()
    master.come(2, 1050)
    assert not master.set.is_alone
    master.append()
    master.ack(2, 1099)
    assert master.notes.proposals == []
    master.ack(2, 1100)
    assert master.proposed == [{1, 2}]


def test_a_joining_slave_that_is_not_there_in_time_holds_up_no_put_longer():
    master = Master()
    master.come(2, 900)
    assert master.notes.joins == [master.now_s + JOIN_S]
    master.append()
    master.now_s += JOIN_S - 0.01
    master.set.end_joins(master.now_s)
    assert master.set.confirm_offset == 1000
    master.now_s += 0.01
    master.set.end_joins(master.now_s)
    assert (master.set.is_alone, master.set.confirm_offset) == (True, 1100)
    assert master.set.joins_until_s is None
    # It tries again later, as near as it was.
    for after_s, is_joining in ((JOIN_AGAIN_S - 0.01, False), (0.01, True)):
        master.now_s += after_s
        master.clocks[2] = LagClock()
        master.append()
        master.ack(2, master.max_offset - 1)
        assert master.set.is_alone is not is_joining


@pytest.mark.parametrize(("slave_timeout_s", "join_s"), [(0.3, 0.1), (3.0, JOIN_S), (30.0, JOIN_S)])
def test_puts_wait_for_a_joining_slave_for_a_third_of_their_time_at_most(slave_timeout_s, join_s):
    master = Master(slave_timeout_s=slave_timeout_s)
    master.come(2, 900)
    assert master.set.joins_until_s == pytest.approx(master.now_s + join_s)
    master.append()
    master.now_s += join_s + 0.001
    master.set.end_joins(master.now_s)
    assert master.set.confirm_offset == 1100


def test_a_slave_that_is_lost_while_it_joins_holds_up_no_put():
    master = with_newcomer(900)
    master.append()
    master.disconnect(2)
    assert (master.set.is_alone, master.set.confirm_offset) == (True, 1100)
    # Nor does one that comes back again and again.
    master.come(2, 900)
    assert master.set.is_alone


@pytest.mark.parametrize("why", ["time", "bytes", "learner"])
def test_a_slave_that_is_far_from_the_end_does_not_join(why):
    master = Master(max_offset=1 << 30, epoch_start_offset=0)
    master.connect(2, is_learner=why == "learner")
    master.now_s += JOIN_LAG_S + 0.01 if why == "time" else 0
    master.ack(2, master.max_offset - JOIN_LAG_BYTES - 1 if why == "bytes" else master.max_offset - 1)
    assert master.set.is_alone


def test_several_slaves_join_and_come_in_one_after_the_other():
    master = Master()
    for broker_id in (2, 3):
        master.come(broker_id, 900)
    master.append()
    master.ack(2)
    assert master.proposed == [{1, 2}]
    assert master.set.confirm_offset == 1000, "3 joins still"
    master.accept()
    master.append()
    master.ack(3, 1100)
    assert master.proposed == [{1, 2, 3}]


def test_a_refused_slave_holds_up_no_put_until_it_is_asked_for_again():
    master = with_newcomer(900)
    master.ack(2, 1000)
    master.refuse()
    master.append()
    assert (master.set.is_alone, master.set.confirm_offset) == (True, 1100)


def test_with_another_member_a_slave_comes_in_at_the_confirm_offset_not_at_the_logs_end():
    master = with_members(2)
    master.append()
    master.come(3, 999)
    assert master.notes.proposals == []
    master.ack(3, 1000)
    assert master.set.confirm_offset == 1000 < master.max_offset
    assert master.proposed == [{1, 2, 3}]


@pytest.mark.parametrize(("confirm_offset", "epoch_start_offset"), [(500, 1000), (0, 0)])
def test_a_slave_below_the_logs_end_of_when_this_life_began_is_not_proposed(
    confirm_offset, epoch_start_offset
):
    """After a restart the checkpoint's confirm offset is older than what the life before has confirmed."""
    master = Master(
        members=frozenset({1, 2}), confirm_offset=confirm_offset, epoch_start_offset=epoch_start_offset
    )
    master.come(3, 500)
    master.ack(3, 999)
    assert (master.notes.proposals, master.set.confirm_offset) == ([], confirm_offset)
    master.ack(3, 1000)
    assert master.proposed == [{1, 2, 3}]


def test_a_higher_epoch_of_the_same_master_raises_what_a_newcomer_must_hold():
    master = Master(members=frozenset({1, 2}), confirm_offset=500)
    master.append(500)
    master.set.epoch_start_offset = 1500
    master.come(3, 1400)
    assert master.notes.proposals == []
    master.ack(3, 1500)
    assert master.proposed == [{1, 2, 3}]


def test_an_async_learner_is_never_proposed():
    master = Master()
    master.connect(2, is_learner=True)
    master.ack(2)
    master.tick()
    assert master.notes.proposals == []


def test_a_member_that_comes_back_as_a_learner_leaves():
    master = with_members(2)
    master.connect(2, is_learner=True)
    master.ack(2)
    master.tick()
    assert master.proposed == [{1}]


def test_a_learner_that_comes_back_as_a_replica_is_proposed():
    master = Master()
    master.connect(2, is_learner=True)
    master.ack(2)
    master.disconnect(2)
    master.connect(2)
    assert master.notes.proposals == []
    master.ack(2)
    assert master.proposed == [{1, 2}]


def test_a_slave_that_caught_up_while_a_proposal_was_open_is_proposed_at_the_next_tick():
    master = with_newcomer()
    master.come(3)
    master.accept()
    assert master.notes.proposals == []
    master.ack(2)
    master.tick()
    assert master.proposed == [{1, 2, 3}]


# -- shrinking -------------------------------------------------------------------------------------------


def test_a_member_that_never_connected_is_removed_at_the_first_tick():
    master = Master(members=frozenset({1, 2, 3}))
    master.come(2)
    master.tick(3.0)
    assert master.proposed == [{1, 2}]


def test_a_member_leaves_at_once_when_its_connection_is_lost():
    master = with_members(2)
    master.disconnect(2)
    assert master.proposed == [{1}]


@pytest.mark.parametrize(("silent_s", "proposed"), [(15.0, []), (15.01, [{1}])])
def test_a_member_whose_oldest_unacknowledged_byte_is_older_than_15_s_is_removed(silent_s, proposed):
    master = with_members(2)
    master.append()
    master.tick(silent_s)
    assert master.proposed == proposed


def test_an_idle_member_that_holds_everything_stays():
    master = with_members(2)
    master.tick(3600.0)
    assert master.notes.proposals == []
    master.append()
    master.tick(10.0)
    assert master.notes.proposals == [], "its ack is due for 10 s only"


def test_two_members_lost_one_after_the_other_leave_one_after_the_other():
    master = with_members(2, 3)
    master.disconnect(2)
    master.disconnect(3)
    assert master.proposed == [{1, 3}]
    master.accept()
    assert master.proposed == [{1}], "looked at again at the end of the first proposal"


def test_the_end_of_a_replaced_connection_removes_nobody():
    master = with_members(2)
    old = master.connection_ids[2]
    master.connect(2, connection_id=99)
    master.set.disconnected(2, connection_id=old, now_s=master.now_s)
    master.set.acknowledged(2, 10**9, connection_id=old, lag_clock=LagClock(), now_s=master.now_s)
    assert master.notes.proposals == []
    assert master.set.confirm_offset == 1000


# -- proposals -------------------------------------------------------------------------------------------


def test_who_is_proposed_is_required_before_the_answer():
    master = with_newcomer()
    assert master.set.members == {1}
    assert master.set.required == {1, 2}
    master.append()
    assert master.set.confirm_offset == 1000, "the controller may have elected 2 already"
    master.ack(2)
    assert master.set.confirm_offset == 1100


def test_who_is_to_leave_is_required_until_the_controller_has_agreed():
    master = with_members(2)
    master.disconnect(2)
    master.append()
    assert (master.set.required, master.set.confirm_offset) == ({1, 2}, 1000)
    master.accept()
    assert (master.set.required, master.set.confirm_offset) == ({1}, 1100)


def test_size_is_that_of_the_larger_set_while_a_proposal_is_open():
    master = Master()
    assert master.set.size == 1
    master.come(2)
    assert master.set.size == 2
    master.accept()
    master.disconnect(2)
    assert master.set.size == 2
    master.accept()
    assert master.set.size == 1


def test_a_refused_newcomer_is_no_longer_required_and_asked_for_again_a_second_later():
    master = with_newcomer()
    master.refuse()
    assert master.set.required == {1}
    master.now_s += 0.99
    master.ack(2)
    assert master.notes.proposals == []
    master.now_s += 0.01
    master.ack(2)
    assert master.proposed == [{1, 2}]


def test_a_lost_member_leaves_although_the_controller_refuses_another_replica():
    """A replica that holds everything and is not alive to the controller, whom it cannot reach."""
    master = Master(members=frozenset({1, 3}), confirm_offset=1000)
    for broker_id in (2, 3):
        master.come(broker_id)
    refused = master.notes.proposals[-1]
    assert refused.members == {1, 2, 3}
    master.set.refused(refused, confirmed_s=master.now_s, now_s=master.now_s)
    # Within the time in which nothing is proposed.
    master.disconnect(3)
    assert master.set.open_proposal is None
    master.now_s += 1.0
    master.append()
    master.ack(2)
    assert master.notes.proposals[-1].members == {1}
    master.set.decided(frozenset({1}), 6)
    master.append()
    master.ack(2)
    assert master.notes.proposals[-1].members == {1, 2}


def test_a_newcomer_whose_proposals_answer_was_lost_stays_required():
    master = with_newcomer()
    master.set.lost(master.notes.proposals.pop(), now_s=master.now_s)
    master.disconnect(2)
    master.append()
    assert (master.set.required, master.set.confirm_offset) == ({1, 2}, 1000)
    # Not even if a controller says that it has the known set: the request may be on its way still.
    master.tick()
    assert master.proposed == [{1}], "the answer to any proposal tells what became of the lost one"
    master.refuse()
    assert master.set.required == {1, 2}
    master.tick(UNCERTAIN_S)
    master.refuse()
    assert (master.set.required, master.set.confirm_offset) == ({1}, 1100)


def test_nothing_is_proposed_for_a_second_after_a_lost_answer():
    master = with_newcomer()
    master.set.lost(master.notes.proposals.pop(), now_s=master.now_s)
    for after_s, proposed in ((0.0, []), (RETRY_S - 0.01, []), (0.01, [{1, 2}])):
        master.now_s += after_s
        master.ack(2)
        master.set.tick(master.now_s)
        assert master.proposed == proposed


def test_an_uncertain_newcomer_stays_required_while_no_controller_says_otherwise():
    master = with_newcomer()
    master.set.lost(master.notes.proposals.pop(), now_s=master.now_s)
    master.disconnect(2)
    for _ in range(10):
        master.tick(UNCERTAIN_S)
        master.refuse(confirmed_s=None)
    assert (master.set.required, master.set.is_alone) == ({1, 2}, False)
    master.tick()
    master.refuse()
    assert master.set.required == {1}


def test_an_answer_to_a_question_of_less_than_10_s_after_the_lost_one_ends_no_uncertainty():
    """What counts is when the controller was asked, not when its answer came."""
    master = with_newcomer()
    lost_s = master.now_s
    master.set.lost(master.notes.proposals.pop(), now_s=lost_s)
    master.tick(UNCERTAIN_S + 2)
    master.refuse(confirmed_s=lost_s + UNCERTAIN_S - 0.1)
    assert master.set.required == {1, 2}
    master.tick()
    master.refuse(confirmed_s=lost_s + UNCERTAIN_S)
    assert master.set.required == {1}


def test_a_set_without_the_master_is_of_another_one_and_changes_nothing():
    master = with_members(2)
    master.set.decided(frozenset({2}), 7)
    assert (master.set.members, master.set.set_epoch) == ({1, 2}, 6)


def test_a_later_set_ends_uncertainty():
    master = with_newcomer()
    master.set.lost(master.notes.proposals.pop(), now_s=master.now_s)
    master.set.decided(frozenset({1}), 6)
    assert master.set.required == {1}
    master.set.decided(frozenset({1, 2}), 6)
    master.set.decided(frozenset({1, 2}), 4)
    assert (master.set.members, master.set.set_epoch) == ({1}, 6), "an old answer"


def test_an_answer_to_an_earlier_proposal_does_not_end_the_open_one():
    master = with_newcomer()
    first = master.notes.proposals.pop()
    master.set.decided(frozenset({1}), 6)
    master.come(3)
    (second,) = master.notes.proposals
    master.set.refused(first, confirmed_s=master.now_s, now_s=master.now_s)
    master.set.lost(first, now_s=master.now_s)
    assert master.set.open_proposal == second


# -- the confirm offset ----------------------------------------------------------------------------------


def test_confirm_offset_is_the_least_ack_of_the_members():
    master = with_members(2, 3)
    master.append()
    master.ack(2, 1100)
    assert master.set.confirm_offset == 1000
    master.ack(3, 1050)
    assert master.set.confirm_offset == 1050


def test_confirm_offset_is_frozen_while_a_member_is_not_connected():
    """As AutoSwitchHATest.testConfirmOffset: it stays where it was, and the other may become master."""
    master = with_members(2, 3)
    master.disconnect(3)
    master.append()
    master.ack(2)
    assert master.set.confirm_offset == 1000
    master.accept()
    assert master.set.confirm_offset == 1100


def test_a_connected_member_that_has_not_reported_freezes_the_confirm_offset():
    master = with_members(2, 3)
    master.connect(3, connection_id=77)
    master.append()
    master.ack(2)
    assert master.set.confirm_offset == 1000


def test_confirm_offset_never_moves_back_when_a_member_returns_with_less():
    master = with_members(2)
    master.connect(2, connection_id=77)
    master.ack(2, 300)
    assert master.set.confirm_offset == 1000


def test_without_all_ack_the_confirm_offset_is_the_logs_end():
    master = Master(all_ack=False)
    master.join(2)
    master.disconnect(2)
    master.append()
    assert (master.set.confirm_offset, master.set.limit) == (1100, None)


@pytest.mark.parametrize("members", [{OWN}, {OWN, 2}], ids=["alone", "with a slave"])
@pytest.mark.parametrize("all_ack", [True, False])
def test_with_sync_flush_the_confirm_offset_is_never_ahead_of_the_masters_disk(members, all_ack):
    flushed = Watermark(900)
    master = Master(members=frozenset(members), all_ack=all_ack, confirm_offset=800, flushed=flushed)
    if len(members) > 1:
        master.come(2, 1000)
    assert master.set.held_offset == 1000
    assert master.set.confirm_offset == 900
    flushed.advance(950)
    assert master.set.confirm_offset == 950
    flushed.advance(1000)
    assert master.set.confirm_offset == 1000
    master.append()
    assert master.set.confirm_offset == 1000


def test_a_slave_has_to_hold_what_is_not_on_the_masters_disk_yet():
    """Puts that only wait for the disk are PUT_OK at any moment, also when the slave is a member already."""
    master = Master(members=frozenset({OWN, 2}), confirm_offset=800, flushed=Watermark(900))
    master.come(2, 1000)
    master.come(3, 990)
    assert master.proposed == []
    master.ack(3, 1000)
    assert master.proposed == [{OWN, 2, 3}]


def test_limit_is_the_confirm_offset_only_with_another_member_and_all_ack():
    master = Master()
    assert master.set.limit is None
    master.join(2)
    assert master.set.limit is master.set.confirm
    master.disconnect(2)
    master.accept()
    assert master.set.limit is None


def test_a_new_master_begins_with_what_it_knew_as_a_slave():
    assert Master(members=frozenset({1, 2}), confirm_offset=700).set.confirm_offset == 700
    assert Master(members=frozenset({1, 2}), confirm_offset=7000).set.confirm_offset == 1000
    assert Master(confirm_offset=700).set.confirm_offset == 1000


def test_changes_are_announced():
    master = Master()
    master.come(2)
    master.accept()
    assert master.notes.changes == [({1}, {1, 2}), ({1, 2}, {1, 2})]


# -- any order of events ---------------------------------------------------------------------------------

SLAVES = st.sampled_from([2, 3, 4])


class AnyOrder(RuleBasedStateMachine):
    """A controller with compare-and-set by epoch, requests and answers that are slow or lost, and slaves.

    `held` is what each broker has on disk; `acknowledged_put` the highest end of a PUT_OK.
    """

    def __init__(self):
        super().__init__()
        self.controller_members = frozenset({OWN})
        self.controller_epoch = 5
        self.under_way = None
        """The request that the master waits for, and its answer once there is one."""
        self.asked_s = 0.0
        """When it was sent."""
        self.answer = None
        self.late = []
        """Requests whose answer was given up, with the time of that; the controller may apply them yet."""
        self.put_ok = 0
        self.confirms = [0]

    @initialize(start=st.sampled_from([0, 1000]), known=st.booleans(), is_restart=st.booleans())
    def begin(self, start, known, is_restart):
        members = frozenset({OWN, 2, 3}) if known else frozenset({OWN})
        self.controller_members = members
        self.held = {OWN: start} | dict.fromkeys([2, 3, 4], 0)
        if known:
            self.held |= {2: start, 3: start}
        epoch_start_offset = 0 if is_restart else start
        self.master = Master(
            members=members, max_offset=start, epoch_start_offset=epoch_start_offset, confirm_offset=0
        )
        self.put_ok = start

    # -- log and slaves

    @rule(size=st.integers(1, 50))
    def append(self, size):
        self.master.append(size)
        self.held[OWN] = self.master.max_offset

    @rule(broker_id=SLAVES, is_learner=st.sampled_from([False, False, False, True]))
    def connect(self, broker_id, is_learner):
        if broker_id in self.master.connection_ids:
            # It takes the place of the old connection, whose end comes later.
            old = self.master.connection_ids[broker_id]
            self.master.connect(broker_id, is_learner=is_learner, connection_id=old + 1000)
            self.master.set.disconnected(broker_id, connection_id=old, now_s=self.master.now_s)
        else:
            self.master.connect(broker_id, is_learner=is_learner)

    @rule(broker_id=SLAVES, part=st.integers(0, 4))
    def receive_and_ack(self, broker_id, part):
        if broker_id in self.master.connection_ids:
            unsent = self.master.max_offset - self.held[broker_id]
            self.held[broker_id] += unsent * part // 4
            self.master.ack(broker_id, self.held[broker_id])

    @rule(broker_id=SLAVES, part=st.sampled_from([1, 4, 4]))
    def join(self, broker_id, part):
        if broker_id not in self.master.connection_ids:
            self.master.connect(broker_id)
        self.receive_and_ack(broker_id, part)

    @rule(broker_id=SLAVES, size=st.integers(1, 50))
    def ack_under_load(self, broker_id, size):
        """A slave that has all that there was when the next put came: it joins, and may come in later."""
        if broker_id not in self.master.connection_ids:
            self.master.connect(broker_id)
        self.held[broker_id] = max(self.held[broker_id], self.master.max_offset)
        self.append(size)
        self.master.ack(broker_id, self.held[broker_id])

    @rule(broker_id=SLAVES)
    def disconnect(self, broker_id):
        if broker_id in self.master.connection_ids:
            self.master.disconnect(broker_id)

    @rule(after_s=st.sampled_from([0.5, 1.0, 5.0, 16.0]))
    def tick(self, after_s):
        self.master.tick(after_s)

    @rule(after_s=st.sampled_from([0.1, 0.5, 1.0]))
    def end_joins(self, after_s):
        self.master.now_s += after_s
        self.master.set.end_joins(self.master.now_s)

    # -- controller

    def apply(self, proposal):
        if proposal.known_epoch == self.controller_epoch and proposal.members != self.controller_members:
            self.controller_members = proposal.members
            self.controller_epoch += 1

    @precondition(lambda self: self.under_way is None)
    @rule()
    def send(self):
        if self.master.notes.proposals:
            self.under_way = self.master.notes.proposals.pop()
            self.asked_s = self.master.now_s
            self.master.notes.proposals.clear()

    @precondition(lambda self: self.under_way is not None and self.answer is None)
    @rule(is_refused=st.booleans())
    def handle(self, is_refused):
        if not is_refused:
            self.apply(self.under_way)
        self.answer = (self.controller_members, self.controller_epoch)

    @precondition(lambda self: self.answer is not None)
    @rule()
    def receive_answer(self):
        proposal, (members, set_epoch) = self.under_way, self.answer
        self.under_way = self.answer = None
        if set_epoch > proposal.known_epoch:
            self.master.set.decided(members, set_epoch)
        else:
            self.master.set.refused(proposal, confirmed_s=self.asked_s, now_s=self.master.now_s)

    @precondition(lambda self: self.under_way is None)
    @rule()
    def do_not_send(self):
        """No controller leads: the master asks nothing."""
        if self.master.notes.proposals:
            self.master.refuse(confirmed_s=None)
            self.master.notes.proposals.clear()

    @precondition(lambda self: self.under_way is not None)
    @rule()
    def lose_answer(self):
        if self.answer is None:
            self.late.append((self.under_way, self.master.now_s))
        self.master.set.lost(self.under_way, now_s=self.master.now_s)
        self.under_way = self.answer = None

    @precondition(lambda self: self.under_way is None)
    @rule(
        is_refused=st.sampled_from([False, False, True]), is_lost=st.sampled_from([None, "request", "answer"])
    )
    def ask(self, is_refused, is_lost):
        """All of it at once: most defects need several of these."""
        self.send()
        if self.under_way is None:
            return
        if is_lost != "request":
            self.handle(is_refused)
        if is_lost is None:
            self.receive_answer()
        else:
            self.lose_answer()

    @rule(broker_id=SLAVES, size=st.integers(1, 50))
    def grow_under_load(self, broker_id, size):
        """A set that grows too early grows here."""
        self.ack_under_load(broker_id, size)
        if self.under_way is None:
            self.ask(is_refused=False, is_lost=None)

    @rule()
    def handle_late(self):
        """A request whose answer was given up is applied after all; none lives for `UNCERTAIN_S`."""
        late, self.late = self.late, []
        for proposal, lost_s in late:
            if self.master.now_s < lost_s + UNCERTAIN_S:
                self.apply(proposal)

    @rule()
    def poll(self):
        self.master.set.decided(self.controller_members, self.controller_epoch)

    # -- what must hold

    @invariant()
    def the_controllers_set_is_required(self):
        if hasattr(self, "master"):
            assert self.controller_members <= self.master.set.required

    @invariant()
    def whoever_may_be_elected_holds_all_that_was_put_ok(self):
        if not hasattr(self, "master"):
            return
        # PUT_OK as soon as it may be: a put at the log's end that the confirm offset has reached.
        self.put_ok = max(self.put_ok, self.master.set.confirm_offset)
        for broker_id in self.controller_members:
            assert self.held[broker_id] >= self.put_ok, f"{broker_id} of {self.controller_members}"

    @invariant()
    def confirm_offset_moves_forward_and_within_the_log(self):
        if hasattr(self, "master"):
            offset = self.master.set.confirm_offset
            assert self.confirms[-1] <= offset <= self.master.max_offset
            self.confirms.append(offset)


TestAnyOrder = AnyOrder.TestCase

"""Group commit by the sync-state set: what puts of a master in controller mode wait for."""

import math
from functools import partial

import pytest
import trio
from attrs import define, field

from tests.ha.autoswitch.master_support import OWN, begin_life, connected
from tests.ha.support import committed, settled
from tests.store.support import message, open_log
from trioha.ha.autoswitch.set_keeper import FIRST_TICK_S
from trioha.ha.meter import LagClock
from trioha.recording.events import Kind
from trioha.store.put_status import PutStatus

PUT_OK = PutStatus.PUT_OK
TIMEOUT = PutStatus.FLUSH_SLAVE_TIMEOUT


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    yield log
    log.close()


async def test_members_are_the_master_its_set_and_all_that_are_connected(log, autojump_clock):
    life = begin_life(log, members=(OWN, 2, 3))
    end = log.max_offset
    for connection_id, broker_id, ack_offset in ((7, 2, end), (8, 4, end - 1)):
        life.replicas.connected(connection_id, broker_id=broker_id, is_learner=broker_id == 4)
        life.replicas.acknowledge(connection_id, ack_offset=ack_offset, lag_clock=LagClock(), now_s=0.0)
    found = {one.broker_id: one for one in life.replicas.members(end)}
    assert sorted(found) == [OWN, 2, 3, 4]
    facts = {
        broker_id: (one.in_set, one.is_required, one.is_connected, one.ack_offset)
        for broker_id, one in found.items()
    }
    assert facts == {
        OWN: (True, True, True, end),
        2: (True, True, True, end),
        3: (True, True, False, None),
        4: (False, False, True, end - 1),
    }


@define
class Puts:
    """Puts of a master, each in its own task."""

    life: object
    nursery: trio.Nursery
    statuses: list = field(factory=list)

    def put(self):
        life = self.life
        appended = life.log.append(message())

        async def wait():
            self.statuses.append(await committed(life.commit, appended))

        self.nursery.start_soon(wait)
        return appended.end_offset


@pytest.fixture
def begin(log, nursery):
    """Begins a life whose timers run until the test ends: (life, puts)."""

    def begin(**options):
        life = begin_life(log, **options)
        return life, Puts(life, nursery)

    return begin


async def join(life, peer, broker_id, **options):
    """A slave comes in at the log's end; returns when the controller has agreed."""
    await peer.join(life.log.max_offset, broker_id, **options)
    await settled()
    if life.set.open_proposal is not None:
        life.accept()
        await settled()


async def test_a_lone_master_answers_at_once(begin, autojump_clock):
    """As a set of one does: allAckInSyncStateSet asks for no more than is there."""
    life, puts = begin()
    assert life.commit.waits
    puts.put()
    await settled()
    assert puts.statuses == [PUT_OK]


async def test_with_all_ack_a_put_waits_for_every_member(begin, autojump_clock):
    life, puts = begin()
    async with connected(life) as two, connected(life, port=50001) as three:
        await join(life, two, 2)
        await join(life, three, 3)
        end = puts.put()
        await two.acknowledge(end)
        assert puts.statuses == []
        await three.acknowledge(end)
        assert puts.statuses == [PUT_OK]


async def test_a_dead_member_makes_puts_time_out_until_the_set_has_shrunk(begin, autojump_clock):
    """As AutoSwitchHATest.testOptionAllAckInSyncStateSet."""
    life, puts = begin()
    async with connected(life) as two:
        await join(life, two, 2)
        assert life.set.members == {1, 2}
        await two.stream.aclose()
        await settled()
        started_s = trio.current_time()
        puts.put()
        await trio.sleep(3.0)
        await settled()
        assert (puts.statuses, trio.current_time() - started_s) == ([TIMEOUT], 3.0)
        puts.put()
        await settled()
        life.accept()
        await settled()
        assert puts.statuses == [TIMEOUT, PUT_OK], "the put that waits is released by the smaller set"
        puts.put()
        await settled()
        assert puts.statuses == [TIMEOUT, PUT_OK, PUT_OK]


async def test_a_put_that_waits_is_not_released_by_a_newcomer(begin, autojump_clock):
    """The newcomer's copy does not replace the member's: either may be elected."""
    life, puts = begin()
    async with connected(life) as two, connected(life, port=50001) as three:
        await join(life, two, 2)
        end = puts.put()
        await settled()
        await three.join(life.set.confirm_offset, 3)
        await settled()
        life.accept()
        await three.acknowledge(end)
        assert (life.set.members, puts.statuses) == ({1, 2, 3}, [])
        await two.report(end)
        await settled()
        assert puts.statuses == [PUT_OK]


async def test_a_learner_gets_everything_and_releases_no_put(begin, autojump_clock):
    """As AutoSwitchHATest.testAsyncLearnerBrokerRole; by inSyncReplicas too, other than in RocketMQ."""
    life, puts = begin(all_ack=False, in_sync_replicas=2)
    async with connected(life) as learner, connected(life, port=50001) as two:
        await join(life, learner, 5, is_learner=True)
        assert life.set.members == {OWN}
        end = puts.put()
        header, body = await learner.next_frame()
        assert header.offset + len(body) == end
        await learner.report(end)
        await settled()
        assert puts.statuses == []
        await join(life, two, 2)
        assert puts.statuses == [], "what it holds by its first report was not sent to it"
        await trio.sleep(3.0)
        await settled()
        assert puts.statuses == [TIMEOUT]


@pytest.mark.parametrize("in_sync_replicas", [1, 2, 3])
async def test_without_all_ack_a_put_waits_for_in_sync_replicas(begin, autojump_clock, in_sync_replicas):
    life, puts = begin(all_ack=False, in_sync_replicas=in_sync_replicas)
    async with connected(life) as two, connected(life, port=50001) as three:
        await join(life, two, 2)
        await join(life, three, 3)
        end = puts.put()
        await settled()
        got = [len(puts.statuses)]
        for peer in (two, three):
            await peer.acknowledge(end)
            got.append(len(puts.statuses))
    assert got == [int(in_sync_replicas <= copies) for copies in (1, 2, 3)]
    assert puts.statuses == [PUT_OK]


async def test_a_newer_connection_of_a_broker_counts_with_its_own_report_only(log, autojump_clock):
    """The broker may have come back with less, after a power loss."""
    replicas = begin_life(log, members=(OWN, 2), all_ack=False, in_sync_replicas=2).replicas
    end = log.max_offset

    def acknowledge(connection_id, ack_offset):
        replicas.acknowledge(connection_id, ack_offset=ack_offset, lag_clock=LagClock(), now_s=0.0)

    def held():
        [ack_offset] = [one.ack_offset for one in replicas.members(end) if one.broker_id == 2]
        return ack_offset, replicas.set.copies(1).offset

    replicas.connected(7, broker_id=2, is_learner=False)
    acknowledge(7, end)
    assert held() == (end, end)
    replicas.connected(8, broker_id=2, is_learner=False)
    assert held() == (None, 0)
    acknowledge(8, 10)
    assert held() == (10, 10)
    replicas.forget(7)
    assert held() == (10, 10)
    replicas.forget(8)
    assert held() == (None, 0)


async def test_fewer_members_than_min_in_sync_replicas_refuse_puts(begin, log):
    life, _ = begin(min_in_sync_replicas=2)
    assert life.commit.refusal(log.max_offset) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    async with connected(life) as two:
        await join(life, two, 2)
        assert life.commit.refusal(log.max_offset) is None
        await two.stream.aclose()
        await settled()
        # The larger of both sets counts while the proposal is open (docs/protocol/ha.md#number-of-copies):
        # the put would wait.
        assert life.commit.refusal(log.max_offset) is None
        life.accept()
        assert life.commit.refusal(log.max_offset) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH


async def test_the_recorded_need_is_the_number_of_members(begin, autojump_clock):
    life, puts = begin()
    async with connected(life) as two:
        await join(life, two, 2)
        end = puts.put()
        await two.acknowledge(end)
    assert [event[4] for event in life.events.of(Kind.WAIT_BEGIN)] == [2]


async def test_a_returning_member_releases_what_it_got_before_its_connection_was_lost(begin, autojump_clock):
    """The put was sent to that broker id: its first report counts up to there, and no further."""
    life, puts = begin()
    async with connected(life) as two:
        await join(life, two, 2)
        end = puts.put()
        await two.next_frame()
        await two.stream.aclose()
        await settled()
        assert puts.statuses == []
    async with connected(life, port=50001) as two:
        await two.join(end, 2)
        await settled()
        assert puts.statuses == [PUT_OK]


async def test_puts_that_wait_when_the_set_becomes_smaller_than_the_minimum_time_out(begin, autojump_clock):
    """minInSyncReplicas=2: without 2, there would be one copy."""
    life, puts = begin(members={1, 2}, min_in_sync_replicas=2)
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        await settled()
        end_offset = puts.put()
        second = life.commit.begin(life.log.append(message()), request_id=2)
        await settled()
        assert puts.statuses == []
    await settled()
    assert not second.is_settled(trio.current_time())
    life.accept()
    await settled()
    assert (life.set.members, life.set.is_alone) == ({1}, True)
    assert life.set.confirm_offset >= end_offset
    assert puts.statuses == [TIMEOUT]
    assert second.is_settled(trio.current_time())
    assert life.commit.end(second) == [TIMEOUT]
    assert life.commit.refusal(life.log.max_offset) is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH


async def test_puts_wait_on_when_the_set_becomes_smaller_and_has_the_minimum(begin, autojump_clock):
    life, puts = begin(members={1, 2, 3}, min_in_sync_replicas=2)
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        async with connected(life, port=50001) as three:
            await three.join(life.log.max_offset, 3)
            await settled()
            end_offset = puts.put()
            await settled()
        await settled()
        life.accept()
        await settled()
        assert (life.set.members, puts.statuses) == ({1, 2}, [])
        await two.acknowledge(end_offset)
        assert puts.statuses == [PUT_OK]


# -- the controller --------------------------------------------------------------------------------------


@define
class Decision:
    members: frozenset
    set_epoch: int
    is_confirmed: bool = True


@define
class Controller:
    """A controller that a test scripts: each of `outcomes` is for one request; then it accepts."""

    members: frozenset = frozenset({OWN})
    set_epoch: int = 1
    outcomes: list = field(factory=list)
    asked: list = field(factory=list)
    delay_s: float = 0.0

    async def alter(self, members, known_epoch):
        self.asked.append((set(members), known_epoch))
        outcome = self.outcomes.pop(0) if self.outcomes else "accept"
        await trio.sleep(self.delay_s)
        is_handled = outcome in {"accept", "lose the answer"} and known_epoch == self.set_epoch
        if is_handled and members != self.members:
            self.members, self.set_epoch = members, self.set_epoch + 1
        if outcome in {"lose the answer", "lose the request"}:
            return None
        return Decision(self.members, self.set_epoch)


@pytest.fixture
def kept(log, nursery):
    """Begins a life with a controller: (life, controller)."""

    def kept(*, set_check_interval_s=5.0, **options):
        life = begin_life(log, set_check_interval_s=set_check_interval_s)
        controller = Controller(**options)
        nursery.start_soon(partial(life.keeper.run, life.set, controller.alter))
        return life, controller

    return kept


async def test_a_slave_comes_into_the_set_under_2000_puts_a_second(log, nursery, autojump_clock):
    """It is never at the log's end: each ack is 5 ms old. No put waits for longer than an ack takes."""
    life, controller = begin_life(log), Controller(delay_s=0.003)
    nursery.start_soon(partial(life.keeper.run, life.set, controller.alter))
    puts = Puts(life, nursery)
    async with connected(life) as two:
        await two.join(life.log.max_offset)

        received, to_acknowledge = trio.open_memory_channel(math.inf)

        async def acknowledge():
            async for received_s, end_offset in to_acknowledge:
                await trio.sleep_until(received_s + 0.005)
                await two.report(end_offset)

        async def receive():
            while True:
                header, body = await two.next_frame()
                received.send_nowait((trio.current_time(), header.offset + len(body)))

        # Out of the set again, as a slave that was away.
        life.set.decided(frozenset({OWN}), 50)
        controller.members, controller.set_epoch = frozenset({OWN}), 50
        async with trio.open_nursery() as slave:
            slave.start_soon(receive)
            slave.start_soon(acknowledge)
            for _ in range(2000):
                puts.put()
                await trio.sleep(0.0005)
            assert life.set.members == {OWN, 2}
            await trio.sleep(0.1)
            assert puts.statuses == [PUT_OK] * 2000
            slave.cancel_scope.cancel()


async def test_the_set_grows_when_the_controller_accepts(kept, autojump_clock):
    life, controller = kept(delay_s=2.0)
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        await settled()
        # As AutoSwitchHATest.testCheckSynchronizingSyncStateSetFlag: the union counts until the answer.
        assert (life.set.members, life.set.required, life.set.size) == ({1}, {1, 2}, 2)
        await trio.sleep(2.5)
        assert (life.set.members, life.set.set_epoch, controller.asked) == ({1, 2}, 2, [({1, 2}, 1)])


@pytest.mark.parametrize("outcome", ["refuse", "lose the answer", "lose the request"])
async def test_the_set_grows_in_the_end_whatever_becomes_of_the_first_request(kept, autojump_clock, outcome):
    life, controller = kept(outcomes=[outcome])
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        await trio.sleep(FIRST_TICK_S + 1.0)
        assert controller.members == life.set.members == life.set.required == {1, 2}
        assert (life.set.set_epoch, len(controller.asked)) == (2, 2)


async def test_members_that_never_connect_are_removed_after_3_s(log, nursery, autojump_clock):
    life = begin_life(log, members={1, 2, 3})
    controller = Controller(members=frozenset({1, 2, 3}))
    nursery.start_soon(partial(life.keeper.run, life.set, controller.alter))
    await trio.sleep(FIRST_TICK_S - 0.1)
    assert controller.asked == []
    await trio.sleep(0.2)
    assert (life.set.members, controller.members) == ({1}, {1})


async def test_a_slave_that_hangs_leaves_the_set_15_s_after_the_byte_that_it_does_not_acknowledge(
    kept, autojump_clock
):
    life, _ = kept()
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        await trio.sleep(10.0)
        assert life.set.members == {1, 2}
        held_offset = life.log.max_offset
        life.log.append(message())
        for _ in range(6):
            # It is alive, but acknowledges nothing: heartbeats.
            await two.report(held_offset)
            await trio.sleep(2.5)
        assert life.set.members == {1, 2}
        for _ in range(3):
            await two.report(held_offset)
            await trio.sleep(2.0)
        assert life.set.members == {1}


@pytest.mark.parametrize("interval_s", [1.0, 30.0])
async def test_a_member_that_fell_back_is_found_as_often_as_configured(kept, autojump_clock, interval_s):
    life, _ = kept(set_check_interval_s=interval_s)
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        await trio.sleep(FIRST_TICK_S + 0.1)
        held_offset = life.log.max_offset
        life.log.append(message())
        while 2 in life.set.members:
            await two.report(held_offset)
            await trio.sleep(0.1)
        # With the first look 15 s after the byte that it does not acknowledge.
        looks = math.ceil(15.1 / interval_s)
        assert trio.current_time() == pytest.approx(FIRST_TICK_S + looks * interval_s, abs=0.3)


async def test_a_lost_member_leaves_and_comes_back(kept, autojump_clock):
    life, controller = kept()
    async with connected(life) as two:
        await two.join(life.log.max_offset)
        await settled()
        assert life.set.members == {1, 2}
    await settled()
    assert (life.set.members, controller.set_epoch) == ({1}, 3)
    async with connected(life, port=50001) as two:
        await two.join(life.log.max_offset)
        await settled()
        assert (life.set.members, controller.set_epoch) == ({1, 2}, 4)

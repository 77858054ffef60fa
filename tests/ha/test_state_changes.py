"""Subscriptions to changes of state, and what a slave publishes of its link."""

import pytest
import trio

from tests.ha.support import make_slave, settled
from tests.store.support import open_log
from trioha.ha.state_changes import UNREAD_MAX, StateChanges
from trioha.recording.events import HaState

READY, HANDSHAKE, TRANSFER, SUSPEND, SHUTDOWN = HaState


async def test_each_subscriber_gets_the_changes_since_its_subscription_in_order(autojump_clock):
    states = StateChanges()
    with states.subscribe() as all_changes:
        states.publish(TRANSFER)
        with states.subscribe() as later_changes:
            states.publish(READY)
            states.publish(SHUTDOWN)
            assert [await anext(all_changes) for _ in range(3)] == [TRANSFER, READY, SHUTDOWN]
            assert [await anext(later_changes) for _ in range(2)] == [READY, SHUTDOWN]


async def test_a_state_that_is_left_before_the_subscriber_runs_is_not_missed(autojump_clock):
    states, seen = StateChanges(), []

    async def read():
        with states.subscribe() as changes:
            async for state in changes:
                seen.append(state)
                if state is SHUTDOWN:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await settled()
        states.publish(HANDSHAKE)
        states.publish(TRANSFER)
        await settled()
        assert seen == [HANDSHAKE, TRANSFER]
        states.publish(SHUTDOWN)
    assert seen == [HANDSHAKE, TRANSFER, SHUTDOWN]


async def test_a_cancelled_wait_loses_no_change(autojump_clock):
    states = StateChanges()
    with states.subscribe() as changes:
        with trio.move_on_after(1) as timeout:
            await anext(changes)
        assert timeout.cancelled_caught
        states.publish(TRANSFER)
        assert await anext(changes) is TRANSFER


async def test_a_slow_subscriber_keeps_the_newest_changes_and_the_number_of_the_others():
    states = StateChanges()
    with states.subscribe() as changes:
        for _ in range(UNREAD_MAX):
            states.publish(TRANSFER)
            states.publish(READY)
        assert changes.dropped == UNREAD_MAX
        assert [await anext(changes) for _ in range(UNREAD_MAX)] == [TRANSFER, READY] * (UNREAD_MAX // 2)


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "slave")[0]


async def test_a_slave_publishes_each_change_of_its_state_once(log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    dialer.refuse = True
    seen = []

    async def watch():
        with slave.changes() as changes:
            while True:
                state = await anext(changes)
                seen.append((trio.current_time(), state))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        nursery.start_soon(slave.run)
        await trio.sleep(0.15)
        assert (slave.state, seen) == (READY, [])
        dialer.refuse = False
        await trio.sleep(5)
        assert seen == [(dialer.times[-1], TRANSFER)]
        dialer.refuse = True
        ended_s = trio.current_time()
        await dialer.peers[0].stream.aclose()
        await trio.sleep(5)
        assert seen[1:] == [(ended_s, READY)]
        nursery.cancel_scope.cancel()
    assert slave.state is SHUTDOWN

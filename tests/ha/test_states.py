"""The state of a connection and who waits for it."""

import pytest
import trio

from tests.ha.support import make_slave, settled
from tests.store.support import open_log
from trioha.ha.states import CHANGES_KEPT_MAX, StateCell
from trioha.recording.events import HaState

READY, HANDSHAKE, TRANSFER, SUSPEND, SHUTDOWN = HaState


async def wait(cell, met, *states):
    met.append(await cell.wait_for(*states))


async def test_each_waiter_is_woken_by_its_own_states_only(autojump_clock):
    cell, first, second = StateCell(READY), [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, cell, first, TRANSFER, SHUTDOWN)
        nursery.start_soon(wait, cell, second, SUSPEND)
        await settled()
        assert cell.change_to(HANDSHAKE)
        await settled()
        assert (first, second) == ([], [])
        cell.change_to(TRANSFER)
        await settled()
        assert (first, second) == ([TRANSFER], [])
        cell.change_to(SUSPEND)
    assert second == [SUSPEND]


async def test_a_state_that_is_left_before_the_waiter_runs_is_not_missed(autojump_clock):
    cell, met = StateCell(READY), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, cell, met, HANDSHAKE)
        await settled()
        cell.change_to(HANDSHAKE)
        cell.change_to(TRANSFER)
    assert met == [HANDSHAKE]
    assert cell.state is TRANSFER


async def test_the_present_state_is_met_at_once():
    cell = StateCell(TRANSFER)
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await cell.wait_for(TRANSFER) is TRANSFER
    assert not scope.cancelled_caught


async def test_a_cancelled_wait_leaves_nothing_behind(autojump_clock):
    cell = StateCell(READY)
    with trio.move_on_after(1):
        await cell.wait_for(TRANSFER)
    assert repr(cell) == "<StateCell READY, 0 waiting>"


async def test_no_change_is_no_change(autojump_clock):
    cell = StateCell(READY)
    with cell.changes() as changes:
        assert not cell.change_to(READY)
        with trio.move_on_after(1) as patience:
            await anext(changes)
        assert patience.cancelled_caught


async def test_changes_come_in_order_to_each_reader_from_where_it_began(autojump_clock):
    cell = StateCell(READY)
    with cell.changes() as all_changes:
        cell.change_to(TRANSFER)
        with cell.changes() as later_changes:
            cell.change_to(READY)
            cell.change_to(SHUTDOWN)
            assert [await anext(all_changes) for _ in range(3)] == [TRANSFER, READY, SHUTDOWN]
            assert [await anext(later_changes) for _ in range(2)] == [READY, SHUTDOWN]


async def test_a_reader_may_wait_again_after_its_patience_ended(autojump_clock):
    cell, seen = StateCell(READY), []

    async def read():
        with cell.changes() as changes:
            with trio.move_on_after(1):
                await anext(changes)
            async for state in changes:
                seen.append(state)
                if state is SHUTDOWN:
                    return

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(2)
        cell.change_to(TRANSFER)
        await settled()
        cell.change_to(SHUTDOWN)
    assert seen == [TRANSFER, SHUTDOWN]


async def test_a_slow_reader_keeps_the_newest_changes_and_the_number_of_the_others():
    cell = StateCell(READY)
    with cell.changes() as changes:
        for _ in range(CHANGES_KEPT_MAX):
            cell.change_to(TRANSFER)
            cell.change_to(READY)
        assert changes.dropped == CHANGES_KEPT_MAX
        assert [await anext(changes) for _ in range(CHANGES_KEPT_MAX)] == (
            [TRANSFER, READY] * (CHANGES_KEPT_MAX // 2)
        )


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "slave")[0]


async def test_a_slaves_states_are_announced(log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    dialer.refuse = True
    seen = []

    async def watch():
        with slave.state.changes() as changes:
            while True:
                state = await anext(changes)
                seen.append((trio.current_time(), state))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        nursery.start_soon(slave.run)
        await trio.sleep(0.15)
        assert slave.state.state is READY
        dialer.refuse = False
        assert await slave.state.wait_for(TRANSFER) is TRANSFER
        connected_at = trio.current_time()
        assert connected_at == dialer.times[-1]
        await dialer.peers[0].stream.aclose()
        await slave.state.wait_for(READY)
        nursery.cancel_scope.cancel()
    assert slave.state.state is SHUTDOWN
    assert [state for _, state in seen] == [TRANSFER, READY]
    assert seen[0][0] == connected_at

"""One task keeps the deadlines of all waits."""

import pytest
import trio

from trioha.ha.timeouts import Timeouts
from trioha.watermark import GIVEN_UP, REACHED, Watermark


@pytest.fixture
def timeouts(nursery):
    timeouts = Timeouts(3.0)
    nursery.start_soon(timeouts.run)
    return timeouts


async def test_each_wait_ends_at_its_own_deadline(timeouts, autojump_clock):
    mark, ended = Watermark(), {}
    started = trio.current_time()

    async def wait(offset):
        wait = mark.wait_for(offset)
        timeouts.add(wait, trio.current_time())
        reached = await wait.wait() is REACHED
        ended[offset] = (reached, trio.current_time() - started)

    async with trio.open_nursery() as waits:
        for offset in range(1, 9):
            waits.start_soon(wait, offset)
            await trio.sleep(0.5)
            if offset == 4:
                # Those after the first, which stays stuck.
                mark.advance(3)
                mark.lower(0)
    assert ended == {
        1: (True, 2.0), 2: (True, 2.0), 3: (True, 2.0),
        4: (False, 4.5), 5: (False, 5.0), 6: (False, 5.5), 7: (False, 6.0), 8: (False, 6.5),
    }  # fmt: skip
    assert len(timeouts._waits) == 0


async def test_after_a_pause_deadlines_are_as_exact_as_before(timeouts, autojump_clock):
    mark = Watermark()
    for _ in range(3):
        await trio.sleep(100)
        started = trio.current_time()
        wait = mark.wait_for(1)
        timeouts.add(wait, started)
        assert (await wait.wait(), trio.current_time() - started) == (GIVEN_UP, 3.0)


async def test_ended_waits_do_not_accumulate_after_a_stuck_one(timeouts, autojump_clock):
    mark = Watermark()
    stuck = mark.wait_for(10**6)
    timeouts.add(stuck, trio.current_time())
    for offset in range(1, 10_000):
        wait = mark.wait_for(offset)
        timeouts.add(wait, trio.current_time())
        mark.advance(offset)
        assert wait.result is REACHED
        assert len(timeouts._waits) <= 64
    assert await stuck.wait() is GIVEN_UP


class Steps(trio.abc.Instrument):
    """Counts how often the task that keeps the deadlines has run."""

    number = 0

    def after_task_step(self, task):
        self.number += "Timeouts.run" in task.name


async def test_the_task_does_not_wake_for_waits_that_end_in_time(timeouts, autojump_clock):
    mark, steps = Watermark(), Steps()
    trio.lowlevel.add_instrument(steps)
    for offset in range(1, 1001):
        wait = mark.wait_for(offset)
        timeouts.add(wait, trio.current_time())
        await trio.sleep(0.01)
        mark.advance(offset)
        assert await wait.wait() is REACHED
    trio.lowlevel.remove_instrument(steps)
    # It started, woke for the first wait, and then at one former deadline in each 3 s.
    assert steps.number <= 6

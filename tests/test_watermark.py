"""The watermark: which waits end and when, and that cancelled waits are removed."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trioha.watermark import ReplicatedWatermarks, Watermark


async def test_exactly_the_waiters_at_or_below_the_mark_are_woken():
    mark = Watermark(10)
    woken = []

    async def wait(offset):
        await mark.reached(offset)
        woken.append(offset)

    async with trio.open_nursery() as nursery:
        for offset in (40, 20, 30, 20, 11):
            nursery.start_soon(wait, offset)
        await trio.testing.wait_all_tasks_blocked()
        assert (woken, mark.waiting) == ([], 5)
        mark.advance(20)
        await trio.testing.wait_all_tasks_blocked()
        assert (sorted(woken), mark.waiting) == ([11, 20, 20], 2)
        mark.advance(29)
        mark.advance(5)
        await trio.testing.wait_all_tasks_blocked()
        assert (mark.offset, mark.waiting) == (29, 2)
        mark.advance(1000)
    assert sorted(woken) == [11, 20, 20, 30, 40]


async def test_an_offset_that_is_reached_is_not_waited_for():
    mark = Watermark(7)
    with trio.fail_after(1):
        await mark.reached(7)
        await mark.reached(0)


async def test_each_waiter_has_its_own_deadline(autojump_clock):
    mark = Watermark()
    ended = {}

    async def wait(offset, timeout):
        with trio.move_on_after(timeout) as scope:
            await mark.reached(offset)
        ended[offset] = (trio.current_time() - started, scope.cancelled_caught)

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 1, 3)
        nursery.start_soon(wait, 2, 1)
        nursery.start_soon(wait, 3, 2)
        await trio.sleep(1.5)
        mark.advance(1)
    assert ended == {1: (1.5, False), 2: (1, True), 3: (2, True)}
    assert mark.waiting == 0


async def test_cancelled_waiters_are_removed():
    mark = Watermark()
    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for offset in range(1, 1001):
                nursery.start_soon(mark.reached, offset)
            await trio.testing.wait_all_tasks_blocked()
            assert mark.waiting == 1000
            nursery.cancel_scope.cancel()
        assert mark.waiting == 0
        assert len(mark._waits) <= 2001
    mark.advance(1000)
    assert len(mark._waits) == 0


@pytest.mark.parametrize("offset", [50, 100])
async def test_a_rewind_ends_every_wait_unreached(offset, autojump_clock):
    mark = Watermark(100)
    reached = []

    async def wait(offset):
        reached.append(await mark.reached(offset))

    async with trio.open_nursery() as nursery:
        for end in (101, 200, 10**9):
            nursery.start_soon(wait, end)
        await trio.testing.wait_all_tasks_blocked()
        mark.rewind(offset)
    assert (reached, mark.offset, mark.waiting, mark.rewinds) == ([False] * 3, offset, 0, 1)
    # A wait that begins now is for the new bytes.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 150)
        await trio.testing.wait_all_tasks_blocked()
        mark.advance(150)
    assert reached[-1]


async def test_a_lowered_mark_keeps_its_waits():
    mark = Watermark(100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark.reached, 110)
        await trio.testing.wait_all_tasks_blocked()
        mark.lower(50)
        await trio.testing.wait_all_tasks_blocked()
        assert (mark.offset, mark.waiting) == (50, 1)
        mark.advance(110)


def test_a_mark_goes_back_only_by_rewind_and_lower():
    mark = Watermark(100)
    for move in (mark.rewind, mark.lower):
        with pytest.raises(AssertionError):
            move(101)


async def test_a_wait_for_copies_outlasts_the_replica_that_leaves():
    marks = ReplicatedWatermarks()
    marks.acknowledge("a", 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(marks.copies(1).reached, 110)
        await trio.testing.wait_all_tasks_blocked()
        marks.forget("a")
        await trio.testing.wait_all_tasks_blocked()
        assert marks.copies(1).waiting == 1
        marks.acknowledge("b", 110)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(1, 100)),
            st.tuples(st.just("cancel"), st.integers(0, 20)),
            st.tuples(st.just("move"), st.integers(0, 100)),
        ),
        max_size=40,
    )
)
def test_any_history_of_lowering_wakes_each_waiter_when_the_mark_first_passes_it(steps):
    async def history():
        mark = Watermark()
        waits = []

        async def wait(entry):
            with entry["scope"]:
                await mark.reached(entry["offset"])
                entry["woken"] = True

        async with trio.open_nursery() as nursery:
            for step, value in steps:
                if step == "wait":
                    entry = {
                        "offset": value,
                        "woken": False,
                        "expected": value <= mark.offset,
                        "cancelled": False,
                        "scope": trio.CancelScope(),
                    }
                    waits.append(entry)
                    nursery.start_soon(wait, entry)
                elif step == "cancel" and value < len(waits):
                    entry = waits[value]
                    entry["cancelled"] = True
                    entry["scope"].cancel()
                elif step == "move":
                    if value < mark.offset:
                        mark.lower(value)
                    mark.advance(value)
                    for entry in waits:
                        if not entry["cancelled"] and entry["offset"] <= value:
                            entry["expected"] = True
                await trio.testing.wait_all_tasks_blocked()
                assert all(entry["woken"] == entry["expected"] for entry in waits)
                pending = sum(not (entry["expected"] or entry["cancelled"]) for entry in waits)
                assert mark.waiting == pending
            nursery.cancel_scope.cancel()

    trio.run(history, clock=MockClock(autojump_threshold=0))


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 100)), max_size=30),
    st.integers(1, 5),
)
def test_the_mark_for_k_copies_is_the_kth_largest_ack(acks, k):
    marks = ReplicatedWatermarks()
    early = marks.copies(k)
    held = {}
    for replica, offset in acks:
        if offset == 0 and replica in held:
            marks.forget(replica)
            del held[replica]
        else:
            marks.acknowledge(replica, offset)
            held[replica] = offset
        largest = sorted(held.values(), reverse=True)
        assert early.offset == marks.copies(k).offset == (largest[k - 1] if len(largest) >= k else 0)


def test_the_ack_of_a_forgotten_replica_is_removed():
    marks = ReplicatedWatermarks()
    marks.acknowledge("a", 10)
    marks.acknowledge("b", 20)
    assert (marks.copies(1).offset, marks.copies(2).offset) == (20, 10)
    marks.forget("b")
    marks.forget("never there")
    assert (marks.copies(1).offset, marks.copies(2).offset) == (10, 0)

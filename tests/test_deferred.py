"""Values that come later: attached functions, and awaits."""

import pytest
import trio
import trio.testing

from trioha.deferred import Deferred


class Later(Deferred[int]):
    """Ready when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.value: int | None = None
        self.is_abandoned = False

    def come(self, value: int) -> None:
        self.value = value
        self._ready()

    def result(self) -> int:
        if self.value is None:
            raise ValueError("no value")
        return self.value

    def abandon(self) -> None:
        super().abandon()
        self.is_abandoned = True


def test_the_attached_function_is_called_once_when_the_value_comes() -> None:
    later, called = Later(), []
    later.attach(called.append)
    assert (called, later.is_ready) == ([], False)
    later.come(7)
    later._ready()
    assert (called, later.is_ready, later.result()) == ([later], True, 7)


def test_a_function_that_is_attached_to_a_value_is_called_at_once() -> None:
    later, called = Later(), []
    later.come(7)
    later.attach(called.append)
    assert called == [later]


def test_an_abandoned_value_calls_nothing() -> None:
    later, called = Later(), []
    later.attach(called.append)
    later.abandon()
    later.come(7)
    assert called == []


async def test_a_value_can_be_awaited_before_and_after_it_comes(nursery: trio.Nursery) -> None:
    later, seen = Later(), []

    async def wait() -> None:
        seen.append(await later)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    assert seen == []
    later.come(7)
    await trio.testing.wait_all_tasks_blocked()
    assert seen == [7]
    assert await later == 7


async def test_an_await_raises_what_the_result_raises() -> None:
    later = Later()
    later._ready()
    with pytest.raises(ValueError, match="no value"):
        await later


async def test_a_cancelled_await_abandons_the_value(autojump_clock: trio.testing.MockClock) -> None:
    later = Later()
    with trio.move_on_after(1):
        await later
    assert later.is_abandoned

"""trio inside asyncio. Sync tests: pytest-trio owns the async ones."""

from __future__ import annotations

import asyncio

import outcome
import pytest
import trio

from trioha_monitor import guest as guest_module
from trioha_monitor.guest import TrioGuest


class Ends:
    """Collects outcomes."""

    def __init__(self):
        self.outcomes: list[outcome.Outcome[None]] = []
        self.event = asyncio.Event()

    def __call__(self, result):
        self.outcomes.append(result)
        self.event.set()


def run_guest(main, *, stop):
    async def host():
        ends = Ends()
        guest = TrioGuest(main, on_end=ends)
        guest.start()
        if stop:
            await asyncio.sleep(0.05)
        else:
            await asyncio.wait_for(ends.event.wait(), 5)
        await guest.stop()
        await guest.stop()
        return ends.outcomes

    return asyncio.run(host())


def test_a_guest_that_returns_reports_its_outcome_once():
    async def main():
        await trio.sleep(0.01)

    assert run_guest(main, stop=False) == [outcome.Value(None)]


def test_a_guest_that_crashes_reports_its_error():
    async def main():
        await trio.sleep(0.01)
        raise ZeroDivisionError

    (result,) = run_guest(main, stop=False)
    assert isinstance(result, outcome.Error)
    assert isinstance(result.error, ZeroDivisionError)


def test_a_guest_that_is_stopped_cleans_up_and_ends_without_an_error():
    cleaned = []

    async def main():
        try:
            await trio.sleep_forever()
        finally:
            cleaned.append("yes")

    assert run_guest(main, stop=True) == [outcome.Value(None)]
    assert cleaned == ["yes"]


def test_a_guest_that_never_started_need_not_be_stopped():
    async def host():
        await TrioGuest(trio.sleep_forever, on_end=Ends()).stop()

    asyncio.run(host())


def test_a_guest_may_be_stopped_in_the_moment_it_starts():
    for _ in range(50):

        async def host():
            ends = Ends()
            guest = TrioGuest(trio.sleep_forever, on_end=ends)
            guest.start()
            await guest.stop()
            return ends.outcomes

        assert asyncio.run(host()) == [outcome.Value(None)]


def test_a_guest_that_does_not_end_is_an_error_and_not_a_hang(monkeypatch):
    monkeypatch.setattr(guest_module, "STOP_TIMEOUT_S", 0.05)

    async def host():
        release = trio.Event()

        async def main():
            with trio.CancelScope(shield=True):
                await release.wait()

        ends = Ends()
        guest = TrioGuest(main, on_end=ends)
        guest.start()
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            await guest.stop()
        release.set()
        await asyncio.wait_for(ends.event.wait(), 5)

    asyncio.run(host())


def test_sockets_and_timers_of_trio_work_beside_those_of_asyncio():
    said = []

    async def main():
        async def echo(stream):
            await stream.send_all(await stream.receive_some(100))

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, echo, 0)
            async with await trio.testing.open_stream_to_socket_listener(listeners[0]) as stream:
                await stream.send_all(b"ping")
                with trio.fail_after(60):
                    said.append(await stream.receive_some(100))
            nursery.cancel_scope.cancel()

    assert run_guest(main, stop=False) == [outcome.Value(None)]
    assert said == [b"ping"]

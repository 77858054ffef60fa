"""Blocking calls wait for a thread while the system has none."""

import threading

import pytest
import trio
from structlog.testing import capture_logs

from trioha.net.error_boundary import is_shortage
from trioha.net.threads import REPORT_INTERVAL_S, RETRY_S, run_in_thread


@pytest.fixture
def no_threads(monkeypatch):
    """While the list is not empty, no thread can be started, and trio has no idle ones."""
    shortage = [True]
    start = threading.Thread.start

    def refuse(self):
        if shortage:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(trio._core._thread_cache.THREAD_CACHE, "_idle_workers", {})
    return shortage


async def test_a_call_waits_for_a_thread_and_logs_it_once_a_minute(no_threads, autojump_clock):
    called = []

    async def call():
        called.append(await run_in_thread(threading.get_ident))

    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            nursery.start_soon(call)
            await trio.sleep(REPORT_INTERVAL_S * 1.5)
            assert called == []
            no_threads.clear()
            await trio.sleep(2 * RETRY_S)
    assert len(called) == 2
    assert threading.get_ident() not in called
    assert [line["event"] for line in lines] == [
        "the system has no thread for disk work, which waits for one"
    ] * 2


async def test_a_call_that_is_cancelled_while_it_waits_for_a_thread_is_not_made(no_threads, autojump_clock):
    called = []
    with trio.move_on_after(5):
        await run_in_thread(lambda: called.append(1))
    no_threads.clear()
    await trio.sleep(1)
    assert called == []


async def test_other_errors_of_a_call_are_the_callers():
    def fail():
        raise RuntimeError("of the call")

    with pytest.raises(RuntimeError, match="of the call"):
        await run_in_thread(fail)


def test_a_thread_that_cannot_be_started_is_a_shortage():
    assert is_shortage(RuntimeError("can't start new thread"))
    assert not is_shortage(RuntimeError("something else"))

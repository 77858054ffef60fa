"""Busy polling: how long, how often, and for what."""

import math
import os
import socket
from itertools import count

import pytest
import trio

from trioha.net import busy_poll
from trioha.net.busy_poll import CALLS_PER_POLL_MAX, BusyPoll, cpu_quota, has_cores_to_spare, polled
from trioha.net.transport import SocketTransport

TICK = 2.0**-20
"""About a microsecond."""


def ticks():
    """A clock that advances by a tick whenever it is read."""
    return count(1.0, TICK).__next__


def polls_of(poll, *, succeeds=False):
    """How often one call polls."""
    seen = []

    def check():
        seen.append(1)
        return succeeds

    poll.until(check)
    return len(seen)


def test_a_poll_lasts_until_the_limit_or_its_success():
    poll = BusyPoll(10 * TICK, clock=ticks())
    assert polls_of(poll) == 10
    assert polls_of(poll, succeeds=True) == 1


def test_a_poll_ends_where_another_process_wants_the_core_and_has_not_paid():
    """By the time the core is back, bytes have always come."""
    now_s, yields = [1.0], []

    def let_others_run():
        now_s[0] += 0.001
        yields.append(1)

    poll = BusyPoll(0.1, clock=lambda: now_s[0], yield_core=let_others_run)
    for _ in range(2000):
        before = len(yields)
        poll.until(lambda before=before: len(yields) > before)
    assert 2000 / CALLS_PER_POLL_MAX <= len(yields) < 60


def test_one_core_that_comes_back_late_is_not_the_end_of_polls():
    now_s = [1.0]

    def let_others_run():
        now_s[0] += 0.001

    poll = BusyPoll(0.1, clock=lambda: now_s[0], yield_core=let_others_run)
    poll.until(lambda: False)
    assert now_s == [1.001]
    assert sum(attempts_of(poll, 100, one_pays_of=1)) > 90


def attempts_of(poll, calls, *, one_pays_of):
    """For each call, whether it polls; one poll in `one_pays_of` pays."""
    attempts, polls = [], 0
    for _ in range(calls):
        attempts.append(polls_of(poll, succeeds=polls % one_pays_of == one_pays_of - 1) > 0)
        polls += attempts[-1]
    return attempts


NEVER = 1 << 30


@pytest.mark.parametrize("one_pays_of", [1, 3, 12, 100, NEVER])
def test_calls_poll_no_more_often_than_polls_pay(one_pays_of):
    poll = BusyPoll(3 * TICK, clock=ticks())
    attempts_of(poll, 5000, one_pays_of=one_pays_of)
    share = sum(attempts_of(poll, 50_000, one_pays_of=one_pays_of)) / 50_000
    least = 1 / CALLS_PER_POLL_MAX
    assert 0.99 * least <= share <= max(1.4 / one_pays_of, 1.1 * least)


def test_some_failures_are_no_reason_to_stop():
    poll = BusyPoll(3 * TICK, clock=ticks())
    attempts = attempts_of(poll, 5000, one_pays_of=NEVER)
    assert attempts[:8] == [True] * 6 + [False, True]
    assert sum(attempts[-CALLS_PER_POLL_MAX:]) == 1
    # What polls in vain cost until then.
    assert sum(attempts[:2000]) < 45


def test_polls_that_pay_again_are_usual_again():
    poll = BusyPoll(3 * TICK, clock=ticks())
    attempts_of(poll, 5000, one_pays_of=NEVER)
    attempts = attempts_of(poll, CALLS_PER_POLL_MAX + 1000, one_pays_of=1)
    assert sum(attempts[:CALLS_PER_POLL_MAX]) >= 1
    assert attempts[CALLS_PER_POLL_MAX + 30 :] == [True] * 970


class CountingPoll(BusyPoll):
    """Notes how long trio would sleep, and whether bytes have come instead."""

    def __init__(self):
        super().__init__(5.0)
        self.paid = []

    def _note(self, *, pays):
        super()._note(pays=pays)
        self.paid.append(pays)


async def test_bytes_that_come_while_the_thread_polls_are_received_without_a_sleep(monkeypatch):
    # The thread that sends takes the interpreter meanwhile.
    monkeypatch.setattr(busy_poll, "YIELD_S_MAX", math.inf)
    poll = CountingPoll()
    ours, theirs = map(SocketTransport, socket.socketpair())
    with poll.used():
        with polled(ours):
            await theirs.send_all(b"soon")
            assert await ours.receive_some() == b"soon"
            poll.paid.clear()

            async def receive():
                assert await ours.receive_some() == b"later"

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                nursery.start_soon(trio.to_thread.run_sync, theirs.send_now, b"later")
            assert True in poll.paid
        poll.paid.clear()
        await trio.sleep(0.001)
        # No stream is polled for any more.
        assert poll.paid == []
    for stream in (ours, theirs):
        await stream.aclose()


async def test_a_poll_ends_before_a_deadline_passes():
    poll = CountingPoll()
    ours, theirs = map(SocketTransport, socket.socketpair())
    with poll.used(), polled(ours), trio.fail_after(4):
        await trio.sleep(0.001)
    assert poll.paid
    for stream in (ours, theirs):
        await stream.aclose()


async def test_without_a_poll_in_this_run_nothing_is_polled_for():
    ours, theirs = map(SocketTransport, socket.socketpair())
    with polled(ours):
        pass
    for stream in (ours, theirs):
        await stream.aclose()


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu.max": "100000 0\n"}, math.inf),
        ({"cpu.max": ""}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, math.inf),
        ({}, math.inf),
    ],
)
def test_a_container_sees_its_quota_in_either_version_of_control_groups(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("cores", "quota", "has_some"),
    [
        (1, math.inf, False),
        (2, math.inf, True),
        (64, 1.0, False),
        (64, 0.5, False),
        (64, 1.5, True),
        (1, 2.0, False),
    ],
)
def test_a_process_has_cores_to_spare_with_more_than_one_by_affinity_and_quota(
    monkeypatch, cores, quota, has_some
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(busy_poll, "cpu_quota", lambda: quota)
    assert has_cores_to_spare() is has_some

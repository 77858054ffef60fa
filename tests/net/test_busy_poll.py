"""Busy polling: how long, how often, and what is received meanwhile, over real sockets."""

from functools import partial
from itertools import count

import pytest
import trio
from attrs import evolve

from tests.ha.support import SETTINGS, ended, make_master
from tests.ha.test_push import in_step, slave_of
from tests.store.support import message, open_log
from tests.waiting import until
from trioha.ha.frames import REPORT
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.net.busy_poll import CALLS_PER_POLL_MAX, BusyPoll
from trioha.net.transport import CALLS_PER_TURN, IN_STEP_BYTES_MAX, POLLED_S_PER_CALL, SocketTransport
from trioha.recording.events import CloseReason, Kind
from trioha.store.put_status import PutStatus

PATIENT = evolve(SETTINGS, busy_poll_s=5.0)


def ticks():
    """A clock that advances by a tick whenever it is read."""
    return count(1.0).__next__


def polls_of(poll, *, succeeds=False):
    """How often one call polls."""
    seen = []

    def check():
        seen.append(1)
        return succeeds

    assert poll.until(check) is succeeds or not seen
    return len(seen)


def test_a_poll_lasts_until_the_limit_or_its_success_and_knows_how_long_it_took():
    poll = BusyPoll(10.0, clock=ticks())
    assert polls_of(poll) == 9
    assert polls_of(poll, succeeds=True) == 1
    answers = iter([False, False, True])
    assert poll.until(lambda: next(answers))
    assert poll.took_s == 3.0


def polled(poll, calls, *, one_pays_of):
    """Which calls poll, where one poll of so many pays."""
    attempts, polls = [], 0
    for _ in range(calls):
        attempts.append(polls_of(poll, succeeds=polls % one_pays_of == one_pays_of - 1) > 0)
        polls += attempts[-1]
    return attempts


NEVER = 1 << 30


@pytest.mark.parametrize("one_pays_of", [1, 3, 12, 100, NEVER])
def test_calls_poll_no_more_often_than_polls_pay(one_pays_of):
    poll = BusyPoll(3.0, clock=ticks())
    polled(poll, 5000, one_pays_of=one_pays_of)
    share = sum(polled(poll, 50_000, one_pays_of=one_pays_of)) / 50_000
    least = 1 / CALLS_PER_POLL_MAX
    assert 0.99 * least <= share <= max(1.4 / one_pays_of, 1.1 * least)


def test_some_failures_are_no_reason_to_stop():
    poll = BusyPoll(3.0, clock=ticks())
    attempts = polled(poll, 5000, one_pays_of=NEVER)
    assert attempts[:8] == [True] * 6 + [False, True]
    assert sum(attempts[-CALLS_PER_POLL_MAX:]) == 1
    # What polls in vain cost until then.
    assert sum(attempts[:2000]) < 45


def test_polls_that_pay_again_are_usual_again():
    poll = BusyPoll(3.0, clock=ticks())
    polled(poll, 5000, one_pays_of=NEVER)
    attempts = polled(poll, CALLS_PER_POLL_MAX + 1000, one_pays_of=1)
    assert sum(attempts[:CALLS_PER_POLL_MAX]) >= 1
    assert attempts[CALLS_PER_POLL_MAX + 30 :] == [True] * 970


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    return log


def commit_of(master, log, replicas, events, *, copies_needed=1):
    return GroupCommit(
        GroupCommitSettings(
            copies_needed=copies_needed, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
        ),
        replicas=replicas,
        flushed=log.flushed,
        sink=events,
        push=master.push,
        poll_acks=master.poll_acks,
    )


async def answer_next(peer, *, until_offset=0):
    """Acknowledge the next frame, and those after it up to an offset."""
    offset = -1
    while offset < until_offset:
        frame_offset, body = await peer.next_frame()
        offset = frame_offset + len(body)
        await peer.report(offset)


def wait(commit, stored, request_id=1):
    return commit.wait(stored, request_id=request_id, answer=lambda status, _appended, _now_s: status)


async def test_a_single_waiting_put_is_released_by_the_ack_that_it_polled(log, monkeypatch):
    master, replicas, events = make_master(log, settings=PATIENT)
    async with slave_of(master) as peer:
        await in_step(log, peer)
        commit = commit_of(master, log, replicas, events)
        # The ack is there before the poll: none is left for the reader task.
        monkeypatch.setattr(trio.lowlevel, "checkpoint", lambda: answer_next(peer))
        assert await wait(commit, log.append(message())) is PutStatus.PUT_OK
        monkeypatch.undo()
        (connection,) = master.connections()
        assert connection.ack_offset == log.max_offset
        assert len(events.of(Kind.ACK)) == 3
        assert connection.last_received_ms < 1000


async def test_puts_that_wait_together_do_not_poll(log, monkeypatch):
    master, replicas, events = make_master(log, settings=PATIENT)
    async with slave_of(master) as peer:
        await in_step(log, peer)
        commit = commit_of(master, log, replicas, events)
        polled = []
        monkeypatch.setattr(commit, "_poll_acks", polled.append)
        async with trio.open_nursery() as nursery:
            for index in range(3):
                nursery.start_soon(wait, commit, log.append(message()), index)
            nursery.start_soon(partial(answer_next, peer, until_offset=log.max_offset))
        assert polled == []


async def test_after_a_failed_poll_the_put_waits_on(log):
    master, replicas, events = make_master(log, settings=evolve(SETTINGS, busy_poll_s=0.001))
    async with slave_of(master) as peer:
        await in_step(log, peer)
        commit = commit_of(master, log, replicas, events)
        stored = log.append(message())
        statuses = []

        async def put():
            statuses.append(await wait(commit, stored))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put)
            await peer.next_frame()
            assert statuses == []
            await peer.report(stored.end_offset)
        assert statuses == [PutStatus.PUT_OK]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (REPORT.pack(10**9), CloseReason.ACK_BEYOND_SENT),
        (REPORT.pack(0), CloseReason.ACK_WENT_BACK),
        (b"", CloseReason.EOF),
    ],
    ids=["beyond what was sent", "back", "the end"],
)
async def test_anything_but_a_valid_ack_is_left_for_the_reader(log, data, reason):
    master, _, _ = make_master(log, settings=evolve(SETTINGS, busy_poll_s=0.001))
    async with slave_of(master) as peer:
        await in_step(log, peer)
        (connection,) = master._connections.values()
        stored = log.append(message())
        master.push(0)
        await peer.next_frame()
        if data:
            await peer.stream.send_all(data)
        else:
            await peer.stream.aclose()
        await until(connection._stream.is_readable)
        connection.poll_acks()
        assert connection.progress.ack_offset == stored.physical_offset
        await ended(connection)
        assert connection.progress.close_reason is reason


async def test_an_incomplete_report_is_left_until_it_is_complete(log):
    master, _, _ = make_master(log)
    async with slave_of(master) as peer:
        await in_step(log, peer)
        (connection,) = master._connections.values()
        stored = log.append(message())
        master.push(0)
        report = REPORT.pack(stored.end_offset)
        await peer.stream.send_all(report[:3])
        connection.poll_acks()
        await trio.sleep(0.02)
        await peer.stream.send_all(report[3:])
        connection.poll_acks()
        await until(lambda: connection.progress.ack_offset >= stored.end_offset)
        assert connection.progress.close_reason is CloseReason.NONE


class SendingPoll(BusyPoll):
    """Sends the byte that it waits for, and says how long that took."""

    def __init__(self, far, *, took_s):
        super().__init__(0.0)
        self.far = far
        self.took_s = took_s

    def until(self, poll):
        assert self.far.send_now(b"x") == 1
        while not poll():
            pass
        return True


@pytest.mark.parametrize(("took_s", "others_run"), [(0.0, False), (CALLS_PER_TURN * POLLED_S_PER_CALL, True)])
async def test_other_tasks_run_between_long_polls(took_s, others_run):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    far = SocketTransport.from_stream(await trio.open_tcp_stream(*listeners[0].socket.getsockname()))
    near = SocketTransport.from_stream(await listeners[0].accept())
    near.busy_poll = SendingPoll(far, took_s=took_s)
    found = 0

    async def take_turns():
        nonlocal found
        while True:
            await trio.lowlevel.checkpoint()
            found += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        while not found:
            await trio.lowlevel.checkpoint()
        before = found
        for _ in range(3):
            assert await near.receive_into(memoryview(bytearray(10))) == 1
        assert (found > before) is others_run
        nursery.cancel_scope.cancel()
    for stream in (far, near, *listeners):
        await stream.aclose()


class NoPoll(BusyPoll):
    """Must not be used: after a large receive the next bytes are waited for."""

    def until(self, poll):
        raise AssertionError("polled for while much comes")


async def test_a_polling_receiver_gets_the_same_bytes_and_end_as_a_waiting_one():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    far = await trio.open_tcp_stream(*listeners[0].socket.getsockname())
    near = SocketTransport.from_stream(await listeners[0].accept())
    near.busy_poll = BusyPoll(0.001)
    buffer = memoryview(bytearray(100))
    async with trio.open_nursery() as nursery:

        async def send_late():
            await trio.sleep(0.02)
            await far.send_all(b"late")

        nursery.start_soon(send_late)
        assert await near.receive_into(buffer) == 4
    near.busy_poll = BusyPoll(5.0)
    await far.send_all(b"soon")
    assert await near.receive_into(buffer) == 4
    near.busy_poll = None
    large = memoryview(bytearray(IN_STEP_BYTES_MAX + 1))
    await far.send_all(large)
    await until(lambda: len(near.peek(len(large))) == len(large))
    assert await near.receive_into(large) == len(large)
    near.busy_poll = NoPoll(0.0)
    with trio.move_on_after(0.02):
        await near.receive_into(buffer)
    await far.aclose()
    assert await near.receive_into(buffer) == 0
    await near.aclose()
    await listeners[0].aclose()

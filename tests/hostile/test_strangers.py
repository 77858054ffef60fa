"""The checks find the answers of a broken node, and what it leaks."""

import os
import random
import socket
from functools import partial

import pytest
import trio
from attrs import evolve

from tests.hostile import strangers
from tests.hostile.counters import ConnectionCounters
from tests.hostile.frame import Frame, Lane, Outcome
from tests.hostile.generator import frame_of
from tests.hostile.health import Health
from tests.hostile.hostile_master import HostileMaster
from tests.hostile.requesting import good_call
from tests.hostile.requests import REQUESTS
from tests.hostile.strangers import PROBE_CODE, Target, play, reset, talk
from tests.waiting import until
from trioha.ha.frames import REPORT
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import response_to


def request_frame(*, index=5, outcome=Outcome.ANSWERED, refused=False):
    call = good_call(random.Random(index), index, row=REQUESTS[0])
    call.opaque = index
    return Frame(
        1, index, Lane.MASTER, "good", "a request", outcome, (call.encode(),), opaque=index,
        must_be_refused=refused,
    )  # fmt: skip


async def answering(stream, *, answer):
    """A node that answers as `answer` says, and unknown requests as every node does."""
    decoder = FrameDecoder()
    async with stream:
        async for data in stream:
            decoder.feed(data)
            while (command := decoder.next_command()) is not None:
                if command.code == PROBE_CODE:
                    unknown = response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
                    await stream.send_all(encode(unknown))
                elif await answer(stream, command) is False:
                    return


async def judged(serve, act):
    """What a stranger finds at a node that serves so: `act` is what the stranger does."""
    counters = ConnectionCounters()
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        await act(Target("node", listeners[0].socket.getsockname()[1]), counters=counters)
        nursery.cancel_scope.cancel()
    return [finding.what for finding in counters.findings]


def answer_with(code=ResponseCode.SUCCESS, *, remark=None, times=1, opaque=None):
    async def answer(stream, command):
        response = response_to(command, code, remark=remark)
        await stream.send_all(encode(response, opaque=opaque) * times)

    return answer


async def hang_up(stream, command):
    return False


async def no_answer(stream, command):
    return None


HANGS = "within 0.3 s"


@pytest.mark.parametrize(
    ("answer", "refused", "found"),
    [
        (answer_with(), False, []),
        (answer_with(ResponseCode.SYSTEM_ERROR, remark="request header field d is missing"), True, []),
        (answer_with(), True, ["took what it must refuse, code 0"]),
        (answer_with(ResponseCode.FLUSH_SLAVE_TIMEOUT), True, ["took what it must refuse, code 12"]),
        (answer_with(ResponseCode.SYSTEM_ERROR, remark="ValueError: x"), False, ["failed: ValueError: x"]),
        (answer_with(times=2), False, ["answered opaque 5, never asked"]),
        (answer_with(opaque=6), False, ["answered opaque 6, never asked", f"did not answer {HANGS}"]),
        (hang_up, False, ["closed a connection that had to stay"]),
        (no_answer, False, [f"did not answer {HANGS}"]),
    ],
)
async def test_an_answer_is_judged(answer, refused, found, monkeypatch):
    if any(HANGS in line for line in found):
        monkeypatch.setattr(strangers, "HANG_S", 0.3)
    act = partial(talk, batch=[request_frame(refused=refused)])
    assert await judged(partial(answering, answer=answer), act) == [f"node {line}" for line in found]


async def test_a_node_that_leaves_a_connection_open_that_it_must_close_is_found(monkeypatch):
    async def keeps(stream):
        await trio.sleep_forever()

    monkeypatch.setattr(strangers, "HANG_S", 0.3)
    ending = evolve(request_frame(index=6), outcome=Outcome.CLOSED)
    report = Frame(1, 1, Lane.HA_MASTER, "ha-negative", "-2", Outcome.CLOSED, (REPORT.pack(-2),))
    for serve, act in (
        (partial(answering, answer=answer_with()), partial(talk, batch=[ending])),
        (keeps, partial(play, frame=report)),
    ):
        assert await judged(serve, act) == [f"node did not close the connection {HANGS}"]


def test_descriptors_and_threads_that_are_kept_are_found():
    before = Health.of(os.getpid())
    assert before.growth_beyond(before, files_max=0) == []
    kept = socket.socket()
    try:
        after = Health.of(os.getpid())
    finally:
        kept.close()
    (problem,) = [line for line in after.growth_beyond(before, files_max=0) if "socket" in line]
    assert problem.endswith("by 1")
    more = evolve(before, private_kb=before.private_kb + 100 * 1024, threads=before.threads + 3)
    assert len(more.growth_beyond(before, files_max=0)) == 2


async def test_a_frame_for_a_slave_that_has_hung_up_is_counted(tmp_path):
    frame = next(one for one in (frame_of(1, index) for index in range(20_000)) if one.lane is Lane.TRANSFER)
    counters = ConnectionCounters()
    master = HostileMaster(tmp_path, file_bytes=64 * 1024)
    to_master, frames = trio.open_memory_channel[Frame](0)
    try:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(master.run, frames, counters)
            slave = await trio.open_tcp_stream("127.0.0.1", port)
            await slave.send_all(REPORT.pack(0))
            await until(lambda: frames.statistics().tasks_waiting_receive)
            reset(slave)
            await slave.aclose()
            await to_master.send(frame)
            await until(lambda: counters.done)
            nursery.cancel_scope.cancel()
    finally:
        master.close()
    assert (counters.findings, counters.in_flight, counters.done) == ([], set(), 1)

"""How a server's connection handles runs of sends: answers, limits, failures, and their ends."""

import struct
import sys

import pytest
import trio
import trio.testing
from attrs import define, field

from tests.remoting.serving import WITHIN_S, Later, failing, read_command, served_stream
from tests.remoting.test_send_runs import send
from tests.waiting import until
from trioha.remoting.codec import FrameDecoder, encode, opaques_of
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import RemotingCommand, request, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.server import RemotingServer, ServerLimits

BY_ITSELF = 77
"""Code of the answers to sends that came to the handler of requests."""


@define
class Runs:
    """A handler of runs that notes them; `way` says what it does."""

    way: str = "now"
    wait_for_the_same: bool = False
    shared_properties: bytes = b""
    seen: list[list[int]] = field(factory=list)
    later: list[Later] = field(factory=list)
    blocks: list[bytes] = field(factory=list)

    def put(self, sends, data, peer):
        self.blocks.append(data)
        opaques = opaques_of(sends)
        self.seen.append(opaques)
        if self.way == "refuse":
            return None
        if self.way == "fail":
            raise RuntimeError("planted")
        frames = b"".join(encode(RemotingCommand(0, opaque, 1)) for opaque in opaques if not sends.is_oneway)
        if self.way == "now":
            return frames
        marks = None if self.wait_for_the_same else len(self.later)
        self.later.append(Later(failing if self.way == "fail later" else lambda: frames, marks))
        return self.later[-1]


def by_itself(asked, peer):
    return response_to(asked, BY_ITSELF)


def server_with(runs, **limits):
    return RemotingServer(by_itself, Connections(ServerLimits(**limits)), runs=runs)


async def answers(stream, count):
    """Opaque and code of the next `count` answers."""
    decoder, found = FrameDecoder(), []
    with trio.fail_after(WITHIN_S):
        for _ in range(count):
            answer = await read_command(stream, decoder)
            found.append((answer.opaque, answer.code))
    return found


def sends(opaques, *, oneway=False):
    return b"".join(send(opaque=opaque, oneway=oneway) for opaque in opaques)


def counted(server):
    """Requests, one-way requests, responses, requests in flight."""
    statistics = server.statistics
    return statistics.requests, statistics.oneway_requests, statistics.responses, statistics.in_flight


async def test_sends_that_come_together_are_handled_together_and_other_requests_between_them():
    runs = Runs()
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(3)) + encode(request(11), opaque=3) + sends(range(4, 30)))
        assert await answers(stream, 30) == [
            (number, BY_ITSELF if number == 3 else 0) for number in range(30)
        ]
        assert runs.seen == [[0, 1, 2], [*range(4, 16)], [*range(16, 30)]]
        assert counted(server) == (30, 0, 30, 0)
        assert server.statistics.held_bytes <= 16 * 1024


async def test_a_send_whose_frame_comes_in_two_parts_is_not_lost():
    data = sends(range(5))
    async with served_stream(server_with(Runs())) as stream:
        for at in range(1, len(data), len(data) // 7):
            await stream.send_all(data[:at])
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(data[at:])
            assert [opaque for opaque, _ in await answers(stream, 5)] == [*range(5)]


async def test_a_refused_run_comes_to_the_handler_send_by_send_and_the_next_run_is_tried_again():
    runs = Runs("refuse")
    async with served_stream(server_with(runs)) as stream:
        await stream.send_all(sends(range(4)))
        assert await answers(stream, 4) == [(number, BY_ITSELF) for number in range(4)]
        runs.way = "now"
        await stream.send_all(sends(range(4, 6)))
        assert await answers(stream, 2) == [(4, 0), (5, 0)]
        assert runs.seen == [[0, 1, 2, 3], [4, 5]]


async def test_a_run_beyond_a_limit_comes_to_the_handler_send_by_send():
    runs = Runs()
    async with served_stream(server_with(runs, in_flight_max=3)) as stream:
        await stream.send_all(sends(range(4)))
        assert await answers(stream, 4) == [(number, BY_ITSELF) for number in range(4)]
        await stream.send_all(sends(range(4, 7)))
        assert await answers(stream, 3) == [(4, 0), (5, 0), (6, 0)]
        assert runs.seen == [[4, 5, 6]]


async def two_runs(runs, stream):
    """Two sends, and three that come when those wait."""
    await stream.send_all(sends(range(2)))
    await until(lambda: len(runs.later) == 1)
    await stream.send_all(sends(range(2, 5)))
    await until(lambda: len(runs.later) == 2)


async def test_answers_to_runs_that_wait_for_other_things_come_in_any_order():
    runs = Runs("later")
    server = server_with(runs)
    async with served_stream(server) as stream:
        await two_runs(runs, stream)
        assert server.statistics.in_flight == 5
        runs.later[1].give()
        assert await answers(stream, 3) == [(2, 0), (3, 0), (4, 0)]
        runs.later[0].give()
        assert await answers(stream, 2) == [(0, 0), (1, 0)]
        await until(lambda: server.statistics.in_flight == 0)
        assert server.statistics.responses == 5


async def test_runs_that_wait_for_the_same_are_answered_in_their_order():
    runs = Runs("later", wait_for_the_same=True)
    server = server_with(runs)
    async with served_stream(server) as stream:
        await two_runs(runs, stream)
        runs.later[1].give()
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.responses == 0
        runs.later[0].give()
        assert await answers(stream, 5) == [(number, 0) for number in range(5)]


async def test_a_run_that_waits_does_not_keep_the_block_that_was_received_with_it():
    runs = Runs("later")
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(2)) + encode(request(11, body=bytes(10_000)), opaque=2))
        await until(lambda: len(runs.later) == 1 and server.statistics.responses == 1)
        # The reader has its last block until it gets another one.
        await stream.send_all(encode(request(11), opaque=3))
        await until(lambda: server.statistics.responses == 2)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.in_flight == 2
        assert len(runs.blocks[0]) > 10_000
        # That of this test's list, and that of the call.
        references = sys.getrefcount(runs.blocks[0])
        assert references == 2
        runs.later[0].give()
        assert len(await answers(stream, 4)) == 4


@pytest.mark.parametrize("oneway", [False, True])
@pytest.mark.parametrize("way", ["fail", "fail later"])
async def test_a_fault_of_the_handler_is_counted_for_each_send_and_its_answer_if_it_gets_one(way, oneway):
    runs = Runs(way)
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(3), oneway=oneway))
        if way == "fail later":
            await until(lambda: len(runs.later) == 1)
            runs.later[0].give()
        if not oneway:
            assert await answers(stream, 3) == [(number, ResponseCode.SYSTEM_ERROR) for number in range(3)]
        await until(lambda: server.statistics.handler_errors == 3)
        runs.way = "now"
        await stream.send_all(sends(range(3, 5), oneway=oneway) + sends(range(5, 6)))
        goes_on = [(5, 0)] if oneway else [(3, 0), (4, 0), (5, 0)]
        assert await answers(stream, len(goes_on)) == goes_on
        await until(lambda: server.statistics.in_flight == 0)
        assert counted(server) == ((6, 5, 1, 0) if oneway else (6, 0, 6, 0))


@pytest.mark.parametrize("oneway", [False, True])
async def test_the_memory_of_a_run_whose_connection_ends_is_free(oneway):
    runs = Runs("later")
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(3), oneway=oneway))
        await until(lambda: len(runs.later) == 1)
        await stream.aclose()
        await until(lambda: server.statistics.held_bytes == 0)
        assert counted(server) == (3, 0, 0, 0)


async def test_a_run_behind_a_frame_that_breaks_the_protocol_is_answered_and_the_connection_closed():
    runs = Runs()
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(2)) + struct.pack(">I", 2) + b"xxxx")
        with trio.fail_after(WITHIN_S):
            while await stream.receive_some(65536):
                pass
        assert runs.seen == [[0, 1]]
        assert server.statistics.protocol_errors == 1


# -- one-way sends -------------------------------------------------------------------------------------------


async def test_one_way_sends_are_handled_together_apart_from_others_and_not_answered():
    runs = Runs()
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(
            sends(range(3), oneway=True)
            + sends(range(3, 5))
            + sends(range(5, 25), oneway=True)
            + sends(range(25, 26))
        )
        assert await answers(stream, 3) == [(3, 0), (4, 0), (25, 0)]
        assert runs.seen == [[0, 1, 2], [3, 4], [*range(5, 16)], [*range(16, 25)], [25]]
        await until(lambda: server.statistics.in_flight == 0)
        assert counted(server) == (26, 23, 3, 0)
        # What a memory stream is read from with.
        assert server.statistics.held_bytes <= 16 * 1024


@pytest.mark.parametrize("is_alone", [True, False])
async def test_one_way_sends_are_in_flight_until_their_waits_end(is_alone):
    runs = Runs("later")
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(3), oneway=True) + (b"" if is_alone else sends(range(3, 5))))
        await until(lambda: len(runs.later) == 2 - is_alone)
        assert counted(server) == (5 - 2 * is_alone, 0, 0, 5 - 2 * is_alone)
        runs.later[0].give()
        await until(lambda: server.statistics.oneway_requests == 3)
        await trio.testing.wait_all_tasks_blocked()
        assert counted(server) == (5 - 2 * is_alone, 3, 0, 2 - 2 * is_alone)
        if not is_alone:
            runs.later[1].give()
            assert await answers(stream, 2) == [(3, 0), (4, 0)]
        await until(lambda: server.statistics.in_flight == 0)
        assert server.statistics.held_bytes <= 16 * 1024


async def test_one_way_sends_in_flight_keep_no_answer_from_being_sent():
    runs = Runs("later")
    server = server_with(runs)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(2), oneway=True) + sends(range(2, 4)))
        await until(lambda: len(runs.later) == 2)
        runs.later[1].give()
        assert await answers(stream, 2) == [(2, 0), (3, 0)]
        assert counted(server)[3] == 2


async def test_one_way_sends_beyond_a_limit_wait_for_those_in_flight():
    runs = Runs("later")
    server = server_with(runs, in_flight_max=4)
    async with served_stream(server) as stream:
        await stream.send_all(sends(range(4), oneway=True))
        await until(lambda: len(runs.later) == 1)
        await stream.send_all(sends(range(4, 6), oneway=True))
        await trio.testing.wait_all_tasks_blocked()
        assert counted(server) == (4, 0, 0, 4)
        runs.later[0].give()
        # Refused as a run, they came to the handler of requests.
        await until(lambda: counted(server) == (6, 6, 0, 0))
        assert len(runs.later) == 1


async def test_draining_waits_for_one_way_runs_in_flight():
    runs = Runs("later")
    server = server_with(runs)
    async with served_stream(server) as stream, trio.open_nursery() as nursery:
        await stream.send_all(sends(range(3), oneway=True))
        await until(lambda: len(runs.later) == 1)
        nursery.start_soon(server.drain)
        await trio.testing.wait_all_tasks_blocked()
        assert counted(server) == (3, 0, 0, 3)
        runs.later[0].give()
        with trio.fail_after(WITHIN_S):
            assert await stream.receive_some(1) == b""
    assert counted(server) == (3, 3, 0, 0)

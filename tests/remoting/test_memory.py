"""The memory of all connections: never exceeded, without deadlock, and honest clients are answered."""

import gc
import random
import resource
import subprocess
import sys
import tracemalloc
from collections import Counter
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from attrs import evolve
from structlog.testing import capture_logs

from tests.levels import by_level
from tests.remoting.serving import PEER_ADDRESS, read_command
from tests.remoting.streams import MemoryTransport, transport_pair
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import request, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.in_flight import HEADER_FACTOR, KEPT_BYTES, REQUEST_BYTES, WAITING_BYTES
from trioha.remoting.memory import bytes_max_for
from trioha.remoting.server import RemotingServer, ServerLimits
from trioha.remoting.serving import WaitingAnswer
from trioha.remoting.system_memory import (
    HEADROOM_BYTES,
    can_allocate,
    may_refuse_memory,
    promises_what_it_has,
)

FRAME_BYTES_MAX = 512 * 1024
TOTAL_BYTES_MAX = 4 * 1024 * 1024
LIMITS = ServerLimits(total_bytes_max=TOTAL_BYTES_MAX, frame_bytes_max=FRAME_BYTES_MAX, connections_max=64)
LARGE = encode(request(310, body=bytes(FRAME_BYTES_MAX - 2000)), opaque=7)


def acknowledge(asked, peer):
    return response_to(asked, 0)


@asynccontextmanager
async def serving(handler=acknowledge, limits=LIMITS):
    """A server; after the block its connections are cancelled, and it must hold no memory."""
    async with trio.open_nursery() as nursery:
        with capture_logs():
            server = Server(handler, limits, nursery)
            yield server
            nursery.cancel_scope.cancel()
    statistics = server.statistics
    assert statistics.held_bytes == server.connections.memory.aside_bytes == 0
    assert statistics.largest_held_bytes <= limits.total_bytes_max
    assert statistics.bugs == 0


class Server(RemotingServer):
    """A server with connections over memory streams."""

    def __init__(self, handler, limits, nursery):
        super().__init__(handler, Connections(limits))
        self._nursery = nursery
        self.served: list[MemoryTransport] = []

    def connect(self, capacity_bytes=64 * 1024):
        ours, theirs = transport_pair(capacity_bytes)
        self.served.append(theirs)
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream):
        await self.serve_stream(stream, PEER_ADDRESS)
        await stream.aclose()


async def send(stream, data):
    """Send; the server may close the connection meanwhile."""
    with suppress(trio.BrokenResourceError):
        await stream.send_all(data)


async def asked(stream, number):
    """Send a request; the opaque of its answer."""
    await stream.send_all(encode(request(310, body=bytes(3000)), opaque=number))
    return (await read_command(stream)).opaque


@pytest.mark.parametrize("sent_bytes", [8, len(LARGE) // 2], ids=["a length", "half a frame"])
async def test_unfinished_frames_of_many_peers_leave_memory_for_others_to_be_answered_at_once(
    sent_bytes, autojump_clock
):
    moments = []

    async def honest(server):
        stream = server.connect()
        for number in range(100):
            asked_s = trio.current_time()
            assert await asked(stream, number) == number
            moments.append((asked_s, trio.current_time()))
            await trio.sleep(0.1)

    async with serving() as server:
        async with trio.open_nursery() as peers:
            hostile = [server.connect() for _ in range(55)]
            for stream in hostile:
                peers.start_soon(send, stream, LARGE[:sent_bytes])
            for _ in range(5):
                peers.start_soon(honest, server)
        # Who sends a length alone waits for no room.
        is_half = sent_bytes > 8
        assert (server.statistics.memory_waits > 0) is (server.statistics.memory_closes > 0) is is_half
    assert len(moments) == 500
    assert all(asked_s == answered_s for asked_s, answered_s in moments)


async def test_without_system_memory_unfinished_frames_of_others_make_room_for_a_request(
    autojump_clock, monkeypatch
):
    receive_now = MemoryTransport.receive_now
    system_bytes = TOTAL_BYTES_MAX

    def receive_if_memory_is_left(stream, max_bytes):
        if stream in server.served and server.statistics.held_bytes > system_bytes:
            raise MemoryError
        return receive_now(stream, max_bytes)

    async with serving() as server:
        monkeypatch.setattr(MemoryTransport, "receive_now", receive_if_memory_is_left)
        honest = server.connect()
        async with trio.open_nursery() as peers:
            for _ in range(5):
                peers.start_soon(send, server.connect(), LARGE[: len(LARGE) // 2])
            await trio.testing.wait_all_tasks_blocked()
            system_bytes = server.statistics.held_bytes // 2
            for number in range(100):
                assert await asked(honest, number) == number
        assert server.statistics.memory_closes > 0
        # No other connection has an unfinished frame that could make room.
        system_bytes = -1
        with suppress(trio.BrokenResourceError):
            await honest.send_all(encode(request(310), opaque=100))
        assert await read_command(honest) is None
        assert server.statistics.shortages > 0


async def test_unfinished_frames_leave_headroom_of_the_systems_memory(autojump_clock, monkeypatch):
    system_bytes = len(LARGE) + HEADROOM_BYTES

    def is_left(count):
        return server.statistics.held_bytes + count <= system_bytes

    async with serving() as server:
        monkeypatch.setattr("trioha.remoting.system_memory.can_allocate", is_left)
        monkeypatch.setattr("trioha.remoting.system_memory.may_refuse_memory", lambda: True)
        honest = server.connect()
        async with trio.open_nursery() as peers:
            for _ in range(5):
                peers.start_soon(send, server.connect(), LARGE[: len(LARGE) // 2])
            await trio.testing.wait_all_tasks_blocked()
            assert server.statistics.held_bytes <= len(LARGE)
            assert server.statistics.memory_closes + server.statistics.shortages >= 3
            for number in range(100):
                assert await asked(honest, number) == number


def test_the_system_is_asked_for_memory():
    assert can_allocate(HEADROOM_BYTES)
    # More than any address space.
    assert not can_allocate(1 << 60)


@pytest.mark.parametrize("limit", ["-v", "-d"])
def test_a_process_with_a_limit_may_be_refused_memory(limit):
    asked = "from trioha.remoting.system_memory import may_refuse_memory; print(may_refuse_memory())"
    command = ["sh", "-c", f'ulimit -S {limit} 8000000 && exec "$@"', "sh", sys.executable, "-c", asked]
    assert subprocess.check_output(command, text=True).strip() == "True"


@pytest.mark.parametrize(("setting", "expected"), [("0", False), ("1", False), ("2", True), (None, True)])
def test_without_limits_the_kernel_may_refuse_memory_if_it_promises_what_it_has(
    monkeypatch, tmp_path, setting, expected
):
    if setting is not None:
        (tmp_path / "overcommit_memory").write_text(f"{setting}\n")
    assert promises_what_it_has(tmp_path / "overcommit_memory") is expected
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr("trioha.remoting.system_memory._IS_STRICT", expected)
    assert may_refuse_memory() is expected


async def test_one_connection_alone_completes_the_largest_frame_in_the_smallest_memory(autojump_clock):
    limits = ServerLimits(total_bytes_max=bytes_max_for(FRAME_BYTES_MAX), frame_bytes_max=FRAME_BYTES_MAX)
    frames = [
        encode(request(310, body=bytes(FRAME_BYTES_MAX - 200)), opaque=1),
        # As much of it as can be is header, which costs more than its bytes.
        encode(request(310, ext_fields={"a": "x" * (FRAME_BYTES_MAX - 200)}), opaque=1),
    ]
    async with serving(limits=limits) as server:
        for frame in frames:
            assert FRAME_BYTES_MAX - 200 < len(frame) <= FRAME_BYTES_MAX
            stream = server.connect()
            await stream.send_all(frame)
            assert await read_command(stream) is not None
        assert trio.current_time() == 0.0


def test_a_memory_too_small_for_its_frames_is_refused():
    with pytest.raises(ValueError, match="not enough for frames of 524288 bytes: at least 3211264"):
        ServerLimits(total_bytes_max=3_211_263, frame_bytes_max=FRAME_BYTES_MAX)


async def test_large_frames_get_their_memory_one_after_the_other_and_none_is_ended(autojump_clock):
    answered = 0

    async def ask(stream):
        nonlocal answered
        # Frames that are read wait in the middle, as on a slow network.
        await send(stream, LARGE[: len(LARGE) // 2])
        await trio.sleep(1)
        await send(stream, LARGE[len(LARGE) // 2 :])
        answer = await read_command(stream)
        answered += answer is not None

    async with serving() as server:
        async with trio.open_nursery() as peers:
            for _ in range(30):
                peers.start_soon(ask, server.connect())
        assert (answered, server.statistics.memory_closes) == (30, 0)


@pytest.mark.parametrize("sent_bytes", [8, len(LARGE) - 1], ids=["a length", "all but a byte"])
async def test_large_frames_are_answered_among_a_crowd_whose_frames_never_end(sent_bytes, autojump_clock):
    """Closed peers reconnect and begin again: they must not keep the memory that the others wait for."""
    answered = Counter()

    async def insist(server):
        while True:
            stream = server.connect()
            await send(stream, LARGE[:sent_bytes])
            assert await read_command(stream) is None
            await stream.aclose()

    async def ask(server, name):
        while True:
            stream = server.connect()
            await stream.send_all(LARGE)
            answered[name] += await read_command(stream) is not None
            await stream.aclose()
            await trio.sleep(0.1)

    async with serving() as server:
        async with trio.open_nursery() as peers:
            for _ in range(50):
                peers.start_soon(insist, server)
            for name in range(5):
                peers.start_soon(ask, server, name)
            await trio.sleep(60)
            peers.cancel_scope.cancel()
        assert server.statistics.memory_closes > 0
    # Three or more fit at a time, every two seconds: each of 55 has its turn within 37.
    assert len(answered) == 5


async def test_a_frame_that_does_not_use_its_reserve_ends_while_others_wait_for_it(autojump_clock):
    async with serving() as server:
        liars = [server.connect() for _ in range(20)]
        async with trio.open_nursery() as peers:
            for stream in liars:
                peers.start_soon(send, stream, LARGE[:-1])
            await trio.sleep(3)
            # Some of the first are closed; the next ones are read, and the others wait.
            assert 3 <= server.statistics.memory_closes <= 6
            honest = server.connect()
            peers.start_soon(send, honest, LARGE)
            assert await read_command(honest) is not None
            # Three or more of them end every two seconds.
            assert trio.current_time() <= 7 * LIMITS.room_timeout_s


async def test_slow_peers_are_closed_before_peers_that_the_server_did_not_read_from(autojump_clock):
    async with serving() as server:
        slow = [server.connect() for _ in range(8)]
        for stream in slow:
            await stream.send_all(LARGE[:240_000])
        await trio.sleep(5)
        results = []

        async def ask(stream):
            await send(stream, LARGE)
            results.append(await read_command(stream))

        async with trio.open_nursery() as peers:
            for _ in range(5):
                peers.start_soon(ask, server.connect())
        assert [result is not None for result in results] == [True] * 5
        assert 1 <= server.statistics.memory_closes <= 8


async def test_unfinished_frames_are_kept_while_requests_in_flight_hold_the_memory(autojump_clock):
    """Those end by themselves."""

    async def slow(asked, peer):
        await trio.sleep(20)
        return response_to(asked, 0)

    async with serving(slow) as server:
        busy = [server.connect() for _ in range(8)]
        for stream in busy:
            await stream.send_all(encode(request(310, body=bytes(360_000))))
        waiting = server.connect()
        async with trio.open_nursery() as peers:
            peers.start_soon(send, waiting, LARGE)
            await trio.sleep(15)
            assert server.statistics.memory_closes == 0
            assert server.statistics.memory_waits > 0
        assert await read_command(waiting) is not None
        assert trio.current_time() == 40.0


async def test_a_frame_that_arrives_byte_by_byte_ends_after_the_frame_timeout(autojump_clock):
    async with serving() as server:
        stream = server.connect()
        with suppress(trio.BrokenResourceError):
            for byte in LARGE:
                await stream.send_all(bytes([byte]))
                await trio.sleep(1)
        assert trio.current_time() == 31.0
        assert server.statistics.frame_timeouts == 1
        assert server.statistics.idle_closes == 0


async def test_each_frame_has_its_own_clock(autojump_clock):
    async with serving() as server:
        stream = server.connect()
        small = encode(request(310, body=bytes(100)), opaque=1)
        await stream.send_all(small[:50])
        for _ in range(5):
            await trio.sleep(25)
            await stream.send_all(small[50:] + small[:50])
            assert await read_command(stream) is not None
        await trio.sleep(29)
        assert server.statistics.connections_open == 1
        await trio.sleep(1)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.connections_open == 0
        assert server.statistics.frame_timeouts == 1


async def test_the_frame_timeout_excludes_time_in_which_the_server_does_not_read(autojump_clock):
    async def slow(asked, peer):
        await trio.sleep(50)
        return response_to(asked, 0)

    limits = ServerLimits(total_bytes_max=TOTAL_BYTES_MAX, frame_bytes_max=FRAME_BYTES_MAX, in_flight_max=1)
    async with serving(slow, limits) as server:
        stream = server.connect()
        small = encode(request(310), opaque=1)
        # The second waits for the first; of the third there is a part.
        await stream.send_all(small + small + small[:10])
        assert await read_command(stream) is not None
        assert trio.current_time() == 50.0
        await trio.sleep(25)
        await stream.send_all(small[10:])
        assert await read_command(stream) is not None
        assert await read_command(stream) is not None
        assert trio.current_time() == 150.0
        assert server.statistics.frame_timeouts == 0


async def test_unread_answers_hold_memory_and_one_too_many_becomes_system_busy(autojump_clock):
    def large(asked, peer):
        return response_to(asked, 0, body=bytes(240_000) if asked.code == 1 else b"")

    limits = evolve(LIMITS, send_timeout_s=10.0)
    async with serving(large, limits) as server:
        greedy = [server.connect(1000) for _ in range(40)]
        for stream in greedy:
            await stream.send_all(encode(request(1)) * 8)
        await trio.testing.wait_all_tasks_blocked()
        statistics = server.statistics
        assert TOTAL_BYTES_MAX // 2 < statistics.held_bytes <= TOTAL_BYTES_MAX
        assert statistics.busy_answers > 0
        honest = server.connect()
        await honest.send_all(encode(request(2)))
        answer = await read_command(honest)
        assert answer.code == ResponseCode.SUCCESS
        await trio.sleep(limits.send_timeout_s)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.send_timeouts == 40
        await honest.send_all(encode(request(1)))
        answer = await read_command(honest)
        assert len(answer.body) == 240_000


async def test_pushed_frames_hold_memory_and_are_dropped_without_room(autojump_clock):
    async def wait(asked, peer):
        await trio.sleep(5)
        return response_to(asked, 0)

    frame = encode(request(907, body=bytes(FRAME_BYTES_MAX), oneway=True))
    async with serving(wait) as server:
        reader = server.connect(1000)
        await trio.testing.wait_all_tasks_blocked()
        assert server.connections.push(1, frame)
        assert server.statistics.held_bytes == len(frame)
        others = [server.connect() for _ in range(30)]
        await trio.testing.wait_all_tasks_blocked()
        for number in range(2, 32):
            server.connections.push(number, frame)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.held_bytes <= TOTAL_BYTES_MAX
        decoder = FrameDecoder()
        while decoder.next_command() is None:
            decoder.feed(await reader.receive_some())
        del others


async def test_requests_hold_memory_beside_their_bytes(autojump_clock):
    async def wait(asked, peer):
        await trio.sleep(5)
        return response_to(asked, 0)

    async with serving(wait) as server:
        streams = [server.connect() for _ in range(10)]
        tiny = encode(request(310))
        answered: list[int] = []

        async def read_answers(stream):
            decoder = FrameDecoder()
            for number in range(1000):
                while decoder.next_command() is None:
                    decoder.feed(await stream.receive_some())
                answered.append(number)

        async with trio.open_nursery() as peers:
            for stream in streams:
                peers.start_soon(stream.send_all, tiny * 1000)
            await trio.testing.wait_all_tasks_blocked()
            # Their bytes alone would all fit.
            assert len(tiny) * 10_000 < TOTAL_BYTES_MAX // 2
            assert 0 < server.statistics.requests <= TOTAL_BYTES_MAX // REQUEST_BYTES
            for stream in streams:
                peers.start_soon(read_answers, stream)
        assert len(answered) == 10_000


async def test_what_a_peer_waits_for_ends_with_its_connection_though_there_is_no_room_to_read(autojump_clock):
    async def wait(asked, peer):
        await trio.sleep(60)
        return response_to(asked, 0)

    async with serving(wait) as server:
        stream, memory = server.connect(), server.connections.memory
        while memory.spare_bytes - memory.read_ahead_kept_bytes > memory.held_bytes:
            await stream.send_all(encode(request(310, body=bytes(3000))))
            await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.in_flight > 100
        await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.in_flight == server.statistics.connections_open == trio.current_time() == 0
        # What has come before the end is handled as soon as there is room.
        before = server.statistics.requests
        stream = server.connect(capacity_bytes=TOTAL_BYTES_MAX)
        await stream.send_all(encode(request(310, body=bytes(3000))) * 400)
        await stream.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        assert (server.statistics.memory_waits, server.statistics.connections_open) == (1, 1)
        await trio.sleep(300)
        assert (server.statistics.requests, server.statistics.connections_open) == (before + 400, 0)


class Poll(WaitingAnswer):
    """Waits until it is woken."""

    def __init__(self, asked):
        super().__init__()
        self._asked = asked

    def answer(self):
        return response_to(self._asked, 0)


async def test_requests_that_wait_take_no_room_from_others_until_there_are_too_many(autojump_clock):
    polls: list[Poll] = []

    def handle(asked, peer):
        if asked.code == 310:
            return response_to(asked, 0)
        polls.append(Poll(asked))
        return polls[-1]

    async with serving(handle) as server:
        memory, waiting = server.connections.memory, server.connect(capacity_bytes=TOTAL_BYTES_MAX)
        poll = encode(request(11, ext_fields={"subscription": 300 * "x"}))
        # Its length and that of its header count once, each byte of the header fourfold.
        one_bytes = WAITING_BYTES + HEADER_FACTOR * (len(poll) - 8) + 8
        for _ in range(TOTAL_BYTES_MAX // one_bytes // 100 + 1):
            await waiting.send_all(poll * 100)
            await trio.testing.wait_all_tasks_blocked()
        # Those that are not set aside cost what other requests do.
        aside, more = TOTAL_BYTES_MAX // one_bytes, len(polls) - TOTAL_BYTES_MAX // one_bytes
        assert memory.aside_bytes == aside * one_bytes
        assert memory.held_bytes == aside * KEPT_BYTES + more * (one_bytes - WAITING_BYTES + REQUEST_BYTES)
        assert 0 < more <= 100
        # A large frame gets its memory.
        other = server.connect()
        async with trio.open_nursery() as peers:
            peers.start_soon(other.send_all, LARGE)
            assert (await read_command(other)).opaque == 7
        assert server.statistics.memory_waits == 0
        for waiting_one in polls:
            waiting_one.wake()
        decoder, answers = FrameDecoder(), 0
        while answers < len(polls):
            decoder.feed(await waiting.receive_some())
            while decoder.next_command() is not None:
                answers += 1
        await trio.testing.wait_all_tasks_blocked()
        assert (memory.aside_bytes, memory.held_bytes) == (0, 0)
        # A connection that ends takes its own with it.
        await waiting.send_all(poll * 100)
        await trio.testing.wait_all_tasks_blocked()
        assert memory.aside_bytes > 100 * WAITING_BYTES
        await waiting.aclose()
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(3, 20, 400)))
async def test_under_any_load_the_memory_is_bounded_and_every_request_is_answered_or_its_connection_closed(
    seed, autojump_clock
):
    chance = random.Random(seed)

    def handler(asked, peer):
        answer = response_to(asked, 0, body=bytes(chance.choice((0, 0, 100, 80_000, 800_000))))
        return later(answer) if chance.random() < 0.5 else answer

    async def later(answer):
        await trio.sleep(chance.random() * 4)
        return answer

    async def peer(stream):
        requests = chance.randrange(1, 12)
        frames = [
            encode(
                request(310, body=bytes(chance.choice((0, 50, 20_000, 240_000, FRAME_BYTES_MAX - 300)))),
                opaque=number,
            )
            for number in range(requests)
        ]
        data = b"".join(frames)
        if is_liar := chance.random() < 0.4:
            data = data[: chance.randrange(len(data))]

        async def talk():
            at = 0
            while at < len(data):
                size = chance.choice((1, 100, 10_000, 100_000))
                await send(stream, data[at : at + size])
                at += size
                if chance.random() < 0.1:
                    await trio.sleep(chance.random())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            if is_liar and chance.random() < 0.5:
                # Reads nothing, either.
                return
            decoder = FrameDecoder()
            answered = 0
            while answered < requests and (received := await stream.receive_some()):
                decoder.feed(received)
                while decoder.next_command() is not None:
                    answered += 1
            await stream.aclose()

    async with serving(handler) as server:
        async with trio.open_nursery() as peers:
            for _ in range(40):
                peers.start_soon(peer, server.connect(chance.choice((1000, 64 * 1024))))
        await trio.sleep(200)
        assert server.statistics.connections_open == 0
        assert server.statistics.held_bytes == 0


def test_a_decoder_frees_a_large_frame_that_it_has_returned():
    frame = encode(request(310, body=bytes(8_000_000)))
    following = encode(request(310, body=b"x" * 500))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        decoder.feed(frame[:1000])
        decoder.feed(frame[1000:] + following[:100])
        assert decoder.next_command() is not None
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()
    assert decoder.next_command() is None
    decoder.feed(following[100:])
    command = decoder.next_command()
    assert (len(command.body), decoder.frame_bytes) == (500, len(following))

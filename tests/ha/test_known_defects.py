"""Defects of the protocol's first implementation that trioha does not share (docs/known-defects.md).

Those that other test modules do not show already.
"""

import threading
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import memory_stream_pair

from tests.ha.support import connected, make_master
from tests.store.support import message, open_log
from trioha.recording.events import Kind


@pytest.fixture
def log(tmp_path):
    """A log with some messages."""
    log, _ = open_log(tmp_path / "commitlog")
    for number in range(20):
        log.append(message(b"%d" % number * 100))
    return log


async def test_new_bytes_are_sent_to_every_slave_at_once(log, autojump_clock):
    master, _, _ = make_master(log)
    async with AsyncExitStack() as peers:
        slaves = [(await peers.enter_async_context(connected(master, port=port)))[0] for port in range(1, 6)]
        for slave in slaves:
            await slave.report(log.max_offset)
        # At any time, not only when a poll is due.
        for pause_s in (0.001, 0.0137, 0.5, 3.21):
            await trio.sleep(pause_s)
            stored = log.append(message(b"new"))
            appended_at = trio.current_time()
            for slave in slaves:
                assert await slave.next_frame() == (
                    stored.physical_offset,
                    bytes(log.read(stored.physical_offset, stored.size)),
                )
            assert trio.current_time() == appended_at


async def test_connections_cost_no_threads(log, autojump_clock):
    master, _, _ = make_master(log)
    before = set(threading.enumerate())
    async with AsyncExitStack() as peers:
        for port in range(1, 101):
            peer, _ = await peers.enter_async_context(connected(master, port=port))
            await peer.report(log.max_offset)
        log.append(message())
        await trio.sleep(6)
        assert len(master.connections()) == 100
        assert set(threading.enumerate()) <= before


async def serve(master, stream, port):
    await master.serve_stream(stream, host="127.0.0.1", port=port)


@pytest.mark.parametrize("first_words", [b"", b"\0\0\0", b"\0" * 8, b"GET / HT"])
async def test_connections_that_fail_at_once_are_removed_from_the_list(log, autojump_clock, first_words):
    master, replicas, events = make_master(log)
    async with trio.open_nursery() as nursery:
        for port in range(1, 101):
            near, far = memory_stream_pair()

            async def come_and_go(near=near, far=far, port=port):
                async with trio.open_nursery() as both:
                    both.start_soon(serve, master, near, port)
                    if first_words:
                        await far.send_all(first_words)
                    await far.aclose()

            nursery.start_soon(come_and_go)
        # A reader of the list meanwhile sees a consistent one.
        for _ in range(20):
            assert all(connection.address.startswith("127.0.0.1:") for connection in master.connections())
            await trio.lowlevel.checkpoint()
    assert master.connections() == []
    assert replicas.eligible_count(log.max_offset) == 0
    has_asked = first_words == bytes(8)
    assert len(events.of(Kind.CLOSED)) == (100 if has_asked else 0)
    statistics = master.statistics()
    assert sum(statistics.closed.values()) == (100 if has_asked else 0)
    assert sum(one.count for one in statistics.probes) == (0 if has_asked else 100)

"""Probes: connections that end without a request are counted by host and reason, and not shown otherwise."""

import gc
import random
from contextlib import suppress
from functools import partial

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from tests.ha.support import SETTINGS, Events, Peer, connected, listening, make_master, settled
from tests.store.support import message, open_log
from trioha.ha.admission import AdmissionSettings
from trioha.ha.connection import DefaultHaConnection
from trioha.ha.probes import HOSTS_MAX, OTHER_HOSTS, ProbeCount, Probes
from trioha.recording.events import CloseReason, HaState, Kind

GARBAGE = (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"\xff" * 8, b"\xff\xff", b"ruok")


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    yield log
    log.close()


async def probe(master, host, *, sends=b"", idles=False):
    """One connection of `host`, which closes, or waits for the other side to close."""
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve():
            await master.serve_stream(near, host=host, port=40000)

        nursery.start_soon(serve)
        if sends:
            await far.send_all(sends)
        if idles:
            await Peer(far).ended()
        await far.aclose()


async def keep_probing(master, *, hosts, seconds, each_minute):
    """One probe a second, of each kind in turn; idle ones are awaited."""
    rng = random.Random(17)
    async with trio.open_nursery() as nursery:
        for second in range(seconds):
            kind = second % 3
            sends = rng.choice(GARBAGE) if kind == 2 else b""
            host = rng.choice(hosts)
            nursery.start_soon(partial(probe, master, host, sends=sends, idles=kind == 1))
            await trio.sleep(1)
            if second % 60 == 0:
                each_minute()


async def follow(peer, log):
    """An honest slave: receives and acknowledges everything."""
    await peer.report(log.max_offset)
    while True:
        offset, body = await peer.next_frame()
        await peer.report(offset + len(body))


async def test_an_hour_of_probes_leaves_one_line_for_each_host_and_the_slave_alone(log, autojump_clock):
    master, replicas, events = make_master(log, settings=evolve(SETTINGS, first_report_timeout_s=15.0))
    tasks = trio.lowlevel.current_statistics().tasks_living
    with master.changes() as changes, capture_logs() as lines:
        async with trio.open_nursery() as nursery, connected(master, host="10.0.0.1") as (peer, reasons):
            nursery.start_soon(master.probes.run)
            nursery.start_soon(follow, peer, log)
            await settled()

            def check():
                # Idle ones last 15 s.
                assert len(master._connections) <= 1 + 15
                assert len(master.connections()) == 1
                assert replicas.in_sync_count(log.max_offset) == 1
                log.append(message())

            await keep_probing(master, hosts=("10.0.0.8", "10.0.0.9"), seconds=3600, each_minute=check)
            assert reasons == []
            gc.collect()
            kept = [one for one in gc.get_objects() if type(one) is DefaultHaConnection and one._log is log]
            assert len(kept) == 1
            nursery.cancel_scope.cancel()
        assert [(await anext(changes)).state for _ in range(3)] == [
            HaState.HANDSHAKE, HaState.TRANSFER, HaState.SHUTDOWN,
        ]  # fmt: skip
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    # Recorded: the slave's connection only.
    assert [fields["conn"] for type_, fields in events.facts if type_ == "connection"] == [1]
    assert {event[1] for event in events.seen} == {1}
    assert len(events.of(Kind.REQUESTED)) == len(events.of(Kind.CLOSED)) == 1
    assert events.of(Kind.REFUSED) == []
    # Counted: each probe, in one row for a host.
    statistics = master.statistics()
    assert statistics.closed == {"SHUTDOWN": 1}
    assert sum(one.count for one in statistics.probes) == 3600
    assert {one.host for one in statistics.probes} == {"10.0.0.8", "10.0.0.9"}
    assert {one.reason for one in statistics.probes} >= {CloseReason.EOF, CloseReason.NO_REQUEST}
    reported = [fields for type_, fields in events.facts if type_ == "probes"]
    last = {(one["host"], one["reason"]): one["count"] for one in reported}
    assert last == {(one.host, one.reason.name): one.count for one in statistics.probes}
    assert len(reported) <= 62 * len(last)
    # Logged: the first of a host, and a sum once a minute.
    names = [line["event"] for line in lines]
    assert names.count("slave connected") == 1
    assert sum(name.startswith("probe at") for name in names) == 2
    assert 55 <= names.count("probes at the HA port") <= 62
    assert len(lines) <= 70


async def test_changed_counts_are_facts_once_a_minute_and_at_the_end(autojump_clock):
    events = Events()
    probes = Probes(events)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(probes.run)
        probes.add("10.0.0.8", CloseReason.EOF)
        await trio.sleep(1)
        assert events.facts == [("probes", {"host": "10.0.0.8", "reason": "EOF", "count": 1})]
        for _ in range(50):
            probes.add("10.0.0.8", CloseReason.EOF)
            await trio.sleep(1)
        assert len(events.facts) == 1
        await trio.sleep(600)
        assert events.facts[1:] == [("probes", {"host": "10.0.0.8", "reason": "EOF", "count": 51})]
        probes.add("10.0.0.9", CloseReason.NO_REQUEST)
        await trio.sleep(1)
        probes.add("10.0.0.9", CloseReason.NO_REQUEST)
        nursery.cancel_scope.cancel()
    assert [fields["count"] for _, fields in events.facts] == [1, 51, 1, 2]


def test_probes_of_hosts_beyond_the_maximum_are_counted_together():
    probes = Probes(Events())
    with capture_logs() as lines:
        for number in range(1000):
            probes.add(f"10.0.{number // 256}.{number % 256}", CloseReason.EOF)
        probes.add("10.0.0.0", CloseReason.EOF)
    counts = probes.counts()
    assert len(counts) == len(lines) == HOSTS_MAX + 1
    assert counts[0] == ProbeCount("10.0.0.0", CloseReason.EOF, 2)
    assert counts[-1] == ProbeCount(OTHER_HOSTS, CloseReason.EOF, 1000 - HOSTS_MAX)


@pytest.mark.parametrize(
    "caps", [{"connections_max": 4}, {"connections_per_peer_max": 4}, {"connections_max": 1}]
)
async def test_idle_probes_do_not_keep_a_slave_out(log, caps):
    master, _, _ = make_master(log, admission=AdmissionSettings(**caps))
    probes = []
    async with listening(master) as port:
        for _ in range(10):
            probes.append(await trio.open_tcp_stream("127.0.0.1", port))
            await trio.sleep(0.01)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            slave = Peer(stream)
            with trio.fail_after(10):
                await slave.report(1)
                await slave.next_frame()
                # A slave keeps its slot.
                for _ in range(10):
                    probes.append(await trio.open_tcp_stream("127.0.0.1", port))
                    await trio.sleep(0.01)
                log.append(message())
                await slave.next_frame()
        for stream in probes:
            with suppress(trio.BrokenResourceError):
                await stream.aclose()
    assert sum(one.count for one in master.statistics().probes) >= 10

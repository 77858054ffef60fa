"""master -> slave -> slave, and the slave in the middle restarts its log: no connection mixes two logs."""

from itertools import count

import pytest
import trio
from attrs import evolve
from trio.testing import lockstep_stream_pair, memory_stream_pair

from tests.ha.support import SETTINGS, connected, make_master, make_slave, settled
from tests.store.support import log_bytes, message, open_log
from trioha.config.keys.ha import GapPolicy, StartFrom
from trioha.ha.frames import HEADER, HEADER_BYTES
from trioha.ha.replication_session import ReplicationSettings
from trioha.recording.events import CloseReason, Kind

RESYNC = {"gap_policy": GapPolicy.RESYNC, "replication": ReplicationSettings(start=StartFrom.EARLIEST)}


def filled(path, body, *, messages):
    """A log of records of one length, so that logs of other bytes have their records at the same offsets."""
    log, _ = open_log(path)
    for _ in range(messages):
        log.append(message(body * 1000))
    return log


def dialling(master, nursery):
    """A `connect` to `master`."""
    ports = count(50001)

    async def connect(_dialing):
        near, far = memory_stream_pair()

        async def serve():
            await master.serve_stream(near, host="127.0.0.1", port=next(ports))

        nursery.start_soon(serve)
        await trio.lowlevel.checkpoint()
        return far

    return connect


async def test_a_slave_of_a_slave_that_resyncs_ends_with_the_new_log(tmp_path, autojump_clock):
    log = filled(tmp_path / "master", b"n", messages=200)
    middle_log = filled(tmp_path / "middle", b"o", messages=30)
    last_log, _ = open_log(tmp_path / "last")
    master, _, _ = make_master(log)
    middle, _, events = make_master(middle_log)
    async with trio.open_nursery() as nursery:
        last, _, _ = make_slave(last_log, dialer=dialling(middle, nursery), **RESYNC)
        nursery.start_soon(last.run)
        await trio.sleep(1)
        assert log_bytes(last_log) == log_bytes(middle_log)
        slave, _, _ = make_slave(middle_log, dialer=dialling(master, nursery), **RESYNC)
        nursery.start_soon(slave.run)
        await trio.sleep(60)
        assert log_bytes(middle_log) == log_bytes(log)
        assert log_bytes(last_log) == log_bytes(log)
        nursery.cancel_scope.cancel()
    # On its second connection the last slave finds that its own log is another one.
    closed = [CloseReason(event[5]).name for event in events.of(Kind.CLOSED)]
    assert closed == ["LOG_RESTARTED", "EOF", "SHUTDOWN"]


def restart(log, *, until_offset):
    """Restart the log, and fill it at once beyond `until_offset`."""
    log.archive(log.directory.with_name("aside"))
    while log.max_offset <= until_offset:
        log.append(message(b"n" * 1000))


def cut(log, *, until_offset):
    """Cut the log in its middle, and fill it at once beyond `until_offset`."""
    log.flushed.advance(log.max_offset)
    offset = log.starts.first_from(log.max_offset // 2)
    log.cut(offset, last_store_timestamp_ms=log.starts.store_timestamp_before(offset))
    log.puts_blocked = False
    while log.max_offset <= until_offset:
        log.append(message(b"n" * 1000))


async def frames_until_end(peer):
    """All complete frames, and the received part of the last one."""
    data = bytes(peer.buffer)
    while more := await peer.stream.receive_some(1 << 20):
        data += more
    frames = []
    while len(data) >= HEADER_BYTES:
        offset, size = HEADER.unpack_from(data)
        frames.append((offset, data[HEADER_BYTES : HEADER_BYTES + size]))
        data = data[HEADER_BYTES + size :]
    return frames


SITUATIONS = (
    "has not requested yet",
    "has requested",
    "waits for new bytes",
    "is being sent a frame",
    "may get no more",
)


@pytest.mark.parametrize(
    ("change", "situation"),
    [
        *((restart, situation) for situation in SITUATIONS),
        # What a socket already has is not changed by a cut.
        *((cut, situation) for situation in SITUATIONS if situation != "is being sent a frame"),
    ],
)
async def test_a_slave_gets_no_byte_of_a_restarted_log(tmp_path, autojump_clock, change, situation):
    log = filled(tmp_path / "middle", b"o", messages=50)
    old = log_bytes(log)
    settings = SETTINGS
    if situation == "may get no more":
        settings = evolve(SETTINGS, flow_bytes_per_s=20_000)
    master, replicas, _ = make_master(log, settings=settings)
    # On a lockstep stream a frame is sent as long as the peer reads it.
    in_frame = situation == "is being sent a frame"
    stream_pair = lockstep_stream_pair if in_frame else memory_stream_pair
    async with connected(master, stream_pair=stream_pair) as (peer, reasons):
        (connection,) = master._connections.values()
        if situation == "has requested":
            # The writer task has not run yet.
            connection._handle_report(1000, trio.current_time())
        elif situation != "has not requested yet":
            await peer.report(len(old) if situation == "waits for new bytes" else 1000)
            await trio.sleep(0.5)
        if in_frame:
            peer.buffer += await peer.stream.receive_some(1000)
        change(log, until_offset=2 * len(old))
        with trio.fail_after(5):
            frames = await frames_until_end(peer)
        await settled()
        assert reasons == [CloseReason.LOG_RESTARTED]
    assert bool(frames) is (situation in SITUATIONS[3:])
    for offset, body in frames:
        assert old[offset : offset + len(body)] == body
    assert replicas.eligible_count(0) == 0
    has_requested = situation != "has not requested yet"
    assert master.statistics().closed == ({"LOG_RESTARTED": 1} if has_requested else {})
    assert master.statistics().probes == ()


async def test_acks_of_the_old_log_count_for_nothing_in_the_new_one(tmp_path, autojump_clock):
    log = filled(tmp_path / "middle", b"o", messages=50)
    master, replicas, _ = make_master(log)
    async with connected(master) as (peer, reasons):
        (connection,) = master._connections.values()
        await peer.report(1000)
        await settled()
        restart(log, until_offset=log.max_offset)
        connection._handle_report(connection.progress.sent_offset, trio.current_time())
        assert replicas.copies(1).offset == 1000
        await settled()
        assert (reasons, replicas.copies(1).offset) == ([CloseReason.LOG_RESTARTED], 0)

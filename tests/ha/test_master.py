"""The master's side of a connection: requests, frames, timers, acks, and what remains after its end."""

import socket
from contextlib import suppress
from unittest.mock import patch

import pytest
import trio

from tests.ha.support import SETTINGS, connected, make_master, settled
from tests.store.support import FILE_BYTES, message, open_log
from tests.waiting import until, wait_until
from trioha.errors import StoreError
from trioha.ha.frames import HEADER, HEADER_BYTES
from trioha.ha.probes import ProbeCount
from trioha.net.transport import SocketTransport
from trioha.recording.events import CloseReason, Direction, HaState, Kind


@pytest.fixture
def log(tmp_path):
    """Three files and a bit."""
    log, _ = open_log(tmp_path)
    while log.max_offset < 3 * FILE_BYTES:
        log.append(message(bytes(5000)))
    return log


@pytest.fixture
def small_log(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message(bytes(200)))
    return log


async def received(peer, end_offset):
    """Frames up to `end_offset`."""
    frames = [await peer.next_frame()]
    while frames[-1][0] + len(frames[-1][1]) < end_offset:
        frames.append(await peer.next_frame())
    return frames


# -- where to start ----------------------------------------------------------------------------------------


async def test_an_empty_slave_gets_the_last_file(log, autojump_clock):
    master, _, _ = make_master(log)
    async with connected(master) as (peer, _):
        await peer.report(0)
        frames = await received(peer, log.max_offset)
    assert frames[0][0] == 3 * FILE_BYTES
    assert b"".join(body for _, body in frames) == bytes(log.read(3 * FILE_BYTES, FILE_BYTES))


async def test_frames_are_cut_at_file_ends_and_at_the_batch_size(log, autojump_clock):
    master, _, events = make_master(log)
    async with connected(master) as (peer, _):
        await peer.report(FILE_BYTES)
        frames = await received(peer, log.max_offset)
    assert frames[0][0] == FILE_BYTES
    assert all(len(body) <= SETTINGS.transfer_batch_bytes for _, body in frames)
    assert all(offset // FILE_BYTES == (offset + len(body) - 1) // FILE_BYTES for offset, body in frames)
    assert [offset for offset, _ in frames if offset % FILE_BYTES == 0] == [FILE_BYTES * n for n in (1, 2, 3)]
    sent = [(offset, size) for _, _, offset, _, size, _ in events.of(Kind.TRANSFER)]
    assert sent == [(offset, len(body)) for offset, body in frames]


async def test_a_slave_in_step_gets_heartbeats_until_there_is_more(small_log, autojump_clock):
    master, _, _ = make_master(small_log)
    end_offset = small_log.max_offset
    async with connected(master) as (peer, _):
        await peer.report(end_offset)
        await settled()
        started = trio.current_time()
        assert await peer.next_frame() == (end_offset, b"")
        assert trio.current_time() - started == 5.0
        stored = small_log.append(message(b"more"))
        offset, body = await peer.next_frame()
        assert (offset, len(body), trio.current_time() - started) == (end_offset, stored.size, 5.0)


@pytest.mark.parametrize(
    ("first_report", "reason"),
    [
        (10**9, CloseReason.REQUEST_ABOVE_MAX),
        (-2, CloseReason.BAD_SIZE),
        (100, CloseReason.REQUEST_BELOW_MIN),
    ],
)
async def test_a_request_outside_of_the_log_ends_the_connection_and_is_recorded(
    tmp_path, first_report, reason, autojump_clock
):
    log, _ = open_log(tmp_path)
    log.start_at(FILE_BYTES)
    log.append(message())
    master, replicas, events = make_master(log)
    async with connected(master) as (peer, reasons):
        await peer.report(first_report)
        if reason is not CloseReason.BAD_SIZE:
            # The start or end of the log, for slaves that understand it.
            answer = log.max_offset if reason is CloseReason.REQUEST_ABOVE_MAX else log.min_offset
            assert await peer.next_frame() == (answer, b"")
        await peer.ended()
    assert reasons == [reason]
    assert replicas.eligible_count(log.max_offset) == 0
    refused = [(event[2], event[5]) for event in events.of(Kind.REFUSED)]
    statistics = master.statistics()
    if reason is CloseReason.BAD_SIZE:
        # An impossible offset: the peer was not a slave.
        assert (refused, statistics.closed) == ([], {})
        assert statistics.probes == (ProbeCount("127.0.0.1", reason, 1),)
    else:
        assert (refused, statistics.closed) == ([(first_report, reason)], {reason.name: 1})
        assert statistics.probes == ()


# -- slaves in step ----------------------------------------------------------------------------------------


def socket_pair():
    """The ends of a connection over sockets, as a node has them."""
    return map(SocketTransport, socket.socketpair())


def received_now(peer, size):
    """The first `size` bytes that the master has sent; none of its tasks runs while they are read."""
    data = bytearray()

    def is_whole():
        data.extend(peer.stream.receive_now(size - len(data)) or b"")
        return len(data) == size

    wait_until(is_whole)
    return data


async def test_a_slave_in_step_is_sent_to_within_the_turn_of_a_put_and_what_follows_goes_together(small_log):
    master, _, events = make_master(small_log)
    async with connected(master, stream_pair=socket_pair) as (peer, _), peer.stream:
        await peer.report(small_log.max_offset)
        await until(master.connections)
        first = small_log.append(message(b"alone"))
        master.send_now(first.physical_offset)
        data = received_now(peer, HEADER_BYTES + first.size)
        assert data == HEADER.pack(first.physical_offset, first.size) + bytes(
            small_log.read(first.physical_offset, first.size)
        )
        # Without the ack of the first one, those of a turn share a frame.
        rest = [small_log.append(message(b"another")) for _ in range(3)]
        for put in rest:
            master.send_now(put.physical_offset)
        offset, body = await peer.next_frame()
        assert (offset, len(body)) == (rest[0].physical_offset, sum(put.size for put in rest))
        sent = [(offset, size) for _, _, offset, _, size, _ in events.of(Kind.TRANSFER)]
        assert sent == [(first.physical_offset, first.size), (offset, len(body))]


async def test_a_put_waits_for_its_writer_task_where_others_come_before_it(small_log, autojump_clock):
    master, _, events = make_master(small_log)
    async with connected(master) as (peer, _):
        await peer.report(small_log.max_offset)
        await settled()
        first, second = (small_log.append(message(b"x")) for _ in range(2))
        # The first one came by a path that waits for no copies.
        master.send_now(second.physical_offset)
        assert events.of(Kind.TRANSFER) == []
        offset, body = await peer.next_frame()
        assert (offset, len(body)) == (first.physical_offset, first.size + second.size)


async def test_a_slave_that_is_gone_when_a_put_comes_ends_its_connection_alone(small_log):
    master, _, _ = make_master(small_log)
    async with connected(master, stream_pair=socket_pair) as (peer, reasons):
        await peer.report(small_log.max_offset)
        await until(master.connections)
        # The master's socket refuses the next bytes at once.
        peer.stream.socket.close()
        put = small_log.append(message(b"alone"))
        master.send_now(put.physical_offset)
        await until(lambda: reasons)
    assert reasons == [CloseReason.IO_ERROR]


async def test_a_put_that_the_disk_does_not_give_back_ends_the_connection(small_log, autojump_clock):
    master, _, events = make_master(small_log)
    async with connected(master) as (peer, reasons):
        await peer.report(small_log.max_offset)
        await settled()
        put = small_log.append(message(b"alone"))
        with patch.object(
            small_log, "read", side_effect=StoreError("the disk gives nothing", path=small_log.directory)
        ):
            master.send_now(put.physical_offset)
        await peer.ended()
    assert reasons == [CloseReason.STORE_ERROR]
    assert [event[5] for event in events.of(Kind.REFUSED)] == [CloseReason.STORE_ERROR]


# -- acks ---------------------------------------------------------------------------------------------------


async def test_an_ack_beyond_what_was_sent_closes_the_connection_and_counts_for_nothing(
    small_log, autojump_clock
):
    master, replicas, _ = make_master(small_log)
    async with connected(master) as (peer, reasons):
        await peer.report(small_log.max_offset)
        await settled()
        await peer.report(10**9)
        await peer.ended()
    assert reasons == [CloseReason.ACK_BEYOND_SENT]
    assert replicas.copies(1).offset == 0


async def test_acks_move_the_replicated_watermark_and_are_forgotten_with_the_connection(log, autojump_clock):
    master, replicas, events = make_master(log)
    async with connected(master) as (peer, _):
        await peer.report(3 * FILE_BYTES)
        await received(peer, log.max_offset)
        assert replicas.copies(1).offset == 3 * FILE_BYTES
        await peer.report(log.max_offset)
        await settled()
        assert replicas.copies(1).offset == log.max_offset
        status = master.connections()[0]
        assert (status.state, status.sent_offset, status.ack_offset, status.lag_ms) == (
            "TRANSFER",
            log.max_offset,
            log.max_offset,
            0,
        )
        await peer.stream.aclose()
        await settled()
        assert replicas.copies(1).offset == 0
        assert master.connections() == []
    assert [event[2] for event in events.of(Kind.ACK)] == [3 * FILE_BYTES, log.max_offset]


async def test_lag_is_the_age_of_the_oldest_byte_without_an_ack(small_log, autojump_clock):
    master, _, _ = make_master(small_log)
    async with connected(master) as (peer, _):
        await peer.report(small_log.max_offset)
        await settled()
        first = small_log.append(message(b"first"))
        await trio.sleep(1)
        second = small_log.append(message(b"second"))
        await trio.sleep(2)
        assert master.connections()[0].lag_ms == 3000
        await peer.report(first.end_offset)
        await settled()
        assert master.connections()[0].lag_ms == 2000
        await peer.report(second.end_offset)
        await settled()
        assert master.connections()[0].lag_ms == 0


async def test_bytes_that_a_peer_does_not_let_out_have_an_age(small_log, autojump_clock):
    master, _, _ = make_master(small_log)
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: master.serve_stream(near, host="10.0.0.1", port=1))
        await far.send_all(bytes(8))
        await settled()
        # A frame with the whole log waits in the socket.
        assert [*master.unsent_ages_s().values()] == [0.0]
        await trio.sleep(1)
        small_log.append(message(b"first"))
        await trio.sleep(2)
        (status,) = master.connections()
        assert status.sent_offset < small_log.max_offset
        # At most: what was appended since that frame is younger than it.
        assert master.unsent_ages_s() == {status.connection_id: 3.0}
        nursery.cancel_scope.cancel()
    assert master.unsent_ages_s() == {}


async def test_how_long_acks_take_and_how_long_frames_are_is_measured(small_log, autojump_clock):
    master, _, _ = make_master(small_log)
    async with connected(master) as (peer, _):
        await peer.report(small_log.max_offset)
        await settled()
        assert (master.connections()[0].ack_latency_us, master.connections()[0].frame_bytes) == (None, None)
        sizes = []
        for _ in range(3):
            appended = small_log.append(message(b"timed"))
            sizes.append(appended.size)
            await trio.sleep(0.25)
            await peer.report(appended.end_offset)
            await settled()
        status = master.connections()[0]
        latency = status.ack_latency_us
        assert (latency.p50, latency.p99, latency.largest, latency.count) == (250_000, 250_000, 250_000, 3)
        assert (status.frame_bytes.largest, status.frame_bytes.count) == (max(sizes), 3)
        await trio.sleep(1.5)
        assert master.connections()[0].last_received_ms == 1500


# -- timers -------------------------------------------------------------------------------------------------


async def test_a_silent_slave_is_dropped_after_20_virtual_seconds(small_log, autojump_clock):
    master, _, events = make_master(small_log)
    started = trio.current_time()
    async with connected(master) as (peer, reasons):
        await peer.report(0)
        await trio.sleep(3)
        await peer.report(small_log.max_offset)
        await peer.ended()
        assert trio.current_time() - started == 23.0
    assert reasons == [CloseReason.HOUSEKEEPING]
    assert events.of(Kind.CLOSED)[0][5] == CloseReason.HOUSEKEEPING
    assert [event[5] for event in events.of(Kind.STATE)] == [
        HaState.HANDSHAKE,
        HaState.TRANSFER,
        HaState.SHUTDOWN,
    ]


async def test_a_slave_that_drips_a_byte_now_and_then_is_as_silent_as_one_that_sends_nothing(
    small_log, autojump_clock
):
    master, _, _ = make_master(small_log)
    started = trio.current_time()
    async with connected(master) as (peer, reasons):
        await peer.report(0)
        with suppress(trio.BrokenResourceError):
            while True:
                await trio.sleep(5)
                await peer.stream.send_all(b"\0")
        await peer.ended()
        # Its first four are less than a report.
        assert trio.current_time() - started == 25.0
    assert reasons == [CloseReason.HOUSEKEEPING]


async def test_a_slave_that_reports_but_does_not_read_is_dropped(log, autojump_clock):
    master, _, _ = make_master(log)
    near, far = trio.testing.lockstep_stream_pair()
    reasons = []
    async with trio.open_nursery() as nursery:

        async def serve():
            reasons.append(await master.serve_stream(near, host="10.0.0.1", port=1))
            nursery.cancel_scope.cancel()

        nursery.start_soon(serve)
        with suppress(trio.BrokenResourceError):
            while True:
                await far.send_all((2 * FILE_BYTES).to_bytes(8, "big"))
                await trio.sleep(5)
    assert reasons == [CloseReason.HOUSEKEEPING]


async def test_heartbeats_follow_the_last_byte_sent(small_log, autojump_clock):
    master, _, events = make_master(small_log)
    async with connected(master) as (peer, _):
        await peer.report(0)
        await settled()
        started = trio.current_time()
        await trio.sleep(3)
        small_log.append(message())
        await peer.next_frame()
        await peer.next_frame()
        assert (await peer.next_frame(), trio.current_time() - started) == ((small_log.max_offset, b""), 8.0)
    assert [event[5] for event in events.of(Kind.HEARTBEAT)] == [Direction.SENT]


# -- ends ---------------------------------------------------------------------------------------------------


async def test_reader_and_writer_end_together_and_no_wait_remains(log, autojump_clock):
    master, replicas, events = make_master(log)
    before = trio.lowlevel.current_statistics().tasks_living
    async with connected(master) as (peer, reasons):
        await peer.report(FILE_BYTES)
        await peer.next_frame()
        await peer.stream.aclose()
        await settled()
        assert reasons[0] in {CloseReason.EOF, CloseReason.IO_ERROR}
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert (master.connections(), log.appended.waiting) == ([], 0)
        assert replicas.eligible_count(log.max_offset) == 0
    assert events.of(Kind.CLOSED)[0][5] == reasons[0]


async def test_a_stopping_node_closes_its_connections_with_shutdown(log, autojump_clock):
    master, _, events = make_master(log)
    async with connected(master) as (peer, _):
        await peer.report(log.max_offset)
        await settled()
    assert [event[5] for event in events.of(Kind.CLOSED)] == [CloseReason.SHUTDOWN]
    assert master.statistics().closed == {"SHUTDOWN": 1}


async def test_recorded_reports_of_a_real_slave_are_all_accepted(tmp_path, autojump_clock):
    """The reports of `a-fresh-slave`, answered with the log that the real master sent."""
    from tests.ha.test_frames import VECTORS, frames_of
    from trioha.store.replica import ReplicaAppender

    folder = VECTORS / "ha-wire" / "5.3.3"
    log, _ = open_log(tmp_path)
    appender = ReplicaAppender(log)
    for _, body in frames_of([(folder / "a-fresh-slave.m2s.bin").read_bytes()]):
        if body:
            appender.append(memoryview(body))
    reports = (folder / "a-fresh-slave.s2m.bin").read_bytes()
    master, _, events = make_master(log)
    # The recorded slave joined when the log was in its first file: request from there.
    async with connected(master) as (peer, _):
        first = True
        for at in range(8, len(reports), 8):
            offset = int.from_bytes(reports[at : at + 8], "big")
            await peer.report(offset)
            await settled()
            if first:
                await received(peer, log.max_offset)
                first = False
        assert master.connections()[0].ack_offset == log.max_offset
    assert events.of(Kind.REFUSED) == []


async def test_a_subscriber_gets_every_state_of_every_slaves_connection(log, autojump_clock):
    master, _, _ = make_master(log, distinct_by_connection=True)
    with master.changes() as changes:
        async with connected(master, host="10.0.0.1", port=1) as (first, _):
            await first.report(log.max_offset)
            await settled()
            # A connection without a request is not published.
            async with connected(master, host="10.0.0.3", port=3):
                await settled()
            async with connected(master, host="10.0.0.2", port=2) as (second, _):
                await second.report(0)
                await settled()
                await first.stream.aclose()
                await settled()
        with trio.fail_after(1):
            seen = [await anext(changes) for _ in range(6)]
    assert [(one.address, one.connection_id, one.replica, one.state.name) for one in seen] == [
        ("10.0.0.1:1", 1, "connection 1", "HANDSHAKE"),
        ("10.0.0.1:1", 1, "connection 1", "TRANSFER"),
        ("10.0.0.2:2", 3, "connection 3", "HANDSHAKE"),
        ("10.0.0.2:2", 3, "connection 3", "TRANSFER"),
        ("10.0.0.1:1", 1, "connection 1", "SHUTDOWN"),
        ("10.0.0.2:2", 3, "connection 3", "SHUTDOWN"),
    ]

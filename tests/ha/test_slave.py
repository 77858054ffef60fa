"""The slave's side: reports, accepted and refused frames, timers, reconnects."""

from contextlib import suppress
from itertools import count, pairwise

import pytest
import trio

from tests.ha.support import Dialer, Events, connected, make_master, make_slave, running, settled
from tests.store.support import FILE_BYTES, log_bytes, message, open_log
from trioha.config.keys.ha import AckMode, GapPolicy
from trioha.ha.frames import HEADER
from trioha.ha.replication_session import ReplicationSettings
from trioha.recording.events import CloseReason, Direction, HaState, Kind, LinkEvent


@pytest.fixture
def master_log(tmp_path):
    log, _ = open_log(tmp_path / "master")
    for number in range(40):
        log.append(message(bytes([number]) * 4000))
    assert log.max_offset > 2 * FILE_BYTES
    return log


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path / "slave")[0]


async def send_log(peer, master_log, start_offset, *, batch_bytes=32768):
    """Send the master's log; the slave may close the connection meanwhile."""
    offset = start_offset
    with suppress(trio.BrokenResourceError):
        while body := bytes(master_log.read(offset, batch_bytes)):
            await peer.frame(offset, body)
            offset += len(body)


async def test_the_first_report_is_sent_at_once_and_is_the_exact_end(log, autojump_clock):
    log.append(message())
    slave, dialer, _ = make_slave(log, replication=ReplicationSettings(tail_check_bytes=0))
    async with running(slave, dialer) as peer:
        assert await peer.next_report() == log.max_offset
        assert trio.current_time() == dialer.times[0]


async def test_a_masters_log_arrives_byte_for_byte_and_is_acked(log, master_log, autojump_clock):
    slave, dialer, events = make_slave(log)
    async with running(slave, dialer) as peer:
        await send_log(peer, master_log, 0)
        await peer.reported(master_log.max_offset)
    assert log_bytes(log) == log_bytes(master_log)
    ends = [(offset + size) for _, _, offset, _, size, _ in events.of(Kind.RECEIVED)]
    assert ends[-1] == master_log.max_offset


async def test_nothing_is_acked_before_a_whole_record_is_there(log, master_log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    first = master_log.read(0, FILE_BYTES)
    record_bytes = int.from_bytes(first[:4], "big")
    async with running(slave, dialer) as peer:
        assert await peer.next_report() == 0
        await peer.frame(0, bytes(first[: record_bytes - 1]))
        await settled()
        assert (log.max_offset, slave.status().reported_offset) == (0, 0)
        await peer.frame(record_bytes - 1, bytes(first[record_bytes - 1 : record_bytes]))
        assert await peer.next_report() == record_bytes == log.max_offset


@pytest.mark.parametrize(
    ("offset", "body", "reason"),
    [
        (FILE_BYTES + 100, b"x" * 50, CloseReason.OFFSET_MISMATCH),
        (100, b"", CloseReason.OFFSET_MISMATCH),
        (FILE_BYTES, bytes(FILE_BYTES + 1), CloseReason.BAD_SIZE),
        (0, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", CloseReason.BAD_RECORD),
    ],
)
async def test_an_invalid_frame_ends_the_connection_and_appends_nothing(
    log, offset, body, reason, autojump_clock
):
    slave, dialer, events = make_slave(log)
    async with running(slave, dialer) as peer:
        await peer.frame(offset, body)
        await settled()
        assert slave.last_close_reason is reason
        assert log.is_empty
    assert events.of(Kind.REFUSED)[0][5] == reason
    assert events.of(Kind.CLOSED)[0][5] == reason


@pytest.mark.parametrize("size", [-5, -(2**31), 4 * 1024 * 1024])
async def test_an_invalid_size_is_refused_before_its_body(log, size, autojump_clock):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer) as peer:
        await peer.stream.send_all(bytes(8) + size.to_bytes(4, "big", signed=True))
        await settled()
        assert slave.last_close_reason is CloseReason.BAD_SIZE


async def test_after_a_cut_inside_a_record_the_slave_requests_from_its_start_again(
    log, master_log, autojump_clock
):
    slave, dialer, _ = make_slave(log, replication=ReplicationSettings(tail_check_bytes=0))
    async with running(slave, dialer) as peer:
        await peer.frame(0, bytes(master_log.read(0, 10_000)))
        await settled()
        await peer.stream.aclose()
        await trio.sleep(1)
        assert await dialer.peers[1].next_report() == log.max_offset
        assert 0 < log.max_offset < 10_000
        await send_log(dialer.peers[1], master_log, log.max_offset)
        await dialer.peers[1].reported(master_log.max_offset)
        assert slave.status().reconnects == 1
    assert log_bytes(log) == log_bytes(master_log)


async def test_a_silent_master_is_dropped_after_20_virtual_seconds(log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer) as peer:
        started = trio.current_time()
        await trio.sleep(7)
        await peer.frame(0)
        await peer.ended()
        assert trio.current_time() - started == 27.0
        assert slave.last_close_reason is CloseReason.HOUSEKEEPING


@pytest.mark.parametrize("sent", [b"", HEADER.pack(0, 30_000)], ids=["in a header", "in a body"])
async def test_a_master_that_drips_a_byte_now_and_then_is_as_silent_as_one_that_sends_nothing(
    log, sent, autojump_clock
):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer) as peer:
        started = trio.current_time()
        await trio.sleep(7)
        await peer.stream.send_all(sent or HEADER.pack(0, 0))
        with suppress(trio.BrokenResourceError):
            for byte in HEADER.pack(0, 0)[:-1] if not sent else bytes(30_000):
                await trio.sleep(3)
                await peer.stream.send_all(bytes([byte]))
        await peer.ended()
        assert slave.last_close_reason is CloseReason.HOUSEKEEPING
        assert 27.0 <= trio.current_time() - started < 31.0


async def test_a_long_frame_on_a_slow_line_is_no_silence(log, master_log, autojump_clock):
    """32 KiB at 1.5 KiB/s: whole after the idle timeout."""
    slave, dialer, _ = make_slave(log)
    body = bytes(master_log.read(0, 32768))
    async with running(slave, dialer) as peer:
        started = trio.current_time()
        await peer.stream.send_all(HEADER.pack(0, len(body)))
        for at in range(0, len(body), 1536):
            await trio.sleep(1)
            await peer.stream.send_all(body[at : at + 1536])
        await peer.reported(log.max_offset)
        assert log.max_offset > 28_000
        assert trio.current_time() - started > 20.0
        assert slave.is_connected()


async def test_time_spent_appending_is_not_silence_of_the_master(log, master_log, autojump_clock):
    class SlowDisk(Events):
        def emit(self, kind, **fields):
            if kind is Kind.RECEIVED:
                autojump_clock.jump(3)
            super().emit(kind, **fields)

    slave, dialer, _ = make_slave(log, events=SlowDisk())
    async with running(slave, dialer) as peer:
        started = trio.current_time()
        await peer.frame(0, bytes(master_log.read(0, 10_000)))
        await peer.ended()
        assert trio.current_time() - started == 23.0
        assert slave.last_close_reason is CloseReason.HOUSEKEEPING


async def test_time_spent_connecting_is_not_silence_of_the_master(log, autojump_clock):
    times = {}

    class SlowStart(Events):
        def emit(self, kind, **fields):
            if kind is Kind.STATE and kind not in times:
                autojump_clock.jump(3)
            times.setdefault(kind, trio.current_time())
            super().emit(kind, **fields)

    slave, dialer, _ = make_slave(log, events=SlowStart())
    async with running(slave, dialer) as peer:
        await peer.ended()
    assert times[Kind.CLOSED] - times[Kind.STATE] == 20.0


async def test_an_idle_slave_repeats_its_report_every_5_seconds(log, autojump_clock):
    log.append(message())
    slave, dialer, events = make_slave(log, replication=ReplicationSettings(tail_check_bytes=0))
    async with running(slave, dialer) as peer:
        started = trio.current_time()
        reports = []
        for _ in range(4):
            offset = await peer.next_report()
            reports.append((trio.current_time() - started, offset))
    assert reports == [(5.0 * number, log.max_offset) for number in range(4)]
    assert [event[5] for event in events.of(Kind.HEARTBEAT)] == [Direction.SENT] * 3


async def test_an_absent_master_is_dialled_with_a_growing_back_off_of_at_most_5_s(log, autojump_clock):
    dialer = Dialer(refuse=True)
    slave, _, events = make_slave(log, dialer=dialer)
    with trio.move_on_after(30):
        await slave.run()
    pauses = [round(later - earlier, 3) for earlier, later in pairwise(dialer.times)]
    assert pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert [event[5] for event in events.of(Kind.LINK)][:3] == [
        LinkEvent.CONNECTING,
        LinkEvent.BACK_OFF,
        LinkEvent.CONNECTING,
    ]
    assert slave.state is HaState.SHUTDOWN


async def test_the_back_off_is_short_again_after_a_received_frame(log, master_log, autojump_clock):
    dialer = Dialer(refuse=True)
    slave, _, _ = make_slave(log, dialer=dialer)
    async with running(slave):
        await trio.sleep(10)
        dialer.refuse = False
        await trio.sleep(5)
        peer = dialer.peers[0]
        await peer.frame(0, bytes(master_log.read(0, 5000)))
        await settled()
        ended = trio.current_time()
        await peer.stream.aclose()
        await trio.sleep(2)
        assert dialer.times[-1] - ended == pytest.approx(0.1)


async def test_a_connect_that_hangs_is_given_up_after_5_s(log, autojump_clock):
    async def hang(dialing):
        dialing("other:10912")
        await trio.sleep_forever()

    slave, _, _ = make_slave(log, dialer=hang)
    with trio.move_on_after(4.9):
        await slave.run()
    assert slave.last_close_reason is CloseReason.NONE
    assert slave.ended_connections == {}
    with trio.move_on_after(5.05):
        await slave.run()
    assert slave.last_close_reason is CloseReason.CONNECT_FAILED
    assert slave.ended_connections == {"CONNECT_FAILED": 1}
    assert slave.status().master_address == "other:10912"


async def test_a_disk_error_ends_the_connection_and_the_slave_continues_later(
    log, master_log, autojump_clock, monkeypatch
):
    from trioha.errors import StoreError
    from trioha.store.mapped_file import MappedFile

    slave, dialer, _ = make_slave(log)
    create = MappedFile.create

    def full(directory, *, start_offset, size):
        raise StoreError("no space left", path=directory)

    async with running(slave, dialer) as peer:
        monkeypatch.setattr(MappedFile, "create", full)
        await peer.frame(0, bytes(master_log.read(0, 5000)))
        await settled()
        assert slave.last_close_reason is CloseReason.STORE_ERROR
        assert slave.ended_connections == {"STORE_ERROR": 1}
        monkeypatch.setattr(MappedFile, "create", create)
        await trio.sleep(1)
        await send_log(dialer.peers[1], master_log, 0)
        await dialer.peers[1].reported(master_log.max_offset)
    assert log_bytes(log) == log_bytes(master_log)


async def test_nothing_of_a_connection_remains_when_it_ends(log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer) as peer:
        with_connection = trio.lowlevel.current_statistics().tasks_living
        await peer.stream.aclose()
        await settled()
        assert trio.lowlevel.current_statistics().tasks_living == with_connection - len(
            ("reader", "writer", "watch")
        )
        assert log.appended.waiting == 0
        assert slave.state is HaState.READY


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
async def test_the_recorded_stream_of_a_real_master_is_replicated_completely(log, version, autojump_clock):
    from tests.ha.test_frames import VECTORS, frames_of

    data = (VECTORS / "ha-wire" / version / "a-fresh-slave.m2s.bin").read_bytes()
    end_offset = frames_of([data])[-1][0]
    slave, dialer, events = make_slave(log)
    async with running(slave, dialer) as peer:
        for at in range(0, len(data), 1000):
            await peer.stream.send_all(data[at : at + 1000])
        await peer.reported(end_offset)
    assert events.of(Kind.REFUSED) == []
    assert log_bytes(log) == b"".join(body for _, body in frames_of([data]))


async def test_with_flushed_acks_nothing_is_acked_before_it_is_on_disk(log, master_log, autojump_clock):
    slave, dialer, _ = make_slave(log, ack_mode=AckMode.FLUSHED)
    async with running(slave, dialer) as peer:
        assert await peer.next_report() == 0
        await send_log(peer, master_log, 0)
        await settled()
        assert log.max_offset == master_log.max_offset
        assert slave.status().reported_offset == 0
        log.flushed.advance(70_000)
        assert await peer.next_report() == 70_000
        await peer.stream.aclose()
        await trio.sleep(10)
        again = dialer.peers[-1]
        # A request counts as an ack, too.
        assert await again.next_report() == 70_000
        await send_log(again, master_log, 70_000)
        await settled()
        assert slave.status().reported_offset == 70_000
        log.flushed.advance(log.max_offset)
        await again.reported(master_log.max_offset)
    assert log_bytes(log) == log_bytes(master_log)


async def test_an_observer_receives_everything_and_acks_nothing(log, master_log, autojump_clock):
    slave, dialer, _ = make_slave(log, is_observer=True)
    async with running(slave, dialer) as peer:
        await send_log(peer, master_log, 0)
        for _ in range(3):
            assert await peer.next_report() == 0
        assert log.max_offset == master_log.max_offset
        await peer.stream.aclose()
        await trio.sleep(1)
        # Its records are younger than a put could wait: it requests from the first byte, and compares.
        assert await dialer.peers[1].next_report() == 1
        await send_log(dialer.peers[1], master_log, 1)
        master_log.append(message(b"new"))
        await send_log(dialer.peers[1], master_log, log.max_offset)
        for _ in range(3):
            assert await dialer.peers[1].next_report() == 1
    assert log_bytes(log) == log_bytes(master_log)


async def diverged(log, master_log):
    """Make the slave's log hold other bytes than the master's, near its end."""
    for _ in range(3):
        log.append(message(b"other history"))


async def test_a_diverged_log_is_named_and_kept_by_default(log, master_log, autojump_clock):
    await diverged(log, master_log)
    before = log_bytes(log)
    slave, dialer, events = make_slave(log)
    async with running(slave, dialer):
        for number in range(3):
            await settled()
            request = await dialer.peers[number].next_report()
            await send_log(dialer.peers[number], master_log, request)
            await settled()
            assert slave.last_close_reason is CloseReason.DIVERGED
            assert "differ at offset" in slave.status().verdict
            await trio.sleep(6)
    assert log_bytes(log) == before
    assert {event[5] for event in events.of(Kind.REFUSED)} == {CloseReason.DIVERGED}


async def test_with_resync_a_diverged_log_is_archived_and_the_masters_replicated(
    log, master_log, autojump_clock
):
    await diverged(log, master_log)
    slave, dialer, events = make_slave(log, gap_policy=GapPolicy.RESYNC)
    directory = log.directory
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    async with running(slave, dialer) as peer:
        await send_log(peer, master_log, await peer.next_report())
        await trio.sleep(0.05)
        # The new end of its log is recorded at once, not only with the next connection.
        (*_, state) = events.of(Kind.STATE)
        assert (state[5], state[2:4]) == (HaState.READY, (0, 0))
        (*_, flushed) = events.of(Kind.FLUSHED)
        assert flushed[2] == 0
        await trio.sleep(1)
        # All history, as it had before.
        assert await dialer.peers[1].next_report() == 1
        await send_log(dialer.peers[1], master_log, 1)
        await dialer.peers[1].reported(master_log.max_offset)
        assert slave.status().verdict == ""
    assert log_bytes(log) == log_bytes(master_log)
    (aside,) = directory.parent.glob("slave.diverged-*")
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before


async def test_the_verdict_is_cleared_when_the_master_is_the_right_one_again(log, master_log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer) as peer:
        await send_log(peer, master_log, 0)
        await peer.stream.aclose()
        await trio.sleep(1)
        request = await dialer.peers[1].next_report()
        await dialer.peers[1].frame(request)
        await dialer.peers[1].frame(request)
        await settled()
        assert slave.status().verdict.startswith("GAP")
        await trio.sleep(6)
        await send_log(dialer.peers[2], master_log, await dialer.peers[2].next_report())
        await settled()
        assert slave.status().verdict == ""


@pytest.mark.parametrize("policy", GapPolicy)
async def test_a_start_beyond_the_masters_end_is_in_status_until_the_master_reaches_it(
    log, policy, tmp_path, autojump_clock
):
    slave, dialer, _ = make_slave(
        log, replication=ReplicationSettings(start=2 * FILE_BYTES), gap_policy=policy
    )
    async with running(slave, dialer) as peer:
        assert await peer.next_report() == 2 * FILE_BYTES
        await peer.frame(1000)
        await settled()
        assert slave.last_close_reason is CloseReason.AHEAD
        assert slave.status().verdict == "AHEAD: told to begin at 131072, the master's log ends at 1000"
        await trio.sleep(1)
        assert len(dialer.peers) == 2
        assert await dialer.peers[-1].next_report() == 2 * FILE_BYTES
        await dialer.peers[-1].frame(2 * FILE_BYTES)
        await settled()
        assert slave.status().verdict == ""
    assert [path.name for path in tmp_path.iterdir() if "ahead" in path.name] == []


async def test_no_report_is_beyond_the_own_log_after_the_masters_shrank(log, autojump_clock):
    slave, dialer, _ = make_slave(log)
    async with running(slave, dialer) as peer:
        assert await peer.next_report() == 0
        await peer.frame(3 * FILE_BYTES)
        assert await peer.next_report() == 3 * FILE_BYTES
        await peer.frame(FILE_BYTES)
        await trio.sleep(1)
        assert [await dialer.peers[1].next_report() for _ in range(3)] == [0, 0, 0]
        assert slave.status().reported_offset == 0 == log.max_offset


async def test_frames_of_one_receive_are_appended_together_and_recorded_one_by_one(
    log, master_log, autojump_clock
):
    slave, dialer, events = make_slave(log)
    async with running(slave, dialer) as peer:
        assert await peer.next_report() == 0
        data = bytes(master_log.read(0, 30_000))
        frames = [(offset, data[offset : offset + 3000]) for offset in range(0, 30_000, 3000)]
        await peer.stream.send_all(b"".join(HEADER.pack(offset, len(body)) + body for offset, body in frames))
        await settled()
        assert await peer.next_report() == log.max_offset > 27_000
    received = events.of(Kind.RECEIVED)
    assert [(offset, size) for _, _, offset, _, size, _ in received] == [
        (offset, len(body)) for offset, body in frames
    ]
    assert {aux for _, _, _, aux, _, _ in received} == {log.max_offset}
    assert len(events.of(Kind.REPORTED)) == 2


async def test_a_master_that_closes_without_an_answer_is_in_the_verdict_until_it_answers(
    log, master_log, autojump_clock
):
    log.append(message())
    slave, dialer, _ = make_slave(log, replication=ReplicationSettings(tail_check_bytes=0))
    end_offset = log.max_offset
    async with running(slave, dialer):
        for number in range(3):
            # Longer than the back-off before the second and third attempt.
            await trio.sleep(1)
            assert await dialer.peers[number].next_report() == end_offset
            assert slave.status().verdict == ""
            await dialer.peers[number].stream.aclose()
        await settled()
        assert slave.status().verdict == (
            "REFUSED: 3 connections ended without an answer: the master does not admit this slave, "
            f"or its log ends before {end_offset}"
        )
        await trio.sleep(6)
        await dialer.peers[-1].frame(end_offset)
        await settled()
        assert slave.status().verdict == ""


async def test_slave_that_serves_slaves_gives_each_connection_a_number_of_its_own(log, autojump_clock):
    """In its recording a number means one connection, of either side."""
    events, numbers = Events(), count(1)
    slave, _, _ = make_slave(log, events=events, connection_ids=numbers)
    master, _, _ = make_master(log, events=events, connection_ids=numbers)
    async with running(slave), connected(master) as (peer, _):
        await peer.report(0)
        await settled()
        states = {(conn, state) for _, conn, _, _, _, state in events.of(Kind.STATE)}
    assert states == {(1, HaState.TRANSFER), (2, HaState.HANDSHAKE), (2, HaState.TRANSFER)}

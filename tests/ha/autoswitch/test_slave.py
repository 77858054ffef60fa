"""The slave's side in controller mode, against scripted masters with recorded and other bytes."""

from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from tests.ha import support
from tests.ha.autoswitch.support import (
    MasterPeer,
    begin_epoch,
    entries,
    epochs_of,
    frames_of,
    make_slave,
    open_epoch_store,
    put,
    recorded_frames,
)
from tests.ha.support import settled
from tests.store.support import FILE_BYTES, cut_store, log_bytes
from tests.waiting import until
from trioha.config.keys.ha import AckMode, GapPolicy
from trioha.errors import StoreError
from trioha.ha.autoswitch.client import HANDSHAKE_TIMEOUT_S, SlaveIdentity
from trioha.ha.autoswitch.epoch_session import EpochSession
from trioha.ha.autoswitch.frames import (
    MASTER_HANDSHAKE,
    SLAVE_HANDSHAKE,
    MasterHandshake,
    SlaveHandshake,
    TransferHeader,
    encode_master_handshake,
    encode_transfer_header,
)
from trioha.ha.replication_session import ReplicationSettings
from trioha.recording.events import CloseReason, HaState, Kind

VECTORS = Path(__file__).parents[2] / "vectors" / "ha-autoswitch"
UNCHECKED = ReplicationSettings(tail_check_bytes=0)


def recorded(name):
    return (VECTORS / f"{name}.m2s.bin").read_bytes()


def recorded_log(*names):
    """The bytes of the recorded masters' logs, of consecutive recordings."""
    log = bytearray()
    for name in names:
        for header, body in recorded_frames(recorded(name))[1]:
            if body:
                del log[header.offset :]
                log += body
    return bytes(log)


@pytest.fixture
def store(tmp_path):
    return open_epoch_store(tmp_path / "slave")


@pytest.fixture
def master(tmp_path):
    """Two epochs, the second one over several files."""
    store = open_epoch_store(tmp_path / "master")
    begin_epoch(store, 1)
    put(store, b"a" * 300, b"b" * 3000)
    begin_epoch(store, 2)
    put(store, *(bytes([number]) * 4000 for number in range(40)))
    assert store.commit_log.max_offset > 2 * FILE_BYTES
    return store


async def peer_of(dialer, number=-1):
    await settled()
    return MasterPeer(dialer.peers[number])


@asynccontextmanager
async def running(slave, dialer):
    """Runs a slave until the block ends; yields its first master."""
    async with support.running(slave, dialer) as peer:
        yield MasterPeer(peer)


async def replicate(slave, dialer, master):
    """One connection of a slave to a master's store, until all is acknowledged."""
    async with running(slave, dialer) as peer:
        request = await peer.serve(master)
        await peer.send_log(master, request)
        await peer.reported(master.commit_log.max_offset)
    return request


# -- recordings --------------------------------------------------------------------------------------------


async def test_the_recorded_session_of_an_empty_master_is_followed_at_once(store, autojump_clock):
    slave, dialer, events = make_slave(store)
    data = recorded("a-empty-master-then-puts")
    handshake, frames = recorded_frames(data)
    async with running(slave, dialer) as peer:
        assert slave.state is HaState.HANDSHAKE
        assert not slave.is_connected()
        assert await peer.handshake() == SlaveHandshake(
            is_sync_from_last_file=False, is_async_learner=False, broker_id=2
        )
        await peer.send(encode_master_handshake(handshake))
        # RocketMQ's own slave reports 5 s later.
        assert await peer.next_report() == 0
        assert trio.current_time() == dialer.times[0]
        assert slave.is_connected()
        await peer.send(data[len(encode_master_handshake(handshake)) :])
        assert await peer.next_report() == 639
        assert epochs_of(store) == [(1, 0)]
        assert slave.confirm_offset == 639
    assert log_bytes(store.commit_log) == frames[1][1]
    assert [state for *_, state in events.of(Kind.STATE)] == [
        HaState.HANDSHAKE,
        HaState.TRANSFER,
        HaState.READY,
    ]


async def test_the_recorded_session_of_two_epochs_teaches_both_although_the_chunks_name_the_second(
    store, autojump_clock
):
    """Without the first heartbeat, too, from which RocketMQ's slave learns epoch 1."""
    slave, dialer, _ = make_slave(store)
    handshake, frames = recorded_frames(recorded("c-new-slave-joins-at-epoch2"))
    assert [(header.body_bytes, header.epoch) for header, _ in frames] == [(0, 1), (639, 2), (639, 2)]
    async with running(slave, dialer) as peer:
        await peer.handshake()
        await peer.send(encode_master_handshake(handshake))
        assert await peer.next_report() == 0
        for header, body in frames[1:]:
            await peer.frame(
                header.offset,
                body,
                epoch=header.epoch,
                start=header.epoch_start_offset,
                confirm=header.confirm_offset,
            )
            assert await peer.next_report() == header.offset + len(body)
    assert epochs_of(store) == [(1, 0), (2, 639)]
    assert store.epochs.path.read_bytes() == b"2\n1533492660\n1-0\n2-639\n"
    assert slave.confirm_offset == 1278


async def follow_recording_c(store):
    """Make the recorded store's log: 1278 bytes of two epochs; then two orphan messages."""
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.handshake()
        await peer.send(recorded("c-new-slave-joins-at-epoch2"))
        await peer.reported(1278)
    orphans_end = put(store, b"o" * 172, b"o" * 172)
    assert orphans_end > 1278 + 2 * 172
    return orphans_end


async def test_the_recorded_truncation_to_1278_is_replayed(store, autojump_clock):
    shared = recorded_log("c-new-slave-joins-at-epoch2")
    orphans_end = await follow_recording_c(store)
    slave, dialer, _ = make_slave(store)
    handshake, frames = recorded_frames(recorded("d-old-master-truncates"))
    assert handshake == MasterHandshake(1468, 3, entries((1, 0), (2, 639), (3, 1278)))
    async with running(slave, dialer) as peer:
        await peer.handshake()
        await peer.send(encode_master_handshake(handshake))
        # The tail check: the bytes before 1278 come again, and are compared before anything is cut.
        assert await peer.next_report() == 1
        assert store.commit_log.max_offset == orphans_end
        await peer.frame(1, shared[1:], epoch=3, start=1278, confirm=1278)
        assert await peer.next_report() == 1278 == store.commit_log.max_offset
        for header, body in frames:
            await peer.frame(
                header.offset,
                body,
                epoch=header.epoch,
                start=header.epoch_start_offset,
                confirm=header.confirm_offset,
            )
        await peer.reported(1641)
    assert log_bytes(store.commit_log) == shared + b"".join(body for _, body in frames)
    assert store.epochs.path.read_bytes() == (VECTORS / "epochFileCheckpoint.store1").read_bytes()
    assert slave.confirm_offset == frames[-1][0].confirm_offset


# -- handshake ---------------------------------------------------------------------------------------------


async def test_the_handshake_says_what_the_slave_is(store, autojump_clock):
    slave, dialer, _ = make_slave(
        store, identity=SlaveIdentity(7, is_async_learner=True, is_sync_from_last_file=True)
    )
    async with running(slave, dialer) as peer:
        assert await peer.peer.read(16) == SLAVE_HANDSHAKE.pack(1, 1, 1, 7)


async def test_an_observer_is_a_learner_that_acknowledges_nothing(store, master, autojump_clock):
    slave, dialer, _ = make_slave(store, is_observer=True)
    async with running(slave, dialer) as peer:
        assert (await peer.handshake()).is_async_learner
        await peer.answer(master.commit_log.max_offset, *epochs_of(master))
        assert await peer.next_report() == 0
        await peer.send_log(master, 0)
        assert await peer.next_report() == 0
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


async def test_nothing_is_reported_before_the_whole_handshake_is_there(store, master, autojump_clock):
    put(store, b"before")
    slave, dialer, _ = make_slave(store)
    handshake = MasterHandshake(master.commit_log.max_offset, 2, master.epochs.entries)
    data = encode_master_handshake(handshake)
    async with running(slave, dialer) as peer:
        await peer.handshake()
        for at in range(len(data) - 1):
            await peer.send(data[at : at + 1])
            await settled()
            assert slave.status().reported_offset == -1


async def test_a_handshake_without_an_answer_ends_the_connection(store, autojump_clock):
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.peer.ended()
        assert trio.current_time() == dialer.times[0] + HANDSHAKE_TIMEOUT_S
        assert slave.last_close_reason is CloseReason.NO_REQUEST


# -- new bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_bytes", [100, 4096, 1 << 20])
async def test_a_masters_log_arrives_byte_for_byte_with_its_epochs(
    store, master, batch_bytes, autojump_clock
):
    confirmed = []
    slave, dialer, _ = make_slave(store, on_confirm=confirmed.append)
    max_offset = master.commit_log.max_offset
    async with running(slave, dialer) as peer:
        assert await peer.serve(master) == 0
        await peer.send_log(master, 0, batch_bytes=batch_bytes, confirm=max_offset - 1)
        await peer.reported(max_offset)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)
    assert store.epochs.path.read_bytes() == master.epochs.path.read_bytes()
    assert confirmed == sorted(confirmed)
    assert slave.confirm_offset == confirmed[-1] == max_offset - 1


async def test_an_epochs_entry_is_on_disk_before_its_first_byte(store, master, autojump_clock, monkeypatch):
    seen = []
    append = type(store.epochs).append

    def spy(epochs, epoch, start_offset):
        append(epochs, epoch, start_offset)
        seen.append((epoch, start_offset, store.commit_log.max_offset))

    monkeypatch.setattr(type(store.epochs), "append", spy)
    slave, dialer, _ = make_slave(store)
    await replicate(slave, dialer, master)
    assert [entry[:2] for entry in seen] == epochs_of(master)
    assert all(max_offset <= start_offset for _, start_offset, max_offset in seen)


async def test_an_empty_slave_starts_where_its_master_does(store, master, autojump_clock):
    slave, dialer, _ = make_slave(store, identity=SlaveIdentity(2, is_sync_from_last_file=True))
    async with running(slave, dialer) as peer:
        assert await peer.serve(master) == 0
        await peer.send_log(master, 2 * FILE_BYTES)
        await peer.reported(master.commit_log.max_offset)
    assert store.commit_log.min_offset == 2 * FILE_BYTES
    assert epochs_of(store) == epochs_of(master)[1:]
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)[2 * FILE_BYTES :]


async def test_a_new_epoch_of_the_same_master_is_adopted_with_its_first_frame(store, master, autojump_clock):
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.send_log(master, await peer.serve(master))
        end = master.commit_log.max_offset
        await peer.reported(end)
        await peer.frame(end, epoch=3, start=end, confirm=end)
        await settled()
        assert epochs_of(store) == [*epochs_of(master), (3, end)]
        begin_epoch(master, 4)
        put(master, b"fourth")
        await peer.send_log(master, end)
        await peer.reported(master.commit_log.max_offset)
    # An epoch without bytes is replaced, as the master's table does.
    assert epochs_of(store) == epochs_of(master)


async def test_an_epoch_that_cannot_be_placed_is_asked_for_with_another_handshake(
    store, master, autojump_clock
):
    """RocketMQ labels the last chunk of an epoch with the next one: epoch 3 in one chunk has no header."""
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.send_log(master, await peer.serve(master))
        end = master.commit_log.max_offset
        await peer.reported(end)
        begin_epoch(master, 3)
        third_end = put(master, b"third")
        begin_epoch(master, 4)
        put(master, b"fourth")
        await peer.send_log(master, end)
        await peer.peer.ended()
        assert slave.last_close_reason is CloseReason.PROBED
        await trio.sleep(1)
        again = await peer_of(dialer)
        await again.send_log(master, await again.serve(master))
        await again.reported(master.commit_log.max_offset)
    assert epochs_of(store) == [*epochs_of(master)[:2], (3, end), (4, third_end)] == epochs_of(master)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


async def test_flushed_mode_requests_nothing_beyond_the_disk(store, master, autojump_clock):
    """Also the first report after a handshake is an ack."""
    slave, dialer, _ = make_slave(store, ack_mode=AckMode.FLUSHED)
    async with running(slave, dialer) as peer:
        await peer.send_log(master, await peer.serve(master))
        await settled()
        assert store.commit_log.max_offset == master.commit_log.max_offset
        assert slave.status().reported_offset == 0
        store.commit_log.flushed.advance(5000)
        assert await peer.next_report() == 5000
        await peer.peer.stream.aclose()
        await trio.sleep(10)
        again = await peer_of(dialer)
        assert await again.serve(master) == 5000
        store.commit_log.flushed.advance(6000)
        await settled()
        assert slave.status().reported_offset == 5000
        await again.send_log(master, 5000)
        assert await again.next_report() == 6000
        store.commit_log.flushed.advance(store.commit_log.max_offset)
        assert await again.next_report() == master.commit_log.max_offset
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


# -- another master ----------------------------------------------------------------------------------------


async def test_a_master_with_other_bytes_under_equal_epochs_cuts_nothing(store, tmp_path, autojump_clock):
    other = open_epoch_store(tmp_path / "other")
    for one, bodies in ((store, b"ab"), (other, b"xy")):
        begin_epoch(one, 1)
        put(one, *(bytes([byte]) * 100 for byte in bodies))
    before = log_bytes(store.commit_log)
    put(store, b"more")
    begin_epoch(other, 2)
    put(other, b"next")
    slave, dialer, _ = make_slave(store)
    end = store.commit_log.max_offset
    async with running(slave, dialer) as peer:
        await peer.send_log(other, await peer.serve(other))
        await peer.peer.ended()
        assert slave.last_close_reason is CloseReason.DIVERGED
        assert "differ at offset" in slave.status().verdict
    assert store.commit_log.max_offset == end
    assert log_bytes(store.commit_log).startswith(before)


@pytest.mark.parametrize(
    ("epochs", "max_offset", "reason"),
    [
        ([(2, 0), (7, 50)], 5000, CloseReason.DIVERGED),
        ([], 0, CloseReason.DIVERGED),
        ([(7, 1 << 20)], 1 << 21, CloseReason.GAP),
    ],
    ids=["other epochs", "none", "later epochs only"],
)
@pytest.mark.parametrize("policy", list(GapPolicy))
async def test_without_a_consistent_point_the_policy_decides(
    store, autojump_clock, *, epochs, max_offset, reason, policy
):
    begin_epoch(store, 3)
    end = put(store, b"a", b"b")
    slave, dialer, _ = make_slave(store, gap_policy=policy)
    async with running(slave, dialer) as peer:
        await peer.handshake()
        await peer.answer(max_offset, *epochs)
        await peer.peer.ended()
        assert slave.last_close_reason is reason
        if policy is GapPolicy.RESYNC:
            await trio.sleep(1)
            assert store.commit_log.is_empty
            assert epochs_of(store) == []
        else:
            assert reason.name in slave.status().verdict
            assert store.commit_log.max_offset == end


async def test_a_log_without_any_byte_of_the_masters_is_set_aside_whatever_the_policy(
    store, tmp_path, autojump_clock
):
    """The master was elected before the first byte of epoch 1 reached it."""
    begin_epoch(store, 1)
    put(store, b"orphan")
    other = open_epoch_store(tmp_path / "other")
    begin_epoch(other, 2)
    put(other, b"of epoch 2")
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.handshake()
        await peer.answer(other.commit_log.max_offset, *epochs_of(other))
        await peer.peer.ended()
        await trio.sleep(1)
        again = await peer_of(dialer)
        await again.send_log(other, await again.serve(other))
        await again.reported(other.commit_log.max_offset)
    assert log_bytes(store.commit_log) == log_bytes(other.commit_log)
    assert epochs_of(store) == [(2, 0)]
    [kept] = store.commit_log.directory.parent.glob("commitlog.log_restarted-*")
    assert any(kept.iterdir())


async def test_a_log_without_epochs_follows_a_master_that_has_its_tail(store, master, autojump_clock):
    data = bytes(master.commit_log.read(0, FILE_BYTES))
    first_bytes = int.from_bytes(data[:4], "big")
    put(store, b"placeholder")
    cut_store(store, 0)
    store.commit_log.append_records(memoryview(data[:first_bytes]), last_store_timestamp_ms=1)
    assert epochs_of(store) == []
    slave, dialer, _ = make_slave(store)
    assert await replicate(slave, dialer, master) == 1
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)
    assert epochs_of(store) == epochs_of(master)


@pytest.mark.parametrize("replication", [None, UNCHECKED], ids=["in a body", "at the handshake"])
async def test_nothing_is_stored_before_a_cut_is_on_disk_and_what_came_meanwhile_follows(
    store, master, replication, autojump_clock
):
    """The queues are synced in a worker thread: the loop goes on, and a role that ends waits for it."""
    end_offset = put(master, b"shared")
    await replicate(*make_slave(store)[:2], master)
    put(store, b"orphan")
    begin_epoch(master, 3)
    put(master, b"new")
    syncs, ends = [], []
    may_end = trio.Event()

    async def sync(step):
        syncs.append(store.commit_log.max_offset)
        await may_end.wait()
        ends.append(store.commit_log.max_offset)
        step()

    slave, dialer, _ = make_slave(store, run_blocking=sync, replication=replication)
    async with running(slave, dialer) as peer:
        start = await peer.serve(master)
        last = master.epochs.entries[-1]
        heartbeat = TransferHeader(master.commit_log.max_offset, 0, last.epoch, last.start_offset, 0)
        frames = [*frames_of(master, start), (heartbeat, b"")]
        await peer.send(b"".join(encode_transfer_header(header) + body for header, body in frames))
        await trio.sleep(1)
        # A role that ends now does not leave the cut half done.
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
            assert syncs == [end_offset]
            may_end.set()
    assert (len(syncs), set(ends)) == (2, {end_offset})
    assert not (store.commit_log.directory / "trioha-cut.json").exists()
    slave, dialer, _ = make_slave(store, run_blocking=sync)
    await replicate(slave, dialer, master)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)


async def test_a_cut_that_fails_ends_the_node(store, master, autojump_clock):
    await replicate(*make_slave(store)[:2], master)
    put(store, b"orphan")
    slave, dialer, _ = make_slave(store, replication=UNCHECKED)

    def fail(offset):
        yield lambda: None
        raise StoreError("the cut cannot be completed: disk", path=store.commit_log.directory)

    slave._replication._cut = fail
    errors = []

    async def run():
        try:
            await slave.run()
        except StoreError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        peer = await peer_of(dialer)
        await peer.handshake()
        await peer.answer(master.commit_log.max_offset, *epochs_of(master))
    [error] = errors
    assert "cannot be completed" in str(error)


# -- hostile masters ---------------------------------------------------------------------------------------


def handshake_with(max_offset, *epochs):
    return encode_master_handshake(MasterHandshake(max_offset, epochs[-1][0], entries(*epochs)))


HOSTILE_HANDSHAKES = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    MASTER_HANDSHAKE.pack(1, 2**31 - 4, 0, -1),
    encode_master_handshake(MasterHandshake(5, 1, ())) * 2,
    # Epochs that no log has.
    handshake_with(100, (2, 0), (1, 50)),
    handshake_with(100, (1, 50), (2, 0)),
    handshake_with(100, (-1, 0)),
    handshake_with(100, (1, -1)),
    handshake_with(100, (1, 0), (2, 101)),
    handshake_with(2**63 - 1, (1, 0)),
]


async def test_a_hostile_handshake_ends_the_connection_only(store, autojump_clock):
    begin_epoch(store, 1)
    end = put(store, b"own")
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer):
        for number, data in enumerate(HOSTILE_HANDSHAKES):
            await until(lambda number=number: len(dialer.peers) > number)
            peer = await peer_of(dialer)
            await peer.handshake()
            await peer.send(data)
            await peer.peer.ended()
            assert (store.commit_log.max_offset, epochs_of(store)) == (end, [(1, 0)]), data
    assert slave.boundary.bugs == 0


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ((100, b"x", 1, 0), CloseReason.OFFSET_MISMATCH),
        ((100, b"", 1, 0), CloseReason.OFFSET_MISMATCH),
        ((0, bytes(FILE_BYTES + 1), 1, 0), CloseReason.BAD_SIZE),
        ((2**63 - 1 - FILE_BYTES, b"", 1, 0), CloseReason.BAD_SIZE),
        ((0, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 1, 0), CloseReason.BAD_RECORD),
        ((0, b"x", 2, 50), CloseReason.PROBED),
        ((0, b"x", 1, 1), CloseReason.PROBED),
        ((0, b"x", 0, 0), CloseReason.PROBED),
    ],
)
async def test_a_frame_that_does_not_continue_the_log_ends_the_connection_only(
    store, frame, reason, autojump_clock
):
    offset, body, epoch, start = frame
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.handshake()
        await peer.answer(1000, (1, 0))
        assert await peer.next_report() == 0
        await peer.frame(offset, body, epoch=epoch, start=start)
        await peer.peer.ended()
        assert slave.last_close_reason is reason
    assert store.commit_log.is_empty


@pytest.mark.parametrize("tail_check_bytes", [0, 65536])
async def test_a_master_that_has_deleted_what_follows_is_a_gap(
    store, master, tail_check_bytes, autojump_clock
):
    """RocketMQ's sends heartbeats at the request for ever."""
    await replicate(*make_slave(store)[:2], master)
    put(store, b"orphan")
    end = store.commit_log.max_offset
    begin_epoch(master, 3)
    put(master, b"of epoch 3")
    slave, dialer, _ = make_slave(store, replication=ReplicationSettings(tail_check_bytes=tail_check_bytes))
    async with running(slave, dialer) as peer:
        request = await peer.serve(master)
        for _ in range(2):
            await peer.frame(request, epoch=2, start=epochs_of(master)[1][1])
        await peer.peer.ended()
        assert slave.last_close_reason is CloseReason.GAP
        assert "GAP" in slave.status().verdict
    assert store.commit_log.max_offset == (end if tail_check_bytes else request)


@pytest.mark.parametrize(("offset", "reason"), [(3 * FILE_BYTES, CloseReason.GAP), (100, CloseReason.AHEAD)])
async def test_a_trioha_masters_refusal_says_what_is_missing(store, master, offset, reason, autojump_clock):
    await replicate(*make_slave(store)[:2], master)
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.serve(master)
        # It may be outside of all epochs.
        await peer.frame(offset, epoch=-1, start=0)
        await peer.peer.ended()
        assert slave.last_close_reason is reason
        assert reason.name in slave.status().verdict


async def test_a_slave_has_caught_up_when_it_has_what_the_master_had_when_it_connected(
    store, master, autojump_clock
):
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        request = await peer.serve(master)
        assert slave.is_connected()
        assert not slave.has_caught_up()
        frames = list(frames_of(master, request))
        for header, body in frames:
            assert not slave.has_caught_up()
            await peer.send(encode_transfer_header(header) + body)
            await settled()
        assert slave.has_caught_up()
        await peer.peer.stream.aclose()
        await settled()
        assert not slave.has_caught_up()
        # It has all of an idle master's log before any frame comes.
        await trio.sleep(1)
        await settled()
        again = await peer_of(dialer)
        request = await again.serve(master)
        await again.send_log(master, request)
        await settled()
        assert slave.has_caught_up()
    assert not slave.has_caught_up()


async def test_heartbeats_of_an_idle_master_are_no_gap(store, master, autojump_clock):
    await replicate(*make_slave(store)[:2], master)
    end = store.commit_log.max_offset
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer) as peer:
        await peer.send_log(master, await peer.serve(master))
        for _ in range(5):
            await peer.frame(end, epoch=2, start=epochs_of(master)[1][1], confirm=end)
        await peer.reported(end)
        assert slave.is_connected()
    assert slave.confirm_offset == end


@pytest.mark.parametrize("name", ["begin", "receive_handshake", "receive_header", "receive_body"])
async def test_a_fault_of_the_program_ends_the_connection_only(
    store, master, name, autojump_clock, monkeypatch
):
    real = getattr(EpochSession, name)
    calls = []

    def fail_once(session, *arguments, **options):
        calls.append(name)
        if len(calls) == 1:
            raise ZeroDivisionError(name)
        return real(session, *arguments, **options)

    monkeypatch.setattr(EpochSession, name, fail_once)
    slave, dialer, _ = make_slave(store)
    async with running(slave, dialer):
        if name != "begin":
            peer = await peer_of(dialer)
            await peer.handshake()
            with suppress(trio.BrokenResourceError):
                await peer.answer(master.commit_log.max_offset, *epochs_of(master))
                await peer.send_log(master, 0)
        await trio.sleep(1)
        assert slave.ended_connections["INTERNAL_ERROR"] == 1
        peer = await peer_of(dialer)
        await peer.send_log(master, await peer.serve(master))
        await peer.reported(master.commit_log.max_offset)
    assert log_bytes(store.commit_log) == log_bytes(master.commit_log)

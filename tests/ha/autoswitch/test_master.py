"""The master's side of controller mode, with scripted and recorded slaves."""

from pathlib import Path

import pytest
import trio
from attrs import evolve

from tests.epochs import epoch_at
from tests.ha.autoswitch.master_support import OWN, begin_life, connected, table
from tests.ha.autoswitch.support import recorded_frames
from tests.ha.support import SETTINGS, settled
from tests.store.support import message, open_log
from trioha.controller.agent_status import SetDecision
from trioha.ha.autoswitch.frames import (
    EPOCHS_MAX,
    MASTER_HANDSHAKE_BYTES,
    MasterHandshake,
    MasterStreamDecoder,
    SlaveHandshake,
    SlaveStreamDecoder,
    TransferHeader,
    encode_slave_handshake,
    encode_slave_report,
)
from trioha.recording.events import CloseReason, Kind
from trioha.store.epochs import EpochEntry, EpochTable

VECTORS = Path(__file__).parents[2] / "vectors" / "ha-autoswitch"


@pytest.fixture
def log(tmp_path):
    log, _ = open_log(tmp_path)
    yield log
    log.close()


def fill(log, to_offset):
    """Append messages until the log is at least so long; returns its end."""
    while log.max_offset < to_offset:
        log.append(message(b"x" * 900))
    return log.max_offset


# -- recorded sessions -----------------------------------------------------------------------------------


def recorded(name):
    """What a real master sent: its handshake, and (header, body) of each frame; and a real slave's frames."""
    handshake, frames = recorded_frames((VECTORS / f"{name}.m2s.bin").read_bytes())
    return handshake, frames, SlaveStreamDecoder().feed((VECTORS / f"{name}.s2m.bin").read_bytes())


RECORDED_LOG = [
    frame
    for name in ("a-empty-master-then-puts", "b-master-epoch2", "d-old-master-truncates")
    for frame in recorded(name)[1]
    if frame[1]
]
"""Every byte of the recorded log: (header, body)."""


def restore(log, to_offset):
    """The recorded master's log up to `to_offset`."""
    for header, body in RECORDED_LOG:
        if header.offset < to_offset:
            assert header.offset == log.max_offset
            log.append_records(memoryview(body), last_store_timestamp_ms=0)
    assert log.max_offset == to_offset


@pytest.mark.parametrize(
    ("name", "log_end", "epochs"),
    [
        ("a-empty-master-then-puts", 0, [(1, 0)]),
        ("b-master-epoch2", 1278, [(1, 0), (2, 639)]),
        ("c-new-slave-joins-at-epoch2", 1278, [(1, 0), (2, 639)]),
        ("d-old-master-truncates", 1468, [(1, 0), (2, 639), (3, 1278)]),
    ],
)
async def test_a_recorded_slave_gets_the_bytes_that_the_recorded_master_sent(
    log, autojump_clock, name, log_end, epochs
):
    """The same handshake, byte for byte, and the same log; frames name their own epochs."""
    handshake, frames, (slave_handshake, first_report, *acks) = recorded(name)
    restore(log, log_end)
    life = begin_life(log, epochs=table(*epochs), own_id=9)
    async with connected(life) as peer:
        await peer.send(encode_slave_handshake(slave_handshake))
        answer_bytes = MASTER_HANDSHAKE_BYTES + 12 * len(epochs)
        answer = b""
        while len(answer) < answer_bytes:
            data = await peer.stream.receive_some(answer_bytes - len(answer))
            assert data, "the master closed the connection"
            answer += data
        assert answer == (VECTORS / f"{name}.m2s.bin").read_bytes()[:answer_bytes]
        peer.feed(answer)
        assert await peer.next_event() == handshake
        await trio.sleep(5.02)
        acked = first_report.max_offset
        await peer.report(acked)
        for end_offset in dict.fromkeys(ack.max_offset for ack in acks):
            if end_offset > log.max_offset:
                # The recorded master stored it now.
                (body,) = [body for header, body in RECORDED_LOG if header.offset == log.max_offset]
                log.append_records(memoryview(body), last_store_timestamp_ms=0)
            while acked < end_offset:
                header, body = await peer.next_frame()
                entry = epoch_at(life.epochs, header.offset)
                assert header.offset == acked
                assert (header.epoch, header.epoch_start_offset) == (entry.epoch, entry.start_offset)
                assert body == bytes(log.read(acked, len(body)))
                acked += len(body)
            await peer.report(acked)
        assert acked == max(header.offset + len(body) for header, body in frames)
        await settled()
        assert [one.ack_offset for one in life.master.connections()] == [log.max_offset]


# -- handshake -------------------------------------------------------------------------------------------


async def test_the_handshake_is_answered_with_the_epochs_and_the_end_of_the_log(log):
    end = fill(log, 5000)
    life = begin_life(log, epochs=table((1, 0), (4, 2000)))
    async with connected(life) as peer:
        answer = await peer.shake_hands()
    assert answer == MasterHandshake(end, 4, (EpochEntry(1, 0), EpochEntry(4, 2000)))


async def test_a_handshake_and_reports_may_be_cut_anywhere(log):
    end = fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as peer:
        for byte in encode_slave_handshake(SlaveHandshake(False, False, 2)):
            await peer.send(bytes([byte]))
            await settled()
        await peer.next_event()
        for byte in b"\0\0\0\2" + (0).to_bytes(8, "big"):
            await peer.send(bytes([byte]))
            await settled()
        header, body = await peer.next_frame()
        assert (header.offset, body) == (0, bytes(log.read(0, end)))


async def test_a_log_of_many_epochs_is_served(log):
    """RocketMQ's master fails beyond 1,000."""
    count = EPOCHS_MAX
    fill(log, count + 10)
    life = begin_life(log, epochs=table(*((n, n) for n in range(count))))
    async with connected(life) as peer:
        answer = await peer.shake_hands()
        assert answer.epochs == life.epochs.entries
        await peer.report(count + 5)
        header, _ = await peer.next_frame()
        assert (header.offset, header.epoch) == (count + 5, count - 1)


async def test_of_too_many_epochs_the_newest_are_sent(log):
    fill(log, EPOCHS_MAX + 10)
    life = begin_life(log, epochs=table(*((n, n) for n in range(EPOCHS_MAX + 7))))
    async with connected(life) as peer:
        answer = await peer.shake_hands()
    assert answer.epochs == life.epochs.entries[7:]


async def test_a_repeated_handshake_is_answered_once(log, autojump_clock):
    """A slave repeats it after 5 s without an answer, and would take a second answer for a wrong frame."""
    fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as peer:
        await peer.shake_hands()
        await peer.send(encode_slave_handshake(SlaveHandshake(False, False, 2)))
        await peer.report(0)
        header, _ = await peer.next_frame()
        assert header.offset == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\2" + bytes(8),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\1" + b"\0\7\0\0" + bytes(8),
        b"\0\0\0\1" + bytes(4) + b"\xff" * 8,
        bytes(8),
    ],
    ids=["a report first", "HTTP", "a flag of 7", "a negative id", "the default protocol"],
)
async def test_what_is_not_a_handshake_ends_the_connection_as_a_probe(log, data):
    life = begin_life(log)
    async with connected(life, host="10.0.0.7") as peer:
        await peer.send(data)
        await peer.ended_for(CloseReason.BAD_SIZE)
    assert life.master.connections() == []
    assert [(one.host, one.reason) for one in life.master.statistics().probes] == [
        ("10.0.0.7", CloseReason.BAD_SIZE)
    ]


@pytest.mark.parametrize("again", [SlaveHandshake(False, False, 2), SlaveHandshake(False, False, 3)])
async def test_a_handshake_in_transfer_ends_the_connection(log, again):
    fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as peer:
        await peer.join(0)
        await peer.next_frame()
        await peer.send(encode_slave_handshake(again))
        await peer.ended_for(CloseReason.BAD_SIZE)


async def test_a_slave_with_the_masters_own_id_is_refused(log):
    life = begin_life(log)
    async with connected(life) as peer:
        await peer.send(encode_slave_handshake(SlaveHandshake(False, False, OWN)))
        await peer.ended_for(CloseReason.NOT_ALLOWED)
    assert life.set.members == {OWN}


async def test_a_node_that_is_not_the_master_answers_no_handshake(log):
    """A slave, or a node without a role: the peer would cut its log by epochs that are no master's."""
    fill(log, 5000)
    life = begin_life(log, is_master=False)
    async with connected(life) as peer:
        await peer.send(encode_slave_handshake(SlaveHandshake(False, False, 2)))
        assert await peer.stream.receive_some(65536) == b""
        await settled()
        assert peer.reasons == [CloseReason.NOT_ALLOWED]
    assert life.set.is_alone


# -- where sending starts --------------------------------------------------------------------------------


@pytest.mark.parametrize(("from_last_file", "start"), [(False, 0), (True, 131072)])
async def test_an_empty_slave_gets_all_files_or_the_last_one(log, from_last_file, start):
    fill(log, 131072 + 5000)
    life = begin_life(log)
    async with connected(life) as peer:
        await peer.join(0, from_last_file=from_last_file)
        header, _ = await peer.next_frame()
    assert header.offset == start


@pytest.mark.parametrize("from_last_file", [False, True])
async def test_after_deletions_an_empty_slave_starts_with_the_first_file_that_is_there(log, from_last_file):
    """As AutoSwitchHATest.testTruncateEpochLogAndAddBroker and testAddBrokerAndSyncFromLastFile."""
    fill(log, 65536 + 5000)
    log.delete_first_file()
    life = begin_life(log, epochs=table((1, 0), (2, 65536 + 1000)).truncate_prefix(log.min_offset))
    async with connected(life) as peer:
        answer = await peer.shake_hands(from_last_file=from_last_file)
        assert [entry.epoch for entry in answer.epochs] == [1, 2]
        await peer.report(0)
        header, body = await peer.next_frame()
        assert (header.offset, header.epoch, len(body)) == (65536, 1, 1000)
        header, _ = await peer.next_frame()
        assert (header.offset, header.epoch) == (66536, 2)


async def test_a_slave_below_the_logs_first_byte_is_told_so_and_disconnected(log):
    fill(log, 65536 + 5000)
    log.delete_first_file()
    life = begin_life(log)
    async with connected(life) as peer:
        await peer.join(1000)
        header, body = await peer.next_frame()
        assert (header.offset, body) == (65536, b""), "no slave's max: it closes and comes again"
        await peer.ended_for(CloseReason.REQUEST_BELOW_MIN)


async def test_bytes_of_no_epoch_are_not_sent(log):
    fill(log, 5000)
    life = begin_life(log, epochs=table((3, 4000)))
    async with connected(life) as peer:
        await peer.join(0)
        await peer.ended_for(CloseReason.NO_EPOCH)


# -- frames ----------------------------------------------------------------------------------------------


async def test_no_frame_mixes_epochs_and_each_names_its_own(log):
    end = fill(log, 20000)
    life = begin_life(log, epochs=table((1, 0), (2, 7000), (5, 7001)))
    async with connected(life) as peer:
        await peer.join(0)
        frames = []
        while sum(len(body) for _, body in frames) < end:
            frames.append(await peer.next_frame())
    assert [
        (header.offset, header.body_bytes, header.epoch, header.epoch_start_offset) for header, _ in frames
    ] == [(0, 7000, 1, 0), (7000, 1, 2, 7000), (7001, end - 7001, 5, 7001)]
    assert b"".join(body for _, body in frames) == bytes(log.read(0, end))


async def test_a_higher_epoch_of_the_same_master_needs_no_new_connection(log):
    first_end = fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as peer:
        await peer.join(0)
        await peer.next_frame()
        await peer.report(first_end)
        life.append_epoch(2)
        fill(log, first_end + 1000)
        header, _ = await peer.next_frame()
        assert (header.offset, header.epoch, header.epoch_start_offset) == (first_end, 2, first_end)


async def test_every_header_has_the_confirm_offset(log, autojump_clock):
    end = fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as peer, connected(life, port=50001) as other:
        await peer.join(end, 2)
        await settled()
        life.accept()
        await other.join(end, 3)
        await settled()
        life.accept()
        assert life.set.members == {1, 2, 3}
        fill(log, end + 2000)
        for one in (peer, other):
            header, body = await one.next_frame()
            assert (header.confirm_offset, header.offset + len(body)) == (end, log.max_offset)
        await peer.report(log.max_offset)
        await settled()
        log.append(message())
        header, _ = await peer.next_frame()
        assert header.confirm_offset == end, "the other one has not acknowledged"
        before, _ = await other.next_frame()
        await other.report(before.offset)
        await settled()
        header, body = await peer.next_frame()
        assert (header.confirm_offset, body) == (before.offset, b""), "a heartbeat has it, too"


async def test_with_sync_flush_no_header_confirms_what_is_not_on_the_masters_disk(log, autojump_clock):
    flushed_end = fill(log, 2000)
    log.flushed.advance(flushed_end)
    life = begin_life(log, sync_flush=True, members={OWN, 2})
    async with connected(life) as peer:
        await peer.join(flushed_end)
        end = fill(log, flushed_end + 500)
        await peer.next_frame()
        await peer.report(end)
        assert life.set.held_offset < end
        await settled()
        assert life.set.held_offset == end
        header, _ = await peer.next_frame()
        assert (header.body_bytes, header.confirm_offset) == (0, flushed_end), "a heartbeat"
        log.flushed.advance(end)
        header, _ = await peer.next_frame()
        assert (header.body_bytes, header.confirm_offset) == (0, end)


async def test_heartbeats_name_the_epoch_in_which_the_next_byte_will_be(log, autojump_clock):
    end = fill(log, 3000)
    life = begin_life(log, epochs=table((1, 0), (7, end)))
    async with connected(life) as peer:
        await peer.join(end)
        started_s = trio.current_time()
        header, body = await peer.next_frame()
        assert trio.current_time() - started_s == 5.0
        assert header == TransferHeader(end, 0, 7, end, end)
        assert body == b""


async def test_flow_control_counts_the_headers_of_controller_mode(log, autojump_clock):
    end = fill(log, 9000)
    life = begin_life(log, settings=evolve(SETTINGS, flow_bytes_per_s=2036))
    async with connected(life) as peer:
        await peer.join(0)
        sizes, started_s = [], trio.current_time()
        while sum(sizes) < end:
            sizes.append((await peer.next_frame())[0].body_bytes)
    assert set(sizes[:-1]) == {2000}
    assert trio.current_time() - started_s >= len(sizes) - 2


# -- time ------------------------------------------------------------------------------------------------


async def test_a_slave_may_report_20_s_after_its_handshake(log, autojump_clock):
    """A RocketMQ slave reports 5 s after it; trioha.haFirstReportTimeout is for its handshake."""
    fill(log, 3000)
    life = begin_life(log, settings=evolve(SETTINGS, first_report_timeout_s=3.0))
    async with connected(life) as peer:
        await peer.shake_hands()
        await trio.sleep(19.9)
        await peer.report(0)
        header, _ = await peer.next_frame()
        assert header.offset == 0


@pytest.mark.parametrize(("has_handshake", "after_s"), [(False, 3.0), (True, 20.0)])
async def test_a_peer_without_a_report_is_disconnected(log, autojump_clock, has_handshake, after_s):
    life = begin_life(log, settings=evolve(SETTINGS, first_report_timeout_s=3.0))
    started_s = trio.current_time()
    async with connected(life) as peer:
        if has_handshake:
            await peer.shake_hands()
        await peer.ended()
        assert trio.current_time() - started_s == after_s
        await settled()
        assert peer.reasons == [CloseReason.NO_REQUEST]


# -- acks ------------------------------------------------------------------------------------------------


async def test_a_first_report_must_not_exceed_what_that_broker_was_sent(log):
    """A peer that names a member's id would otherwise acknowledge what only the master has."""
    end = fill(log, 3000)
    life = begin_life(log, members={OWN, 2})
    later_end = fill(log, end + 2000)
    async with connected(life) as peer:
        await peer.join(later_end)
        await peer.ended_for(CloseReason.ACK_BEYOND_SENT)
    assert life.set.confirm_offset == 0
    async with connected(life) as peer:
        await peer.join(end)
        await peer.next_frame()
        await settled()
    assert life.set.confirm_offset == end
    # It was sent now, although its ack did not arrive.
    async with connected(life) as peer:
        await peer.join(later_end)
        await settled()
        assert life.set.confirm_offset == later_end
    async with connected(life) as peer:
        await peer.join(later_end, broker_id=3)
        # What one was sent is no other's.
        await peer.ended_for(CloseReason.ACK_BEYOND_SENT)


async def test_a_newer_connection_of_a_broker_takes_the_place_of_the_older_one(log):
    end = fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as old, connected(life, port=50001) as new:
        await old.join(end)
        await settled()
        life.accept()
        await new.join(end)
        await settled()
        assert (old.reasons, new.reasons) == ([CloseReason.REPLACED], [])
        assert life.set.open_proposal is None, "it is connected all the time"
        fill(log, end + 1000)
        assert life.set.confirm_offset == end
        await new.next_frame()
        await new.report(log.max_offset)
        await settled()
        assert life.set.confirm_offset == log.max_offset
        assert [one.address for one in life.master.connections()] == ["127.0.0.1:50001"]


async def test_with_tls_a_broker_id_belongs_to_its_certificate(log):
    end = fill(log, 3000)
    life = begin_life(log)
    async with connected(life, identity="two") as peer:
        await peer.join(end)
        await settled()
        async with connected(life, port=50001, identity="other") as liar:
            await liar.send(encode_slave_handshake(SlaveHandshake(False, False, 2)))
            await liar.ended_for(CloseReason.NOT_ALLOWED)
        async with connected(life, port=50002, identity="two") as again:
            await again.join(end)
            await settled()
            assert peer.reasons == [CloseReason.REPLACED]


async def test_a_later_set_without_this_master_leaves_no_proposal_open(log, nursery, autojump_clock):
    """It is of another master's epoch: what this one asks for meanwhile must not wait for ever."""
    end = fill(log, 3000)
    life = begin_life(log)
    answers = [
        SetDecision(members=frozenset({2}), set_epoch=9, is_confirmed=True),
        SetDecision(members=frozenset({OWN, 2}), set_epoch=10, is_confirmed=True),
    ]

    async def alter(members, known_epoch):
        return answers.pop(0) if len(answers) > 1 else answers[0]

    nursery.start_soon(life.keeper.run, life.set, alter)
    async with connected(life) as peer:
        await peer.join(end)
        await trio.sleep(10)
        assert life.set.members == {OWN, 2}


async def test_status_shows_members_as_in_sync(log):
    end = fill(log, 3000)
    life = begin_life(log)
    async with connected(life) as peer, connected(life, port=50001) as learner:
        await peer.join(end)
        await learner.join(end, 3, is_learner=True)
        await settled()
        life.accept()
        life.master.connections()
        assert [one.in_sync for one in life.master.connections()] == [True, False]
        assert life.replicas.eligible_count(end) == 1
    assert [fields for name, fields in life.events.facts if name == "connection"] != []
    recorded = {fields["conn"]: fields["brokerId"] for name, fields in life.events.facts if name == "replica"}
    assert sorted(recorded.values()) == [2, 3]
    assert set(recorded) == {event[1] for event in life.events.of(Kind.REQUESTED)}
    assert len(life.events.of(Kind.REQUESTED)) == 2


# -- over sockets ----------------------------------------------------------------------------------------


async def test_a_table_that_is_not_ready_serves_no_bytes(log):
    fill(log, 3000)
    life = begin_life(log, epochs=EpochTable())
    async with connected(life) as peer:
        answer = await peer.shake_hands()
        assert (answer.last_epoch, answer.epochs) == (-1, ())
        await peer.report(0)
        await peer.ended_for(CloseReason.NO_EPOCH)


async def test_a_refusal_follows_a_handshake_that_the_slave_has_not_read_yet(log):
    """The writer task still sends the handshake when the reader task has the refusal to send."""
    fill(log, 3000)
    life = begin_life(log)
    near, far = trio.testing.lockstep_stream_pair()
    reasons = []

    async def serve():
        reasons.append(await life.master.serve_stream(near, host="127.0.0.1", port=50000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await far.send_all(encode_slave_handshake(SlaveHandshake(False, False, 2)))
        await trio.testing.wait_all_tasks_blocked()
        await far.send_all(encode_slave_report(log.max_offset + 1))
        await trio.testing.wait_all_tasks_blocked()
        received = bytearray()
        while data := await far.receive_some(100):
            received += data
    decoder = MasterStreamDecoder()
    decoder.feed(received)
    events = [decoder.next_event(), decoder.next_event()]
    assert [type(event) for event in events] == [MasterHandshake, TransferHeader]
    assert events[1].offset == log.max_offset
    assert life.master.boundary.bugs == 0
    assert reasons == [CloseReason.REQUEST_ABOVE_MAX]

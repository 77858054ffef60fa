"""The recorder: bytes of the format, order, drops, rolls, failures, kill -9."""

import errno
import json
import math
import os
import signal
import struct
import subprocess
import sys
import threading
from functools import partial, reduce
from itertools import pairwise
from operator import xor

import pytest
import structlog
import trio
from trio.testing import wait_all_tasks_blocked

from tests.compiled_code import WAYS, compiled_code
from tests.waiting import until
from trioha.errors import ConfigError
from trioha.recording.events import RECORD_BYTES, CloseReason, Direction, HaState, Kind
from trioha.recording.layout import SessionIdentity
from trioha.recording.recorder import FLUSH_INTERVAL_S, Recorder
from trioha.recording.writer import SessionWriter
from trioha.store.put_status import PutStatus

IDENTITY = SessionIdentity("cluster", "broker-a", 0, "SYNC_MASTER", {"haTransferBatchSize": 32768})

"""ts_ns, seq, kind, flags, node, conn, offset, aux, size, check."""


def segments(session):
    return sorted((session / "events").iterdir())


def sessions_below(directory):
    return sorted(directory.iterdir())


def records_of(segment):
    data = segment.read_bytes()[64:]
    return list(struct.iter_unpack("<qqBBHiqqiI", data[: len(data) // 48 * 48]))


def all_records(session):
    return [record for segment in segments(session) for record in records_of(segment)]


def facts_of(session):
    return [json.loads(line) for line in (session / "facts.jsonl").read_text().splitlines()]


def clock_from(start_ns):
    ticks = iter(range(start_ns, 10**12))
    return lambda: next(ticks)


async def record(recorder, report):
    """Run `report` with a running recorder."""
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(recorder.run)
            await report(recorder)
            nursery.cancel_scope.cancel()


async def test_bytes_of_a_session_are_those_of_the_format(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=7, clock_ns=clock_from(1000))

    async def report(recorder):
        recorder.fact("connection", conn=3, address="10.0.0.2:41000", role="slave")
        recorder.emit(Kind.TRANSFER, conn=3, offset=4096, aux=8192, size=1024)
        recorder.emit(Kind.CLOSED, conn=3, offset=-1, aux=8192, flags=CloseReason.HOUSEKEEPING)

    await record(recorder, report)
    # The clock was read for session.json, which the segment begins with, too, and two events, in this order.
    (segment,) = segments(recorder.path)
    assert segment.name == "00000000000000000000.seg"
    data = segment.read_bytes()
    assert data[:64] == b"TRIOHAS1" + struct.pack("<HHIqq", 1, 48, 64, 0, 1000) + bytes(32)
    first = struct.pack("<qqBBHiqqi", 1001, 0, 12, 0, 7, 3, 4096, 8192, 1024)
    second = struct.pack("<qqBBHiqqi", 1002, 1, 16, 3, 7, 3, -1, 8192, 0)
    expected = b"".join(
        body + struct.pack("<I", reduce(xor, struct.unpack("<11I", body))) for body in (first, second)
    )
    assert data[64:] == expected
    assert (recorder.path / "facts.jsonl").read_text() == (
        '{"seq": 0, "type": "connection", "conn": 3, "address": "10.0.0.2:41000", "role": "slave"}\n'
        '{"seq": 2, "type": "note", "text": "session closed"}\n'
    )
    assert recorder.recorded == 2
    assert recorder.dropped == 0


PUTS = [
    # offset, size, request id, copies: the last ones do not fit their fields.
    *((1100 * number, 1100, number, 2) for number in range(1, 12)),
    (2**63, 1100, 12, 2),
    (14_300, 1100, 13, 2**31),
    (15_400, 2**31, 14, 2),
]


@pytest.mark.parametrize("block_records", [2, 3, 5461])
async def test_put_and_its_wait_are_recorded_as_two_events_wherever_a_block_ends(tmp_path, block_records):
    async def by_one_call(recorder):
        recorder.emit(Kind.FLUSHED, offset=5)
        for offset, size, request_id, copies in PUTS:
            recorder.put_and_wait(offset=offset, size=size, request_id=request_id, copies=copies)

    async def by_two_calls(recorder):
        recorder.emit(Kind.FLUSHED, offset=5)
        for offset, size, request_id, copies in PUTS:
            recorder.emit(Kind.PUT, offset=offset, aux=request_id, size=size)
            recorder.emit(Kind.WAIT_BEGIN, offset=offset, aux=request_id, size=copies)

    one, two = (
        Recorder(tmp_path / name, identity=IDENTITY, node_id=7, block_records=block_records, blocks_max=64)
        for name in ("one", "two")
    )
    await record(one, by_one_call)
    await record(two, by_two_calls)
    found = all_records(one.path)
    assert len(found) == 1 + 2 * len(PUTS)
    # But for their times, and the check words that depend on them.
    assert [event[1:-1] for event in found] == [event[1:-1] for event in all_records(two.path)]
    assert [event[0] for event in found] == sorted(event[0] for event in found)
    assert all(reduce(xor, struct.unpack("<12I", struct.pack("<qqBBHiqqiI", *event))) == 0 for event in found)


RUNS = [
    # start offset, ends, first request id, copies or microseconds: the last ones do not fit their fields.
    (0, [100 * number for number in range(1, 8)], 1, 2),
    (700, [800], 8, 2),
    (800, [900 + 7 * number for number in range(12)], 9, 0),
    (2**62, [2**62 + 5, 2**63], 21, 2),
    (0, [1, 2**31 + 1, 2**31 + 2], 23, 2),
    (0, [1, 2], 2**63 - 1, 2),
    (0, [1, 2], 26, 2**31),
]


@pytest.mark.parametrize("is_compiled", WAYS)
@pytest.mark.parametrize("block_records", [2, 3, 17, 5461])
async def test_a_run_of_puts_is_recorded_as_its_puts_are_wherever_a_block_ends(
    tmp_path, block_records, *, is_compiled
):
    async def together(recorder):
        for start_offset, ends, request_id, value in RUNS:
            put_offsets = b"".join(struct.pack(">qq", start, 5) for start in (start_offset, *ends[:-1]))
            end = ends[-1]
            recorder.puts_and_waits(
                put_offsets=put_offsets, end_offset=end, request_id=request_id, copies=value
            )
            recorder.waits_ended(
                put_offsets=put_offsets,
                end_offset=end,
                request_id=request_id,
                took_us=value,
                status=PutStatus.FLUSH_SLAVE_TIMEOUT,
            )

    async def alone(recorder):
        for start_offset, ends, request_id, value in RUNS:
            starts = [start_offset, *ends]
            for number, (start, end) in enumerate(pairwise(starts)):
                recorder.put_and_wait(
                    offset=end, size=end - start, request_id=request_id + number, copies=value
                )
            for number, end in enumerate(ends):
                recorder.emit(
                    Kind.WAIT_END,
                    offset=end,
                    aux=request_id + number,
                    size=value,
                    flags=PutStatus.FLUSH_SLAVE_TIMEOUT,
                )

    one, two = (
        Recorder(tmp_path / name, identity=IDENTITY, node_id=7, block_records=block_records, blocks_max=64)
        for name in ("one", "two")
    )
    with compiled_code(is_compiled=is_compiled):
        await record(one, together)
        await record(two, alone)
    assert (one.dropped, two.dropped) == (0, 0)
    found = all_records(one.path)
    assert len(found) == 3 * sum(len(ends) for _, ends, *_ in RUNS)
    assert [event[1:-1] for event in found] == [event[1:-1] for event in all_records(two.path)]


async def test_put_and_its_wait_are_dropped_as_two_events(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=7)
    await record(recorder, _nothing)
    recorder.put_and_wait(offset=1100, size=1100, request_id=1, copies=2)
    assert recorder.dropped == 2


async def test_session_document_describes_the_records_and_names_the_node(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, clock_ns=clock_from(5))
    await record(recorder, _nothing)
    document = json.loads((recorder.path / "session.json").read_text())
    assert document["format"] == "trioha-session"
    assert (document["version"], document["record_bytes"], document["byte_order"]) == (1, 48, "little")
    assert [(field["name"], field["offset"]) for field in document["fields"]] == [
        ("ts_ns", 0),
        ("seq", 8),
        ("kind", 16),
        ("flags", 17),
        ("node", 18),
        ("conn", 20),
        ("offset", 24),
        ("aux", 32),
        ("size", 40),
        ("check", 44),
    ]
    assert document["node"] == {
        "clusterName": "cluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "role": "SYNC_MASTER",
    }
    assert document["settings"] == {"haTransferBatchSize": 32768}
    assert document["clock"]["monotonic_ns"] == 5
    assert document["kinds"]["12"] == "TRANSFER"
    assert document["states"] == {str(state.value): state.name for state in HaState}
    assert document["directions"] == {str(direction.value): direction.name for direction in Direction}
    assert document["put_statuses"]["2"] == "FLUSH_SLAVE_TIMEOUT"
    assert document["close_reasons"]["3"] == "HOUSEKEEPING"
    assert document["link_events"]["2"] == "BACK_OFF"
    assert (document["minor_version"], document["kinds"]["74"]) == (1, "LOG_CUT")
    assert document["roles"] == {"0": "NONE", "1": "MASTER", "2": "SLAVE"}
    assert document["set_events"]["3"] == "UNDECIDED"
    assert document["controller_events"] == {"0": "LOST", "1": "LEADER"}
    assert not list(recorder.path.glob("*.tmp"))


async def _nothing(_):
    await trio.lowlevel.checkpoint()


async def test_folder_name_sorts_by_time_and_is_new_for_each_start(tmp_path):
    identity = SessionIdentity("c", "a/b c", 2, "SLAVE")
    paths = []
    for _ in range(3):
        recorder = Recorder(tmp_path, identity=identity, node_id=2)
        await record(recorder, _nothing)
        paths.append(recorder.path)
    assert paths == sorted(set(paths))
    assert all(path.name.endswith("Z-a_b_c-2") and path.parent == tmp_path for path in paths)
    # Nor do two share a folder that start at once.
    recorder = Recorder(tmp_path, identity=identity, node_id=2)
    recorder._path = paths[-1]
    await record(recorder, _nothing)
    assert recorder.path.is_dir()
    assert recorder.path not in paths


async def test_quiet_node_is_flushed_after_the_interval_of_200_ms(tmp_path):
    """Full blocks, and nothing else, are written without it: see the test of full blocks."""
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)

    async def report(recorder):
        recorder.emit(Kind.PUT, offset=100, size=100)
        await until(lambda: all_records(recorder.path))

    assert FLUSH_INTERVAL_S == 0.2
    await record(recorder, report)


async def test_events_emitted_before_the_start_are_recorded(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)
    recorder.emit(Kind.PUT, offset=10)
    await record(recorder, _nothing)
    assert [(record[2], record[6]) for record in all_records(recorder.path)] == [(Kind.PUT, 10)]


async def test_blocks_that_fill_up_are_written_in_order(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, block_records=10, blocks_max=100)

    async def report(recorder):
        for index in range(955):
            if index % 100 == 0:
                await trio.lowlevel.checkpoint()
            recorder.emit(Kind.PUT, offset=index)

    await record(recorder, report)
    rows = all_records(recorder.path)
    assert [row[1] for row in rows] == list(range(955))
    assert [row[6] for row in rows] == list(range(955))
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


async def test_events_without_room_become_one_dropped_record_and_seq_stays_gapless(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, block_records=10, blocks_max=3)

    async def report(recorder):
        for index in range(100):
            recorder.emit(Kind.PUT, offset=index)
        assert recorder.dropped == 70
        # A block is free once the others are written: later events are recorded after the gap.
        await until(lambda: recorder.recorded >= 30)
        recorder.emit(Kind.PUT, offset=100)

    await record(recorder, report)
    rows = all_records(recorder.path)
    assert [row[1] for row in rows] == list(range(32))
    assert [(row[2], row[6]) for row in rows[:30]] == [(Kind.PUT, index) for index in range(30)]
    assert (rows[30][2], rows[30][7]) == (Kind.DROPPED, 70)
    assert (rows[31][2], rows[31][6]) == (Kind.PUT, 100)


async def test_drops_at_the_end_are_recorded_too(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, block_records=10, blocks_max=2)

    async def report(recorder):
        for index in range(25):
            recorder.emit(Kind.PUT, offset=index)

    await record(recorder, report)
    rows = all_records(recorder.path)
    assert (rows[-1][2], rows[-1][7]) == (Kind.DROPPED, 5)
    assert len(rows) == 21


async def test_events_after_the_end_are_counted_as_dropped(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)
    await record(recorder, _nothing)
    recorder.emit(Kind.PUT)
    recorder.emit(Kind.PUT)
    assert recorder.dropped == 2
    assert recorder.recorded == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"offset": 2**70}, {"offset": 2**63 - 1}),
        ({"offset": -(2**70)}, {"offset": -(2**63)}),
        ({"aux": 2**63}, {"aux": 2**63 - 1}),
        ({"size": 2**40}, {"size": 2**31 - 1}),
        ({"flags": 256}, {"flags": 255}),
        ({"flags": -1}, {"flags": 0}),
        ({"conn": 2**31}, {"conn": 2**31 - 1}),
    ],
)
async def test_value_that_does_not_fit_is_recorded_as_the_nearest(tmp_path, values, expected):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)

    async def report(recorder):
        recorder.emit(Kind.ACK, **values)

    await record(recorder, report)
    (row,) = all_records(recorder.path)
    fields = dict(zip(("flags", "node", "conn", "offset", "aux", "size"), row[3:9], strict=True))
    assert {name: fields[name] for name in expected} == expected


async def test_facts_carry_the_seq_of_the_next_record(tmp_path):
    recorder = Recorder(
        tmp_path, identity=IDENTITY, node_id=0, block_records=4, blocks_max=50, segment_records_max=7
    )

    async def report(recorder):
        for index in range(20):
            recorder.fact("note", text=str(index))
            recorder.emit(Kind.WAIT_BEGIN, offset=index, aux=index)

    await record(recorder, report)
    by_seq = {row[1]: row for row in all_records(recorder.path)}
    notes = [fact for fact in facts_of(recorder.path) if fact["text"] != "session closed"]
    assert [fact["text"] for fact in notes] == [str(index) for index in range(20)]
    assert [by_seq[fact["seq"]][6] for fact in notes] == list(range(20))


async def test_too_many_facts_are_dropped_and_counted(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)

    async def report(recorder):
        for index in range(1030):
            recorder.fact("note", text=str(index))
        await trio.lowlevel.checkpoint()

    await record(recorder, report)
    assert len([fact for fact in facts_of(recorder.path) if fact["text"] != "session closed"]) == 1024
    assert [(row[2], row[7]) for row in all_records(recorder.path)] == [(Kind.DROPPED, 7)]


async def test_segments_roll_at_their_limit_and_begin_with_keyframes(tmp_path):
    recorder = Recorder(
        tmp_path,
        identity=IDENTITY,
        node_id=0,
        segment_records_max=12,
        block_records=5,
        blocks_max=50,
        clock_ns=clock_from(0),
    )

    async def report(recorder):
        for conn in (1, 2):
            recorder.emit(Kind.STATE, conn=conn, offset=-1, aux=0, flags=HaState.HANDSHAKE)
            recorder.emit(Kind.REQUESTED, conn=conn, offset=64, aux=64)
            recorder.emit(Kind.STATE, conn=conn, offset=-1, aux=64, flags=HaState.TRANSFER)
        recorder.emit(Kind.ACK, conn=1, offset=64, aux=64)
        recorder.emit(Kind.HEARTBEAT, conn=1, offset=64, aux=64, flags=Direction.RECEIVED)
        recorder.emit(Kind.CLOSED, conn=2, offset=-1, aux=64, flags=CloseReason.EOF)
        recorder.emit(Kind.STATE, conn=2, offset=-1, aux=64, flags=HaState.SHUTDOWN)
        recorder.emit(Kind.PUT, offset=96, size=32)
        recorder.emit(Kind.TRANSFER, conn=1, offset=64, aux=96, size=32)
        recorder.emit(Kind.ACK, conn=1, offset=96, aux=96)

    await record(recorder, report)
    first, second = segments(recorder.path)
    assert (first.name, second.name) == ("00000000000000000000.seg", "00000000000000000012.seg")
    assert len(records_of(first)) == 12
    rows = [row[:9] for row in records_of(second)]
    ts_ns = rows[-1][0]
    assert struct.unpack_from("<qq", second.read_bytes(), 16) == (12, ts_ns)
    # Connection 2 is gone; of connection 1 the last of each kind; of the node its last put.
    assert rows == [
        (ts_ns, 12, Kind.KEYFRAME, Kind.PUT, 0, -1, 96, 0, 32),
        (ts_ns, 13, Kind.KEYFRAME, Kind.STATE, 0, 1, -1, 64, HaState.TRANSFER),
        (ts_ns, 14, Kind.KEYFRAME, Kind.REQUESTED, 0, 1, 64, 64, 0),
        (ts_ns, 15, Kind.KEYFRAME, Kind.TRANSFER, 0, 1, 64, 96, 32),
        (ts_ns, 16, Kind.KEYFRAME, Kind.HEARTBEAT, 0, 1, 64, 64, Direction.RECEIVED),
        (ts_ns, 17, Kind.KEYFRAME, Kind.ACK, 0, 1, 64, 64, 0),
        (ts_ns, 18, Kind.ACK, 0, 0, 1, 96, 96, 0),
    ]


async def test_segment_rolls_when_asked(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)

    async def report(recorder):
        recorder.emit(Kind.WAIT_BEGIN, offset=1)
        recorder.roll()
        recorder.fact("note", text="between")
        await trio.sleep(2 * FLUSH_INTERVAL_S)
        assert len(segments(recorder.path)) == 1
        recorder.emit(Kind.WAIT_BEGIN, offset=2)

    await record(recorder, report)
    assert [[row[6] for row in records_of(segment)] for segment in segments(recorder.path)] == [[1], [2]]


async def test_segment_with_more_keyframes_than_room_still_gets_a_record(tmp_path):
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, segment_records_max=2)

    async def report(recorder):
        for conn in range(1, 6):
            recorder.emit(Kind.ACK, conn=conn, offset=conn)

    await record(recorder, report)
    rows = all_records(recorder.path)
    assert [row[1] for row in rows] == list(range(len(rows)))
    assert [row[5] for row in rows if row[2] == Kind.ACK] == [1, 2, 3, 4, 5]
    assert [len(records_of(segment)) for segment in segments(recorder.path)] == [2, 3, 4, 5]


class Refusing:
    """A disk that takes a part of some writes, and no more."""

    def __init__(self, monkeypatch, *, refused):
        self.refused = refused
        """Numbers of the writes that fail."""
        self.writes = 0
        monkeypatch.setattr("trioha.recording.writer._write_all", self.write_all)

    def write_all(self, file, data):
        number, self.writes = self.writes, self.writes + 1
        if number in self.refused:
            file.write(memoryview(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        file.write(data)


def report_to(recorder):
    """Events of two connections and facts between them, in blocks that roll."""
    for number in range(40):
        if number % 7 == 0:
            recorder.fact("connection", conn=number, address="a" * number)
        recorder.emit(Kind.ACK, conn=number % 2, offset=number)
        if number == 25:
            recorder.roll()


def content(session):
    return {path.name: path.read_bytes() for path in session.rglob("*") if path.is_file()}


@pytest.mark.parametrize("refused", [*({number} for number in range(2, 22)), set(range(5, 25)), {3, 4, 7, 9}])
async def test_a_session_on_a_disk_that_refuses_writes_has_the_same_bytes_later(
    tmp_path, monkeypatch, refused
):
    monkeypatch.setattr("trioha.recording.recorder.RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr("trioha.recording.recorder.FLUSH_INTERVAL_S", 0.001)
    monkeypatch.setattr("trioha.recording.recorder.encode_session", lambda *_, **__: b"{}")
    sessions = []
    for name, numbers in (("whole", set()), ("refused", refused)):
        disk, reasons = Refusing(monkeypatch, refused=numbers), []
        recorder = Recorder(
            tmp_path / name,
            identity=IDENTITY,
            node_id=0,
            block_records=7,
            segment_records_max=10,
            clock_ns=clock_from(1000),
            on_error=reasons.append,
        )
        report_to(recorder)
        async with trio.open_nursery() as nursery:
            await nursery.start(recorder.run)
            await until(lambda made=recorder: not made._full and not made._position)
            nursery.cancel_scope.cancel()
        assert len(reasons) == len(numbers) < disk.writes
        assert all(reason.endswith("No space left on device") for reason in reasons)
        sessions.append(content(recorder.path))
    assert sessions[0] == sessions[1]
    assert recorder.dropped == 0


async def test_a_recording_goes_on_when_the_disk_does_and_says_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.recording.recorder.RETRY_INTERVAL_S", 0.001)
    disk, said = Refusing(monkeypatch, refused=()), []
    recorder = Recorder(
        tmp_path,
        identity=IDENTITY,
        node_id=0,
        block_records=10,
        blocks_max=4,
        on_error=said.append,
        on_written=lambda: said.append(""),
    )
    with trio.fail_after(20):
        async with trio.open_nursery() as node:
            await node.start(recorder.run)
            recorder.emit(Kind.PUT, offset=1)
            await until(lambda: all_records(recorder.path))
            disk.refused = range(1 << 30)
            recorder.emit(Kind.PUT, offset=2)
            await until(lambda: len([one for one in said if one]) > 2)
            for _ in range(100):
                recorder.emit(Kind.PUT, offset=3)
            missing = recorder.dropped
            disk.refused = ()
            await until(lambda: Kind.DROPPED in {row[2] for row in all_records(recorder.path)})
            assert said[-1] == ""
            recorder.emit(Kind.PUT, offset=4)
            node.cancel_scope.cancel()
    rows = all_records(recorder.path)
    assert missing >= 100 - 3 * 10
    assert [row[7] for row in rows if row[2] == Kind.DROPPED] == [missing]
    assert [row[1] for row in rows] == list(range(len(rows)))
    offsets = [row[6] for row in rows if row[2] == Kind.PUT]
    assert offsets == [1, 2, *[3] * (100 - missing), 4]
    assert facts_of(recorder.path)[-1]["text"] == "session closed"


async def test_a_recording_begins_as_soon_as_its_folder_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.recording.recorder.RETRY_INTERVAL_S", 0.001)
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    reasons = []
    recorder = Recorder(blocker, identity=IDENTITY, node_id=0, on_error=reasons.append)
    recorder.emit(Kind.PUT, offset=1)
    with trio.fail_after(20):
        async with trio.open_nursery() as node:
            assert not await node.start(recorder.run)
            await until(lambda: len(reasons) > 1)
            recorder.emit(Kind.PUT, offset=2)
            blocker.unlink()
            await until(recorder.path.exists)
            node.cancel_scope.cancel()
    (reason,) = set(reasons)
    assert "file/" in reason
    assert reason.endswith(
        ": Not a directory; trioha.recordDir must name a folder that this user can write to"
    )
    assert [row[6] for row in all_records(recorder.path)] == [1, 2]


async def test_a_folder_that_cannot_be_filled_is_removed_and_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.recording.recorder.RETRY_INTERVAL_S", 0.0)
    Refusing(monkeypatch, refused=range(3))
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0)
    recorder.emit(Kind.PUT, offset=1)
    with trio.fail_after(20):
        async with trio.open_nursery() as node:
            assert not await node.start(recorder.run)
            await until(recorder.path.exists)
            await until(lambda: recorder.recorded)
            node.cancel_scope.cancel()
    assert sessions_below(tmp_path) == [recorder.path]
    assert [row[6] for row in all_records(recorder.path)] == [1]


def test_broker_id_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="brokerId: 32768 does not fit a recording"):
        Recorder(tmp_path, identity=IDENTITY, node_id=32768)


async def test_disk_that_hangs_holds_up_neither_events_nor_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.recording.recorder.CLOSE_TIMEOUT_S", 0.1)
    hangs = threading.Event()
    released = threading.Event()

    def hang(self, block):
        hangs.set()
        released.wait(60)

    monkeypatch.setattr(SessionWriter, "write", hang)
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, block_records=4, blocks_max=2)
    try:
        with structlog.testing.capture_logs() as logs, trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                await nursery.start(recorder.run)
                recorder.emit(Kind.PUT)
                await until(hangs.is_set)
                for _ in range(50):
                    recorder.emit(Kind.PUT)
                nursery.cancel_scope.cancel()
        assert "recording cut off: the disk does not take it" in [line["event"] for line in logs]
    finally:
        released.set()
        await until(lambda: recorder._limiter.borrowed_tokens == 0)
        assert recorder._writer is not None
        recorder._writer.close()


async def test_full_blocks_wait_for_the_interval_until_half_of_all_are_full(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.recording.recorder.FLUSH_INTERVAL_S", math.inf)
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, block_records=10, blocks_max=8)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(recorder.run)
            for number in range(29):
                recorder.emit(Kind.PUT, offset=number)
            # Two blocks are full and one is filled: no task was woken.
            await wait_all_tasks_blocked()
            assert recorder.recorded == 0
            # The third leaves four of eight free.
            recorder.emit(Kind.PUT, offset=29)
            await until(lambda: recorder.recorded == 30)
            nursery.cancel_scope.cancel()
    (session,) = sessions_below(tmp_path)
    assert [record[6] for record in all_records(session)] == list(range(30))


KILLED = """
import sys, structlog, trio
from pathlib import Path
from trioha.recording.events import Kind
from trioha.recording.layout import SessionIdentity
from trioha.recording.recorder import Recorder

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main():
    recorder = Recorder(Path(sys.argv[1]), identity=SessionIdentity("c", "b", 0, "ASYNC_MASTER"), node_id=0,
                        segment_records_max=50_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        offset, is_written = 0, False
        while True:
            for _ in range(200):
                offset += 1
                recorder.emit(Kind.PUT, offset=offset, size=1)
            if recorder.recorded and not is_written:
                is_written = True
                print("busy", flush=True)
            await trio.sleep(0.001)

trio.run(main)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "delay_s", [0.013, *(pytest.param(one, marks=pytest.mark.nightly) for one in (0.0, 0.21))]
)
async def test_killed_recorder_leaves_whole_records_without_a_gap(tmp_path, delay_s):
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                partial(
                    trio.run_process,
                    [sys.executable, "-c", KILLED, str(tmp_path)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )
            )
            assert process.stdout is not None
            assert await process.stdout.receive_some(4) == b"busy"
            await trio.sleep(delay_s)
            os.kill(process.pid, signal.SIGKILL)
    (session,) = sessions_below(tmp_path)
    rows = all_records(session)
    assert len(rows) > 0
    assert [row[1] for row in rows] == list(range(len(rows)))
    puts = [row[6] for row in rows if row[2] == Kind.PUT]
    assert puts == list(range(1, len(puts) + 1))
    for row in rows[:: len(rows) // 50 or 1]:
        body = struct.pack("<qqBBHiqqi", *row[:9])
        assert row[9] == reduce(xor, struct.unpack("<11I", body))


async def test_end_while_an_abandoned_thread_still_writes_counts_unwritten_records(tmp_path, monkeypatch):
    """The disk recovers just when recording ends: its thread writes blocks while they are counted."""
    monkeypatch.setattr("trioha.recording.recorder.CLOSE_TIMEOUT_S", 0.05)
    blocks, emitted = 20_000, 39_990
    gives_up, written = threading.Event(), []

    def hang(self, block):
        written.append(block.used_bytes // RECORD_BYTES)
        gives_up.wait(60)

    monkeypatch.setattr(SessionWriter, "write", hang)
    recorder = Recorder(tmp_path, identity=IDENTITY, node_id=0, block_records=2, blocks_max=blocks)
    stop = recorder._stop

    def stop_as_the_disk_comes_back():
        gives_up.set()
        stop()

    monkeypatch.setattr(recorder, "_stop", stop_as_the_disk_comes_back)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with structlog.testing.capture_logs(), trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(recorder.run)
                for _ in range(emitted):
                    recorder.emit(Kind.PUT)
                await until(lambda: written)
                nursery.cancel_scope.cancel()
            await until(lambda: recorder._limiter.borrowed_tokens == 0)
    finally:
        sys.setswitchinterval(interval_s)
        gives_up.set()
        assert recorder._writer is not None
        recorder._writer.close()
    assert recorder.dropped + sum(written) == emitted

"""Damage at any position of a small session never stops a reader, through any entry point."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from operator import xor
from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tests.analysis.replays import arrow_tables, document, replay_here
from tests.levels import by_level
from tests.sessions.sessions import MasterModel, slave_events, write_session
from trioha.errors import StoreError, TriohaError
from trioha.recording.events import RECORD
from trioha.recording.layout import HEADER_BYTES
from trioha.recording.reader import open_session
from trioha_analysis.explain import explain
from trioha_analysis.packing import pack_segment, packed_segments, sealed_segments, unpack_segment
from trioha_analysis.state_at import moment, open_readers
from trioha_analysis.whatif.model import model_of
from trioha_sessions.invariants import check_session
from trioha_sessions.session_reader import SessionReader
from trioha_spark.sources.session import SessionDataSourceReader, SessionDataSourceStreamReader

RECORD_BYTES = 48
SEGMENT_RECORDS = 30
EVENTS = 130
RANGE_RECORDS = 7
COLUMNS = StructType(
    [
        StructField("seq", LongType()),
        StructField("kind_name", StringType()),
        StructField("conn", IntegerType()),
    ]
)
ERRORS = StructType([StructField("file", StringType()), StructField("records", LongType())])


def read_all(path, *, range_records=RANGE_RECORDS):
    """Read a session through every entry point, which raises nothing but TriohaError."""
    found = replay_here(path, range_records=range_records)
    document(found)
    arrow_tables(found)
    check_session(open_session(path))
    readers = open_readers([path])
    reader = readers[0]
    times = [reader.session.wall_of(ts_ns) for ts_ns in (reader.first_ts_ns, reader.last_ts_ns)]
    for wall_ns in (*times, sum(times) // 2):
        moment(readers, wall_ns)
    for request in ("slowest", "failed", "1", "5", "9", "@2000"):
        refusable(lambda request=request: explain(readers, request))
    for _ in SessionReader(open_session(path)).scan():
        pass
    refusable(lambda: model_of(open_session(path)))
    for more, schema in (({}, COLUMNS), ({"errors": "true"}, ERRORS), ({"kinds": "PUT,ACK"}, COLUMNS)):
        options = {**more, "path": str(path)}
        reader = SessionDataSourceReader(options, schema)
        rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
        stream = SessionDataSourceStreamReader(options, schema)
        end = stream.latestOffset({}, stream.getDefaultReadLimit())
        parts = stream.partitions({}, end)
        assert sum(batch.num_rows for part in parts for batch in stream.read(part)) == rows
    return found


def refusable(do):
    """Call it; it may raise TriohaError."""
    with suppress(TriohaError):
        do()


def segment_files(path):
    return sorted((path / "events").iterdir())


def flip(file, position, mask=0x5A):
    data = bytearray(file.read_bytes())
    data[position] ^= mask
    file.write_bytes(data)


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    events = MasterModel(5).run(EVENTS)
    path = write_session(
        tmp_path_factory.mktemp("damage") / "session",
        events,
        segment_records=SEGMENT_RECORDS,
        addresses={conn: f"10.0.0.{conn}:41000" for conn in range(1, 9)},
    )
    assert len(segment_files(path)) > 4
    return path


@pytest.fixture(scope="module")
def slave(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slave")
    return write_session(folder / "session", slave_events(), role="SLAVE", broker_id=1, segment_records=6)


def copies(session, folder):
    """A fresh copy of a session for each segment (some, but for `make nightly`), with the segment's index."""
    indices = range(len(segment_files(session)))
    for index in by_level(indices[1::3], indices[1::3], indices):
        copy = folder / f"{session.parent.name}-{index}" / "session"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(session, copy)
        yield copy, index


@pytest.mark.parametrize("whose", ["master", "slave"])
def test_each_record_may_be_damaged(whose, request, tmp_path):
    session = request.getfixturevalue(whose)
    chance = random.Random(1)
    for path, index in copies(session, tmp_path):
        file = segment_files(path)[index]
        whole = file.read_bytes()
        for position in range(HEADER_BYTES, len(whole), 6 * RECORD_BYTES):
            flip(file, position + chance.randrange(RECORD_BYTES))
            assert sum(one.records for one in read_all(path).sessions[0].damage) == 1
            file.write_bytes(whole)


@pytest.mark.full
def test_all_records_before_or_after_each_position_may_be_damaged(master, tmp_path):
    for path, index in copies(master, tmp_path):
        files = segment_files(path)
        for file in files[:index]:
            for position in range(HEADER_BYTES + 47, file.stat().st_size, RECORD_BYTES):
                flip(file, position)
        found = read_all(path).sessions[0]
        assert sum(one.records for one in found.damage) == sum(
            (file.stat().st_size - HEADER_BYTES) // RECORD_BYTES for file in files[:index]
        )
        for file in files[index:]:
            for position in range(HEADER_BYTES + 47, file.stat().st_size, RECORD_BYTES):
                flip(file, position)
        assert read_all(path).sessions[0].node.events == 0


def cut_to(size_bytes):
    def cut(file):
        file.write_bytes(file.read_bytes()[:size_bytes])

    return cut


SEGMENT_DAMAGE: dict[str, Callable[[Path], object]] = {
    "magic": lambda file: flip(file, 0),
    "version": lambda file: flip(file, 8),
    "record bytes": lambda file: flip(file, 10),
    "header bytes": lambda file: flip(file, 12),
    "header bytes, high": lambda file: flip(file, 15),
    "base seq": lambda file: flip(file, 16),
    "base time": lambda file: flip(file, 30),
    "base time, negative": lambda file: flip(file, 31, 0x80),
    "empty": cut_to(0),
    "a torn header": cut_to(17),
    "no records": cut_to(HEADER_BYTES),
    "a torn record": cut_to(HEADER_BYTES + 5 * RECORD_BYTES + 13),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "gone": Path.unlink,
    "renamed": lambda file: file.rename(file.with_name("00000000000000004711.seg")),
    "a name of other digits": lambda file: file.rename(file.with_name("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٣٠.seg")),
    "twice": lambda file: shutil.copy(file, file.with_name("00000000000000000007.seg")),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.nightly
def test_each_segment_may_be_damaged(master, tmp_path):
    for damage in SEGMENT_DAMAGE.values():
        for path, index in copies(master, tmp_path):
            damage(segment_files(path)[index])
            read_all(path)


PACKED_DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": cut_to(0),
    "cut": cut_to(700),
    "head": lambda file: flip(file, 0),
    "foot": lambda file: flip(file, file.stat().st_size - 6),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "gone": Path.unlink,
    "renamed": lambda file: file.rename(file.with_name("00000000000000004711.parquet")),
    "a name of no number": lambda file: file.rename(file.with_name("x.parquet")),
    "a name of other digits": lambda file: (
        file.rename(file.with_name("٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٣٠.parquet")) and None
    ),
}


@pytest.fixture(scope="module")
def packed(master, tmp_path_factory):
    path = tmp_path_factory.mktemp("packed") / "session"
    shutil.copytree(master, path)
    opened = open_session(path)
    for segment in sealed_segments(opened, every=True):
        pack_segment(opened, segment)
    return path


@pytest.mark.nightly
def test_each_packed_segment_may_be_damaged(packed, tmp_path):
    for damage in PACKED_DAMAGE.values():
        for path, index in copies(packed, tmp_path):
            damage(segment_files(path)[index])
            read_all(path, range_records=SEGMENT_RECORDS)
            opened = open_session(path)
            for segment in packed_segments(opened):
                refusable(lambda segment=segment, opened=opened: unpack_segment(opened, segment))


@pytest.mark.nightly
@pytest.mark.full
def test_bytes_of_a_packed_segment_may_be_any(packed, tmp_path):
    chance = random.Random(2)
    for path, index in copies(packed, tmp_path):
        file = segment_files(path)[index]
        whole = file.read_bytes()
        for _ in range(4):
            for _ in range(chance.randrange(1, 4)):
                flip(file, chance.randrange(len(whole)), chance.randrange(1, 256))
            read_all(path, range_records=SEGMENT_RECORDS)
            file.write_bytes(whole)


@pytest.fixture
def copy(master, tmp_path):
    """A copy of the master's session."""
    shutil.copytree(master, tmp_path / "session")
    return tmp_path / "session"


def test_facts_may_be_anything(copy):
    for content in (
        b"",
        b"\xff\xfe\x00",
        b"null\n",
        b'[]\n7\n"text"\n',
        b'{"seq":0}\n',
        b'{"seq":"x","type":"connection"}\n',
        b'{"seq":0,"type":"connection"}\n',
        b'{"seq":0,"type":"connection","conn":"1","address":7,"role":[]}\n',
        b'{"seq":0,"type":"connection","conn":{},"address":null,"certificate":[]}\n',
        b'{"seq":0,"type":"connection","conn":[1],"address":"x:1"}\n',
        b'{"seq":1e400,"type":"connection","conn":1e30}\n',
        b'{"seq":0,"type":"probes","host":7,"reason":null,"count":"many"}\n',
        b'{"seq":' + b"9" * 5000 + b',"type":"note"}\n',
        b"[" * 100_000 + b"\n",
    ):
        (copy / "facts.jsonl").write_bytes(content)
        read_all(copy)


def test_session_with_an_invalid_identity_is_refused(copy):
    file = copy / "session.json"
    whole = json.loads(file.read_bytes())
    node = {"clusterName": "c", "brokerName": "b", "brokerId": "٣", "role": "SLAVE"}
    for key, value in (
        ("record_bytes", "forty-eight"),
        ("record_bytes", 1e400),
        ("record_bytes", 0),
        ("byte_order", "big"),
        ("fields", None),
        ("fields", [{"name": "ts_ns", "dtype": "<i8", "offset": -8}]),
        ("kinds", {"٣": "PUT"}),
        ("kinds", {"999": "PUT"}),
        ("node", {}),
        ("node", node),
        ("clock", {"monotonic_ns": 1e300, "wall_ns": 0}),
        ("clock", {"monotonic_ns": -1, "wall_ns": 0}),
        ("clock", {"monotonic_ns": 0, "wall_ns": 2**63}),
        ("settings", 7),
        ("source", "monitor"),
        ("program", []),
        ("version", 2),
        ("format", None),
    ):
        file.write_text(json.dumps({**whole, key: value}))
        with pytest.raises(StoreError):
            open_session(copy)
    for content in (b"", b"\xff", b"7", b"[" * 100_000, b'{"format":'):
        file.write_bytes(content)
        with pytest.raises(StoreError):
            open_session(copy)


def test_settings_may_be_anything(copy):
    file = copy / "session.json"
    whole = json.loads(file.read_bytes())
    keys = (
        "slaveTimeout",
        "haMaxGapNotInSync",
        "haMaxTimeSlaveNotCatchup",
        "flushDiskType",
        "inSyncReplicas",
    )
    for value in (None, -1, 10**30, 1.5, True, "three", [], {}):
        file.write_text(json.dumps({**whole, "settings": dict.fromkeys(keys, value)}))
        read_all(copy)


@pytest.mark.nightly
def test_records_with_a_valid_check_word_may_have_any_fields(master, tmp_path):
    chance = random.Random(3)
    extremes = (-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1)
    for path, index in copies(master, tmp_path):
        file = segment_files(path)[index]
        whole = file.read_bytes()
        base_seq = int(file.stem)
        for _ in range(4):
            data = bytearray(whole)
            for place in chance.sample(range((len(whole) - HEADER_BYTES) // RECORD_BYTES), 4):
                at = HEADER_BYTES + place * RECORD_BYTES
                RECORD.pack_into(
                    *(data, at, chance.choice(extremes), base_seq + place, chance.randrange(256)),
                    *(
                        chance.randrange(256),
                        chance.randrange(2**16),
                        chance.choice((-(2**31), -1, 0, 5, 2**31 - 1)),
                    ),
                    *(chance.choice(extremes), chance.choice(extremes)),
                    *(chance.choice((-(2**31), -1, 0, 7, 2**31 - 1)), 0),
                )
                words = struct.unpack_from("<11I", data, at)
                struct.pack_into("<I", data, at + 44, reduce(xor, words))
            file.write_bytes(data)
            read_all(path)
            file.write_bytes(whole)

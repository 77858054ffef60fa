"""Packed sessions are small, have the same records, and unpack to the same bytes."""

import json
import random
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.sessions.sessions import Event, write_session
from trioha.cli import main
from trioha.errors import StoreError
from trioha.recording.events import Kind
from trioha.recording.layout import EVENTS_FOLDER, FACTS_FILE
from trioha.recording.reader import open_session
from trioha_analysis import packing, ranges
from trioha_analysis.packing import pack_segment, packed_segments, sealed_segments, unpack_segment
from trioha_analysis.ranges import read_seqs
from trioha_sessions.packed import is_packed
from trioha_sessions.records import read_records
from trioha_sessions.segments import Damage, read_segments


def some_session(path, *, events=1000, segment_records=300):
    rng = random.Random(7)
    kinds = [Kind.PUT, Kind.ACK, Kind.TRANSFER, Kind.WAIT_END]
    made = [
        Event(
            ts_ns=number * 1000 + rng.randrange(500),
            kind=rng.choice(kinds),
            conn=rng.choice([-1, 1, 2]),
            offset=number * 100,
            aux=rng.randrange(-(1 << 60), 1 << 60),
            size=rng.randrange(2000),
            flags=rng.randrange(256),
        )
        for number in range(events)
    ]
    return write_session(path, made, segment_records=segment_records, broker_id=3)


def segment_bytes(path):
    return {file.name: file.read_bytes() for file in (path / EVENTS_FOLDER).iterdir()}


def records_of(path, seq_from=0, seq_to=None):
    session = open_session(path)
    found = list(read_seqs(session, read_segments(session), seq_from=seq_from, seq_to=seq_to))
    blocks = [each for each in found if not isinstance(each, Damage)]
    records = np.concatenate(blocks)
    records["check"] = 0
    return records


def test_packed_segments_become_the_same_bytes_again(tmp_path):
    path = some_session(tmp_path / "session")
    before = segment_bytes(path)
    session = open_session(path)
    for segment in sealed_segments(session, every=True):
        pack_segment(session, segment)
    assert {name.partition(".")[2] for name in segment_bytes(path)} == {"parquet"}
    for segment in packed_segments(session):
        unpack_segment(session, segment)
    assert segment_bytes(path) == before


def test_packed_unpacked_and_mixed_sessions_give_the_same_records(tmp_path):
    path = some_session(tmp_path / "session")
    session = open_session(path)
    expected = read_records(session).array.copy()
    expected["check"] = 0
    for segment in sealed_segments(session, every=True)[::2]:
        pack_segment(session, segment)
    assert len({is_packed(segment.path) for segment in read_segments(session).segments}) == 2
    assert read_segments(session).damage == ()
    assert (records_of(path) == expected).all()
    assert (records_of(path, 250, 700) == expected[250:700]).all()
    for segment in sealed_segments(session, every=True):
        pack_segment(session, segment)
    assert (records_of(path, 250, 700) == expected[250:700]).all()
    assert (records_of(path) == expected).all()


def test_ranges_inside_and_across_row_groups_are_exact(tmp_path, monkeypatch):
    for module in (packing, ranges):
        monkeypatch.setattr(module, "BLOCK_RECORDS", 100)
    path = some_session(tmp_path / "session")
    session = open_session(path)
    expected = read_records(session).array.copy()
    expected["check"] = 0
    for segment in sealed_segments(session, every=True):
        pack_segment(session, segment)
    for first, last in ((95, 105), (10, 20), (100, None)):
        assert (records_of(path, first, last) == expected[first:last]).all()


def test_packed_segments_without_pyarrow_are_an_error_with_a_hint(tmp_path, monkeypatch):
    path = some_session(tmp_path / "session")
    session = open_session(path)
    for segment in sealed_segments(session)[:1]:
        pack_segment(session, segment)
    # Python's way to mark a missing module.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match="is packed, and pyarrow, which reads it, is not installed; pip"):
        read_segments(session)


def test_only_sealed_segments_are_packed(tmp_path):
    path = some_session(tmp_path / "session")
    session = open_session(path)
    assert len(sealed_segments(session, every=True)) == len(sealed_segments(session)) + 1
    with (path / FACTS_FILE).open("a") as facts:
        facts.write('{"seq": 1000, "type": "note", "text": "session closed"}\n')
    assert len(sealed_segments(session)) == len(sealed_segments(session, every=True))


def test_a_damaged_segment_stays_as_it_is(tmp_path):
    path = some_session(tmp_path / "session")
    session = open_session(path)
    file = path / EVENTS_FOLDER / f"{0:020d}.seg"
    data = bytearray(file.read_bytes())
    data[64 + 48 * 5 + 30] ^= 1
    file.write_bytes(data)
    before = segment_bytes(path)
    with pytest.raises(StoreError, match="not packed: wrong check word or seq"):
        pack_segment(session, sealed_segments(session)[0])
    assert segment_bytes(path) == before


def test_an_invalid_packed_file_is_damage(tmp_path):
    path = some_session(tmp_path / "session")
    (path / EVENTS_FOLDER / f"{0:020d}.seg").rename(path / EVENTS_FOLDER / f"{0:020d}.parquet")
    found = read_segments(open_session(path))
    assert [damage.reason.partition(":")[0] for damage in found.damage] == ["not a packed segment"]
    assert found.segments[0].base_seq == 300


def test_a_small_packed_file_of_a_row_group_without_end_is_damage(tmp_path):
    """A KB of Parquet may stand for as many equal rows as its writer likes."""
    path = some_session(tmp_path / "session")
    session = open_session(path)
    (segment, *_) = sealed_segments(session, every=True)
    packed = pack_segment(session, segment).target
    whole = parquet.read_table(packed)
    rows = 4_000_000
    columns = [pa.repeat(whole[name][0], rows) for name in whole.column_names]
    parquet.write_table(pa.Table.from_arrays(columns, schema=whole.schema), packed, row_group_size=rows)
    assert packed.stat().st_size < 200_000
    (found, *_) = read_seqs(session, read_segments(session), seq_from=0, seq_to=300)
    assert isinstance(found, Damage)
    assert found.reason == "cannot be read: a row group has 4000000 rows, at most 131072"


def test_the_command_packs_and_unpacks(tmp_path, capsys):
    path = some_session(tmp_path / "session")
    before = segment_bytes(path)
    assert main(["session", "pack", str(path), "--all", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"]
    assert sum(segment["records"] for segment in printed["segments"]) == len(read_all := records_of(path))
    assert len(read_all) >= 1000
    assert printed["bytesBefore"] == sum(map(len, before.values()))
    assert main(["session", "pack", str(path)]) == 0
    assert capsys.readouterr().out == "nothing to pack\n"
    assert main(["session", "unpack", str(tmp_path)]) == 0
    assert "records" in capsys.readouterr().out
    assert segment_bytes(path) == before
    assert main(["session", "pack", str(path), "--all", "--keep"]) == 0
    assert segment_bytes(path).items() > before.items()


def test_the_command_refuses_invalid_input_in_one_line(tmp_path, capsys):
    assert main(["session", "pack", str(tmp_path)]) == 2
    assert main(["session", "unpack", str(tmp_path), "--keep"]) == 2
    assert main(["session", "press", str(tmp_path)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    path = some_session(tmp_path / "session")
    file = path / EVENTS_FOLDER / f"{0:020d}.seg"
    data = bytearray(file.read_bytes())
    data[64 + 30] ^= 1
    file.write_bytes(data)
    assert main(["session", "pack", str(path)]) == 1
    assert "not packed" in capsys.readouterr().err

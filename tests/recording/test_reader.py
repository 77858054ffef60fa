"""The reader: whole, torn and damaged sessions, and folders that are not sessions."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import Event, write_session
from trioha.errors import StoreError
from trioha.recording.events import Kind
from trioha.recording.reader import find_sessions, open_session
from trioha_sessions.facts import read_facts
from trioha_sessions.records import read_records
from trioha_sessions.segments import read_segments


def puts(count):
    return [Event(ts_ns=10 * index, kind=Kind.WAIT_BEGIN, offset=index, aux=index) for index in range(count)]


def segment_paths(session):
    return sorted((session / "events").iterdir())


@pytest.fixture
def path(tmp_path):
    return write_session(tmp_path / "session", puts(25), segment_records=10, addresses={3: "10.0.0.2:41000"})


def test_records_come_back_as_they_were_written(path):
    session = open_session(path)
    records = read_records(session)
    assert records.damage == ()
    array = records.array
    assert array["seq"].tolist() == list(range(25))
    assert array["offset"].tolist() == list(range(25))
    assert array["ts_ns"].tolist() == [10 * index for index in range(25)]
    assert set(array["kind"].tolist()) == {Kind.WAIT_BEGIN}
    assert array.dtype.itemsize == 48


@pytest.mark.parametrize(
    ("seq_from", "seq_to", "expected"),
    [
        (0, 25, range(25)),
        (9, 11, range(9, 11)),
        (10, None, range(10, 25)),
        (24, 99, range(24, 25)),
        (30, 40, []),
    ],
)
def test_range_of_seq_is_read_across_segments(path, seq_from, seq_to, expected):
    records = read_records(open_session(path), seq_from=seq_from, seq_to=seq_to)
    assert records.array["seq"].tolist() == list(expected)


def test_session_has_its_node_and_clocks(path):
    session = open_session(path)
    assert session.identity.broker_name == "broker-a"
    assert session.is_slave is False
    assert session.kinds[12] == "TRANSFER"
    assert session.wall_of(5) - session.wall_of(0) == 5


def test_facts_come_back_and_a_torn_last_line_does_not(path):
    with (path / "facts.jsonl").open("a") as file:
        file.write('{"seq": 7, "type": "note", "te')
    facts, damage = read_facts(open_session(path))
    assert [(fact.seq, fact.type_, dict(fact.fields)) for fact in facts] == [
        (0, "connection", {"conn": 3, "address": "10.0.0.2:41000"})
    ]
    assert damage == []


def test_line_that_is_not_a_fact_is_damage(path):
    with (path / "facts.jsonl").open("a") as file:
        file.write("[]\n")
        file.write('{"seq": 7, "type": "note", "text": "later"}\n')
    facts, damage = read_facts(open_session(path))
    assert [fact.type_ for fact in facts] == ["connection", "note"]
    assert [found.reason for found in damage] == ["not a fact"]


@pytest.mark.parametrize("torn_bytes", [1, 20, 47])
def test_torn_last_record_is_left_out_without_damage(path, torn_bytes):
    last = segment_paths(path)[-1]
    last.write_bytes(last.read_bytes()[:-torn_bytes])
    records = read_records(open_session(path))
    assert records.array["seq"].tolist() == list(range(24))
    assert records.damage == ()


def test_flipped_bit_damages_one_record(path):
    segment = segment_paths(path)[1]
    data = bytearray(segment.read_bytes())
    data[64 + 3 * 48 + 25] ^= 4
    segment.write_bytes(data)
    records = read_records(open_session(path))
    assert records.array["seq"].tolist() == [seq for seq in range(25) if seq != 13]
    (damage,) = records.damage
    assert (damage.path, damage.position, damage.records) == (str(segment), 64 + 3 * 48, 1)
    assert damage.reason == "wrong check word or seq"


def test_missing_segment_is_damage_with_its_record_count(path):
    segment_paths(path)[1].unlink()
    records = read_records(open_session(path))
    assert records.array["seq"].tolist() == [*range(10), *range(20, 25)]
    (damage,) = records.damage
    assert damage.reason == "records 10 to 19 are missing before this segment"
    assert damage.records == 10


def test_segment_without_a_whole_header_is_damage_and_skipped(path):
    (path / "events" / "00000000000000000025.seg").write_bytes(b"TRIOHAS1")
    records = read_records(open_session(path))
    assert len(records.array) == 25
    assert [damage.reason for damage in records.damage] == ["a header of 8 bytes"]


def test_a_segment_of_more_records_than_there_can_be_is_damage(path):
    """A file of holes costs nothing and may have any length."""
    segment = segment_paths(path)[2]
    os.truncate(segment, 64 + 48 * 16_000_001)
    session = open_session(path)
    (damage,) = read_segments(session).damage
    assert damage.reason == "has 16000001 records from 20 on, more than there can be"


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "not a segment of version 1"),
        (8, "not a segment of version 1"),
        (10, "records of"),
        (16, "begins at"),
    ],
)
def test_wrong_header_is_damage(path, position, reason):
    segment = segment_paths(path)[2]
    data = bytearray(segment.read_bytes())
    data[position] ^= 1
    segment.write_bytes(data)
    records = read_records(open_session(path))
    assert records.array["seq"].tolist() == list(range(20))
    assert any(damage.reason.startswith(reason) and damage.records == 5 for damage in records.damage)


@given(
    changes=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 544), st.integers(1, 255)), max_size=6),
    cut=st.integers(0, 544),
)
def test_mutated_segments_never_crash_and_never_give_a_changed_record(tmp_path_factory, changes, cut):
    path = write_session(tmp_path_factory.mktemp("mutated") / "s", puts(25), segment_records=10)
    session = open_session(path)
    good = {record["seq"]: record.tobytes() for record in read_records(session).array}
    touched = set()
    for number, position, mask in changes:
        segment = segment_paths(path)[number]
        data = bytearray(segment.read_bytes())
        if position < len(data):
            data[position] ^= mask
            segment.write_bytes(data)
            touched.add((number, (position - 64) // 48 if position >= 64 else -1))
    last = segment_paths(path)[2]
    last.write_bytes(last.read_bytes()[: max(0, len(last.read_bytes()) - cut)])
    found = read_records(session)
    untouched = {(record["seq"], record.tobytes()) for record in found.array}
    # Two changes in one record may cancel out in its xor; all others are what they were.
    doubtful = {10 * number + index for number, index in touched if index >= 0 and len(changes) > 1}
    for seq, data in untouched:
        assert good[seq] == data or seq in doubtful
    # Nothing whole is lost outside of the records and segments that were touched, or cut off.
    bad_segments = {number for number, index in touched if index < 0} | ({2} if cut else set())
    for seq in good:
        number, index = divmod(int(seq), 10)
        if number not in bad_segments and (number, index) not in touched:
            assert seq in {int(record["seq"]) for record in found.array}


def test_longer_records_of_a_later_writer_are_read_by_their_fields(tmp_path, path):
    document = json.loads((path / "session.json").read_text())
    document["record_bytes"] = 56
    document["fields"].append({"name": "cpu", "dtype": "<i8", "offset": 48})
    (path / "session.json").write_text(json.dumps(document))
    for segment in segment_paths(path):
        data = segment.read_bytes()
        header = data[:10] + (56).to_bytes(2, "little") + data[12:64]
        # The check covers the new field too: a value whose two words are equal changes no xor.
        records = [data[at : at + 48] + b"\x05\0\0\0\x05\0\0\0" for at in range(64, len(data), 48)]
        segment.write_bytes(header + b"".join(records))
    records = read_records(open_session(path))
    assert records.damage == ()
    assert records.array["seq"].tolist() == list(range(25))
    assert set(records.array["cpu"].tolist()) == {5 * 2**32 + 5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[]", "its format is not trioha-session"),
        ('{"format": "other"}', "its format is not trioha-session"),
        ('{"format": "trioha-session", "version": 2}', "session of version 2, this program reads version 1"),
        ('{"format": "trioha-session", "version": 1}', "incomplete or wrong: KeyError 'record_bytes'"),
    ],
)
def test_session_document_that_is_wrong_is_one_clear_line(path, content, message):
    (path / "session.json").write_text(content)
    with pytest.raises(StoreError, match=r"session\.json: ") as caught:
        open_session(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_find_sessions_accepts_a_session_or_a_folder_of_sessions(path, tmp_path):
    other = write_session(tmp_path / "zz", puts(1))
    assert find_sessions([path]) == [path]
    assert find_sessions([tmp_path]) == [path, other]
    assert find_sessions([path, tmp_path]) == [path, other]


def test_find_sessions_refuses_other_folders(tmp_path):
    with pytest.raises(StoreError, match="nowhere: no such folder"):
        find_sessions([tmp_path / "nowhere"])
    with pytest.raises(StoreError, match="not a session, nor a folder of sessions"):
        find_sessions([tmp_path])
    with pytest.raises(StoreError, match=r"there is no session\.json"):
        open_session(tmp_path)


def test_session_that_is_still_written_has_more_records_later(path):
    session = open_session(path)
    before = read_segments(session).records
    last = segment_paths(path)[-1]
    data = last.read_bytes()
    last.write_bytes(data[:-48])
    assert read_segments(session).records == before - 1
    last.write_bytes(data)
    assert read_segments(session).records == before

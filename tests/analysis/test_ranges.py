"""Ranges of seqs: planned from one listing, in a time that is linear in segments."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sessions.sessions import MasterModel, write_session
from trioha.recording.reader import Segment, open_session
from trioha_analysis.packing import pack_segment, sealed_segments
from trioha_analysis.ranges import count_seqs, cut_seqs, end_seq, same_segments, session_end
from trioha_sessions import segments
from trioha_sessions.segments import Segments, find_segment, read_segments

FOLDER = Path("/s/events")


@pytest.fixture
def opened(monkeypatch):
    """Names of the segments that are opened."""
    names = []
    describe = segments.describe_segment

    def describe_and_count(session, path):
        names.append(path.name)
        return describe(session, path)

    monkeypatch.setattr(segments, "describe_segment", describe_and_count)
    return names


@given(
    steps=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), max_size=12),
    seq_from=st.integers(0, 300),
    seq_to=st.none() | st.integers(0, 500),
    range_records=st.integers(1, 50),
)
def test_each_range_has_the_segments_that_hold_it(steps, seq_from, seq_to, range_records):
    base_seq = 0
    listed = []
    for distance, records in steps:
        listed.append(Segment(FOLDER / str(base_seq), base_seq, 0, 32, records))
        base_seq += distance
    segments = Segments(tuple(listed), ())
    ranges = cut_seqs(segments, seq_from, seq_to, range_records=range_records)
    if seq_to is not None and seq_to <= seq_from:
        assert ranges == []
        return
    assert (ranges[0].seq_from, ranges[-1].seq_to) == (seq_from, seq_to)
    for before, after in pairwise(ranges):
        assert before.seq_to == after.seq_from
        assert before.seq_from < before.seq_to
    for found in ranges:
        assert found.records == count_seqs(segments, found.seq_from, found.seq_to)
        assert found.records == count_seqs(Segments(found.segments, ()), found.seq_from, found.seq_to)


def test_planning_opens_each_segment_once_and_a_part_of_a_session_no_others(tmp_path, opened):
    session = open_session(write_session(tmp_path / "s", MasterModel(5).run(900), segment_records=100))
    segments = read_segments(session)
    names = [segment.path.name for segment in segments.segments]
    assert len(names) > 8
    assert opened == names
    ranges = cut_seqs(segments, 0, None, range_records=40)
    assert opened == names
    opened.clear()
    assert same_segments(session, Segments(ranges[10].segments, ())).segments == ranges[10].segments
    assert opened == [segment.path.name for segment in ranges[10].segments]
    assert len(opened) == 1


def test_later_segments_are_found_without_opening_earlier_ones(tmp_path, opened):
    session = open_session(write_session(tmp_path / "s", MasterModel(5).run(900), segment_records=100))
    whole = read_segments(session)
    for segment in whole.segments:
        opened.clear()
        found = read_segments(session, seq_from=segment.base_seq + 1)
        assert found.segments[-1] == whole.segments[-1]
        assert segment in found.segments
        # One more, which may overlap.
        assert len(opened) <= len([one for one in whole.segments if one.base_seq >= segment.base_seq]) + 1
    opened.clear()
    assert session_end(session.path) == end_seq(whole)
    assert len(opened) == 2


def test_a_session_ends_before_a_segment_that_is_not_begun(tmp_path):
    session = open_session(write_session(tmp_path / "s", MasterModel(5).run(300), segment_records=100))
    end = end_seq(read_segments(session))
    for name in (f"{end:020d}.seg", f"{end + 1:020d}.seg"):
        (session.path / "events" / name).write_bytes(b"")
    assert session_end(session.path) == end


def test_segments_are_found_again_when_they_were_packed_or_deleted(tmp_path):
    session = open_session(write_session(tmp_path / "s", MasterModel(5).run(900), segment_records=100))
    planned = read_segments(session)
    packed, gone, damaged, *_ = sealed_segments(session)
    pack_segment(session, packed)
    gone.path.unlink()
    damaged.path.write_bytes(b"no segment")
    found = same_segments(session, Segments((packed, gone, damaged), ()))
    (segment,) = found.segments
    assert (segment.base_seq, segment.records, segment.path.suffix) == (0, packed.records, ".parquet")
    (damage,) = found.damage
    assert damage.path == str(damaged.path)
    assert find_segment(session, gone.base_seq) is None
    assert read_segments(session).segments[0] == segment
    assert planned.segments[0] == packed

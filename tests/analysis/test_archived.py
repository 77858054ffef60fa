"""Archives read in place: log objects chosen by their statistics, recordings without a folder."""

import pickle

import pyarrow as pa
import pytest
from attrs import evolve
from pyarrow import parquet

from tests.analysis.archives import merge_objects, next_head, write_archive
from tests.analysis.logs import read_all, write_log
from tests.analysis.replays import document, replay_here, write_recordings
from tests.archive.building import GENERATION, replace_generation
from tests.sessions.sessions import MasterModel, write_session
from tests.store.support import VECTORS
from trioha.archive.access import Location
from trioha.archive.errors import ArchiveError
from trioha.archive.layout import Generation
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.session_paths import ObjectPath, find_recordings
from trioha.errors import StoreError
from trioha.recording.reader import open_session
from trioha_analysis.commitlog.archived import (
    ArchivedOffset,
    plan_archive,
    read_archived,
    stream_end,
    stream_start,
)
from trioha_analysis.commitlog.columns import TYPES, decode
from trioha_analysis.commitlog.reading import LogDamage, ReadOptions
from trioha_analysis.replay_plan import plan_replay
from trioha_sessions.facts import read_facts
from trioha_sessions.records import read_records
from trioha_sessions.segments import read_segments

STORE = VECTORS / "store-5.3.3" / "store"


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/archive"


@pytest.fixture
def s3_url(s3_bucket):
    return s3_bucket.url


def rows_of(ranges, options):
    rows = []
    for wanted in ranges:
        # As an executor gets it.
        for found in read_archived(pickle.loads(pickle.dumps(wanted)), options):
            assert not isinstance(found, LogDamage)
            rows += pa.RecordBatch.from_arrays(decode(found, list(TYPES)), names=list(TYPES)).to_pylist()
    return rows


def query(url, *, range_bytes=1 << 20, **wanted):
    offsets = {name: wanted.pop(name) for name in ("start", "end") if name in wanted}
    options = ReadOptions(**wanted)
    return rows_of(plan_archive(Location.of(url), options, range_bytes=range_bytes, **offsets), options)


@pytest.mark.usefixtures("s3_server_of_this_run")  # Started before descriptors are counted.
@pytest.mark.parametrize(("where", "codec"), [("url", "none"), ("s3_url", "zstd")])
def test_an_archive_has_the_messages_of_its_store(where, codec, request):
    url = request.getfixturevalue(where)
    expected, _ = read_all(STORE)
    objects = write_archive(url, store=STORE, codec=codec)
    assert len(objects) > 5
    for range_bytes in (1, 10_000, 1 << 20):
        assert query(url, range_bytes=range_bytes) == expected


def test_options_choose_messages_and_leave_out_objects_unread(url):
    expected, _ = read_all(STORE)
    objects = write_archive(url, store=STORE)
    middle = expected[len(expected) // 2]
    topic, stored_ms, offset = (middle[name] for name in ("topic", "store_timestamp_ms", "physical_offset"))
    folder = ObjectFolder.open(url)

    def check(has, **wanted):
        rows = [row for row in expected if has(row)]
        assert query(url, **wanted) == rows
        needed = {
            one.key
            for one in objects
            if any(one.first_offset <= row["physical_offset"] < one.end_offset for row in rows)
        }
        assert rows
        assert len(needed) < len(objects)
        # None of the others is read, and of those with such statistics none is missing.
        gone = [one for one in objects if one.records and one.key not in needed]
        kept = {one.key: folder.get(one.key) for one in gone}
        folder.delete(list(kept))
        try:
            assert query(url, **wanted) == rows
        finally:
            for key, data in kept.items():
                folder.put(key, data)

    check(lambda row: row["physical_offset"] >= offset, start=offset)
    check(lambda row: row["physical_offset"] < offset, end=offset)
    check(lambda row: row["topic"] == topic, topics=frozenset([topic]))
    last_ms = max(row["store_timestamp_ms"] for row in expected)
    check(lambda row: row["store_timestamp_ms"] < stored_ms, to_ms=stored_ms)
    check(lambda row: row["store_timestamp_ms"] >= last_ms, from_ms=last_ms)
    assert query(url, from_ms=last_ms + 1) == []
    assert query(url, topics=frozenset(["unknown"])) == []


def test_objects_that_were_merged_since_they_were_listed_are_read_by_the_newest_head(tmp_path, url):
    write_log(tmp_path / "store", [bytes([number]) * 40 for number in range(30)], file_bytes=2000)
    small = write_archive(url, store=tmp_path / "store", object_bytes=200, page_objects=3)
    expected, _ = read_all(tmp_path / "store")
    ranges = plan_archive(Location.of(url), ReadOptions(), range_bytes=1000)
    merged = merge_objects(url, tmp_path / "store", object_bytes=2000)
    assert len(merged) < len(small)
    gone = {one.key for one in small} - {one.key for one in merged}
    ObjectFolder.open(url).delete(sorted(gone))
    assert rows_of(ranges, ReadOptions()) == expected


def test_a_damaged_object_is_an_error_and_no_missing_rows(url):
    objects = write_archive(url, store=STORE, codec="none")
    folder = ObjectFolder.open(url)
    data = bytearray(folder.get(objects[1].key))
    data[-1] ^= 1
    folder.put(objects[1].key, bytes(data))
    with pytest.raises(ArchiveError, match="has CRC"):
        query(url)
    assert query(url, end=objects[1].first_offset)


def test_offsets_that_retention_has_deleted_are_an_error(url):
    objects = write_archive(url, store=STORE, page_objects=100)
    ranges = plan_archive(Location.of(url), ReadOptions(), range_bytes=1)
    rest = {"objects": tuple(objects[2:]), "first_offset": objects[2].first_offset}
    replace_generation(url, lambda one: evolve(one, **rest))
    ObjectFolder.open(url).delete([one.key for one in objects[:2]])
    with pytest.raises(ArchiveError, match="were deleted since they were listed"):
        rows_of(ranges, ReadOptions())


def test_a_stream_goes_on_where_it_was_and_ends_with_its_history(url):
    objects = write_archive(url, store=STORE)
    location = Location.of(url)
    begin = stream_start(location, generation=None, start=None)
    assert begin == ArchivedOffset(GENERATION, objects[0].first_offset)
    seen, rows = [begin], []
    while (end := stream_end(location, seen[-1], bytes_max=3000)) != seen[-1]:
        ranges = plan_archive(
            location,
            ReadOptions(),
            generation=GENERATION,
            start=seen[-1].offset,
            end=end.offset,
            range_bytes=1,
        )
        rows += rows_of(ranges, ReadOptions())
        seen.append(end)
    expected, _ = read_all(STORE)
    assert rows == expected
    assert len(seen) > 3
    assert stream_end(location, begin, bytes_max=None) == seen[-1]
    generation = ArchiveReader.open(url).generation()
    another = Generation(id="0002-1", began_ms=2, reason="the log differs", file_bytes=1000, first_offset=0)
    next_head(url, generations=(generation, another))
    # What there is of the old one is read first.
    assert stream_end(location, begin, bytes_max=None) == seen[-1]
    with pytest.raises(ArchiveError, match="another history"):
        stream_end(location, seen[-1], bytes_max=None)
    rest = evolve(generation, pages=(), objects=(objects[-1],), first_offset=objects[-1].first_offset)
    next_head(url, generations=(rest,))
    with pytest.raises(ArchiveError, match="deleted unread"):
        stream_end(location, begin, bytes_max=None)


@pytest.mark.usefixtures("s3_server_of_this_run")  # Started before descriptors are counted.
@pytest.mark.parametrize("where", ["url", "s3_url"])
def test_recordings_are_read_in_place(where, tmp_path, request):
    url = request.getfixturevalue(where)
    recordings = write_recordings(tmp_path / "recordings")
    write_session(recordings / "20260102T000000.000Z-broker-b-0", MasterModel(3).run(400), segment_records=90)
    paths = sorted(recordings.iterdir())
    write_archive(url, sessions=paths)
    found = find_recordings([url])
    assert [path.name for path in found] == [path.name for path in paths]
    for path, original in zip(found, paths, strict=True):
        session, before = open_session(path), open_session(original)
        assert session.identity == before.identity
        assert read_facts(session) == read_facts(before)
        expected = read_records(before).array.copy()
        expected["check"] = 0
        assert (read_records(session).array == expected).all()
    assert document(replay_here(url)) == document(replay_here(recordings))
    (one,) = document(replay_here(f"{url}/recordings/{paths[0].name}"))["sessions"]
    assert one["session"] == paths[0].name


def test_no_segment_is_opened_to_plan_and_no_list_travels(tmp_path, s3_url, monkeypatch):
    path = write_session(tmp_path / "session", MasterModel(3).run(400), segment_records=50)
    write_archive(s3_url, sessions=[path])
    opened = []
    opens = ObjectPath.open

    def open_and_count(self, mode="rb"):
        opened.append(self.key)
        return opens(self, mode)

    monkeypatch.setattr(ObjectPath, "open", open_and_count)
    (found,) = find_recordings([s3_url])
    session = open_session(found)
    segments = read_segments(session).segments
    assert len(segments) > 8
    assert opened == []
    runs = list(plan_replay([s3_url]).runs())
    # The last record's time is in the last segment.
    assert set(opened) == {segments[-1].path.key}
    assert len(pickle.dumps(found)) < 1000
    assert b"test" in pickle.dumps(found), "settings of the storage travel to executors"
    assert "test" not in repr(found)
    assert len(runs) == len(segments)


def test_packed_recordings_are_parquet(tmp_path, url):
    path = write_session(tmp_path / "session", MasterModel(3).run(400), segment_records=150)
    write_archive(url, sessions=[path])
    expected = read_records(open_session(path)).array
    folder = ObjectFolder.open(url)
    tables = [
        parquet.read_table(pa.BufferReader(folder.get(one.key)))
        for one in sorted(folder.list("recordings/session/events"), key=lambda one: one.key)
    ]
    rows = pa.concat_tables(tables).sort_by("seq")
    assert rows["offset"].to_pylist() == expected["offset"].tolist()


def test_a_url_without_sessions_is_named(s3_url):
    with pytest.raises(ArchiveError, match="there is no archive"):
        find_recordings([s3_url])
    write_archive(s3_url)
    with pytest.raises(StoreError, match="no recorded sessions"):
        find_recordings([s3_url])
    with pytest.raises(StoreError, match="no such session"):
        find_recordings([f"{s3_url}/recordings/unknown"])
    with pytest.raises(ArchiveError, match="no setting 'aws_color'"):
        find_recordings([s3_url], settings={"aws_color": "red"})


def test_settings_count_before_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "one")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    location = Location.of("s3://bucket/a/", {"aws_region": "two"})
    assert location.url == "s3://bucket/a"
    assert dict(location.settings) == {
        "aws_region": "two",
        "allow_http": "true",
        "aws_secret_access_key": "hidden",
    }
    assert "hidden" not in repr(location)
    assert Location.of("file:///a").settings == ()

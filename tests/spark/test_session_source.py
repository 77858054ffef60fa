"""The session source on Spark: packed segments, options, growing sessions and streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from tests.sessions.sessions import WALL_NS, Event, pack, write_session
from trioha.errors import StoreError
from trioha.recording.events import Kind
from trioha.recording.layout import EVENTS_FOLDER, SessionIdentity, encode_session
from trioha.recording.reader import open_session
from trioha.recording.writer import Block, SessionWriter
from trioha_analysis.packing import pack_segment, sealed_segments
from trioha_spark.sources import session as source

pytestmark = pytest.mark.spark

FORMAT = "trioha-session"
SEQ = StructType([StructField("seq", LongType())])


class Recording:
    """A session that is still written."""

    def __init__(self, path):
        identity = SessionIdentity("cluster", "broker-a", 0, "SYNC_MASTER")
        document = encode_session(identity, monotonic_ns=0, wall_ns=WALL_NS, program_version="0")
        self.path = path
        self.puts = 0
        self.writer = SessionWriter(path, document=document, base_ts_ns=0, segment_records=300)

    def write(self, puts):
        numbers = range(self.puts + 1, self.puts + puts + 1)
        records = pack([Event(number * 1000, Kind.PUT, offset=number, size=7) for number in numbers])
        self.puts += puts
        self.writer.write(Block(records, len(records), []))


@pytest.fixture
def record():
    made = []

    def begin(path):
        made.append(Recording(path))
        return made[-1]

    yield begin
    for recording in made:
        recording.writer.close()


def load(spark, path, **options):
    return spark.read.format(FORMAT).options(**options).load(str(path))


def test_events_have_their_names_times_and_sessions(spark, tmp_path):
    write_session(tmp_path / "a", [Event(5_000, Kind.PUT, offset=9, aux=-3, size=4, flags=200)], broker_id=7)
    write_session(
        tmp_path / "b",
        [Event(6_000, Kind.ACK, conn=2), Event(7_000, Kind.RECEIVED, conn=3)],
        role="SLAVE",
        addresses={2: "10.0.0.3:41000"},
        served={2},
    )
    rows = load(spark, tmp_path).orderBy("session", "seq").collect()
    first = rows[0].asDict()
    assert first.pop("time").timestamp() * 1_000_000 == pytest.approx(WALL_NS // 1000 + 5, abs=0.5)
    assert first == {
        "session": "a",
        "seq": 0,
        "ts_ns": 5000,
        "kind": 1,
        "kind_name": "PUT",
        "flags": 200,
        "node": 7,
        "conn": -1,
        "role": "master",
        "address": None,
        "offset": 9,
        "aux": -3,
        "size": 4,
    }
    assert [(row.session, row.kind_name, row.conn, row.role, row.address) for row in rows[1:]] == [
        ("b", "ACK", 2, "master", "10.0.0.3:41000"),
        ("b", "RECEIVED", 3, "slave", None),
    ]


@pytest.mark.full
def test_packed_and_unpacked_segments_have_the_same_rows_and_options_filter_them(
    spark, tmp_path, monkeypatch, record
):
    recording = record(tmp_path / "s")
    recording.write(1000)
    recording.writer.close()
    frame = load(spark, tmp_path)
    whole = frame.orderBy("seq").collect()
    session = open_session(recording.path)
    for step in (2, 1):
        for segment in sealed_segments(session, every=True)[::step]:
            pack_segment(session, segment)
        # The same frame, too: it was planned when nothing was packed.
        assert frame.orderBy("seq").collect() == whole
        assert load(spark, tmp_path).orderBy("seq").collect() == whole
        part = load(spark, tmp_path, seqFrom=250, seqTo=640).orderBy("seq").collect()
        assert part == whole[250:640]
    kinds = load(spark, tmp_path, kinds="keyframe, 1")
    assert kinds.count() == sum(row.kind in {1, 60} for row in whole)
    columns = spark.read.format(FORMAT).schema("size int, seq long").load(str(tmp_path))
    assert columns.orderBy("seq").first().asDict() == {"size": 7, "seq": 0}
    assert columns.count() == len(whole)


@pytest.mark.full
def test_a_dataframe_of_a_folder_has_new_events_and_sessions(spark, tmp_path, record):
    old = record(tmp_path / "a")
    old.write(10)
    frame = load(spark, tmp_path, seqFrom=1)
    one = load(spark, tmp_path / "a")
    assert (frame.count(), one.count()) == (9, 10)
    old.write(20)
    new = record(tmp_path / "b")
    new.write(500)
    expected = {("a", 29), ("b", 499 + len(list((new.path / EVENTS_FOLDER).iterdir())) - 1)}
    assert {tuple(row) for row in frame.groupBy("session").count().collect()} == expected
    assert one.count() == 30
    # One frame used twice with different filters has the rows of each.
    puts = frame.where("kind_name = 'PUT'")
    low, high = puts.where("offset <= 10"), puts.where("offset > 495")
    assert sorted({row.offset for row in low.union(high).collect()}) == [*range(2, 11), *range(496, 501)]
    assert low.join(high, "seq").count() == 0


@pytest.mark.full
def test_damage_is_a_row_of_the_table_of_errors_and_lost_records_are_an_error(spark, tmp_path, record):
    recording = record(tmp_path / "s")
    recording.write(1000)
    recording.writer.close()
    file = tmp_path / "s" / EVENTS_FOLDER / f"{300:020d}.seg"
    data = bytearray(file.read_bytes())
    data[64 + 48 * 5 + 30] ^= 1
    file.write_bytes(data)
    frame = load(spark, tmp_path)
    count = frame.count()
    (row,) = load(spark, tmp_path, errors="true").collect()
    assert row.asDict() == {
        "session": "s",
        "file": str(file),
        "position": 64 + 48 * 5,
        "records": 1,
        "reason": "wrong check word or seq",
    }
    file.unlink()
    with pytest.raises(Exception, match="are gone since they were listed"):
        frame.count()
    assert load(spark, tmp_path).count() == count - 299
    (row,) = load(spark, tmp_path, errors="true").collect()
    assert (row.records, row.reason.split()[:3]) == (300, ["records", "300", "to"])


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_stream_reads_every_event_once_in_bounded_batches_over_restarts(spark, tmp_path, record):
    recordings = [record(tmp_path / "sessions" / "a")]
    out, state = str(tmp_path / "out"), str(tmp_path / "state")

    def run():
        """Follow until all is read; gives the number of rows of each batch."""
        stream = spark.readStream.format(FORMAT).option("maxEventsPerTrigger", 400)
        query = (
            stream.load(str(tmp_path / "sessions"))
            .writeStream.format("parquet")
            .option("checkpointLocation", state)
            .trigger(availableNow=True)
            .start(out)
        )
        assert query.awaitTermination(280)
        assert query.exception() is None
        return [progress.numInputRows for progress in query.recentProgress]

    def seen():
        rows = spark.read.parquet(out).select("session", "seq").collect()
        return sorted((row.session, row.seq) for row in rows)

    def there():
        rows = load(spark, tmp_path / "sessions").select("session", "seq").collect()
        return sorted((row.session, row.seq) for row in rows)

    recordings[0].write(1000)
    assert max(run()) <= 400
    assert seen() == there()
    recordings[0].write(333)
    # A session that is new, and segments that were packed since.
    recordings.append(record(tmp_path / "sessions" / "b"))
    recordings[1].write(500)
    session = open_session(recordings[0].path)
    for segment in sealed_segments(session):
        pack_segment(session, segment)
    assert max(run()) <= 400
    assert seen() == there()
    assert len(seen()) > 1833
    assert sum(run()) == 0


def test_a_stream_reads_up_to_its_limit_and_its_target(tmp_path, record):
    first, second = record(tmp_path / "a"), record(tmp_path / "b")
    first.write(100)
    second.write(50)
    stream = source.SessionDataSourceStreamReader({"path": str(tmp_path), "maxEventsPerTrigger": "120"}, SEQ)
    limit = stream.getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    one = stream.latestOffset(stream.initialOffset(), limit)
    two = stream.latestOffset(one, limit)
    stream.prepareForTriggerAvailableNow()
    first.write(10)
    assert [one, two] == [{"a": 70, "b": 50}, {"a": 100, "b": 50}]
    assert stream.latestOffset(two, ReadAllAvailable()) == two
    assert stream.partitions(two, two) == []
    (part,) = stream.partitions(one, two)
    assert [batch["seq"].to_pylist() for batch in stream.read(part)] == [list(range(70, 100))]


def test_a_busy_session_does_not_starve_others(tmp_path, record):
    busy, calm = record(tmp_path / "a-busy"), record(tmp_path / "b-calm")
    stream = source.SessionDataSourceStreamReader({"path": str(tmp_path), "maxEventsPerTrigger": "50"}, SEQ)
    limit, offset = stream.getDefaultReadLimit(), stream.initialOffset()
    for batch in range(1, 9):
        # More than a batch holds comes with each.
        busy.write(60)
        calm.write(10)
        offset = stream.latestOffset(offset, limit)
        assert offset == {"a-busy": 40 * batch, "b-calm": 10 * batch}


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 50), max_size=8),
    st.integers(1, 120),
    st.integers(0, 20),
)
def test_shares_are_fair(wanted, most, turn):
    shares = source.fair_shares(wanted, most, rotation=turn)
    assert sum(shares.values()) == min(most, sum(wanted.values()))
    assert all(shares[name] <= wanted[name] for name in shares)
    short = [shares[name] for name in shares if shares[name] < wanted[name]]
    # Who gets less than it wants gets no less than any other, by one at the utmost.
    assert all(max(shares.values()) - share <= 1 for share in short)


def test_shares_below_one_rotate():
    wanted, given_ = dict.fromkeys("abc", 1000), dict.fromkeys("abc", 0)
    for _ in range(9):
        shares = source.fair_shares(wanted, 2, rotation=sum(given_.values()))
        given_ = {name: given_[name] + shares.get(name, 0) for name in given_}
    assert given_ == {"a": 6, "b": 6, "c": 6}


def test_partitions_name_absolute_folders(tmp_path, record, monkeypatch):
    record(tmp_path / "re cordings" / "a").write(10)
    monkeypatch.chdir(tmp_path)
    for path in ("re cordings", f"file:{tmp_path}/re%20cordings", (tmp_path / "re cordings").as_uri()):
        reader = source.SessionDataSourceReader({"path": path}, SEQ)
        parts = reader.partitions()
        # Read by executors, which have another working folder.
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 10
    with pytest.raises(StoreError, match="s3a: is not read"):
        source.SessionDataSourceReader({"path": "s3a://bucket/sessions"}, SEQ)


@pytest.mark.full
def test_a_wrong_option_is_refused(spark, tmp_path):
    write_session(tmp_path / "s", [Event(1, Kind.PUT)])
    for options, told in (
        ({"kinds": "PUTS"}, "option kinds: 'PUTS' is none of PUT,"),
        ({"seqFrom": "-1"}, "option seqfrom"),
    ):
        with pytest.raises(Exception, match=told):
            load(spark, tmp_path, **options).count()

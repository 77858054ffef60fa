"""The data sources on Spark: registration, rows, growing logs, schemas and filters."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F  # noqa: N812

from tests.analysis.logs import expected_rows, write_log
from tests.store.support import STORES, VECTORS
from trioha_spark.sources import register
from trioha_spark.sources.functions import decode_body, parse_properties

pytestmark = pytest.mark.spark

FORMAT = "rocketmq-commitlog"


def load(spark, path, **options):
    return spark.read.format(FORMAT).options(**options).load(str(path))


def rows_of(frame):
    rows = [row.asDict() for row in frame.orderBy("physical_offset").collect()]
    return [
        {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.items()}
        for row in rows
    ]


@pytest.mark.parametrize(
    "name", [STORES[0], *(pytest.param(name, marks=pytest.mark.full) for name in STORES[1:])]
)
def test_a_recorded_store_has_exactly_its_messages_in_spark(spark, name):
    frame = load(spark, VECTORS / name / "store", rangeBytes=16384)
    assert rows_of(frame) == expected_rows(name)
    assert frame.rdd.getNumPartitions() > 5
    assert load(spark, VECTORS / name / "store", errors="true").count() == 0


def test_spark_finds_the_sources_by_itself_or_registered(spark):
    # Nothing has been registered here: it has imported the modules `pyspark_*`.
    fresh = spark.newSession()
    store = VECTORS / STORES[0] / "store"
    assert load(fresh, store).count() == 138
    register(spark)
    assert load(spark, store).count() == 138


@pytest.mark.full
def test_offsets_and_topics_filter_messages(spark):
    expected = expected_rows(STORES[1])
    start, end = expected[20]["physical_offset"], expected[60]["physical_offset"]
    store = VECTORS / STORES[1] / "store"
    assert rows_of(load(spark, store, startOffset=start, endOffset=end)) == expected[20:60]
    assert rows_of(load(spark, store, startOffset=start + 1, endOffset=end, topic="VecA, VecB")) == [
        row for row in expected[21:60] if row["topic"] in {"VecA", "VecB"}
    ]
    assert load(spark, store, startOffset=end, endOffset=end).count() == 0


@pytest.mark.full
def test_a_users_schema_reads_only_its_columns_in_its_order(spark):
    frame = (
        spark.read.format(FORMAT)
        .schema("topic string, queue_offset long")
        .load(str(VECTORS / STORES[0] / "store"))
    )
    assert frame.columns == ["topic", "queue_offset"]
    assert sorted(map(tuple, frame.collect())) == sorted(
        (row["topic"], row["queue_offset"]) for row in expected_rows(STORES[0])
    )


@pytest.mark.full
def test_one_frame_used_twice_with_different_filters_gives_the_rows_of_each(spark):
    # With pushFilters Spark 4.3 plans the source once for both and gives one side the other's rows.
    frame = load(spark, VECTORS / STORES[0] / "store")
    expected = expected_rows(STORES[0])
    a = frame.where(F.col("topic") == "VecA").select("physical_offset")
    b = frame.where((F.col("topic") == "VecB") & (F.col("queue_id") == 0)).select("physical_offset")
    both = a.union(b).collect()
    assert sorted(row[0] for row in both) == sorted(
        row["physical_offset"]
        for row in expected
        if row["topic"] == "VecA" or (row["topic"] == "VecB" and row["queue_id"] == 0)
    )
    assert a.join(b, "physical_offset").count() == 0
    from trioha_spark.sources.commit_log import CommitLogReader
    from trioha_spark.sources.session import SessionDataSourceReader

    for reader in (CommitLogReader, SessionDataSourceReader):
        assert "pushFilters" not in vars(reader)


@pytest.mark.full
def test_a_dataframe_of_a_growing_log_counts_the_current_messages(spark, tmp_path):
    write_log(tmp_path, [b"x"] * 10, file_bytes=4096)
    frame = load(spark, tmp_path)
    assert frame.count() == 10
    assert len(frame.collect()) == 10
    # Far enough for files that were not there.
    write_log(tmp_path, [b"x"] * 100, file_bytes=4096)
    assert frame.count() == 100
    assert len(frame.collect()) == 100
    assert load(spark, tmp_path).count() == 100


@pytest.mark.full
def test_a_log_that_is_truncated_after_load_is_an_error(spark, tmp_path):
    write_log(tmp_path, [b"x"] * 100, file_bytes=4096)
    frame = load(spark, tmp_path)
    assert frame.count() == 100
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(Exception, match="deleted since the log was listed"):
        frame.count()
    assert 0 < load(spark, tmp_path).count() < 100


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_stream_of_a_growing_log_has_each_message_once(spark, tmp_path):
    store, out, state = tmp_path / "store", str(tmp_path / "out"), str(tmp_path / "state")
    bodies = [bytes([number]) * 900 for number in range(60)]

    def run():
        source = spark.readStream.format(FORMAT).option("maxBytesPerTrigger", 8000).load(str(store))
        writer = source.writeStream.format("parquet").option("checkpointLocation", state)
        query = writer.trigger(availableNow=True).start(out)
        assert query.awaitTermination(280)
        assert query.exception() is None
        return sorted(row[0] for row in spark.read.parquet(out).select("physical_offset").collect())

    for count in (25, 60):
        offsets = write_log(store, bodies[:count], file_bytes=1 << 14)
        assert run() == offsets


def test_damage_is_a_row_of_the_table_of_errors(spark, tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 10, file_bytes=4096)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[offsets[3] + 4] ^= 1
    data[offsets[6] + 120] ^= 1
    file.write_bytes(data)
    assert load(spark, tmp_path).count() == 9
    assert load(spark, tmp_path, verifyBodies="true").count() == 8
    errors = load(spark, tmp_path, errors="true", verifyBodies="true").orderBy("physical_offset").collect()
    assert [(row.file, row.physical_offset, row.size_bytes) for row in errors] == [
        (str(file), offsets[3], offsets[1]),
        (str(file), offsets[6], offsets[1]),
    ]
    assert [row.reason.split()[:2] for row in errors] == [["magic", "0xDBA320A7"], ["the", "body's"]]


@pytest.mark.full
def test_functions_decode_bodies_and_properties(spark):
    frame = load(spark, VECTORS / STORES[1] / "store")
    (packed,) = (
        frame.where(F.col("sys_flag").bitwiseAND(F.lit(1)) == 1)
        .select("body", decode_body("body", "sys_flag").alias("plain"))
        .collect()
    )
    assert len(packed.plain) > len(packed.body)
    tagged = frame.select(parse_properties("properties")["TAGS"].alias("tag")).where("tag = 'TagA'")
    assert tagged.count() == sum(b"TAGS\x01TagA" in row["properties"] for row in expected_rows(STORES[1]))


@pytest.mark.full
def test_wrong_options_and_columns_and_a_missing_folder_are_errors(spark, tmp_path):
    store = VECTORS / STORES[0] / "store"
    for options, told in (
        ({"topics": "VecA"}, "there is no option 'topics'"),
        ({"startOffset": "x"}, "option startoffset: 'x' is not a whole number"),
        ({"errors": "yes"}, "neither true nor false"),
    ):
        with pytest.raises(Exception, match=told):
            load(spark, store, **options).count()
    for column, told in (("queue int", "has no column 'queue'"), ("queue_offset int", "is int64, not int32")):
        with pytest.raises(Exception, match=told):
            spark.read.format(FORMAT).schema(column).load(str(store)).count()
    with pytest.raises(Exception, match="no such folder"):
        load(spark, tmp_path / "nowhere").count()

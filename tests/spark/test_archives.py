"""Archives on Spark: messages and recordings of an S3 server, read in place."""

import pytest
from attrs import evolve

from tests.analysis.archives import archive_session, merge_objects, next_head, write_archive
from tests.analysis.logs import read_all
from tests.analysis.replays import replay_here, short_tables, write_recordings
from tests.archive.building import replace_generation
from tests.sessions.sessions import MasterModel, write_session
from tests.store.support import VECTORS
from trioha.archive.objects import ObjectFolder
from trioha_spark.replay import replay

pytestmark = [pytest.mark.spark, pytest.mark.full]

STORE = VECTORS / "store-5.3.3" / "store"


def storage_options(bucket):
    """The environment of Spark's own processes does not lead to the bucket."""
    names = {
        "AWS_ACCESS_KEY_ID": "storage.aws_access_key_id",
        "AWS_SECRET_ACCESS_KEY": "storage.aws_secret_access_key",
        "AWS_REGION": "storage.aws_region",
        "AWS_ENDPOINT_URL": "storage.aws_endpoint_url",
        "AWS_ALLOW_HTTP": "storage.allow_http",
    }
    return {option: bucket.environment[name] for name, option in names.items()}


def load(spark, format_, bucket, **options):
    reader = spark.read.format(format_).options(**storage_options(bucket)).options(**options)
    return reader.load(bucket.url)


def offsets(frame):
    return sorted(row[0] for row in frame.select("physical_offset").collect())


def test_messages_of_an_archive_are_rows(spark, s3_bucket):
    objects = write_archive(s3_bucket.url, store=STORE)
    expected, _ = read_all(STORE)
    every = [row["physical_offset"] for row in expected]
    frame = load(spark, "rocketmq-commitlog", s3_bucket, rangeBytes=4096)
    assert offsets(frame) == every
    assert frame.rdd.getNumPartitions() > 2
    middle = expected[len(expected) // 2]
    # Objects without such messages are not read: they are not even there.
    folder = ObjectFolder.open(s3_bucket.url)
    folder.delete([one.key for one in objects if one.end_offset <= middle["physical_offset"]])
    late = load(spark, "rocketmq-commitlog", s3_bucket, startOffset=middle["physical_offset"])
    assert offsets(late) == every[len(every) // 2 :]
    of_topic = load(
        spark,
        "rocketmq-commitlog",
        s3_bucket,
        topic=middle["topic"],
        startOffset=middle["physical_offset"],
        toTime=middle["store_timestamp_ms"] + 1,
    )
    assert offsets(of_topic) == [
        row["physical_offset"]
        for row in expected
        if row["topic"] == middle["topic"]
        and row["physical_offset"] >= middle["physical_offset"]
        and row["store_timestamp_ms"] <= middle["store_timestamp_ms"]
    ]


@pytest.mark.nightly
def test_a_stream_of_a_growing_archive_has_each_message_once(spark, tmp_path, s3_bucket):
    objects = write_archive(s3_bucket.url, store=STORE, object_bytes=3000, page_objects=100)
    # At first there is a part of it, then all of it, merged.
    replace_generation(s3_bucket.url, lambda one: evolve(one, objects=tuple(objects[:3])))
    out, checkpoint = str(tmp_path / "out"), tmp_path / "checkpoint"

    def run():
        stream = spark.readStream.format("rocketmq-commitlog").options(**storage_options(s3_bucket))
        source = stream.option("maxBytesPerTrigger", 3000).load(s3_bucket.url)
        writer = source.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(out).awaitTermination()
        return offsets(spark.read.parquet(out))

    expected = [row["physical_offset"] for row in read_all(STORE)[0]]
    some = run()
    assert some == expected[: len(some)]
    assert 0 < len(some) < len(expected)
    merge_objects(s3_bucket.url, STORE, object_bytes=7000)
    assert run() == expected
    assert len(list((checkpoint / "commits").glob("[0-9]*"))) > 3


@pytest.fixture
def recordings(tmp_path):
    folder = write_recordings(tmp_path / "recordings")
    write_session(folder / "20260102T000000.000Z-broker-b-0", MasterModel(3).run(400), segment_records=90)
    return folder


def test_recordings_of_an_archive_are_rows_and_replays(spark, s3_bucket, recordings):
    write_archive(s3_bucket.url, sessions=sorted(recordings.iterdir()))
    found = load(spark, "trioha-session", s3_bucket).orderBy("session", "seq").collect()
    assert (
        found == spark.read.format("trioha-session").load(str(recordings)).orderBy("session", "seq").collect()
    )
    # The driver's settings travel with the tasks.
    assert replay([s3_bucket.url], spark=spark).collect() == short_tables(replay_here(recordings))


@pytest.mark.nightly
def test_a_stream_of_recordings_of_a_growing_archive_has_each_event_once(
    spark, tmp_path, s3_bucket, recordings
):
    sessions = sorted(recordings.iterdir())
    write_archive(s3_bucket.url, sessions=sessions[:2])
    stream = spark.readStream.format("trioha-session").options(**storage_options(s3_bucket))
    source = stream.option("maxEventsPerTrigger", 100).load(s3_bucket.url)
    out, state = str(tmp_path / "out"), str(tmp_path / "state")

    def run():
        writer = source.writeStream.format("parquet").option("checkpointLocation", state)
        writer.trigger(availableNow=True).start(out).awaitTermination()
        return sorted(spark.read.parquet(out).collect())

    some = run()
    folder = ObjectFolder.open(s3_bucket.url)
    next_head(s3_bucket.url, recordings=tuple(archive_session(folder, path) for path in sessions))
    everything = run()
    assert 0 < len(some) < len(everything)
    there = spark.read.format("trioha-session").load(str(recordings)).select(*source.columns)
    assert everything == sorted(there.collect())


def test_packed_recordings_are_read_by_spark_alone(spark, tmp_path, recordings):
    write_archive(f"file://{tmp_path}/archive", sessions=sorted(recordings.iterdir()))
    packed = spark.read.parquet(f"{tmp_path}/archive/recordings/*/events/*.parquet")
    events = spark.read.format("trioha-session").load(f"{tmp_path}/archive")
    assert packed.count() == events.count() > 0
    assert packed.agg({"offset": "sum"}).collect() == events.agg({"offset": "sum"}).collect()

"""Spark on what `trioha archive` wrote to an S3 server: batches, replays, and streams while it grows."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import frozen

from tests.analysis.logs import read_all
from tests.analysis.replays import replay_here, write_recordings
from tests.archive.test_archived_recordings import close
from tests.s3 import S3Bucket
from tests.spark.test_archives import load, offsets, storage_options
from tests.spark.test_session_source import Recording
from tests.spark.test_streams import Following, wait_until
from tests.store.support import VECTORS
from trioha.archive.session_paths import find_recordings
from trioha.cli import main
from trioha.recording.reader import open_session, read_segments
from trioha_analysis.document import document
from trioha_spark.replay import replay

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

STORE = VECTORS / "store-5.3.3" / "store"
EVENTS_MAX = 500
"""Of a batch."""


@frozen
class Archived:
    """A store and a folder of recordings, and the bucket that the command archives them to."""

    bucket: S3Bucket
    recordings: Path

    def archive(self) -> None:
        """Run the command: it archives what is new."""
        arguments = ["--to", self.bucket.url, "--recordings", str(self.recordings), "--json"]
        assert main(["archive", str(STORE), *arguments]) == 0

    def events(self) -> dict[str, int]:
        """Events of each session that the archive has."""
        found = find_recordings([self.bucket.url])
        return {path.name: read_segments(open_session(path)).records for path in found}


@pytest.fixture
def archived(s3_bucket, tmp_path):
    return Archived(s3_bucket, tmp_path / "recordings")


def test_what_the_command_archived_is_read_and_replayed_in_place(spark, archived):
    write_recordings(archived.recordings)
    for session in archived.recordings.iterdir():
        close(session)
    archived.archive()

    messages = load(spark, "rocketmq-commitlog", archived.bucket)
    assert offsets(messages) == [row["physical_offset"] for row in read_all(STORE)[0]]
    columns = ("session", "seq", "ts_ns", "kind", "conn", "offset", "aux", "size", "flags")
    there = spark.read.format("trioha-session").load(str(archived.recordings)).select(*columns)
    found = load(spark, "trioha-session", archived.bucket).select(*columns)
    assert sorted(found.collect()) == sorted(there.collect())
    assert document(replay([archived.bucket.url], spark=spark)) == document(replay_here(archived.recordings))


def batches_of(state: str) -> list[dict[str, int]]:
    """Events of each session in each batch of a query, by its checkpoint."""
    files = sorted(Path(state, "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    ends = [Counter(json.loads(file.read_text().splitlines()[-1])) for file in files]
    return [dict(end - begin) for begin, end in pairwise([Counter[str](), *ends])]


@pytest.fixture
def nodes(archived):
    """Two nodes that record, one of them more than the other."""
    found = {
        name: Recording(archived.recordings / name, broker_id=broker_id)
        for broker_id, name in enumerate(("busy", "calm"))
    }
    yield found
    for recording in found.values():
        recording.writer.close()


def test_a_stream_of_an_archive_that_grows_has_each_event_once_and_is_fair(spark, tmp_path, archived, nodes):
    following = Following(
        *(spark, tmp_path, archived.bucket.url, "trioha-session"),
        maxEventsPerTrigger=EVENTS_MAX,
        **storage_options(archived.bucket),
    )
    read = Counter()
    batches = 0
    for busy, calm in ((1300, 700), (1000, 400)):
        nodes["busy"].write(busy)
        nodes["calm"].write(calm)
        archived.archive()
        waiting = Counter(archived.events()) - read
        assert waiting["busy"] > waiting["calm"] > 0
        read += waiting
        # Each time the query starts anew from its checkpoint.
        following.to_the_end()
        for batch in batches_of(following.state)[batches:]:
            batches += 1
            for name, events in waiting.items():
                # A session gets all that waits, or as much as any other.
                assert batch.get(name, 0) == events or batch[name] >= max(batch.values()) - 1
            waiting -= Counter(batch)
        assert not waiting
    assert batches > 4
    with following.running() as query:
        for name, recording in nodes.items():
            recording.write(100)
            recording.writer.close()
            close(archived.recordings / name)
        archived.archive()
        events = sum(archived.events().values())

        def has_begun_the_last_batch():
            assert query.exception() is None
            return sum(sum(batch.values()) for batch in batches_of(following.state)) == events

        wait_until(has_begun_the_last_batch)
    following.to_the_end()

    folder = spark.read.format("trioha-session").load(str(archived.recordings))
    there = folder.select("session", "seq", "offset").collect()
    assert following.rows("session", "seq", "offset") == sorted(map(tuple, there))
    assert max(following.batches) <= EVENTS_MAX

"""Archives of real brokers under load, killed and restarted, and stores restored from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.archiver import ArchiverProcess, wait_archived
from tests.doctor.changes import GROUP, make_group
from tests.interop.asking import commit, tables
from tests.interop.java import JavaDriver, JavaMessage, JavaStore
from tests.interop.logs import assert_same_log
from tests.interop.rocketmq import is_5
from tests.interop.test_crashes import ACKED_MIN, TOPIC, Producers
from tests.node_process import FILE_BYTES, WITHIN_S, run_trioha
from tests.s3 import S3Bucket, S3Server, bucket_in_environment, obstore_settled
from tests.s3_proxy import s3_proxy
from tests.waiting import wait_until
from trioha.metadata.pretty_json import parse_pretty

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

OFFSETS = {0: 31, 1: 17, 2: 5, 3: 0}
SETTINGS = {"flushConsumerOffsetInterval": 500}


@pytest.fixture
def url(
    java: JavaDriver, tmp_path: Path, s3_server_of_this_run: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A folder for RocketMQ 4.9; for 5.x an S3 server, where one request in ten fails."""
    if not is_5(java.version):
        yield f"file://{tmp_path}/archive"
        return
    with obstore_settled(), s3_proxy(s3_server_of_this_run.port) as proxy:
        bucket = S3Bucket(name=s3_server_of_this_run.make_bucket(), endpoint=proxy.endpoint)
        with bucket_in_environment(bucket, monkeypatch):
            proxy.strike_at_random(seed=7, share=0.1)
            yield bucket.url
            assert any(one.fault for one in proxy.passages)


def offsets_on_disk(root: Path) -> object:
    """The group's offsets in the config file."""
    try:
        text = (root / "config" / "consumerOffset.json").read_text()
    except FileNotFoundError:
        # Not there yet, or between two names while RocketMQ replaces it.
        return None
    table = parse_pretty(text) if text else {}
    found = table.get("offsetTable", {}).get(f"{TOPIC}@{GROUP}", {}) if isinstance(table, dict) else {}
    return {int(queue_id): offset for queue_id, offset in found.items()}


def restore(url: str, into: Path, *options: str) -> int:
    """Restore, and return where the log ends."""
    said = run_trioha("restore", url, "--into", into, "--json", *options)
    assert said.exit_code == 0, said.stderr
    document = json.loads(said.stdout)
    assert document["mappedFileSizeCommitLog"] == FILE_BYTES
    end: int = document["endOffset"]
    return end


def places(messages: tuple[JavaMessage, ...]) -> list[tuple[int, int, int]]:
    """Where messages are: queue id, queue offset, physical offset."""
    return [(one.queue_id, one.queue_offset, one.physical_offset) for one in messages]


@pytest.mark.nightly
def test_a_broker_that_was_killed_is_restored_to_the_end_to_an_offset_and_to_a_time(
    java: JavaDriver, own_jvm: Callable[..., JavaDriver], url: str, tmp_path: Path
) -> None:
    root, log_file = tmp_path / "broker", tmp_path / "archiver.log"
    jvm = own_jvm(java.version)
    broker = jvm.open_broker(root, role="ASYNC_MASTER", **SETTINGS)
    archiver = ArchiverProcess(root, url, log_file=log_file)
    try:
        before = java.send(broker.listen_address, 200, size=900, topic=TOPIC)
        make_group(broker.listen_address)
        commit(broker.listen_address, GROUP, TOPIC, OFFSETS)
        # RocketMQ writes offsets for the first time 10 s after its start.
        wait_until(lambda: offsets_on_disk(root) == OFFSETS, within_s=WITHIN_S)
        producers = Producers(java, broker.listen_address)
        producers.wait(ACKED_MIN)
        # Both in the middle of their work.
        jvm.kill()
        archiver.kill()
        acked = producers.end()

        broker = own_jvm(java.version).open_broker(root, role="ASYNC_MASTER", **SETTINGS)
        archiver = ArchiverProcess(root, url, log_file=log_file)
        java.send(broker.listen_address, 100, size=900, topic=TOPIC)
        all_messages = broker.read(TOPIC).messages
        end = broker.max_offset
        wait_archived(archiver, url, end)
        archiver.stop()
    finally:
        archiver.kill()
    there = {(one.queue_id, one.queue_offset) for one in all_messages}
    assert len(all_messages) >= len(before) + len(acked) + 100
    assert acked.keys() <= there

    # To the end: every message, none beyond, groups where they were, and it goes on
    latest = tmp_path / "latest"
    assert restore(url, latest) == end
    assert_same_log(latest, root, end=end, file_bytes=FILE_BYTES)
    restored = java.open_broker(latest, role="ASYNC_MASTER", **SETTINGS)
    assert restored.max_offset == end
    read = restored.read(TOPIC)
    assert read.gaps() == []
    assert places(read.messages) == places(all_messages)
    offsets = tables(restored.listen_address)[2]["offsetTable"]
    assert offsets[f"{TOPIC}@{GROUP}"] == {str(queue): offset for queue, offset in OFFSETS.items()}
    assert {one["sendStatus"] for one in java.send(restored.listen_address, 20, topic=TOPIC)} == {"SEND_OK"}
    assert len(restored.read(TOPIC).messages) == len(all_messages) + 20

    # To an offset in the middle of a record
    cut = all_messages[len(acked) // 2]
    to_offset = tmp_path / "to-offset"
    assert restore(url, to_offset, "--to-offset", str(cut.physical_offset + 10)) == cut.physical_offset
    has_only(
        java.open_store(to_offset, role="ASYNC_MASTER"),
        [one for one in all_messages if one.physical_offset < cut.physical_offset],
    )

    # To a time: before the first record that was stored after it
    time_ms = cut.record["storeTimestamp"]
    to_time = tmp_path / "to-time"
    first_later = next(one for one in all_messages if one.record["storeTimestamp"] > time_ms)
    assert restore(url, to_time, "--to-time", str(time_ms)) == first_later.physical_offset
    has_only(
        java.open_store(to_time, role="ASYNC_MASTER"),
        [one for one in all_messages if one.physical_offset < first_later.physical_offset],
    )


def has_only(store: JavaStore, messages: list[JavaMessage]) -> None:
    """The store has these messages and none beyond."""
    read = store.read(TOPIC)
    assert read.gaps() == []
    assert places(read.messages) == places(tuple(messages))
    assert store.max_offset == messages[-1].physical_offset + messages[-1].size

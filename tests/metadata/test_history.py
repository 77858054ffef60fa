"""The history of metadata: bounded, readable after crashes, exact where offsets go back."""

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.clocks import Clock
from tests.descriptors import close_after_test
from tests.store.crashes import CrashingDisk, PowerCutDisk
from trioha.errors import StoreError
from trioha.metadata.history import (
    CONSUMER_OFFSETS,
    HistorySettings,
    MetadataHistory,
    read_history,
    segments_of,
)
from trioha.metadata.metadata_store import MetadataSettings, MetadataStore


def value(**offsets: int) -> dict[str, Any]:
    return {"offsetTable": {f"{topic}@G": {0: offset} for topic, offset in offsets.items()}}


def history(tmp_path: Path, clock: Clock, **settings: Any) -> MetadataHistory:
    return MetadataHistory(HistorySettings(tmp_path / "history", **settings), now_ms=clock)


def at(tmp_path: Path, time_ms: int) -> dict[str, int]:
    entries = read_history(tmp_path / "history", time_ms).tables[CONSUMER_OFFSETS]
    return {key.partition("@")[0]: queues["0"] for key, queues in entries.items()}


def test_changes_are_gathered_and_the_last_ones_recorded_at_the_close(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, interval_s=60)
    kept.begin({CONSUMER_OFFSETS: value(T=1)})
    for now_ms, offset in ((6_000, 2), (11_000, 3), (61_000, 4), (66_000, 5)):
        clock.now = now_ms
        kept.note(CONSUMER_OFFSETS, value(T=offset))
    kept.close()
    found = {now_ms: at(tmp_path, now_ms)["T"] for now_ms in (1_000, 11_000, 61_000, 65_999, 66_000, 10**9)}
    assert found == {1_000: 1, 11_000: 1, 61_000: 4, 65_999: 4, 66_000: 5, 10**9: 5}


def test_before_offsets_go_back_what_they_were_is_recorded(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, interval_s=60)
    kept.begin({CONSUMER_OFFSETS: value(T=1)})
    clock.now = 6_000
    kept.note(CONSUMER_OFFSETS, value(T=50))
    clock.now = 11_000
    kept.note(CONSUMER_OFFSETS, value(T=7))
    # Not closed: the process was killed.
    assert [at(tmp_path, now_ms)["T"] for now_ms in (5_999, 6_000, 10_999, 11_000)] == [1, 50, 50, 7]


def test_a_power_cut_takes_no_line(tmp_path):
    config = tmp_path / "config"
    config.mkdir()
    disk = close_after_test(PowerCutDisk(config))
    clock = Clock(1_000)
    with CrashingDisk(on_sync=disk.synced).in_use():
        kept = history(config, clock, interval_s=0)
        kept.begin({CONSUMER_OFFSETS: value(T=1)})
        clock.now = 6_000
        kept.note(CONSUMER_OFFSETS, value(T=7))
    image = disk.image(tmp_path / "image", is_kept=lambda: False)
    assert [at(image, now_ms)["T"] for now_ms in (1_000, 6_000)] == [1, 7]


def test_a_deleted_group_can_be_found_again(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock)
    kept.begin({CONSUMER_OFFSETS: value(T=1, U=2)})
    clock.now = 6_000
    kept.note(CONSUMER_OFFSETS, value(U=2))
    assert (at(tmp_path, 5_999), at(tmp_path, 6_000)) == ({"T": 1, "U": 2}, {"U": 2})


def test_topics_and_groups_are_in_the_history(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, interval_s=0)
    kept.begin({"topics.json": {"topicConfigTable": {"T": {"perm": 6}}}})
    clock.now = 2_000
    kept.note("topics.json", {"topicConfigTable": {"T": {"perm": 4}, "U": {}}})
    folder = tmp_path / "history"
    assert read_history(folder, 1_999).tables == {"topics.json": {"T": {"perm": 6}}}
    assert read_history(folder, 2_000).tables == {"topics.json": {"T": {"perm": 4}, "U": {}}}


def test_old_segments_are_deleted_and_the_newest_is_whole(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, bytes_max=8_000, interval_s=0)
    kept.begin({CONSUMER_OFFSETS: value(T=0)})
    for number in range(1, 1_000):
        clock.now += 1_000
        kept.note(CONSUMER_OFFSETS, value(T=number))
    kept.close()
    segments = segments_of(tmp_path / "history")
    assert sum(path.stat().st_size for path in segments) <= 8_000 + 8_000 // 8 + 200
    assert len(segments) >= 4
    assert at(tmp_path, clock.now) == {"T": 999}
    first_ms = int(segments[0].stem)
    assert at(tmp_path, first_ms)["T"] == (first_ms - 1_000) // 1_000
    with pytest.raises(StoreError, match="is before it"):
        at(tmp_path, first_ms - 1)


def test_a_line_that_a_crash_has_cut_is_passed_over_and_a_restart_begins_a_segment(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, interval_s=0)
    kept.begin({CONSUMER_OFFSETS: value(T=1)})
    clock.now = 2_000
    kept.note(CONSUMER_OFFSETS, value(T=2))
    (segment,) = segments_of(tmp_path / "history")
    segment.write_bytes(segment.read_bytes()[:-5])
    assert at(tmp_path, 2_000) == {"T": 1}
    again = history(tmp_path, clock)
    again.begin({CONSUMER_OFFSETS: value(T=2)})
    assert len(segments_of(tmp_path / "history")) == 2
    assert at(tmp_path, 2_000) == {"T": 2}


def test_a_segment_that_was_removed_is_followed_by_a_whole_one(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, interval_s=0)
    kept.begin({CONSUMER_OFFSETS: value(T=1, U=1)})
    (segment,) = segments_of(tmp_path / "history")
    segment.unlink()
    clock.now = 2_000
    kept.note(CONSUMER_OFFSETS, value(T=2, U=1))
    assert at(tmp_path, 2_000) == {"T": 2, "U": 1}


def test_a_segment_without_its_first_line_is_passed_over(tmp_path):
    clock = Clock(1_000)
    kept = history(tmp_path, clock, interval_s=0)
    kept.begin({CONSUMER_OFFSETS: value(T=1)})
    (tmp_path / "history" / f"{2_000:020}.jsonl").write_bytes(b'{"t":2000,"tab')
    assert at(tmp_path, 3_000) == {"T": 1}


def test_a_history_that_cannot_be_written_is_logged_once_and_ends_nothing(tmp_path):
    clock = Clock(1_000)
    (tmp_path / "history").write_text("not a folder")
    kept = history(tmp_path, clock, interval_s=0)
    with capture_logs() as logged:
        kept.begin({CONSUMER_OFFSETS: value(T=1)})
        clock.now = 2_000
        kept.note(CONSUMER_OFFSETS, value(T=2))
    assert [entry["event"] for entry in logged] == ["cannot be written: metadata history"]
    (tmp_path / "history").unlink()
    clock.now = 3_000
    kept.note(CONSUMER_OFFSETS, value(T=3))
    assert at(tmp_path, 3_000) == {"T": 3}


async def test_what_a_store_writes_is_in_its_history(tmp_path, nursery):
    settings = MetadataSettings(
        folder=tmp_path, offsets_interval_s=0.01, history=HistorySettings(tmp_path / "history", interval_s=0)
    )
    store = MetadataStore.open(settings)
    nursery.start_soon(store.run)
    for offset in (5, 2):
        store.consumer_offsets.commit("G", "T", 0, offset)
        await store.consumer_offsets.written.reached(store.consumer_offsets.changes.offset)
    lines = [
        json.loads(line)
        for path in segments_of(tmp_path / "history")
        for line in path.read_text().splitlines()
    ]
    assert [line["set"] for line in lines[1:]] == [{"T@G": {"0": 5}}, {"T@G": {"0": 2}}]
    assert [line.get("back") for line in lines[1:]] == [None, True]
    assert set(lines[0]["tables"]) == {
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
        "delayOffset.json",
    }

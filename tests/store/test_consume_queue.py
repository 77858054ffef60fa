"""Consume queues: the entry rules, ends, cuts and minimum offsets, against lists and brute force."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import close_after_test, resources_closed
from tests.store.dispatching import RECORDED_QUEUES, batch_topics, files_below
from tests.store.support import STORES, VECTORS, copy_store, expected
from trioha.errors import StoreError
from trioha.store.batch_consume_queue import BatchConsumeQueue
from trioha.store.consume_queue import ConsumeQueue, rounded_file_bytes
from trioha.store.consume_queues import ConsumeQueues, ConsumeQueueSettings
from trioha.store.entry_queue import BLANK_SIZE, Entry, leading_valid
from trioha.store.file_cache import FileCache

PER_FILE = 5
RECORD = 100
"""Bytes of each record here; record k is at 100 * k."""


def make(folder, *, cache=None):
    return ConsumeQueue(
        folder, topic="T", queue_id=0, file_bytes=PER_FILE * 20, cache=cache or close_after_test(FileCache())
    )


def fill(queue, count, *, first=0):
    for number in range(first, first + count):
        assert queue.put(physical_offset=number * RECORD, size=RECORD, tags_code=number, queue_offset=number)
    queue.flush()


def numbers(queue):
    """Queue offsets of all real entries that readers see, which are also their records' numbers."""
    found = [entry for entry in queue.entries(queue.min_offset, 10_000) if not entry.is_blank]
    assert all(entry.physical_offset == entry.queue_offset * RECORD for entry in found)
    return [entry.queue_offset for entry in found]


def reopened(folder):
    queue = make(folder)
    queue.recover()
    return queue


# -- real queues ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_recorded_queues_open_with_the_offsets_that_rocketmq_says(name, tmp_path):
    root = copy_store(name, tmp_path)
    before = files_below(root)
    queues = close_after_test(ConsumeQueues(root, RECORDED_QUEUES))
    queues.recover()
    queues.correct_min_offsets(expected(name)["minPhyOffset"])
    said = {
        queue: (found["minOffset"], found["maxOffset"], found["maxPhysicOffset"])
        for queue, found in expected(name)["queues"].items()
        if found["maxOffset"]
    }

    def max_physical_offset(queue):
        # RocketMQ's batch queues report the start of their last record, ours its end, like plain ones.
        if isinstance(queue, BatchConsumeQueue):
            last = queue.entry(queue.max_offset - 1)
            assert last.physical_offset + last.size == queue.max_physical_offset
            return last.physical_offset
        return queue.max_physical_offset

    assert {
        f"{queue.topic}@{queue.queue_id}": (queue.min_offset, queue.max_offset, max_physical_offset(queue))
        for queue in queues
    } == said
    assert queues.max_physical_offset == expected(name)["maxPhyOffset"]
    queues.close()
    assert files_below(root) == before


@pytest.mark.parametrize("name", STORES[:2])
@pytest.mark.parametrize("case_name", ["normal-last-body-corrupt", "crash-mid-first-file-corrupt"])
def test_queues_cut_at_a_damaged_record_are_those_that_rocketmq_keeps(name, case_name, tmp_path):
    cases = json.loads((VECTORS / name / "recovery-cases.json").read_text())
    case = next(case for case in cases if case["case"] == case_name)
    root = copy_store(name, tmp_path, kind=case["base"])
    queues = close_after_test(ConsumeQueues(root, RECORDED_QUEUES))
    queues.recover()
    queues.truncate_dirty(case["afterLoad"]["maxPhyOffset"])
    queues.correct_min_offsets(case["afterLoad"]["minPhyOffset"])
    assert {
        f"{queue.topic}@{queue.queue_id}": (queue.min_offset, queue.max_offset)
        for queue in queues
        if queue.max_offset
    } == {
        queue: (found["minOffset"], found["maxOffset"])
        for queue, found in case["afterLoad"]["queues"].items()
        if found["maxOffset"]
    }


def test_batch_queues_find_every_message_of_every_record(tmp_path):
    name = "store-5.3.3"
    assert batch_topics(name) == {"VecBCQ"}
    queues = close_after_test(ConsumeQueues(copy_store(name, tmp_path), RECORDED_QUEUES))
    queues.recover()
    queue = queues.find("VecBCQ", 0)
    assert isinstance(queue, BatchConsumeQueue)
    records = [found for found in expected(name)["messages"] if found.get("topic") == "VecBCQ"]
    for record in records:
        count = int(record["properties"].get("INNER_NUM", "1"))
        base = int(record["properties"].get("INNER_BASE", record["queueOffset"]))
        for message in range(base, base + count):
            entry = queue.entry(message)
            assert entry == Entry(base, record["physicalOffset"], record["size"], record["tagsCode"], count)
    assert queue.entry(queue.max_offset) is None
    assert len(records) < queue.max_offset


# -- entry rules ---------------------------------------------------------------------------------------------


def test_a_repeat_and_a_lower_number_are_dropped(tmp_path):
    queue = make(tmp_path)
    fill(queue, 3)
    assert not queue.put(physical_offset=200, size=RECORD, tags_code=9, queue_offset=2)
    assert not queue.put(physical_offset=100, size=RECORD, tags_code=9, queue_offset=3)
    assert not queue.put(physical_offset=200, size=RECORD, tags_code=9, queue_offset=3)
    assert not queue.put(physical_offset=900, size=RECORD, tags_code=9, queue_offset=1)
    queue.flush()
    assert [entry.tags_code for entry in queue.entries(0, 10)] == [0, 1, 2]


def test_a_queue_that_begins_late_has_pre_blanks_before_its_first_entry(tmp_path):
    queue = make(tmp_path)
    fill(queue, 2, first=13)
    assert [path.name for path in tmp_path.iterdir()] == [f"{10 * 20:020d}"]
    data = next(tmp_path.iterdir()).read_bytes()
    blank = bytes.fromhex("00000000000000007fffffff0000000000000000")
    assert data[:60] == blank * 3
    assert (queue.min_offset, queue.max_offset) == (13, 15)
    assert numbers(queue) == [13, 14]
    again = reopened(tmp_path)
    again.correct_min_offset(0)
    assert (again.min_offset, again.max_offset, again.max_physical_offset) == (13, 15, 1500)


def test_entries_are_not_visible_before_a_flush(tmp_path):
    queue = make(tmp_path)
    queue.put(physical_offset=0, size=RECORD, tags_code=0, queue_offset=0)
    assert (queue.max_offset, queue.next_offset) == (0, 1)
    assert list(queue.entries(0, 10)) == []
    queue.flush()
    assert queue.max_offset == 1


def test_a_gap_is_filled_with_blanks_that_keep_the_numbering(tmp_path):
    queue = make(tmp_path)
    fill(queue, 2)
    fill(queue, 1, first=6)
    assert queue.max_offset == 7
    assert numbers(queue) == [0, 1, 6]
    assert [entry.size == BLANK_SIZE for entry in queue.entries(0, 10)] == [False] * 2 + [True] * 4 + [False]


def test_a_number_far_ahead_is_not_believed(tmp_path):
    queue = make(tmp_path)
    fill(queue, 2)
    queue.put(physical_offset=700, size=RECORD, tags_code=5, queue_offset=1 << 50)
    queue.flush()
    assert queue.max_offset == 3
    assert queue.entry(2) == Entry(2, 700, RECORD, 5)


@pytest.mark.parametrize(("held_from", "files_left"), [(4, 3), (5, 2), (9, 2), (10, 1), (99, 1)])
def test_files_without_a_record_in_the_log_are_deleted_but_never_the_last(held_from, files_left, tmp_path):
    queue = make(tmp_path)
    fill(queue, 12)
    assert queue.delete_before(held_from * RECORD) == 3 - files_left
    assert len(list(tmp_path.iterdir())) == files_left
    assert (queue.min_offset, queue.max_offset) == (min(held_from, 12), 12)


def test_blanks_at_the_end_of_a_queue_are_dropped_at_the_next_start(tmp_path):
    queue = make(tmp_path)
    fill(queue, 2)
    fill(queue, 1, first=6)
    path = tmp_path / f"{100:020d}"
    path.write_bytes(path.read_bytes()[:20].ljust(100, b"\0"))
    again = reopened(tmp_path)
    assert (again.max_offset, again.max_physical_offset) == (2, 200)
    fill(again, 5, first=2)
    assert numbers(reopened(tmp_path)) == list(range(7))


def test_file_length_is_rounded_up_to_whole_entries():
    assert [rounded_file_bytes(size) for size in (1, 20, 21, 400, 6_000_000)] == [20, 20, 40, 400, 6_000_000]


def test_a_batch_file_length_that_holds_no_whole_entries_is_refused(tmp_path):
    with pytest.raises(StoreError, match="multiple of 46"):
        BatchConsumeQueue(tmp_path, topic="T", queue_id=0, file_bytes=100, cache=FileCache())


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../x", "a\0b", "t" * 256])
def test_a_topic_that_cannot_be_a_folder_is_refused(topic, tmp_path):
    with pytest.raises(StoreError, match="topic"):
        ConsumeQueues(tmp_path).find_or_make(topic, 0)
    assert list(tmp_path.iterdir()) == []


def test_negative_queue_ids_are_refused(tmp_path):
    with pytest.raises(StoreError, match="negative"):
        ConsumeQueues(tmp_path).find_or_make("A", -1)


def test_queues_of_a_log_are_built_beyond_the_limit_of_puts_with_one_warning(tmp_path, capsys):
    queues = ConsumeQueues(tmp_path, ConsumeQueueSettings(queues_max=2))
    for queue_id in range(5):
        queues.find_or_make("A", queue_id)
    assert len(queues) == 5
    assert capsys.readouterr().out.count("more queues than this store allows puts to make") == 1


def test_many_queues_share_few_open_files(tmp_path):
    queues = ConsumeQueues(tmp_path, ConsumeQueueSettings(file_bytes=100, open_files_max=4))
    for step in range(3):
        for number in range(20):
            queue = queues.find_or_make(f"T{number}", 0)
            queue.put(physical_offset=step * 2000 + number * 100, size=100, tags_code=0, queue_offset=step)
            queue.flush()
    assert all(len(list(queue.entries(0, 9))) == 3 for queue in queues)
    assert len(queues._cache._opened) == 4
    queues.close()


def test_sync_work_covers_new_files_and_folders_and_passes_over_deleted_ones(tmp_path):
    queues = ConsumeQueues(tmp_path, ConsumeQueueSettings(file_bytes=100))
    fill(queues.find_or_make("A", 0), 7)
    fill(queues.find_or_make("B", 3), 1)
    work = queues.sync_work()
    assert set(work.left) >= {
        tmp_path / "consumequeue/A/0" / f"{100:020d}",
        tmp_path / "consumequeue/B/3",
        tmp_path / "consumequeue",
        tmp_path,
    }
    queues.delete("B", 3)
    work.run()
    assert queues.sync_work().left == ()
    assert sorted(path.name for path in (tmp_path / "consumequeue/A/0").iterdir()) == [
        f"{0:020d}",
        f"{100:020d}",
    ]
    assert not (tmp_path / "consumequeue/B").exists()
    queues.close()


# -- models --------------------------------------------------------------------------------------------------


@given(
    first=st.integers(0, 23),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 9)),
            st.tuples(st.just("repeat"), st.integers(0, 9)),
            st.tuples(st.just("cut"), st.integers(0, 60)),
            st.tuples(st.just("head"), st.integers(0, 60)),
            st.tuples(st.just("open"), st.just(0)),
        ),
        max_size=12,
    ),
)
@resources_closed()
def test_a_queue_behaves_as_a_list_of_record_numbers(tmp_path_factory, first, steps):
    folder = tmp_path_factory.mktemp("queue")
    queue = make(folder)
    kept = []
    held_from = 0
    next_number = first
    for what, value in steps:
        if what == "put":
            fill(queue, value, first=next_number)
            kept += range(next_number, next_number + value)
            next_number += value
        elif what == "repeat" and kept:
            for number in range(max(kept[0], next_number - value), next_number):
                assert not queue.put(
                    physical_offset=number * RECORD, size=RECORD, tags_code=0, queue_offset=number
                )
        elif what == "cut":
            # The log ends before this record now; the next one gets its number.
            value = max(value, held_from + 1)  # noqa: PLW2901
            queue.truncate_dirty(value * RECORD)
            kept = [number for number in kept if number < value]
            next_number = kept[-1] + 1 if kept else max(value, held_from)
        elif what == "head":
            held_from = max(held_from, min(value, kept[-1] + 1 if kept else 0))
            queue.delete_before(held_from * RECORD)
        elif what == "open":
            queue = reopened(folder)
            queue.correct_min_offset(held_from * RECORD)
        seen = [number for number in kept if number >= held_from]
        queue.correct_min_offset(held_from * RECORD)
        assert numbers(queue) == seen
        if kept:
            assert queue.max_offset == queue.next_offset == kept[-1] + 1
            assert queue.min_offset == (seen[0] if seen else queue.max_offset)
            assert queue.max_physical_offset == (kept[-1] + 1) * RECORD
            assert queue.entry(kept[-1] + 1) is None
        # All files but the last have a record that the log holds.
        names = sorted(int(path.name) // 20 for path in folder.iterdir())
        assert names == list(range(names[0], names[-1] + 1, PER_FILE)) if names else not kept


@given(entries=st.lists(st.tuples(st.integers(-5, 1 << 40), st.integers(-3, 400)), min_size=1, max_size=40))
def test_leading_valid_stops_at_the_first_bad_offset_or_size(entries):
    data = b"".join(
        offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True) + bytes(8)
        for offset, size in entries
    )
    bad = next((i for i, (offset, size) in enumerate(entries) if offset < 0 or size <= 0), len(entries))
    assert leading_valid(data, 20) == bad


@given(
    bases=st.lists(st.integers(1, 6), min_size=1, max_size=60),
    cut=st.integers(0, 61),
    head=st.integers(0, 61),
)
@resources_closed()
def test_a_batch_queue_behaves_as_a_list_of_spans(tmp_path_factory, bases, cut, head):
    folder = tmp_path_factory.mktemp("batch")

    def opened():
        queue = BatchConsumeQueue(
            folder, topic="T", queue_id=0, file_bytes=46 * 4, cache=close_after_test(FileCache())
        )
        if any(folder.iterdir()):
            queue.recover()
        return queue

    queue = opened()
    spans = []
    base = 0
    for number, count in enumerate(bases):
        assert queue.put(
            physical_offset=number * RECORD,
            size=RECORD,
            tags_code=0,
            store_timestamp_ms=1,
            base_offset=base,
            messages=count,
        )
        spans.append((base, count))
        base += count
    queue.flush()
    queue = opened()
    queue.truncate_dirty(cut * RECORD)
    spans = spans[:cut]
    end = spans[-1][0] + spans[-1][1] if spans else 0
    head = min(head, len(spans))
    queue.delete_before(head * RECORD)
    first = spans[head][0] if head < len(spans) else end
    assert (queue.min_offset, queue.max_offset) == (first, end)
    for number, (start, count) in enumerate(spans):
        for message in range(start, start + count):
            entry = queue.entry(message)
            assert entry == (Entry(start, number * RECORD, RECORD, 0, count) if number >= head else None)


# -- damage --------------------------------------------------------------------------------------------------


def test_entries_after_the_first_invalid_one_are_zeroed_and_never_come_back(tmp_path):
    queue = make(tmp_path)
    fill(queue, 14)
    path = tmp_path / f"{100:020d}"
    data = bytearray(path.read_bytes())
    data[40:60] = bytes(20)
    path.write_bytes(data)
    again = reopened(tmp_path)
    assert numbers(again) == list(range(7))
    assert path.read_bytes() == data[:40] + bytes(60)
    assert not (tmp_path / f"{200:020d}").exists()
    fill(again, 2, first=7)
    assert numbers(reopened(tmp_path)) == list(range(9))


@pytest.mark.parametrize("lost", [range(7, 10), range(7, 15), range(14, 17)])
def test_what_a_power_cut_took_before_the_last_three_files_is_found(tmp_path, lost):
    """The kernel may write new files before the rest of an older one."""
    fill(make(tmp_path), 29)
    for number in lost:
        with (tmp_path / f"{number // 5 * 100:020d}").open("r+b") as file:
            file.seek(number % 5 * 20)
            file.write(bytes(20))
    queue = make(tmp_path)
    queue.recover(synced_offset=lost[0] * RECORD)
    assert numbers(queue) == list(range(lost[0]))
    fill(queue, 29 - lost[0], first=lost[0])
    assert numbers(reopened(tmp_path)) == list(range(29))


@given(noise=st.binary(min_size=1, max_size=120), at=st.integers(0, 280), file=st.integers(0, 2))
@resources_closed()
def test_damaged_files_open_and_read_without_a_crash(tmp_path_factory, noise, at, file):
    folder = tmp_path_factory.mktemp("damage")
    fill(make(folder), 14)
    path = folder / f"{file * 100:020d}"
    data = bytearray(path.read_bytes())
    part = noise[: max(0, len(data) - at)]
    data[at : at + len(part)] = part
    path.write_bytes(data)
    queue = reopened(folder)
    queue.truncate_dirty(900)
    queue.correct_min_offset(300)
    assert 0 <= queue.min_offset <= queue.max_offset <= 15
    assert len(list(queue.entries(0, 100))) == queue.max_offset - queue.min_offset
    queue.delete_before(800)
    assert 0 <= queue.min_offset <= queue.max_offset


def test_a_file_of_another_length_and_a_missing_one_are_named(tmp_path):
    fill(make(tmp_path), 14)
    (tmp_path / f"{100:020d}").unlink()
    with pytest.raises(StoreError, match="starts at 200, expected was 100"):
        reopened(tmp_path)
    (tmp_path / f"{100:020d}").write_bytes(bytes(99))
    with pytest.raises(
        StoreError, match="has 99 bytes, the configuration says 100; mappedFileSizeConsumeQueue"
    ):
        reopened(tmp_path)


def test_a_file_cut_by_another_process_is_an_error_with_its_name(tmp_path):
    queue = make(tmp_path)
    fill(queue, 3)
    os.truncate(tmp_path / f"{0:020d}", 30)
    with pytest.raises(StoreError, match="ends at byte 30"):
        list(queue.entries(0, 3))


def test_destroyed_queues_leave_no_folder(tmp_path):
    root = copy_store("store-5.3.3", tmp_path)
    queues = close_after_test(ConsumeQueues(root, RECORDED_QUEUES))
    queues.recover()
    queues.destroy()
    assert not (root / "consumequeue").exists()
    assert not (root / "batchconsumequeue").exists()
    assert (len(queues), queues.max_physical_offset) == (0, -1)
    assert (root / "commitlog").exists()


def test_stale_entries_are_zeroed_also_on_a_file_system_without_holes(tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(22, "Invalid argument")

    queue = make(tmp_path)
    fill(queue, 5)
    path = tmp_path / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[40:60] = bytes(20)
    path.write_bytes(data)
    monkeypatch.setattr(os, "lseek", refuse)
    assert numbers(reopened(tmp_path)) == [0, 1]
    assert path.read_bytes() == data[:40] + bytes(60)
    assert numbers(reopened(tmp_path)) == [0, 1]

"""Recovery: real stores, torn tails, damage, and records that must not be cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.store.support import (
    FILE_BYTES,
    STORES,
    copy_store,
    expected,
    log_bytes,
    message,
    open_log,
    open_store,
)
from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint


@pytest.mark.parametrize("name", STORES)
def test_real_stores_end_where_rocketmq_says(tmp_path, name):
    said = expected(name)
    # Without a checkpoint every record is checked.
    root = copy_store(name, tmp_path)
    log, recovered = open_log(root / "commitlog", clean_exit=False)
    assert log.max_offset == said["maxPhyOffset"]
    assert recovered.records == sum(not found.get("blank", False) for found in said["messages"])
    assert recovered.cut_bytes == 0
    assert log.appended.offset == log.flushed.offset == recovered.end_offset
    log.close()
    store = open_store(root)
    assert store.commit_log.max_offset == said["maxPhyOffset"]
    used = {queue: found["maxOffset"] for queue, found in said["queues"].items() if found["maxOffset"]}
    counted = {
        f"{topic}@{queue}": next_ for (topic, queue), next_ in store.commit_log.queue_offsets.items() if next_
    }
    assert counted == used
    store.close()


def filled(tmp_path, count=60, body_bytes=3000):
    log, _ = open_log(tmp_path)
    results = [
        log.append(message(bytes([number]) * body_bytes, queue_id=number % 4)) for number in range(count)
    ]
    return log, results


def test_a_log_opens_with_the_offsets_it_was_closed_with(tmp_path):
    log, _ = filled(tmp_path)
    # Files of other names are left alone.
    other = tmp_path / "00000000000000000000.bak"
    other.write_text("mine")
    again, recovered = open_log(tmp_path, clean_exit=False)
    assert other.read_text() == "mine"
    assert again.max_offset == log.max_offset
    assert again.last_store_timestamp_ms == log.last_store_timestamp_ms
    assert (recovered.records, recovered.cut_bytes) == (60, 0)
    assert log_bytes(again) == log_bytes(log)


# Up to the topic's length field: beyond it, lengths and CRC are all there and only zeros stand for text. Such
# bytes are never left by an append of ours, which writes a record's first eight bytes last.
@given(cut=st.integers(0, 388))
@resources_closed()
def test_a_torn_last_record_is_cut_and_the_rest_is_zeroed(tmp_path_factory, cut):
    tmp_path = tmp_path_factory.mktemp("torn")
    log, _ = open_log(tmp_path)
    results = [log.append(message(b"x" * 300, queue_id=number)) for number in range(3)]
    last = results[-1]
    kept = min(cut, last.size - 1)
    log.files[0].view[last.physical_offset + kept : last.end_offset] = bytes(last.size - kept)
    again, recovered = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == last.physical_offset
    assert recovered.records == 2
    assert not any(again.files[0].view[last.physical_offset :])


@pytest.mark.parametrize("at", [4, 28, 88, 300])
@pytest.mark.parametrize("clean_exit", [True, False])
def test_a_damaged_last_record_is_cut_after_any_stop(tmp_path, at, clean_exit):
    log, results = filled(tmp_path)
    damaged = results[-1]
    log.files[-1].view[damaged.physical_offset % FILE_BYTES + at] ^= 1
    again, recovered = open_log(tmp_path, clean_exit=clean_exit)
    assert again.max_offset == damaged.physical_offset
    assert recovered.cut_bytes > 0
    assert recovered.cut_reason
    third, recovered_again = open_log(tmp_path)
    assert (third.max_offset, recovered_again.cut_bytes) == (damaged.physical_offset, 0)


def test_queue_offsets_after_a_cut_are_those_of_the_log_that_is_left(tmp_path):
    store = open_store(tmp_path)
    results = [store.commit_log.append(message(b"x" * 3000, queue_id=number % 4)) for number in range(60)]
    store.commit_log.files[-1].view[results[-1].physical_offset % FILE_BYTES + 100] ^= 1
    store.abort.mark_failed()
    store.close()
    again = open_store(tmp_path)
    assert again.commit_log.append(message(queue_id=59 % 4)).queue_offset == results[-1].queue_offset
    again.close()


def test_a_preallocated_file_is_removed_at_the_next_start(tmp_path):
    filled(tmp_path)
    (tmp_path / f"{3 * FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    log, recovered = open_log(tmp_path, clean_exit=False)
    assert recovered.cut_bytes == 0
    assert len(list(tmp_path.iterdir())) == len(log.files) == 3


def test_a_full_last_file_ends_the_log_at_its_end(tmp_path):
    log, _ = filled(tmp_path, count=22)
    assert log.max_offset > FILE_BYTES
    log.files[-1].remove()
    again, _ = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == FILE_BYTES
    assert again.append(message()).physical_offset == FILE_BYTES


@pytest.mark.parametrize("clean_exit", [True, False])
@pytest.mark.parametrize("number", [5, 50])
def test_damage_with_valid_records_after_it_is_refused_and_not_cut(tmp_path, number, clean_exit):
    log, results = filled(tmp_path)
    damaged = results[number]
    file = log.files[damaged.physical_offset // FILE_BYTES]
    if clean_exit:
        # A clean stop's scan begins at the last file: make it the damaged one.
        for later in log.files[damaged.physical_offset // FILE_BYTES + 1 :]:
            later.remove()
    file.view[damaged.physical_offset % FILE_BYTES + 20] ^= 0xFF
    file.view[damaged.physical_offset % FILE_BYTES] ^= 0xFF
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    # Some records were flushed after the damaged one, and every file is young enough to be checked.
    flushed = Checkpoint(physic_msg_timestamp_ms=results[-1].store_timestamp_ms + 1)
    with pytest.raises(StoreError, match=str(damaged.physical_offset)) as raised:
        open_log(tmp_path, clean_exit=clean_exit, checkpoint=flushed)
    assert raised.value.offset == damaged.physical_offset
    assert f"valid ones follow at {results[number + 1].physical_offset}" in str(raised.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_records_from_before_an_earlier_cut_do_not_refuse_a_start(tmp_path):
    log, results = filled(tmp_path, count=20)
    # RocketMQ cuts without zeroing: its next write ends in the middle of a record that was cut.
    cut_at, stale = results[10].physical_offset, bytes(log.files[0].view[: log.max_offset])
    log.files[0].view[cut_at : log.max_offset] = bytes(log.max_offset - cut_at)
    again, _ = open_log(tmp_path, clean_exit=False)
    again.last_store_timestamp_ms = results[-1].store_timestamp_ms + 2
    again.append(message(b"new"))
    again.files[0].view[again.max_offset : len(stale)] = stale[again.max_offset :]
    reopened, recovered = open_log(tmp_path, clean_exit=True)
    assert reopened.max_offset == again.max_offset
    assert recovered.cut_bytes > 0


def test_after_a_crash_records_that_no_flush_covered_are_cut_even_in_an_earlier_file(tmp_path):
    log, results = filled(tmp_path)
    damaged = results[5]
    log.files[0].view[damaged.physical_offset] ^= 0xFF
    again, recovered = open_log(tmp_path, clean_exit=False, checkpoint=Checkpoint())
    assert again.max_offset == damaged.physical_offset
    assert recovered.cut_bytes > 2 * FILE_BYTES - damaged.physical_offset
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"{0:020d}"]


def test_an_empty_last_file_from_an_unfinished_start_is_removed(tmp_path):
    log, _ = filled(tmp_path)
    (tmp_path / f"{3 * FILE_BYTES:020d}").touch()
    (tmp_path / "notes.txt").write_text("mine")
    again, _ = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == log.max_offset
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_files_that_are_missing_or_of_another_length_are_named(tmp_path):
    log, _ = filled(tmp_path)
    with pytest.raises(StoreError, match="has 65536 bytes, the configuration says 131072"):
        open_log(tmp_path, file_bytes=131072)
    log.files[1].path.unlink()
    with pytest.raises(StoreError, match="the file before it ends at 65536"):
        open_log(tmp_path)
    (tmp_path / "checkpoint").touch()
    assert Checkpoint.load(tmp_path / "checkpoint") == Checkpoint()
    (tmp_path / "checkpoint").write_bytes(b"short")
    with pytest.raises(StoreError, match="5 bytes"):
        Checkpoint.load(tmp_path / "checkpoint")


def test_a_blank_that_does_not_reach_the_end_of_its_file_is_damage(tmp_path):
    log, results = filled(tmp_path, count=22)
    blank_at = next(
        at for at in range(FILE_BYTES) if bytes(log.files[0].view[at + 4 : at + 8]) == b"\xcb\xd4\x31\x94"
    )
    log.files[0].view[blank_at + 3] ^= 1
    flushed = Checkpoint(physic_msg_timestamp_ms=results[-1].store_timestamp_ms + 1)
    with pytest.raises(StoreError, match=f"offset {blank_at}"):
        open_log(tmp_path, clean_exit=False, checkpoint=flushed)


# -- the store around the log --------------------------------------------------------------------------------


def test_a_second_user_of_the_store_is_refused_by_the_lock(tmp_path):
    import subprocess
    import sys

    store = open_store(tmp_path)
    script = (
        "import sys; from pathlib import Path; from tests.store.support import open_store\n"
        "from trioha.errors import StoreError\n"
        "try: open_store(Path(sys.argv[1]))\n"
        "except StoreError as error: print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "locked by another process" in found.stdout
    store.close()
    open_store(tmp_path).close()


def test_a_clean_close_leaves_no_abort_and_a_checkpoint_of_the_last_message(tmp_path):
    store = open_store(tmp_path)
    assert (tmp_path / "abort").exists()
    assert (tmp_path / "lock").read_bytes() == b"lock"
    stored = store.commit_log.append(message())
    store.close()
    assert not (tmp_path / "abort").exists()
    checkpoint = Checkpoint.load(tmp_path / "checkpoint")
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    assert checkpoint == Checkpoint(
        physic_msg_timestamp_ms=stored.store_timestamp_ms,
        logics_msg_timestamp_ms=stored.store_timestamp_ms,
        logics_physical_offset=stored.end_offset,
    )


@pytest.mark.parametrize("name", STORES)
def test_the_checkpoint_of_a_real_store_is_read_as_rocketmq_does(name, tmp_path):
    said = expected(name)["checkpointAfterShutdown"]
    found = Checkpoint.load(copy_store(name, tmp_path) / "checkpoint")
    assert found.physic_msg_timestamp_ms == said["physicMsgTimestamp"]
    assert found.logics_msg_timestamp_ms == said["logicsMsgTimestamp"]
    assert found.index_msg_timestamp_ms == said["indexMsgTimestamp"]


def test_a_close_that_cannot_complete_the_queues_leaves_abort(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.store.dispatch_to_end.CLOSE_DISPATCH_S", 0.0)
    monkeypatch.setattr("trioha.store.dispatch_to_end.DISPATCH_RECORDS", 1)
    store = open_store(tmp_path)
    for _ in range(3):
        store.commit_log.append(message())
    store.close()
    assert (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert again.reads.max_offset("Orders", 0) == 3
    again.dispatcher.dispatch(again.commit_log.max_offset)
    again.close()
    assert not (tmp_path / "abort").exists()


def test_a_checkpoint_keeps_the_confirm_offset_and_is_without_one_where_none_is_known(tmp_path):
    store = open_store(tmp_path)
    assert store.checkpoints.current.confirm_physical_offset == 0
    store.commit_log.append(message())
    store.checkpoints.follow_confirm_offset(lambda: 77)
    store.close()
    assert Checkpoint.load(tmp_path / "checkpoint").confirm_physical_offset == 77
    store = open_store(tmp_path)
    assert store.checkpoints.current.confirm_physical_offset == 77
    # A slave, or a master that does not compute it: what was true once says nothing of later records.
    store.close()
    assert Checkpoint.load(tmp_path / "checkpoint").confirm_physical_offset == 0

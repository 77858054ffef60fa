"""The checkpoint's logicsPhysicalOffset, by which RocketMQ 5.5 builds queues again after an unclean stop."""

import random
import shutil
import struct
from contextlib import contextmanager

import pytest
from attrs import evolve

from tests.descriptors import close_after_test, resources_closed
from tests.store.crashes import CrashingDisk, PowerCutDisk
from tests.store.support import FILE_BYTES, copy_store, cut_store, message, on_disk, open_store, sync_queues
from trioha.store.checkpoint import Checkpoint
from trioha.store.dispatch_start import start_position
from trioha.store.index_service import IndexService
from trioha.store.record_layout import MAGICS, check_record

LOG_FILE_BYTES = 4096
NOW_MS = 1_700_000_000_000
BLANK_MAGIC = b"\xcb\xd4\x31\x94"


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    """All records are of one millisecond."""
    monkeypatch.setattr("time.time_ns", lambda: NOW_MS * 1_000_000)


def small_store(root):
    return open_store(root, file_bytes=LOG_FILE_BYTES)


def put(store, count, *, body_bytes=300, is_keyed=False):
    """Store messages in two queues; returns where they start."""
    log = store.commit_log
    starts = []
    for number in range(count):
        properties = f"KEYS\x01{log.max_offset}".encode() if is_keyed else b""
        result = log.append(message(bytes(body_bytes), queue_id=number % 2, properties=properties))
        assert result.physical_offset >= 0, result
        starts.append(result.physical_offset)
    return starts


def flush(store, end_offset=None):
    """Put the log on disk, all of it or up to an offset, as the flush task does it."""
    log = store.commit_log
    end = log.max_offset if end_offset is None else end_offset
    store.syncs.log_sync(log.flushed.offset, end, store_timestamp_ms=log.last_store_timestamp_ms)()
    log.flushed.advance(end)


def dispatch(store, records_max=1_000_000):
    store.dispatcher.dispatch(store.commit_log.max_offset, records_max=records_max)


# -- the field -----------------------------------------------------------------------------------------------


def test_the_offset_is_at_byte_40_and_is_read_from_there(tmp_path):
    data = Checkpoint(confirm_physical_offset=5, logics_physical_offset=0x0102030405060708).encode()
    assert data[32:48] == struct.pack(">2q", 5, 0x0102030405060708)
    assert data[48:] == bytes(4048)
    (tmp_path / "checkpoint").write_bytes(data)
    assert Checkpoint.load(tmp_path / "checkpoint").logics_physical_offset == 0x0102030405060708


# -- raised --------------------------------------------------------------------------------------------------


def test_a_sync_of_queues_writes_where_dispatch_was_when_it_began(tmp_path):
    store = open_store(tmp_path)
    put(store, 5)
    dispatch(store)
    flush(store)
    position = store.dispatcher.position
    work = store.syncs.queue_sync()
    assert work is not None
    put(store, 5)
    dispatch(store)
    flush(store)
    work()
    assert on_disk(store).logics_physical_offset == position < store.dispatcher.position
    assert sync_queues(store).logics_physical_offset == store.dispatcher.position
    assert store.syncs.queue_sync() is None


def test_no_record_of_which_the_log_is_not_on_disk_is_claimed_and_the_offset_is_a_records_start(tmp_path):
    store = open_store(tmp_path)
    starts = put(store, 60, body_bytes=3000)
    # A slave's flush may end inside of a record.
    flushed_offset = starts[40] + 1000
    flush(store, flushed_offset)
    dispatch(store)
    assert store.dispatcher.position == store.commit_log.max_offset
    offset = sync_queues(store).logics_physical_offset
    assert offset in starts
    assert flushed_offset - 20_000 < offset <= flushed_offset
    assert store.syncs.queue_sync() is None
    # The queues are on disk: once the log is, too, nothing has to be written to them for the rest to count.
    flush(store)
    assert on_disk(store).logics_physical_offset == offset
    assert sync_queues(store).logics_physical_offset == store.commit_log.max_offset
    assert store.syncs.queue_sync() is None


def test_while_nothing_of_the_log_is_on_disk_no_time_is_claimed_either(tmp_path):
    store = open_store(tmp_path)
    put(store, 5)
    dispatch(store)
    found = sync_queues(store)
    assert (found.logics_physical_offset, found.logics_msg_timestamp_ms) == (0, 0)
    flush(store)
    found = sync_queues(store)
    assert found.logics_physical_offset == store.commit_log.max_offset
    assert found.logics_msg_timestamp_ms == NOW_MS


def test_a_clean_stop_leaves_the_logs_end(tmp_path):
    store = open_store(tmp_path)
    put(store, 5)
    end_offset = store.commit_log.max_offset
    store.close()
    assert Checkpoint.load(tmp_path / "checkpoint").logics_physical_offset == end_offset


# -- lowered -------------------------------------------------------------------------------------------------


def synced_store(root, *, is_keyed=False):
    """A store of several log files, all on disk, and where its records start."""
    store = small_store(root)
    starts = put(store, 60, is_keyed=is_keyed)
    dispatch(store)
    flush(store)
    assert sync_queues(store).logics_physical_offset == store.commit_log.max_offset
    assert len(store.commit_log.files) >= 5
    return store, starts


@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_cut_lowers_the_offset_before_it_deletes_what_is_built_again(tmp_path, monkeypatch, is_keyed):
    store, starts = synced_store(tmp_path, is_keyed=is_keyed)
    seen = []
    cut = IndexService.cut

    def look(index, plan):
        seen.append(on_disk(store))
        cut(index, plan)

    monkeypatch.setattr(IndexService, "cut", look)
    cut_store(store, starts[30])
    # The index file that had keys of what was cut is built again from its first record on.
    position = 0 if is_keyed else starts[30]
    assert store.dispatcher.position == position
    assert [checkpoint.logics_physical_offset for checkpoint in seen] == [position]
    assert (seen[0].logics_msg_timestamp_ms > 0) == (position > 0)
    dispatch(store)
    store.puts.enable()
    put(store, 1)
    dispatch(store)
    flush(store)
    assert sync_queues(store).logics_physical_offset == store.commit_log.max_offset > starts[30]


def test_a_cut_does_not_claim_what_was_dispatched_and_not_synced_before_it(tmp_path):
    store, _ = synced_store(tmp_path)
    synced_offset = on_disk(store).logics_physical_offset
    starts = put(store, 20)
    dispatch(store)
    flush(store)
    cut_store(store, starts[10])
    assert on_disk(store).logics_physical_offset <= synced_offset < starts[10]


# -- starts --------------------------------------------------------------------------------------------------


def test_an_unclean_start_dispatches_from_the_offsets_file_on_though_the_times_say_later(tmp_path):
    store, starts = synced_store(tmp_path)
    log = store.commit_log
    times = Checkpoint(physic_msg_timestamp_ms=NOW_MS + 10_000, logics_msg_timestamp_ms=NOW_MS + 10_000)

    def start(offset):
        checkpoint = evolve(times, logics_physical_offset=offset)
        return start_position(log, store.queues, clean_exit=False, checkpoint=checkpoint)

    last = log.files[-1].start_offset
    assert start(0) == last
    for offset in (*starts[1:], log.max_offset):
        assert start(offset) == offset - offset % LOG_FILE_BYTES
    assert start(log.max_offset + 100 * LOG_FILE_BYTES) == last
    # Programs that do not know the field have left an offset before the log's start behind.
    log.delete_first_file()
    assert start(starts[1]) == last
    assert start(LOG_FILE_BYTES) == LOG_FILE_BYTES


@pytest.mark.parametrize("stale", [0, 1000])
def test_a_start_after_a_clean_stop_of_an_older_version_claims_all_and_no_less(tmp_path, stale, monkeypatch):
    """Such a version leaves the field as it was: 0, or an offset from before its life."""
    root = copy_store("store-5.3.3", tmp_path)
    before = Checkpoint.load(root / "checkpoint")
    assert before.logics_physical_offset == 0
    (root / "checkpoint").write_bytes(evolve(before, logics_physical_offset=stale).encode())
    # A time that leads the clock is not claimed.
    later_ns = (before.logics_msg_timestamp_ms + 1) * 1_000_000
    monkeypatch.setattr("time.time_ns", lambda: later_ns)
    store = open_store(root)
    found = on_disk(store)
    # Of the last record that the index has it may lack keys, as far as a start knows.
    indexed = store.index.end_physical_offset
    assert found == evolve(before, logics_physical_offset=indexed)
    assert FILE_BYTES < indexed < store.queues.max_physical_offset
    assert indexed + len(store.reads.record_at(indexed)) == store.commit_log.max_offset


def test_a_start_that_builds_queues_from_the_first_record_on_claims_neither_offset_nor_time(tmp_path):
    store, _ = synced_store(tmp_path)
    store.close()
    before = Checkpoint.load(tmp_path / "checkpoint")
    assert before.logics_physical_offset > 4 * LOG_FILE_BYTES
    shutil.rmtree(tmp_path / "consumequeue/Orders/0")
    again = small_store(tmp_path)
    found = on_disk(again)
    assert (found.logics_physical_offset, found.logics_msg_timestamp_ms) == (0, 0)


# -- power cuts ----------------------------------------------------------------------------------------------


def newer_start(image, checkpoint):
    """Where 5.5 begins after an unclean stop; without its limit of ten files."""
    for file in sorted((image / "commitlog").iterdir(), reverse=True):
        data = file.read_bytes()
        if len(data) < 64 or int.from_bytes(data[4:8]) not in MAGICS:
            continue
        if checkpoint.logics_physical_offset > 0:
            is_match = int(file.name) <= checkpoint.logics_physical_offset
        else:
            is_match = int.from_bytes(data[56:64]) <= checkpoint.logics_msg_timestamp_ms
        if is_match:
            return int(file.name)
    return 0


def log_of(image):
    files = sorted((image / "commitlog").iterdir())
    assert [int(file.name) for file in files] == [n * LOG_FILE_BYTES for n in range(len(files))]
    return b"".join(file.read_bytes().ljust(LOG_FILE_BYTES, b"\0") for file in files)


def places_in(log):
    """Where the valid records of a log start, up to the first one that is not; and these with the blanks that
    end its files, and its end: where it can be read from."""
    records, places, at = set(), {0}, 0
    while at < len(log):
        end = at - at % LOG_FILE_BYTES + LOG_FILE_BYTES
        size = check_record(memoryview(log), at, end, at)
        if size > 0:
            records.add(at)
            at += size
        elif log[at + 4 : at + 8] == BLANK_MAGIC:
            at = end
        else:
            break
        places.add(at)
    return records, places


def queued(image):
    """Offsets of the records that have an entry."""
    found = set()
    for file in (image / "consumequeue").rglob("0*"):
        if file.is_file():
            found |= {offset for offset, size, _ in struct.iter_unpack(">qiq", file.read_bytes()) if size}
    return found


@contextmanager
def power_cut(root):
    disk = close_after_test(PowerCutDisk(root))
    with CrashingDisk(on_sync=disk.synced).in_use():
        yield disk


def test_a_power_cut_after_a_kill_takes_no_entry_that_the_killed_process_wrote(tmp_path):
    root = tmp_path / "store"
    root.mkdir()
    with power_cut(root) as disk:
        with resources_closed():
            killed = small_store(root)
            starts = put(killed, 60)
            flush(killed)
            dispatch(killed)
        with resources_closed():
            store = small_store(root)
            dispatch(store)
            assert sync_queues(store).logics_physical_offset == store.commit_log.max_offset
        image = disk.image(tmp_path / "image", is_kept=lambda: False)
    assert queued(image) == set(starts)


def live(store, chance):
    """Use a store, with syncs at any time."""
    for _ in range(chance.randrange(20)):
        step = chance.choice(["put", "dispatch", "dispatch", "flush", "sync", "sync", "cut"])
        if step == "put":
            put(store, chance.randrange(1, 30), is_keyed=chance.random() < 0.05)
        elif step == "dispatch":
            dispatch(store, chance.randrange(1, 60))
        elif step == "flush":
            flush(store)
        elif step == "sync":
            if (work := store.syncs.queue_sync()) is not None:
                work()
        elif chance.random() < 0.4 and not store.commit_log.is_empty:
            log = store.commit_log
            cut_store(store, log.starts.first_from(chance.randrange(log.max_offset)))
            dispatch(store)
            store.puts.enable()


def test_after_any_power_cuts_the_records_before_the_start_of_either_kind_are_whole_and_in_their_queues(
    tmp_path,
):
    """Only what was synced is left, and all files have records of one millisecond."""
    chance = random.Random(5)
    claims = []
    for number in range(15):
        root = tmp_path / f"{number}"
        root.mkdir()
        for life in range(4):
            with resources_closed(), power_cut(root) as disk:
                live(small_store(root), chance)
            image = disk.image(tmp_path / "image", is_kept=lambda: False)
            shutil.rmtree(root)
            image.rename(root)
            (root / "abort").touch()
            checkpoint = Checkpoint.load(root / "checkpoint")
            records, places = places_in(log_of(root))
            assert checkpoint.logics_physical_offset in places
            start = newer_start(root, checkpoint)
            assert {offset for offset in records if offset < start} <= queued(root), (number, life)
            claims.append(start)
        with resources_closed():
            small_store(root).close()
        assert queued(root) == places_in(log_of(root))[0]
    assert sum(start > 0 for start in claims) > 10
    assert sum(start == 0 for start in claims) > 5

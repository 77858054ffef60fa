"""Retention and a full disk; tests replace the port to the disk."""

import errno
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
import trio

from tests.clocks import Clock
from tests.ha.support import connected, make_master, settled
from tests.store.support import FILE_BYTES, log_bytes, message, open_log, open_store
from trioha.errors import StoreError
from trioha.store.epochs import EpochLog
from trioha.store.put_status import PutStatus
from trioha.store.retention import Retention, RetentionClock, RetentionSettings

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NIGHT = NOW.replace(hour=4)


@pytest.fixture
def log(tmp_path):
    """Six files, each an hour younger than the one before; the last was written now."""
    log, _ = open_log(tmp_path)
    while len(log.files) < 6:
        log.append(message(bytes(20_000)))
    for number, file in enumerate(log.files):
        written = (NOW - timedelta(hours=5 - number)).timestamp()
        os.utime(file.path, (written, written))
    return log


def retention(log, *, hours=3, **options):
    settings = RetentionSettings(file_reserved_s=hours * 3600.0)
    return Retention(log, settings, **options)


@pytest.mark.parametrize(
    ("ratio", "now", "left"),
    [
        (0.50, NOW, 6),
        (0.75, NOW, 6),
        (0.76, NOW, 3),
        (0.50, NIGHT + timedelta(days=1), 1),
        (0.86, NOW, 1),
    ],
)
def test_old_files_are_deleted_at_their_hour_or_when_the_disk_fills_up(log, ratio, now, left):
    first = log.files[0].path
    elapsed = Clock()
    clock = RetentionClock(wall_s=lambda: NOW.timestamp() + elapsed.now, elapsed_s=elapsed)
    cleaner = retention(log, clock=clock)
    elapsed.now = (now - NOW).total_seconds()
    cleaner.apply(ratio, now=now)
    assert len(log.files) == left
    assert log.min_offset == (6 - left) * FILE_BYTES
    assert first.exists() is (left == 6)
    assert len(log.read(log.min_offset, 10)) == 10
    assert len(log.read(0, 10)) == (10 if left == 6 else 0)


def clock_ahead(ahead_s):
    """The clock of a node that starts at `NOW`, and shows another time."""
    return RetentionClock(wall_s=lambda: NOW.timestamp() + ahead_s, elapsed_s=lambda: 77.0)


YEARS_S = 10 * 365 * 86400.0


@pytest.mark.parametrize("ahead_s", [YEARS_S, 90 * 60.0])
def test_a_clock_that_is_wrong_at_the_start_makes_no_file_old_and_says_so(log, ahead_s, capsys):
    settings = RetentionSettings(file_reserved_s=5.5 * 3600, delete_when=frozenset(range(24)))
    clock = clock_ahead(ahead_s)
    cleaner = Retention(log, settings, clock=clock)
    for _ in range(3):
        cleaner.apply(0.5, now=clock.now())
    assert len(log.files) == 6
    assert f"the clock is {ahead_s / 3600:,.1f} h beyond the log's last write" in cleaner.doubt
    assert capsys.readouterr().out.count("log files are not deleted") == 1
    # A disk that is too full needs no age.
    cleaner.apply(0.86, now=clock.now())
    assert len(log.files) == 1


def test_a_write_by_a_wrong_clock_is_no_witness_for_it_at_the_next_start(log):
    ahead_s = NOW.timestamp() + YEARS_S
    os.utime(log.files[-1].path, (ahead_s, ahead_s))
    settings = RetentionSettings(file_reserved_s=5.5 * 3600, delete_when=frozenset(range(24)))
    clock = clock_ahead(YEARS_S + 10)
    cleaner = Retention(log, settings, clock=clock)
    cleaner.apply(0.5, now=clock.now())
    assert (len(log.files), cleaner.doubt != "") == (6, True)


def test_files_become_old_while_the_node_runs_after_it_was_down_for_long(log):
    elapsed = Clock()
    clock = RetentionClock(
        wall_s=lambda: NOW.timestamp() + 30 * 86400 + elapsed.now, elapsed_s=lambda: elapsed.now
    )
    settings = RetentionSettings(file_reserved_s=5.5 * 3600, delete_when=frozenset(range(24)))
    cleaner = Retention(log, settings, clock=clock)
    for elapsed.now, left in ((0, 6), (1800 + 1, 5), (5400 + 1, 4), (86_400, 1)):
        cleaner.apply(0.5, now=clock.now())
        assert len(log.files) == left
    assert cleaner.doubt == ""


def test_forced_cleaning_can_be_switched_off(log):
    settings = RetentionSettings(file_reserved_s=3600.0 * 100, clean_forcibly=False)
    Retention(log, settings).apply(0.89, now=NOW)
    assert len(log.files) == 6


def test_files_that_a_connected_replica_needs_stay_unless_the_disk_is_too_full(log):
    cleaner = retention(log, hours=1, retention_floor=lambda: FILE_BYTES + 5)
    cleaner.apply(0.80, now=NOW)
    assert log.min_offset == FILE_BYTES
    cleaner.apply(0.86, now=NOW)
    assert log.min_offset == 5 * FILE_BYTES


@pytest.mark.parametrize(
    ("archived", "left"), [(0, 6), (FILE_BYTES - 1, 6), (FILE_BYTES, 5), (9 * FILE_BYTES, 3)]
)
def test_files_wait_until_they_are_archived(log, archived, left):
    settings = RetentionSettings(file_reserved_s=3 * 3600.0, archive_before_delete=True)
    cleaner = Retention(log, settings, archived_offset=lambda: archived)
    cleaner.apply(0.84, now=NOW)
    assert (len(log.files), cleaner.files_deleted_unarchived) == (left, 0)


def test_a_disk_that_is_too_full_deletes_files_before_they_are_archived_and_counts_them(log, capsys):
    settings = RetentionSettings(archive_before_delete=True)
    cleaner = Retention(log, settings, archived_offset=lambda: 2 * FILE_BYTES)
    cleaner.apply(0.86, now=NOW)
    assert (len(log.files), cleaner.files_deleted_unarchived) == (1, 3)
    assert capsys.readouterr().out.count("log file deleted before it was archived") == 3


def test_while_it_is_not_known_what_is_archived_only_a_disk_that_is_too_full_deletes(log):
    cleaner = retention(log, archived_offset=lambda: None)
    cleaner.apply(0.80, now=NOW)
    assert (len(log.files), cleaner.files_deleted_unarchived) == (6, 0)
    cleaner.apply(0.86, now=NOW)
    assert (len(log.files), cleaner.files_deleted_unarchived) == (1, 5)


def test_a_full_disk_refuses_puts_until_there_is_space(log):
    cleaner = retention(log)
    cleaner.apply(0.91, now=NOW)
    refused = log.append(message())
    assert (refused.status, refused.reason) == (PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
    assert len(log.read(log.min_offset, 10)) == 10
    cleaner.apply(0.89, now=NOW)
    assert log.append(message()).status is PutStatus.PUT_OK


async def test_the_disk_is_checked_every_interval(log, autojump_clock, in_place):
    looks = []

    def used_ratio(directory):
        looks.append((trio.current_time() - started, directory))
        return 0.5

    started = trio.current_time()
    with trio.move_on_after(25):
        await retention(log, used_ratio=used_ratio).run()
    assert looks == [(0.0, log.directory), (10.0, log.directory), (20.0, log.directory)]


@pytest.fixture
def in_place(monkeypatch):
    """Worker threads do not follow virtual time: run their functions in place."""

    async def run_in_place(function, *args, **_options):
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_in_place)


def errors_logged(capsys):
    return capsys.readouterr().out.count("old files cannot be looked at or deleted yet")


async def test_a_disk_that_does_not_answer_ends_nothing_and_is_asked_again(
    log, in_place, autojump_clock, capsys
):
    answers = iter([0.5, *[OSError(errno.EIO, "Input/output error")] * 20, 0.91])

    def used_ratio(_):
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    cleaner = retention(log, used_ratio=used_ratio)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run)
        await trio.sleep(205)
        assert (cleaner.errors, log.disk_is_full) == (20, False)
        await trio.sleep(10)
        assert log.disk_is_full
        nursery.cancel_scope.cancel()
    # Once a minute: the first one, and at 70, 130 and 190 s.
    assert errors_logged(capsys) == 4


@pytest.mark.parametrize("call", ["stat", "unlink"])
async def test_a_file_that_cannot_be_looked_at_or_deleted_stays_and_goes_later(
    log, in_place, autojump_clock, monkeypatch, call
):
    refused = log.files[1].path
    paths = [file.path for file in log.files]
    real = getattr(Path, call)

    def refuse(path, *arguments, **options):
        if path == refused:
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, call, refuse)
    cleaned = []
    cleaner = retention(
        log,
        used_ratio=lambda _: 0.80,
        on_deleted=lambda: cleaned.append(log.min_offset) or (),
        clock=RetentionClock(wall_s=NOW.timestamp),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run)
        await trio.sleep(25)
        assert (log.min_offset, cleaner.errors, cleaned) == (FILE_BYTES, 3, [FILE_BYTES])
        refused = None
        await trio.sleep(10)
        assert (log.min_offset, cleaner.errors, cleaned) == (3 * FILE_BYTES, 3, [FILE_BYTES, 3 * FILE_BYTES])
        nursery.cancel_scope.cancel()
    assert len(log_bytes(log)) == log.max_offset - log.min_offset
    monkeypatch.undo()
    assert [path.exists() for path in paths] == [False] * 3 + [True] * 3


async def test_a_file_that_an_operator_has_deleted_is_passed_over(log):
    log.files[1].path.unlink()
    retention(log).apply(0.80, now=NOW)
    assert log.min_offset == 3 * FILE_BYTES


async def test_queues_of_deleted_files_are_cleaned_once_a_run_and_again_until_all_are(
    log, in_place, autojump_clock
):
    runs = []

    def clean():
        runs.append(log.min_offset)
        yield
        if len(runs) < 3:
            raise StoreError("cannot be deleted", path="consumequeue")

    cleaner = retention(log, used_ratio=lambda _: 0.86, on_deleted=clean)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run)
        await trio.sleep(95)
        nursery.cancel_scope.cancel()
    assert runs == [5 * FILE_BYTES] * 3
    assert cleaner.errors == 2


async def test_a_life_cleans_what_the_one_before_it_has_left(log, in_place):
    # It deletes files of the log, and ends before it deletes those of the queues.
    retention(log).apply(0.86, now=NOW)
    assert log.min_offset > 0
    cleaned = []
    life = retention(log, on_deleted=lambda: cleaned.append(log.min_offset) or ())
    for _ in range(2):
        await life.clean()
        assert cleaned == [log.min_offset]


async def test_other_tasks_run_while_many_queues_are_cleaned(log, monkeypatch):
    turns = []
    clock_s = count(0, 0.0004)
    monkeypatch.setattr("trioha.store.retention.time.perf_counter", lambda: next(clock_s))
    done = trio.Event()

    def clean():
        for _ in range(20):
            turns.append("queue")
            yield

    async def other():
        while not done.is_set():
            await trio.lowlevel.checkpoint()
            turns.append("other")

    log.delete_first_file()
    cleaner = retention(log, on_deleted=clean)
    await cleaner.clean()
    turns.clear()
    # Nothing was deleted since.
    await cleaner.clean()
    assert turns == []
    log.delete_first_file()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        await cleaner.clean()
        done.set()
    assert turns.count("queue") == 20
    # A slice is three readings of this clock; tasks that are ready run once each, in any order.
    assert max(map(len, "".join(turn[0] for turn in turns).split("o"))) <= 6


def test_queues_are_those_of_the_log_that_is_left_after_any_refusal_of_the_disk(tmp_path, monkeypatch):
    store = open_store(tmp_path)
    log = store.commit_log
    for number in range(300):
        log.append(message(bytes(2000), queue_id=number % 7))
    store.dispatcher.dispatch(log.max_offset, records_max=1000)
    for _ in range(6):
        log.delete_first_file()
    calls = iter(range(1000))
    unlink = Path.unlink

    def refuse_now_and_then(path, missing_ok=False):
        if next(calls) % 2 == 0:
            raise OSError(errno.EACCES, "Permission denied")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse_now_and_then)
    with pytest.raises(StoreError, match="cannot be deleted"):
        list(store.head_deleted())
    for _ in range(10):
        with suppress(StoreError):
            list(store.head_deleted())
    monkeypatch.undo()
    list(store.head_deleted())
    for queue_id in range(7):
        queue = store.queues.find("Orders", queue_id)
        found = list(queue.entries(0, 1000))
        assert all(entry.physical_offset >= log.min_offset for entry in found)
        assert (found[0].queue_offset, found[-1].queue_offset + 1) == (queue.min_offset, queue.max_offset)
        # Files of 20 entries: those before the first valid entry are deleted.
        names = sorted(path.name for path in (tmp_path / f"consumequeue/Orders/{queue_id}").iterdir())
        assert int(names[0]) == queue.min_offset // 20 * 400
    store.close()


async def test_an_observer_keeps_no_file_that_it_was_sent(log, autojump_clock):
    master, _, _ = make_master(log)
    cleaner = retention(log, retention_floor=master.retention_floor)
    async with connected(master) as (peer, _):
        await peer.report(100)
        await taken(peer, log.max_offset)
        cleaner.apply(0.80, now=NOW)
        assert (master.retention_floor(), log.min_offset) == (100, 0)
        # It sends heartbeats, and never acknowledges more than its start.
        for _ in range(3):
            await trio.sleep(5)
            await peer.report(100)
        cleaner.apply(0.80, now=NOW)
        assert (master.retention_floor(), log.min_offset) == (log.max_offset, 3 * FILE_BYTES)
        stored = log.append(message())
        assert (await peer.next_frame())[0] == stored.physical_offset


async def test_a_replica_that_acknowledges_keeps_what_it_has_not_acknowledged(log, autojump_clock):
    master, _, _ = make_master(log)
    async with connected(master) as (peer, _):
        await peer.report(100)
        await taken(peer, log.max_offset)
        for acknowledged in range(200, 1000, 100):
            await trio.sleep(14)
            await peer.report(acknowledged)
            await settled()
            assert master.retention_floor() == acknowledged
        # Stuck: from here on the offset that it was sent counts, as for an observer.
        for _ in range(3):
            await trio.sleep(5)
            assert master.retention_floor() in {900, log.max_offset}
            await peer.report(900)
        assert master.retention_floor() == log.max_offset


async def test_a_stuck_peer_keeps_what_it_was_not_sent_yet(log, autojump_clock):
    master, _, _ = make_master(log)
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:

        async def serve():
            await master.serve_stream(near, host="10.0.0.1", port=1)

        nursery.start_soon(serve)
        await far.send_all((100).to_bytes(8, "big"))
        assert await far.receive_some(100)
        await trio.sleep(16)
        assert 100 < master.retention_floor() == master.connections()[0].sent_offset < log.max_offset
        nursery.cancel_scope.cancel()


async def test_an_empty_slave_retains_only_what_it_is_sent(log, autojump_clock):
    master, _, _ = make_master(log)
    async with connected(master) as (peer, _):
        await settled()
        assert master.retention_floor() > log.max_offset
        await peer.report(0)
        await settled()
        assert master.retention_floor() == log.files[-1].start_offset


async def taken(peer, end_offset):
    """Receive frames up to `end_offset`."""
    offset = body_bytes = 0
    while offset + body_bytes < end_offset:
        offset, body = await peer.next_frame()
        body_bytes = len(body)


# -- flow control -------------------------------------------------------------------------------------------


async def test_flow_control_bounds_headers_and_bodies_in_every_second(tmp_path, autojump_clock):
    from attrs import evolve

    from tests.ha.support import SETTINGS

    log, _ = open_log(tmp_path)
    while log.max_offset < 30_000:
        log.append(message(bytes(1000)))
    master, _, _ = make_master(log, settings=evolve(SETTINGS, flow_bytes_per_s=10_000))
    arrived = {}
    async with connected(master) as (peer, _):
        started = trio.current_time()
        await peer.report(0)
        offset = 0
        while offset < log.max_offset:
            start, body = await peer.next_frame()
            assert start == offset
            assert body
            second = int(trio.current_time() - started)
            arrived[second] = arrived.get(second, 0) + 12 + len(body)
            offset += len(body)
            await peer.report(offset)
    assert arrived == {0: 10_000, 1: 10_000, 2: 10_000, 3: log.max_offset + 4 * 12 - 30_000}


async def test_a_wall_clock_that_jumps_forward_makes_no_file_old(log, autojump_clock, in_place):
    start_s = NOW.timestamp()
    jump_s = 0.0
    clock = RetentionClock(
        wall_s=lambda: start_s + trio.current_time() + jump_s, elapsed_s=lambda: 77 + trio.current_time()
    )
    settings = RetentionSettings(file_reserved_s=6 * 3600.0, delete_when=frozenset(range(24)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Retention(log, settings, used_ratio=lambda _: 0.5, clock=clock).run)
        await trio.sleep(60)
        jump_s = 10 * 365 * 86400.0
        await trio.sleep(60)
        assert len(log.files) == 6
        jump_s = -10 * 365 * 86400.0
        await trio.sleep(60)
        assert len(log.files) == 6
        jump_s = 0.0
        # The oldest was five hours old at first.
        await trio.sleep(3600 + 60)
        assert len(log.files) == 5
        nursery.cancel_scope.cancel()


async def test_epochs_of_deleted_log_files_are_dropped_on_disk(tmp_path):
    """RocketMQ's testTruncateEpochLogAndAddBroker: the first file and its epoch are gone."""
    store = open_store(tmp_path, file_bytes=1700, has_epochs=True)
    for epoch in range(1, 6):
        start_offset = store.commit_log.max_offset
        store.epochs.append(epoch, start_offset)
        while store.commit_log.max_offset < start_offset + 2000:
            store.commit_log.append(message(bytes(300)))
    starts = [entry.start_offset for entry in store.epochs.entries]
    assert store.dispatcher.dispatch(store.commit_log.max_offset)
    cleaner = Retention(
        store.commit_log,
        RetentionSettings(file_reserved_s=3600.0),
        on_deleted=store.head_deleted,
        on_cleaned=store.truncate_epochs,
    )
    store.commit_log.delete_first_file()
    await cleaner.clean()
    assert [entry.epoch for entry in store.epochs.entries] == [1, 2, 3, 4, 5]
    while store.commit_log.min_offset <= starts[2]:
        store.commit_log.delete_first_file()
    await cleaner.clean()
    assert [entry.epoch for entry in store.epochs.entries] == [3, 4, 5]
    assert EpochLog.open(store.epochs.path).table == store.epochs.table
    cleaner.apply(0.86, now=NOW)
    await cleaner.clean()
    assert store.epochs.last_epoch == 5
    store.close()


async def test_epochs_that_cannot_be_written_are_dropped_at_the_next_run(log, in_place, autojump_clock):
    calls = []

    def truncate():
        calls.append(log.min_offset)
        if len(calls) < 3:
            raise StoreError("epochs cannot be written: No space left on device", path="epochs")

    cleaner = retention(log, used_ratio=lambda _: 0.86, on_cleaned=truncate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run)
        await trio.sleep(95)
        nursery.cancel_scope.cancel()
    assert calls == [5 * FILE_BYTES] * 3
    assert cleaner.errors == 2

"""Cuts: the log and all that was built from it end at an earlier record, whatever crashes."""

import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from tests.descriptors import close_after_test, resources_closed
from tests.store.crashes import Crash, CrashingDisk, PowerCutDisk
from tests.store.support import cut_store, log_bytes, message
from tests.store.whole_stores import (
    EPOCHS,
    FILE_BYTES,
    RECORDS,
    TOPICS,
    contents,
    dispatch,
    make_store,
    opened,
    put,
    rebuilt,
    reopened,
)
from trioha.errors import StoreError
from trioha.store import cut_marker
from trioha.store.checkpoint import Checkpoint
from trioha.store.mapped_file import MappedFile


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A store that was closed cleanly, and where its records start."""
    root = tmp_path_factory.mktemp("cut") / "template"
    return root, make_store(root)


def copied(root, tmp_path, name="copy"):
    """A copy of the template that a test may change."""
    return Path(shutil.copytree(root, tmp_path / name))


@pytest.mark.parametrize("number", [0, 1, 20, 41, RECORDS - 1])
def test_a_cut_store_has_what_is_built_anew_from_its_log_at_once_and_after_a_start(
    tmp_path, template, number
):
    root, starts = template
    offset = starts[number]
    expected = rebuilt(root, tmp_path / "rebuilt", end=offset)
    for is_clean in (True, False):
        copy = copied(root, tmp_path, f"{is_clean}")
        with resources_closed():
            store = opened(copy)
            marks = store.commit_log.appended, store.dispatcher.dispatched
            rewinds = [mark.rewinds for mark in marks]
            cut_store(store, offset)
            assert all(mark.rewinds > before for mark, before in zip(marks, rewinds, strict=True))
            assert store.commit_log.max_offset == store.commit_log.flushed.offset == offset
            dispatch(store)
            store.puts.enable()
            assert contents(store) == expected
            assert not (copy / "commitlog" / cut_marker.FILE_NAME).exists()
            if is_clean:
                store.close()
        assert reopened(copy) == expected


def test_the_store_goes_on_after_a_cut_as_one_that_never_had_more(tmp_path, template):
    root, starts = template
    copy = copied(root, tmp_path)
    store = opened(copy)
    queue_offsets = dict(store.commit_log.queue_offsets)
    cut_store(store, starts[33])
    dispatch(store)
    store.puts.enable()
    assert store.commit_log.max_offset == starts[33]
    for number in range(33, RECORDS + 5):
        put(store, number)
    assert store.commit_log.queue_offsets.items() >= queue_offsets.items() - {
        item for item in queue_offsets.items() if store.commit_log.queue_offsets[item[0]] > item[1]
    }
    dispatch(store)
    expected = contents(store)
    store.close()
    assert reopened(copy) == rebuilt(copy, tmp_path / "rebuilt", end=len(expected.log)) == expected
    assert expected.log[: starts[33]] == reopened(root).log[: starts[33]]


@pytest.mark.parametrize("beyond", [-1, 1, 7, 1_000_000])
def test_only_the_start_of_a_record_can_be_cut_at(tmp_path, template, beyond):
    root, starts = template
    copy = copied(root, tmp_path)
    store = opened(copy)
    before = contents(store)
    offset = starts[30] + beyond
    with pytest.raises(StoreError, match="no record starts at this offset") as raised:
        cut_store(store, offset)
    assert raised.value.offset == offset
    assert contents(store) == before
    store.close()
    assert reopened(copy) == before


def test_a_cut_at_the_logs_end_drops_epochs_without_data(tmp_path, template):
    root, _ = template
    store = opened(copied(root, tmp_path))
    assert store.epochs is not None
    before = contents(store)
    cut_store(store, store.commit_log.max_offset)
    assert store.epochs.entries == before.epochs[:-1]
    assert contents(store).queues == before.queues
    assert not store.commit_log.puts_blocked


def test_a_sync_that_began_before_a_cut_does_not_raise_the_checkpoint_after_it(tmp_path, template):
    root, starts = template
    store = opened(copied(root, tmp_path))
    start = store.commit_log.max_offset
    for number in range(20):
        put(store, number)
    dispatch(store)
    far_ms = store.commit_log.last_store_timestamp_ms + 1_000_000
    log_sync = store.syncs.log_sync(start, store.commit_log.max_offset, store_timestamp_ms=far_ms)
    store.dispatcher.last_store_timestamp_ms = far_ms
    queue_sync = store.syncs.queue_sync()
    assert queue_sync is not None
    cut_store(store, starts[10])
    lowered = store.checkpoints.current
    assert lowered.physic_msg_timestamp_ms <= store.commit_log.last_store_timestamp_ms
    log_sync()
    queue_sync()
    assert store.checkpoints.current == lowered
    put_after = store.syncs.queue_sync()
    if put_after is not None:
        put_after()
    assert store.checkpoints.current.logics_msg_timestamp_ms <= store.commit_log.last_store_timestamp_ms


# -- the mark ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 17, 41])
def test_the_mark_says_what_is_cut_for_the_start_that_completes_the_cut(tmp_path, template, number):
    root, starts = template
    offset = starts[number]
    calls = CrashingDisk()
    assert not crashed_cut(copied(root, tmp_path, "whole"), offset, calls)
    # Before the mark is deleted all else is done, so nothing else could tell any more.
    copy = copied(root, tmp_path)
    assert crashed_cut(copy, offset, CrashingDisk(len(calls.calls) - 2))
    assert is_marked(copy)
    with resources_closed():
        store = opened(root)
        assert store.epochs is not None
        end, entries = store.commit_log.max_offset, store.epochs.entries
        assert store.completed_cut is None
        store.close()
    with resources_closed():
        found = opened(copy).completed_cut
    assert found is not None
    assert (found.offset, found.end_offset) == (offset, end)
    first = max(at for at, entry in enumerate(entries) if entry.start_offset <= offset or at == 0)
    # The last epoch has no byte yet.
    assert found.epochs.entries == entries[first:-1]
    with resources_closed():
        assert opened(copy).completed_cut is None


def test_a_mark_of_an_earlier_version_says_where_the_log_ends(tmp_path, template):
    root, starts = template
    copy = copied(root, tmp_path)
    (copy / "commitlog" / cut_marker.FILE_NAME).write_text(f'{{"offset": {starts[20]}}}')
    with resources_closed():
        store = opened(copy)
        assert store.commit_log.max_offset == starts[20]
        assert store.completed_cut == cut_marker.BegunCut(starts[20], starts[20])


@pytest.mark.parametrize(
    "text", ['{"offset": 0, "epochs": [[2, 0], [1, 9]]}', '{"offset": 0, "epochs": [[1]]}', "[]", "{}"]
)
def test_a_mark_that_does_not_read_is_refused(tmp_path, text):
    (tmp_path / cut_marker.FILE_NAME).write_text(text)
    with pytest.raises(StoreError, match="cannot be read"):
        cut_marker.load_cut(tmp_path)


# -- crashes -------------------------------------------------------------------------------------------------


def crashed_cut(root, offset, disk):
    """Cut a store that the process has open; whether it crashed."""
    with resources_closed():
        store = opened(root, is_slave=True)
        with disk.in_use():
            try:
                cut_store(store, offset)
            except Crash:
                return True
    return False


def is_marked(root):
    return (root / "commitlog" / cut_marker.FILE_NAME).exists()


@pytest.mark.parametrize(
    "number", [17, *(pytest.param(number, marks=pytest.mark.full) for number in (0, 41))]
)
def test_after_a_kill_at_any_call_the_store_opens_uncut_or_cut(tmp_path, template, number):
    root, starts = template
    offset = starts[number]
    uncut = reopened(copied(root, tmp_path, "uncut"))
    cut = rebuilt(root, tmp_path / "rebuilt", end=offset)
    crashes, found = 0, []
    while True:
        copy = copied(root, tmp_path, f"{crashes}")
        is_crashed = crashed_cut(copy, offset, CrashingDisk(crashes))
        must_be_cut = is_marked(copy) or not is_crashed
        after = reopened(copy)
        assert after in (uncut, cut)
        found.append(after == cut)
        assert after == cut or not must_be_cut
        assert not is_marked(copy)
        with resources_closed():
            # What is stored after a cut stays: it is not cut again.
            store = opened(copy)
            end = store.commit_log.append(message()).end_offset
        with resources_closed():
            assert opened(copy).commit_log.max_offset == end
        shutil.rmtree(copy)
        if not is_crashed:
            break
        crashes += 1
    assert crashes >= 20
    # From the first cut store on all are.
    assert found == sorted(found)
    assert (found[0], found[-1]) == (False, True)


def test_after_a_kill_at_any_call_of_a_start_that_completes_a_cut_the_next_one_does(tmp_path, template):
    root, starts = template
    offset = starts[25]
    cut = rebuilt(root, tmp_path / "rebuilt", end=offset)
    marked = copied(root, tmp_path, "marked")
    (marked / "abort").touch()
    cut_marker.save_cut(marked / "commitlog", cut_marker.BegunCut(offset, offset))
    crashes = 0
    while True:
        copy = Path(shutil.copytree(marked, tmp_path / f"{crashes}"))
        try:
            with resources_closed(), CrashingDisk(crashes).in_use():
                opened(copy)
        except Crash:
            assert reopened(copy) == cut
            shutil.rmtree(copy)
            crashes += 1
            continue
        assert reopened(copy) == cut
        break
    assert crashes >= 20


def test_a_log_that_is_cleared_in_part_is_cleared_whole_by_the_next_start(tmp_path, template, monkeypatch):
    root, starts = template
    offset = next(start for start in starts if start > FILE_BYTES)
    copy = copied(root, tmp_path)

    def clear_some(file, at):
        # The disk may have any of the pages: a torn record is before valid ones here.
        file.write(at + 300, memoryview(bytes(400)))
        raise Crash

    with resources_closed(), monkeypatch.context() as patch:
        store = opened(copy)
        patch.setattr(MappedFile, "clear_from", clear_some)
        with pytest.raises(Crash):
            cut_store(store, offset)
    assert reopened(copy) == rebuilt(root, tmp_path / "rebuilt", end=offset)


def out_of_memory(*_, **_options):
    raise MemoryError


@pytest.mark.parametrize(
    "step",
    [
        "landmarks.Landmarks.cut",
        "consume_queues.ConsumeQueues.truncate_dirty",
        "log_files.LogFiles.cut",
        "dispatch.Dispatcher.cut",
        "callback before",
        "callback after",
    ],
)
def test_any_exception_during_a_cut_ends_the_store_and_the_next_start_completes_it(
    tmp_path, template, monkeypatch, step
):
    root, starts = template
    copy = copied(root, tmp_path)
    with resources_closed():
        store = opened(copy)
        if step == "callback before":
            store.commit_log.on_cut(out_of_memory)
        elif step == "callback after":
            store.cutter.on_cut.add(out_of_memory)
        with monkeypatch.context() as patch:
            if "." in step:
                patch.setattr(f"trioha.store.{step}", out_of_memory)
            with pytest.raises(StoreError, match="the cut cannot be completed: MemoryError") as raised:
                cut_store(store, starts[9])
        assert raised.value.offset == starts[9]
        assert store.commit_log.puts_blocked or step == "callback before"
        store.close()
    # Whatever of the cut is done: no start finds the store closed cleanly.
    assert (copy / "abort").exists()
    assert is_marked(copy) == (step != "callback after")
    assert reopened(copy) == rebuilt(root, tmp_path / "rebuilt", end=starts[9])


def test_a_record_before_the_cut_that_cannot_be_read_leaves_the_store_uncut(tmp_path, template, monkeypatch):
    root, starts = template
    copy = copied(root, tmp_path)
    with resources_closed():
        store = opened(copy)
        before = contents(store)
        with monkeypatch.context() as patch:
            patch.setattr("trioha.store.record_starts.store_timestamp_ms", out_of_memory)
            with pytest.raises(MemoryError):
                cut_store(store, starts[9])
        assert not is_marked(copy)
        assert put(store, 0) >= len(before.log)
        store.close()
    assert reopened(copy).log.startswith(before.log)


def test_a_start_that_completes_a_cut_drops_epochs_beyond_a_log_that_is_shorter(tmp_path, template):
    copy = copied(template[0], tmp_path)
    with resources_closed():
        store = opened(copy)
        assert store.epochs is not None
        end = store.commit_log.max_offset
        store.epochs.append(len(EPOCHS) + 1, end + 1000)
        store.release()
    cut_marker.save_cut(copy / "commitlog", cut_marker.BegunCut(end + 2000, end + 2000))
    with resources_closed():
        store = opened(copy)
        assert store.epochs is not None
        assert store.commit_log.max_offset == end
        assert [entry.epoch for entry in store.epochs.entries] == [1, 2, 3, 4, 5]


# -- a log that is set aside ---------------------------------------------------------------------------------


def test_the_checkpoint_claims_nothing_of_a_log_that_was_set_aside(tmp_path, template):
    copy = copied(template[0], tmp_path)
    store = opened(copy)
    log = store.commit_log
    start = log.max_offset
    for number in range(20):
        put(store, number)
    dispatch(store)
    far_ms = log.last_store_timestamp_ms + 1_000_000
    store.dispatcher.last_store_timestamp_ms = far_ms
    log_sync = store.syncs.log_sync(start, log.max_offset, store_timestamp_ms=far_ms)
    queue_sync = store.syncs.queue_sync()
    assert queue_sync is not None
    assert Checkpoint.load(copy / "checkpoint") != Checkpoint()
    log.archive(copy / "aside")
    assert Checkpoint.load(copy / "checkpoint") == Checkpoint()
    # These began before.
    log_sync()
    queue_sync()
    assert Checkpoint.load(copy / "checkpoint") == Checkpoint()
    put(store, 0)
    dispatch(store)
    store.syncs.log_sync(0, log.max_offset, store_timestamp_ms=log.last_store_timestamp_ms)()
    log.flushed.advance(log.max_offset)
    if (work := store.syncs.queue_sync()) is not None:
        work()
    assert 0 < Checkpoint.load(copy / "checkpoint").logics_msg_timestamp_ms <= log.last_store_timestamp_ms


def test_after_a_power_cut_a_log_that_began_anew_is_checked_from_its_first_record_on(tmp_path, template):
    """A sector of it that never got on disk is cut: the times of the log before it name no sync of it."""
    root, starts = template
    copy = copied(root, tmp_path)
    old = log_bytes(opened(copied(root, tmp_path, "old")).commit_log)
    with resources_closed():
        store = opened(copy)
        last_ms = store.commit_log.last_store_timestamp_ms
        # What the old log had last may be stored long after the records that a new master sends first.
        later_ms = last_ms + 1_000_000
        store.syncs.log_sync(0, store.commit_log.max_offset, store_timestamp_ms=later_ms)()
        store.commit_log.archive(copy / "aside")
        for start, end in pairwise(starts):
            if end <= FILE_BYTES:
                store.commit_log.append_records(memoryview(old)[start:end], last_store_timestamp_ms=last_ms)
        torn, end = starts[4], store.commit_log.max_offset
        assert end > starts[6]
        # Not on disk when the power goes.
        store.commit_log.files[0].view[torn : starts[5]] = bytes(starts[5] - torn)
        store.release()
    with resources_closed():
        assert opened(copy).commit_log.max_offset == torn


@pytest.mark.full
@pytest.mark.parametrize("first", range(3))
def test_a_power_cut_at_any_call_leaves_the_store_uncut_or_cut(tmp_path, template, first):
    """Twice each: with nothing that was not synced, and with any of it."""
    root, starts = template
    offset = starts[30]
    cut = rebuilt(root, tmp_path / "rebuilt", end=offset)
    chance = random.Random(f"power {first}")
    crashes = first
    is_crashed = True
    while is_crashed:
        copy = copied(root, tmp_path, "store")
        images = [tmp_path / "synced", tmp_path / "mixed"]
        with resources_closed():
            store = opened(copy, is_slave=True)
            disk = close_after_test(PowerCutDisk(copy))
            # Some that was never promised to be on disk.
            for number in range(RECORDS, RECORDS + 4):
                put(store, number)
            dispatch(store)
            whole = log_bytes(store.commit_log)
            is_crashed = False
            with CrashingDisk(crashes, on_sync=disk.synced).in_use():
                try:
                    cut_store(store, offset)
                except Crash:
                    is_crashed = True
            if not is_crashed:
                # It may be lost, and what it has the place of does not come back.
                dispatch(store)
                store.puts.enable()
                put(store, 31)
                whole = log_bytes(store.commit_log)
            disk.image(images[0], is_kept=lambda: False)
            disk.image(images[1], is_kept=lambda: chance.random() < 0.5)
        for image in images:
            must_be_cut = is_marked(image) or not is_crashed
            after = reopened(image)
            assert after.log[:offset] == cut.log
            if after != cut:
                assert not must_be_cut or not is_crashed
                assert whole.startswith(after.log)
                assert after.queues == rebuilt(image, tmp_path / "again", end=len(after.log)).queues
                shutil.rmtree(tmp_path / "again")
            shutil.rmtree(image)
        shutil.rmtree(copy)
        crashes += 6
    assert crashes >= 20


# -- any history ---------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 12)),
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("dispatch"), st.integers(1, 5)),
    st.tuples(st.just("epoch"), st.just(0)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
)


@example(steps=[("put", 10), ("put", 10), ("cut", 0.6875), ("dispatch", 3)])  # the log ends with a blank
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_after_any_history_of_puts_cuts_and_stops_the_store_is_as_one_built_from_its_log(
    tmp_path_factory, steps
):
    root = tmp_path_factory.mktemp("history") / "store"
    (root / "config").mkdir(parents=True)
    (root / "config/topics.json").write_text(TOPICS)
    starts = []
    model = b""
    with resources_closed():
        store = opened(root)
        for name, value in steps:
            log = store.commit_log
            if name == "put":
                dispatch(store)
                store.puts.enable()
                starts += [put(store, number % RECORDS) for number in range(int(value))]
                model = log_bytes(log)
            elif name == "cut" and starts:
                offset = starts[round(value * (len(starts) - 1))]
                cut_store(store, offset)
                starts = [start for start in starts if start < offset]
                model = model[:offset]
            elif name == "dispatch":
                store.dispatcher.dispatch(log.max_offset, records_max=int(value))
            elif name == "epoch":
                assert store.epochs is not None
                store.epochs.append(store.epochs.last_epoch + 1, log.max_offset)
            elif name == "sync":
                store.syncs.log_sync(0, log.max_offset, store_timestamp_ms=log.last_store_timestamp_ms)()
                if (work := store.syncs.queue_sync()) is not None:
                    work()
            elif name in {"close", "kill"}:
                store.close() if name == "close" else store.release()
                store = opened(root)
            assert log_bytes(store.commit_log) == model
        dispatch(store)
        found = contents(store)
    assert reopened(root) == found
    assert all(entry.start_offset <= len(model) for entry in found.epochs)
    anew = rebuilt(root, root.with_name("again"), end=len(model))
    assert evolve(found, epochs=()) == evolve(anew, epochs=())

"""A stop soon after a start, or after a cut, before anything that was built since is on disk.

Queues and index that a start or a cut has deleted, or found incomplete, are built again; until they are on
disk the checkpoint must let every next start begin where this one did.
"""

import errno
import random
import shutil
from itertools import chain
from pathlib import Path

import pytest
from attrs import evolve

from tests.descriptors import close_after_test, resources_closed
from tests.store.crashes import Crash, CrashingDisk, PowerCutDisk
from tests.store.support import cut_store, message
from tests.store.whole_stores import (
    contents,
    dispatch,
    make_store,
    opened,
    put,
    rebuilt,
    reopened,
)
from trioha.store.checkpoint import Checkpoint, CheckpointFile
from trioha.store.dispatch_start import logics_time_ms, start_position


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A store that was closed cleanly, and where its records start."""
    root = tmp_path_factory.mktemp("stops") / "template"
    return root, make_store(root)


@pytest.fixture(autouse=True)
def _small_writes(monkeypatch):
    """A start writes queues and index several times before they are complete."""
    monkeypatch.setattr("trioha.store.dispatch_to_end.DISPATCH_RECORDS", 16)


def without_power(template, target):
    """A store whose queues and index were all on disk when the power went."""
    shutil.copytree(template, target)
    (target / "abort").touch()


def without_a_queue(template, target):
    shutil.copytree(template, target)
    shutil.rmtree(target / "consumequeue/Orders/0")


def without_queues(template, target):
    shutil.copytree(template, target)
    shutil.rmtree(target / "consumequeue")
    shutil.rmtree(target / "batchconsumequeue")


STATES = [(without_power, 1), (without_a_queue, 1), (without_queues, 5)]
"""How to make them, and how many calls of the start are between two stops."""


def images(disk, folder, chance):
    """What a power cut may leave: nothing that was not synced, or any of it."""
    for number, is_kept in enumerate((lambda: False, lambda: chance.random() < 0.5)):
        image = disk.image(folder / f"image {number}", is_kept=is_kept)
        yield image
        shutil.rmtree(image)


def stopped_start(root, calls):
    """Open a store on a disk that stops after so many calls; returns the disk, and whether it did."""
    disk = close_after_test(PowerCutDisk(root))
    with resources_closed(), CrashingDisk(calls, on_sync=disk.synced).in_use():
        try:
            opened(root)
        except Crash:
            return disk, True
    return disk, False


@pytest.mark.full
@pytest.mark.parametrize(("damage", "stride"), STATES)
def test_after_a_stop_at_any_call_of_a_start_and_right_after_it_the_next_one_builds_all(
    tmp_path, template, damage, stride
):
    """A kill, and a power cut with nothing and with any of what was not synced."""
    whole = reopened(Path(shutil.copytree(template[0], tmp_path / "whole")))
    assert whole.keys["Orders id0"]
    chance = random.Random(damage.__name__)
    calls, is_stopped = 0, True
    while is_stopped:
        root = tmp_path / f"{calls}"
        damage(template[0], root)
        with resources_closed():
            disk, is_stopped = stopped_start(root, calls)
            for image in images(disk, tmp_path, chance):
                assert reopened(image) == whole, (calls, image.name)
        assert reopened(root) == whole, calls
        shutil.rmtree(root)
        calls += stride
    assert calls >= 10


@pytest.mark.full
@pytest.mark.parametrize("number", [9, 50])
def test_a_power_cut_after_a_cut_and_another_one_at_any_call_of_the_next_start_lose_no_key(
    tmp_path, template, number
):
    root, starts = template
    chance = random.Random(number)
    cut = Path(shutil.copytree(root, tmp_path / "cut"))
    disk = close_after_test(PowerCutDisk(cut))
    with resources_closed(), CrashingDisk(on_sync=disk.synced).in_use():
        store = opened(cut)
        cut_store(store, starts[number])
        dispatch(store)
        store.puts.enable()
        put(store, number)
        dispatch(store)
    for first in images(disk, tmp_path / "first", chance):
        end = rebuilt(first, tmp_path / "rebuilt", end=starts[number])
        calls, is_stopped = 0, True
        while is_stopped:
            copy = Path(shutil.copytree(first, tmp_path / "copy"))
            with resources_closed():
                again, is_stopped = stopped_start(copy, calls)
                for image in chain(images(again, tmp_path / "second", chance), (copy,)):
                    with resources_closed():
                        store = opened(image)
                        # What was put after the cut may be lost, and nothing else.
                        if store.commit_log.max_offset > starts[number]:
                            cut_store(store, starts[number])
                            dispatch(store)
                            store.puts.enable()
                        assert contents(store) == end, (calls, image.name)
            shutil.rmtree(copy)
            calls += 2
        assert calls >= 3
        shutil.rmtree(tmp_path / "rebuilt")


def test_a_sync_of_a_part_of_what_is_built_after_a_cut_claims_no_more(tmp_path, template):
    root, starts = template
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    disk = close_after_test(PowerCutDisk(copy))
    with resources_closed(), CrashingDisk(on_sync=disk.synced).in_use():
        store = opened(copy)
        assert store.checkpoints.current.index_msg_timestamp_ms > 0
        put(store, 0)
        dispatch(store)
        cut_store(store, starts[40])
        assert store.dispatcher.position == 0
        assert store.checkpoints.current.index_msg_timestamp_ms == store.index.full_until_ms == 0
        assert store.dispatcher.dispatch(starts[40], records_max=2)
        sync = store.syncs.queue_sync()
        assert sync is not None
        sync()
    image = disk.image(tmp_path / "image", is_kept=lambda: False)
    assert reopened(image) == rebuilt(root, tmp_path / "rebuilt", end=starts[40])


def unclean_start(store, checkpoint):
    return start_position(store.commit_log, store.queues, clean_exit=False, checkpoint=checkpoint)


def test_the_time_for_a_position_gives_a_start_at_its_file_and_not_earlier(tmp_path, template):
    root, starts = template
    store = opened(Path(shutil.copytree(root, tmp_path / "copy")))
    log = store.commit_log
    far_ms = log.last_store_timestamp_ms + 1_000_000
    files = [file.start_offset for file in log.files]
    assert len(files) >= 4
    for position in starts:
        time_ms = logics_time_ms(log, position)
        checkpoint = Checkpoint(physic_msg_timestamp_ms=far_ms, logics_msg_timestamp_ms=time_ms)
        found = unclean_start(store, checkpoint)
        assert found == max(start for start in files if start <= position)
        later = evolve(checkpoint, logics_msg_timestamp_ms=time_ms + 1)
        assert unclean_start(store, later) > position or time_ms == log.last_store_timestamp_ms


def test_start_after_start_without_a_sync_begins_at_the_same_record(tmp_path, template):
    copy = tmp_path / "copy"
    without_power(template[0], copy)
    seen = []
    for _ in range(4):
        disk = close_after_test(PowerCutDisk(copy))
        with resources_closed(), CrashingDisk(on_sync=disk.synced).in_use():
            opened(copy)
        image = disk.image(tmp_path / "image", is_kept=lambda: False)
        shutil.rmtree(copy)
        image.rename(copy)
        seen.append(Checkpoint.load(copy / "checkpoint").logics_msg_timestamp_ms)
    assert seen == [seen[0]] * 4
    assert seen[0] < Checkpoint.load(template[0] / "checkpoint").logics_msg_timestamp_ms


def test_a_start_that_deletes_and_misses_nothing_leaves_the_checkpoint_alone(tmp_path, template, monkeypatch):
    copy = Path(shutil.copytree(template[0], tmp_path / "copy"))
    saved = []
    monkeypatch.setattr(CheckpointFile, "save", lambda _file, checkpoint: saved.append(checkpoint))
    opened(copy)
    assert saved == []


def test_with_a_full_disk_a_start_goes_on_without_the_checkpoint(tmp_path, template, monkeypatch):
    copy = tmp_path / "copy"
    without_power(template[0], copy)

    def refuse(_file, _checkpoint):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFile, "save", refuse)
        store = opened(copy)
    whole = contents(store)
    assert all(whole.keys[f"Orders id{number}"] for number in (0, 3, 60, 63))
    # The next one that is written is right.
    claimed = Checkpoint.load(copy / "checkpoint").logics_msg_timestamp_ms
    assert store.checkpoints.current.logics_msg_timestamp_ms < claimed


def test_the_checkpoint_claims_nothing_of_a_log_that_is_gone(tmp_path, template):
    copy = Path(shutil.copytree(template[0], tmp_path / "copy"))
    before = Checkpoint.load(copy / "checkpoint")
    assert min(before.physic_msg_timestamp_ms, before.logics_msg_timestamp_ms) > 0
    shutil.rmtree(copy / "commitlog")
    store = opened(copy)
    assert store.commit_log.is_empty
    assert Checkpoint.load(copy / "checkpoint") == Checkpoint()


def test_a_sync_during_a_cut_does_not_claim_what_the_cut_has_not_put_on_disk(tmp_path, template):
    copy = Path(shutil.copytree(template[0], tmp_path / "copy"))
    store = opened(copy)
    claimed_ms = store.checkpoints.current.logics_msg_timestamp_ms
    for number in range(8):
        put(store, number)
    offset = store.commit_log.append(message()).physical_offset
    dispatch(store)
    steps = store.cutter.steps(offset)
    first = next(steps)
    # The index has all of its keys, and the first step the writes to queues.
    assert store.dispatcher.position == offset
    assert store.dispatcher.last_store_timestamp_ms > claimed_ms
    sync = store.syncs.queue_sync()
    assert sync is not None
    sync()
    assert Checkpoint.load(copy / "checkpoint").logics_msg_timestamp_ms == claimed_ms
    first()
    for step in steps:
        step()
    dispatch(store)
    store.puts.enable()
    put(store, 3)
    dispatch(store)
    sync = store.syncs.queue_sync()
    assert sync is not None
    sync()
    assert Checkpoint.load(copy / "checkpoint").logics_msg_timestamp_ms > claimed_ms

"""The epoch whose end a log may have lost in a power loss is noted, and nothing else is."""

import errno
import os
from pathlib import Path

import pytest

from tests.store.crashes import Crash, CrashingDisk
from tests.store.support import message, open_store
from trioha.errors import StoreError
from trioha.store import lock
from trioha.store.doubtful_epoch import FILE_NAME, load_doubtful_epoch
from trioha.store.epochs import EpochEntry

NONE = -1


@pytest.fixture
def machine(monkeypatch):
    """Its boot id."""
    found = ["first boot"]
    monkeypatch.setattr(lock, "boot_id", lambda: found[0])
    return found


def opened(root):
    return open_store(root, has_epochs=True)


def used(root):
    """A store with two epochs, of which the last one has bytes."""
    store = opened(root)
    assert store.epochs is not None
    for epoch in (3, 7):
        store.epochs.append(epoch, store.commit_log.max_offset)
        store.commit_log.append(message())
    return store


def test_a_power_loss_leaves_the_last_epoch_in_doubt_for_good(tmp_path, machine):
    store = used(tmp_path)
    assert store.doubtful_epoch == NONE
    store.release()
    machine[0] = "second boot"
    store = opened(tmp_path)
    assert store.doubtful_epoch == 7
    # Controllers may still name this broker when it has been closed, and started again.
    store.close()
    store = opened(tmp_path)
    assert store.doubtful_epoch == 7
    assert store.epochs is not None
    store.epochs.append(8, store.commit_log.max_offset)
    store.close()
    assert opened(tmp_path).doubtful_epoch == 7


def test_a_killed_process_loses_nothing(tmp_path, machine):
    used(tmp_path).release()
    assert opened(tmp_path).doubtful_epoch == NONE
    assert not (tmp_path / FILE_NAME).exists()


def test_a_machine_that_starts_anew_after_a_clean_stop_has_lost_nothing(tmp_path, machine):
    used(tmp_path).close()
    machine[0] = "second boot"
    assert opened(tmp_path).doubtful_epoch == NONE


@pytest.mark.parametrize(
    "content",
    [b"4711", b"", b"4711\n", b"4711\nanother boot"],
    ids=["of RocketMQ", "empty", "of a machine without boot ids", "of another machine"],
)
def test_an_abort_that_does_not_name_this_boot_is_of_a_power_loss(tmp_path, machine, content):
    used(tmp_path).release()
    (tmp_path / "abort").write_bytes(content)
    assert opened(tmp_path).doubtful_epoch == 7


def test_without_boot_ids_a_killed_process_counts_as_a_power_loss(tmp_path, machine):
    machine[0] = ""
    used(tmp_path).release()
    assert (tmp_path / "abort").read_bytes() == str(os.getpid()).encode()
    assert opened(tmp_path).doubtful_epoch == 7


def test_abort_names_process_and_boot_of_this_machine(tmp_path):
    opened(tmp_path)
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    names = [str(os.getpid()), *([boot_id.read_text().strip()] if boot_id.exists() else [])]
    assert (tmp_path / "abort").read_text().split("\n") == names


def test_an_epoch_of_which_every_byte_is_lost_is_in_doubt_too(tmp_path, machine):
    """Slaves have its entry: the same epoch must not begin at another place."""
    store = used(tmp_path)
    store.close()
    end = store.commit_log.max_offset
    store = opened(tmp_path)
    assert store.epochs is not None
    store.epochs.append(9, end + 1000)
    store.release()
    machine[0] = "second boot"
    store = opened(tmp_path)
    assert store.epochs is not None
    assert store.epochs.entries[-1] == EpochEntry(7, store.epochs.entries[-1].start_offset)
    assert store.doubtful_epoch == 9
    store.release()
    # Not lowered by the next power loss.
    machine[0] = "third boot"
    assert opened(tmp_path).doubtful_epoch == 9


def test_a_disk_that_failed_a_sync_may_have_lost_pages(tmp_path, machine):
    store = used(tmp_path)
    store.abort.mark_failed()
    store.close()
    assert opened(tmp_path).doubtful_epoch == 7


def test_a_disk_that_fails_the_last_sync_may_have_lost_pages(tmp_path, machine, monkeypatch):
    store = used(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _fail)
        with pytest.raises(StoreError, match="cannot be closed"):
            store.close()
    assert opened(tmp_path).doubtful_epoch == 7


def _fail(_fd):
    raise OSError(errno.EIO, "Input/output error")


def test_a_full_disk_prevents_no_opening_and_the_next_one_looks_again(tmp_path, machine, monkeypatch):
    used(tmp_path).release()
    machine[0] = "second boot"

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("trioha.store.doubtful_epoch.save_doubtful_epoch", full)
        store = opened(tmp_path)
    assert store.doubtful_epoch == 7
    store.release()
    assert opened(tmp_path).doubtful_epoch == 7
    assert load_doubtful_epoch(tmp_path) == 7


def test_a_crash_at_any_call_of_the_start_forgets_no_power_loss(tmp_path, machine):
    used(tmp_path / "counted").release()
    machine[0] = "second boot"
    disk = CrashingDisk()
    with disk.in_use():
        opened(tmp_path / "counted").release()
    assert "replace" in disk.calls
    for at in range(len(disk.calls)):
        root = tmp_path / f"{at}"
        machine[0] = "first boot"
        used(root).release()
        machine[0] = "second boot"
        with CrashingDisk(at).in_use(), pytest.raises(Crash):
            opened(root)
        assert opened(root).doubtful_epoch == 7, disk.calls[at]


def test_a_note_that_cannot_be_read_is_refused_with_what_to_do(tmp_path, machine):
    used(tmp_path).close()
    (tmp_path / FILE_NAME).write_text("{}")
    with pytest.raises(StoreError, match="cannot be read") as refused:
        opened(tmp_path)
    assert refused.value.hint is not None
    assert '{"epoch": N}' in refused.value.hint


def test_a_store_without_epochs_has_none_in_doubt(tmp_path, machine):
    open_store(tmp_path).release()
    machine[0] = "second boot"
    assert open_store(tmp_path).doubtful_epoch == NONE

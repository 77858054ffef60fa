"""What the invariants of groups in controller mode must find, in logs and files made by hand."""

import pytest

from tests.faults.controlled.invariants import (
    EPOCH_FILE,
    History,
    check_epoch_files,
    check_group_roles,
    read_epochs,
)
from tests.faults.producer import Promise
from tests.recording.group_sessions import failover
from trioha.recording.events import Kind
from trioha.store.epochs import EpochEntry, EpochTable

ONE = EpochTable((EpochEntry(1, 0), EpochEntry(2, 100)))
SAID = (
    "2026-11-23T10:00:00Z [info     ] role from the controllers      broker_id=1 epoch={} "
    "master=127.0.0.1:1 role={} sync_state_set=[1]\n"
)


def store_with(folder, table):
    folder.mkdir()
    (folder / EPOCH_FILE).write_bytes(table.encode())
    return folder


def test_equal_epochs_are_no_violation(tmp_path):
    stores = [store_with(tmp_path / name, ONE) for name in ("a", "b")]
    assert check_epoch_files(stores, end_offset=100) == []
    assert read_epochs(stores[0]) == ONE


@pytest.mark.parametrize(
    "other", [EpochTable((EpochEntry(1, 0),)), EpochTable((EpochEntry(1, 0), EpochEntry(2, 99)))]
)
def test_other_epochs_are_found(tmp_path, other):
    stores = [store_with(tmp_path / "a", ONE), store_with(tmp_path / "b", other)]
    (violation,) = check_epoch_files(stores, end_offset=100)
    assert violation.startswith("epochs of b are ")


def test_epochs_beyond_the_log_and_damaged_ones_are_found(tmp_path):
    store = store_with(tmp_path / "a", ONE)
    assert check_epoch_files([store], end_offset=99)
    assert check_epoch_files([tmp_path / "empty"], end_offset=0)
    (store / EPOCH_FILE).write_bytes(b"1\n7\n1-0\n")
    (violation,) = check_epoch_files([store], end_offset=100)
    assert "no epochs" in violation


def test_one_master_for_each_epoch_is_no_violation():
    history = History()
    history.note_log("a", SAID.format(1, "master") + SAID.format(2, "slave"))
    history.note_log("b", SAID.format(1, "slave") + SAID.format(2, "master"))
    history.note_master(1, "a", "the controller")
    history.note_epochs("a", ONE)
    history.note_epochs("b", ONE)
    history.note_promises([Promise("K", 99, 0, "A"), Promise("L", 100, 0, "B")], ONE, {"A": "a", "B": "b"})
    assert history.masters.keys() == {1, 2}
    assert history.violations() == []


def test_a_second_master_of_an_epoch_is_found_whoever_says_so():
    by_log, by_answer = History(), History()
    by_log.note_log("a", SAID.format(2, "master"))
    by_log.note_log("b", SAID.format(2, "master"))
    assert by_log.violations() == ["epoch 2 had several masters: a by its log; b by its log"]
    by_answer.note_log("b", SAID.format(2, "master"))
    by_answer.note_promises([Promise("K", 150, 0, "A")], ONE, {"A": "a"})
    assert by_answer.violations() == ["epoch 2 had several masters: a by its answers PUT_OK; b by its log"]


def test_an_epoch_that_begins_twice_and_a_message_of_no_epoch_are_found():
    history = History()
    history.note_epochs("a", ONE)
    history.note_epochs("b", EpochTable((EpochEntry(1, 0), EpochEntry(2, 120))))
    history.note_promises([Promise("K", 5, 0, "A")], EpochTable((EpochEntry(1, 10),)), {"A": "a"})
    assert history.violations() == [
        "epoch 2 begins at several offsets: 100 on a; 120 on b",
        "PUT_OK was said of messages before the first epoch by ['a']",
    ]


def test_a_cut_of_what_was_put_ok_is_found_in_the_sessions_of_all_nodes(tmp_path):
    lives = failover()
    lives["first master"].write(tmp_path / "first")
    lives["second master"].write(tmp_path / "second")
    folders = [tmp_path / "first", tmp_path / "second"]
    assert check_group_roles(folders) == []
    lives["second slave"].with_event(Kind.LOG_CUT, offset=299).write(tmp_path / "first")
    (violation,) = check_group_roles(folders)
    assert "cut-was-not-put-ok: bytes of epoch 1 from 299 to 400 were cut" in violation

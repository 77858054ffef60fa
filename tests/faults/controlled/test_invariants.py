"""What the invariants of groups in controller mode must find, in logs and files made by hand."""

import pytest

from tests.faults.controlled.invariants import EPOCH_FILE, History, check_epoch_files, check_group_roles
from tests.faults.producer import Promise
from tests.sessions.group_sessions import failover
from trioha.recording.events import Kind
from trioha.store.epochs import EpochEntry, EpochTable

ONE = EpochTable((EpochEntry(1, 0), EpochEntry(2, 100)))
SAID = (
    "2026-11-23T10:00:00Z [info     ] role from the controllers      broker_id=1 epoch={} "
    "master=127.0.0.1:1 role={} sync_state_set=[1]\n"
)


@pytest.mark.parametrize(
    ("other", "end_offset", "problem"),
    [
        (ONE.encode(), 100, None),
        (EpochTable((EpochEntry(1, 0),)).encode(), 100, "epochs of b are "),
        (EpochTable((EpochEntry(1, 0), EpochEntry(2, 99))).encode(), 100, "epochs of b are "),
        (b"1\n7\n1-0\n", 100, "no epochs"),
        (ONE.encode(), 99, "of a log that ends at 99"),
    ],
)
def test_epochs_that_differ_are_damaged_or_beyond_the_log_are_found(tmp_path, other, end_offset, problem):
    for name, data in (("a", ONE.encode()), ("b", other)):
        (tmp_path / name).mkdir()
        (tmp_path / name / EPOCH_FILE).write_bytes(data)
    found = check_epoch_files([tmp_path / "a", tmp_path / "b"], end_offset=end_offset)
    assert len(found) == (problem is not None)
    assert (problem or "") in "".join(found)


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


def test_a_second_master_or_begin_of_an_epoch_is_found_whoever_says_so():
    history = History()
    for node in ("a", "b"):
        history.note_log(node, SAID.format(2, "master"))
    history.note_promises([Promise("K", 50, 0, "A"), Promise("L", 50, 0, "B")], ONE, {"A": "a", "B": "b"})
    history.note_epochs("a", ONE)
    history.note_epochs("b", EpochTable((EpochEntry(1, 0), EpochEntry(2, 120))))
    history.note_promises([Promise("K", 5, 0, "A")], EpochTable((EpochEntry(1, 10),)), {"A": "a"})
    assert history.violations() == [
        "epoch 1 had several masters: a by its answers PUT_OK; b by its answers PUT_OK",
        "epoch 2 had several masters: a by its log; b by its log",
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

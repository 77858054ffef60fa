"""The checks find what they are for."""

import shutil
from zlib import crc32

import pytest

from tests.faults.invariants import (
    check_clean_store,
    check_failed_sync,
    check_logs_equal,
    check_process_logs,
    check_promises,
    check_recordings,
    held_messages,
)
from tests.faults.producer import Promise
from tests.faults.report import Report
from tests.recording.sessions import Event, write_session
from trioha.recording.events import CloseReason, Kind, PutStatus
from trioha.store.message_properties import encode_properties
from trioha.store.message_store import MessageStore, StoreSettings
from trioha.store.messages import Message
from trioha.store.record import Host

FILE_BYTES = 4096


def fill(root, keys):
    """A store with a message for each key, and the promises about them."""
    store = MessageStore.open(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=FILE_BYTES,
            message_bytes_max=2000,
            store_host=Host.parse("127.0.0.1", 1),
        )
    )
    promises = []
    for key in keys:
        body = f"body of {key}".encode() * 20
        appended = store.commit_log.append(
            Message(topic="T", queue_id=0, body=body, properties=encode_properties({"UNIQ_KEY": key}))
        )
        promises.append(Promise(key, appended.physical_offset, crc32(body)))
    end_offset = store.commit_log.max_offset
    store.close()
    return promises, end_offset


KEYS = [f"K{number}" for number in range(30)]


@pytest.fixture
def master(tmp_path):
    return tmp_path / "master", *fill(tmp_path / "master", KEYS)


def cut(store, promise):
    """Take away the log from this message on."""
    offset = promise.physical_offset
    for file in sorted((store / "commitlog").iterdir()):
        kept_bytes = max(0, offset - int(file.name))
        file.write_bytes(file.read_bytes()[:kept_bytes].ljust(FILE_BYTES, b"\0"))


def test_kept_promises_are_no_violation(master, tmp_path):
    root, promises, end_offset = master
    assert held_messages(root).end_offset == end_offset
    assert check_promises(promises, [root], copies=1, when="now") == []
    shutil.copytree(root, tmp_path / "slave")
    assert check_promises(promises, [root, tmp_path / "slave"], copies=2, when="now") == []
    assert check_logs_equal([root, tmp_path / "slave"], end_offset=end_offset) == []
    assert check_clean_store(root, file_bytes=FILE_BYTES, end_offset=end_offset) == []


def test_a_message_that_a_slave_lacks_is_found(master, tmp_path):
    root, promises, _ = master
    slave = tmp_path / "slave"
    shutil.copytree(root, slave)
    cut(slave, promises[-2])
    (violation,) = check_promises(promises, [slave], copies=1, when="after the kill")
    assert violation.startswith(
        "after the kill: 2 of 30 messages that were answered PUT_OK are on fewer than 1 of 1 stores: "
        f"K28 at offset {promises[-2].physical_offset} is held by 0"
    )
    # One of two copies is enough where one is needed.
    assert check_promises(promises, [root, slave], copies=1, when="now") == []
    assert len(check_promises(promises, [root, slave], copies=2, when="now")) == 1


def test_another_body_under_the_same_key_is_found(master):
    root, promises, _ = master
    other = Promise(promises[0].key, promises[0].physical_offset, promises[0].body_crc32 ^ 1)
    assert len(check_promises([other], [root], copies=1, when="now")) == 1


def test_a_slave_that_differs_or_ends_early_is_found(master, tmp_path):
    root, promises, end_offset = master
    shutil.copytree(root, tmp_path / "shorter")
    cut(tmp_path / "shorter", promises[-1])
    fill(tmp_path / "other", [*KEYS[:-1], "KX"])
    for name, problem in (
        ("shorter", f"ends at offset {promises[-1].physical_offset}"),
        ("other", "differ at"),
    ):
        violations = check_logs_equal([root, tmp_path / name], end_offset=end_offset)
        assert problem in violations[0]


def test_what_a_clean_stop_must_not_leave_is_found(master):
    root, _, end_offset = master
    (root / "abort").touch()
    (root / "commitlog" / f"{FILE_BYTES * 100:020d}").touch()
    (root / "checkpoint").unlink()
    assert check_clean_store(root, file_bytes=FILE_BYTES, end_offset=end_offset) == [
        "master: checkpoint is missing",
        "master: abort is there after a clean stop",
        f"master: files that hold nothing are left in commitlog: ['{FILE_BYTES * 100:020d}']",
    ]


def test_a_traceback_in_a_log_is_found(tmp_path):
    (tmp_path / "good.log").write_text("all is well\n")
    (tmp_path / "bad.log").write_text("well\nTraceback (most recent call last):\n")
    assert check_process_logs([tmp_path / "good.log"]) == []
    assert check_process_logs([tmp_path / "bad.log"]) == [
        "bad.log: well | Traceback (most recent call last):"
    ]


def master_events(*, ack_offset=300, put_ok_offset=300, copies_needed=1):
    """A slave asks from 100, gets 200 bytes, acknowledges them, and a put is released."""
    return [
        Event(1, Kind.REQUESTED, conn=1, offset=100, aux=100),
        Event(2, Kind.ACK, conn=1, offset=100, aux=100),
        Event(3, Kind.TRANSFER, conn=1, offset=100, aux=300, size=200),
        Event(4, Kind.ACK, conn=1, offset=ack_offset, aux=300),
        Event(5, Kind.WAIT_BEGIN, offset=put_ok_offset, aux=1, size=copies_needed + 1),
        Event(5, Kind.WAIT_END, offset=put_ok_offset, aux=1, flags=PutStatus.PUT_OK),
        Event(6, Kind.CLOSED, conn=1, offset=ack_offset, aux=300),
    ]


def problems_of(folder, *, end_offset=300, copies_needed=1, unclean_ends=1):
    found = check_recordings(
        folder, copies_needed=copies_needed, end_offset=end_offset, unclean_ends=unclean_ends
    )
    return [problem.partition("session: ")[2] or problem for problem in found]


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (master_events(), None),
        (master_events(ack_offset=301), "ack-within-sent: ack 301, sent was 300"),
        (master_events(ack_offset=99), "acks-go-forward: ack 99 after 100"),
        (
            master_events(put_ok_offset=301),
            "put-ok-has-copies: PUT_OK of request 1 at 301, which needed 1 acks and did not have them",
        ),
        (
            master_events(ack_offset=250),
            "put-ok-has-copies: PUT_OK of request 1 at 300, which needed 1 acks and did not have them",
        ),
        (master_events(copies_needed=0), "1 puts waited for less than 1 copies"),
        (
            [Event(1, Kind.DROPPED, aux=3)],
            "nothing-dropped: 3 events were dropped: the disk was too slow for the recording",
        ),
    ],
)
def test_a_master_that_records_what_cannot_be_is_found(tmp_path, events, problem):
    write_session(tmp_path / "session", events)
    assert (problems_of(tmp_path) or [None])[0] == problem


def test_a_master_whose_last_acks_are_not_its_logs_end_is_found(tmp_path):
    write_session(tmp_path / "session", master_events())
    assert problems_of(tmp_path, end_offset=400) == ["no connection's last ack was 400, but [300]"]


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        ([(200, 300), (300, 300)], None),
        ([(300, 300), (200, 300)], "reports-go-forward: reported 200 after 300"),
        ([(300, 299)], "report-within-log: reported 300, the own log ends at 299"),
        ([(200, 300)], "the highest report was 200, not 300"),
    ],
)
def test_a_slave_that_reports_what_it_has_not_is_found(tmp_path, reports, problem):
    events = [
        Event(at, Kind.REPORTED, conn=1, offset=offset, aux=own_max)
        for at, (offset, own_max) in enumerate(reports)
    ]
    write_session(tmp_path / "session", events, role="SLAVE", broker_id=1)
    assert (problems_of(tmp_path) or [None])[0] == problem


def test_a_slave_that_took_its_masters_log_for_another_is_found(tmp_path):
    events = [
        Event(1, Kind.REPORTED, conn=1, offset=300, aux=300),
        Event(2, Kind.CLOSED, conn=1, offset=300, aux=300, flags=CloseReason.DIVERGED),
    ]
    write_session(tmp_path / "session", events, role="SLAVE", broker_id=1)
    assert problems_of(tmp_path) == ["a connection ended as DIVERGED, own log 300"]


def test_a_session_that_was_not_closed_though_no_node_was_killed_is_found(tmp_path):
    write_session(tmp_path / "session", master_events())
    assert problems_of(tmp_path, unclean_ends=0) == [
        f"{tmp_path.name}: 1 sessions were not closed, 0 nodes were killed"
    ]


def test_a_damaged_record_is_found(tmp_path):
    path = write_session(tmp_path / "session", master_events())
    (segment,) = (path / "events").iterdir()
    data = bytearray(segment.read_bytes())
    data[-48 * 3] ^= 1
    segment.write_bytes(data)
    assert problems_of(tmp_path)[0].endswith("wrong check word or seq")


def test_a_report_survives_json():
    report = Report(3, "folder", ["broken"], 1.5, kills=2, statuses={"PUT_OK": 4}, faults=["Kill"])
    assert Report.from_json(report.to_json()) == report
    assert not report.ok


SAID = """\
2026-11-21T22:38:34.676718Z [info     ] store closed                   flushed_offset=5000
trioha: /s: fsync failed: Input/output error; check the disk
"""


def failed_sync(root, *, said=SAID, promises=(), recordings=None):
    root.mkdir(exist_ok=True)
    (root / "abort").touch()
    log_file = root.with_suffix(".log")
    log_file.write_text(f"info started\n{said}")
    return check_failed_sync(root, log_file=log_file, promises=promises, recordings=recordings)


def test_a_failed_sync_that_was_said_and_promises_before_it_are_no_violation(tmp_path):
    assert failed_sync(tmp_path / "store", promises=[Promise("K", 4999, 0)]) == []


def test_a_failed_sync_must_be_said_last(tmp_path):
    (violation,) = failed_sync(tmp_path / "store", said=SAID + "info went on\n")
    assert "went on" in violation


def test_syncs_that_fail_together_are_a_line_each(tmp_path):
    (last,) = SAID.splitlines()[1:]
    promises = [Promise("K", 4999, 0)]
    assert failed_sync(tmp_path / "store", said=f"{SAID}{last}\n", promises=promises) == []


def test_a_promise_behind_a_failed_sync_is_found(tmp_path):
    (violation,) = failed_sync(tmp_path / "store", promises=[Promise("K1", 4999, 0), Promise("K2", 5000, 0)])
    assert "K2" in violation
    assert "K1" not in violation


def test_a_report_behind_a_failed_sync_is_found(tmp_path):
    for name, highest in (("good", 5000), ("bad", 5001)):
        write_session(
            tmp_path / name / "session",
            [Event(at, Kind.REPORTED, offset=offset, aux=offset) for at, offset in enumerate((100, highest))],
            role="SLAVE",
        )
    assert failed_sync(tmp_path / "store", recordings=tmp_path / "good") == []
    (violation,) = failed_sync(tmp_path / "store", recordings=tmp_path / "bad")
    assert "5001" in violation


def test_a_failed_sync_without_abort_is_found(tmp_path):
    failed_sync(tmp_path / "store")
    (tmp_path / "store" / "abort").unlink()
    assert check_failed_sync(
        tmp_path / "store", log_file=tmp_path / "store.log", promises=[], recordings=None
    ) == ["store: no abort after a failed sync"]

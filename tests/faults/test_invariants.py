"""The checks find what they are for, in stores, logs and recordings that are made by hand."""

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
)
from tests.faults.producer import Promise
from tests.faults.support import FILE_BYTES, fill
from tests.sessions.sessions import Event, write_session
from trioha.recording.events import CloseReason, Kind, PutStatus


def cut(store, promise):
    """Take away the log from this message on."""
    offset = promise.physical_offset
    for file in sorted((store / "commitlog").iterdir()):
        kept_bytes = max(0, offset - int(file.name))
        file.write_bytes(file.read_bytes()[:kept_bytes].ljust(FILE_BYTES, b"\0"))


def test_promises_that_a_store_lacks_are_found(tmp_path):
    root, slave = tmp_path / "master", tmp_path / "slave"
    promises, end_offset = fill(root)
    assert check_promises(promises, [root], copies=1, when="now") == []
    assert check_clean_store(root, file_bytes=FILE_BYTES, end_offset=end_offset) == []
    shutil.copytree(root, slave)
    (too_short,) = check_logs_equal([root, slave], end_offset=end_offset + 1)
    assert too_short.startswith(f"slave does not end at {end_offset + 1}: ")
    cut(slave, promises[-2])
    (violation,) = check_promises(promises, [slave], copies=1, when="after the kill")
    assert violation.startswith(
        "after the kill: 2 of 30 messages that were answered PUT_OK are on fewer than 1 of 1 stores: "
        f"K28 at offset {promises[-2].physical_offset} is held by 0"
    )
    # One of two copies is enough where one is needed.
    assert check_promises(promises, [root, slave], copies=1, when="now") == []
    assert len(check_promises(promises, [root, slave], copies=2, when="now")) == 1
    other = Promise(promises[0].key, promises[0].physical_offset, crc32(b"another body"))
    assert len(check_promises([other], [root], copies=1, when="now")) == 1
    (differs, *_) = check_logs_equal([root, slave], end_offset=end_offset)
    assert f"ends at offset {promises[-2].physical_offset}" in differs


def test_what_a_clean_stop_must_not_leave_is_found(tmp_path):
    root = tmp_path / "master"
    _, end_offset = fill(root)
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
    assert check_process_logs([tmp_path / "good.log", tmp_path / "bad.log"]) == [
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


def reports(*offsets, own_max=300):
    return [Event(at, Kind.REPORTED, conn=1, offset=offset, aux=own_max) for at, offset in enumerate(offsets)]


def problems_of(folder, *, end_offset=300, unclean_ends=1):
    found = check_recordings(folder, copies_needed=1, end_offset=end_offset, unclean_ends=unclean_ends)
    return [problem.partition("session: ")[2] or problem for problem in found]


DIVERGED = Event(9, Kind.CLOSED, conn=1, offset=300, aux=300, flags=CloseReason.DIVERGED)


@pytest.mark.parametrize(
    ("role", "events", "problem"),
    [
        ("MASTER", master_events(), None),
        ("MASTER", master_events(ack_offset=301), "ack-within-sent: ack 301, sent was 300"),
        ("MASTER", master_events(ack_offset=99), "acks-go-forward: ack 99 after 100"),
        ("MASTER", master_events(put_ok_offset=301), "put-ok-has-copies: PUT_OK of request 1 at 301, "),
        ("MASTER", master_events(ack_offset=250), "put-ok-has-copies: PUT_OK of request 1 at 300, "),
        ("MASTER", master_events(copies_needed=0), "1 puts waited for less than 1 copies"),
        ("MASTER", [Event(1, Kind.DROPPED, aux=3)], "nothing-dropped: 3 events were dropped"),
        ("SLAVE", reports(200, 300), None),
        ("SLAVE", reports(300, 200), "reports-go-forward: reported 200 after 300"),
        ("SLAVE", reports(300, own_max=299), "report-within-log: reported 300, the own log ends at 299"),
        ("SLAVE", reports(200), "the highest report was 200, not 300"),
        ("SLAVE", [*reports(300), DIVERGED], "a connection ended as DIVERGED, own log 300"),
    ],
)
def test_a_node_that_records_what_cannot_be_is_found(tmp_path, role, events, problem):
    write_session(tmp_path / "session", events, role=role, broker_id=int(role == "SLAVE"))
    (first, *_) = problems_of(tmp_path) or [None]
    assert first == problem or first.startswith(problem)


def test_sessions_that_end_early_open_or_damaged_are_found(tmp_path):
    path = write_session(tmp_path / "session", master_events())
    assert problems_of(tmp_path, end_offset=400) == ["no connection's last ack was 400, but [300]"]
    assert problems_of(tmp_path, unclean_ends=0) == [
        f"{tmp_path.name}: 1 sessions were not closed, 0 nodes were killed"
    ]
    (segment,) = (path / "events").iterdir()
    data = bytearray(segment.read_bytes())
    data[-48 * 3] ^= 1
    segment.write_bytes(data)
    assert problems_of(tmp_path)[0].endswith("wrong check word or seq")


LAST = "trioha: /s: fsync failed: Input/output error; check the disk\n"
SAID = f"2026-11-21T22:38:34.676718Z [info     ] store closed           flushed_offset=5000\n{LAST}"


@pytest.mark.parametrize(
    ("said", "has_abort", "promised", "reported", "problem"),
    [
        (SAID, True, 4999, 5000, None),
        # Syncs that fail together are a line each.
        (SAID + LAST, True, 4999, 5000, None),
        (SAID + "info went on\n", True, 4999, 5000, "went on"),
        (SAID, False, 4999, 5000, "no abort after a failed sync"),
        (SAID, True, 5000, 5000, "PUT_OK was said of K5000"),
        (SAID, True, 4999, 5001, "5001 was reported"),
    ],
)
def test_a_promise_after_a_failed_sync_is_found(tmp_path, *, said, has_abort, promised, reported, problem):
    store = tmp_path / "store"
    store.mkdir()
    if has_abort:
        (store / "abort").touch()
    log_file = tmp_path / "store.log"
    log_file.write_text(f"info started\n{said}")
    write_session(tmp_path / "recordings" / "session", reports(100, reported, own_max=reported), role="SLAVE")
    promises = [Promise(f"K{offset}", offset, 0) for offset in (4000, promised)]
    found = check_failed_sync(store, log_file=log_file, promises=promises, recordings=tmp_path / "recordings")
    assert len(found) == (problem is not None)
    assert (problem or "") in "".join(found)

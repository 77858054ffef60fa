"""The rules of a slave's replication without I/O: tail check, gaps, divergence, start of an empty slave."""

import itertools
import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.store.support import FILE_BYTES, log_bytes, message, open_log
from trioha.config.keys.ha import StartFrom
from trioha.ha.followed_log import ReplicationError
from trioha.ha.frames import FrameHeader
from trioha.ha.replication_session import WAITED_S, ReplicationSession, ReplicationSettings
from trioha.recording.events import CloseReason

TAIL_BYTES = 20_000


def filled(directory, *, count=60, seed=1, size=4000):
    log, _ = open_log(directory)
    rng = random.Random(seed)
    for _ in range(count):
        log.append(message(rng.randbytes(size)))
    return log


def replica_of(master, directory, end_offset):
    """A copy of the master's log up to a record's end at or before `end_offset`."""
    from trioha.store.replica import ReplicaAppender

    log, _ = open_log(directory)
    appender = ReplicaAppender(log)
    offset = 0
    while offset < end_offset:
        data = master.read(offset, min(7000, end_offset - offset))
        appender.append(data)
        offset += len(data)
    appender.discard()
    return log


def serve(session, master, *, frame_bytes=5000, request=None):
    """Send what a RocketMQ master would send from the session's first report to the end of its log."""
    request = session.begin() if request is None else request
    offset = request or master.max_offset - master.max_offset % FILE_BYTES
    while data := bytes(master.read(offset, frame_bytes)):
        session.receive_header(FrameHeader(offset, len(data)))
        session.receive_body(memoryview(data))
        offset += len(data)
    return request, offset


@pytest.fixture
def master(tmp_path):
    return filled(tmp_path / "master")


def settings_with(**options):
    return ReplicationSettings(tail_check_bytes=TAIL_BYTES, **options)


@given(part=st.floats(0.02, 1.0), tail_bytes=st.sampled_from([0, 1, 3000, TAIL_BYTES, 10**9]))
@resources_closed()
def test_a_slave_that_holds_a_prefix_replicates_to_the_end(tmp_path_factory, part, tail_bytes):
    folder = tmp_path_factory.mktemp("follow")
    master = filled(folder / "master")
    log = replica_of(master, folder / "slave", round(master.max_offset * part))
    end_offset = log.max_offset
    session = ReplicationSession(log, ReplicationSettings(tail_check_bytes=tail_bytes))
    request = session.begin()
    if end_offset:
        assert max(1, end_offset - max(tail_bytes, 4200 if tail_bytes else 0)) <= request <= end_offset
        assert (request == end_offset) == (tail_bytes == 0)
        assert request > (end_offset - 1) // FILE_BYTES * FILE_BYTES - 1
    serve(session, master, request=request)
    start = log.min_offset
    assert log_bytes(log) == log_bytes(master)[start:]
    assert session.ack_offset == master.max_offset


def test_nothing_beyond_the_request_is_acked_before_the_tail_was_compared(master, tmp_path):
    log = replica_of(master, tmp_path / "slave", 50_000)
    session = ReplicationSession(log, settings_with())
    request = session.begin()
    assert (session.ack_offset, session.is_checked) == (request, False)
    half = (log.max_offset - request) // 2
    session.receive_header(FrameHeader(request, half))
    session.receive_body(master.read(request, half))
    assert (session.ack_offset, session.next_offset) == (request, request + half)
    rest = log.max_offset - request - half
    session.receive_header(FrameHeader(request + half, rest))
    session.receive_body(master.read(request + half, rest))
    assert (session.ack_offset, session.is_checked) == (log.max_offset, True)


@pytest.mark.parametrize("back", [1, 9000, 15_000])
def test_a_differing_byte_in_the_tail_is_found_and_nothing_is_overwritten(master, tmp_path, back):
    log = replica_of(master, tmp_path / "slave", 50_000)
    offset = log.max_offset - back
    log.files[0].view[offset] ^= 1
    before = log_bytes(log)
    session = ReplicationSession(log, settings_with())
    request = session.begin()
    assert request <= offset
    with pytest.raises(ReplicationError, match=f"differ at offset {offset}") as raised:
        serve(session, master, request=request)
    assert (raised.value.reason, raised.value.offset) == (CloseReason.DIVERGED, offset)
    assert log_bytes(log) == before


def test_a_master_that_ends_inside_the_tail_is_found_by_its_second_heartbeat(master, tmp_path):
    log = replica_of(master, tmp_path / "slave", 50_000)
    shorter = replica_of(master, tmp_path / "shorter", 45_000)
    session = ReplicationSession(log, settings_with())
    _, offset = serve(session, shorter)
    session.receive_header(FrameHeader(offset, 0))
    with pytest.raises(ReplicationError, match=f"the master's at {shorter.max_offset}") as raised:
        session.receive_header(FrameHeader(offset, 0))
    assert raised.value.reason is CloseReason.AHEAD


def test_a_master_with_nothing_at_the_request_is_found_by_its_second_heartbeat(master, tmp_path):
    log = replica_of(master, tmp_path / "slave", 50_000)
    session = ReplicationSession(log, settings_with())
    request = session.begin()
    session.receive_header(FrameHeader(request, 0))
    with pytest.raises(ReplicationError) as raised:
        session.receive_header(FrameHeader(request, 0))
    assert (raised.value.reason, raised.value.offset) == (CloseReason.GAP, request)


@pytest.mark.parametrize(("answer", "reason"), [(100, CloseReason.AHEAD), (10 * FILE_BYTES, CloseReason.GAP)])
def test_the_offset_that_a_trioha_master_answers_names_gap_or_ahead(master, tmp_path, answer, reason):
    log = replica_of(master, tmp_path / "slave", 50_000)
    session = ReplicationSession(log, settings_with())
    session.begin()
    with pytest.raises(ReplicationError, match=str(answer)) as raised:
        session.receive_header(FrameHeader(answer, 0))
    assert raised.value.reason is reason


def test_an_empty_slave_starts_at_the_last_file_by_default(master, tmp_path):
    log, _ = open_log(tmp_path / "slave")
    assert serve(ReplicationSession(log, settings_with()), master)[0] == 0
    assert log.min_offset == 3 * FILE_BYTES
    assert log.max_offset == master.max_offset


def test_an_empty_slave_can_replicate_all_history_of_an_unmodified_master(master, tmp_path):
    log, _ = open_log(tmp_path / "slave")
    session = ReplicationSession(log, settings_with(start=StartFrom.EARLIEST))
    assert serve(session, master)[0] == 1
    assert log_bytes(log) == log_bytes(master)


def test_a_first_record_that_does_not_start_with_zero_is_refused_before_any_ack(master, tmp_path):
    log, _ = open_log(tmp_path / "slave")
    session = ReplicationSession(log, settings_with(start=StartFrom.EARLIEST))
    session.begin()
    session.receive_header(FrameHeader(1, 1000))
    with pytest.raises(ReplicationError) as raised:
        session.receive_body(memoryview(bytes(range(1, 251)) * 4))
    assert raised.value.reason is CloseReason.BAD_RECORD
    assert log.is_empty


@pytest.mark.parametrize("first_file", [1, 3, 8, 9])
def test_without_the_masters_first_files_the_slave_finds_the_first_one_served(tmp_path, first_file):
    """An unmodified master whose log begins at `first_file` of 10: it answers with data or heartbeats
    only."""
    last_file = 9
    log, _ = open_log(tmp_path / "slave")
    seconds = itertools.count(0.0, WAITED_S / 2)
    session = ReplicationSession(log, settings_with(start=StartFrom.EARLIEST), clock=lambda: next(seconds))
    asked = []
    for _ in range(12):
        request = session.begin()
        asked.append(request)
        start = request or last_file * FILE_BYTES
        if start == log.max_offset > 0:
            session.receive_header(FrameHeader(start, 500))
            break
        is_there = start >= first_file * FILE_BYTES
        with pytest.raises(ReplicationError) as raised:  # noqa: PT012 - the first heartbeat may not be enough
            session.receive_header(FrameHeader(start, 500 if is_there else 0))
            session.receive_header(FrameHeader(start, 0))
        assert raised.value.reason is CloseReason.PROBED
    # The start of a file is requested when no put before it waits any more: a request is an ack.
    assert (asked[:4], asked[-1]) == ([1, 0, 1, 0], first_file * FILE_BYTES)
    assert len(asked) <= 9
    assert log.min_offset == first_file * FILE_BYTES


def test_a_file_that_an_empty_master_did_not_have_is_requested_again(master, tmp_path):
    log, _ = open_log(tmp_path / "slave")
    seconds = itertools.count(0.0, WAITED_S)
    session = ReplicationSession(log, settings_with(start=StartFrom.EARLIEST), clock=lambda: next(seconds))
    for request in (1, 0, 1):
        assert session.begin() == request
        if request == 1 and log.is_empty:
            session.receive_header(FrameHeader(1, 0))
        with pytest.raises(ReplicationError) as raised:
            session.receive_header(FrameHeader(request, 0))
        assert raised.value.reason is CloseReason.PROBED
    # Meanwhile the master has filled several files: the search ends at the first of them.
    assert session.begin() == 0
    with pytest.raises(ReplicationError):
        session.receive_header(FrameHeader(3 * FILE_BYTES, 500))
    for _ in range(5):
        with suppress(ReplicationError):
            serve(session, master)
            break
    assert log_bytes(log) == log_bytes(master)


def test_a_slave_that_came_before_the_first_put_waits_for_no_later_file(master, tmp_path):
    """The master had nothing at the first request, and several files at the next one."""
    log, _ = open_log(tmp_path / "slave")
    session = ReplicationSession(log, settings_with(start=StartFrom.EARLIEST), clock=lambda: 0.0)
    assert session.begin() == 1
    session.receive_header(FrameHeader(1, 0))
    for answer, next_request in (
        (FrameHeader(1, 0), 0),
        (FrameHeader(3 * FILE_BYTES, 500), 1),
        (FrameHeader(1, 500), 1),
    ):
        with pytest.raises(ReplicationError) as raised:
            session.receive_header(answer)
        assert raised.value.reason is CloseReason.PROBED
        assert session.begin() == next_request
    assert serve(session, master)[0] == 1
    assert log_bytes(log) == log_bytes(master)


def test_a_trioha_master_answers_with_the_start_of_its_first_file(tmp_path):
    log, _ = open_log(tmp_path / "slave")
    session = ReplicationSession(log, settings_with(start=StartFrom.EARLIEST))
    assert session.begin() == 1
    with pytest.raises(ReplicationError) as raised:
        session.receive_header(FrameHeader(4 * FILE_BYTES, 0))
    assert raised.value.reason is CloseReason.PROBED
    assert session.begin() == 4 * FILE_BYTES == log.min_offset


def test_an_empty_slave_can_start_at_the_file_of_an_offset(master, tmp_path):
    log, _ = open_log(tmp_path / "slave")
    request, _ = serve(ReplicationSession(log, settings_with(start=FILE_BYTES + 777)), master)
    assert request == FILE_BYTES == log.min_offset
    assert log_bytes(log) == log_bytes(master)[FILE_BYTES:]


@pytest.mark.parametrize(("ends_with_blank", "tail_bytes"), [(False, 1), (True, 1), (True, 3000)])
def test_a_last_record_or_blank_that_is_longer_than_the_check_is_compared(
    master, tmp_path, ends_with_blank, tail_bytes
):
    log, _ = open_log(tmp_path / "slave")
    log.append(message(b"first"))
    log.append(message(bytes(60_000 if ends_with_blank else 4000)))
    if ends_with_blank:
        # The next record does not fit: a blank of some 5 KB ends the file.
        log.append(message(bytes(6000)))
        last = replica_of(log, tmp_path / "cut", FILE_BYTES)
        assert last.max_offset == FILE_BYTES
        log = last
    session = ReplicationSession(log, ReplicationSettings(tail_check_bytes=tail_bytes))
    request = session.begin()
    assert request == log.starts.last() < log.max_offset - tail_bytes
    assert (session.is_checked, session.ack_offset) == (False, request)
    with pytest.raises(ReplicationError) as raised:
        serve(session, master, request=request)
    assert raised.value.reason is CloseReason.DIVERGED


def test_the_only_record_is_compared_from_its_second_byte(master, tmp_path):
    log = replica_of(master, tmp_path / "slave", 5000)
    assert log.starts.last() == 0
    session = ReplicationSession(log, ReplicationSettings(tail_check_bytes=10))
    assert session.begin() == 1
    serve(session, master, request=1)
    assert log_bytes(log) == log_bytes(master)


def test_a_start_beyond_the_masters_end_is_ahead(tmp_path):
    log, _ = open_log(tmp_path / "slave")
    session = ReplicationSession(log, settings_with(start=2 * FILE_BYTES + 100))
    assert session.begin() == 2 * FILE_BYTES
    for end_offset in (1000, FILE_BYTES):
        with pytest.raises(
            ReplicationError, match=f"told to begin at 131172, the master's log ends at {end_offset}"
        ) as raised:
            session.receive_header(FrameHeader(end_offset, 0))
        assert raised.value.reason is CloseReason.AHEAD
        assert session.begin() == 2 * FILE_BYTES == log.min_offset


def test_an_empty_log_that_starts_after_its_masters_end_requests_anew(tmp_path):
    log, _ = open_log(tmp_path / "slave")
    session = ReplicationSession(log, settings_with())
    assert session.begin() == 0
    session.receive_header(FrameHeader(3 * FILE_BYTES, 0))
    assert session.begin() == 3 * FILE_BYTES
    with pytest.raises(ReplicationError) as raised:
        session.receive_header(FrameHeader(FILE_BYTES, 0))
    assert raised.value.reason is CloseReason.PROBED
    assert session.begin() == 0 == log.max_offset


def test_an_observer_requests_no_later_offset_than_the_given_one(master, tmp_path):
    log = replica_of(master, tmp_path / "slave", 50_000)
    session = ReplicationSession(log, settings_with())
    assert session.begin(at_most=12_345) == 12_345
    assert session.begin(at_most=0) == 1
    serve(session, master, request=1)
    assert log_bytes(log) == log_bytes(master)


def test_an_observer_that_started_at_a_later_file_requests_from_its_own_start(master, tmp_path):
    log, _ = open_log(tmp_path / "slave")
    serve(ReplicationSession(log, settings_with()), master)
    assert log.min_offset == 3 * FILE_BYTES
    assert ReplicationSession(log, settings_with()).begin(at_most=0) == 3 * FILE_BYTES

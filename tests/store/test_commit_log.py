"""The commit log: appends, limits, rolling and reading."""

import errno
import os
import weakref

import pytest

from tests.descriptors import close_after_test, open_descriptors
from tests.store.crashes import CrashingDisk
from tests.store.support import FILE_BYTES, HOST, log_bytes, message, open_log
from trioha.errors import StoreError
from trioha.store import mapped_file
from trioha.store.mapped_file import MappedFile, create_atomically
from trioha.store.message_offsets import MultiDispatch
from trioha.store.put_status import PutStatus
from trioha.store.record import Blank, Host, Record, decode_record, encode_record

# Everything of a record but body, topic "Orders" and no properties.
OVERHEAD = 91 + 6


def test_an_append_gives_the_record_its_offsets_and_moves_the_end(tmp_path):
    log, _ = open_log(tmp_path)
    first = log.append(message(b"one", queue_id=3))
    second = log.append(message(b"two", queue_id=3, properties=b"TAGS\x01x\x02", flag=9))
    assert (first.status, first.physical_offset, first.queue_offset) == (PutStatus.PUT_OK, 0, 0)
    assert (second.physical_offset, second.queue_offset) == (first.end_offset, 1)
    assert log.max_offset == second.end_offset == first.size + second.size
    record = decode_record(log.read(second.physical_offset, FILE_BYTES))
    assert isinstance(record, Record)
    assert (record.body, record.flag, record.queue_id, record.store_host) == (b"two", 9, 3, HOST)
    assert record.message_id == second.message_id
    assert encode_record(record) == bytes(log.read(second.physical_offset, second.size))


def test_queue_offsets_are_counted_per_topic_and_queue(tmp_path):
    log, _ = open_log(tmp_path)
    found = [
        log.append(message(topic=t, queue_id=int(q))).queue_offset for t, q in ("A0", "A0", "A1", "B0", "A0")
    ]
    assert found == [0, 1, 0, 0, 2]


def test_a_file_of_the_log_is_on_disk_when_it_gets_its_name(tmp_path):
    with CrashingDisk().in_use() as disk:
        close_after_test(MappedFile.create(tmp_path, start_offset=0, size=FILE_BYTES))
    assert disk.calls == ["posix_fallocate", "fsync", "link", "fsync"]


@pytest.mark.parametrize(("sys_flag", "counted"), [(0x0, True), (0x4, False), (0x8, True), (0xC, False)])
def test_prepared_and_rolled_back_messages_take_no_queue_offset(tmp_path, sys_flag, counted):
    log, _ = open_log(tmp_path)
    log.append(message())
    assert log.append(message(sys_flag=sys_flag)).queue_offset == (1 if counted else 0)
    assert log.append(message()).queue_offset == (2 if counted else 1)


def test_ipv6_hosts_are_stored_with_their_flags(tmp_path):
    log, _ = open_log(tmp_path, store_host=Host.parse("fe80::1", 9))
    result = log.append(message(born_host=Host.parse("::1", 5)))
    record = decode_record(log.read(0, FILE_BYTES))
    assert (record.sys_flag, result.size) == (0x30, OVERHEAD + 5 + 24)
    assert len(result.message_id) == 56


def test_a_record_that_leaves_less_than_eight_bytes_goes_to_the_next_file(tmp_path):
    log, _ = open_log(tmp_path)
    fits = log.append(message(bytes(FILE_BYTES - OVERHEAD - 8 - OVERHEAD)))
    assert log.append(message(b"")).end_offset == FILE_BYTES - 8
    rolled = log.append(message(b"next"))
    assert (fits.physical_offset, rolled.physical_offset) == (0, FILE_BYTES)
    assert decode_record(log.read(FILE_BYTES - 8, 100)) == Blank(-1, 8)
    assert [file.path.name for file in log.files] == [f"{0:020d}", f"{FILE_BYTES:020d}"]


def test_a_record_of_exactly_the_file_less_eight_bytes_fits(tmp_path):
    log, _ = open_log(tmp_path)
    assert log.append(message(bytes(FILE_BYTES - OVERHEAD - 8))).end_offset == FILE_BYTES - 8


def test_a_record_that_no_file_can_hold_is_illegal_and_changes_nothing(tmp_path):
    log, _ = open_log(tmp_path)
    refused = log.append(message(bytes(FILE_BYTES - OVERHEAD - 7)))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert "never fits" in refused.reason
    assert (log.max_offset, log.queue_offsets, list(tmp_path.iterdir())) == (0, {}, [])


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"body": bytes(1001)}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "t" * 128}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": "%RETRY%" + "t" * 249}, PutStatus.MESSAGE_ILLEGAL),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL),
        ({"properties": bytes(32768)}, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ({"body": bytes(1000)}, PutStatus.PUT_OK),
        ({"topic": "t" * 127}, PutStatus.PUT_OK),
        ({"topic": "%RETRY%" + "t" * 248}, PutStatus.PUT_OK),
        ({"properties": b"a\x01" + b"b" * 32764 + b"\x02"}, PutStatus.PUT_OK),
        ({"body": b""}, PutStatus.PUT_OK),
    ],
)
def test_limits_are_those_of_the_broker(tmp_path, fields, status):
    log, _ = open_log(tmp_path, message_bytes_max=1000)
    assert log.append(message(**fields)).status is status


def test_a_long_retry_topic_makes_a_v2_record(tmp_path):
    log, _ = open_log(tmp_path)
    topic = "%RETRY%" + "g" * 150
    log.append(message(topic=topic))
    assert decode_record(log.read(0, FILE_BYTES)).topic == topic


def test_a_read_never_crosses_a_file_and_never_leaves_the_log(tmp_path):
    log, _ = open_log(tmp_path)
    for _ in range(40):
        log.append(message(bytes(3000)))
    assert len(log.read(0, 10)) == 10
    assert len(log.read(0, 10**9)) == FILE_BYTES
    assert len(log.read(FILE_BYTES - 5, 100)) == 5
    assert len(log.read(log.max_offset - 7, 100)) == 7
    assert len(log.read(log.max_offset, 100)) == 0
    assert len(log.read(log.max_offset + 1, 100)) == 0
    assert len(log.read(-1, 100)) == 0
    assert len(log_bytes(log)) == log.max_offset


def test_a_file_that_cannot_be_made_refuses_the_put_and_keeps_the_log_as_it_was(tmp_path, monkeypatch):
    log, _ = open_log(tmp_path)
    log.append(message(bytes(60000)))
    end_offset = log.max_offset

    def no_space(directory, *, start_offset, size):
        raise StoreError("no space left", path=directory)

    with monkeypatch.context() as patched:
        patched.setattr(MappedFile, "create", no_space)
        assert log.append(message(bytes(60000))).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert log.max_offset == end_offset
        assert log.append(message(b"small one still fits")).status is PutStatus.PUT_OK
    assert log.append(message(bytes(60000))).physical_offset == FILE_BYTES


def test_a_preallocated_file_is_used_once_and_a_late_one_is_dropped(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message(bytes(60000)))
    ahead = MappedFile.create(tmp_path, start_offset=FILE_BYTES, size=FILE_BYTES)
    log.preallocate(ahead)
    assert log.has_preallocated
    log.append(message(bytes(60000)))
    assert not log.has_preallocated
    assert log.files[-1] is ahead
    log.preallocate(MappedFile.create(tmp_path, start_offset=FILE_BYTES, size=FILE_BYTES))
    assert decode_record(log.read(FILE_BYTES, FILE_BYTES)).body == bytes(60000)
    log.preallocate(MappedFile.create(tmp_path, start_offset=2 * FILE_BYTES, size=FILE_BYTES))
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{0:020d}", f"{FILE_BYTES:020d}"]


@pytest.mark.parametrize("how", ["cut", "archive"])
def test_a_preallocated_file_that_was_deleted_meanwhile_is_not_used(tmp_path, how):
    """The log and a worker thread have both made it; the worker's comes after a cut or restart of the log."""
    log, _ = open_log(tmp_path / "log")
    late_offset = FILE_BYTES if how == "cut" else 0
    directory = log.directory
    if how == "archive":
        directory.mkdir(exist_ok=True)
    ahead = MappedFile.create(directory, start_offset=late_offset, size=FILE_BYTES)
    late = MappedFile.create(directory, start_offset=late_offset, size=FILE_BYTES)
    if how == "cut":
        ends = [log.append(message(bytes(30_000))).end_offset for _ in range(2)]
        log.preallocate(ahead)
        log.append(message(bytes(60_000)))
        log.flushed.advance(log.max_offset)
        log.cut(ends[0], last_store_timestamp_ms=log.starts.store_timestamp_before(ends[0]))
        log.puts_blocked = False
    else:
        log.preallocate(ahead)
        log.append(message(b"old"))
        log.archive(tmp_path / "aside")
    log.preallocate(late)
    assert not log.has_preallocated
    while log.max_offset <= FILE_BYTES:
        log.append(message(bytes(30_000)))
    data = log_bytes(log)
    log.close()
    found = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    assert found[: len(data)] == data


def test_an_empty_log_can_begin_at_any_file_start(tmp_path):
    log, _ = open_log(tmp_path)
    log.start_at(3 * FILE_BYTES)
    assert (log.min_offset, log.max_offset, log.is_empty) == (3 * FILE_BYTES, 3 * FILE_BYTES, True)
    assert log.append(message()).physical_offset == 3 * FILE_BYTES
    assert not log.is_empty
    with pytest.raises(AssertionError):
        log.start_at(0)


@pytest.mark.parametrize("nameless_files", [True, False])
def test_a_file_has_its_name_only_when_it_is_whole(tmp_path, monkeypatch, nameless_files):
    if not nameless_files:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    directory = tmp_path / "commitlog"
    directory.mkdir()
    reserve = mapped_file.reserve

    def look(fd, size):
        assert list(directory.iterdir()) == []
        reserve(fd, size)

    monkeypatch.setattr(mapped_file, "reserve", look)
    file = close_after_test(MappedFile.create(directory, start_offset=FILE_BYTES, size=FILE_BYTES))
    assert (file.path.name, file.path.stat().st_size) == (f"{FILE_BYTES:020d}", FILE_BYTES)
    assert file.path.stat().st_mode & 0o777 == 0o644
    file.view[:4] = b"data"
    again = close_after_test(MappedFile.create(directory, start_offset=FILE_BYTES, size=FILE_BYTES))
    assert bytes(again.view[:4]) == b"data"
    assert [path.name for path in tmp_path.iterdir()] == ["commitlog"]


@pytest.mark.parametrize("nameless_files", [True, False])
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_a_file_is_as_readable_as_the_umask_allows(tmp_path, monkeypatch, nameless_files, umask, mode):
    (tmp_path / "commitlog").mkdir()
    if not nameless_files:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    before = os.umask(umask)
    try:
        os.close(create_atomically(tmp_path / "commitlog" / "0", lambda _fd: None))
    finally:
        os.umask(before)
    assert (tmp_path / "commitlog" / "0").stat().st_mode & 0o777 == mode


def test_a_closed_file_has_no_descriptor_and_ends_its_mapping_at_once_or_with_its_last_slice(tmp_path):
    before = open_descriptors()
    file = MappedFile.create(tmp_path, start_offset=0, size=FILE_BYTES)
    mapping = file.view.obj
    file.close()
    assert mapping.closed
    assert open_descriptors() == before
    file.hold()
    file.view[:4] = b"data"
    part = file.view[:4]
    mapping = weakref.ref(file.view.obj)
    file.close()
    assert open_descriptors() == before
    assert bytes(part) == b"data"
    part.release()
    assert mapping() is None


def test_a_file_that_cannot_be_reserved_is_not_left_on_disk(tmp_path, monkeypatch):
    def full(fd, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mapped_file, "reserve", full)
    with pytest.raises(StoreError, match="no 65536 bytes could be reserved: No space left on device"):
        MappedFile.create(tmp_path, start_offset=0, size=FILE_BYTES)
    assert list(tmp_path.iterdir()) == []


# -- messages without a queue -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [".", "..", "a/b", "../../etc", "a\0b", "half \ud800"])
def test_a_topic_that_no_queue_can_be_made_for_is_refused_and_not_stored(topic, tmp_path):
    log = close_after_test(open_log(tmp_path)[0])
    refused = log.append(message(topic=topic))
    assert (refused.status, log.max_offset, log.queue_offsets) == (PutStatus.MESSAGE_ILLEGAL, 0, {})
    assert refused.reason.startswith("topic ")


def test_a_put_for_a_queue_too_many_is_refused_and_not_stored(tmp_path):
    log = close_after_test(open_log(tmp_path)[0])
    log.queues_max = 3
    for queue_id in range(3):
        assert log.append(message(queue_id=queue_id)).status is PutStatus.PUT_OK
    end_offset = log.max_offset
    refused = log.append(message(topic="Invented", queue_id=7))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert refused.reason == "no room for queue 7 of 'Invented': there are 3, trioha.queuesMax is 3"
    assert (log.max_offset, len(log.queue_offsets)) == (end_offset, 3)
    # Existing queues accept messages, and a prepared message enters none.
    assert log.append(message(queue_id=2)).queue_offset == 1
    assert log.append(message(topic="Half", sys_flag=0x4)).status is PutStatus.PUT_OK
    assert len(log.queue_offsets) == 3


def test_other_queues_count_for_the_limit_and_need_legal_names(tmp_path):
    log = close_after_test(open_log(tmp_path)[0])
    log.multi_dispatch = MultiDispatch(enabled=True, light_queues=True)
    log.queues_max = 3
    refused = log.append(message(properties=b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b,%LMQ%c"))
    assert (refused.status, log.max_offset) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
    assert refused.reason == "4 queues more than the 3 that trioha.queuesMax allows"
    refused = log.append(message(properties=b"INNER_MULTI_DISPATCH\x01%LMQ%../a"))
    assert (refused.status, log.max_offset) == (PutStatus.MESSAGE_ILLEGAL, 0)
    # The same queue twice is one queue.
    assert (
        log.append(message(properties=b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%a,%LMQ%b")).status
        is PutStatus.PUT_OK
    )
    assert len(log.queue_offsets) == 3
    assert log.append(message(properties=b"INNER_MULTI_DISPATCH\x01%LMQ%b")).status is PutStatus.PUT_OK


def test_memory_for_made_up_topics_is_bounded_by_the_limit(tmp_path):
    log = close_after_test(open_log(tmp_path)[0])
    log.queues_max = 100
    for number in range(1000):
        log.append(message(topic=f"topic-{number}"))
    assert len(log.queue_offsets) == 100

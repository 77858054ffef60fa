"""What a store holds for delivery, read from its files."""

import shutil

import pytest

from tests.broker.pending_records import (
    FAILOVER,
    KILLED_AT,
    POPS,
    SENT,
    TIMERS,
    append,
    pending_check_points,
    recorded,
    recorded_offsets,
    stored,
    with_properties,
)
from tests.clocks import Clock
from tests.store.whole_stores import dispatch
from trioha.broker.pending import count_pending, pending_text, revived_offsets, stored_check_point
from trioha.broker_status import PendingStatus
from trioha.metadata.documents import TimerCheckPoint, TimerState
from trioha.metadata.files import write_metadata
from trioha.metadata.pretty_json import encode_pretty
from trioha.store import queue_folders
from trioha.store.message_properties import parse_properties
from trioha.store.queue_folders import QueueFolders
from trioha.store.topics import REVIVE_TOPIC_PREFIX, TIMER_TOPIC

TIMER_RECORDS = recorded(TIMERS)
POP_RECORDS = [record for record in recorded(FAILOVER) if record.physical_offset < KILLED_AT]
LEFT = PendingStatus(
    timers=8,
    timers_first_ms=1795807052000,
    timers_last_ms=1796066247000,
    popped=6,
    popped_first_ms=1795806510896,
    popped_groups={"FT@FG": 6},
)


def counted(root, **options):
    return count_pending(root, **{"revived": {}, **options}).status


def test_a_master_that_was_killed_left_timers_and_popped_messages(tmp_path):
    stored(tmp_path, [*POP_RECORDS, *TIMER_RECORDS[:SENT]])
    assert counted(tmp_path) == LEFT


def test_timers_are_done_whose_copies_are_in_the_queues_that_they_name(tmp_path):
    stored(tmp_path, TIMER_RECORDS)
    found = counted(tmp_path)
    assert (found.timers, found.timers_first_ms, found.timers_last_ms) == (1, 1796066247000, 1796066247000)


def test_a_log_without_timers_has_nothing_pending(tmp_path):
    plain = [record for record in recorded(FAILOVER) if record.topic == "FT"]
    stored(tmp_path, plain)
    assert counted(tmp_path) == PendingStatus()
    assert counted(tmp_path / "nothing") == PendingStatus()


SENT_MS = 1795807050000
"""About when the timers of `TIMERS` were sent."""
MASTER_CHECK_POINT = TimerCheckPoint(1795807081000, 16)
"""Of the broker that `TIMERS` is from, at the end."""
WITHOUT_COPIES = [one for one in TIMER_RECORDS if one.body != b"body-crowd0" or one.topic == TIMER_TOPIC]


TIMER_CHECK_FILE = MASTER_CHECK_POINT.encode() + bytes(4096 - 56)


def write_timer_check(root, data=TIMER_CHECK_FILE):
    (root / "config").mkdir(exist_ok=True)
    path = root / "config/timercheck"
    path.write_bytes(data)
    return path


def test_what_the_check_points_of_rocketmq_say_is_done_is_not_pending(tmp_path):
    stored(tmp_path, WITHOUT_COPIES, clock=Clock(SENT_MS))
    found = count_pending(tmp_path, revived={})
    path = tmp_path / "config/timercheck"
    assert (found.status.timers, found.timers_from_ms) == (2, 1795807058000)
    assert found.doubt == f"{path}: is missing"
    answered = count_pending(tmp_path, revived={}, check_point=MASTER_CHECK_POINT)
    assert (answered.status.timers, answered.doubt) == (1, "")
    write_timer_check(tmp_path)
    read = count_pending(tmp_path, revived={}, check_point=TimerCheckPoint(1, 1))
    assert (read, count_pending(tmp_path, revived={})) == (answered, answered)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is damaged: 0 bytes, not 4096"),
        (MASTER_CHECK_POINT.encode(), "is damaged: 56 bytes, not 4096"),
        (bytes(5000), "is damaged: more than 4096 bytes, not 4096"),
        (b"\xff" * 4096, "is damaged: a time or an offset below 0"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_a_damaged_check_point_is_named_and_counts_nothing_as_done(tmp_path, data, reason):
    stored(tmp_path, WITHOUT_COPIES, clock=Clock(SENT_MS))
    path = write_timer_check(tmp_path, data or b"")
    if data is None:
        path.unlink()
        path.mkdir()
    found = count_pending(tmp_path, revived={})
    assert (found.status.timers, found.doubt) == (2, f"{path}: {reason}")


def test_a_count_without_timers_needs_no_check_point(tmp_path):
    stored(tmp_path, POP_RECORDS)
    write_timer_check(tmp_path, b"")
    assert count_pending(tmp_path, revived={}).doubt == ""


def test_the_first_slot_that_waits_may_be_that_of_a_pop(tmp_path):
    store = stored(tmp_path, TIMER_RECORDS[:SENT], clock=Clock(SENT_MS))
    assert count_pending(tmp_path, revived={}).timers_from_ms == 1795807052000
    for record in POP_RECORDS:
        append(store, record)
    dispatch(store)
    slots_ms = {
        int(parse_properties(record.properties_raw)["TIMER_OUT_MS"])
        for record in POP_RECORDS
        if record.topic == TIMER_TOPIC
    }
    first_ms = count_pending(tmp_path, revived={}).timers_from_ms
    assert first_ms in slots_ms
    assert first_ms < 1795807052000
    # Copies that are in the revive topic do not wait.
    for record in recorded(FAILOVER):
        if record.topic.startswith(REVIVE_TOPIC_PREFIX):
            append(store, record)
    dispatch(store)
    assert count_pending(tmp_path, revived={}).timers_from_ms == 1795807052000


def test_the_answer_of_a_former_master_is_read_from_the_tables(tmp_path):
    assert stored_check_point(tmp_path) is None
    state = TimerState()
    state.set_check_point(MASTER_CHECK_POINT)
    write_metadata(tmp_path / state.file_name, encode_pretty(state.snapshot()()))
    assert stored_check_point(tmp_path) == MASTER_CHECK_POINT


def test_offsets_of_the_master_say_what_was_given_again(tmp_path):
    stored(tmp_path, recorded(*POPS))
    left = sum(len(one.offsets) for one in pending_check_points(recorded(*POPS)))
    assert counted(tmp_path).popped == left > 40
    assert counted(tmp_path, revived=revived_offsets(recorded_offsets())).popped == 0


def test_what_comes_after_the_end_is_not_counted(tmp_path):
    store = stored(tmp_path, TIMER_RECORDS[:3])
    end_offset = store.commit_log.max_offset
    append(store, TIMER_RECORDS[3])
    dispatch(store)
    assert counted(tmp_path, end_offset=end_offset).timers == 3
    assert counted(tmp_path).timers == 4


def test_many_records_in_many_files_are_read_in_the_order_of_the_log(tmp_path):
    timer, copy = TIMER_RECORDS[2], TIMER_RECORDS[15]
    assert timer.body == copy.body
    number = 400
    for_keys = [
        [with_properties(one, UNIQ_KEY=f"{index:032}") for index in range(number)] for one in (timer, copy)
    ]
    store = stored(tmp_path, [*for_keys[0], *for_keys[1][: number - 5], *for_keys[0][:2]])
    assert len(store.commit_log.files) > 3
    assert len(list((tmp_path / "consumequeue/rmq_sys_wheel_timer/0").iterdir())) > 10
    steps = []
    found = counted(tmp_path, on_step=lambda offset, end: steps.append((offset, end)))
    assert found.timers == 7
    assert len(steps) == 797 // queue_folders.RECORDS_PER_STEP
    assert sorted(steps) == steps

    offsets = [
        record.physical_offset
        for record in QueueFolders.of(tmp_path).records([("rmq_sys_wheel_timer", 0), ("TopicTimer", 2)])
    ]
    assert (len(offsets), sorted(offsets)) == (797, offsets)


def test_deleted_log_files_take_their_timers_with_them(tmp_path):
    timers = [with_properties(TIMER_RECORDS[2], UNIQ_KEY=f"{index:032}") for index in range(400)]
    store = stored(tmp_path, timers)
    first = min((tmp_path / "commitlog").iterdir())
    in_first = sum(record.physical_offset < store.commit_log.file_bytes for record in _all(tmp_path))
    assert 0 < in_first < 400
    first.unlink()
    assert counted(tmp_path).timers == 400 - in_first


def _all(root):
    return QueueFolders.of(root).records([("rmq_sys_wheel_timer", 0)])


@pytest.mark.parametrize("topic", ["../../outside", "/etc", "..", "T\0"])
def test_a_timer_for_a_topic_that_is_no_folder_is_pending_and_leads_nowhere(tmp_path, topic):
    store = stored(tmp_path / "store", [with_properties(TIMER_RECORDS[2], REAL_TOPIC=topic)])
    shutil.copytree(tmp_path / "store/consumequeue/rmq_sys_wheel_timer", tmp_path / "outside")
    assert counted(store.settings.root).timers == 1


def test_a_disk_that_refuses_is_part_of_the_answer(tmp_path):
    stored(tmp_path, TIMER_RECORDS[:SENT])
    queue_file = min((tmp_path / "consumequeue/rmq_sys_wheel_timer/0").iterdir())
    queue_file.unlink()
    queue_file.mkdir()
    found = counted(tmp_path)
    assert found.error == f"{queue_file}: cannot be read: Is a directory"
    assert pending_text(found).startswith("what is pending could not be counted: ")


def rocksdb(folder, *, data=b""):
    folder.mkdir(parents=True)
    for name in ("CURRENT", "MANIFEST-000005", "000004.log"):
        (folder / name).write_bytes(b"x" if name != "000004.log" else data)


def test_rocksdb_stores_with_data_are_named(tmp_path):
    stored(tmp_path, TIMER_RECORDS[:SENT])
    rocksdb(tmp_path / "rocksdbstore")
    rocksdb(tmp_path / "kvStore", data=b"data")
    rocksdb(tmp_path / "config/users", data=b"data")
    rocksdb(tmp_path / "newKind", data=b"data")
    (tmp_path / "000001.log").write_bytes(b"not RocksDB")
    found = counted(tmp_path)
    assert found.unread_stores == (
        "config/users (users of access control 2.0)",
        "kvStore (popped messages)",
        "newKind (RocksDB)",
    )
    assert (found.timers, found.error) == (8, "")


def test_a_store_with_rocksdb_queues_only_is_not_said_to_have_nothing_pending(tmp_path):
    stored(tmp_path, TIMER_RECORDS[:SENT])
    rocksdb(tmp_path / "rocksdb")
    queues = tmp_path / "consumequeue"
    for path in (tmp_path / "rocksdb").iterdir():
        path.rename(queues / path.name)
    found = counted(tmp_path)
    assert (found.unread_stores, found.timers) == (("consumequeue (consume queues)",), 8)
    assert found.error == ""
    # A node that is started on it builds its own queues, which it does not have before.
    for path in queues.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    found = counted(tmp_path)
    assert found.unread_stores == ("consumequeue (consume queues)",)
    assert "its consume queues are in RocksDB" in found.error


def test_the_sentence_names_numbers_times_and_groups(monkeypatch):
    monkeypatch.setattr("trioha.broker.pending.time_text", lambda time_ms: f"<{time_ms}>")
    assert pending_text(PendingStatus()) == ""
    assert pending_text(LEFT) == (
        "8 timers due from <1795807052000> to <1796066247000>; "
        "6 popped messages without acknowledgement of FT@FG (6), since <1795806510896>"
    )
    one = PendingStatus(timers=1, timers_first_ms=5, timers_last_ms=5, unreadable=1)
    assert pending_text(one) == "1 timer due at <5>; 1 record of pops in an unknown format"
    groups = {f"T@G{number}": 9 - number for number in range(7)}
    many = PendingStatus(popped=42, popped_first_ms=7, popped_groups=groups)
    assert pending_text(many) == (
        "42 popped messages without acknowledgement of "
        "T@G0 (9), T@G1 (8), T@G2 (7), T@G3 (6), T@G4 (5) and 2 more, since <7>"
    )

"""The table of open transactions, the schedule of checks, and their restoring from records."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.timing import timer_messages
from tests.levels import by_level
from trioha.broker.half_messages import HalfMessage, half_message, is_half_message, op_body, op_offsets
from trioha.broker.transaction_restore import TransactionRestore
from trioha.broker.transaction_table import CheckSchedule, OpenTransaction, Position, TransactionTable
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import MAGIC_V1, body_crc
from trioha.store.topics import HALF_TOPIC

HOST = Host.parse("127.0.0.1", 10911)


def transaction(offset, *, check_at_s=0.0):
    return OpenTransaction.of(offset, offset * 1000, check_at_s=check_at_s)


def table_of(*offsets, half_end=None):
    table = TransactionTable(Position(0, 0))
    for offset in offsets:
        table.add(transaction(offset))
    table.note_read(max(offsets, default=-1) + 1 if half_end is None else half_end)
    return table


# -- the table -----------------------------------------------------------------------------------------------


def test_a_transaction_is_found_until_it_ends_and_its_op_record_is_pending_until_it_is_written():
    table = table_of(0, 1)
    table.end(table.find(0))
    assert (table.find(0), table.pending_ops, len(table)) == (None, (0,), 2)
    table.op_written(0, [0])
    assert (table.pending_ops, len(table)) == ((), 1)
    assert table.find(1).physical_offset == 1000


def test_the_position_stays_before_what_is_open_or_pending_and_before_half_messages_that_were_not_read():
    table = table_of(0, 1, 2, half_end=3)
    table.end(table.find(0))
    table.end(table.find(1))
    assert table.position == Position(0, 0)
    table.op_written(0, [0])
    assert table.position == Position(1, 1)
    table.op_written(1, [1])
    assert table.position == Position(2, 2)
    table.renew(table.find(2), 10, 10_000, check_at_s=0.0)
    assert table.position == Position(3, 2)
    table.note_read(11)
    assert table.position == Position(10, 2)


def test_op_records_are_read_again_as_long_as_one_of_them_names_a_half_message_that_is_read_again():
    table = table_of(*range(1000))
    for offset in range(1, 1000):
        table.end(table.find(offset))
        table.op_written(offset - 1, [offset])
    assert table.position == Position(0, 0)
    table.end(table.find(0))
    table.op_written(999, [0])
    assert table.position == Position(1000, 1000)


def test_a_renewed_transaction_is_found_by_its_first_copy_and_by_its_last_two():
    table = table_of(0)
    newest = table.find(0)
    for offset in (5, 8, 9):
        newest = table.renew(newest, offset, offset * 1000, check_at_s=1.0)
    assert [table.find(offset) is newest for offset in (0, 5, 8, 9)] == [True, False, True, True]
    table.end(table.find(0))
    assert [table.find(offset) for offset in (0, 5, 8, 9)] == [None] * 4
    assert table.pending_ops == (9,)


def test_transactions_are_due_once_each_in_the_order_of_their_times():
    table = TransactionTable(Position(0, 0))
    for offset, time_s in enumerate((30.0, 10.0, 20.0)):
        table.add(transaction(offset, check_at_s=time_s))
    assert table.next_check_s == 10.0
    assert table.next_due(9.0) is None
    assert [table.next_due(20.0).queue_offset for _ in range(2)] == [1, 2]
    assert table.next_due(20.0) is None
    table.postpone(table.find(1), check_at_s=25.0)
    assert table.next_check_s == 25.0
    table.end(table.find(1))
    assert table.next_check_s == 30.0


def test_what_has_ended_takes_no_memory_while_an_old_transaction_is_open():
    table = table_of(0)
    for offset in range(1, 20_000):
        table.add(transaction(offset))
        table.note_read(offset + 1)
        table.end(table.find(offset))
        table.op_written(offset - 1, [offset])
    assert len(table) == 1
    assert max(len(table._offsets), len(table._checks)) < 2000
    assert len(table._marks) < 20_000 / 50


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(3, 20, 1000)))
def test_the_position_never_passes_what_a_reader_would_miss(seed):
    """Beside a model: the set of open half messages, and every op record with what it names."""
    chance = random.Random(seed)
    table = TransactionTable(Position(0, 0))
    end, ops, undecided = 0, [], set()
    for _ in range(400):
        action = chance.random()
        if action < 0.4 or not undecided:
            table.add(transaction(end))
            undecided.add(end)
            end += 1
            table.note_read(end)
        elif action < 0.5:
            old = chance.choice(sorted(undecided))
            table.renew(table.find(old), end, end * 1000, check_at_s=0.0)
            undecided ^= {old, end}
            end += 1
            table.note_read(end)
        elif action < 0.8:
            chosen = chance.choice(sorted(undecided))
            table.end(table.find(chosen))
            undecided.remove(chosen)
        elif table.pending_count:
            names = table.pending_ops[: chance.randint(1, 5)]
            table.op_written(len(ops), names)
            ops.append(names)
        position = table.position
        assert {each.queue_offset for each in table} == undecided
        assert all(position.half_offset <= offset for offset in (*undecided, *table.pending_ops))
        assert all(max(names) < position.half_offset for names in ops[: position.op_offset])


# -- the schedule --------------------------------------------------------------------------------------------


def test_rounds_are_at_multiples_of_the_interval_after_the_start():
    schedule = CheckSchedule(start_s=100.0, interval_s=30.0)
    assert [schedule.round_at(time_s) for time_s in (0.0, 130.0, 130.1, 160.0)] == [
        130.0,
        130.0,
        160.0,
        160.0,
    ]
    assert [schedule.round_after(time_s) for time_s in (0.0, 129.9, 130.0, 159.0)] == [
        130.0, 130.0, 160.0, 160.0,
    ]  # fmt: skip


@given(st.floats(0, 1e6), st.sampled_from((0.001, 0.1, 30.0, 60.1)), st.floats(0, 1e6))
def test_the_round_after_a_round_is_a_later_one_whatever_the_floating_point_numbers_are(
    start_s, interval_s, now_s
):
    schedule = CheckSchedule(start_s=start_s, interval_s=interval_s)
    at_s = schedule.round_at(now_s)
    following_s = schedule.round_after(at_s)
    assert following_s > at_s + schedule.tolerance_s
    assert schedule.round_at(at_s) == at_s
    assert schedule.round_at(following_s) == following_s


# -- half messages and op records ----------------------------------------------------------------------------


def half(offset, *, key="K", born_ms=1000, body=b"b", **properties):
    properties = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": key, **properties}
    record = Record(
        MAGIC_V1, body_crc(body), 0, 0, offset, offset * 1000, 0, born_ms, HOST, 2000, HOST, 0, 0, body,
        HALF_TOPIC, encode_properties({name: text for name, text in properties.items() if text}),
    )  # fmt: skip
    found = HalfMessage.of(memoryview(encode_record(record)))
    assert found is not None
    return found


def restored(halves, ops=(), *, start=0, end=100):
    """First, previous and newest offset of each open transaction."""
    restore = TransactionRestore(Position(start, 0), half_end=end)
    for number, offsets in enumerate(ops):
        restore.op_record(number, offsets)
    for each in halves:
        restore.half_message(each, check_at_s=7.0)
    return sorted((each.first_offset, each.previous_offset, each.queue_offset) for each in restore.finish())


def test_half_messages_without_an_op_record_are_open():
    halves = [half(offset, key=f"K{offset}") for offset in range(4)]
    assert restored(halves, [[1], [0, 99, 5]]) == [(2, 2, 2), (3, 3, 3)]


def test_a_copy_for_a_check_makes_the_older_copies_void():
    halves = [
        half(0),
        half(1, key="other"),
        half(2, TRANSACTION_CHECK_TIMES="1"),
        half(3, TRANSACTION_CHECK_TIMES="2"),
    ]
    assert restored(halves) == [(0, 2, 3), (1, 1, 1)]
    # Decided at its newest copy, it is not open at an older one.
    assert restored(halves, [[3]]) == [(1, 1, 1)]


def test_a_half_message_that_was_sent_twice_is_two_transactions_until_one_of_them_is_checked():
    assert restored([half(0), half(1)]) == [(0, 0, 0), (1, 1, 1)]


@pytest.mark.parametrize("change", [{"born_ms": 999}, {"PGROUP": "h"}, {"key": "L"}, {"key": None}])
def test_a_copy_of_another_message_makes_none_void(change):
    assert restored([half(0, **change), half(1, TRANSACTION_CHECK_TIMES="1")]) == [(0, 0, 0), (1, 1, 1)]


def test_an_op_record_of_the_first_copy_decides_a_copy_that_was_moved():
    moved = half(5, TRAN_PREPARED_QUEUE_OFFSET="2")
    assert restored([half(2), moved]) == [(2, 2, 5)]
    assert restored([half(2), moved], [[2]]) == []
    # The first copy is before the position.
    assert restored([moved], start=3) == [(2, 5, 5)]


def test_op_records_of_both_versions_are_read_and_what_is_no_number_is_passed_over():
    assert op_offsets(b"0") == [0]
    assert op_offsets(op_body([1, 0, 12])) == [1, 0, 12]
    assert op_offsets(b"3,x,-1,,\xff,99999999999999999999,4") == [3, 4]
    assert op_body([1, 0]) == b"1,0,"


def test_a_half_message_keeps_the_real_topic_and_queue_and_loses_its_transaction_bits_and_delay():
    properties = encode_properties({"TRAN_MSG": "true", "UNIQ_KEY": "K", "DELAY": "3"})
    sent = Message("Orders", 3, b"b", properties, sys_flag=0x305)
    kept = half_message(sent, timer_messages(lambda: 0))
    assert (kept.topic, kept.queue_id, kept.sys_flag) == (HALF_TOPIC, 0, 0x301)
    assert parse_properties(kept.properties) == {
        "TRAN_MSG": "true",
        "UNIQ_KEY": "K",
        "__transactionId__": "K",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
    }


@pytest.mark.parametrize(
    ("properties", "reconsume_times", "expected"),
    [
        ("TRAN_MSG\x01true\x02", 0, True),
        ("TRAN_MSG\x01TRUE", 0, True),
        ("TRAN_MSG\x01false\x02", 0, False),
        ("A\x01TRAN_MSG\x02", 0, False),
        ("TRAN_MSG\x01true\x02DELAY\x013\x02", 0, True),
        ("TRAN_MSG\x01true\x02DELAY\x013\x02", 1, False),
        ("TRAN_MSG\x01true\x02", 1, True),
    ],
)
def test_the_property_tran_msg_begins_a_transaction_but_not_in_a_retry(properties, reconsume_times, expected):
    assert is_half_message(properties.encode(), reconsume_times=reconsume_times) is expected


def test_ages_are_by_the_producers_clock_if_it_is_not_ahead():
    assert half(0, born_ms=500).age_ms(2600) == 2100
    assert half(0, born_ms=5000).age_ms(2600) == 600
    assert half(0, born_ms=0).age_ms(1000) == 0


@pytest.mark.parametrize(
    ("seconds", "expected"), [("9", 9000), ("3", 6000), ("-1", 6000), ("x", 6000), (None, 6000)]
)
def test_an_immunity_lengthens_the_time_before_the_first_check(seconds, expected):
    assert half(0, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds).immunity_ms(default_ms=6000) == expected

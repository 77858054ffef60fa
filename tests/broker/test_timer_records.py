"""Which timers of a RocketMQ 5.5.0 broker are pending, by the records that it wrote."""

import tracemalloc

import pytest
from attrs import evolve

from tests.broker.pending_records import (
    SENT,
    TIMERS,
    in_timer_topic,
    pending_timers,
    recorded,
    with_properties,
)
from trioha.broker.timer_records import PendingTimers, real_queue
from trioha.metadata.documents import TimerCheckPoint
from trioha.store.message_properties import parse_properties
from trioha.store.topics import TIMER_TOPIC

RECORDS = recorded(TIMERS)
RECALLED_AT = 1 + next(index for index, one in enumerate(RECORDS) if one.body == b"0")
DELIVERED = ["deliverMs", "deliverOnSecond", "delaySec", "delayMs", "rolled", "crowd0", "crowd1"]


def pending(records):
    """Bodies of what is pending, without their beginning, and when it is due."""
    bodies = {record.physical_offset: record.body.decode().removeprefix("body-") for record in records}
    return {bodies[one.physical_offset]: one.slot_ms for one in pending_timers(records)}


def record(body):
    """The first record with that body."""
    return next(one for one in RECORDS if one.body == f"body-{body}".encode())


def copies(body):
    """All others, in the order of the log."""
    return [one for one in RECORDS if one.body == f"body-{body}".encode()][1:]


def test_what_was_sent_and_not_delivered_rolled_away_or_recalled_is_pending():
    assert pending(RECORDS[:SENT]).keys() == {*DELIVERED, "atLimit"}
    assert pending(RECORDS) == {"atLimit": 1796066247000}


def test_after_each_record_all_are_pending_that_are_sent_and_not_delivered():
    waiting = set()
    for number, one in enumerate(RECORDS, 1):
        body = one.body.decode().removeprefix("body-")
        if one.topic == TIMER_TOPIC and body != "0":
            waiting.add(body)
        elif one.topic != TIMER_TOPIC and b"TIMER_DEQUEUE_MS" in one.properties_raw:
            waiting.remove(body)
        if number >= RECALLED_AT:
            waiting.discard("recalled")
        assert pending(RECORDS[:number]).keys() == waiting, number


def test_a_timer_that_rolls_is_pending_once_where_it_was_put_last():
    first, *later = [one for one in in_timer_topic(RECORDS) if one.body == b"body-atLimit"]
    assert len(later) == 2
    assert [one.queue_offset for one in pending_timers([first, *later])] == [later[-1].queue_offset]
    # Its first record may be deleted with its log file.
    assert [one.queue_offset for one in pending_timers(later)] == [later[-1].queue_offset]


def test_an_entry_says_where_its_record_is():
    (one,) = pending_timers([record("atLimit")])
    assert (one.queue_offset, one.physical_offset, one.size) == (4, 2551, 354)
    assert one.stored_ms == 1795807048078


def test_a_timer_that_may_roll_is_in_no_slot_before_it_rolls():
    day_ms = 86_400_000
    one = record("atLimit")
    (far,), (near,) = (
        pending_timers([with_properties(one, TIMER_OUT_MS=str(one.store_timestamp_ms + ahead_ms))])
        for ahead_ms in (2 * day_ms, day_ms)
    )
    assert day_ms - 3_600_000 == far.wheel_ms - far.stored_ms
    assert near.wheel_ms == near.slot_ms


LOST = ["crowd0", "crowd1"]
"""Of the slot 1795807058000, at the queue offsets 8 and 9, before the slot of the last copy."""


@pytest.mark.parametrize(
    ("last_read_ms", "queue_offset", "is_done"),
    [
        (1795807058001, 10, [True, True]),
        (1795807058000, 10, [False, False]),
        (1795807058001, 9, [True, False]),
        (1795807058001, 8, [False, False]),
        (0, 0, [False, False]),
    ],
)
def test_a_timer_without_a_copy_is_done_if_the_masters_check_point_is_after_it(
    last_read_ms, queue_offset, is_done
):
    kept = [one for one in RECORDS if one not in [copy for body in LOST for copy in copies(body)]]
    assert [one.queue_offset for one in pending_timers(kept)] == [8, 9, 15]
    check_points = [TimerCheckPoint(0, 100), TimerCheckPoint(last_read_ms, queue_offset)]
    waiting = [one.queue_offset for one in pending_timers(kept, check_points)]
    assert waiting == [offset for offset, done in zip([8, 9], is_done, strict=True) if not done] + [15]


def test_a_check_point_says_nothing_of_what_the_log_ends_before():
    """The log of a slave may end before what its master had delivered."""
    slot_ms = 1795807052000
    check_points = [TimerCheckPoint(1 << 62, 1 << 62)]
    in_slot = ["deliverOnSecond", "delaySec", "delayMs"]
    sent = RECORDS[:SENT]
    assert len(pending_timers(sent, check_points)) == len(pending_timers(sent)) == 8
    one_copy = [*sent, copies("delaySec")[0]]
    slots_ms = [one.slot_ms for one in pending_timers(one_copy, check_points)]
    assert slots_ms.count(slot_ms) == len(in_slot) - 1
    later_copy = [*sent, copies("crowd0")[0]]
    assert min(one.slot_ms for one in pending_timers(later_copy, check_points)) == 1795807058000


@pytest.mark.parametrize("order", [1, -1], ids=["timer first", "recall first"])
@pytest.mark.parametrize("prefix", ["", "TopicTimer"], ids=["key", "topic and key"])
def test_a_recall_drops_the_timer_in_either_order(order, prefix):
    timer = record("recalled")
    recall = next(one for one in RECORDS if one.body == b"0")
    key = parse_properties(recall.properties_raw)["TIMER_DEL_UNIQKEY"]
    recall = with_properties(recall, TIMER_DEL_UNIQKEY=prefix + key)
    assert pending_timers([timer, recall][::order]) == []
    another_slot = with_properties(recall, TIMER_OUT_MS="1795807069000")
    assert len(pending_timers([timer, another_slot][::order])) == 1


def test_a_message_that_was_sent_twice_is_pending_twice_and_done_one_for_one():
    timer, (copy,) = record("delaySec"), copies("delaySec")
    again = evolve(timer, physical_offset=timer.physical_offset + 1)
    assert len(pending_timers([timer, again])) == 2
    assert [one.physical_offset for one in pending_timers([timer, again, copy])] == [again.physical_offset]
    assert pending_timers([timer, again, copy, copy]) == []
    assert pending_timers([timer, copy, copy]) == []


def test_messages_without_a_unique_key_are_known_by_their_birth_and_body():
    timer, (copy,) = (with_properties(record("delaySec"), UNIQ_KEY=None), copies("delaySec"))
    copy = with_properties(copy, UNIQ_KEY=None)
    born_later = evolve(timer, born_timestamp_ms=timer.born_timestamp_ms + 1)
    assert pending_timers([timer, copy]) == []
    assert len(pending_timers([born_later, copy])) == 1


def test_a_message_that_brings_a_slot_of_its_own_neither_waits_nor_delivers():
    timer = record("deliverMs")
    key = parse_properties(timer.properties_raw)
    preset = with_properties(record("preset"), UNIQ_KEY=key["UNIQ_KEY"], TIMER_OUT_MS=key["TIMER_OUT_MS"])
    assert pending_timers([preset]) == []
    assert len(pending_timers([timer, preset])) == 1


@pytest.mark.parametrize("slot", ["", "soon", "-1", "9" * 30, "1_0"])
def test_a_slot_that_is_no_time_is_no_timer(slot):
    assert pending_timers([with_properties(record("delaySec"), TIMER_OUT_MS=slot or None)]) == []


def test_a_timer_names_the_queue_where_it_is_delivered():
    assert real_queue(parse_properties(record("delaySec").properties_raw)) == ("TopicTimer", 2)
    assert real_queue({"REAL_TOPIC": "T", "REAL_QID": "-1"}) is None
    assert real_queue({"REAL_QID": "1"}) is None


def test_a_pending_timer_takes_less_than_200_bytes():
    number = 20_000
    timer, timers = record("atLimit"), PendingTimers()
    properties = parse_properties(timer.properties_raw)
    tracemalloc.start()
    try:
        for index in range(number):
            timers.add(timer, {**properties, "UNIQ_KEY": f"{index:032}"})
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(list(timers)) == number
    assert used_bytes / number < 200

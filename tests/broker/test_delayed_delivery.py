"""Delayed messages come at their time: after restarts, changes of the clock and refused puts, too."""

import pytest
import trio
from attrs import evolve

from tests.broker.sending import TOPIC, Sending
from tests.ha.support import settled
from tests.store.support import VECTORS, copy_store, expected, receive
from trioha.broker import delayed_delivery
from trioha.broker.delayed_delivery import (
    CLOCK_CHECK_S,
    END_S,
    PUBLISH_S,
    RETRY_S,
    SLICE_MESSAGES,
)
from trioha.broker.delayed_messages import delivered
from trioha.errors import StoreError
from trioha.metadata.offsets import DelayOffsets
from trioha.metadata.pretty_json import parse_pretty
from trioha.remoting.codes import ResponseCode
from trioha.store.message_properties import parse_properties
from trioha.store.put_status import PutStatus
from trioha.store.record import decode_record


@pytest.fixture
async def broker(tmp_path, wall):
    return Sending(tmp_path, wall)


async def test_a_message_comes_when_its_delay_is_over_and_not_earlier(broker, nursery, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await trio.sleep(3)
    for level, body in ((3, b"ten"), (1, b"one"), (2, b"five")):
        await broker.delayed(level, body)
    await trio.sleep(0.5)
    await broker.delayed(1, b"one-and-a-half")
    await trio.sleep(60)
    assert broker.deliveries == [(4.0, b"one"), (4.5, b"one-and-a-half"), (8.0, b"five"), (13.0, b"ten")]
    assert [broker.offsets.find(level) for level in (1, 2, 3)] == [2, 1, 1]
    assert broker.delivery.delivered == 4


async def test_a_delivered_message_has_its_topic_queue_and_properties(broker, nursery, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    answer = await broker.send(
        b"body",
        queue_id=3,
        sys_flag=0x301,
        reconsume_times=4,
        properties={"TAGS": "t", "DELAY": "1", "KEYS": "k", "WAIT": "true"},
    )
    # The answer has the queue that the producer chose, and the offset in the level's queue.
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("3", "0")
    await trio.sleep(2)
    waiting, record = broker.records()
    assert (waiting.topic, waiting.queue_id) == ("SCHEDULE_TOPIC_XXXX", 0)
    same = evolve(
        waiting, topic=TOPIC, queue_id=3, physical_offset=record.physical_offset,
        store_timestamp_ms=record.store_timestamp_ms,
    )  # fmt: skip
    assert record == same
    assert record.store_timestamp_ms == waiting.store_timestamp_ms + 1000
    assert parse_properties(record.properties_raw) == {
        "TAGS": "t", "DELAY": "1", "KEYS": "k", "WAIT": "true", "CLUSTER": "cluster", "REAL_TOPIC": TOPIC,
        "REAL_QID": "3",
    }  # fmt: skip
    # Consumers select it by its tag, not by the time when it was due.
    broker.dispatch()
    entry = broker.store.queues.find(TOPIC, 3).entry(0)
    assert entry.tags_code == ord("t")


@pytest.mark.parametrize("name", ["store-4.9.7", "store-5.3.3"])
def test_a_message_is_delivered_as_real_brokers_delivered_theirs(name, tmp_path):
    described = [one for one in expected(name)["messages"] if not one.get("blank")]
    log = b"".join(file.read_bytes() for file in sorted((VECTORS / name / "store" / "commitlog").iterdir()))
    records = [decode_record(log, one["physicalOffset"]) for one in described]
    pairs = 0
    for record in records:
        if record.topic != "SCHEDULE_TOPIC_XXXX":
            continue
        message = delivered(record)
        key = parse_properties(record.properties_raw)["UNIQ_KEY"]
        for real in records:
            if real.topic != message.topic or real.physical_offset < record.physical_offset:
                continue
            if parse_properties(real.properties_raw).get("UNIQ_KEY") != key:
                continue
            pairs += 1
            assert message.queue_id == real.queue_id
            assert parse_properties(message.properties) == parse_properties(real.properties_raw)
            assert (message.body, message.flag, message.sys_flag) == (real.body, real.flag, real.sys_flag)
            assert (message.born_timestamp_ms, message.born_host) == (real.born_timestamp_ms, real.born_host)
            assert message.reconsume_times == real.reconsume_times
            assert message.prepared_transaction_offset == real.prepared_transaction_offset
    assert pairs == 2


@pytest.mark.parametrize("name", ["store-4.9.7", "store-5.3.3"])
async def test_delivery_goes_on_where_a_real_broker_stopped(name, tmp_path, wall, autojump_clock, nursery):
    root = copy_store(name, tmp_path)
    offsets = DelayOffsets()
    offsets.load(parse_pretty((root / "config" / "delayOffset.json").read_text()))
    levels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    broker = Sending(root, wall, offsets=offsets, levels=levels)
    # Two messages of level 18 had not come when the broker stopped; long after that they are due.
    nursery.start_soon(broker.delivery.run)
    await settled()
    assert [body for _, body in broker.deliveries] == [b"delay level 18", b"delay level 99 clamps"]
    assert [offsets.find(level) for level in (1, 3, 18)] == [1, 1, 2]


async def test_after_a_restart_delivery_goes_on_at_the_offset_of_each_level(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.delivery.run)
        await broker.delayed(1, b"came")
        await broker.delayed(2, b"due-while-down")
        await broker.delayed(3, b"due-later")
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert broker.deliveries == [(1.0, b"came")]
    broker.close()
    kept = DelayOffsets()
    kept.load(dict(broker.offsets.snapshot()()))
    await trio.sleep(6)
    again = Sending(tmp_path, wall, offsets=kept)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.delivery.run)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert again.deliveries == [(8.0, b"due-while-down"), (10.0, b"due-later")]
    again.close()


# -- offsets wait until deliveries are safe --------------------------------------------------------------


class Safe:
    """The end of what a master's loss does not take."""

    def __init__(self, offset=0):
        self.offset = offset

    def __call__(self):
        return self.offset


async def test_an_offset_follows_when_the_delivered_record_is_safe(tmp_path, wall, autojump_clock, nursery):
    """A slave that has the offset and not the record would never deliver the message."""
    safe = Safe()
    broker = Sending(tmp_path, wall, safe_offset=safe)
    nursery.start_soon(broker.delivery.run)
    ends = []
    for body in (b"first", b"second"):
        await broker.delayed(1, body)
        await trio.sleep(1.5)
        ends.append(broker.log.max_offset)
    assert [body for _, body in broker.deliveries] == [b"first", b"second"]
    assert broker.delivery.progress()[0].delivered_offset == 2
    assert broker.offsets.find(1) == 0
    for safe.offset, published in ((ends[0] - 1, 0), (ends[0], 1), (ends[1] - 1, 1), (ends[1], 2)):
        await trio.sleep(2 * PUBLISH_S)
        assert broker.offsets.find(1) == published


async def test_a_message_whose_delivery_was_not_safe_is_delivered_again(tmp_path, wall, autojump_clock):
    safe = Safe()
    broker = Sending(tmp_path, wall, safe_offset=safe)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.delivery.run)
        await broker.delayed(1, b"safe")
        await trio.sleep(2)
        safe.offset = broker.log.max_offset
        await broker.delayed(1, b"not safe")
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    broker.close()
    again = Sending(tmp_path, wall, offsets=broker.offsets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.delivery.run)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert [body for _, body in again.deliveries] == [b"not safe"]
    again.close()


async def test_the_end_of_delivery_waits_a_moment_for_the_last_deliveries(tmp_path, wall, autojump_clock):
    safe = Safe()
    broker = Sending(tmp_path, wall, safe_offset=safe)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.delivery.run)
        await broker.delayed(1, b"last")
        await trio.sleep(1.2)
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(END_S / 2)
            safe.offset = broker.log.max_offset
    assert broker.offsets.find(1) == 1
    broker.close()


async def test_a_stuck_slave_holds_up_the_offsets_and_no_delivery(
    tmp_path, wall, autojump_clock, nursery, monkeypatch
):
    """What waits is bounded: steps are joined, and none is published before it is safe."""
    steps_max = 64
    monkeypatch.setattr(delayed_delivery, "UNPUBLISHED_MAX", steps_max)
    safe = Safe()
    broker = Sending(tmp_path, wall, safe_offset=safe)
    nursery.start_soon(broker.delivery.run)
    ends = {}
    for number in range(steps_max + steps_max // 4):
        await broker.delayed(1, b"%d" % number)
        await trio.sleep(1.1)
        ends[number + 1] = broker.log.max_offset
    assert broker.delivery.delivered == len(ends)
    assert broker.offsets.find(1) == 0
    for count in (1, 30, len(ends) // 2, len(ends)):
        safe.offset = ends[count]
        await trio.sleep(2 * PUBLISH_S)
        published = broker.offsets.find(1) or 0
        assert count - 8 < published <= count
    assert published == len(ends)


async def test_a_backlog_of_one_level_does_not_hold_up_the_others(broker, nursery, autojump_clock):
    for number in range(5 * SLICE_MESSAGES):
        await broker.delayed(1, b"%d" % number)
    await broker.delayed(2, b"other")
    await trio.sleep(20)
    nursery.start_soon(broker.delivery.run)
    await settled()
    came = [body for _, body in broker.deliveries]
    assert sorted(came) == sorted([b"other", *(b"%d" % number for number in range(5 * SLICE_MESSAGES))])
    assert came.index(b"other") == SLICE_MESSAGES
    assert [body for body in came if body != b"other"] == [b"%d" % n for n in range(5 * SLICE_MESSAGES)]


async def test_idle_delivery_sleeps_until_the_next_message_is_due(
    broker, nursery, monkeypatch, autojump_clock
):
    looked = []
    real = broker.delivery._deliver_slice
    monkeypatch.setattr(
        broker.delivery,
        "_deliver_slice",
        lambda level, now_ms: (looked.append((trio.current_time(), level.level)), real(level, now_ms)),
    )
    nursery.start_soon(broker.delivery.run)
    await trio.sleep(1000)
    assert looked == []
    await broker.delayed(1)
    # What is not delayed wakes nothing.
    await broker.send()
    await trio.sleep(1000)
    assert looked == [(1000.0, 1), (1001.0, 1)]


async def test_a_put_that_is_refused_for_now_is_tried_again_and_its_level_waits(
    broker, nursery, autojump_clock
):
    nursery.start_soon(broker.delivery.run)
    await broker.delayed(1, b"a")
    await broker.delayed(1, b"b")
    await trio.sleep(0.5)
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    await trio.sleep(3)
    assert broker.deliveries == []
    assert broker.offsets.find(1) in {None, 0}
    broker.puts.refusal = None
    await trio.sleep(10)
    assert broker.deliveries == [(1.0 + 3 * RETRY_S, b"a"), (1.0 + 3 * RETRY_S, b"b")]


@pytest.mark.parametrize(
    "properties",
    [b"DELAY\x011\x02", b"REAL_TOPIC\x01T\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01-1\x02",
     b"REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02", b"REAL_TOPIC\x01a/b\x02REAL_QID\x010\x02",
     b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02"],
)  # fmt: skip
async def test_a_record_that_names_no_queue_is_skipped(broker, nursery, properties, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    broker.put(b"bad", topic="SCHEDULE_TOPIC_XXXX", properties=properties)
    await broker.delayed(1, b"good")
    await trio.sleep(3)
    assert [body for _, body in broker.deliveries if body == b"good"] == [b"good"]
    assert (broker.offsets.find(1), broker.delivery.skipped) == (2, 1)


async def test_a_damaged_message_is_skipped(broker, nursery, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await broker.delayed(1, b"damaged")
    await broker.delayed(1, b"good")
    view = broker.log.files[0].view
    at = bytes(view[:1000]).index(b"damaged")
    view[at : at + 1] = b"D"
    await trio.sleep(3)
    assert (broker.deliveries, broker.delivery.skipped) == ([(1.0, b"good")], 1)


async def test_a_clock_that_is_set_forward_is_noticed_in_time(broker, nursery, wall, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await broker.delayed(3, b"ten")
    await trio.sleep(1)
    wall.ahead_ms = 3600_000
    await trio.sleep(60)
    ((at_s, body),) = broker.deliveries
    assert (at_s, body) == (CLOCK_CHECK_S, b"ten")


async def test_after_a_clock_that_is_set_back_no_message_waits_longer_than_its_delay(
    broker, nursery, wall, autojump_clock
):
    wall.ahead_ms = 3600_000
    await broker.delayed(3, b"ten")
    wall.ahead_ms = 0
    nursery.start_soon(broker.delivery.run)
    await settled()
    # Its due time is an hour off: what it was meant to be is not known, and it comes at once.
    assert broker.deliveries == [(0.0, b"ten")]


async def test_a_clock_that_is_set_back_while_a_message_waits_does_not_hold_it_up(
    broker, nursery, wall, autojump_clock
):
    nursery.start_soon(broker.delivery.run)
    wall.ahead_ms = 3600_000
    await broker.delayed(2, b"five")
    await trio.sleep(1)
    wall.ahead_ms = 0
    await trio.sleep(60)
    assert broker.deliveries == [(CLOCK_CHECK_S, b"five")]


@pytest.mark.parametrize("ahead_ms", [3600_000, 10 * 365 * 86_400_000])
async def test_a_clock_that_was_wrong_for_a_moment_hurries_no_later_message(
    broker, nursery, wall, autojump_clock, ahead_ms
):
    nursery.start_soon(broker.delivery.run)
    wall.ahead_ms = ahead_ms
    await broker.send(b"ahead")
    await broker.delayed(2, b"ahead")
    wall.ahead_ms = 0
    await trio.sleep(10)
    # The message itself, and the delayed one: when that was put is not known.
    assert [body for _, body in broker.deliveries] == [b"ahead", b"ahead"]
    await broker.delayed(2, b"five")
    await trio.sleep(60)
    assert broker.deliveries[2:] == [(15.0, b"five")]


async def test_a_promoted_slave_delivers_on_time_whatever_times_its_masters_records_claim(
    broker, nursery, wall, autojump_clock
):
    receive(broker.store, 2**63 - 10**9)
    nursery.start_soon(broker.delivery.run)
    await broker.delayed(2, b"five")
    await trio.sleep(60)
    assert broker.deliveries == [(5.0, b"five")]


async def test_a_small_correction_of_the_clock_hurries_no_message(broker, nursery, wall, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await broker.delayed(2, b"five")
    wall.ahead_ms = -2000
    await broker.delayed(3, b"ten")
    await trio.sleep(60)
    # By the clock each comes when it is due.
    assert broker.deliveries == [(7.0, b"five"), (10.0, b"ten")]


async def test_an_entry_that_names_another_record_is_skipped(broker, nursery, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await broker.send(b"first", properties={"REAL_TOPIC": TOPIC, "REAL_QID": "0"})
    first = broker.records()[0]
    queue = broker.store.queues.find_or_make("SCHEDULE_TOPIC_XXXX", 0)
    for number, size in enumerate((first.total_size, first.total_size - 1)):
        queue.max_physical_offset = -1
        queue.put(physical_offset=0, size=size, tags_code=0, queue_offset=number)
    queue.flush()
    broker.delivery.arrived([queue])
    await trio.sleep(10)
    assert broker.deliveries == [(0.0, b"first")]
    assert (broker.delivery.skipped, broker.offsets.find(1)) == (2, 2)


async def test_a_queue_that_cannot_be_read_is_read_again_later(broker, nursery, monkeypatch, autojump_clock):
    nursery.start_soon(broker.delivery.run)
    await broker.delayed(1, b"a")
    queue = broker.store.queues.find("SCHEDULE_TOPIC_XXXX", 0)
    entries = type(queue).entries
    tries = []

    def unreadable(self, offset, count):
        tries.append(trio.current_time())
        if len(tries) == 1:
            raise StoreError("cannot be read", path=broker.log.directory)
        return iter(()) if len(tries) == 2 else entries(self, offset, count)

    monkeypatch.setattr(type(queue), "entries", unreadable)
    await trio.sleep(60)
    assert broker.deliveries == [(1.0 + RETRY_S, b"a")]
    assert tries == [0.0, RETRY_S, 2 * RETRY_S]


async def test_messages_of_a_level_that_was_removed_come_at_their_time(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, levels="1s 5s 10s")
    await broker.delayed(3, b"ten")
    broker.close()
    fewer = Sending(tmp_path, wall, levels="1s")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fewer.delivery.run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert fewer.deliveries == [(10.0, b"ten")]
    fewer.close()


async def test_an_offset_beyond_the_queue_is_that_of_its_end(tmp_path, wall, autojump_clock, nursery):
    broker = Sending(tmp_path, wall)
    await broker.delayed(1, b"before")
    broker.close()
    offsets = DelayOffsets()
    for level in (1, 2):
        offsets.put(level, 1000)
    again = Sending(tmp_path, wall, offsets=offsets)
    nursery.start_soon(again.delivery.run)
    await again.delayed(1, b"next")
    # Level 2 had no queue: its offset was one of another log.
    await again.delayed(2, b"first")
    await trio.sleep(20)
    assert again.deliveries == [(1.0, b"next"), (5.0, b"first")]
    assert [offsets.find(level) for level in (1, 2)] == [2, 1]


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_delay_levels_go_before_times_of_delivery(broker, name, autojump_clock):
    assert (await broker.delayed(1, **{name: "5"})).code == ResponseCode.SUCCESS
    (record,) = broker.records()
    assert (record.topic, name.encode() in record.properties_raw) == ("SCHEDULE_TOPIC_XXXX", False)

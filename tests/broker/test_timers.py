"""Messages with a time of delivery, in virtual time."""

from base64 import urlsafe_b64decode

import pytest
import trio
from attrs import evolve
from structlog.testing import capture_logs

from tests.broker.pending_records import TIMERS, recorded
from tests.broker.sending import START_MS, TOPIC, Sending, properties_of
from tests.broker.timing import TIMER_SETTINGS
from tests.remoting.batches import encode_batch_body
from tests.store.support import VECTORS
from trioha.broker import timer_delivery
from trioha.broker.timer_delivery import TimerProgress
from trioha.broker.timer_messages import RecallHandle, precision_ms
from trioha.errors import StoreError
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.store.message_properties import encode_properties
from trioha.store.messages import BatchItem
from trioha.store.put_status import PutStatus
from trioha.store.topics import TIMER_TOPIC

KEY = "7F00000100002A139A550000000000AA"
ILLEGAL = (
    "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or if set "
    "del msg, the delay time should be bigger than the current time"
)
CROWDED = (
    "timer message is under flow control, max num limit is 4 or the current value is greater than 2 and less "
    "than 4, trigger random flow control"
)
DISABLED = "accurate timer message is not enabled, timerWheelEnable is false"


@pytest.fixture
async def broker(tmp_path, wall):
    return Sending(tmp_path, wall)


async def timed(broker, body=b"timer", *, key=KEY, topic=TOPIC, **properties):
    """Send a message with a time of delivery; the answer."""
    texts = {name: str(value) for name, value in properties.items()}
    return await broker.send(body, topic=topic, properties={"UNIQ_KEY": key, **texts})


async def recall(broker, handle, **fields):
    asked = {"producerGroup": "producers", "topic": TOPIC, "recallHandle": handle, **fields}
    return await broker.ask(request(RequestCode.RECALL_MESSAGE, ext_fields=asked))


def waiting(broker):
    return [properties_of(record) for record in broker.records(TIMER_TOPIC)]


# -- sends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "slot_ms"),
    [
        ({"TIMER_DELAY_SEC": 5}, START_MS + 4000),
        ({"TIMER_DELAY_MS": 5500}, START_MS + 5000),
        ({"TIMER_DELIVER_MS": START_MS + 5001}, START_MS + 5000),
        # On the border of a slot: the one before.
        ({"TIMER_DELIVER_MS": START_MS + 5000}, START_MS + 4000),
        ({"TIMER_DELIVER_MS": START_MS + 1}, START_MS),
        # The first of them counts.
        (
            {"TIMER_DELIVER_MS": START_MS + 90_000, "TIMER_DELAY_MS": 9_500, "TIMER_DELAY_SEC": 2},
            START_MS + 1000,
        ),
        ({"TIMER_DELAY_SEC": 259_200}, START_MS + 259_199_000),
    ],
)
async def test_a_message_waits_in_the_slot_before_its_time(broker, properties, slot_ms, autojump_clock):
    answer = await timed(broker, **properties)
    assert answer.code == ResponseCode.SUCCESS
    # The queue that the producer chose, and the offset in the timer topic.
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("2", "0")
    (record,) = broker.records()
    assert (record.topic, record.queue_id, record.body) == (TIMER_TOPIC, 0, b"timer")
    assert properties_of(record) == {
        "UNIQ_KEY": KEY,
        **{name: str(value) for name, value in properties.items()},
        "CLUSTER": "cluster",
        "TIMER_OUT_MS": str(slot_ms),
        "REAL_TOPIC": TOPIC,
        "REAL_QID": "2",
    }
    handle = urlsafe_b64decode(answer.ext_fields["recallHandle"]).decode()
    assert handle == f"v1 {TOPIC} broker-a {slot_ms + 1} {KEY}"


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": 0},
        {"TIMER_DELAY_MS": -5},
        {"TIMER_DELIVER_MS": START_MS},
        {"TIMER_DELAY_SEC": 10, "TIMER_OUT_MS": START_MS + 3},
    ],
)
async def test_a_time_that_is_over_and_a_slot_of_the_client_are_stored_at_once(
    broker, properties, autojump_clock
):
    answer = await timed(broker, **properties)
    assert (answer.code, answer.ext_fields.get("recallHandle")) == (ResponseCode.SUCCESS, None)
    (record,) = broker.records()
    assert record.topic == TOPIC
    assert "REAL_TOPIC" not in properties_of(record)


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": 259_201},
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELIVER_MS": 2**63},
        {"TIMER_DELAY_MS": -1, "TIMER_DEL_UNIQKEY": KEY},
    ],
)
async def test_times_too_far_no_numbers_and_late_recalls_are_refused(broker, properties, autojump_clock):
    answer = await timed(broker, **properties)
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
    assert broker.log.is_empty


async def test_without_timer_wheel_all_of_them_are_refused(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, timer_settings=evolve(TIMER_SETTINGS, is_enabled=False))
    answer = await timed(broker, TIMER_DELAY_SEC=5)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, DISABLED)


async def test_a_slot_takes_some_by_chance_and_none_from_twice_its_limit_on(
    tmp_path, wall, nursery, autojump_clock, monkeypatch
):
    broker = Sending(tmp_path, wall, timer_settings=evolve(TIMER_SETTINGS, per_slot_max=2))
    nursery.start_soon(broker.timer_delivery.run)
    drawn = [0]
    monkeypatch.setattr("random.randrange", lambda _limit: drawn[-1])

    async def sent():
        answer = await timed(broker, TIMER_DELIVER_MS=START_MS + 60_000)
        await trio.sleep(0.1)
        return answer

    assert [(await sent()).code for _ in range(3)] == [0, 0, 0]
    # One more than the limit of two waits: half of those that come are refused.
    refused = await sent()
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, CROWDED)
    drawn.append(1)
    assert (await sent()).code == 0
    assert (await sent()).code == ResponseCode.SYSTEM_ERROR
    assert len(waiting(broker)) == 4


def test_answers_and_records_are_those_of_a_real_broker():
    """The handles in recorded answers, and the slots in recorded records."""
    records = {properties_of(record)["UNIQ_KEY"]: properties_of(record) for record in recorded(TIMERS)[:8]}
    checked = 0
    for path in sorted((VECTORS / "timer-5.5.0/frames").glob("*-send-*.response.bin")):
        decoder = FrameDecoder()
        decoder.feed(path.read_bytes())
        answer = decoder.next_command()
        if (handle := answer.ext_fields.get("recallHandle")) is not None:
            found = RecallHandle.decode(handle)
            assert found.encode() == handle
            if found.unique_key in records:
                checked += 1
                properties = records[found.unique_key]
                assert (found.topic, found.broker_name) == (properties["REAL_TOPIC"], "broker-a")
                assert found.deliver_ms == int(properties["TIMER_OUT_MS"]) + 1
    assert checked >= 5


@pytest.mark.parametrize(
    ("asked", "used"), [(1000, 1000), (60_000, 1000), (999, 500), (200, 200), (199, 100), (1, 100)]
)
def test_the_precision_is_lowered_to_one_of_four(asked, used):
    assert precision_ms(asked) == used


# -- delivery ------------------------------------------------------------------------------------------------


async def test_messages_come_after_their_time_and_not_before(broker, nursery, autojump_clock):
    nursery.start_soon(broker.timer_delivery.run)
    for number, delay_ms in enumerate((7000, 2500, 2000, 100)):
        await timed(broker, b"%d" % delay_ms, key=f"{number}", TIMER_DELAY_MS=delay_ms)
    await trio.sleep(30)
    assert broker.deliveries == [(1.0, b"100"), (2.0, b"2000"), (3.0, b"2500"), (7.0, b"7000")]
    assert broker.timer_delivery.delivered == 4


async def test_what_waits_and_how_late_it_is_is_known(broker, nursery, autojump_clock):
    assert broker.timer_delivery.progress() == TimerProgress()
    await timed(broker, TIMER_DELAY_SEC=2)
    await timed(broker, key="other", TIMER_DELAY_SEC=60)
    assert broker.timer_delivery.progress().unread == 2
    nursery.start_soon(broker.timer_delivery.run)
    await trio.sleep(1)
    assert broker.timer_delivery.progress() == TimerProgress(pending=2)
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    await trio.sleep(9)
    assert broker.timer_delivery.progress().late_s == 8
    broker.puts.refusal = None
    await trio.sleep(5)
    found = broker.timer_delivery.progress()
    assert (found.pending, found.late_s, found.unread, found.delivered_per_s) == (1, 0, 0, 0.1)


async def test_the_delivered_record_has_all_of_the_waiting_one(broker, nursery, autojump_clock):
    nursery.start_soon(broker.timer_delivery.run)
    await broker.send(
        b"body",
        queue_id=3,
        sys_flag=0x301,
        flag=9,
        reconsume_times=4,
        properties={"TAGS": "t", "UNIQ_KEY": KEY, "TIMER_DELAY_MS": "1500"},
    )
    await trio.sleep(5)
    record, delivered = broker.records()
    assert (delivered.topic, delivered.queue_id) == (TOPIC, 3)
    for name in ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host", "reconsume_times"):
        assert getattr(delivered, name) == getattr(record, name), name
    assert properties_of(delivered) == properties_of(record) | {
        "TIMER_ENQUEUE_MS": str(START_MS),
        "TIMER_DEQUEUE_MS": str(START_MS + 2000),
    }


async def test_a_restart_delivers_what_is_over_at_once_and_nothing_again(tmp_path, wall, autojump_clock):
    async with trio.open_nursery() as nursery:
        broker = Sending(tmp_path, wall)
        nursery.start_soon(broker.timer_delivery.run)
        for delay_s in (2, 10, 60):
            await timed(broker, b"%d" % delay_s, key=f"{delay_s}", TIMER_DELAY_SEC=delay_s)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert broker.deliveries == [(2.0, b"2")]
    broker.close()
    await trio.sleep(20)
    again = Sending(tmp_path, wall)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.timer_delivery.run)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert again.deliveries == [(25.0, b"10"), (60.0, b"60")]


async def test_a_resend_is_delivered_as_often_as_it_was_sent(tmp_path, wall, autojump_clock):
    """A client that got no answer sends the message again: both have the same key."""
    broker = Sending(tmp_path, wall)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.timer_delivery.run)
        for _ in range(2):
            await timed(broker, TIMER_DELIVER_MS=START_MS + 2000)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert broker.deliveries == [(2.0, b"timer")] * 2
    broker.close()
    again = Sending(tmp_path, wall)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.timer_delivery.run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert again.deliveries == []


async def test_a_put_that_is_refused_for_now_is_tried_again_and_later_slots_wait(
    broker, nursery, autojump_clock
):
    nursery.start_soon(broker.timer_delivery.run)
    await timed(broker, b"first", TIMER_DELAY_SEC=2)
    await timed(broker, b"second", key="other", TIMER_DELAY_SEC=3)
    broker.puts.refusal = PutStatus.SERVICE_NOT_AVAILABLE
    with capture_logs() as logs:
        await trio.sleep(5.5)
        broker.puts.refusal = None
        await trio.sleep(5)
    assert broker.deliveries == [(6.0, b"first"), (6.0, b"second")]
    # Not a line for each try.
    assert [line["event"] for line in logs] == [
        "timers cannot be delivered now",
        "timers are delivered again",
    ]


async def test_one_that_can_never_be_delivered_is_skipped(broker, nursery, autojump_clock):
    nursery.start_soon(broker.timer_delivery.run)
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", TIMER_TOPIC):
        broker.put(
            topic=TIMER_TOPIC,
            queue_id=0,
            properties=encode_properties(
                {"TIMER_OUT_MS": str(START_MS + 1000), "REAL_TOPIC": topic, "REAL_QID": "0"}
            ),
        )
    await timed(broker, TIMER_DELAY_SEC=2)
    await trio.sleep(5)
    assert broker.deliveries == [(2.0, b"timer")]
    assert broker.timer_delivery.skipped == 3


async def test_a_record_that_the_disk_does_not_give_holds_up_no_other(
    broker, nursery, tmp_path, autojump_clock, monkeypatch
):
    nursery.start_soon(broker.timer_delivery.run)
    for key in ("bad", "good"):
        await timed(broker, key.encode(), key=key, TIMER_DELIVER_MS=START_MS + 1500)
    await timed(broker, b"later", key="later", TIMER_DELAY_SEC=10)
    await trio.sleep(1)
    bad = broker.records(TIMER_TOPIC)[0].physical_offset
    reads, record = broker.store.reads, broker.store.reads.record
    is_failing = True

    def failing(offset, size):
        if offset == bad and is_failing:
            raise StoreError("cannot be read: Input/output error", path=tmp_path, offset=offset)
        return record(offset, size)

    monkeypatch.setattr(reads, "record", failing)
    await trio.sleep(14)
    assert [body for _, body in broker.deliveries] == [b"good", b"later"]
    assert broker.timer_delivery.progress().pending == 1
    is_failing = False
    await trio.sleep(60)
    assert broker.deliveries[2:] == [(pytest.approx(63.0, abs=1.0), b"bad")]


async def test_the_clock_that_is_set_delivers_by_the_new_time(broker, nursery, wall, autojump_clock):
    nursery.start_soon(broker.timer_delivery.run)
    await timed(broker, TIMER_DELAY_SEC=3600)
    await trio.sleep(2.5)
    wall.ahead_ms = 3_600_000
    await trio.sleep(2)
    assert broker.deliveries == [(pytest.approx(3.0, abs=1.0), b"timer")]


async def test_many_of_one_slot_let_other_tasks_run(broker, nursery, autojump_clock, monkeypatch):
    monkeypatch.setattr(timer_delivery, "SLICE_TIMERS", 8)
    nursery.start_soon(broker.timer_delivery.run)
    for number in range(50):
        await timed(broker, b"%d" % number, key=f"{number}", TIMER_DELIVER_MS=START_MS + 1500)
    delivering, turns = trio.Event(), 0
    put = broker.puts.put
    monkeypatch.setattr(broker.puts, "put", lambda message: (delivering.set(), put(message))[1])
    await delivering.wait()
    while len(broker.deliveries) < 50:
        await trio.lowlevel.checkpoint()
        turns += 1
    assert turns >= 5
    assert [body for _, body in broker.deliveries] == [b"%d" % number for number in range(50)]


# -- rolls ---------------------------------------------------------------------------------------------------


async def test_a_timer_far_ahead_is_stored_anew_before_its_record_is_old(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall, timer_settings=evolve(TIMER_SETTINGS, roll_window_ms=20_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.timer_delivery.run)
        nursery.start_soon(_dispatch_always, broker)
        await timed(broker, TIMER_DELAY_SEC=46)
        # The same message sent again: neither takes the other one's place.
        await timed(broker, TIMER_DELIVER_MS=START_MS + 46_000)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert broker.deliveries == [(46.0, b"timer")] * 2
    records = broker.records(TIMER_TOPIC)
    stored_s = [(one.store_timestamp_ms - START_MS) // 1000 for one in records]
    # A window after the first record; half of one after the second, since less than a third would be left.
    assert stored_s == [0, 0, 21, 21, 32, 32]
    rolls = [properties_of(one).get("TIMER_ROLL_TIMES") for one in records]
    assert rolls == [None, None, "1", "1", "2", "2"]
    assert {properties_of(one)["TIMER_OUT_MS"] for one in records} == {str(START_MS + 45_000)}


async def _dispatch_always(broker):
    while True:
        await trio.sleep(0.5)
        broker.dispatch()


# -- recalls -------------------------------------------------------------------------------------------------


@pytest.fixture
async def recalling(tmp_path, wall):
    return Sending(tmp_path, wall, timer_settings=evolve(TIMER_SETTINGS, recall_enabled=True))


async def test_a_recalled_message_is_never_delivered(recalling, nursery, autojump_clock):
    broker = recalling
    nursery.start_soon(broker.timer_delivery.run)
    sent = await timed(broker, b"recalled", TIMER_DELAY_SEC=20)
    await timed(broker, b"kept", key="other", TIMER_DELAY_SEC=20)
    await trio.sleep(1)
    answer = await recall(broker, sent.ext_fields["recallHandle"])
    assert (answer.code, answer.ext_fields["msgId"]) == (ResponseCode.SUCCESS, KEY)
    mark = broker.records(TIMER_TOPIC)[-1]
    slot_ms = START_MS + 19_000
    assert mark.body == b"0"
    assert properties_of(mark) == {
        "TIMER_DEL_UNIQKEY": KEY,
        "REAL_TOPIC": TOPIC,
        "REAL_QID": "0",
        "BORN_TIMESTAMP": str(START_MS + 1000),
        "TIMER_DELIVER_MS": str(slot_ms + 1),
        "UNIQ_KEY": KEY,
        "PGROUP": "producers",
        "TAGS": "_RECALL_TAG_",
        "TIMER_OUT_MS": str(slot_ms),
    }
    await trio.sleep(40)
    assert broker.deliveries == [(20.0, b"kept")]


@pytest.mark.parametrize(
    ("handle", "remark"),
    [
        (("Other", "broker-a", START_MS + 5000), "recall failed, topic not match"),
        ((TOPIC, "broker-b", START_MS + 5000), "recall failed, broker service not available"),
        ((TOPIC, "broker-a", START_MS), "recall failed, timestamp invalid"),
        ((TOPIC, "broker-a", START_MS + 259_200_001), "recall failed, timestamp invalid"),
    ],
)
async def test_recalls_of_what_is_not_here_are_refused(recalling, handle, remark, autojump_clock):
    answer = await recall(recalling, RecallHandle(*handle, KEY).encode())
    assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, remark)
    assert recalling.log.is_empty


@pytest.mark.parametrize("handle", ["", "%%%", "djEg", "djIgYSBiIDEgYw==", "\x00", "é"])
async def test_what_is_no_handle_is_refused(recalling, handle, autojump_clock):
    answer = await recall(recalling, handle)
    assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")


async def test_recalls_for_an_unknown_topic_are_refused(recalling, autojump_clock):
    answer = await recall(recalling, "", topic="Unknown")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "the topic[Unknown] not exist" in answer.remark


async def test_recalls_are_forbidden_by_default(broker, autojump_clock):
    answer = await recall(broker, RecallHandle(TOPIC, "broker-a", START_MS + 5000, KEY).encode())
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "recall failed, operation is forbidden",
    )


# -- what clients may not do ---------------------------------------------------------------------------------

FORGED = {"UNIQ_KEY": KEY, "TIMER_OUT_MS": str(START_MS + 4000), "TIMER_DEQUEUE_MS": "1"}


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_client_cannot_cancel_the_timer_of_another(tmp_path, wall, is_batch, autojump_clock):
    broker = Sending(tmp_path, wall)
    await timed(broker, TIMER_DELAY_SEC=5)
    if is_batch:
        body = encode_batch_body([BatchItem(b"forged", encode_properties(FORGED))])
        answer = await broker.send(body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    else:
        answer = await broker.send(b"forged", properties=FORGED)
    assert answer.code == ResponseCode.SUCCESS
    assert "TIMER_DEQUEUE_MS" not in properties_of(broker.records(TOPIC)[0])
    async with trio.open_nursery() as nursery:
        # It counts what is in the log.
        nursery.start_soon(broker.timer_delivery.run)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert [one.body for one in broker.records(TOPIC)] == [b"forged", b"timer"]


async def test_a_retry_of_a_delivered_timer_is_no_second_delivery(broker, nursery, autojump_clock):
    """A consumer that failed sends back a message with all properties of a delivered timer."""
    nursery.start_soon(broker.timer_delivery.run)
    for body in (b"first", b"again"):
        await timed(broker, body, TIMER_DELIVER_MS=START_MS + 1500)
    await timed(broker, b"later", TIMER_DELIVER_MS=START_MS + 9000)
    await trio.sleep(3)
    delivered = broker.records(TOPIC)[0]
    assert (await broker.send_back(delivered.physical_offset, delay_level=1)).code == ResponseCode.SUCCESS
    await trio.sleep(10)
    assert [body for _, body in broker.deliveries if body == b"later"] == [b"later"]

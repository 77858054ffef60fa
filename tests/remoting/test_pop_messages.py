"""Requests and answers of popping messages, by the frames that a 5.5.0 proxy and broker exchanged."""

import json
import re
from base64 import b64encode
from functools import cache
from itertools import groupby
from struct import unpack_from

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.remoting.recorded import VECTORS, commands
from tests.remoting.values import ANY_TEXT, SCALARS, WRONG_NUMBERS, json_values
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request
from trioha.remoting.pop_handle import (
    HANDLE,
    HANDLE_CHARS_MAX,
    PopHandle,
    PoppedQueue,
    PopSource,
    as_popped,
    message_offset_info,
    order_count_info,
    start_offset_info,
)
from trioha.remoting.pop_message import (
    BATCH_ACKS_MAX,
    BITS_BYTES_MAX,
    AckRequest,
    BatchAck,
    BatchAckRequest,
    ChangeInvisibleAnswer,
    ChangeInvisibleRequest,
    InitMode,
    NotificationRequest,
    PeekRequest,
    PollingInfoRequest,
    PopAnswer,
    PopFilter,
    PopRequest,
    notification_fields,
    polling_info_fields,
    set_bits,
)
from trioha.store.message_properties import parse_properties
from trioha.store.record import RecordError, decode_record, encode_record

FRAMES = VECTORS / "pop-5.5.0" / "frames"
READERS = {
    RequestCode.POP_MESSAGE: PopRequest.of,
    RequestCode.ACK_MESSAGE: AckRequest.of,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleRequest.of,
    RequestCode.NOTIFICATION: NotificationRequest.of,
    RequestCode.POLLING_INFO: PollingInfoRequest.of,
    RequestCode.PEEK_MESSAGE: PeekRequest.of,
    RequestCode.BATCH_ACK_MESSAGE: BatchAckRequest.of,
}
SHORT_HANDLE = "0 1"


@cache
def exchanges(code):
    """Recorded requests of a code, each with its answer, which may have come in a later step."""
    steps = [path.name.removesuffix(".c2s.bin") for path in sorted(FRAMES.glob("*.c2s.bin"))]
    answers_of = [commands(FRAMES / f"{step}.s2c.bin") for step in steps]
    pairs = []
    for index, step in enumerate(steps):
        answers = [
            one for later in answers_of[index:] for one in later if one.is_response and fits(code, one)
        ]
        pairs += [
            (asked, next(one for one in answers if one.opaque == asked.opaque))
            for asked in commands(FRAMES / f"{step}.c2s.bin")
            if asked.code == code
        ]
    return pairs


def fits(code, answer):
    marks = {
        RequestCode.POP_MESSAGE: "popTime",
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "popTime",
        RequestCode.PEEK_MESSAGE: "restNum",
        RequestCode.NOTIFICATION: "hasMsg",
        RequestCode.POLLING_INFO: "pollingNum",
    }
    return code not in marks or marks[code] in answer.ext_fields


def records_of(body):
    """Whole records, cut by their lengths."""
    found, at = [], 0
    while at < len(body):
        (size,) = unpack_from(">I", body, at)
        found.append(bytes(body[at : at + size]))
        at += size
    return found


def entries(text):
    return [entry.split(" ") for entry in text.split(";") if entry]


def queues_of(answer):
    """What a recorded answer says was popped."""
    fields = answer.ext_fields
    counts = {}
    for source, name, times in entries(fields.get("orderCountInfo", "")):
        counts[source, name] = int(times)
    queues = []
    pairs = zip(entries(fields["startOffsetInfo"]), entries(fields["msgOffsetInfo"]), strict=True)
    for (source, queue_id, start), (_, _, texts) in pairs:
        offsets = tuple(map(int, texts.split(",")))
        times = tuple(counts.get((source, f"qo{queue_id}%{offset}"), 0) for offset in offsets)
        queues.append(PoppedQueue(PopSource(source), int(queue_id), int(start), offsets, times))
    return queues


def test_recorded_pops_are_read():
    first, ordered, raw = (
        PopRequest.of(pops[0])
        for pops in (
            [one for one in commands(FRAMES / f"{step}.c2s.bin") if one.code == RequestCode.POP_MESSAGE]
            for step in ("03-receive", "31-orderly-receive", "45-pop-filter")
        )
    )
    assert first == PopRequest(
        "PG", "PT", -1, 16, 20000, 6000, 0, InitMode.MAX, PopFilter("*", "TAG"), False, None
    )
    assert (ordered.group, ordered.is_ordered, ordered.messages_max) == ("PO", True, 4)
    assert (raw.filter, raw.init_mode, raw.poll_ms) == (PopFilter("a", "TAG"), InitMode.MIN, 0)


def test_missing_numbers_of_a_pop_are_zero_and_its_filter_takes_all():
    bare = PopRequest.of(request(200050, ext_fields={"consumerGroup": "G", "topic": "T"}))
    assert bare == PopRequest("G", "T", 0, 0, 0, 0, 0, InitMode.MIN, PopFilter(), False, None)
    (recorded,) = (
        one
        for one, _ in exchanges(RequestCode.POP_MESSAGE)
        if one.ext_fields.keys() == {"consumerGroup", "topic"}
    )
    assert PopRequest.of(recorded).messages_max == 0


def test_recorded_answers_of_pops_are_written():
    written = 0
    for asked, answer in exchanges(RequestCode.POP_MESSAGE):
        fields = answer.ext_fields
        times = (int(fields[name]) for name in ("popTime", "invisibleTime", "reviveQid", "restNum"))
        queues = queues_of(answer) if "msgOffsetInfo" in fields else None
        ours = PopAnswer(*times, queues, is_ordered=PopRequest.of(asked).is_ordered).to_ext_fields()
        assert ours == fields
        assert fields["msgOffsetInfo"] if answer.code == ResponseCode.SUCCESS else not queues
        written += 1
    assert written == 24


def test_a_refusal_has_only_zeros():
    refused = [
        answer
        for _, answer in exchanges(RequestCode.POP_MESSAGE)
        if answer.code in {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.INVALID_PARAMETER}
    ]
    assert len(refused) == 3
    assert all(PopAnswer().to_ext_fields() == answer.ext_fields for answer in refused)


def test_infos_name_what_the_body_has():
    for _, answer in exchanges(RequestCode.POP_MESSAGE):
        if answer.code:
            continue
        found = [decode_record(one) for one in records_of(answer.body)]
        queues = queues_of(answer)
        assert [one.queue_offset for one in found] == [offset for one in queues for offset in one.offsets]
        assert [queue_id for queue_id, _ in groupby(one.queue_id for one in found)] == [
            one.queue_id for one in queues
        ]


def test_texts_of_several_queues():
    queues = [
        PoppedQueue(PopSource.TOPIC, 1, 0, (0, 1, 2), (0, 0, 0)),
        PoppedQueue(PopSource.RETRY_V2, 0, 5, (5, 7), (2, 1)),
        PoppedQueue(PopSource.TOPIC, 0, 3, (4, 6), (0, 3)),
    ]
    assert start_offset_info(queues) == "0 1 0;2 0 5;0 0 3"
    assert message_offset_info(queues) == "0 1 0,1,2;2 0 5,7;0 0 4,6"
    assert order_count_info(queues) == "0 1 0;2 qo0%5 2;2 qo0%7 1;2 0 1;0 qo0%6 3;0 0 0"
    assert (start_offset_info([]), message_offset_info([]), order_count_info([])) == ("", "", "")


def test_messages_of_a_retry_topic_are_answered_as_the_broker_did():
    # The order of properties alone differs: the broker writes them as a map of Java's has them.
    stored = {}
    for data in records_of((VECTORS / "pop-5.5.0" / "retry.bin").read_bytes()):
        record = decode_record(data)
        stored[record.physical_offset] = data
    seen = 0
    for asked, answer in exchanges(RequestCode.POP_MESSAGE):
        for theirs in records_of(answer.body):
            answered = decode_record(theirs)
            handle = parse_properties(answered.properties_raw).get(HANDLE)
            if handle is None:
                continue
            ours = as_popped(
                stored[answered.physical_offset], PopRequest.of(asked).topic, PopHandle.decode(handle)
            )
            ours_at, theirs_at = (len(one) - len(decode_record(one).properties_raw) for one in (ours, theirs))
            assert ours[:ours_at] == theirs[:theirs_at]
            ours_parts, theirs_parts = (
                sorted(one.rstrip(b"\x02").split(b"\x02")) for one in (ours[ours_at:], theirs[theirs_at:])
            )
            assert ours_parts == theirs_parts
            seen += 1
    assert seen == 8


def test_a_record_without_room_for_its_handle_is_answered_as_stored():
    data = records_of((VECTORS / "pop-5.5.0" / "retry.bin").read_bytes())[0]
    record = decode_record(data)
    padding = b"x" * (32767 - len(record.properties_raw) - 4)
    full = encode_record(evolve(record, properties_raw=record.properties_raw + b"P\x01" + padding + b"\x02"))
    handle = PopHandle(0, 1, 2, 3, PopSource.RETRY_V1, "b", 0, 0)
    assert as_popped(full, "T", handle) == full
    with pytest.raises(RecordError):
        as_popped(data[:-1], "T", handle)


def test_recorded_handles_are_read_and_written():
    handles = 0
    for code, reader in (
        (RequestCode.ACK_MESSAGE, AckRequest.of),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleRequest.of),
    ):
        for asked, _ in exchanges(code):
            text = asked.ext_fields["extraInfo"]
            if text == SHORT_HANDLE:
                continue
            read = reader(asked)
            assert read.handle.encode() == " ".join(text.split(" ")[:8])
            assert (read.queue_id, read.offset) == (
                int(asked.ext_fields["queueId"]),
                int(asked.ext_fields["offset"]),
            )
            handles += 1
    assert handles == 29
    assert PopHandle.decode("2 1795805683929 20000 999 0 broker-r 0 3 89280") == PopHandle(
        2, 1795805683929, 20000, 999, PopSource.TOPIC, "broker-r", 0, 3
    )
    assert PopHandle.decode("2 1795805683929 20000 999 0 broker-r 0 3 89280").is_ordered


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a handle of 1 parts, not 8 or 9"),
        (SHORT_HANDLE, "a handle of 2 parts, not 8 or 9"),
        ("0 1 2 3 0 b 0 0 0 0", "a handle of 10 parts, not 8 or 9"),
        ("x 1 2 3 0 b 0 0", "the start offset of a handle: 'x' is not a whole number"),
        ("0 -1 2 3 0 b 0 0", f"the pop time of a handle: '-1' is not within 0 to {2**63 - 1}"),
        ("0 1 2 3 3 b 0 0", "a handle of source '3', not 0, 1 or 2"),
        (
            "0 1 2 2147483648 0 b 0 0",
            "the revive queue of a handle: '2147483648' is not within 0 to 2147483647",
        ),
        ("0 1 2 3 0 b 0 0 y", "the commit log offset of a handle: 'y' is not a whole number"),
        ("0 1 2 3 0 " + "b" * HANDLE_CHARS_MAX + " 0 0", "a handle of 1038 characters"),
    ],
)
def test_a_damaged_handle_is_refused_with_what_is_wrong(text, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}$"):
        PopHandle.decode(text)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "offset": "0", "extraInfo": text}
    with pytest.raises(BadRequestError) as answered:
        AckRequest.of(request(200051, ext_fields=fields))
    assert answered.value.reason == f"request header field extraInfo: {reason}"


def test_recorded_changes_are_read_and_answered():
    suspended = []
    for asked, answer in exchanges(RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        fields = answer.ext_fields
        ours = ChangeInvisibleAnswer(*(int(fields[one]) for one in ("popTime", "invisibleTime", "reviveQid")))
        assert ours.to_ext_fields() == fields
        suspended.append(ChangeInvisibleRequest.of(asked).is_suspended)
    assert (len(suspended), suspended.count(True)) == (7, 1)


def test_recorded_notifications_peeks_and_polling_infos():
    for asked, answer in exchanges(RequestCode.NOTIFICATION):
        read = NotificationRequest.of(asked)
        assert (read.topic, read.queue_id, read.poll_ms, read.filter) == ("PR", -1, 2000, PopFilter())
        assert notification_fields(has_messages=False, is_full=False) == answer.ext_fields
    assert notification_fields(has_messages=True, is_full=True) == {"hasMsg": "true", "pollingFull": "true"}
    ((asked, answer),) = exchanges(RequestCode.POLLING_INFO)
    assert PollingInfoRequest.of(asked) == PollingInfoRequest("RG", "PR", -1)
    assert polling_info_fields(0) == answer.ext_fields
    peeks = exchanges(RequestCode.PEEK_MESSAGE)
    assert [PeekRequest.of(asked).queue_id for asked, _ in peeks] == [0, -1, 0]
    for _, answer in peeks:
        assert PopAnswer(rest=int(answer.ext_fields["restNum"])).to_ext_fields() == answer.ext_fields


def test_the_recorded_batch_of_acknowledgements_is_read():
    (asked, _), (empty, answer) = exchanges(RequestCode.BATCH_ACK_MESSAGE)
    assert BatchAckRequest.of(asked) == BatchAckRequest(
        "broker-r",
        (BatchAck("RH", "PR", PopSource.TOPIC, 0, 7, 1795805765121, 15000, 0, (7, 8, 9)),),
    )
    assert (BatchAckRequest.of(empty).acks, answer.code) == ((), ResponseCode.NO_MESSAGE)


def test_bits_of_a_java_bit_set():
    # BitSet.toByteArray: little-endian, without trailing zero bytes.
    assert set_bits("") == ()
    assert set_bits(b64encode(bytes([0b101, 0x80])).decode()) == (0, 2, 15)
    assert set_bits(b64encode(b"\xff" * 4).decode()) == tuple(range(32))
    assert set_bits(b64encode(b"\0" * (BITS_BYTES_MAX - 1) + b"\x80").decode()) == (8 * BITS_BYTES_MAX - 1,)


@pytest.mark.parametrize("bits", ["*", "A", "é", "A" * 20_000, b64encode(b"\xff" * 4 + b"\1").decode()])
def test_bits_of_no_check_point_are_refused(bits):
    with pytest.raises(ValueError, match=r"^b "):
        set_bits(bits)


TEXTS = {"c": WRONG_NUMBERS, "t": WRONG_NUMBERS, "b": ("0x10",)}
"""By member: texts that are right."""
ACK = {"c": "G", "t": "T", "r": "0", "so": 7, "q": 0, "rq": 0, "pt": 1, "it": 2, "b": "Bw=="}


def batch(*acks, **more):
    body = json.dumps({"brokerName": "b", "acks": acks, **more})
    return request(200151, body=body.encode())


@pytest.mark.parametrize("name", sorted(ACK))
def test_a_batch_with_a_member_of_another_shape_is_refused(name):
    assert BatchAckRequest.of(batch(ACK)).acks[0].offsets == (7, 8, 9)
    texts = [text for text in WRONG_NUMBERS[1:] if text not in TEXTS.get(name, ())]
    for wrong in (None, [], {}, 1.5, True, *texts):
        with pytest.raises(BadRequestError, match=rf"batch of acknowledgements: {name}\b"):
            BatchAckRequest.of(batch({**ACK, name: wrong}))


def test_a_batch_has_a_limit():
    assert len(BatchAckRequest.of(batch(*[ACK] * BATCH_ACKS_MAX)).acks) == BATCH_ACKS_MAX
    with pytest.raises(BadRequestError, match="batch of acknowledgements"):
        BatchAckRequest.of(batch(*[ACK] * (BATCH_ACKS_MAX + 1)))
    for body in (b"[]", b"{", b'{"acks":1}', b'{"a":' * 5000):
        with pytest.raises(BadRequestError, match="batch of acknowledgements"):
            BatchAckRequest.of(request(200151, body=body))


@given(st.sampled_from(sorted(READERS)), st.data())
def test_any_fields_are_read_or_refused(code, data):
    recorded, _ = data.draw(st.sampled_from(exchanges(code)))
    fields = {
        name: data.draw(st.sampled_from(WRONG_NUMBERS) | ANY_TEXT) if data.draw(st.booleans()) else value
        for name, value in recorded.ext_fields.items()
        if data.draw(st.booleans())
    }
    body = recorded.body
    if code == RequestCode.BATCH_ACK_MESSAGE:
        value = data.draw(json_values(st.sampled_from([*ACK, "acks", "brokerName"])) | SCALARS)
        body = json.dumps({"acks": [value]}).encode()
    try:
        READERS[code](request(code, ext_fields=fields, body=body))
    except BadRequestError as refused:
        assert len(refused.reason) < 400  # noqa: PT017 - either way is right


def test_codes_of_popping_go_in_json_headers_only():
    frame = encode(request(RequestCode.POP_MESSAGE, ext_fields={"topic": "T"}))
    decoder = FrameDecoder()
    decoder.feed(frame)
    assert decoder.next_command().code == 200050

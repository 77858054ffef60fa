"""The headers of sends, and put statuses as response codes."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.remoting.recorded import VECTORS, answers, commands
from trioha.errors import RemoteProtocolError
from trioha.recording.events import PutStatus
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.send_message import (
    PUT_STATUS_CODES,
    STORED_STATUSES,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    put_status_name,
    refused_send,
    send_request,
    send_response,
)
from trioha.store.message_properties import parse_properties

I32 = st.integers(-(2**31), 2**31 - 1)
HEADERS = st.builds(
    SendMessageRequestHeader,
    producer_group=st.text(),
    topic=st.from_regex(r"[%|a-zA-Z0-9_-]{1,127}", fullmatch=True),
    default_topic=st.text(),
    default_topic_queue_nums=I32,
    queue_id=I32,
    sys_flag=I32,
    born_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    flag=I32,
    properties=st.text(),
    reconsume_times=I32,
    unit_mode=st.booleans(),
    max_reconsume_times=st.none() | I32,
    batch=st.booleans(),
    broker_name=st.none() | st.text(),
)
STORED = SendMessageResponseHeader("7F0000010000A8670000000000003494", 3, 12345)
V1 = {
    "producerGroup": "P",
    "topic": "TopicSpec",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "-1",
    "sysFlag": "0",
    "bornTimestamp": "1795234734922",
    "flag": "0",
}


@given(HEADERS)
def test_a_header_is_parsed_from_its_own_fields(header):
    assert SendMessageRequestHeader.of(send_request(header, b"body")) == header


def test_both_forms_of_a_send_give_the_same_header():
    long = SendMessageRequestHeader.of(request(RequestCode.SEND_MESSAGE, ext_fields=V1))
    short = SendMessageRequestHeader.of(request(RequestCode.SEND_MESSAGE_V2, ext_fields=long.to_ext_fields()))
    assert short == long
    assert long == SendMessageRequestHeader("P", "TopicSpec", "TBW102", 4, -1, 0, 1795234734922, 0)


@pytest.mark.parametrize(
    ("session", "count"),
    [
        ("remoting-5.3.3/005-prod--master", 6),
        ("remoting-5.3.3/074-ser-rocketmq-prod--master", 6),
        ("remoting-4.9.7/103-ser-rocketmq-prod--master", 6),
        ("remoting-4.9.7/065-adm-sendMessage--master", 1),
    ],
)
def test_recorded_sends_of_java_producers_are_parsed(session, count):
    codes = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
    sends = [command for command in commands(VECTORS / f"{session}.c2s.bin") if command.code in codes]
    assert len(sends) >= count
    for command in sends:
        header = SendMessageRequestHeader.of(command)
        assert header.topic == "TopicSpec"
        assert header.default_topic == "TBW102"
        assert 0 <= header.queue_id < 4
        assert header.born_timestamp_ms > 1_700_000_000_000
        assert header.batch == (command.code == RequestCode.SEND_BATCH_MESSAGE)
        assert "WAIT" in parse_properties(header.properties.encode())


def test_recorded_answers_to_sends_are_parsed():
    stored = answers("remoting-5.3.3/047-adm-sendMessage--master")[RequestCode.SEND_MESSAGE_V2]
    header = SendMessageResponseHeader.of(stored)
    assert header == SendMessageResponseHeader(
        "7F0000010000A92F0000000000002C2E", 2, 5, "FD00000000000000000000000000000203384E0E2F2A67E862760000"
    )
    assert dict(header.to_ext_fields()) == dict(stored.ext_fields)
    assert put_status_name(stored) == "PUT_OK"
    on_slave = answers("remoting-4.9.7/099-probe--slave")[RequestCode.SEND_MESSAGE]
    assert put_status_name(on_slave) == "SERVICE_NOT_AVAILABLE"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topic": None}, r"topic \(b\) is missing"),
        ({"queueId": "x"}, r"queueId \(e\) is not a 32-bit number: 'x'"),
        ({"queueId": "1_0"}, "not a 32-bit number"),
        ({"queueId": ""}, "not a 32-bit number"),
        ({"sysFlag": "2147483648"}, "not a 32-bit number"),
        ({"bornTimestamp": "9" * 5000}, "not a 64-bit number"),
        ({"bornTimestamp": "9223372036854775808"}, "not a 64-bit number"),
        ({"topic": ""}, "is blank"),
        ({"topic": "a/b"}, "contains illegal characters"),
        ({"topic": "TopicSpec\n"}, "contains illegal characters"),
        ({"topic": "t" * 128}, "topic max length: 127"),
        ({"topic": "%RETRY%" + "g" * 249}, "topic max length: 255"),
    ],
)
def test_an_invalid_header_is_refused_with_one_reason(change, says):
    fields = {name: value for name, value in {**V1, **change}.items() if value is not None}
    command = request(RequestCode.SEND_MESSAGE, ext_fields=fields)
    with pytest.raises(BadRequestError, match=says) as caught:
        SendMessageRequestHeader.of(command)
    answer = refused_send(command, caught.value)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == str(caught.value)
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"


def test_long_retry_topics_are_accepted():
    topic = "%RETRY%" + "g" * 248
    command = request(RequestCode.SEND_MESSAGE, ext_fields={**V1, "topic": topic})
    assert SendMessageRequestHeader.of(command).topic == topic


@pytest.mark.parametrize("status", PutStatus)
def test_every_put_status_arrives_at_the_client_by_its_name(status):
    asked = evolve(request(310), opaque=9)
    answer = send_response(asked, status, header=STORED)
    assert answer.opaque == 9
    assert put_status_name(answer) == status.name
    # The Java client reads these two without asking whether they are there.
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert answer.ext_fields["TRACE_ON"] == "true"
    assert ("msgId" in answer.ext_fields) == (status in STORED_STATUSES)


def test_codes_of_put_statuses_are_the_brokers():
    codes = {status.name: int(code) for status, code in PUT_STATUS_CODES.items()}
    assert codes == {
        "PUT_OK": 0,
        "FLUSH_DISK_TIMEOUT": 10,
        "SLAVE_NOT_AVAILABLE": 11,
        "FLUSH_SLAVE_TIMEOUT": 12,
        "MESSAGE_ILLEGAL": 13,
        "PROPERTIES_SIZE_EXCEEDED": 13,
        "SERVICE_NOT_AVAILABLE": 14,
        "CREATE_MAPPED_FILE_FAILED": 1,
        "OS_PAGE_CACHE_BUSY": 1,
        "UNKNOWN_ERROR": 1,
        "IN_SYNC_REPLICAS_NOT_ENOUGH": 1,
    }


def test_a_code_of_no_put_status_keeps_its_own_name():
    asked = request(310)
    assert put_status_name(response_to(asked, 17)) == "TOPIC_NOT_EXIST"
    assert put_status_name(response_to(asked, 1, remark="java.lang.NullPointerException")) == "SYSTEM_ERROR"
    assert put_status_name(response_to(asked, 4711)) == "CODE_4711"


def test_a_stored_answer_without_its_fields_is_a_protocol_error():
    with pytest.raises(RemoteProtocolError, match="msgId"):
        SendMessageResponseHeader.of(response_to(request(310), 0))

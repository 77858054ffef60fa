"""For any answer of a server, its reader returns a value or raises RemoteProtocolError."""

import json
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from tests.remoting.values import ANY_TEXT, WRONG_NUMBERS, json_values
from trioha.errors import RemoteProtocolError
from trioha.remoting.command import request, response_to
from trioha.remoting.fastjson import parse_json
from trioha.remoting.ha_runtime_info import decode_ha_status
from trioha.remoting.name_server import parse_broker_groups
from trioha.remoting.runtime_table import parse_broker_config, parse_runtime_info, runtime_info_of
from trioha.remoting.send_message import SendMessageResponseHeader, put_status_name

STATUS_NAMES = """
master masterCommitLogMaxOffset inSyncSlaveNums haConnectionInfo haClientRuntimeInfo trioha addr
slaveAckOffset transferFromWhere diff inSync transferredByteInSecond state lagMillis connectionId
heardMillis ackLatencyMicros frameBytes masterAddr maxOffset lastReadTimestamp masterFlushOffset version
role clusterName brokerId minOffset client observer reconnects putStatuses endedConnections settings
slaveTimeout files warnings
"""
TABLE_NAMES = """
table earliestMessageTimeStamp commitLogDirCapacity commitLogDiskRatio bootTimestamp putTps
putMessageTimesTotal remainHowManyDataToFlush
"""
STATUS_KEYS = st.sampled_from(STATUS_NAMES.split())
TABLE_KEYS = st.sampled_from(TABLE_NAMES.split())
GROUP_KEYS = st.sampled_from(("brokerAddrTable", "brokerAddrs", "cluster", "b", "0", "-1", "x"))


def runtime_table(body):
    runtime_info_of(parse_runtime_info(body))


READERS = [
    (decode_ha_status, STATUS_KEYS),
    (runtime_table, TABLE_KEYS),
    (parse_broker_groups, GROUP_KEYS),
    (parse_json, STATUS_KEYS),
]


@given(data=st.data())
def test_a_body_of_any_values_is_read_or_refused(data):
    reader, keys = data.draw(st.sampled_from(READERS))
    body = data.draw(st.dictionaries(keys, json_values(keys), max_size=6) | json_values(keys))
    with suppress(RemoteProtocolError):
        reader(json.dumps(body).encode())


@given(st.binary(max_size=80) | ANY_TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_a_body_of_any_bytes_is_read_or_refused(body):
    for reader, _ in READERS:
        with suppress(RemoteProtocolError):
            reader(body)
    parse_broker_config(body)


def test_a_deeply_nested_body_is_read_or_refused():
    # Not by hypothesis, which moves the edge of the interpreter's recursion (900 to 1010).
    keys = ("masterCommitLogMaxOffset", "table", "brokerAddrTable", "role")
    for depth in (60, 70, *range(900, 1010, 5), 100_000):
        for nested in ("[" * depth + "]" * depth, '{"b":' * depth + "1" + "}" * depth):
            for (reader, _), key in zip(READERS, keys, strict=True):
                for body in (nested, f'{{"{key}":{nested}}}', f'{{"{key}":{{"b":{nested}}}}}'):
                    with suppress(RemoteProtocolError):
                        reader(body.encode())


@given(
    st.dictionaries(
        st.sampled_from(("msgId", "queueId", "queueOffset", "transactionId")),
        st.sampled_from(WRONG_NUMBERS) | st.integers().map(str) | ANY_TEXT,
    ),
    st.integers(-(2**31), 2**31 - 1),
    ANY_TEXT | st.none(),
)
def test_the_answer_to_a_send_is_read_or_refused(fields, code, remark):
    answer = response_to(request(310), code, remark=remark, ext_fields=fields)
    with suppress(RemoteProtocolError):
        SendMessageResponseHeader.of(answer)
    assert put_status_name(answer)


def test_invalid_numbers_of_a_runtime_table_are_none():
    for text in WRONG_NUMBERS:
        table = runtime_info_of(
            {
                "bootTimestamp": text,
                "commitLogDiskRatio": "" if text == "1e3" else text,
                "remainHowManyDataToFlush": f"{text} KiB",
            }
        )
        assert (table.booted_ms, table.disk_ratio) == (None, None), text
        assert table.unflushed_bytes in {None, 1024000, 1536}, text

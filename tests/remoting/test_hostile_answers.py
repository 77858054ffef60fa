"""For any answer of a server, its reader returns a value or raises RemoteProtocolError."""

import json
import random
from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from tests.hostile.answering import CLUSTER_INFO, CONFIG, HA_STATUS, RUNTIME_INFO, SEND_RESULT
from tests.hostile.wire import frame
from tests.levels import by_level
from tests.mutations.mutate import mutants
from tests.remoting.values import ANY_TEXT, WRONG_NUMBERS, json_values
from trioha.errors import RemoteProtocolError, TriohaError
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.broker_config import parse_broker_config
from trioha.remoting.client import ConnectionLostError, RemotingClient
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request, response_to
from trioha.remoting.fastjson import parse_json
from trioha.remoting.ha_runtime_info import decode_ha_status
from trioha.remoting.name_server import fetch_broker_groups, parse_broker_groups
from trioha.remoting.runtime_table import parse_runtime_info, runtime_info_of
from trioha.remoting.send_message import (
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    put_status_name,
    send_request,
)
from trioha.remoting.status_reader import StatusReader, StatusUpdates

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


# -- the client ----------------------------------------------------------------------------------------------

HEADER = SendMessageRequestHeader("group", "Topic", "TBW102", 4, 0, 0, 0, 0)
ANSWERS = {
    RequestCode.GET_BROKER_HA_STATUS: {"body": json.dumps(HA_STATUS).encode()},
    RequestCode.GET_BROKER_RUNTIME_INFO: {"body": json.dumps(RUNTIME_INFO).encode()},
    RequestCode.GET_BROKER_CONFIG: {"body": "\n".join(map("=".join, CONFIG.items())).encode()},
    RequestCode.GET_BROKER_CLUSTER_INFO: {"body": json.dumps(CLUSTER_INFO).encode()},
    RequestCode.SEND_MESSAGE_V2: {"ext_fields": SEND_RESULT},
}


async def fetch_status_twice(client, updates):
    """Once more on the same connection: of what was pushed meanwhile."""
    reader = StatusReader(client, with_table=True, updates=updates)
    for _ in range(2):
        await reader.fetch(timeout_s=1.0)


async def fetch_groups(client, _updates):
    await fetch_broker_groups(client)


async def send(client, _updates):
    SendMessageResponseHeader.of(await client.request(send_request(HEADER, b"body"), timeout_s=1.0))


ENDED_THE_MONITOR = (
    '{"code":"--5","opaque":0,"flag":1,"version":0}',
    '{"code":0,"opaque":"--5","flag":1,"version":0}',
    '{"code":0,"opaque":0,"flag":"\u0665","version":0}',
)
CALLS = (fetch_status_twice, fetch_groups, send)


async def outcome(call, spoil):
    """What a call gives at a server whose answers `spoil` may change."""
    ours, theirs = memory_stream_pair()
    updates = StatusUpdates(0.01)
    client = RemotingClient(ours, "192.0.2.1:10911", on_request=updates.receive)

    async def serve():
        decoder = FrameDecoder()
        with suppress(trio.BrokenResourceError):
            async for data in theirs:
                decoder.feed(data)
                while (asked := decoder.next_command()) is not None:
                    await theirs.send_all(spoil(encode(response_to(asked, 0, **ANSWERS[asked.code]))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client._run)
        nursery.start_soon(serve)
        try:
            await call(client, updates)
        except TriohaError as error:
            return type(error)
        finally:
            nursery.cancel_scope.cancel()
    return None


@pytest.mark.sized
@pytest.mark.parametrize("call", CALLS)
async def test_what_a_client_makes_of_any_answers_is_a_value_or_an_error_of_ours(
    call, monkeypatch, autojump_clock
):
    boundary = ErrorBoundary("client")
    monkeypatch.setattr("trioha.remoting.client.BOUNDARY", boundary)
    assert await outcome(call, lambda whole: whole) is None
    for header in ENDED_THE_MONITOR:
        assert await outcome(call, lambda _, header=header: frame(header.encode())) is ConnectionLostError
        assert boundary.bugs == 0, header
    outcomes = set()
    for seed in range(by_level(100, 1_000, 10_000)):

        def spoil(whole, chance=random.Random(seed)):  # noqa: B008 - one for each seed
            (mutant,) = mutants(chance.getrandbits(32), [whole], 1)
            # An answer nobody waits for, one again, requests of the server; and one that is right.
            return chance.choice((mutant, mutant, whole + mutant, whole * 2, mutant + whole, whole))

        outcomes.add(await outcome(call, spoil))
        assert boundary.bugs == 0, seed
    assert {None, ConnectionLostError} <= outcomes

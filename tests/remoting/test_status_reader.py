"""The status of recorded RocketMQ brokers and of trioha nodes, by requests and by updates."""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from attrs import evolve
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from tests.remoting.recorded import answers
from tests.remoting.serving import client_of
from trioha.broker_status import (
    BrokerRuntimeInfo,
    BrokerSettings,
    BrokerStatus,
    ConnectionStatus,
    SlaveStatus,
)
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.client import RemotingClient, RequestTimeoutError
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request, response_to
from trioha.remoting.ha_runtime_info import encode_ha_status
from trioha.remoting.status_reader import StatusReader, StatusUpdates, fetch_status

MASTER_53 = answers("remoting-5.3.3/070-probe--master")
SLAVE_53 = answers("remoting-5.3.3/071-probe--slave") | answers("remoting-5.3.3/025-adm-clusterListM--slave")
MASTER_49 = answers("remoting-4.9.7/098-probe--master")
SLAVE_49 = answers("remoting-4.9.7/099-probe--slave") | answers("remoting-4.9.7/029-adm-clusterListM--slave")
HA_STATUS = RequestCode.GET_BROKER_HA_STATUS
CONFIG = RequestCode.GET_BROKER_CONFIG
RUNTIME_INFO = RequestCode.GET_BROKER_RUNTIME_INFO


@asynccontextmanager
async def broker(recorded):
    """A client of a server with the recorded answers (none for other codes), and the codes it asks for."""
    asked_codes = []

    async def handler(asked, peer):
        asked_codes.append(asked.code)
        if asked.code not in recorded:
            await trio.sleep_forever()
        return evolve(recorded[asked.code], opaque=asked.opaque)

    async with client_of(handler) as client:
        yield client, asked_codes


async def test_a_real_53_master_is_shown_with_its_slave():
    async with broker(MASTER_53) as (client, asked_codes):
        status = await fetch_status(client)
    assert sorted(asked_codes) == [CONFIG, RUNTIME_INFO, HA_STATUS]
    assert status == BrokerStatus(
        address=client.address,
        source="ha-status",
        role="SYNC_MASTER",
        cluster_name="SpecCluster",
        broker_name="broker-a",
        broker_id=0,
        version="V5_3_3",
        min_offset=0,
        max_offset=15630,
        flushed_offset=None,
        ha_address="127.0.0.1:43312",
        in_sync_slaves=1,
        connections=(
            ConnectionStatus(
                address="127.0.0.1:49198",
                sent_offset=14245,
                ack_offset=14245,
                lag_bytes=1385,
                in_sync=True,
                transferred_bytes_per_s=24,
            ),
        ),
        client=None,
        put_statuses={},
        dispatched_offset=14001,
        settings=BrokerSettings(
            gap_bytes_max=268435456,
            slave_timeout_ms=3000,
            housekeeping_ms=20000,
            heartbeat_ms=5000,
            file_bytes=16777216,
            reserved_h=72,
            disk_percent_max=99,
        ),
        table=BrokerRuntimeInfo(
            booted_ms=1795234295782,
            earliest_ms=1795234349112,
            put_messages_per_s=0.0,
            puts_total=46,
            puts_failed=0,
            unflushed_bytes=0,
            disk_ratio=0.23,
            disk_total_bytes=270582939648,
            disk_free_bytes=248893354803,
        ),
    )


async def test_a_real_53_slave_is_shown_with_its_master():
    async with broker(SLAVE_53) as (client, _):
        status = await fetch_status(client)
    assert (status.source, status.role, status.broker_id) == ("ha-status", "SLAVE", 1)
    assert (status.min_offset, status.max_offset, status.in_sync_slaves) == (0, 14245, None)
    assert status.connections == ()
    assert status.client == SlaveStatus(
        master_address="127.0.0.1:43312",
        max_offset=14245,
        transferred_bytes_per_s=12,
        last_read_ms=1795234701072,
        last_write_ms=1795234701072,
    )


async def test_a_real_49_broker_is_shown_from_its_runtime_info():
    async with broker(MASTER_49) as (client, asked_codes):
        master = await fetch_status(client)
    assert asked_codes[0] == HA_STATUS
    assert (master.source, master.role, master.version) == ("runtime-info", "SYNC_MASTER", "V4_9_7")
    assert (master.min_offset, master.max_offset, master.broker_name) == (0, 11179, "broker-a")
    assert (master.connections, master.client, master.in_sync_slaves) == ((), None, None)
    async with broker(SLAVE_49) as (client, _):
        slave = await fetch_status(client)
    assert (slave.source, slave.role, slave.broker_id) == ("runtime-info", "SLAVE", 1)
    assert slave.max_offset > 0


async def test_a_broker_that_refuses_its_configuration_is_shown_as_master():
    refused = response_to(request(CONFIG), ResponseCode.NO_PERMISSION)
    async with broker({**MASTER_53, CONFIG: refused}) as (client, _):
        status = await fetch_status(client)
    assert (status.role, status.broker_name, status.ha_address) == ("MASTER", None, None)
    assert (status.version, status.max_offset) == ("V5_3_3", 15630)
    async with broker({**MASTER_49, CONFIG: refused}) as (client, _):
        assert (await fetch_status(client)).role == "UNKNOWN"


async def test_one_answer_has_the_whole_status_of_a_trioha_node():
    node = BrokerStatus(
        version="1.0",
        role="SLAVE",
        cluster_name="c",
        broker_name="b",
        broker_id=1,
        min_offset=100,
        max_offset=639,
        flushed_offset=580,
        ha_address="127.0.0.1:10912",
        client=SlaveStatus(
            master_address="m:1", max_offset=639, transferred_bytes_per_s=9, last_read_ms=5, last_write_ms=6,
            reported_offset=600, state="TRANSFER", reconnects=2, verdict="GAP: its log begins at 5",
        ),
        put_statuses={"SERVICE_NOT_AVAILABLE": 4},
        probes={"10.0.0.8": {"EOF": 3, "NO_REQUEST": 1}, "other": {"EOF": 9}},
    )  # fmt: skip
    answer = response_to(request(HA_STATUS), 0, body=encode_ha_status(node))
    async with broker({HA_STATUS: answer}) as (client, asked_codes):
        status = await fetch_status(client)
    assert asked_codes == [HA_STATUS]
    assert status == evolve(node, address=client.address)


async def test_a_refusal_has_its_code():
    refused = response_to(request(HA_STATUS), ResponseCode.NO_PERMISSION, remark="No accessKey\n\tat X")
    async with broker({HA_STATUS: refused}) as (client, _):
        with pytest.raises(PeerError) as caught:
            await fetch_status(client)
    assert caught.value.code == 16
    assert str(caught.value) == (
        f"{client.address}: GET_BROKER_HA_STATUS was answered with NO_PERMISSION (16): No accessKey"
    )


async def test_all_requests_together_take_no_longer_than_the_timeout():
    async with broker({HA_STATUS: MASTER_49[HA_STATUS]}) as (client, _):
        start_s = trio.current_time()
        with pytest.raises(RequestTimeoutError):
            await fetch_status(client, timeout_s=0.3)
        assert 0.29 < trio.current_time() - start_s < 2.0


async def test_the_runtime_table_is_not_requested_each_time_if_907_reports_the_offsets(monkeypatch):
    monkeypatch.setattr("trioha.remoting.status_reader.TABLE_INTERVAL_S", 1e6)
    async with broker(MASTER_53) as (client, asked_codes):
        reader = StatusReader(client)
        first = await reader.fetch()
        assert await reader.fetch() == first
    assert asked_codes == [HA_STATUS, RUNTIME_INFO, CONFIG, HA_STATUS]


async def test_the_configuration_is_requested_again_when_the_broker_has_another_role(monkeypatch):
    monkeypatch.setattr("trioha.remoting.status_reader.TABLE_INTERVAL_S", 0.0)
    answers_now = dict(MASTER_53)
    async with broker(answers_now) as (client, asked_codes):
        reader = StatusReader(client)
        assert (await reader.fetch()).role == "SYNC_MASTER"
        assert (await reader.fetch()).role == "SYNC_MASTER"
        answers_now[HA_STATUS] = SLAVE_53[HA_STATUS]
        # In the midst of a change its configuration is still the old one.
        assert (await reader.fetch()).client is not None
        answers_now[CONFIG] = SLAVE_53[CONFIG]
        status = await reader.fetch()
        assert (status.role, status.broker_id) == ("SLAVE", 1)
        await reader.fetch()
    assert asked_codes.count(CONFIG) == 3
    asked_again = [code for code in asked_codes if code != RUNTIME_INFO]
    assert asked_again == [HA_STATUS, CONFIG, HA_STATUS, *2 * (HA_STATUS, CONFIG), HA_STATUS]


NODE = BrokerStatus(
    version="1", role="ASYNC_MASTER", cluster_name="c", broker_name="b", broker_id=0, min_offset=0,
    max_offset=100, flushed_offset=0, ha_address="127.0.0.1:10912",
)  # fmt: skip
PROMISE = {"triohaEveryMillis": "100", "triohaUpdates": "20"}


def body_at(offset):
    return encode_ha_status(evolve(NODE, max_offset=offset))


def update(offset):
    return encode(request(HA_STATUS, body=body_at(offset), oneway=True))


@asynccontextmanager
async def promising(fields, *, before=b"", answers=None, with_table=False):
    """A reader of a node that promises `fields`, a way to push to it, and when the node was asked.

    `before` goes out before each answer, which says 100 unless `answers` has another body for the request.
    """
    ours, theirs = memory_stream_pair()
    updates = StatusUpdates(0.1)
    client = RemotingClient(ours, "node", on_request=updates.receive)
    asked: list[int] = []

    async def node():
        decoder = FrameDecoder()
        async for data in theirs:
            decoder.feed(data)
            while (command := decoder.next_command()) is not None:
                asked.append(command.code)
                body = (answers or {}).get(command.code, body_at(100))
                answer = response_to(command, ResponseCode.SUCCESS, ext_fields=fields, body=body)
                await theirs.send_all(before + encode(answer))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(node)
        nursery.start_soon(client._run)
        yield StatusReader(client, updates=updates, with_table=with_table), theirs.send_all, asked
        nursery.cancel_scope.cancel()


async def test_fetch_waits_for_an_update_and_returns_the_newest_one(autojump_clock):
    async with promising(PROMISE) as (reader, push, asked):
        assert (await reader.fetch()).max_offset == 100
        await push(update(101) + update(102))
        await wait_all_tasks_blocked()
        assert (await reader.fetch()).max_offset == 102
        async with trio.open_nursery() as nursery:
            nursery.start_soon(push_later, push, update(103))
            assert (await reader.fetch()).max_offset == 103
        assert asked == [HA_STATUS]


async def push_later(push, data):
    await trio.sleep(0.15)
    await push(data)


async def test_a_late_update_is_replaced_by_a_request(autojump_clock):
    async with promising(PROMISE) as (reader, push, asked):
        await reader.fetch()
        started = trio.current_time()
        assert (await reader.fetch()).max_offset == 100
        assert round(trio.current_time() - started, 3) == 0.2
        # It promised again when it answered.
        await push(update(104))
        await wait_all_tasks_blocked()
        assert (await reader.fetch()).max_offset == 104
        assert asked == [HA_STATUS] * 2


async def test_an_update_older_than_an_answer_is_dropped(autojump_clock):
    async with promising(PROMISE, before=update(99)) as (reader, push, _):
        assert (await reader.fetch()).max_offset == 100
        await push(update(101))
        assert (await reader.fetch()).max_offset == 101


async def test_a_node_that_promises_nothing_is_asked_each_time(autojump_clock):
    async with promising({}) as (reader, _, asked):
        for _ in range(3):
            assert (await reader.fetch()).max_offset == 100
        assert asked == [HA_STATUS] * 3
        assert trio.current_time() == 0


async def test_invalid_updates_and_promises_are_protocol_errors(autojump_clock):
    async with promising({**PROMISE, "triohaUpdates": "many"}) as (reader, _, _):
        with pytest.raises(RemoteProtocolError, match="triohaUpdates is not a whole number"):
            await reader.fetch()
    async with promising(PROMISE) as (reader, push, _):
        await reader.fetch()
        await push(encode(request(HA_STATUS, body=b"{]", oneway=True)))
        with pytest.raises(RemoteProtocolError, match="JSON"):
            await reader.fetch()


async def test_other_requests_of_a_broker_are_ignored(autojump_clock):
    async with promising(PROMISE) as (reader, push, _):
        await reader.fetch()
        await push(encode(request(RequestCode.GET_BROKER_CONFIG, body=b"?", oneway=True)) + update(105))
        assert (await reader.fetch()).max_offset == 105


async def test_a_table_that_comes_with_updates_is_not_requested(autojump_clock):
    def table(rate):
        return json.dumps({"table": {"putTps": rate}}).encode()

    async with promising(PROMISE, answers={RUNTIME_INFO: table("1.0")}, with_table=True) as (
        reader,
        push,
        asked,
    ):
        assert (await reader.fetch()).table.put_messages_per_s == 1.0
        for second in range(3):
            await trio.sleep(1)
            coming = encode(request(RUNTIME_INFO, body=table(f"{second}.5"), oneway=True))
            await push(coming + update(101 + second))
            status = await reader.fetch()
            assert (status.max_offset, status.table.put_messages_per_s) == (101 + second, second + 0.5)
        assert asked == [HA_STATUS, RUNTIME_INFO]
        # And if it does not come, it is.
        await trio.sleep(2)
        await push(update(110))
        assert (await reader.fetch()).table.put_messages_per_s == 1.0
        assert asked == [HA_STATUS, RUNTIME_INFO, RUNTIME_INFO]

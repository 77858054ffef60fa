"""Exceptions planted in request handlers affect one answer only."""

import pytest
import trio
from structlog.testing import capture_logs

from tests.broker.test_processor import Broker
from tests.remoting.streams import transport_pair
from trioha.broker.info import BrokerInfo
from trioha.broker.processor import BrokerProcessor
from trioha.broker.puts import PutService
from trioha.broker.send_processor import SendProcessor
from trioha.broker.status_publisher import StatusPublisher
from trioha.remoting.address import Address
from trioha.remoting.client import RemotingClient
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.send_message import SendMessageRequestHeader, send_request
from trioha.remoting.server import RemotingServer
from trioha.remoting.status_subscription import StatusSubscription
from trioha.store.commit_log import CommitLog

SEND = send_request(SendMessageRequestHeader("g", "T", "TBW102", 4, 0, 0, 0, 0), b"body")
STATUS = request(RequestCode.GET_BROKER_HA_STATUS, ext_fields=StatusSubscription(100, 5).to_fields())
TABLE = request(RequestCode.GET_BROKER_RUNTIME_INFO)
PLACES = [
    (BrokerProcessor, "__call__", SEND),
    (SendMessageRequestHeader, "of", SEND),
    (SendProcessor, "_message", SEND),
    (PutService, "put_and_wait", SEND),
    (CommitLog, "append", SEND),
    (PutService, "_append", SEND),
    (SendProcessor, "_respond", SEND),
    (BrokerProcessor, "_ha_status", STATUS),
    (StatusSubscription, "of", STATUS),
    (StatusPublisher, "subscribe", STATUS),
    (BrokerInfo, "ha_status", STATUS),
    (BrokerProcessor, "_runtime_info", TABLE),
    (PutService, "statistics", TABLE),
    (BrokerInfo, "_earliest_ms", TABLE),
]


def client_of(server, nursery):
    """A client that is connected to the server."""
    ours, theirs = transport_pair()
    nursery.start_soon(server.serve_stream, theirs, Address("192.0.2.1", 4711))
    client = RemotingClient(ours, "192.0.2.2:10911")
    nursery.start_soon(client._run)
    return client


@pytest.mark.parametrize(("place", "name", "command"), PLACES, ids=[name for _, name, _ in PLACES])
async def test_a_bug_in_a_handler_is_one_system_error_and_the_next_request_is_served(
    tmp_path, nursery, monkeypatch, *, place, name, command
):
    def planted(*args, **kwargs):
        raise ZeroDivisionError("planted")

    broker = Broker(tmp_path)
    server = RemotingServer(broker.processor)
    nursery.start_soon(broker.updates.run, server.connections.push)
    client = client_of(server, nursery)
    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(place, name, planted)
            answer = await client.request(command)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: planted")
        assert server.statistics.handler_errors == server.statistics.bugs == 1
        assert [(entry["event"], entry["code"]) for entry in logs] == [("request failed", command.code)]
        for other in (SEND, STATUS, TABLE):
            assert (await client.request(other)).code == ResponseCode.SUCCESS
    assert server.statistics.connections_open == 1


@pytest.mark.parametrize("name", ["ha_status", "runtime_info"])
async def test_a_status_that_cannot_be_collected_sends_no_updates_and_ends_no_connection(
    tmp_path, nursery, monkeypatch, autojump_clock, name
):
    def planted(*args, **kwargs):
        raise ZeroDivisionError("planted")

    broker = Broker(tmp_path)
    server = RemotingServer(broker.processor)
    nursery.start_soon(broker.updates.run, server.connections.push)
    client = client_of(server, nursery)
    assert (await client.request(STATUS)).code == ResponseCode.SUCCESS
    with capture_logs() as logs, monkeypatch.context() as patched:
        patched.setattr(BrokerInfo, name, planted)
        await trio.sleep(0.35)
    assert len(logs) == 1
    assert (await client.request(STATUS)).code == ResponseCode.SUCCESS
    received = client.statistics.server_requests
    await trio.sleep(0.35)
    assert client.statistics.server_requests > received
    assert server.statistics.bugs == 0


async def test_a_failing_push_ends_the_connection_of_its_subscriber_only(tmp_path, nursery, monkeypatch):
    broker = Broker(tmp_path)
    server = RemotingServer(broker.processor)
    clients = []
    for _ in range(2):
        # One after the other: connections get their numbers in the order in which they come.
        clients.append(client_of(server, nursery))
        assert (await clients[-1].request(TABLE)).code == ResponseCode.SUCCESS
    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr("trioha.remoting.server_connection.send_parts_now", lambda *_: 1 / 0)
            assert server.connections.push(1, b"frame")
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics.connections_open == 1
        assert (await clients[1].request(TABLE)).code == ResponseCode.SUCCESS
    assert (len(logs), server.statistics.bugs) == (1, 1)

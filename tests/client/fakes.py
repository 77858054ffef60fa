"""A cluster in one process: name server and brokers behind memory streams, so that time may be virtual."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import trio
from attrs import evolve

from tests.broker.consuming import Broker
from tests.remoting.streams import transport_pair
from trioha.client.cluster import open_cluster
from trioha.metadata.topics import retry_topic
from trioha.recording.events import PutStatus
from trioha.remoting.address import Address
from trioha.remoting.client import ConnectionLostError, RemotingClient, running
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, response_to
from trioha.remoting.send_back import SendBackRequest
from trioha.remoting.send_message import (
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    send_response,
)
from trioha.remoting.server import RemotingServer
from trioha.store.message_properties import parse_properties
from trioha.store.record import decode_record

NAME_SERVER = "ns:9876"
MESSAGE_ID = "7F0000010000A8670000000000003494"


def route_body(queues, *, brokers=None, perm=6):
    """TopicRouteData: number of queues by broker name; `brokers`: addresses by broker id."""
    brokers = brokers or {name: {0: f"{name}:10911"} for name in queues}
    return json.dumps(
        {
            "brokerDatas": [
                {
                    "brokerAddrs": {str(number): address for number, address in addresses.items()},
                    "brokerName": name,
                    "cluster": "C",
                }
                for name, addresses in brokers.items()
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name, "perm": perm, "readQueueNums": count, "topicSysFlag": 0,
                    "writeQueueNums": count,
                }
                for name, count in queues.items()
            ],
        }
    ).encode()  # fmt: skip


class FakeNameServer:
    """Answers routes; `topics` may be changed."""

    def __init__(self, **topics):
        self.topics = topics
        self.requests = []

    def __call__(self, asked, _peer):
        self.requests.append(asked)
        assert asked.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        body = self.topics.get(asked.ext_fields["topic"])
        if body is None:
            return response_to(asked, ResponseCode.TOPIC_NOT_EXIST, remark="No topic route info")
        return response_to(asked, ResponseCode.SUCCESS, body=body)


class FakeSends:
    """Stores sends; `outcomes` are the statuses or answers of the next ones, then PUT_OK."""

    def __init__(self, *outcomes):
        self.outcomes = list(outcomes)
        self.sends = []

    @property
    def bodies(self):
        return [bytes(command.body) for _, command in self.sends]

    def __call__(self, asked, _peer):
        if asked.code != RequestCode.SEND_MESSAGE_V2:
            return response_to(asked, ResponseCode.SUCCESS)
        header = SendMessageRequestHeader.of(asked)
        self.sends.append((header, evolve(asked, body=bytes(asked.body))))
        outcome = self.outcomes.pop(0) if self.outcomes else PutStatus.PUT_OK
        if outcome is None:
            return _never()
        if isinstance(outcome, PutStatus):
            stored = SendMessageResponseHeader(MESSAGE_ID, header.queue_id, len(self.sends) - 1)
            return send_response(asked, outcome, header=stored)
        return response_to(asked, outcome, remark="refused")

    def properties(self, number=0):
        """Of a send."""
        return parse_properties(self.sends[number][0].properties.encode())


async def _never():
    await trio.sleep_forever()


class FakeCluster:
    """Servers by address, whose connections can be cut."""

    def __init__(self, nursery, **handlers):
        """`handlers` by name, `_` for `-`; each at port 10911, the one named ns at 9876."""
        self._nursery = nursery
        self.down = set()
        self.handlers = {}
        self.servers = {}
        self.connected = []
        self._scopes = {}
        for name, handler in handlers.items():
            self.add(NAME_SERVER if name == "ns" else f"{name.replace('_', '-')}:10911", handler)

    def add(self, address, handler, server=None):
        """`server` serves `handler`, by default one with no more than that."""
        self.handlers[address] = handler
        self.servers[address] = RemotingServer(handler) if server is None else server
        self._scopes[address] = []

    def cut(self, address):
        """End all connections to an address."""
        for scope in self._scopes[address]:
            scope.cancel()
        self._scopes[address].clear()

    @asynccontextmanager
    async def connect(self, address, *, on_request):
        await trio.lowlevel.checkpoint()
        if address in self.down or address not in self.servers:
            raise ConnectionLostError("cannot connect: Connection refused", address=address)
        self.connected.append(address)
        ours, theirs = transport_pair(1 << 20)
        scope = trio.CancelScope()
        self._scopes[address].append(scope)

        async def serve():
            async with theirs:
                with scope:
                    await self.servers[address].serve_stream(theirs, Address("192.0.2.7", 5555))

        self._nursery.start_soon(serve)
        client = RemotingClient(ours, address, on_request=on_request)
        async with running(client):
            yield client


@asynccontextmanager
async def fake_cluster(**handlers):
    """A `FakeCluster` until the end of the block."""
    async with trio.open_nursery() as nursery:
        yield FakeCluster(nursery, **handlers)
        nursery.cancel_scope.cancel()


def opened(fake, **options):
    """A client of a `FakeCluster`."""
    return open_cluster(name_servers=(NAME_SERVER,), open_connection=fake.connect, **options)


class ServedBroker:
    """A broker that serves consumers from a store, as a handler."""

    def __init__(self, tmp_path, **settings):
        self.broker = Broker(tmp_path, **settings)
        self.requests = []
        self.put = self.broker.put
        self.refuses_retries = False

    def attach(self, fake, nursery, address="broker-a:10911"):
        """Serve at an address of a `FakeCluster`, with notifications and deadlines of pulls."""
        fake.add(address, self, self.broker.server(self))
        nursery.start_soon(self.broker.consumers.run)

    def __call__(self, asked, peer):
        self.requests.append(asked)
        if asked.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return self._retry(asked)
        handler = self.broker.consumers.handlers.get(asked.code)
        if handler is None:
            raise BadRequestError("not supported", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return handler(asked, peer)

    def _retry(self, asked):
        """Store a message that is sent back in the retry topic of its group, without a delay."""
        if self.refuses_retries:
            return response_to(asked, ResponseCode.SYSTEM_ERROR, remark="refused")
        header = SendBackRequest.of(asked)
        record = decode_record(self.broker.store.reads.record_at(header.offset))
        self.put(record.body, topic=retry_topic(header.group), RETRY_TOPIC=record.topic)
        return response_to(asked, ResponseCode.SUCCESS)

    def count(self, code):
        """Number of requests of that code."""
        return sum(command.code == code for command in self.requests)

    def committed(self, group, queue_id, topic="Orders"):
        """The group's offset."""
        return self.broker.metadata.consumer_offsets.find(group, topic, queue_id)

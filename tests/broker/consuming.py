"""A broker that serves consumers, without a server: store, metadata and handlers in reach."""

from __future__ import annotations

import inspect
import json

import trio
from attrs import evolve

from tests.store.support import message, open_store
from trioha.broker.traffic import BrokerTraffic
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.topics import TopicConfig
from trioha.node.administration import Administration
from trioha.node.consumers import Consumers
from trioha.node.metadata import metadata_settings
from trioha.remoting.address import Address
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.server import RemotingServer
from trioha.remoting.serving import Peer, WaitingAnswer, WokenAnswers
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.message_properties import encode_properties
from trioha.store.record import Record, decode_record
from trioha.store.waiting_readers import WaitingReaders

PEER = Peer(Address("192.0.2.7", 5555), 1)
GROUP = "group"
TOPIC = "Orders"


class NotedConnections(Connections):
    """Connections, and the notices of changed groups that are pushed, also where there is no connection."""

    def __init__(self):
        super().__init__()
        self.notified = []
        """Numbers of connections, and groups."""

    def push(self, connection, frame, *, may_wait=False):
        decoder = FrameDecoder()
        decoder.feed(frame)
        pushed = decoder.next_command()
        if pushed.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.notified.append((connection, pushed.ext_fields["consumerGroup"]))
        return super().push(connection, frame, may_wait=may_wait)


class Broker:
    """Store, metadata and what serves consumers."""

    def __init__(self, tmp_path, *, config_file=None, run_time_settings=(), replicated=None, **settings):
        self.config = BrokerConfig(
            store_path_root_dir=tmp_path, broker_name="broker-a", broker_id=1 if "role" in settings else 0,
            **({"broker_role": BrokerRole.SLAVE} if settings.pop("role", None) else {}), **settings,
        )  # fmt: skip
        self.store = open_store(tmp_path)
        self.metadata = MetadataStore.open(metadata_settings(self.config))
        self.metadata.topics.put(TopicConfig(TOPIC, 4, 4))
        self.is_connected = True
        """Of a slave, to its master."""
        traffic = BrokerTraffic(
            cluster_name=self.config.broker_cluster_name, keys_max=self.config.statistics_max
        )
        self.pushed = []
        """Connections and frames of resets of offsets."""
        self.connections = NotedConnections()
        self.notified = self.connections.notified
        self.readers = WaitingReaders()
        self.consumers = Consumers.build(
            self.config,
            self.store,
            self.metadata,
            traffic=traffic,
            connections=self.connections,
            readers=self.readers,
            replicated=None if replicated is None else replicated(self.store),
            is_following=lambda: self.is_connected,
        )
        self.admin = Administration.build(
            self.config,
            self.store,
            self.metadata,
            self.consumers.clients,
            traffic=traffic,
            config_file=config_file,
            push=self._push,
            address="127.0.0.1:10911",
            settings=run_time_settings,
        )
        self.handlers = {**self.consumers.handlers, **self.admin.handlers}

    def _push(self, connection, frame):
        self.pushed.append((connection, frame))
        return self.connections.push(connection, frame, may_wait=True)

    def server(self, handler=None):
        """A server of its handlers, or of `handler`."""

        def handle(asked, peer):
            return self.consumers.handlers[asked.code](asked, peer)

        return RemotingServer(handler or handle, self.connections, on_closed=self.consumers.connection_closed)

    def put(self, *bodies, topic=TOPIC, queue_id=0, tag=None, **properties):
        """Store messages and dispatch them."""
        if tag is not None:
            properties["TAGS"] = tag
        for body in bodies:
            self.store.commit_log.append(
                message(body, topic=topic, queue_id=queue_id, properties=encode_properties(properties))
            )
        dispatch_to_end(self.store.dispatcher, self.store.commit_log)

    def start(self, code, fields=None, *, body=b"", peer=PEER, version=int(Version.V4_9_7), oneway=False):
        """The answer of the handler, or an awaitable of it."""
        command = RemotingCommand(code, 7, 2 if oneway else 0, None, fields or {}, body, version=version)
        try:
            answer = self.handlers[code](command, peer)
        except BadRequestError as error:
            return response_to(command, error.code, remark=error.reason)
        if isinstance(answer, RemotingCommand) and answer.slices:
            return evolve(answer, body=answer.whole_body, slices=())
        return AwaitedAnswer(answer) if isinstance(answer, WaitingAnswer) else answer

    async def ask(self, code, fields=None, **options):
        """The answer, waited for."""
        answer = self.start(code, fields, **options)
        if not inspect.isawaitable(answer):
            return answer
        try:
            return await answer
        except BadRequestError as error:
            return RemotingCommand(error.code, 7, 1, error.reason)

    def pull(self, **changes):
        """A pull with its expression, of all tags, that does not wait; the answer or an awaitable."""
        options = {name: changes.pop(name) for name in ("code", "peer", "version") if name in changes}
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15000, "subscription": "*",
            "subVersion": 0, **changes,
        }  # fmt: skip
        return self.start(
            options.pop("code", RequestCode.PULL_MESSAGE),
            {name: str(value) for name, value in fields.items() if value is not None},
            **options,
        )

    async def heartbeat(
        self, client_id="c1", *, peer=PEER, group=GROUP, expression="*", tags=(), codes=(), **data
    ):
        """A consumer's heartbeat."""
        return await self.ask(
            RequestCode.HEART_BEAT,
            body=json.dumps(
                {
                    "clientID": client_id,
                    "producerDataSet": [{"groupName": name} for name in data.pop("producers", ())],
                    "consumerDataSet": [
                        {
                            "groupName": group,
                            "consumeType": "CONSUME_PASSIVELY",
                            "messageModel": data.pop("model", "CLUSTERING"),
                            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                            "unitMode": False,
                            "subscriptionDataSet": [
                                {
                                    "topic": topic, "subString": expression, "expressionType": "TAG",
                                    "tagsSet": list(tags), "codeSet": list(codes),
                                    "subVersion": data.get("version", 5), "classFilterMode": False,
                                }
                                for topic in data.get("topics", (TOPIC,))
                            ],
                        }
                    ]
                    if group
                    else [],
                }
            ).encode(),
            peer=peer,
        )  # fmt: skip


def records_of(body):
    """The records of a pull's answer."""
    data = memoryview(bytes(body))
    records = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        record = decode_record(data[at : at + size])
        assert isinstance(record, Record)
        records.append(record)
        at += size
    return records


def bodies_of(answer):
    """The bodies of the messages that a pull gave."""
    return [record.body for record in records_of(answer.whole_body)]


class AwaitedAnswer:
    """A waiting answer that can be awaited: looked at when it is woken, as by its connection."""

    def __init__(self, waiting):
        self.waiting = waiting
        self._woken = WokenAnswers()
        waiting.wait_in(self._woken)

    def __await__(self):
        return self._answer().__await__()

    async def _answer(self):
        try:
            while True:
                for woken in await self._woken.take():
                    if (answer := woken.answer()) is not None:
                        return answer
        finally:
            self.waiting.abandon()


class Waiting:
    """Answers that are awaited, each with the time when it came."""

    def __init__(self, nursery):
        self._nursery = nursery
        self.answers = {}
        self.scopes = {}

    def add(self, name, awaitable):
        self._nursery.start_soon(self._await, name, awaitable)

    async def _await(self, name, awaitable):
        with trio.CancelScope() as self.scopes[name]:
            self.answers[name] = (await awaitable, trio.current_time())

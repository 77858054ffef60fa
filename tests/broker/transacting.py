"""A master that serves producers of transactions, without a server: store, metadata and service in reach."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from types import SimpleNamespace

import trio
import trio.testing

from tests.broker.timing import timer_messages
from tests.ha.support import make_master, slave_commit
from tests.store.support import open_store
from trioha.broker.client_processor import ClientProcessor
from trioha.broker.clients import ClientRegistry
from trioha.broker.half_messages import TRANSACTION_GROUP
from trioha.broker.puts import PutService
from trioha.broker.retries import Retries
from trioha.broker.send_processor import SendProcessor
from trioha.broker.transaction_processor import TransactionProcessor
from trioha.broker.transaction_service import TransactionService
from trioha.broker.transaction_settings import TransactionSettings
from trioha.config.broker import BrokerConfig
from trioha.ha.group_commit import GroupCommitSettings
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.topics import TopicConfig
from trioha.node.metadata import metadata_settings
from trioha.node.transactions import _follow_dispatch
from trioha.remoting.address import Address
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.send_message import SendMessageRequestHeader, send_request
from trioha.remoting.serving import Peer
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.reads import ReadLimits
from trioha.store.record import Record, decode_record
from trioha.store.tags import DEFAULT_DELAY_LEVELS, DelayLevels
from trioha.store.topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from trioha.watermark import Watermark

PEER = Peer(Address("192.0.2.7", 5555), 1)
GROUP = "producers"
TOPIC = "Orders"
START_MS = 1_700_000_000_000


class Master:
    """One life of a master on a folder. Its wall clock is trio's."""

    def __init__(self, tmp_path, monkeypatch, **settings):
        self.settings = TransactionSettings(
            **{"broker_name": "broker-a", "timeout_ms": 6000, "check_interval_s": 30.0, "check_max": 3}
            | settings
        )
        monkeypatch.setattr(
            "trioha.store.commit_log.time", SimpleNamespace(time_ns=lambda: self.now_ms() * 1_000_000)
        )
        self.store = open_store(tmp_path)
        self.log = self.store.commit_log
        config = BrokerConfig(store_path_root_dir=tmp_path, broker_name="broker-a", broker_id=0)
        self.metadata = MetadataStore.open(metadata_settings(config))
        self.metadata.topics.put(TopicConfig(TOPIC, 4, 4))
        self.metadata.topics.note_written(self.metadata.topics.changes.offset)
        self.clients = ClientRegistry(members_max=100)
        _, replicas, events = make_master(self.log)
        group_commit = slave_commit(
            GroupCommitSettings(
                copies_needed=0, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
            ),
            replicas=replicas,
            flushed=self.log.flushed,
            sink=events,
        )
        self.stored = Counter()
        """Messages stored, by topic."""
        self.puts = PutService(
            commit_log=self.log,
            group_commit=group_commit,
            sink=events,
            is_slave=False,
            on_stored=lambda topic, messages, _bytes: self.stored.update({topic: messages}),
        )
        self.held_offset = None
        """What slaves have; None for all."""
        timers = timer_messages(self.now_ms)
        self.service = TransactionService(
            self.store,
            self.metadata,
            self.clients,
            self.puts,
            settings=self.settings,
            timers=timers,
            push=self._push,
            held_offset=lambda: self.log.max_offset if self.held_offset is None else self.held_offset,
            now_ms=self.now_ms,
        )
        _follow_dispatch(self.store, self.service)
        self.pushed = []
        self.is_reachable = True
        self.flushes = True
        self.may_dispatch = trio.Event()
        self.may_dispatch.set()
        self.processor = TransactionProcessor(self.service)
        self.members = ClientProcessor(self.clients, self.metadata, is_slave=False)
        self.sends = SendProcessor(
            self.puts,
            topics=self.metadata.topics,
            retries=Retries(self.metadata.topics, self.metadata.groups),
            cluster_name="cluster",
            broker_ip="192.0.2.1",
            delay_levels=DelayLevels(DEFAULT_DELAY_LEVELS),
            timers=timers,
            prepare=self.service.prepare,
        )

    @property
    def open_transactions(self):
        """Transactions that are open, or whose op record is pending."""
        return len(self.service._table)

    @staticmethod
    def now_ms():
        return START_MS + round(trio.current_time() * 1000)

    def _push(self, connection, frame):
        decoder = FrameDecoder()
        decoder.feed(frame)
        self.pushed.append((connection, decoder.next_command(), trio.current_time()))
        return self.is_reachable

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        """Service, dispatch and flush, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatch)
            nursery.start_soon(self.service.run)
            await trio.testing.wait_all_tasks_blocked()
            task_status.started()

    async def _dispatch(self):
        while True:
            await self.log.appended.reached(self.store.dispatcher.position + 1)
            await self.may_dispatch.wait()
            self.dispatch()
            if self.flushes:
                self.log.flushed.advance(self.log.max_offset)

    def hold_dispatch(self):
        """Let nothing be dispatched until `dispatch`, as where the disk refuses it."""
        self.store.dispatcher.limit_to(Watermark(self.store.dispatcher.position))

    def dispatch(self):
        """Put all entries into their queues."""
        self.store.dispatcher.limit_to(None)
        dispatch_to_end(self.store.dispatcher, self.log)

    async def end_life(self):
        """Close the store and the files of metadata, as a node that stops."""
        self.metadata.close()
        self.store.close()

    # -- requests ----------------------------------------------------------------------------------------

    async def send(self, body=b"hello", *, group=GROUP, key=None, **properties):
        """Send a half message; the answer."""
        key = key or f"KEY{self.log.max_offset:08}"
        properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key, "TAGS": "tag", **properties}
        header = SendMessageRequestHeader(
            group, TOPIC, "TBW102", 4, 2, 4, self.now_ms(), 5,
            encode_properties({name: value for name, value in properties.items() if value}).decode(),
        )  # fmt: skip
        answer = self.sends.answer(send_request(header, body), PEER)
        answer = await answer if inspect.isawaitable(answer) else answer
        if answer.code == ResponseCode.SUCCESS:
            await trio.testing.wait_all_tasks_blocked()
        return answer

    async def end(self, sent, decision=8, *, group=GROUP, **changes):
        """END_TRANSACTION for the half message of an answer or of a check; the answer."""
        command = self.decision(sent, decision, group=group, **changes)
        try:
            answer = self.processor.answer(command, PEER)
            answer = await answer if inspect.isawaitable(answer) else answer
        except BadRequestError as error:
            return response_to(command, error.code, remark=error.reason)
        await trio.testing.wait_all_tasks_blocked()
        return answer

    @staticmethod
    def decision(sent, decision=8, *, group=GROUP, oneway=False, **changes):
        """The request END_TRANSACTION for the half message of an answer or of a check."""
        fields = dict(sent.ext_fields)
        physical_offset = fields.get("commitLogOffset") or str(int(fields["msgId"][16:], 16))
        return request(
            RequestCode.END_TRANSACTION,
            oneway=oneway,
            ext_fields={
                "producerGroup": group,
                "tranStateTableOffset": fields.get("tranStateTableOffset") or fields["queueOffset"],
                "commitLogOffset": physical_offset,
                "commitOrRollback": str(int(decision)),
                "fromTransactionCheck": "false",
                "msgId": "x",
                **{name: str(value) for name, value in changes.items()},
            },
        )

    def connect(self, connection=1, *, group=GROUP):
        """A producer of the group sends its heartbeat."""
        body = {
            "clientID": f"c{connection}",
            "producerDataSet": [{"groupName": group}],
            "consumerDataSet": [],
        }
        self.members.heart_beat(
            request(RequestCode.HEART_BEAT, body=json.dumps(body).encode()),
            Peer(PEER.address, connection),
        )

    # -- what is there -----------------------------------------------------------------------------------

    def records(self, topic, queue_id=0):
        """The records of a queue."""
        self.dispatch()
        limits = ReadLimits(messages_max=1000, bytes_max=1 << 30)
        records = []
        offset = self.store.reads.min_offset(topic, queue_id)
        while offset < self.store.reads.max_offset(topic, queue_id):
            result = self.store.reads.get(topic, queue_id, offset, limits=limits)
            for view in result.records:
                record = decode_record(view)
                assert isinstance(record, Record)
                records.append(record)
            offset = result.next_begin_offset
        return records

    @property
    def delivered(self):
        """Bodies that consumers get."""
        return [record.body for record in self.records(TOPIC, 2)]

    @property
    def halves(self):
        """Properties of the half messages."""
        return [parse_properties(record.properties_raw) for record in self.records(HALF_TOPIC)]

    @property
    def ops(self):
        """Bodies of the op records."""
        return [record.body for record in self.records(OP_TOPIC)]

    @property
    def given_up(self):
        """Bodies of the messages that got no decision."""
        return [record.body for record in self.records(GIVEN_UP_TOPIC)]

    @property
    def position(self):
        """The offsets of half topic and op topic that are kept."""
        offsets = self.metadata.consumer_offsets
        return (
            offsets.find(TRANSACTION_GROUP, HALF_TOPIC, 0),
            offsets.find(TRANSACTION_GROUP, OP_TOPIC, 0),
        )

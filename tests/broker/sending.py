"""A master's sends, retries and delayed messages, without a server and in virtual time."""

from __future__ import annotations

import inspect

import trio

from tests.broker.timing import TIMER_SETTINGS
from tests.ha.support import Events, make_master, slave_commit
from tests.store.support import message, open_store
from trioha.broker.delayed_delivery import DelayedDelivery
from trioha.broker.processor import BrokerProcessor
from trioha.broker.puts import PutService
from trioha.broker.recall_processor import RecallProcessor
from trioha.broker.retries import Retries
from trioha.broker.send_back_processor import SendBackProcessor
from trioha.broker.send_processor import SendProcessor
from trioha.broker.timer_delivery import TimerDelivery
from trioha.broker.timer_messages import TimerMessages
from trioha.broker.timer_records import PendingTimers
from trioha.ha.group_commit import GroupCommitSettings
from trioha.metadata.groups import GroupTable
from trioha.metadata.offsets import DelayOffsets
from trioha.metadata.topics import TopicConfig, TopicSettings, TopicTable
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.send_message import SendMessageRequestHeader
from trioha.remoting.serving import Peer
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.store.record import Record, decode_record
from trioha.store.tags import DelayLevels
from trioha.store.topics import HOLDING_TOPICS

PEER = Peer(Address("192.0.2.7", 5555), 1)
TOPIC = "Orders"
GROUP = "group"
START_MS = 1_800_000_000_000
"""The wall clock when a test begins."""


class WallClock:
    """The wall clock: virtual time plus `ahead_ms`, which a test changes to set the clock."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return START_MS + self.ahead_ms + round(trio.current_time() * 1000)

    def time_ns(self) -> int:
        return self.now_ms() * 1_000_000


def properties_of(record):
    """The properties of a record, as a dict."""
    return parse_properties(record.properties_raw)


class WrittenTopics(TopicTable):
    """Its file is written at once."""

    def put(self, topic):
        super().put(topic)
        self.note_written(self.changes.offset)


class Puts(PutService):
    """Notes what is put, and when; refuses with the status of `refusal`."""

    refusal: PutStatus | None = None

    def _append(self, message):
        if self.refusal is not None:
            return AppendResult(self.refusal, reason="as the test wants it"), 0
        self.seen.append((trio.current_time(), message))
        return super()._append(message)


class Sending:
    """Store, tables and processors of a master; `wall` is patched into its log."""

    def __init__(
        self,
        tmp_path,
        wall,
        *,
        levels="1s 5s 10s",
        offsets=None,
        is_slave=False,
        auto_create=True,
        safe_offset=None,
        timer_settings=TIMER_SETTINGS,
    ):
        self.wall = wall
        delay_levels = DelayLevels(levels)
        self.store = open_store(tmp_path, dispatch=DispatchSettings(delay_levels=delay_levels))
        self.log = self.store.commit_log
        events = Events()
        _, replicas, _ = make_master(self.log, events=events)
        settings = GroupCommitSettings(
            copies_needed=0, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
        )
        group_commit = slave_commit(settings, replicas=replicas, flushed=self.log.flushed, sink=events)
        self.stored = []
        """Topic, messages and bytes of each put that was stored."""
        self.puts = Puts(
            commit_log=self.log,
            group_commit=group_commit,
            sink=events,
            is_slave=is_slave,
            on_stored=lambda *stored: self.stored.append(stored),
        )
        self.puts.seen = []
        self.topics = WrittenTopics(TopicSettings(delay_levels=delay_levels.max_level))
        self.topics.add_system_topics()
        self.topics.put(TopicConfig(TOPIC, 4, 4))
        self.groups = GroupTable(auto_create=auto_create)
        self.ordered = set()
        self.retries = Retries(self.topics, self.groups, consumes_in_order=self.ordered.__contains__)
        self.sent_back = []
        self.timer_delivery = TimerDelivery(
            self.store, self.puts, timer_settings, count=self._count, now_ms=wall.now_ms
        )
        self.store.dispatcher.on_written.add(self.timer_delivery.arrived)
        timers = TimerMessages(
            timer_settings,
            now_ms=wall.now_ms,
            waiting=self.timer_delivery.waiting,
            broker_name="broker-a",
        )
        self.send_back_processor = SendBackProcessor(
            self.store.reads,
            self.puts,
            self.retries,
            self.topics,
            broker_ip="192.0.2.1",
            delay_levels=delay_levels,
            timers=timers,
            on_stored=lambda group, topic: self.sent_back.append((group, topic)),
        )
        self.processor = BrokerProcessor(
            send=SendProcessor(
                self.puts,
                topics=self.topics,
                retries=self.retries,
                cluster_name="cluster",
                broker_ip="192.0.2.1",
                delay_levels=delay_levels,
                timers=timers,
            ),
            info=None,
            updates=None,
            handlers={
                RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back_processor.answer,
                RequestCode.RECALL_MESSAGE: RecallProcessor(self.puts, self.topics, timers).answer,
            },
        )
        self.offsets = DelayOffsets() if offsets is None else offsets
        self.delivery = DelayedDelivery(
            self.store,
            self.puts,
            self.offsets,
            delay_levels=delay_levels,
            safe_offset=safe_offset,
            now_ms=wall.now_ms,
        )
        self.store.dispatcher.on_written.add(self.delivery.arrived)

    async def _count(self):
        """What waits in the log; a node counts it by the files of its queues."""
        timers = PendingTimers(roll_window_ms=self.timer_delivery.settings.roll_window_ms)
        for record in self.records():
            timers.add(record, parse_properties(record.properties_raw))
        return timers

    def close(self):
        """End the store as a stop does: the next one goes on where this one was."""
        self.store.close()

    async def ask(self, command):
        try:
            answer = self.processor(command, PEER)
            return await answer if inspect.isawaitable(answer) else answer
        except BadRequestError as error:
            return response_to(command, error.code, remark=error.reason)
        finally:
            self.dispatch()

    def dispatch(self):
        dispatch_to_end(self.store.dispatcher, self.log)

    async def send(
        self, body=b"hello", *, code=RequestCode.SEND_MESSAGE_V2, version=Version.V4_9_7, **changes
    ):
        """The answer to a send; properties may be given as a dict."""
        fields = {
            "producer_group": "producers", "topic": TOPIC, "default_topic": "TBW102",
            "default_topic_queue_nums": 4, "queue_id": 2, "sys_flag": 0, "born_timestamp_ms": 1234, "flag": 5,
            **changes,
        }  # fmt: skip
        if isinstance(fields.get("properties"), dict):
            fields["properties"] = encode_properties(fields["properties"]).decode()
        header = SendMessageRequestHeader(**fields)
        return await self.ask(
            RemotingCommand(code, 7, 0, None, header.to_ext_fields(), body, version=int(version))
        )

    async def delayed(self, level, body=b"hello", **properties):
        """Send a message with a delay level."""
        return await self.send(body, properties={"DELAY": str(level), **properties})

    async def send_back(self, offset=0, *, delay_level=0, version=Version.V4_9_7, **fields):
        """The answer to CONSUMER_SEND_MSG_BACK."""
        ext = {
            "offset": str(offset), "group": GROUP, "delayLevel": str(delay_level), "originTopic": TOPIC,
            "originMsgId": "x", "unitMode": "false", "maxReconsumeTimes": "16", **fields,
        }  # fmt: skip
        present = {name: value for name, value in ext.items() if value is not None}
        return await self.ask(
            RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, 8, 0, None, present, version=int(version))
        )

    def put(self, body=b"hello", **fields):
        """Store a message as it is; where its record is."""
        offset = self.log.append(message(body, **fields)).physical_offset
        self.dispatch()
        return offset

    def records(self, topic=None):
        """All records of the log, or those of a topic, in order."""
        found = []
        offset = self.log.min_offset
        while offset < self.log.max_offset:
            record = decode_record(self.log.read(offset, 65536))
            if isinstance(record, Record):
                found.append(record)
                offset += record.total_size
            else:
                offset += record.total_size
        return [record for record in found if topic in {None, record.topic}]

    @property
    def deliveries(self):
        """Time and body of each message that was put to a topic in which none waits."""
        return [(at_s, one.body) for at_s, one in self.puts.seen if one.topic not in HOLDING_TOPICS]

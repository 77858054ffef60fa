"""A master that hands out messages, without a server and in virtual time."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio
from attrs import evolve

from tests.broker.consuming import PEER, AwaitedAnswer, records_of
from tests.broker.timing import TIMER_SETTINGS
from tests.ha.support import Events, make_master, slave_commit
from tests.store.support import message, open_store
from trioha.broker.pending import count_pending, revived_offsets
from trioha.broker.puts import PutService
from trioha.broker.timer_delivery import TimerDelivery
from trioha.broker.timer_messages import TimerMessages
from trioha.broker.traffic import BrokerTraffic
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.ha.group_commit import GroupCommitSettings
from trioha.ha.meter import LagClock
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.topics import TopicConfig
from trioha.node.consumers import Consumers
from trioha.node.metadata import metadata_settings
from trioha.node.pops import Pops
from trioha.node.timers import Timers
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, request, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.pop_handle import HANDLE, PopHandle, PopSource
from trioha.remoting.serving import PendingAnswer, WaitingAnswer
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import AppendResult
from trioha.store.record import decode_record
from trioha.store.waiting_readers import WaitingReaders

TOPIC = "Orders"
GROUP = "group"
BROKER = "broker-a"
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


class Puts(PutService):
    """Refuses with the status of `refusal`."""

    refusal = None
    refuses = staticmethod(lambda _message: True)

    def _append(self, message):
        if self.refusal is not None and self.refuses(message):
            return AppendResult(self.refusal, reason="as the test wants it"), 0
        return super()._append(message)


class Popped:
    """A message of an answer, and its handle."""

    def __init__(self, record, handle):
        self.record = record
        self.body = record.body
        self.handle = handle
        self.topic = {
            PopSource.TOPIC: record.topic,
            PopSource.RETRY_V1: f"%RETRY%{GROUP}_{record.topic}",
            PopSource.RETRY_V2: f"%RETRY%{GROUP}+{record.topic}",
        }[handle.source]


class Popping:
    """Store, metadata and what serves pops. Use `running` around requests."""

    def __init__(self, tmp_path, wall, *, copies=0, safe_offset=None, queues=2, is_slave=False, **settings):
        self.wall = wall
        self.root = tmp_path
        self.config = BrokerConfig(
            store_path_root_dir=tmp_path,
            broker_name=BROKER,
            broker_id=int(is_slave),
            **({"broker_role": BrokerRole.SLAVE} if is_slave else {}),
            **settings,
        )
        self.store = open_store(tmp_path)
        self.log = self.store.commit_log
        self.metadata = MetadataStore.open(metadata_settings(self.config))
        if self.metadata.topics.find(TOPIC) is None and queues:
            self.metadata.topics.put(TopicConfig(TOPIC, queues, queues))
        events = Events()
        _, self.replicas, _ = make_master(self.log, events=events)
        commit = slave_commit(
            GroupCommitSettings(
                copies_needed=copies, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
            ),
            replicas=self.replicas,
            flushed=self.log.flushed,
            sink=events,
        )
        self.puts = Puts(commit_log=self.log, group_commit=commit, sink=events, is_slave=is_slave)
        self.safe_offset = safe_offset or self._log_end
        timer_settings = evolve(TIMER_SETTINGS, is_enabled=self.config.timer_wheel_enable)
        self.delivery = None
        if not is_slave and timer_settings.is_enabled:
            self.delivery = TimerDelivery(
                self.store, self.puts, timer_settings, count=self._timers, now_ms=wall.now_ms
            )
            self.store.dispatcher.on_written.add(self.delivery.arrived)
        messages = TimerMessages(
            timer_settings, now_ms=wall.now_ms, waiting=lambda _slot_ms: 0, broker_name=BROKER
        )
        traffic = BrokerTraffic(cluster_name="DefaultCluster", keys_max=100)
        readers = WaitingReaders()
        self.consumers = Consumers.build(
            self.config,
            self.store,
            self.metadata,
            traffic=traffic,
            connections=Connections(),
            readers=readers,
        )
        self.pops = Pops.build(
            self.config,
            self.store,
            self.metadata,
            puts=self.puts,
            timers=Timers(messages, lambda: None, lambda: None, self.delivery, None),
            consumers=self.consumers,
            pending=self,
            traffic=traffic,
            readers=readers,
            safe_offset=self._safe_offset,
            now_ms=wall.now_ms,
        )
        self.handlers = {**self.consumers.handlers, **self.pops.handlers}
        self._counted = None

    def _log_end(self):
        return self.log.max_offset

    def _safe_offset(self):
        return self.safe_offset()

    async def counted(self):
        """As `PendingCounter`."""
        if self._counted is None:
            self.dispatch()
            offsets = self.metadata.consumer_offsets
            end_offset = self.log.max_offset
            found = count_pending(
                self.root,
                log=self.config.store_path_commit_log,
                revived=revived_offsets(offsets),
                end_offset=end_offset,
                pops_complete_to=offsets.pops_complete_to,
            )
            assert not found.status.error
            self._counted = found, end_offset
        return self._counted

    async def _timers(self):
        return (await self.counted())[0].timers

    @asynccontextmanager
    async def running(self):
        """Deliver timers and give messages again meanwhile."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._dispatch)
            if self.delivery is not None:
                nursery.start_soon(self.delivery.run)
            nursery.start_soon(self.pops.run)
            await trio.testing.wait_all_tasks_blocked()
            yield self
            nursery.cancel_scope.cancel()

    async def _dispatch(self):
        while True:
            self.dispatch()
            await self.log.appended.reached(self.store.dispatcher.position + 1)

    def dispatch(self):
        dispatch_to_end(self.store.dispatcher, self.log)

    def stop(self):
        """End as a stop does: the next broker on the folder goes on where this one was."""
        self.metadata.close()
        self.store.close()

    def kill(self):
        """End as `kill -9` does: the tables are as they were written last."""
        self.store.release()

    def write_tables(self):
        """Write the files of the tables, as the node does at its intervals."""
        self.metadata.close()

    def acknowledge(self):
        """A slave has all of the log."""
        self.replicas.acknowledge(1, replica="a", ack_offset=self.log.max_offset, lag_clock=LagClock())

    # -- requests

    def put(self, *bodies, topic=TOPIC, queue_id=0, tag=None, **properties):
        """Store messages and dispatch them."""
        if tag is not None:
            properties["TAGS"] = tag
        for body in bodies:
            self.log.append(
                message(body, topic=topic, queue_id=queue_id, properties=encode_properties(properties))
            )
        self.dispatch()

    def store_record(self):
        """The first record of the log."""
        return decode_record(self.log.read(0, 65536))

    def start(self, code, fields, *, body=b"", peer=PEER):
        """The answer, or an awaitable of it."""
        command = RemotingCommand(code, 7, 0, None, _texts(fields), body, version=int(Version.V5_3_3))
        try:
            answer = self.handlers[code](command, peer)
        except BadRequestError as error:
            return response_to(command, error.code, remark=error.reason)
        return AwaitedAnswer(answer) if isinstance(answer, WaitingAnswer) else answer

    async def finish(self, answer):
        """The answer, waited for."""
        try:
            if isinstance(answer, AwaitedAnswer):
                answer = await answer
            if isinstance(answer, PendingAnswer):
                await answer.commit.settled()
                answer = answer.answer()
        except BadRequestError as error:
            return RemotingCommand(error.code, 7, 1, error.reason)
        return answer

    async def ask(self, code, fields, **options):
        return await self.finish(self.start(code, fields, **options))

    async def pop(self, *, messages=16, invisible_ms=20_000, group=GROUP, **fields):
        """The answer to a pop that does not wait, of the oldest messages."""
        return await self.ask(
            RequestCode.POP_MESSAGE,
            {
                "consumerGroup": group, "topic": TOPIC, "queueId": -1, "maxMsgNums": messages,
                "invisibleTime": invisible_ms, "pollTime": 0, "bornTime": 0, "initMode": 0, "order": "false",
                **fields,
            },
        )  # fmt: skip

    async def take(self, **fields):
        """The messages of a pop."""
        return popped(await self.pop(**fields))

    async def ack(self, one, *, group=GROUP):
        """The answer to the acknowledgement of a message."""
        return await self.ask(RequestCode.ACK_MESSAGE, self._named(one, group))

    async def ack_run(self, *found):
        """The answers to acknowledgements that came together."""
        requests = [
            request(RequestCode.ACK_MESSAGE, ext_fields=_texts(self._named(one, GROUP))) for one in found
        ]
        answers = await self.finish(self.pops.acks.answer_run(requests, PEER))
        decoder = FrameDecoder()
        decoder.feed(answers)
        return list(iter(decoder.next_command, None))

    async def change(self, one, invisible_ms, *, group=GROUP, **fields):
        """The answer to a change of a message's time; its new handle is kept."""
        answer = await self.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            {**self._named(one, group), "invisibleTime": invisible_ms, **fields},
        )
        if answer.code == 0 and not one.handle.is_ordered:
            one.handle = evolve(
                one.handle,
                start_offset=one.handle.queue_offset,
                pop_ms=int(answer.ext_fields["popTime"]),
                invisible_ms=int(answer.ext_fields["invisibleTime"]),
            )
        return answer

    def _named(self, one, group):
        return {
            "consumerGroup": group,
            "topic": one.topic,
            "queueId": one.handle.queue_id,
            "offset": one.handle.queue_offset,
            "extraInfo": f"{one.handle.encode()} 0",
        }

    def committed(self, queue_id=0, *, topic=TOPIC, group=GROUP):
        """The group's offset in the table."""
        return self.metadata.consumer_offsets.find(group, topic, queue_id)


def _texts(fields):
    return {name: str(value) for name, value in fields.items() if value is not None}


def popped(answer):
    """The messages of an answer, as a client makes them: with their handles."""
    fields, found = answer.ext_fields, []
    starts = {
        tuple(entry.split(" ")[:2]): int(entry.split(" ")[2])
        for entry in filter(None, fields.get("startOffsetInfo", "").split(";"))
    }
    for record in records_of(answer.whole_body):
        properties = parse_properties(record.properties_raw)
        if (text := properties.get(HANDLE)) is not None:
            handle = PopHandle.decode(text)
        else:
            handle = PopHandle(
                starts["0", str(record.queue_id)],
                int(fields["popTime"]),
                int(fields["invisibleTime"]),
                int(fields["reviveQid"]),
                PopSource.TOPIC,
                BROKER,
                record.queue_id,
                record.queue_offset,
            )
        found.append(Popped(record, handle))
    return found


def bodies(found):
    return sorted(one.body for one in found)

"""The parts of a node for POP consumption; a slave refuses pops and acknowledgements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import structlog
import trio
from attrs import frozen

from trioha.broker.pop.acks import AckProcessor
from trioha.broker.pop.handed_out import HandedOut
from trioha.broker.pop.inquiries import PopInquiries
from trioha.broker.pop.ordered import OrderedPops
from trioha.broker.pop.polls import PollLimits, PopPolls
from trioha.broker.pop.positions import PopPositions
from trioha.broker.pop.puts import PopPuts
from trioha.broker.pop.receive import PopProcessor
from trioha.broker.pop.revive import Revival
from trioha.broker.pop.settings import PopSettings
from trioha.broker.pop_records import GroupQueue
from trioha.broker.puts import PutService
from trioha.broker.traffic import BrokerTraffic
from trioha.config.broker import BrokerConfig
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import wall_clock_ms
from trioha.node.consumers import Consumers
from trioha.node.pending_messages import PendingCounter
from trioha.node.timers import Timers
from trioha.remoting.codes import RequestCode
from trioha.remoting.serving import Handler
from trioha.store.message_store import MessageStore
from trioha.store.record import Host
from trioha.store.waiting_readers import WaitingReaders

log = structlog.get_logger(__name__)


def pop_settings(config: BrokerConfig) -> PopSettings:
    """How the configuration lets pops be answered."""
    return PopSettings(
        broker_name=config.broker_name,
        revive_queues=config.revive_queue_num,
        retry_topics_v2=config.enable_retry_topic_v2,
        reads_retry_topics_v1=config.retrieve_message_from_pop_retry_topic_v1,
        retry_first_percent=config.pop_from_retry_probability,
        keeps_retry_topic=config.pop_response_return_actual_retry_topic,
        begins_at_recent=config.init_pop_offset_by_check_msg_in_mem,
    )


@frozen
class Pops:
    """The parts that serve pops."""

    polls: PopPolls
    """Pops that wait."""
    notices: PopPolls
    """Notifications that wait."""
    positions: PopPositions
    ordered: OrderedPops
    processor: PopProcessor
    acks: AckProcessor
    revival: Revival | None
    """None on a slave, and without timerWheelEnable."""
    handlers: Mapping[int, Handler]
    """By request code."""
    restore: Callable[[], Awaitable[None]]
    """Moves groups past what the check points in the log cover; pops wait for it."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        metadata: MetadataStore,
        *,
        puts: PutService,
        timers: Timers,
        consumers: Consumers,
        pending: PendingCounter,
        traffic: BrokerTraffic,
        readers: WaitingReaders,
        safe_offset: Callable[[], int],
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> Pops:
        """Dispatch of `store` wakes pops from now on. `safe_offset`: the end of what this master's loss does
        not take; `readers` count the pops that wait."""
        settings, commit_log = pop_settings(config), store.commit_log

        def host() -> Host:
            return commit_log.store_host

        def log_end() -> int:
            return commit_log.max_offset

        limits = PollLimits(
            per_key_max=config.pop_polling_size,
            polls_max=config.max_pop_polling_size,
            keys_max=config.pop_polling_map_size,
            per_connection_max=max(1, config.requests_in_flight_max * 3 // 4),
        )
        polls = PopPolls(limits, readers=readers)
        notices = PopPolls(limits, wakes_all=True, readers=readers)
        consumers.arrivals.add(polls)
        consumers.arrivals.add(notices)

        def on_free(queue: GroupQueue) -> None:
            group, topic, queue_id = queue
            for each in (polls, notices):
                each.has_more(topic, group, queue_id)

        positions = PopPositions(metadata.consumer_offsets, safe_offset=safe_offset, log_end=log_end)
        pop_puts = PopPuts(puts, timers.messages, cluster_name=config.broker_cluster_name, host=host)
        ordered = OrderedPops(
            metadata.consumer_orders,
            positions,
            now_ms=now_ms,
            on_free=on_free,
        )
        handed_out = HandedOut(
            config.pop_inflight_message_threshold if config.enable_pop_message_threshold else None,
            now_ms=now_ms,
            on_free=on_free,
        )
        is_restored = trio.Event()
        processor = PopProcessor(
            store,
            metadata,
            settings,
            pulls=lambda: consumers.pulls.settings,
            puts=pop_puts,
            positions=positions,
            ordered=ordered,
            handed_out=handed_out,
            polls=polls,
            is_restored=is_restored.is_set,
            timers_enabled=config.timer_wheel_enable,
            now_ms=now_ms,
            log_end=consumers.log_end,
            traffic=traffic,
        )
        acks = AckProcessor(
            store,
            metadata,
            settings,
            puts=pop_puts,
            ordered=ordered,
            handed_out=handed_out,
            is_slave=puts.is_slave,
            now_ms=now_ms,
        )
        inquiries = PopInquiries(
            store,
            metadata,
            settings,
            pops=processor,
            is_slave=puts.is_slave,
            positions=positions,
            ordered=ordered,
            polls=polls,
            notices=notices,
            now_ms=now_ms,
            log_end=consumers.log_end,
        )
        revival = None
        delivery = timers.delivery
        if delivery is not None:
            revival = Revival(
                store,
                metadata,
                settings,
                puts=puts,
                pop_puts=pop_puts,
                positions=positions,
                timers_done_ms=lambda: delivery.done_ms,
                slot_of=timers.messages.slot_of,
                safe_offset=safe_offset,
                host=host,
                now_ms=now_ms,
                interval_s=config.revive_interval / 1000,
            )
            store.dispatcher.on_written.add(revival.arrived)
        return cls(
            polls,
            notices,
            positions,
            ordered,
            processor,
            acks,
            revival,
            {
                RequestCode.POP_MESSAGE: processor.answer,
                RequestCode.ACK_MESSAGE: acks.ack,
                RequestCode.BATCH_ACK_MESSAGE: acks.batch_ack,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME: acks.change,
                **inquiries.handlers,
            },
            partial(_restore, pending, positions, polls, is_restored),
        )

    def end_all(self) -> None:
        """The node stops: answer all that wait."""
        self.polls.end_all()
        self.notices.end_all()

    async def run(self) -> None:
        """Serve until cancelled; on a slave, and without timerWheelEnable, no pop waits."""
        if self.revival is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.polls.run)
            nursery.start_soon(self.notices.run)
            nursery.start_soon(self.positions.run)
            nursery.start_soon(self.ordered.run)
            await self.restore()
            nursery.start_soon(self.revival.run)


async def _restore(
    pending: PendingCounter, positions: PopPositions, polls: PopPolls, is_restored: trio.Event
) -> None:
    counted, log_end = await pending.counted()
    positions.restore(counted.positions, log_end=log_end)
    is_restored.set()
    polls.wake_all()

"""The parts of a node for consumers: pulls, offsets, queries, groups and locks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import trio
from attrs import frozen

from trioha.broker.client_processor import ClientProcessor
from trioha.broker.clients import ClientRegistry
from trioha.broker.long_polls import LongPolls, QueueKey
from trioha.broker.offset_processor import OffsetProcessor
from trioha.broker.pull_checks import PullSettings
from trioha.broker.pull_processor import PullProcessor, memory_bytes, no_limit
from trioha.broker.query_processor import QueryProcessor
from trioha.broker.queue_locks import QueueLocks
from trioha.broker.replicated_arrivals import Arrivals, ReplicatedArrivals
from trioha.broker.slave_reads import SLAVE_MEMORY_PERCENT_LESS, always
from trioha.broker.traffic import BrokerTraffic
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.ha.replicated_offset import ReplicatedOffset
from trioha.metadata.metadata_store import MetadataStore
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.connections import Connections
from trioha.remoting.serving import Handler, Peer
from trioha.store.consume_queues import Queue
from trioha.store.message_store import MessageStore
from trioha.store.waiting_readers import WaitingReaders


def pull_settings(config: BrokerConfig) -> PullSettings:
    """How the configuration lets pulls be answered."""
    is_slave = config.broker_role is BrokerRole.SLAVE
    percent = config.access_message_in_memory_max_ratio - SLAVE_MEMORY_PERCENT_LESS * is_slave
    return PullSettings(
        is_slave=is_slave,
        broker_permission=config.broker_permission,
        broker_ip=config.broker_ip1,
        messages_max=config.max_transfer_count_on_message_in_memory,
        bytes_max=config.max_transfer_bytes_on_message_in_memory,
        long_polling=config.long_polling_enable,
        short_polling_s=config.short_polling_time_mills / 1000,
        slave_read=config.slave_read_enable,
        recent_bytes=memory_bytes(max(0, percent)),
    )


@frozen
class Consumers:
    """The parts that serve consumers."""

    clients: ClientRegistry
    """Who is connected."""
    polls: LongPolls
    """Pulls that wait."""
    locks: QueueLocks
    """Queues that are consumed in order."""
    pulls: PullProcessor
    offsets: OffsetProcessor
    handlers: Mapping[int, Handler]
    """By request code."""
    log_end: Callable[[], int | None]
    """Where the log ends for consumers; None if all of it is for them."""
    arrivals: Arrivals
    """What waits for messages: the pulls, and what is added before the node serves."""
    wake_replicated: Callable[[], Awaitable[None]] | None = None
    """The task that wakes pulls when messages are replicated; None if consumers receive all that is
    stored."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        metadata: MetadataStore,
        *,
        traffic: BrokerTraffic,
        connections: Connections,
        readers: WaitingReaders,
        replicated: ReplicatedOffset | None = None,
        is_following: Callable[[], bool] = always,
    ) -> Consumers:
        """Dispatch of `store` wakes the pulls from now on; with `replicated`, messages that slaves hold do.
        `readers` count them for it.

        Members are notified by `connections`, those of the server.
        `is_following` says whether a slave is connected to its master.
        """
        is_slave = config.broker_role is BrokerRole.SLAVE
        settings = pull_settings(config)

        def notifies(name: str) -> bool:
            group = metadata.groups.find(name)
            return config.notify_consumer_ids_changed_enable and (
                group is None or group.notify_consumer_ids_changed_enable
            )

        locks = QueueLocks(locks_max=config.queue_locks_max)
        clients = ClientRegistry(
            members_max=config.consumers_max,
            notify=partial(_notify, connections),
            notifies=notifies,
            on_gone=locks.connection_ended,
        )
        # Heartbeats and offsets come by the same connection: pulls must not take all its places.
        polls = LongPolls(
            polls_max=config.long_polls_max,
            per_connection_max=max(1, config.requests_in_flight_max * 3 // 4),
            readers=readers,
        )
        log_end = no_limit if replicated is None else lambda: replicated.limit
        pulls = PullProcessor(
            store,
            metadata,
            clients,
            polls,
            settings=settings,
            traffic=traffic,
            log_end=log_end,
            is_following=is_following,
        )
        offsets = OffsetProcessor(store, metadata, settings=settings, log_end=log_end)
        wake_replicated = None
        arrivals = Arrivals(polls)
        if replicated is None:
            store.dispatcher.on_written.add(lambda queues: arrivals.arrived(_keys(queues)))
        else:
            wake_replicated = _waking_when_replicated(store, arrivals, replicated)
        queries = QueryProcessor(store)
        members = ClientProcessor(clients, metadata, is_slave=is_slave)
        return cls(
            clients,
            polls,
            locks,
            pulls,
            offsets,
            {
                RequestCode.PULL_MESSAGE: pulls.answer,
                RequestCode.LITE_PULL_MESSAGE: pulls.answer,
                RequestCode.QUERY_MESSAGE: queries.by_key,
                RequestCode.VIEW_MESSAGE_BY_ID: queries.view,
                RequestCode.QUERY_CONSUMER_OFFSET: offsets.query,
                RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.by_timestamp,
                RequestCode.GET_MAX_OFFSET: offsets.max_offset,
                RequestCode.GET_MIN_OFFSET: offsets.min_offset,
                RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.earliest_store_time,
                RequestCode.HEART_BEAT: members.heart_beat,
                RequestCode.UNREGISTER_CLIENT: members.unregister,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP: members.consumer_list,
                RequestCode.CHECK_CLIENT_CONFIG: members.check_client_config,
                RequestCode.LOCK_BATCH_MQ: locks.answer_lock,
                RequestCode.UNLOCK_BATCH_MQ: locks.answer_unlock,
            },
            log_end,
            arrivals,
            wake_replicated,
        )

    def configure(self, config: BrokerConfig) -> None:
        """Answer further pulls and queries of offsets as `config` says."""
        self.pulls.settings = self.offsets.settings = pull_settings(config)

    def connection_closed(self, peer: Peer) -> None:
        """Remove the members whose connection has ended."""
        self.clients.connection_ended(peer.connection)

    async def run(self) -> None:
        """End pulls at their deadlines, remove silent members and expired locks, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.polls.run)
            nursery.start_soon(self.clients.run)
            nursery.start_soon(self.locks.run)
            if self.wake_replicated is not None:
                nursery.start_soon(self.wake_replicated)


def _notify(connections: Connections, connection: int, group: str) -> None:
    """Tell a client that the members of a group of its have changed."""
    fields = {"consumerGroup": group}
    notice = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=fields, oneway=True)
    connections.push(connection, encode(notice), may_wait=True)


def _keys(queues: Sequence[Queue]) -> list[QueueKey]:
    return [(queue.topic, queue.queue_id) for queue in queues]


def _waking_when_replicated(
    store: MessageStore, waiting: Arrivals, replicated: ReplicatedOffset
) -> Callable[[], Awaitable[None]]:
    """Have dispatch say what it has written; returns the task that wakes the pulls."""
    dispatcher = store.dispatcher
    mark = replicated.mark
    arrivals = ReplicatedArrivals(waiting, dispatched_offset=mark.offset, replicated_offset=mark.offset)
    if mark.offset < dispatcher.position:
        # The queues of a store that was opened have messages that are not replicated.
        arrivals.written(_keys(list(store.queues)), dispatched_offset=dispatcher.position)
    dispatcher.on_written.add(
        lambda queues: arrivals.written(_keys(queues), dispatched_offset=dispatcher.position)
    )

    async def wake() -> None:
        while True:
            arrivals.replicated(mark.offset)
            await mark.reached(mark.offset + 1)

    return wake

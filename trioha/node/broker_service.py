"""The remoting server of a node and the processors of its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attrs import frozen

from trioha import __version__
from trioha.broker.delayed_delivery import DelayedDelivery
from trioha.broker.info import NO_PARTS, BrokerInfo, PartStatuses
from trioha.broker.metadata_processor import MetadataProcessor
from trioha.broker.processor import BrokerProcessor
from trioha.broker.puts import PutService
from trioha.broker.recall_processor import RecallProcessor
from trioha.broker.request_modes import RequestModeProcessor, own_queues
from trioha.broker.retries import Retries
from trioha.broker.send_back_processor import SendBackProcessor, topic_at
from trioha.broker.send_processor import SendProcessor
from trioha.broker.send_runs import SendRuns
from trioha.broker.slave_reads import always
from trioha.broker.status_publisher import StatusPublisher
from trioha.broker.traffic import BrokerTraffic
from trioha.broker_status import BrokerSettings, BrokerStatus
from trioha.compiled import description
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.update import ConfigFile
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.topics import TopicTable
from trioha.node.administration import Administration, run_time_settings
from trioha.node.budget import DescriptorBudget
from trioha.node.consumers import Consumers
from trioha.node.pending_messages import PendingCounter
from trioha.node.pops import Pops
from trioha.node.replication import Replication
from trioha.node.security import Security
from trioha.node.timers import Timers
from trioha.node.transactions import Transactions
from trioha.recording.events import EventSink
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode
from trioha.remoting.connections import Connections
from trioha.remoting.pull_forms import PullForms
from trioha.remoting.route import MessageQueue
from trioha.remoting.server import RemotingServer, ServerLimits
from trioha.remoting.serving import Handler
from trioha.store.message_store import MessageStore
from trioha.store.retention import Retention
from trioha.store.tags import DelayLevels
from trioha.store.waiting_readers import WaitingReaders

if TYPE_CHECKING:
    from trioha.broker.registration import BrokerRegistration


@frozen
class BrokerService:
    """The parts that serve clients."""

    server: RemotingServer
    info: BrokerInfo
    puts: PutService
    updates: StatusPublisher
    """Sends status updates to subscribed clients."""
    consumers: Consumers
    delivery: DelayedDelivery | None
    """Delivers delayed messages; None on a slave."""
    timers: Timers
    pops: Pops
    admin: Administration
    transactions: Transactions

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        *,
        metadata: MetadataStore,
        ha: Replication,
        security: Security,
        listen: Address,
        ha_address: Address,
        sink: EventSink,
        budget: DescriptorBudget,
        warnings: tuple[str, ...],
        retention: Retention,
        readers: WaitingReaders,
        config_file: ConfigFile | None,
        handlers: Mapping[int, Handler],
        parts: PartStatuses = NO_PARTS,
        pending: PendingCounter,
        registration: BrokerRegistration | None = None,
    ) -> BrokerService:
        """`listen` is the address for clients; `ha_address`, `warnings` and `parts` are of the node's status.

        `handlers` answer further requests; `pending` counts the timers that wait. Changes of brokerPermission
        go to `registration`, too.
        """
        connections = Connections(server_limits(config, budget))
        push = partial(connections.push, may_wait=True)
        traffic = BrokerTraffic(cluster_name=config.broker_cluster_name, keys_max=config.statistics_max)
        puts = PutService(
            commit_log=store.commit_log,
            group_commit=ha.group_commit,
            sink=sink,
            is_slave=config.broker_role is BrokerRole.SLAVE,
            on_stored=traffic.note_put,
        )
        consumers = Consumers.build(
            config,
            store,
            metadata,
            traffic=traffic,
            connections=connections,
            readers=readers,
            replicated=ha.replicated,
            is_following=always if ha.slave is None else ha.slave.is_connected,
        )
        delay_levels = DelayLevels(config.message_delay_level)
        retries = Retries(metadata.topics, metadata.groups, consumes_in_order=consumers.locks.has_locks)
        log = store.commit_log

        def held_offset() -> int:
            """End of what each slave has that may become master."""
            return ha.replicas.held_offset(log.max_offset)

        def safe_offset() -> int:
            """End of what this master's loss does not take."""
            return min(log.flushed.offset, held_offset())

        timers = Timers.build(config, store, puts=puts, pending=pending)
        pops = Pops.build(
            config,
            store,
            metadata,
            puts=puts,
            timers=timers,
            consumers=consumers,
            pending=pending,
            traffic=traffic,
            readers=readers,
            safe_offset=safe_offset,
        )
        transactions = Transactions.build(
            config,
            store,
            timers=timers.messages,
            metadata=metadata,
            clients=consumers.clients,
            puts=puts,
            connections=connections,
            held_offset=held_offset,
        )
        send = SendProcessor(
            puts,
            topics=metadata.topics,
            retries=retries,
            broker_permission=config.broker_permission,
            broker_ip=config.broker_ip1,
            cluster_name=config.broker_cluster_name,
            delay_levels=delay_levels,
            timers=timers.messages,
            prepare=transactions.prepare,
        )
        send_back = SendBackProcessor(
            store.reads,
            puts,
            retries,
            metadata.topics,
            broker_ip=config.broker_ip1,
            delay_levels=delay_levels,
            timers=timers.messages,
            broker_permission=config.broker_permission,
            on_stored=traffic.note_send_back,
        )
        delivery: DelayedDelivery | None = None
        if not puts.is_slave:
            delivery = DelayedDelivery(
                store,
                puts,
                metadata.delay_offsets,
                delay_levels=delay_levels,
                safe_offset=safe_offset,
            )
            store.dispatcher.on_written.add(delivery.arrived)
        admin = Administration.build(
            config,
            store,
            metadata,
            consumers.clients,
            traffic=traffic,
            config_file=config_file,
            push=push,
            address=str(listen),
            settings=run_time_settings(
                consumers=consumers,
                metadata=metadata,
                retention=retention,
                send=send,
                send_back=send_back,
                transactions=transactions,
                registration=registration,
            ),
        )
        modes = RequestModeProcessor(
            metadata,
            consumers.clients,
            retries,
            route=partial(_read_queues, registration, metadata.topics, config.broker_name),
            groups_max=config.groups_max,
            is_slave=puts.is_slave,
        )
        access = security.guard(config, topic_at=partial(topic_at, store.reads))
        info = BrokerInfo(
            _identity(config, ha_address=ha_address, warnings=warnings),
            store_path=config.store_path_root_dir,
            store=store,
            puts=puts,
            master=ha.master,
            replicas=ha.replicas,
            slave=ha.slave,
            parts=parts,
            clients=connections.statistics,
            pulls=consumers.pulls.counts.statistics,
            delays=tuple if delivery is None else delivery.progress,
            timers=timers.progress,
            acl_refusals=lambda: None if access is None else access.refused,
        )
        updates = StatusPublisher(info.ha_status_body, info.runtime_info_body)
        processor = BrokerProcessor(
            send=send,
            info=info,
            updates=updates,
            handlers={
                **consumers.handlers,
                **pops.handlers,
                **admin.handlers,
                RequestCode.CONSUMER_SEND_MSG_BACK: send_back.answer,
                RequestCode.RECALL_MESSAGE: RecallProcessor(puts, metadata.topics, timers.messages).answer,
                **transactions.handlers,
                **modes.handlers,
                **MetadataProcessor(metadata, store, timers.first_ms, timers.pending).handlers,
                **handlers,
            },
        )
        # With access control each request has a signature of its own.
        forms = PullForms() if access is None else None
        server = RemotingServer(
            processor if access is None else access.guard(processor),
            connections,
            tls=security.tls,
            runs=SendRuns(puts, topics=metadata.topics, cluster_name=config.broker_cluster_name, send=send)
            if access is None
            else None,
            acks=pops.acks if access is None else None,
            pulls=None if forms is None else consumers.pulls,
            forms=forms,
            on_closed=consumers.connection_closed,
        )
        return cls(server, info, puts, updates, consumers, delivery, timers, pops, admin, transactions)


async def _read_queues(
    registration: BrokerRegistration | None, topics: TopicTable, broker_name: str, topic: str
) -> Sequence[MessageQueue]:
    """The readable queues of a topic: at all brokers, if there are name servers."""
    if registration is None:
        return own_queues(topics, broker_name, topic)
    return await registration.read_queues(topic)


def _identity(config: BrokerConfig, *, ha_address: Address, warnings: tuple[str, ...]) -> BrokerStatus:
    return BrokerStatus(
        version=__version__,
        kernel=description(),
        role=config.broker_role.value,
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        ha_address=str(ha_address),
        settings=BrokerSettings(
            gap_bytes_max=config.ha_max_gap_not_in_sync,
            slave_timeout_ms=config.slave_timeout,
            housekeeping_ms=config.ha_housekeeping_interval,
            heartbeat_ms=config.ha_send_heartbeat_interval,
            file_bytes=config.mapped_file_size_commit_log,
            reserved_h=config.file_reserved_time,
            disk_percent_max=config.disk_max_used_space_ratio,
        ),
        warnings=warnings,
    )


def server_limits(config: BrokerConfig, budget: DescriptorBudget) -> ServerLimits:
    """Limits of the configuration, lowered to the budget of descriptors."""
    return ServerLimits(
        connections_max=budget.clients,
        connections_per_peer_max=budget.clients_per_peer,
        total_bytes_max=config.client_bytes_max,
        in_flight_max=config.requests_in_flight_max,
        in_flight_bytes_max=config.client_bytes_max // 2,
        frame_bytes_max=config.frame_bytes_max,
        idle_timeout_s=config.client_idle_timeout / 1000,
    )

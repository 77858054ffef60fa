"""The parts of a node for administrators, and the settings that they can change while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio
from attrs import evolve, frozen

from trioha.broker.admin_config import AdminConfig, RunTimeSettings, at_run_time
from trioha.broker.admin_groups import AdminGroups
from trioha.broker.admin_offsets import AdminOffsets
from trioha.broker.admin_statistics import AdminStatistics
from trioha.broker.admin_topics import AdminTopics
from trioha.broker.clients import ClientRegistry
from trioha.broker.send_back_processor import SendBackProcessor
from trioha.broker.send_processor import SendProcessor
from trioha.broker.traffic import BrokerTraffic
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.update import ConfigFile
from trioha.metadata.metadata_store import MetadataStore
from trioha.node.consumers import Consumers
from trioha.node.store_tasks import retention_settings
from trioha.node.transactions import Transactions
from trioha.remoting.codes import RequestCode
from trioha.remoting.connections import Push
from trioha.remoting.serving import Handler
from trioha.store.message_store import MessageStore
from trioha.store.retention import Retention

if TYPE_CHECKING:
    from trioha.broker.registration import BrokerRegistration


@frozen
class Administration:
    """The parts that serve administrators."""

    traffic: BrokerTraffic
    """Messages by topic and group."""
    config: AdminConfig
    handlers: Mapping[int, Handler]
    """By request code."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        *,
        traffic: BrokerTraffic,
        config_file: ConfigFile | None,
        push: Push,
        address: str,
        settings: Sequence[RunTimeSettings] = (),
    ) -> Administration:
        """`config_file` is where changes of `settings` are written; None refuses them. Consumers are reached
        by `push`, the broker at `address`."""
        is_slave = config.broker_role is BrokerRole.SLAVE
        admin_config = AdminConfig(config, config_file, settings)
        memory_lock = trio.Lock()
        topics = AdminTopics(store, metadata, clients, traffic, memory_lock=memory_lock, is_slave=is_slave)
        groups = AdminGroups(metadata, clients, traffic, is_slave=is_slave)
        offsets = AdminOffsets(
            store,
            metadata,
            clients,
            traffic,
            memory_lock=memory_lock,
            is_slave=is_slave,
            push=push,
            address=address,
        )
        statistics = AdminStatistics(traffic)
        return cls(
            traffic,
            admin_config,
            {
                RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
                RequestCode.UPDATE_BROKER_CONFIG: admin_config.update,
                RequestCode.GET_BROKER_CONFIG: admin_config.read,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
                RequestCode.GET_TOPIC_STATS_INFO: topics.stats,
                RequestCode.GET_CONSUMER_CONNECTION_LIST: groups.consumer_connections,
                RequestCode.GET_PRODUCER_CONNECTION_LIST: groups.producer_connections,
                RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
                RequestCode.GET_CONSUME_STATS: offsets.consume_stats,
                RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offsets.reset,
                RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: topics.consumed_by,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.system_list,
                RequestCode.VIEW_BROKER_STATS_DATA: statistics.view,
                RequestCode.GET_BROKER_CONSUME_STATS: offsets.broker_consume_stats,
                RequestCode.GET_TOPIC_CONFIG: topics.config,
                RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.config,
            },
        )

    async def run(self) -> None:
        """Sample the statistics until cancelled."""
        await self.traffic.run()


def run_time_settings(
    *,
    consumers: Consumers,
    metadata: MetadataStore,
    retention: Retention,
    send: SendProcessor,
    send_back: SendBackProcessor,
    transactions: Transactions,
    registration: BrokerRegistration | None,
) -> list[RunTimeSettings]:
    """The settings that can be changed while these parts run, and how changes take effect in them."""

    def set_permission(config: BrokerConfig) -> None:
        permission = config.broker_permission
        send.configure(broker_permission=permission)
        send_back.configure(broker_permission=permission)
        if registration is not None:
            registration.set_permission(permission)

    def set_topics(config: BrokerConfig) -> None:
        topics = metadata.topics
        topics.settings = evolve(
            topics.settings, auto_create=config.auto_create_topic_enable, topics_max=config.topics_max
        )
        if metadata.settings.adds_system_entries:
            # The topic that stands model for others is only there with auto-creation.
            topics.add_system_topics()

    return [
        at_run_time(
            "broker_permission",
            "max_transfer_count_on_message_in_memory",
            "max_transfer_bytes_on_message_in_memory",
            "long_polling_enable",
            "short_polling_time_mills",
            "slave_read_enable",
            "access_message_in_memory_max_ratio",
            apply=consumers.configure,
        ),
        at_run_time("broker_permission", apply=set_permission),
        at_run_time("auto_create_topic_enable", "topics_max", apply=set_topics),
        at_run_time(
            "transaction_time_out",
            "transaction_check_max",
            "reject_transaction_message",
            "transaction_op_batch_interval",
            "transaction_op_msg_max_size",
            "open_transactions_max",
            "file_reserved_time",
            apply=transactions.configure,
        ),
        at_run_time(
            "auto_create_subscription_group",
            "groups_max",
            apply=lambda config: metadata.groups.configure(
                auto_create=config.auto_create_subscription_group, groups_max=config.groups_max
            ),
        ),
        at_run_time(
            "file_reserved_time",
            "delete_when",
            "disk_max_used_space_ratio",
            "disk_space_clean_forcibly_ratio",
            "disk_space_warning_level_ratio",
            "clean_file_forcibly_enable",
            "clean_resource_interval",
            "archive_before_delete",
            apply=lambda config: retention.configure(retention_settings(config)),
        ),
    ]

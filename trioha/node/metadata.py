"""The metadata of a node: read at its start, written while it runs and at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import trio
from attrs import frozen

from trioha.broker.master_check import MasterCheck
from trioha.broker.master_stores import MasterStores
from trioha.broker.metadata_sync import MasterAddress, MetadataSync
from trioha.broker.user_copy import UserCopy
from trioha.broker_status import MetadataStatus
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.metadata.history import FOLDER as HISTORY_FOLDER
from trioha.metadata.history import HistorySettings
from trioha.metadata.metadata_store import FOLDER, MetadataSettings, MetadataStore
from trioha.metadata.replica import MetadataReplica
from trioha.metadata.topics import TopicSettings
from trioha.net.threads import run_in_thread
from trioha.node.security import Security
from trioha.remoting.address import Address
from trioha.remoting.client import ClientSecurity, open_client
from trioha.store.message_store import MessageStore
from trioha.store.tags import DelayLevels
from trioha.unwritten import Unwritten


def metadata_settings(config: BrokerConfig) -> MetadataSettings:
    """Settings of topics, groups and offsets."""
    return MetadataSettings(
        folder=config.store_path_root_dir / FOLDER,
        topics=TopicSettings(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            auto_create=config.auto_create_topic_enable,
            default_queue_nums=config.default_topic_queue_nums,
            delay_levels=DelayLevels(config.message_delay_level).max_level,
            topics_max=config.topics_max,
            revive_queues=config.revive_queue_num,
        ),
        auto_create_groups=config.auto_create_subscription_group,
        groups_max=config.groups_max,
        offsets_max=config.consumer_offsets_max,
        offsets_interval_s=config.flush_consumer_offset_interval / 1000,
        delay_interval_s=config.flush_delay_offset_interval / 1000,
        history=HistorySettings(
            config.store_path_root_dir / FOLDER / HISTORY_FOLDER,
            bytes_max=config.metadata_history_bytes,
            interval_s=config.metadata_history_interval / 1000,
        )
        if config.metadata_history_bytes
        else None,
        adds_system_entries=config.broker_role is not BrokerRole.SLAVE,
    )


@asynccontextmanager
async def open_metadata(
    config: BrokerConfig, *, unwritten: Unwritten | None = None
) -> AsyncIterator[MetadataStore]:
    """The metadata of a locked store; written at the end of the block, also where the node is cancelled.

    `unwritten` gets what cannot be written. Raises StoreError for a file that is damaged.
    """
    settings = metadata_settings(config)
    metadata = await run_in_thread(lambda: MetadataStore.open(settings, unwritten=unwritten))
    try:
        yield metadata
    finally:
        with trio.CancelScope(shield=True):
            await run_in_thread(metadata.close)


def master_address(config: BrokerConfig, *, own: Address) -> MasterAddress:
    """Where a slave, which clients reach at `own`, asks its master."""
    endpoint = config.ha_master_endpoint
    return MasterAddress(
        config.master_address,
        ha_address=None if endpoint is None else Address(*endpoint),
        own=str(own),
    )


def master_check(config: BrokerConfig, master: MasterAddress, *, security: ClientSecurity) -> MasterCheck:
    """What a slave compares with its master before it copies the log."""
    expected = {
        "brokerName": config.broker_name,
        "mappedFileSizeCommitLog": str(config.mapped_file_size_commit_log),
    }
    return MasterCheck(
        master,
        expected,
        connect=partial(open_client, security=security),
        on_settings=MasterStores(config.store_path_root_dir / FOLDER).note,
    )


@frozen
class MetadataCopy:
    """How a slave copies its master's metadata; nothing on a master."""

    sync: MetadataSync | None
    """None on a master."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        metadata: MetadataStore,
        *,
        master: MasterAddress,
        security: Security,
        has_caught_up: Callable[[], bool],
    ) -> MetadataCopy:
        """`security` has the users, and the account of the node's own connections. `has_caught_up`: whether a
        slave has the log."""
        if config.broker_role is not BrokerRole.SLAVE:
            return cls(None)

        def queue_end(topic: str, queue_id: int) -> int | None:
            queue = store.queues.find(topic, queue_id)
            return None if queue is None else queue.max_offset

        replica = MetadataReplica(metadata, policy=config.offset_regression, queue_end=queue_end)
        store.commit_log.on_restart(replica.log_replaced)
        store.cutter.on_cut.add(replica.log_cut)
        store.queues.on_restart.add(replica.queue_restarted)
        sync = MetadataSync(
            replica,
            master,
            broker_name=config.broker_name,
            policy=config.offset_regression,
            # A member of the sync-state set may be elected at any time: it copies at once.
            first_s=0.0 if config.enable_controller_mode else config.metadata_sync_first / 1000,
            period_s=config.metadata_sync_period / 1000,
            connect=partial(open_client, security=security.client),
            has_caught_up=has_caught_up,
            users=None
            if security.users is None
            else UserCopy(security.users, has_acls=config.authorization_metadata_provider is not None),
        )
        return cls(sync)

    def status(self) -> MetadataStatus | None:
        """Of the copy; None on a master."""
        return None if self.sync is None else self.sync.status()

    async def run(self) -> None:
        """Copy until cancelled; returns at once on a master."""
        if self.sync is not None:
            await self.sync.run()

"""The metadata of a node: read at its start, written while it runs and at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.metadata.metadata_store import FOLDER, MetadataSettings, MetadataStore
from trioha.metadata.topics import TopicSettings
from trioha.net.threads import run_in_thread
from trioha.store.tags import DelayLevels


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
        ),
        auto_create_groups=config.auto_create_subscription_group,
        groups_max=config.groups_max,
        offsets_max=config.consumer_offsets_max,
        offsets_interval_s=config.flush_consumer_offset_interval / 1000,
        delay_interval_s=config.flush_delay_offset_interval / 1000,
        adds_system_entries=config.broker_role is not BrokerRole.SLAVE,
    )


@asynccontextmanager
async def open_metadata(config: BrokerConfig) -> AsyncIterator[MetadataStore]:
    """The metadata of a locked store; written at the end of the block, also where the node is cancelled.

    Raises StoreError for a file that is damaged.
    """
    settings = metadata_settings(config)
    metadata = await run_in_thread(lambda: MetadataStore.open(settings))
    try:
        yield metadata
    finally:
        with trio.CancelScope(shield=True):
            await run_in_thread(metadata.close)

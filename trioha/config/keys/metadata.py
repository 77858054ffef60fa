"""Keys of topics, groups and offsets, and of a slave's copies of them."""

# ruff: noqa: RUF009 - `setting` is a field specifier of attrs

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from trioha.config import values
from trioha.config.setting import setting
from trioha.config.values import LONG_MAX


class OffsetRegression(StrEnum):
    """What a slave does with an offset of its master that is before its own."""

    KEEP = "keep"
    """Keeps its own offset, counts and shows the difference."""
    ACCEPT = "accept"
    """Takes the master's offset and counts it."""


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class MetadataKeys:
    """Topics, groups and offsets."""

    auto_create_topic_enable: bool = setting("autoCreateTopicEnable", values.boolean, default=True)
    """Whether a first send makes its topic. RocketMQ default: true."""

    default_topic_queue_nums: int = setting(
        "defaultTopicQueueNums", values.integer(low=1, high=65536), default=8
    )
    """Queues that such a topic has at most. RocketMQ default: 8."""

    auto_create_subscription_group: bool = setting(
        "autoCreateSubscriptionGroup", values.boolean, default=True
    )
    """Whether a consumer's first heartbeat or pull makes its group. RocketMQ default: true."""

    topics_max: int = setting("trioha.topicsMax", values.integer(low=1), default=10_000)
    """Topics that a broker may have, its system's included: one more is refused."""

    groups_max: int = setting("trioha.groupsMax", values.integer(low=1), default=10_000)
    """Consumer groups that a broker may have: one more is refused."""

    consumer_offsets_max: int = setting("trioha.consumerOffsetsMax", values.integer(low=1), default=500_000)
    """Offsets of groups in queues that are kept: one more is refused. Each takes some 150 bytes."""

    flush_consumer_offset_interval: int = setting(
        "flushConsumerOffsetInterval", values.integer(low=1), default=5000
    )
    """Milliseconds between two writes of consumerOffset.json. RocketMQ default: 5000."""

    flush_delay_offset_interval: int = setting(
        "flushDelayOffsetInterval", values.integer(low=1), default=10_000
    )
    """Milliseconds between two writes of delayOffset.json. RocketMQ default: 10000."""

    master_address: str | None = setting("trioha.masterAddress", values.optional_address, default=None)
    """`host:port` at which a slave asks its master for topics, groups and offsets.

    Default: what a name server answers to the slave's registration; without one, the host of
    `ha_master_address` with its port - 1, if the broker there says that it is the master.
    """

    metadata_sync_first: int = setting("trioha.metadataSyncFirst", values.integer(low=1), default=3000)
    """Milliseconds from a slave's start to its first copy of the master's metadata. RocketMQ 4.9: 3000."""

    metadata_sync_period: int = setting("trioha.metadataSyncPeriod", values.integer(low=1), default=10_000)
    """Milliseconds between two copies. RocketMQ 4.9: 10000; 5.x: 63000."""

    offset_regression: OffsetRegression = setting(
        "trioha.offsetRegression", values.one_of(OffsetRegression), default=OffsetRegression.KEEP
    )
    """What a slave does with an offset of its master that is before its own; both are counted and shown."""

    metadata_history_bytes: int = setting(
        "trioha.metadataHistoryBytes", values.integer(low=0, high=LONG_MAX), default=64 * 1024 * 1024
    )
    """Bytes of the history of topics, groups and offsets in the store; 0 keeps none."""

    metadata_history_interval: int = setting(
        "trioha.metadataHistoryInterval", values.integer(low=0), default=60_000
    )
    """Milliseconds for which changes of a table are gathered in the history.

    Offsets that go back are recorded at once, with what they were before."""

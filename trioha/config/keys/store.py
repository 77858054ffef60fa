"""Keys of the store: files, flushes, deletion and the archive (docs/protocol/store.md#files)."""

# ruff: noqa: RUF009 - `setting` is a field specifier of attrs

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from attrs import Factory, frozen

from trioha.config import values
from trioha.config.setting import setting

RECORD_BYTES_MIN: Final = 92
"""A record without body and properties and with a topic of one character
(docs/protocol/store.md#message-record)."""
FILE_END_BYTES_MIN: Final = 8
"""Bytes that stay free at the end of each commit log file (docs/protocol/store.md#ends-of-files)."""


class FlushDiskType(StrEnum):
    """When a put counts as stored on the broker's own disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    """Once it is in the page cache; the disk follows every `flush_interval_commit_log`."""
    SYNC_FLUSH = "SYNC_FLUSH"
    """Once it is on disk, or `sync_flush_timeout` is over."""


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class StoreKeys:
    """Files, flushes, deletion, archive."""

    store_path_root_dir: Path = setting(
        "storePathRootDir", values.directory, default=Factory(lambda: Path.home() / "store")
    )
    """Directory of the whole store, absolute. RocketMQ default: $HOME/store."""

    store_path_commit_log: Path = setting(
        "storePathCommitLog",
        values.single_directory,
        default=Factory(lambda self: self.store_path_root_dir / "commitlog", takes_self=True),
    )
    """Directory of the commit log, absolute. RocketMQ default: `commitlog` in the root directory."""

    store_path_epoch_file: Path = setting(
        "storePathEpochFile",
        values.directory,
        default=Factory(lambda self: self.store_path_root_dir / "epochFileCheckpoint", takes_self=True),
    )
    """File of the epochs of the log. RocketMQ default: `epochFileCheckpoint` in the root directory."""

    store_path_broker_identity: Path = setting(
        "storePathBrokerIdentity",
        values.directory,
        default=Factory(lambda self: self.store_path_root_dir / "brokerIdentity", takes_self=True),
    )
    """File of the id that the controllers gave. RocketMQ default: `brokerIdentity` in the root directory."""

    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog",
        values.integer(low=RECORD_BYTES_MIN + FILE_END_BYTES_MIN),
        default=1024 * 1024 * 1024,
    )
    """Bytes of each commit log file; must be equal on master and slave. RocketMQ default: 1073741824."""

    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue", values.integer(low=20), default=300_000 * 20
    )
    """Bytes of each consume queue file, rounded up to whole entries of 20. RocketMQ default: 6000000."""

    mapped_file_size_batch_consume_queue: int = setting(
        "mapperFileSizeBatchConsumeQueue",
        values.integer(low=46),
        default=300_000 * 46,
    )
    """Bytes of each file of a batch topic's queue, rounded up to whole entries of 46.

    The key is spelled as RocketMQ spells it. RocketMQ default: 13800000.
    """

    queues_max: int = setting("trioha.queuesMax", values.integer(low=1), default=100_000)
    """Consume queues that a store may have: a put that needs one more is refused.

    Each takes some 2 KiB of memory. Queues of records that are in the log are always built.
    """

    message_index_enable: bool = setting("messageIndexEnable", values.boolean, default=True)
    """Whether messages can be found by key. RocketMQ default: true."""

    max_hash_slot_num: int = setting("maxHashSlotNum", values.integer(low=1), default=5_000_000)
    """Hash slots of each index file. RocketMQ default: 5000000."""

    max_index_num: int = setting("maxIndexNum", values.integer(low=2), default=20_000_000)
    """Entries of each index file; one less can be used. RocketMQ default: 20000000."""

    enable_lmq: bool = setting("enableLmq", values.boolean, default=False)
    """Whether light queues, `%LMQ%...`, are built. RocketMQ default: false."""

    enable_multi_dispatch: bool = setting("enableMultiDispatch", values.boolean, default=False)
    """Whether messages also enter the queues that INNER_MULTI_DISPATCH names. RocketMQ default: false."""

    flush_disk_type: FlushDiskType = setting(
        "flushDiskType", values.one_of(FlushDiskType), default=FlushDiskType.ASYNC_FLUSH
    )
    """Whether a put waits for the disk. RocketMQ default: ASYNC_FLUSH."""

    flush_interval_commit_log: int = setting("flushIntervalCommitLog", values.integer(low=1), default=500)
    """Milliseconds between two flushes of ASYNC_FLUSH. RocketMQ default: 500."""

    sync_flush_timeout: int = setting("syncFlushTimeout", values.integer(low=1), default=5000)
    """Milliseconds that a put of SYNC_FLUSH waits for the disk. RocketMQ default: 5000."""

    file_reserved_time: int = setting("fileReservedTime", values.integer(low=1, high=1 << 20), default=72)
    """Hours that a log file is kept after its last write. RocketMQ default: 72."""

    delete_when: frozenset[int] = setting("deleteWhen", values.hours, default=frozenset((4,)))
    """Hours of the local day in which old files are deleted, `04;05`. RocketMQ default: 04."""

    disk_max_used_space_ratio: int = setting(
        "diskMaxUsedSpaceRatio", values.integer(low=10, high=100), default=75
    )
    """Percent of the disk above which old files are deleted at any hour. RocketMQ default: 75."""

    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio", values.integer(low=10, high=100), default=85
    )
    """Percent of the disk above which the oldest files are deleted at once. RocketMQ default: 85."""

    disk_space_warning_level_ratio: int = setting(
        "diskSpaceWarningLevelRatio", values.integer(low=10, high=100), default=90
    )
    """Percent of the disk above which puts are refused. RocketMQ default: 90."""

    clean_file_forcibly_enable: bool = setting("cleanFileForciblyEnable", values.boolean, default=True)
    """Whether `disk_space_clean_forcibly_ratio` is applied. RocketMQ default: true."""

    clean_resource_interval: int = setting("cleanResourceInterval", values.integer(low=1), default=10000)
    """Milliseconds between two checks of the disk. RocketMQ default: 10000."""

    archive_url: str | None = setting("trioha.archiveUrl", values.optional_archive_url, default=None)
    """URL of the object storage to which the node archives its log, its metadata and, where PyArrow is
    installed, its recordings; None for no archive.

    `s3://bucket/folder`, `gs://`, `az://` or `file:///folder`. Credentials come from the environment. Each
    broker has a URL of its own, a slave another one than its master.
    """

    archive_interval: int = setting("trioha.archiveInterval", values.integer(low=100), default=10_000)
    """Milliseconds between two looks at the end of the log: what is new is archived."""

    archive_keep: str | None = setting("trioha.archiveKeep", values.optional_duration, default=None)
    """How far back the archive can be restored, `30d` or `12h`: what no such restore needs is deleted there.
    None, by default, for everything."""

    archive_before_delete: bool = setting("trioha.archiveBeforeDelete", values.boolean, default=False)
    """Whether a log file is only deleted once it is archived.

    Above `disk_space_clean_forcibly_ratio` it is deleted all the same.
    """

"""The archive of a node's log, metadata and recordings: see `trioha.node.archive_service`."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from trioha.broker_status import ArchiveStatus
from trioha.config.broker import BrokerConfig, LogFormat
from trioha.errors import ConfigError
from trioha.extras import how_to_install
from trioha.store.message_store import MessageStore
from trioha.store.retention import Retention

if TYPE_CHECKING:
    from trioha.node.archive_service import ArchiveService

LIBRARY: Final = "obstore"
"""What the archiver needs beyond trioha itself; the node does not import it."""


@frozen
class Archive:
    """The archive of trioha.archiveUrl."""

    service: ArchiveService

    @classmethod
    def build(cls, config: BrokerConfig, store: MessageStore) -> Archive | None:
        """None without trioha.archiveUrl."""
        if config.archive_url is None:
            return None
        from trioha.node.archive_process import archiver_process  # noqa: PLC0415
        from trioha.node.archive_service import ArchiveService  # noqa: PLC0415
        from trioha.node.archive_task import ArchiveTask  # noqa: PLC0415

        task = ArchiveTask(
            url=config.archive_url,
            store=str(config.store_path_root_dir),
            commit_log=str(config.store_path_commit_log),
            record_dir=None if config.record_dir is None else str(config.record_dir),
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            interval_s=config.archive_interval / 1000,
            keep_ms=config.archive_keep_ms,
            log_as_json=config.log_format is LogFormat.JSON,
        )
        return cls(
            ArchiveService(
                partial(archiver_process, task, end_offset=lambda: store.commit_log.max_offset),
                store.commit_log,
                url=config.archive_url,
                interval_s=config.archive_interval / 1000,
            )
        )

    def status(self, retention: Retention) -> ArchiveStatus:
        """The archive as of now, with what `retention` has deleted before it was archived."""
        return evolve(self.service.status(), files_deleted_unarchived=retention.files_deleted_unarchived)


def check_archive(config: BrokerConfig) -> None:
    """Raises ConfigError if this installation cannot archive, but the configuration wants it to."""
    if config.archive_url is not None and find_spec(LIBRARY) is None:
        raise ConfigError(f"archives need {LIBRARY}", key="trioha.archiveUrl", hint=how_to_install("archive"))

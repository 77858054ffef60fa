"""Where a store is, and the sizes of its files."""

from __future__ import annotations

from pathlib import Path

from attrs import Factory, frozen

from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import IndexShape
from trioha.store.record import Host


@frozen
class StoreSettings:
    """Where a store is, and the sizes of its files."""

    root: Path
    commit_log_directory: Path
    file_bytes: int
    """mappedFileSizeCommitLog."""
    message_bytes_max: int
    """maxMessageSize: longest body."""
    store_host: Host
    """Broker address that every record names."""
    queues: ConsumeQueueSettings = Factory(ConsumeQueueSettings)
    index: IndexShape = Factory(IndexShape)
    dispatch: DispatchSettings = Factory(DispatchSettings)
    dispatch_to_confirmed: bool = False
    """Whether queues and index are built only up to the checkpoint's confirm offset, until the dispatcher has
    another limit: in controller mode later records may be cut when the node has a role."""
    epoch_file: Path | None = None
    """storePathEpochFile, in controller mode; None for a store without epochs."""

"""What a node and the process of its archiver say to each other."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class ArchiveTask:
    """What an archiver does: all that its process needs to know."""

    url: str
    store: str
    """Path of the store."""
    commit_log: str
    """Path of its commit log."""
    record_dir: str | None
    """Folder of the node's recordings; None without."""
    cluster_name: str
    broker_name: str
    interval_s: float
    """Between two steps."""
    keep_ms: int | None
    """How far back the archive can be restored; None for everything."""
    log_as_json: bool
    """Format of its log lines, which are on the node's stderr."""


@frozen(kw_only=True)
class ArchiveProgress:
    """What a step of an archiver has reached."""

    generation: str
    """Id of the generation that grows."""
    archived_offset: int
    """Everything before it is archived."""
    objects: int
    """Objects of the log that the step has stored."""
    object_bytes: int
    """Their size."""
    is_more_waiting: bool
    """Whether the next step has something to archive at once."""

"""Dispatch of all that the log has, in one go: before a master accepts puts, and at a close."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from trioha.errors import StoreError
from trioha.store.commit_log import CommitLog
from trioha.store.dispatch import Dispatcher

log = structlog.get_logger(__name__)

OnProgress = Callable[[str, int, int], None]
"""Receives what is done, how much of it, and of how much."""
CLOSE_DISPATCH_S: Final = 5.0
"""A close dispatches for so long; the next start does the rest (`abort` stays)."""
DISPATCH_RECORDS: Final = 4096
"""Records between two reports of the progress."""
_SPARSE_DISPATCH_RECORDS = 65_536
_SPARSE_RECORDS = 8
"""If so many queues are written that each gets fewer records at once, more records are dispatched together: a
write of a queue costs as much as a dozen records, since most queues have no open file."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """For work that nobody watches."""


def dispatch_to_end(
    dispatcher: Dispatcher,
    commit_log: CommitLog,
    *,
    on_progress: OnProgress = no_progress,
    limit_s: float | None = None,
) -> bool:
    """Dispatch to the log's end or the limit, for `limit_s` at most; False if there was no time for all.

    Blocks. Raises StoreError.
    """
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    start_offset, end_offset = dispatcher.position, commit_log.max_offset
    records_max = DISPATCH_RECORDS
    while records := dispatcher.dispatch(end_offset, records_max=records_max):
        is_sparse = dispatcher.queues_written * _SPARSE_RECORDS > records
        records_max = _SPARSE_DISPATCH_RECORDS if is_sparse else DISPATCH_RECORDS
        on_progress(
            "building queues and index, bytes",
            dispatcher.position - start_offset,
            end_offset - start_offset,
        )
        if deadline_s is not None and time.monotonic() > deadline_s:
            return False
    return True


def dispatch_at_close(dispatcher: Dispatcher, commit_log: CommitLog) -> bool:
    """Whether queues have all records that they may have. What the index lacks, checkpoints name. Blocks."""
    deadline_s = time.monotonic() + CLOSE_DISPATCH_S
    try:
        is_done = dispatch_to_end(dispatcher, commit_log, limit_s=CLOSE_DISPATCH_S)
    except StoreError as error:
        log.warning("queues cannot be completed, the next start will", reason=str(error))
        return False
    while dispatcher.complete_index(records_max=DISPATCH_RECORDS):
        if time.monotonic() > deadline_s:
            break
    limit, end_offset = dispatcher.limit, commit_log.max_offset
    return dispatcher.position >= end_offset or (
        is_done and dispatcher.stuck_at < 0 and limit is not None and limit.offset < end_offset
    )

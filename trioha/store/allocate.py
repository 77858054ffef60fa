"""Preallocation of the log's next file, in a worker thread: the disk may need long to reserve a GiB."""

from __future__ import annotations

from functools import partial

import structlog
import trio

from trioha.errors import StoreError
from trioha.net.threads import run_in_thread
from trioha.store.commit_log import CommitLog
from trioha.store.mapped_file import MappedFile

log = structlog.get_logger(__name__)

RETRY_PAUSE_S = 1.0


async def allocate_ahead(commit_log: CommitLog) -> None:
    """Make the next file whenever the last one is half full. Runs until cancelled.

    A file that cannot be made is tried again every second. The log makes it itself when it is needed; if that
    fails, the put is refused.
    """
    file_bytes = commit_log.file_bytes
    while True:
        start_offset = commit_log.next_file_offset
        half_full_offset = max(start_offset - file_bytes // 2, commit_log.min_offset + 1)
        # Each wait also ends when the log begins anew; the loop then starts over.
        if commit_log.has_preallocated:
            await commit_log.appended.reached(start_offset + 1)
        elif commit_log.max_offset < half_full_offset:
            await commit_log.appended.reached(half_full_offset)
        else:
            make = partial(
                MappedFile.create, commit_log.directory, start_offset=start_offset, size=file_bytes
            )
            try:
                commit_log.preallocate(await run_in_thread(make))
            except StoreError as error:
                log.warning("next log file cannot be made yet", reason=str(error))
                await trio.sleep(RETRY_PAUSE_S)

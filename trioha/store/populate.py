"""Pages of the log that are made ready for stores ahead of the appends, in a worker thread.

Theory of operation. The first store into a page of the log's map, and a write to it, make the kernel allocate
the page. That takes a microsecond, on a virtual machine up to ten: a quarter of a batch's cost to its master.
So a worker thread populates the pages after the log's end, without the interpreter lock, and appends store in
them (`CommitLog.populated_offset`). Where appends are faster than the thread, as those of a replica that
catches up, it rests: it would only take processors and locks from them.

Under steady load the pages are huge ones. A sync writes whole pages, so a log with few bytes for each sync
gets small ones: 10 s after the load has ended those that are left of it are replaced.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Final

import structlog
import trio

from trioha.errors import StoreError
from trioha.net.threads import run_in_thread
from trioha.store import compiled
from trioha.store.commit_log import CommitLog
from trioha.store.mapped_file import HUGE_PAGE_BYTES
from trioha.store.syncing import RESTS

log = structlog.get_logger(__name__)

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Bytes after the log's end that are made ready. When half of them have been used, the thread makes ready the
next half. Each call of the thread stops the node for up to some milliseconds, since both need the interpreter
lock."""
REST_S: Final = 0.1
"""Rest after pages that came too late."""
HUGE_WITHIN_S: Final = 2.0
"""Pages are huge if the half before was used up in this time: that is 4 MB/s, and 2 MB for each sync."""
SMALL_AFTER_S: Final = 10.0
"""Pages that are left are made small ones if half of them have not been used up in this time."""


async def populate_pages(commit_log: CommitLog, *, is_synced_often: bool = False) -> None:
    """Keep the pages after the log's end ready for stores.

    Runs until cancelled. Returns without compiled code, and on a system that cannot make pages ready. With
    `is_synced_often` puts, or acks, wait for syncs of few bytes each.
    """
    if not compiled.IS_COMPILED:
        return
    # A node without puts needs none.
    offset = commit_log.max_offset + 1
    # The process before this one may have left huge pages.
    may_be_huge = True
    while commit_log.can_populate:
        began_s, is_populated = trio.current_time(), commit_log.populated_offset > 0
        with trio.move_on_after(SMALL_AFTER_S if is_populated and may_be_huge else math.inf) as waiting:
            # The wait also ends when the log is cut or begins anew.
            await commit_log.appended.reached(offset)
        if waiting.cancelled_caught:
            await _use_small_pages(commit_log)
            may_be_huge = False
            await commit_log.appended.reached(offset)
        is_fast = is_populated and trio.current_time() - began_s < HUGE_WITHIN_S
        is_huge = is_fast and not is_synced_often
        may_be_huge = may_be_huge or is_huge
        if not await _populate_next(commit_log, is_fast=is_fast, is_huge=is_huge):
            await trio.sleep(REST_S)
        offset = max(commit_log.populated_offset - AHEAD_BYTES // 2, commit_log.max_offset + 1)


async def _populate_next(commit_log: CommitLog, *, is_fast: bool, is_huge: bool) -> bool:
    """Make the next pages ready, if many are not; False if the log's end has passed them meanwhile.

    The thread rests in between unless `is_fast`.

    Not a part of the loop, which must not keep a file's map, and so its space, while there are no puts.
    """
    pages = commit_log.pages_ahead(AHEAD_BYTES, bytes_min=AHEAD_BYTES // 2)
    if pages is None:
        return True
    file, start, end = pages
    first = file.start_offset
    if is_huge:
        if end < file.end_offset:
            # The next step begins with a whole page.
            end -= (end - first) % HUGE_PAGE_BYTES
        file.expect_many_appends(start - first, end - first)
    # Under load the pages are needed soon.
    rests = 0 if is_fast else RESTS
    populate = partial(compiled.records.populate, file.view, start - first, end - first, rests)
    commit_log.note_populated(file, end, is_done=await run_in_thread(populate))
    return commit_log.max_offset < end


async def _use_small_pages(commit_log: CommitLog) -> None:
    """Replace the pages that were made ready by small ones, from the one on that the next record goes to."""
    # A page with a byte that is not on disk cannot be replaced.
    await commit_log.flushed.reached(commit_log.max_offset)
    pages = commit_log.pages_ready()
    if pages is None:
        return
    file, start, end = pages
    first = file.start_offset
    view = file.view[start - first : end - first]
    try:
        descriptor = file.share()
    except StoreError:
        # The system has none now. The log is as good; its syncs write more.
        return
    try:
        await run_in_thread(partial(file.expect_few_appends, start - first, end - first, fd=descriptor.fd))
    except OSError as error:
        log.warning("the pages of the log stay huge", path=str(file.path), error=str(error))
    finally:
        descriptor.release()
    await run_in_thread(partial(compiled.records.populate, view, 0, len(view), RESTS))

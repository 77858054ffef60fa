"""A node whose store's lock file was removed or replaced ends at once.

Another process may have locked the new file and opened the store: two brokers then write to the same log, and
what one of them acknowledges the other one overwrites. All files of the store may be the other one's by now,
so nothing is written any more, not even by an orderly end: no flush, no checkpoint, no offsets, and the
broker's name stays registered, which may be the other one's entry. The process ends as by `kill -9`, which
loses nothing that it has written: if there is no other process, the next start recovers the store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

import structlog
import trio

from trioha.errors import StoreError
from trioha.net.threads import run_in_thread
from trioha.store.message_store import MessageStore

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S: Final = 1.0
EXIT_LOCK_LOST: Final = 1
"""Exit code then: a supervisor starts the node again, which is refused if another process has the store."""


def end_process() -> None:
    """End this process without any cleaning up."""
    sys.stderr.flush()
    os._exit(EXIT_LOCK_LOST)


async def watch_lock(store: MessageStore, *, end: Callable[[], None] = end_process) -> None:
    """Call `end` as soon as another process may have opened the store. Runs until cancelled."""
    while True:
        try:
            await run_in_thread(store.lock.check)
        except StoreError as error:
            log.error("the store may be in use by another process: ends at once", reason=str(error))
            end()
        await trio.sleep(CHECK_INTERVAL_S)

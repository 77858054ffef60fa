"""What a node imports after its ready line.

Its start does not need these modules, the first request of a client or a monitor does. They are imported in a
worker thread: in trio's own, replication would stand still until the last of them is there, while a worker
thread gives the interpreter back within 5 ms (`sys.getswitchinterval`).
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import Final

import structlog

from trioha.net.error_boundary import is_shortage
from trioha.net.threads import run_in_thread

log = structlog.get_logger(__name__)

MODULES: Final = ("trioha.remoting.ha_runtime_info",)
"""Imported where they are used, and here: a request that comes earlier waits for the same import."""


async def import_late() -> None:
    """Import `MODULES` that are not there yet; a shortage leaves them to the first request."""
    for name in MODULES:
        if name in sys.modules:
            continue
        try:
            await run_in_thread(partial(import_module, name))
        except (OSError, MemoryError) as error:
            if not is_shortage(error):
                raise
            log.warning("a module is imported later, for want of files or memory", module=name)

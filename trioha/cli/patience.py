"""Waits of the demo: as long as a busy machine may need, with a line every 10 s that says what for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from trioha.client.cluster import in_background
from trioha.errors import TriohaError

PATIENCE_S: Final = 300.0
REMARK_INTERVAL_S: Final = 10.0


@asynccontextmanager
async def patience(what: str, *, log: Callable[[str], None]) -> AsyncIterator[None]:
    """Run the block, and log meanwhile that it waits for `what`. Raises TriohaError after `PATIENCE_S`."""

    async def remark() -> None:
        while True:
            await trio.sleep(REMARK_INTERVAL_S)
            log(f"waiting for {what}")

    with trio.move_on_after(PATIENCE_S) as scope:
        async with in_background(remark):
            yield
    if scope.cancelled_caught:
        raise TriohaError(f"waited {PATIENCE_S:g} s for {what}")

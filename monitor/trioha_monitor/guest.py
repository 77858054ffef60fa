"""trio as a guest of a running asyncio loop.

Textual owns the asyncio loop; the feed is trio code. `TrioGuest` runs one trio main function on that loop, in
the same thread, so that no lock is needed. Two rules: the loop outlives the guest (its owner awaits `stop`),
and the guest's outcome is passed to `on_end`, since no task awaits the guest and a crash would go unseen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import outcome
import trio

STOP_TIMEOUT_S = 5.0
"""How long the guest may take to stop, in seconds."""


class TrioGuest:
    """One run of `main` under trio. `on_end` is called once, in the loop, with its outcome.

    The outcome of a run that was stopped is the value None.
    """

    def __init__(
        self, main: Callable[[], Awaitable[None]], *, on_end: Callable[[outcome.Outcome[None]], None]
    ) -> None:
        self._main = main
        self._on_end = on_end
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        self._ended: asyncio.Event | None = None

    def start(self) -> None:
        """Start the run on the running asyncio loop. Only once."""
        assert self._ended is None, "a guest runs once"
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        trio.lowlevel.start_guest_run(
            self._run,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )
        self._token = trio.lowlevel.current_trio_token()

    async def stop(self) -> None:
        """Cancel the run and wait for its end. Does nothing if it was not started or has ended.

        Raises TimeoutError if it does not end within `STOP_TIMEOUT_S`. Cancelling this leaves the guest
        stopping.
        """
        if self._ended is None:
            return
        if self._token is not None:
            # RunFinishedError: it is ending by itself already.
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        await asyncio.wait_for(self._ended.wait(), STOP_TIMEOUT_S)

    async def _run(self) -> None:
        with self._scope:
            await self._main()

    def _done(self, result: outcome.Outcome[None]) -> None:
        assert self._ended is not None
        self._ended.set()
        self._on_end(result)

"""Links, producers and peers of a run are trio tasks in one thread, so that they go on while the main thread
blocks."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio

T = TypeVar("T")
BEGINS_WITHIN_S = 60.0


class TrioThread(ABC):
    """A thread that runs `_begin`, and then what it is given until `close`. Used by one other thread."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._thread = threading.Thread(target=self._run, name="world", daemon=True)
        self._thread.start()
        assert self._ready.wait(BEGINS_WITHIN_S), "the links' thread did not start"
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    async def _begin(self, nursery: trio.Nursery) -> None:
        """Start what is there from the beginning on, in `nursery`."""

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._token = trio.lowlevel.current_trio_token()
            await self._begin(nursery)
            self._ready.set()
            await trio.sleep_forever()

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        if self._failure is not None:
            raise self._failure
        return trio.from_thread.run_sync(partial(function, *arguments, **options), trio_token=self._token)

    def run(self, function: Callable[..., Any], *arguments: Any, within_s: float) -> Any:
        """Run an async function in the trio thread; raises TooSlowError after `within_s`."""

        async def bounded() -> Any:
            with trio.fail_after(within_s):
                return await function(*arguments)

        if self._failure is not None:
            raise self._failure
        return trio.from_thread.run(bounded, trio_token=self._token)

    def spawn(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Start a task that lives until the end at most."""
        self.call(self._nursery.start_soon, function, *arguments)

    def close(self) -> None:
        if self._thread.is_alive() and self._nursery is not None and self._token is not None:
            trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
        self._thread.join(BEGINS_WITHIN_S)
        if self._failure is not None:
            raise self._failure

"""A live source that runs in the background of a test."""

from __future__ import annotations

from collections.abc import Callable

import trio

from trioha_monitor.view import ClusterView


class Watch:
    """Receives the views of a source."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[ClusterView](10_000)

    def show(self, view: ClusterView) -> None:
        """What the source is given."""
        self._send.send_nowait(view)

    async def until(self, is_so: Callable[[ClusterView], bool]) -> ClusterView:
        """The next view that is as wanted."""
        view = ClusterView(0)
        with trio.move_on_after(60):
            async for view in self._receive:
                if is_so(view):
                    return view
        raise AssertionError(f"never so; at last: {view} {view.events}")

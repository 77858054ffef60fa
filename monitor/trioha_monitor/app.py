"""The application: runs a feed, shows its snapshots, and ends with it."""

from __future__ import annotations

import asyncio
import signal
import threading
import traceback
from collections.abc import Sequence
from typing import ClassVar

import outcome
from textual.app import App
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from trioha.errors import TriohaError
from trioha_monitor.feed import Feed, FeedTimes, live_feed
from trioha_monitor.guest import TrioGuest
from trioha_monitor.model import Snapshot
from trioha_monitor.screen import MonitorScreen
from trioha_monitor.themes import DARK, LIGHT
from trioha_monitor.widgets.help import HelpScreen


class MonitorError(TriohaError):
    """The monitor itself failed: not a node, and nothing the user did."""


class SnapshotArrived(Message):
    """The feed has a new snapshot. Of several that wait only the last is shown."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """A newer snapshot makes an older one worthless."""
        return isinstance(message, SnapshotArrived)


class MonitorApp(App[None]):
    """Shows what `feed` publishes until the user quits or the feed ends.

    A feed that ends by itself, with an error or without, ends the application with return code 1 and sets
    `failure`: old numbers on a live screen would be a lie.
    """

    TITLE = "trioha monitor"
    CSS_PATH = "monitor.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit", tooltip="Leave the monitor; the nodes do not notice", id="monitor.quit"),
        Binding("question_mark", "help", "Help", tooltip="Keys and columns", id="monitor.help"),
        Binding(
            "plus,equals_sign",
            "span(1)",
            "Longer",
            key_display="+",
            tooltip="Draw more time",
            id="monitor.longer",
        ),
        Binding(
            "minus", "span(-1)", "Shorter", key_display="-", tooltip="Draw less time", id="monitor.shorter"
        ),
        Binding("t", "toggle_theme", "Light/dark", tooltip="Other themes: ctrl+p", id="monitor.theme"),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.failure: str | None = None
        self._feed = feed
        self._guest = TrioGuest(self._run_feed, on_end=self._feed_ended)
        self._stopping = False

    def get_default_screen(self) -> Screen[None]:
        """The only screen; help is laid over it."""
        return MonitorScreen()

    @property
    def monitor_screen(self) -> MonitorScreen:
        """The screen with the figures, also while help lies over it."""
        screen = self.screen_stack[0]
        assert isinstance(screen, MonitorScreen)
        return screen

    def on_mount(self) -> None:
        """Start the feed: here and nowhere else, since Textual calls `on_mount` of every class in the MRO."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self._handle_signals()
        self._guest.start()

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        """One frozen snapshot drives the whole screen."""
        self.monitor_screen.show(message.snapshot)

    def action_help(self) -> None:
        """Show the help."""
        self.push_screen(HelpScreen())

    def action_span(self, steps: int) -> None:
        """Draw a longer or a shorter time."""
        self.monitor_screen.change_span(steps)

    def action_toggle_theme(self) -> None:
        """Light or dark, from whichever theme is on."""
        self.theme = LIGHT.name if self.current_theme.dark else DARK.name

    async def _run_feed(self) -> None:
        await self._feed(self._publish)

    def _publish(self, snapshot: Snapshot) -> None:
        # Posting a message is all that trio code ever does to the application: it touches no widget.
        self.post_message(SnapshotArrived(snapshot))

    def _feed_ended(self, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Error):
            self.failure = f"the feed failed: {_where(result.error)}"
        elif not self._stopping:
            self.failure = "the feed ended by itself"
        if self.failure is not None and not self._stopping:
            self.exit(return_code=1)

    async def _shutdown(self) -> None:
        # Textual's only hook that runs on every way out while the loop and the widgets still live.
        self._stopping = True
        await self._guest.stop()
        await super()._shutdown()

    def _handle_signals(self) -> None:
        """Leave the terminal as it was also when told to stop from outside."""
        if self.is_headless or threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit)


def run(addresses: Sequence[str], *, interval_s: float) -> int:
    """See `trioha_monitor.run_monitor`."""
    app = MonitorApp(live_feed(addresses, times=FeedTimes(interval_s=interval_s)))
    app.run()
    if app.failure is not None:
        raise MonitorError(f"monitor: {app.failure}")
    return app.return_code or 0


def _where(error: BaseException) -> str:
    """What a crash was and where: one line that a bug report can quote."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}".splitlines()[0]

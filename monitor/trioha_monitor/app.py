"""The application: runs a source of views and shows them; ends when the source ends."""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

import outcome
from attrs import evolve
from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input

from trioha.errors import TriohaError
from trioha.remoting.client import ClientSecurity
from trioha_monitor.answer_recording import MonitorRecording
from trioha_monitor.consumption_feed import Demand
from trioha_monitor.faults import FaultLog
from trioha_monitor.guest import TrioGuest
from trioha_monitor.live import LIVE_TIMES, LiveSettings, live_views
from trioha_monitor.playback import Playback, Recording
from trioha_monitor.rendering import DARK, LIGHT
from trioha_monitor.replay import open_replay
from trioha_monitor.screen import MonitorScreen
from trioha_monitor.terminal import TerminalDriver
from trioha_monitor.view import ClusterView, ViewFeed

LINE_TIMEOUT_S = 1.0
"""How long keys wait for an input line that has been removed, in seconds."""


class MonitorError(TriohaError):
    """The monitor itself failed, not a node."""


class ViewArrived(Message):
    """The source has a new view. Of several pending views only the last is shown."""

    def __init__(self, view: ClusterView) -> None:
        super().__init__()
        self.view = view

    def can_replace(self, message: Message) -> bool:
        """A newer view replaces a pending one."""
        return isinstance(message, ViewArrived)


class MonitorApp(App[None]):
    """Shows the views of `feed` until the user quits or the feed ends.

    With a `playback` it is a replay that the user steers; the key `r` starts and stops the `recording`. If
    the feed ends by itself, with an error or without, the application ends with return code 1 and sets
    `failure`: a live screen must not show old figures.
    """

    TITLE = "trioha monitor"
    CSS_PATH = "monitor.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "s",
            "save_picture",
            "Picture",
            show=False,
            tooltip="Save the screen as an SVG file",
            id="app.picture",
        ),
        Binding(
            "t",
            "toggle_theme",
            "Light/dark",
            show=False,
            tooltip="Light or dark; ctrl+p has more themes",
            id="app.theme",
        ),
        Binding("q", "quit", "Quit", tooltip="Leave the monitor", id="app.quit"),
    ]

    def __init__(
        self,
        feed: ViewFeed,
        *,
        playback: Playback | None = None,
        recording: Recording | None = None,
        demand: Demand | None = None,
    ) -> None:
        super().__init__()
        self.failure: str | None = None
        self.crash: BaseException | None = None
        """The error that ended the feed or the screen."""
        self._feed = feed
        self._main_screen = MonitorScreen(playback=playback, recording=recording, demand=demand)
        self._guest = TrioGuest(self._run_feed, on_end=self._feed_ended)
        self._stopping = False
        self._waiting_keys: deque[events.Key] | None = None
        """Keys that wait until an input line has handled the keys before them; None if no key waits."""
        self._waits = 0

    def get_driver_class(self) -> type[Driver]:
        """A driver for a terminal that may vanish."""
        return TerminalDriver

    def get_default_screen(self) -> Screen[None]:
        """The main screen; help and dialogs are pushed over it."""
        return self._main_screen

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The command palette: Textual's commands, and every key of the screen by its name."""
        yield from super().get_system_commands(screen)
        for active in screen.active_bindings.values():
            binding = active.binding
            if active.enabled and binding.tooltip and binding.id is not None:
                title = f"{binding.description} ({self.get_key_display(binding)})"
                run = partial(self.run_action, binding.action, active.node)
                yield SystemCommand(title, binding.tooltip, run)

    @property
    def monitor_screen(self) -> MonitorScreen:
        """The main screen, also while help is pushed over it."""
        return self._main_screen

    def on_mount(self) -> None:
        """Start the feed, here only: Textual calls `on_mount` of every class in the MRO."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self._guest.start()

    async def on_event(self, event: events.Event) -> None:
        """Handle keys one by one: a line or dialog that one key opens gets the next key, also of fast input.

        Textual forwards a key to the widget that has the focus at that moment, and looks for its binding when
        the key has bubbled up: a pasted `/abc` would be four keys of the table.
        """
        if isinstance(event, events.Key) and not event.is_forwarded:
            waits = self._queue_keys(event) or self._wait_for_input(event)
            if waits or await self._run_key(event):
                return
        await super().on_event(event)

    def _queue_keys(self, *keys: events.Key) -> bool:
        """Queue keys if an earlier key waits; returns whether they wait."""
        if self._waiting_keys is None:
            return False
        self._waiting_keys.extend(keys)
        return True

    def _wait_for_input(self, key: events.Key) -> bool:
        """Queue a key until the focused input line has handled the keys before it; returns whether it waits.

        Nothing is awaited here: the application goes on drawing and handling messages.
        """
        line = self.focused
        if not isinstance(line, Input) or key.is_printable:
            return False
        self._waits += 1
        go_on = partial(self._run_waiting_keys, self._waits)
        # Through the line's message queue: after the keys that are in it.
        if not line.call_later(self.call_later, go_on):
            return False
        self._waiting_keys = deque([key])
        self.set_timer(LINE_TIMEOUT_S, go_on)
        return True

    async def _run_waiting_keys(self, wait: int) -> None:
        """Handle the keys that waited, in their order; `wait` is the number of their wait."""
        keys = self._waiting_keys
        if wait != self._waits or not keys:
            return
        self._waiting_keys = None
        first = keys.popleft()
        if not await self._run_key(first):
            await super().on_event(first)
        while keys:
            await self.on_event(keys.popleft())
            if self._queue_keys(*keys):
                return

    async def _run_key(self, key: events.Key) -> bool:
        """Run the action of a key; returns False for an unbound key, and for text of an input line."""
        if isinstance(self.focused, Input) and key.is_printable:
            return False
        active = self.screen.active_bindings.get(key.key)
        return (
            active is not None
            and active.enabled
            and await self.run_action(active.binding.action, active.node)
        )

    def on_view_arrived(self, message: ViewArrived) -> None:
        """Show the view on the whole screen."""
        self.monitor_screen.show(message.view)

    def action_save_picture(self) -> None:
        """Save the screen as SVG in the current folder, under a new name."""
        name = f"trioha-monitor-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}.svg"
        try:
            path = self.save_screenshot(name, path=".")
        except OSError as error:
            self.notify(f"{name}: {error.strerror}", title="No picture", severity="error", markup=False)
        else:
            self.notify(path, title="Saved", markup=False)

    def action_toggle_theme(self) -> None:
        """Switch between light and dark."""
        self.theme = LIGHT.name if self.current_theme.dark else DARK.name

    async def _run_feed(self) -> None:
        await self._feed(self._publish)

    def _publish(self, view: ClusterView) -> None:
        # trio code only posts messages to the application; it never touches a widget.
        self.post_message(ViewArrived(view))

    def _feed_ended(self, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Error):
            self.crash = result.error
            self.failure = f"the feed failed: {_where(result.error)}"
        elif not self._stopping:
            self.failure = "the feed ended by itself"
        if self.failure is not None and not self._stopping:
            self.exit(return_code=1)

    async def _shutdown(self) -> None:
        # Textual's only hook that runs at every exit while loop and widgets still exist.
        self._stopping = True
        await self._main_screen.stop_recording()
        await self._guest.stop()
        await super()._shutdown()

    def _handle_exception(self, error: Exception) -> None:
        # Textual's only hook for exceptions of its own tasks.
        if self.crash is None:
            self.crash = error
            self.failure = f"the screen failed: {_where(error)}"
        super()._handle_exception(error)


def run(
    addresses: Sequence[str],
    *,
    name_servers: Sequence[str],
    interval_s: float,
    record_into: Path,
    security: ClientSecurity,
) -> int:
    """See `trioha_monitor.run_monitor`."""
    times = evolve(LIVE_TIMES, interval_s=interval_s, refresh_s=min(interval_s, LIVE_TIMES.refresh_s))
    recording = MonitorRecording(record_into)
    settings = LiveSettings.with_security(security, times=times, on_observed=recording.note)
    feed = live_views(addresses, name_servers=name_servers, settings=settings)
    return _run(MonitorApp(feed, recording=recording, demand=settings.demand))


def run_again(sessions: Sequence[Path]) -> int:
    """See `trioha_monitor.run_replay`."""
    source = open_replay(list(sessions))
    source.toggle()
    return _run(MonitorApp(source, playback=source))


def _run(app: MonitorApp) -> int:
    fault_log = FaultLog()
    fault_log.capture_logs()
    app.run()
    where = "" if app.crash is None else fault_log.keep(app.crash)
    for text in fault_log.unwritten:
        # The screen is closed: stderr is visible again.
        sys.stderr.write(text)
    if app.failure is not None:
        raise MonitorError("\n".join(filter(None, (f"monitor: {app.failure}", where))))
    return app.return_code or 0


def _where(error: BaseException) -> str:
    """A crash and its place, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}".splitlines()[0]

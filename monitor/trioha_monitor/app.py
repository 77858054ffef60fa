"""The application: runs a source of views and shows them; ends when the source ends."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

import outcome
from attrs import evolve
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.message import Message
from textual.screen import Screen

from trioha.errors import ConfigError, TriohaError
from trioha.remoting.client import ClientSecurity
from trioha_monitor.answer_recording import MonitorRecording
from trioha_monitor.config import DEFAULT_THRESHOLDS, Thresholds
from trioha_monitor.consumption_feed import Demand
from trioha_monitor.faults import FaultLog, state_folder
from trioha_monitor.guest import TrioGuest
from trioha_monitor.live import LIVE_TIMES, LiveSettings, live_views
from trioha_monitor.playback import Playback, Recording
from trioha_monitor.rendering import DARK, LIGHT
from trioha_monitor.replay import open_replay
from trioha_monitor.saved_state import DEFAULT_STATE, FILE_NAME, SavedState, read_state, write_state
from trioha_monitor.screen import MonitorScreen
from trioha_monitor.terminal import TerminalDriver
from trioha_monitor.view import ClusterView, ViewFeed


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
    BINDING_GROUP_TITLE = "Program"
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
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        state: SavedState = DEFAULT_STATE,
        notice: str = "",
    ) -> None:
        """The screens start as in `state`, with `notice` as a warning if it is not empty."""
        super().__init__()
        self.failure: str | None = None
        self.crash: BaseException | None = None
        """The error that ended the feed or the screen."""
        self._feed = feed
        self._theme_name, self._notice = state.theme, notice
        self._main_screen = MonitorScreen(
            playback=playback, recording=recording, demand=demand, thresholds=thresholds, state=state
        )
        self._guest = TrioGuest(self._run_feed, on_end=self._feed_ended)
        self._stopping = False

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

    @property
    def state(self) -> SavedState:
        """What the user chose, also after the screens have closed."""
        screen = self._main_screen
        orders = {table.id or "": table.order for table in screen.sorted_tables}
        return SavedState(screen.pane_id, screen.units, self.theme, orders)

    def on_mount(self) -> None:
        """Start the feed, here only: Textual calls `on_mount` of every class in the MRO."""
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = self._theme_name if self._theme_name in self.available_themes else DARK.name
        if self._notice:
            self.notify(self._notice, severity="warning", markup=False)
        self._guest.start()

    async def on_unmount(self) -> None:
        """End what runs beside the screens, at every exit: the loop goes on until then."""
        self._stopping = True
        try:
            await self._main_screen.stop_recording()
        except (TriohaError, OSError) as error:
            self.failure = f"the recording is not complete: {error}"
        await self._guest.stop()

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
    thresholds: Thresholds,
) -> int:
    """See `trioha_monitor.run_monitor`."""
    times = evolve(LIVE_TIMES, interval_s=interval_s, refresh_s=min(interval_s, LIVE_TIMES.refresh_s))
    recording = MonitorRecording(record_into)
    settings = LiveSettings.with_security(security, times=times, on_observed=recording.note)
    feed = live_views(addresses, name_servers=name_servers, settings=settings)
    app = partial(MonitorApp, feed, recording=recording, demand=settings.demand, thresholds=thresholds)
    return _run_with_state(app)


def run_again(sessions: Sequence[Path], *, thresholds: Thresholds) -> int:
    """See `trioha_monitor.run_replay`."""
    source = open_replay(list(sessions))
    source.toggle()
    return _run_with_state(partial(MonitorApp, source, playback=source, thresholds=thresholds))


def _run_with_state(make: Callable[..., MonitorApp]) -> int:
    """Run an application that begins with the choices of the last one, and keep its choices."""
    path = state_folder() / FILE_NAME
    state, notice = DEFAULT_STATE, ""
    try:
        state = read_state(path)
    except ConfigError as error:
        notice = str(error)
    app = make(state=state, notice=notice)
    try:
        return _run(app)
    finally:
        _keep_state(path, app)


def _keep_state(path: Path, app: MonitorApp) -> None:
    try:
        write_state(path, app.state)
    except OSError as error:
        sys.stderr.write(f"monitor: the choices are not kept: {path}: {error.strerror}\n")


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

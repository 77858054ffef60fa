"""The main screen: a top line, in a replay its time axis, one of six panes, and a footer."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, ClassVar

from attrs import evolve
from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.reactive import var
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import ContentSwitcher, HelpPanel, Input, Tabs

from trioha.errors import TriohaError
from trioha_monitor.config import DEFAULT_THRESHOLDS, Thresholds
from trioha_monitor.consumption_feed import Demand
from trioha_monitor.faults import state_folder
from trioha_monitor.keys import HELPING, LIVE_ONLY, REPLAY_ONLY, SCREEN_KEYS
from trioha_monitor.panes.events import EventsPane
from trioha_monitor.panes.groups import GroupsPane
from trioha_monitor.panes.log import LogPane
from trioha_monitor.panes.pane import Pane, PaneModel
from trioha_monitor.panes.replicas import ReplicasPane, ha_status_text
from trioha_monitor.panes.roles import RolesPane
from trioha_monitor.panes.slave import SlavePane
from trioha_monitor.playback import Playback, Recording
from trioha_monitor.rendering import ByteUnits, Palette, RenderContext, StyledText, palette_of
from trioha_monitor.saved_state import DEFAULT_STATE, SavedState
from trioha_monitor.texts import format_duration
from trioha_monitor.view import ClusterView
from trioha_monitor.widgets.dialogs import AskScreen, FilterLine, Understood
from trioha_monitor.widgets.footer import KeysFooter
from trioha_monitor.widgets.row_table import RowTable
from trioha_monitor.widgets.top_bar import ReplayBar, TopBar, tab_id

DRAW_PAUSE_S = 0.5
"""Pause between two drawings, in seconds, also if views come faster: figures that change ten times a second
cannot be read, and drawing costs most. Graphs lose nothing: histories keep the worst of skipped views."""
SPANS_S = (30, 60, 120, 300, 900)
"""Spans of graphs to choose from, in seconds."""
COPY_NAME = "ha-status.txt"
"""File of the copied table in the state folder: the last copy."""
JUMP_HINT = "12:03:05 local, or 12:03:05Z · +90s, -5m from here · 25% · end"
UNTIL_HINT = "lag > 10MB · lag > 3s · event · event lost · event puts of 10.0.0.7"


class MonitorScreen(Screen[None]):
    """Shows one view at a time; keeps only what the user chose."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (150, "-huge")]  # noqa: RUF012 - Textual declares it so
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-high")]  # noqa: RUF012 - Textual declares it so
    BINDINGS: ClassVar[list[BindingType]] = SCREEN_KEYS
    BINDING_GROUP_TITLE = "Monitor"

    pane_id: var[str] = var("replicas", init=False)
    """The visible pane."""
    span_s: var[int] = var(120, init=False)
    """How much time the graphs cover, in seconds."""
    units: var[ByteUnits] = var(ByteUnits.BINARY, init=False)
    """Units of numbers of bytes."""
    held: var[ClusterView | None] = var(None, init=False)
    """The view of tables and figures while they are paused."""
    replica: var[int | None] = var(None, init=False)
    """Key of the chosen replica."""

    def __init__(
        self,
        *,
        playback: Playback | None = None,
        recording: Recording | None = None,
        demand: Demand | None = None,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        state: SavedState = DEFAULT_STATE,
    ) -> None:
        """`demand` is set while topics and groups are shown; None for a source without groups. The screen
        starts as in `state`."""
        super().__init__(id="monitor")
        self.set_reactive(MonitorScreen.pane_id, state.pane)
        self.set_reactive(MonitorScreen.units, state.units)
        self._thresholds = thresholds
        self._playback, self._recording, self._demand = playback, recording, demand
        self._view: ClusterView | None = None
        self._recording_since_ms: int | None = None
        self._recording_lock = asyncio.Lock()
        """Held while a recording starts or stops."""
        self._filtered: RowTable[Any] | None = None
        """The table that the filter line was opened for; None before it was."""
        self._palette: Palette | None = None
        """None before the screen is mounted."""
        self._drawn_s = 0.0
        self._draw_timer: Timer | None = None
        self.panes: dict[str, Pane] = {
            "replicas": ReplicasPane(),
            "slave": SlavePane(),
            "log": LogPane(),
            "events": EventsPane(),
            "groups": GroupsPane(),
            "roles": RolesPane(),
        }

        for table in self.sorted_tables:
            table.set_reactive(RowTable.order, state.orders.get(table.id or "", table.order))

    def compose(self) -> ComposeResult:
        """Top to bottom."""
        yield TopBar(id="top", active=self.pane_id)
        if self._playback is not None:
            yield ReplayBar(id="replay")
        with ContentSwitcher(initial=self.pane_id, id="panes"):
            yield from self.panes.values()
        yield FilterLine(placeholder="filter: words that a row must have", id="filter", compact=True)
        yield KeysFooter(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Focus the pane, whose keys are then active."""
        self.query_one("#filter").display = False
        self._palette = palette_of(self.app)
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self._change_colours())
        if self._demand is not None:
            self._demand.want(is_wanted=self.pane_id == "groups")
        self._focus_pane()
        # The first view may have come before the widgets.
        self.call_after_refresh(self.redraw)

    @property
    def pane(self) -> Pane:
        """The visible pane."""
        return self.panes[self.pane_id]

    @property
    def sorted_tables(self) -> list[RowTable[Any]]:
        """The tables whose order is kept."""
        tables = (pane.main_table for pane in self.panes.values())
        return [table for table in tables if table is not None]

    @property
    def view(self) -> ClusterView | None:
        """The last view; None before the first one."""
        return self._view

    def show(self, view: ClusterView) -> None:
        """Show `view` in place of the one before."""
        self._view = view
        wait_s = self._drawn_s + DRAW_PAUSE_S - monotonic()
        if wait_s <= 0:
            self.redraw()
        elif self._draw_timer is None:
            self._draw_timer = self.set_timer(wait_s, self.redraw)

    def redraw(self) -> None:
        """Draw the view again, with other colours, units or span."""
        if self._draw_timer is not None:
            self._draw_timer.stop()
            self._draw_timer = None
        self._drawn_s = monotonic()
        view, palette = self._view, self._palette
        if view is None or palette is None or not self.is_running:
            return
        context = RenderContext(
            palette,
            self.units,
            end_ms=view.time_ms,
            span_ms=self.span_s * 1000,
            thresholds=self._thresholds,
        )
        self.query_one(TopBar).show(view, context, pane=self.pane_id, states=self._states(view, context))
        if self._playback is not None:
            # Of the view's moment: a fast replay is far ahead of its last view.
            state = evolve(self._playback.state(), time_ms=view.time_ms)
            self.query_one(ReplayBar).show(state, context)
        self.pane.model = PaneModel(view, self.held or view, context, self.replica)

    def watch_pane_id(self, pane_id: str) -> None:
        """Show the pane, and give it the focus."""
        with self.prevent(Tabs.TabActivated):
            self.query_one(Tabs).active = tab_id(pane_id)
        self.query_one(ContentSwitcher).current = pane_id
        if self._demand is not None:
            self._demand.want(is_wanted=pane_id == "groups")
        self.action_close_filter()
        # A widget has no size before it is visible.
        self.call_after_refresh(self.redraw)

    def watch_span_s(self) -> None:
        """Draw all graphs for the new span."""
        self.redraw()

    def watch_units(self) -> None:
        """Draw all figures in the new units."""
        self.redraw()

    def watch_held(self) -> None:
        """Draw the tables of the held view, or of the newest."""
        self.redraw()

    def watch_replica(self, key: int | None) -> None:
        """Draw the chosen replica."""
        replicas_pane = self.panes["replicas"]
        assert isinstance(replicas_pane, ReplicasPane)
        if self.pane is not replicas_pane:
            replicas_pane.table.cursor = key
            self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Keys of a replay are active in a replay only; in an input line keys are its text."""
        if isinstance(self.focused, Input):
            return action in {"close_filter", "drop_filter"}
        if action in HELPING:
            return bool(self.query(HelpPanel))
        if action in REPLAY_ONLY:
            return self._playback is not None
        if action in LIVE_ONLY:
            return self._playback is None
        return action != "record" or self._recording is not None

    def action_pane(self, name: str) -> None:
        """Show another pane."""
        self.pane_id = name

    def action_pause(self) -> None:
        """Hold the tables, or release them."""
        self.held = self._view if self.held is None else None

    def action_play(self) -> None:
        """Play or pause."""
        self._steer().toggle()
        self.redraw()

    def action_filter(self) -> None:
        """Open the filter line."""
        line, table = self.query_one(FilterLine), self.pane.main_table
        if table is not None:
            self._filtered, line.value = table, table.filter_text
            line.display = True
            # At once: the next key belongs to the line.
            self.set_focus(line)

    def action_drop_filter(self) -> None:
        """Close the filter line and show all rows."""
        self.query_one(FilterLine).value = ""
        self.action_close_filter()

    def action_span(self, steps: int) -> None:
        """Draw the next longer (1) or shorter (-1) span."""
        index = SPANS_S.index(self.span_s) + steps
        self.span_s = SPANS_S[min(max(index, 0), len(SPANS_S) - 1)]

    def action_units(self) -> None:
        """The next units of bytes."""
        self.units = self.units.next
        self.notify(self.units.value, title="Units", timeout=2)

    def action_copy(self) -> None:
        """Write the table's replicas into a file, and offer them to the terminal's clipboard."""
        view = self.held or self._view
        if view is None:
            return
        replicas_pane = self.panes["replicas"]
        assert isinstance(replicas_pane, ReplicasPane)
        replicas = replicas_pane.table.rows or view.replicas
        text, path = ha_status_text(view, replicas), state_folder() / COPY_NAME
        # A terminal does not say whether it has taken the text.
        self.app.copy_to_clipboard(text)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            self.notify(f"{path}: {error.strerror}", title="Not written", severity="error", markup=False)
        else:
            what = f"{len(replicas)} replicas as mqadmin haStatus prints them, in {path}"
            self.notify(f"{what}; also offered to the clipboard", title="Written", timeout=10, markup=False)

    def action_record(self) -> None:
        """Start or stop a recording."""
        if self._recording is not None and not self._recording_lock.locked():
            self.run_worker(self._toggle_recording(self._recording), group="recording")

    async def _toggle_recording(self, recording: Recording) -> None:
        """Start or stop in a thread: a slow disk may take seconds."""
        async with self._recording_lock:
            try:
                if self._recording_since_ms is None:
                    path = await asyncio.to_thread(recording.start)
                    self._recording_since_ms = 0 if self._view is None else self._view.time_ms
                    self.notify(f"into {path}", title="Recording", markup=False)
                else:
                    self._recording_since_ms = None
                    path = await asyncio.to_thread(recording.stop)
                    self.notify(
                        f"trioha monitor --replay {path}",
                        title="Recorded; see it again",
                        timeout=10,
                        markup=False,
                    )
            except (TriohaError, OSError) as error:
                self._recording_since_ms = None
                self.notify(str(error), title="No recording", severity="error", markup=False)
        self.redraw()

    async def stop_recording(self) -> None:
        """End a recording that is running or about to start: the monitor exits.

        Raises TriohaError or OSError if it is not complete.
        """
        async with self._recording_lock:
            if self._recording is not None and self._recording_since_ms is not None:
                self._recording_since_ms = None
                await asyncio.to_thread(self._recording.stop)

    def action_speed(self, steps: int) -> None:
        """Play faster or slower."""
        self._steer().change_speed(steps)
        self.redraw()

    def action_turn(self) -> None:
        """Reverse the direction."""
        self._steer().turn()
        self.redraw()

    def action_step(self, steps: int) -> None:
        """Move by a small step."""
        self._steer().step(steps)
        self.redraw()

    def action_seek_event(self, steps: int) -> None:
        """Go to the next or the previous event."""
        self._steer().seek_event(steps)
        self.redraw()

    async def action_jump(self) -> None:
        """Ask for a time and go there."""
        await self._ask("Go to", JUMP_HINT)

    async def action_until(self) -> None:
        """Ask for a condition and go to where it holds."""
        await self._ask("Play as fast as possible until", UNTIL_HINT)

    async def _ask(self, title: str, hint: str) -> None:
        # Awaited here, not in a worker by `push_screen_wait`: the dialog gets the next key of fast typing.
        playback = self._steer()
        await self.app.push_screen(AskScreen(title, hint, Understood(playback.parse)), self._run_until)

    def _run_until(self, condition: str | None) -> None:
        if condition is not None:
            self._steer().run_until(condition)
            self.redraw()

    def action_help(self) -> None:
        """Show or hide the keys, and the terms of the pane."""
        if self.query(HelpPanel):
            self.action_close_help()
        else:
            self.app.action_show_help_panel()

    def action_close_help(self) -> None:
        """Hide the help."""
        self.app.action_hide_help_panel()

    def action_scroll_help(self, pages: int) -> None:
        """Scroll the help by pages."""
        panel = self.query_one(HelpPanel)
        panel.scroll_relative(y=pages * max(1, panel.size.height - 1), animate=False)

    @on(Pane.ReplicaChosen)
    def _choose_replica(self, message: Pane.ReplicaChosen) -> None:
        message.stop()
        self.replica = message.key
        if message.open_it:
            self.pane_id = "slave"

    @on(Pane.MomentChosen)
    def _choose_moment(self, message: Pane.MomentChosen) -> None:
        if self._playback is not None:
            self._playback.seek(message.time_ms)
            self.redraw()

    @on(ReplayBar.Clicked)
    def _seek(self, message: ReplayBar.Clicked) -> None:
        self._steer().seek(message.time_ms)
        self.redraw()

    @on(Tabs.TabActivated)
    def _open_pane(self, message: Tabs.TabActivated) -> None:
        self.pane_id = (message.tab.id or "").removeprefix(tab_id(""))

    @on(TopBar.Resized)
    @on(RowTable.Arranged)
    def _arranged(self) -> None:
        self.redraw()

    def on_paste(self, event: events.Paste) -> None:
        """Use a pasted text as the filter."""
        words = event.text.strip().partition("\n")[0].removeprefix("/")
        if words and self.pane.main_table is not None:
            self.action_filter()
            self.query_one(FilterLine).value = words

    @on(Input.Changed, "#filter")
    def _filter(self, message: Input.Changed) -> None:
        if self._filtered is not None:
            self._filtered.filter_text = message.value

    def action_close_filter(self) -> None:
        """Close the filter line and keep the filter."""
        self.query_one(FilterLine).display = False
        self._focus_pane()

    def _focus_pane(self) -> None:
        self.set_focus(self.pane.main_table or self.pane)

    def _change_colours(self) -> None:
        self._palette = palette_of(self.app)
        self.redraw()

    def _steer(self) -> Playback:
        assert self._playback is not None, "only a replay has a playback"
        return self._playback

    def _states(self, view: ClusterView, context: RenderContext) -> tuple[StyledText, ...]:
        """States to point out: recording, paused, replay."""
        states: list[StyledText] = []
        if self._recording_since_ms is not None:
            since_s = max(0, view.time_ms - self._recording_since_ms) / 1000
            states.append((f"● REC {format_duration(since_s)}", context.palette.bad))
        if self.held is not None:
            held_s = max(0, view.time_ms - self.held.time_ms) / 1000
            states.append(
                (f"▌▌ PAUSED {format_duration(held_s)}", context.palette.warn + context.palette.reverse)
            )
        if self._playback is not None:
            states.append(("REPLAY", context.palette.accent))
        return tuple(states)

"""What both kinds of replays have in common: the player, searches, and the feed.

A replay is a `ViewFeed` and a `trioha_monitor.playback.Playback`: called with `show`, it shows the view of
its player's position until it is cancelled. The screen steers it by its methods, which return at once and are
called in the feed's thread. Between two views it reads more of the recording (`work`), continues a search,
and checks whether the recording has grown.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final

import trio

from trioha_monitor.playback import PlaybackPosition, PlaybackState, Player
from trioha_monitor.replay.event_log import EventLog
from trioha_monitor.replay.search import AtEvent, AtLag, AtTime, Goal, parse_seek
from trioha_monitor.series import Series
from trioha_monitor.view import ClusterView, EventKind, Show

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
FRAME_S: Final = 0.1
"""Pause between two checks of the player's position."""
WORK_S: Final = 0.02
"""Time between two checks for reading or a search; at least one step is made."""
GROWTH_S: Final = 1.0
"""Pause between two checks whether the recording has grown."""
LAG_SHARE_STEP: Final = 0.05
"""The lag under the axis is computed again when so much more of the recording has been read, 0 to 1."""


class Replay(ABC):
    """A recording as a source of views, with a player. `clock_s` is the monotonic clock of the player."""

    def __init__(self, start_ns: int, end_ns: int, *, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._search: Iterator[int | None] | None = None
        self._goal = ""
        self._lag: Series | None = None
        self._lag_share = 0.0
        self._work: Iterator[None] | None = None
        self.player = Player(start_ns, max(start_ns, end_ns), clock_s=clock_s)
        """The position and how it moves; keys call its methods."""
        self.notice = ""
        """Result of the last search, for the status line; empty if there is nothing to say."""

    # -- what a kind of recording has ----------------------------------------------------------------------

    @abstractmethod
    def view_at(self, at_ns: int) -> ClusterView:
        """The view of any moment, nanoseconds since 1970. May read the disk for some milliseconds."""

    @property
    @abstractmethod
    def event_log(self) -> EventLog:
        """All events that have been read."""

    @property
    @abstractmethod
    def overview_share(self) -> float:
        """How much has been read for lag, ticks and events, 0 to 1; at 1 they are exact."""

    @abstractmethod
    def check_growth(self) -> None:
        """Read what was added to the recording; a player at the end stays at the end."""

    @abstractmethod
    def _worst_lag(self) -> Series:
        """Worst lag in bytes of any replica over the whole axis, as far as it has been read."""

    @abstractmethod
    def _search_lag(self, goal: AtLag, *, from_ns: int, forward: bool) -> Iterator[int | None]:
        """Search for where a lag begins to fulfil `goal`; yields None meanwhile, at last the moment."""

    def _search_time(self, at_ns: int) -> Iterator[int | None]:
        """Search for a moment: it is found at once, unless the recording must be read up to it."""
        yield at_ns

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def position(self) -> PlaybackPosition:
        """Position of the replay and how it moves."""
        return self.player.position

    def state(self) -> PlaybackState:
        """State for the screens."""
        position = self.player.position
        return PlaybackState(
            start_ms=position.start_ns // NS_PER_MS,
            end_ms=position.end_ns // NS_PER_MS,
            time_ms=position.at_ns // NS_PER_MS,
            speed=position.speed,
            is_backward=position.is_reverse,
            is_playing=position.is_playing,
            goal=self._goal,
            note=self.notice,
            lag=self.lag_whole(),
            ticks=self.event_log.ticks(),
        )

    def view(self) -> ClusterView:
        """The view of the player's position."""
        return self.view_at(self.player.position.at_ns)

    def lag_whole(self) -> Series:
        """Worst lag in bytes of the whole recording; the same object until `LAG_SHARE_STEP` more is known."""
        share = self.overview_share
        if (
            self._lag is None
            or share - self._lag_share >= LAG_SHARE_STEP
            or (share == 1.0 != self._lag_share)
        ):
            self._lag, self._lag_share = self._worst_lag(), share
        return self._lag

    # -- moving --------------------------------------------------------------------------------------------

    def toggle(self) -> None:
        """Play or pause; ends a search."""
        self.stop_search()
        self.player.toggle()

    def change_speed(self, steps: int) -> None:
        """The next faster (1) or slower (-1) speed."""
        self.player.change_speed(steps)

    def turn(self) -> None:
        """Reverse the direction."""
        self.player.turn()

    def step(self, steps: int) -> None:
        """Pause and move by intervals of 0.1 s, back if negative."""
        self.stop_search()
        self.player.step(steps)

    def seek(self, time_ms: int) -> None:
        """Go to the end of a millisecond, on the axis of `ClusterView.time_ms`."""
        self._go_to(time_ms * NS_PER_MS + NS_PER_MS - 1, "that moment")

    def seek_event(self, steps: int, kind: EventKind | None = None) -> None:
        """Go to the next (1) or previous (-1) event (of a kind)."""
        forward = steps > 0
        goal = "the next event" if forward else "the event before"
        self._start_search(self._search_event(AtEvent(kind), forward=forward), goal)

    def parse(self, condition: str) -> Goal:
        """What a seek expression (`trioha_monitor.replay.search`) asks for at the present position.

        Raises SeekError or MomentError.
        """
        position = self.player.position
        return parse_seek(
            condition, now_ns=position.at_ns, start_ns=position.start_ns, end_ns=position.end_ns
        )

    def run_until(self, condition: str) -> None:
        """Go to where a seek expression (`trioha_monitor.replay.search`) says, as fast as possible.

        Backward if the player is reversed. Raises SeekError or MomentError.
        """
        position, goal = self.player.position, self.parse(condition)
        forward = not position.is_reverse
        match goal:
            case AtTime(at_ns=at_ns):
                self._go_to(at_ns, condition)
            case AtEvent():
                self._start_search(self._search_event(goal, forward=forward), condition)
            case AtLag():
                search = self._search_lag(goal, from_ns=position.at_ns, forward=forward)
                self._start_search(search, condition)

    def stop_search(self) -> None:
        """End a search."""
        self._search, self._goal, self.notice = None, "", ""

    def _go_to(self, at_ns: int, goal: str) -> None:
        self.stop_search()
        search = self._search_time(at_ns)
        if isinstance(found := next(search), int):
            self.player.jump(found)
        else:
            self._start_search(search, goal)

    def _start_search(self, search: Iterator[int | None], goal: str) -> None:
        self.player.pause()
        self._search, self._goal, self.notice = search, goal, ""

    def _search_event(self, goal: AtEvent, *, forward: bool) -> Iterator[int | None]:
        at_ms = self.player.position.at_ns // NS_PER_MS
        while self.overview_share < 1.0:
            # `work` goes on reading between the steps of a search.
            yield None
        events = self.event_log.events()
        times_ms = [event.time_ms for event in events]
        # The whole millisecond of the position counts as passed.
        found = events[bisect_right(times_ms, at_ms) :] if forward else events[: bisect_left(times_ms, at_ms)]
        for event in found if forward else reversed(found):
            if goal.kind in {None, event.kind} and goal.of in f"{event.replica} {event.text}":
                yield event.time_ms * NS_PER_MS + NS_PER_MS - 1 if forward else event.time_ms * NS_PER_MS
                return

    # -- the feed ------------------------------------------------------------------------------------------

    async def __call__(self, show: Show) -> None:
        """Show views until cancelled."""
        shown: tuple[object, ...] = ()
        checked_s = self._clock_s()
        while True:
            self.work(for_s=WORK_S)
            if self._clock_s() - checked_s >= GROWTH_S:
                checked_s = self._clock_s()
                self.check_growth()
            state = (self.player.position, self.overview_share, self._goal, self.notice)
            if state != shown:
                shown = state
                show(self.view())
            await trio.sleep(FRAME_S)

    def work(self, *, for_s: float) -> bool:
        """Read more and continue a search for about `for_s`; returns whether more is left."""
        until_s = time.perf_counter() + for_s
        while self._work is not None or self._search is not None:
            if self._work is not None and next(self._work, _DONE) is _DONE:
                self._work = None
            if self._search is not None:
                self._continue_search()
            if time.perf_counter() >= until_s:
                break
        return self._work is not None or self._search is not None

    def _continue_search(self) -> None:
        assert self._search is not None
        found = next(self._search, _DONE)
        if found is _DONE:
            notice = f"not found: {self._goal}"
            self.stop_search()
            self.notice = notice
        elif isinstance(found, int):
            self.stop_search()
            self.player.jump(found)


_DONE = object()

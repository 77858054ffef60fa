"""The source of a replay's views: what the live feed is for nodes that run now.

`ReplaySource(...)` is a `ViewFeed` and a `trioha_monitor.playback.Playback`: called with `show`, it shows the
view of the moment at which its player stands, again and again until it is cancelled. What a screen does with
keys are its methods; they return at once and are called in the feed's thread. Between two views it passes
more of the sessions (`Overview.work`), goes on with a search, and now and then looks whether the sessions
have grown.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

import trio

from trioha.recording.reader import Damage
from trioha_monitor.playback import PlaybackPosition, PlaybackState, Player
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import NS_PER_MS, ReplayTimeline
from trioha_monitor.replay.search import AtEvent, AtTime, parse_seek, search_age, search_lag
from trioha_monitor.replay.state import State
from trioha_monitor.series import Series
from trioha_monitor.view import ClusterView, EventKind, Show

FRAME_S = 0.1
"""Pause between two looks at the player."""
WORK_S = 0.02
"""Longest time between two looks that goes into the overview or a search; one chunk at least."""
GROWTH_S = 1.0
"""Pause between two looks whether sessions have grown."""


class ReplaySource:
    """Recorded sessions as a source of views, with a player.

    `clock_s` is the monotonic clock that playing goes by.
    """

    def __init__(self, timeline: ReplayTimeline, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._timeline = timeline
        self._clock_s = clock_s
        self._overview = Overview(timeline)
        self._work: Iterator[None] | None = self._overview.work()
        self._state = State(timeline, self._overview)
        self._hunt: Iterator[int | None] | None = None
        self._hunted = ""
        self._grew = False
        self._lag: Series | None = None
        self._lag_share = 0.0
        self.player = Player(timeline.start_ns, max(timeline.start_ns, timeline.end_ns), clock_s=clock_s)
        """Plays, pauses, jumps, turns: call its methods as keys come."""
        self.notice = ""
        """What the last search came to, for the status line; empty if there is nothing to say."""

    # -- what is there -------------------------------------------------------------------------------------

    @property
    def position(self) -> PlaybackPosition:
        """Where the replay stands and how it moves."""
        return self.player.position

    @property
    def names(self) -> tuple[str, ...]:
        """The sessions, by their folders."""
        return tuple(run.name for run in self._timeline.runs)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What is known to be unreadable by now."""
        return tuple(one for run in self._timeline.runs for one in run.reader.damage)

    @property
    def overview_share(self) -> float:
        """How much was passed for lag, ticks and histories, 0 to 1; 1 when they are exact."""
        return self._overview.share

    def state(self) -> PlaybackState:
        """Where it stands, for the screens."""
        position = self.player.position
        return PlaybackState(
            start_ms=position.start_ns // NS_PER_MS,
            end_ms=position.end_ns // NS_PER_MS,
            time_ms=position.at_ns // NS_PER_MS,
            speed=position.speed,
            is_backward=position.is_reverse,
            is_playing=position.is_playing,
            goal=self._hunted,
            note=self.notice,
            lag=self.lag_whole(),
            ticks=self._overview.ticks(),
        )

    def view(self) -> ClusterView:
        """The view of the moment at which the player stands. May read the disk for some milliseconds."""
        return self.view_at(self.player.position.at_ns)

    def view_at(self, at_ns: int) -> ClusterView:
        """The view of any moment, nanoseconds since 1970."""
        return self._state.view(at_ns, is_growing=self._grew and at_ns >= self._timeline.end_ns)

    def lag_whole(self) -> Series:
        """Worst lag in bytes over the whole session; the same object until a good deal more is known."""
        share = self._overview.share
        if self._lag is None or share - self._lag_share >= 0.05 or (share == 1.0 != self._lag_share):
            self._lag, self._lag_share = self._overview.lag_whole(), share
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
        """Play the other way."""
        self.player.turn()

    def step(self, steps: int) -> None:
        """Stand still so many intervals of 0.1 s farther, or back if negative."""
        self.stop_search()
        self.player.step(steps)

    def seek(self, time_ms: int) -> None:
        """Go to the end of a millisecond, on the axis of `ClusterView.time_ms`."""
        self.stop_search()
        self.player.jump(time_ms * NS_PER_MS + NS_PER_MS - 1)

    def seek_event(self, steps: int) -> None:
        """Go to the next (1) or previous (-1) event."""
        if steps > 0:
            self.next_event()
        else:
            self.previous_event()

    def run_until(self, condition: str) -> None:
        """As `go_until`."""
        self.go_until(condition)

    def next_event(self, kind: EventKind | None = None) -> None:
        """Go to the next event (of a kind)."""
        self._begin(self._search_event(AtEvent(kind), forward=True), "the next event")

    def previous_event(self, kind: EventKind | None = None) -> None:
        """Go to the event before (of a kind)."""
        self._begin(self._search_event(AtEvent(kind), forward=False), "the event before")

    def step_record(self, steps: int) -> None:
        """Stand still at the next recorded event of any session, or at that before; one, if not 0."""
        self.player.pause()
        at_ns = self.player.position.at_ns
        times = []
        for run in self._timeline.runs:
            position = run.position_at(at_ns if steps > 0 else at_ns - 1)
            record = run.reader.record_from(position) if steps > 0 else run.reader.record_before(position)
            if record is not None:
                times.append(run.wall_of(int(record["ts_ns"])))
        if times:
            self.player.jump(min(times) if steps > 0 else max(times))

    def go_until(self, text: str) -> None:
        """Go to where `text` says (`trioha_monitor.replay.search`), as fast as possible.

        Backward, if the player is turned. Raises UntilError.
        """
        position = self.player.position
        until = parse_seek(text, now_ns=position.at_ns, start_ns=position.start_ns, end_ns=position.end_ns)
        forward = not position.is_reverse
        if isinstance(until, AtTime):
            self.stop_search()
            self.player.jump(until.at_ns)
        elif isinstance(until, AtEvent):
            self._begin(self._search_event(until, forward=forward), text)
        elif until.is_time:
            end_ns = position.end_ns if forward else position.start_ns
            hunt = search_age(
                self._state, self._overview, until, from_ns=position.at_ns, end_ns=end_ns, forward=forward
            )
            self._begin(hunt, text)
        else:
            self._begin(search_lag(self._timeline, until, from_ns=position.at_ns, forward=forward), text)

    def stop_search(self) -> None:
        """Look no further."""
        self._hunt, self._hunted, self.notice = None, "", ""

    def _begin(self, hunt: Iterator[int | None], what: str) -> None:
        self.player.pause()
        self._hunt, self._hunted, self.notice = hunt, what, ""

    def _search_event(self, until: AtEvent, *, forward: bool) -> Iterator[int | None]:
        at_ms = self.player.position.at_ns // NS_PER_MS
        while not self._overview.is_complete:
            # The work goes on beside it.
            yield None
        events = self._overview.events()
        times_ms = [event.time_ms for event in events]
        # An event counts as passed for the whole of its millisecond.
        found = events[bisect_right(times_ms, at_ms) :] if forward else events[: bisect_left(times_ms, at_ms)]
        for event in found if forward else reversed(found):
            if until.kind in {None, event.kind} and until.of in f"{event.replica} {event.text}":
                yield event.time_ms * NS_PER_MS + NS_PER_MS - 1 if forward else event.time_ms * NS_PER_MS
                return

    # -- the feed ------------------------------------------------------------------------------------------

    async def __call__(self, show: Show) -> None:
        """Show views until cancelled."""
        shown: tuple[object, ...] = ()
        looked_s = self._clock_s()
        while True:
            self.work(for_s=WORK_S)
            if self._clock_s() - looked_s >= GROWTH_S:
                looked_s = self._clock_s()
                self.look_for_growth()
            state = (self.player.position, self._overview.share, self._hunted, self.notice)
            if state != shown:
                shown = state
                show(self.view())
            await trio.sleep(FRAME_S)

    def work(self, *, for_s: float) -> bool:
        """Pass more of the sessions, and go on with a search, for about that time; whether there is more."""
        until_s = time.perf_counter() + for_s
        while self._work is not None or self._hunt is not None:
            if self._work is not None and next(self._work, _DONE) is _DONE:
                self._work = None
            if self._hunt is not None and (self._work is None or self._overview.is_complete or self._is_lag):
                self._go_on()
            if time.perf_counter() >= until_s:
                break
        return self._work is not None or self._hunt is not None

    @property
    def _is_lag(self) -> bool:
        return self._hunted.lower().startswith("lag")

    def _go_on(self) -> None:
        assert self._hunt is not None
        found = next(self._hunt, _DONE)
        if found is _DONE:
            notice = f"not found: {self._hunted}"
            self.stop_search()
            self.notice = notice
        elif isinstance(found, int):
            self.stop_search()
            self.player.jump(found)

    def look_for_growth(self) -> None:
        """Take in what was recorded since; a player at the end stays at the end."""
        if not self._timeline.refresh():
            self._grew = False
            return
        self._grew = True
        self._lag = None
        at_end = self.player.position.at_ns == self.player.position.end_ns
        self.player.extend(self._timeline.end_ns)
        if at_end:
            self.player.jump(self._timeline.end_ns)
        if self._work is None:
            self._work = self._overview.work()


def open_replay(
    paths: list[Path] | list[str], *, clock_s: Callable[[], float] = time.monotonic
) -> ReplaySource:
    """A source that replays the sessions at `paths`: session folders, or folders of them.

    Raises StoreError for a path that is neither, or a session that cannot be read.
    """
    return ReplaySource(ReplayTimeline.open(paths), clock_s=clock_s)


_DONE = object()

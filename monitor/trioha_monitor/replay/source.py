"""The source of a replay's views: what the live feed is for running nodes.

`ReplaySource` is a `ViewFeed` and a `trioha_monitor.playback.Playback`: called with `show`, it shows the view
of its player's position until it is cancelled. The screen steers it by its methods, which return at once
and are called in the feed's thread. Between two views it reads more of the sessions (`Overview.work`),
continues a search, and checks whether the sessions have grown.

Everything of a view but histories and events is a function of the moment alone. Verdicts are those of
`trioha.replica_verdict.judge` for the moment, without debounce: with it, a view would depend on the views
before it.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from trioha_monitor.playback import PlaybackPosition, PlaybackState, Player
from trioha_monitor.replay.moments import Moments
from trioha_monitor.replay.node_views import NodeViews
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.recorded_control import RecordedControls
from trioha_monitor.replay.replay_timeline import NS_PER_MS, ReplayTimeline
from trioha_monitor.replay.replica_views import ReplicaViews
from trioha_monitor.replay.search import AtEvent, AtTime, parse_seek, search_age, search_lag
from trioha_monitor.series import Series
from trioha_monitor.view import ClusterView, EventKind, NodeView, ReplicaView, Show
from trioha_sessions.segments import Damage

FRAME_S: Final = 0.1
"""Pause between two checks of the player's position."""
WORK_S: Final = 0.02
"""Time between two checks for the overview or a search; at least one chunk is read."""
GROWTH_S: Final = 1.0
"""Pause between two checks whether sessions have grown."""
LAG_SHARE_STEP: Final = 0.05
"""The lag under the axis is computed again when so much more of the sessions has been read, 0 to 1."""
REPLICAS_MAX: Final = 256
"""Replicas of one node that are shown."""


class ReplaySource:
    """Recorded sessions as a source of views, with a player.

    `clock_s` is the monotonic clock that the player uses.
    """

    def __init__(self, timeline: ReplayTimeline, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._use(timeline)
        self._search: Iterator[int | None] | None = None
        self._goal = ""
        self._grew = False
        self._lag: Series | None = None
        self._lag_share = 0.0
        self.player = Player(timeline.start_ns, max(timeline.start_ns, timeline.end_ns), clock_s=clock_s)
        """The position and how it moves; keys call its methods."""
        self.notice = ""
        """Result of the last search, for the status line; empty if there is nothing to say."""

    def _use(self, timeline: ReplayTimeline) -> None:
        """Replay the sessions of `timeline`: they are read from their start."""
        self._timeline = timeline
        self._moments = Moments(timeline)
        self._overview = Overview(timeline, self._moments)
        self._work: Iterator[None] | None = self._overview.work()
        controls = RecordedControls()
        self._nodes = NodeViews(self._moments, self._overview, controls)
        self._replicas = ReplicaViews(timeline, self._moments, self._overview, controls)

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def position(self) -> PlaybackPosition:
        """Position of the replay and how it moves."""
        return self.player.position

    @property
    def names(self) -> tuple[str, ...]:
        """The sessions, by their folders."""
        return tuple(run.name for run in self._timeline.runs)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Unreadable parts that are known so far."""
        return tuple(one for run in self._timeline.runs for one in run.reader.damage)

    @property
    def overview_share(self) -> float:
        """How much has been read for lag, ticks and histories, 0 to 1; at 1 they are exact."""
        return self._overview.share

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
            ticks=self._overview.event_log.ticks(),
        )

    def view(self) -> ClusterView:
        """The view of the player's position. May read the disk for some milliseconds."""
        return self.view_at(self.player.position.at_ns)

    def view_at(self, at_ns: int) -> ClusterView:
        """The view of any moment, nanoseconds since 1970."""
        # The sessions are still being written, and this is their end.
        is_growing = self._grew and at_ns >= self._timeline.end_ns
        nodes: list[NodeView] = []
        replicas: list[ReplicaView] = []
        for node in self._timeline.nodes:
            run = node.run_at(at_ns)
            if at_ns < run.start_ns:
                nodes.append(NodeView(node.key, reason="its recording begins later"))
                continue
            moment = self._moments.at(run, at_ns)
            hidden = 0
            views: list[ReplicaView] = []
            if run.is_slave:
                # A node that waits for a role has no master.
                if not run.is_waiting:
                    views = self._replicas.lone_slave(node, moment)
            elif not self._timeline.is_deposed(run, at_ns):
                rows = self._moments.rows(moment)
                views = [self._replicas.view(node, moment, row) for row in rows[:REPLICAS_MAX]]
                hidden = len(rows) - len(views)
            replicas += views
            nodes.append(self._nodes.view(node, moment, views, hidden=hidden, is_growing=is_growing))
        return ClusterView(
            time_ms=at_ns // NS_PER_MS,
            nodes=tuple(nodes),
            replicas=tuple(replicas),
            events=self._overview.event_log.until(at_ns),
            interval_s=0.0,
            is_live=False,
        )

    def lag_whole(self) -> Series:
        """Worst lag in bytes over all sessions; the same object until `LAG_SHARE_STEP` more is known."""
        share = self._overview.share
        if (
            self._lag is None
            or share - self._lag_share >= LAG_SHARE_STEP
            or (share == 1.0 != self._lag_share)
        ):
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
        """Reverse the direction."""
        self.player.turn()

    def step(self, steps: int) -> None:
        """Pause and move by intervals of 0.1 s, back if negative."""
        self.stop_search()
        self.player.step(steps)

    def seek(self, time_ms: int) -> None:
        """Go to the end of a millisecond, on the axis of `ClusterView.time_ms`."""
        self.stop_search()
        self.player.jump(time_ms * NS_PER_MS + NS_PER_MS - 1)

    def seek_event(self, steps: int, kind: EventKind | None = None) -> None:
        """Go to the next (1) or previous (-1) event (of a kind)."""
        forward = steps > 0
        goal = "the next event" if forward else "the event before"
        self._start_search(self._search_event(AtEvent(kind), forward=forward), goal)

    def run_until(self, condition: str) -> None:
        """Go to where a seek expression (`trioha_monitor.replay.search`) says, as fast as possible.

        Backward if the player is reversed. Raises SeekError or MomentError.
        """
        position = self.player.position
        goal = parse_seek(
            condition, now_ns=position.at_ns, start_ns=position.start_ns, end_ns=position.end_ns
        )
        forward = not position.is_reverse
        if isinstance(goal, AtTime):
            self.stop_search()
            self.player.jump(goal.at_ns)
        elif isinstance(goal, AtEvent):
            self._start_search(self._search_event(goal, forward=forward), condition)
        elif goal.is_time:
            end_ns = position.end_ns if forward else position.start_ns
            search = search_age(
                self._moments, self._overview, goal, from_ns=position.at_ns, end_ns=end_ns, forward=forward
            )
            self._start_search(search, condition)
        else:
            search = search_lag(self._timeline, self._overview, goal, from_ns=position.at_ns, forward=forward)
            self._start_search(search, condition)

    def stop_search(self) -> None:
        """End a search."""
        self._search, self._goal, self.notice = None, "", ""

    def _start_search(self, search: Iterator[int | None], goal: str) -> None:
        self.player.pause()
        self._search, self._goal, self.notice = search, goal, ""

    def _search_event(self, goal: AtEvent, *, forward: bool) -> Iterator[int | None]:
        at_ms = self.player.position.at_ns // NS_PER_MS
        while not self._overview.is_complete:
            # `work` continues the overview between the steps of a search.
            yield None
        events = self._overview.event_log.events()
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
            state = (self.player.position, self._overview.share, self._goal, self.notice)
            if state != shown:
                shown = state
                show(self.view())
            await trio.sleep(FRAME_S)

    def work(self, *, for_s: float) -> bool:
        """Read more of the sessions and continue a search for about `for_s`; returns whether more is left."""
        until_s = time.perf_counter() + for_s
        while self._work is not None or self._search is not None:
            if self._work is not None and next(self._work, _DONE) is _DONE:
                self._work = None
            if self._search is not None and (self._work is None or self._searches_lag):
                self._continue_search()
            if time.perf_counter() >= until_s:
                break
        return self._work is not None or self._search is not None

    @property
    def _searches_lag(self) -> bool:
        return self._goal.lower().startswith("lag")

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

    def check_growth(self) -> None:
        """Read records and sessions that were added; a player at the end stays at the end."""
        larger = self._timeline.with_new_sessions()
        if larger is not None:
            self.stop_search()
            self._use(larger)
        self._grew = self._timeline.refresh() or larger is not None
        if not self._grew:
            return
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

    Raises StoreError for a path that is neither, and for a session that cannot be read.
    """
    return ReplaySource(ReplayTimeline.open(paths), clock_s=clock_s)


_DONE = object()

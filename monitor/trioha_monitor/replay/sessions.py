"""Replay of sessions that nodes recorded of themselves: `Replay` with the views of any moment.

Everything of a view but histories and events is a function of the moment alone. Verdicts are those of
`trioha.replica_verdict.judge` for the moment, without debounce: with it, a view would depend on the views
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from trioha_monitor.replay.event_log import EventLog
from trioha_monitor.replay.node_views import NodeViews
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.played import Replay
from trioha_monitor.replay.recorded_control import RecordedControls
from trioha_monitor.replay.replay_timeline import NS_PER_MS, ReplayTimeline
from trioha_monitor.replay.replica_views import ReplicaViews
from trioha_monitor.replay.search import AtLag, search_age, search_lag
from trioha_monitor.replay.session_states import SessionStates
from trioha_monitor.series import Series
from trioha_monitor.view import ClusterView, NodeView, ReplicaView
from trioha_sessions.segments import Damage

REPLICAS_MAX: Final = 256
"""Replicas of one node that are shown."""


class SessionReplay(Replay):
    """Recorded sessions of nodes as a source of views, with a player."""

    def __init__(self, timeline: ReplayTimeline, *, clock_s: Callable[[], float]) -> None:
        super().__init__(timeline.start_ns, timeline.end_ns, clock_s=clock_s)
        self._use(timeline)
        self._grew = False

    def _use(self, timeline: ReplayTimeline) -> None:
        """Replay the sessions of `timeline`: they are read from their start."""
        self._timeline = timeline
        self._states = SessionStates(timeline)
        self._overview = Overview(timeline, self._states)
        self._work = self._overview.work()
        controls = RecordedControls()
        self._nodes = NodeViews(self._states, self._overview, controls)
        self._replicas = ReplicaViews(timeline, self._states, self._overview, controls)

    @property
    def names(self) -> tuple[str, ...]:
        """The sessions, by their folders."""
        return tuple(run.name for run in self._timeline.runs)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Unreadable parts that are known so far."""
        return tuple(one for run in self._timeline.runs for one in run.reader.damage)

    @property
    def event_log(self) -> EventLog:
        """All events that have been read."""
        return self._overview.event_log

    @property
    def overview_share(self) -> float:
        """How much has been read for lag, ticks and histories, 0 to 1; at 1 they are exact."""
        return self._overview.share

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
            session = self._states.at(run, at_ns)
            hidden = 0
            views: list[ReplicaView] = []
            if run.is_slave:
                # A node that waits for a role has no master.
                if not run.is_waiting:
                    views = self._replicas.lone_slave(node, session)
            elif not self._timeline.is_deposed(run, at_ns):
                rows = self._states.rows(session)
                views = [self._replicas.view(node, session, row) for row in rows[:REPLICAS_MAX]]
                hidden = len(rows) - len(views)
            replicas += views
            nodes.append(self._nodes.view(node, session, views, hidden=hidden, is_growing=is_growing))
        return ClusterView(
            time_ms=at_ns // NS_PER_MS,
            nodes=tuple(nodes),
            replicas=tuple(replicas),
            events=self._overview.event_log.until(at_ns),
            interval_s=0.0,
            is_live=False,
        )

    def _worst_lag(self) -> Series:
        return self._overview.lag_whole()

    def _search_lag(self, goal: AtLag, *, from_ns: int, forward: bool) -> Iterator[int | None]:
        if not goal.is_time:
            return search_lag(self._timeline, self._overview, goal, from_ns=from_ns, forward=forward)
        end_ns = self.position.end_ns if forward else self.position.start_ns
        return search_age(self._states, self._overview, goal, from_ns=from_ns, end_ns=end_ns, forward=forward)

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

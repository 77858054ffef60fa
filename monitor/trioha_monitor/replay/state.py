"""The state of a replay at any moment, as the views that screens show.

Everything but histories and timeline is a function of the moment alone: where everything stood then
(`trioha.recording.session_reader`), and where it stood a little earlier for speeds. The verdict is that of
`trioha_monitor.verdict.judge` for the moment itself. There is no hysteresis in a replay: it would make what
is shown depend on how one came there.
"""

from __future__ import annotations

from typing import Final

from trioha_monitor.replay.moments import Moments
from trioha_monitor.replay.node_views import NodeViews
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import NS_PER_MS, ReplayTimeline
from trioha_monitor.replay.replica_views import ReplicaViews
from trioha_monitor.view import ClusterView, NodeView, ReplicaView

REPLICAS_MAX: Final = 256
"""Replicas of one node that are shown."""


class State:
    """Makes views of any moment of `timeline`. Used by one thread at a time; may read the disk."""

    def __init__(self, timeline: ReplayTimeline, overview: Overview) -> None:
        self._timeline = timeline
        self._overview = overview
        self._moments = Moments(timeline)
        self._nodes = NodeViews(self._moments, overview)
        self._replicas = ReplicaViews(timeline, self._moments, overview)

    def view(self, at_ns: int, *, is_growing: bool = False) -> ClusterView:
        """Everything at `at_ns`. `is_growing`: the sessions are still written, and this is their end."""
        nodes: list[NodeView] = []
        replicas: list[ReplicaView] = []
        for node in self._timeline.nodes:
            run = node.run_at(at_ns)
            if at_ns < run.start_ns:
                nodes.append(NodeView(node.key, reason="its recording begins later"))
                continue
            moment = self._moments.at(run, at_ns)
            hidden = 0
            if run.is_slave:
                views = self._replicas.lone_slave(node, moment)
            else:
                rows = self._moments.rows(moment)
                views = [self._replicas.view(node, moment, row) for row in rows[:REPLICAS_MAX]]
                hidden = len(rows) - len(views)
            replicas += views
            nodes.append(self._nodes.view(node, moment, views, hidden=hidden, is_growing=is_growing))
        return ClusterView(
            time_ms=at_ns // NS_PER_MS,
            nodes=tuple(nodes),
            replicas=tuple(replicas),
            events=self._overview.events_until(at_ns),
            interval_s=0.0,
            is_live=False,
        )

    def ages_ns(self, at_ns: int, *, of: str = "") -> dict[tuple[int, int], int]:
        """As `Moments.ages_ns`."""
        return self._moments.ages_ns(at_ns, of=of)

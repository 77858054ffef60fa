"""Replay of recorded sessions: the same views as the live feed's, of any moment.

`open_replay(paths)` returns a `ReplaySource`, which is a `trioha_monitor.view.ViewFeed` and a
`trioha_monitor.playback.Playback`. No module in here imports Textual.

`replay_timeline` puts sessions on one axis, with `clock_offsets`; `moments` has the state of a session at a
moment, `recorded_control` that of controller mode; `node_views` and `replica_views` make views of it;
`overview` reads everything once for `histories` and `timeline_events`; `search` finds where to go; `source`
puts them together.
"""

from __future__ import annotations

from trioha_monitor.replay.source import ReplaySource, open_replay

__all__ = ["ReplaySource", "open_replay"]

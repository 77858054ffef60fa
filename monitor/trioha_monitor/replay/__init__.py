"""Replay of recordings: the same views as the live source's, of any moment.

`open_replay(paths)` returns a `Replay`, which is a `trioha_monitor.view.ViewFeed` and a
`trioha_monitor.playback.Playback`. No module in here imports Textual.

`played` is what all replays have in common. `answers` replays what a monitor saw. `sessions` replays what
nodes recorded of themselves: `replay_timeline` puts sessions on one axis, with `clock_offsets`;
`session_states` has the state of a session at a moment, `recorded_control` that of controller mode;
`node_views` and `replica_views` make views of it; `overview` reads everything once for `histories` and
`timeline_events`; `search` finds where to go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trioha.errors import StoreError
from trioha_monitor.replay.answers import AnswerReplay
from trioha_monitor.replay.played import Replay
from trioha_monitor.replay.replay_timeline import ReplayTimeline
from trioha_monitor.replay.sessions import SessionReplay

__all__ = ["Replay", "open_replay"]


def open_replay(paths: Sequence[Path | str], *, clock_s: Callable[[], float] = time.monotonic) -> Replay:
    """A source that replays a monitor's recording, a file; or sessions: their folders, or folders of them.

    Raises StoreError for a path that is neither, and for a recording that cannot be read.
    """
    recordings = [path for path in map(Path, paths) if path.is_file()]
    if not recordings:
        return SessionReplay(ReplayTimeline.open(paths), clock_s=clock_s)
    if len(paths) > 1:
        hint = "replay it alone"
        raise StoreError("a monitor's recording is not shown beside others", path=recordings[0], hint=hint)
    return AnswerReplay(recordings[0], clock_s=clock_s)

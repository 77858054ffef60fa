"""Recorded sessions, shown again: the same views as the live feed's, of any moment.

`open_replay(paths)` gives a `ReplaySource`. It is a `trioha_monitor.view.ViewFeed` as the live feed is:
in the feed's trio `await source(show)` shows a `ClusterView` whenever there is a new one, until
cancelled. And it is a `trioha_monitor.playback.Playback`: `state`, `toggle`, `change_speed`, `turn`,
`step`, `seek`, `seek_event` and `run_until` (`until` has the language of conditions) are called in the
same thread, at any time. Beyond that protocol there are `step_record` (one recorded event), `names` and
`damage`. Lag and ticks of the state become exact while it runs: `overview_share`.

`MonitorRecording(directory)` is the `trioha_monitor.playback.Recording` behind the key `r`.

`timeline` puts sessions on one axis, `state` makes the views, `overview` passes everything once, `player`
moves, `search` looks for the next lag, `capture` records. None of it imports Textual.
"""

from __future__ import annotations

from trioha_monitor.capture import MonitorRecording
from trioha_monitor.replay.source import ReplaySource, open_replay

__all__ = ["MonitorRecording", "ReplaySource", "open_replay"]

"""Recorded sessions, shown again: the same views as the live feed's, of any moment.

`open_replay(paths)` gives a `ReplaySource`, which is a `trioha_monitor.view.ViewFeed` as the live feed is:
`await source(show)` in the feed's trio shows a `ClusterView` whenever there is a new one, until cancelled.
Screens call, in the same thread and at any time:

- `source.player`: `toggle`, `play`, `pause`, `change_speed(+1 or -1)`, `turn` (reverse), `step(intervals)`,
  `jump(ns)`, `jump_to_share(0 to 1)`;
- `source.bearing`, where it stands: `at_ns`, `start_ns`, `end_ns`, `share`, `speed`, `is_playing`,
  `is_reverse`;
- `source.next_event()`, `previous_event()`, `step_record(+1 or -1)`;
- `source.go_until(text)`: jump, or as fast as possible until (`until` has the language; raises UntilError,
  whose text can be shown); `searching` says what is being looked for, `stop_search()` ends it, `notice` says
  that nothing was found;
- `source.lag_columns(n)` and `ticks()` for the time axis; they become exact while it runs: `overview_share`;
- `source.names`, `damage`: which sessions, and what of them cannot be read.

`reel` puts sessions on one axis, `state` makes the views, `overview` passes everything once, `player` moves,
`hunt` searches. None of it imports Textual.
"""

from __future__ import annotations

from trioha_monitor.replay.source import ReplaySource, open_replay

__all__ = ["ReplaySource", "open_replay"]

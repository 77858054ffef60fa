"""The plan of a replay: sessions, and the ranges of their records that are aggregated in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from trioha.archive.session_paths import find_recordings
from trioha.recording.reader import Session, open_session
from trioha_analysis.parts import RANGE_RECORDS, Run, runs_of
from trioha_analysis.session_replay import CURVE_STEPS
from trioha_analysis.state_at import LastSeen, last_seen
from trioha_sessions.reconnects import LOST_NS
from trioha_sessions.records import read_segment
from trioha_sessions.segments import Segments, read_segments
from trioha_sessions.time_series import TimeGrid

SECONDS_MAX: Final = 86_400
"""Longest session, in s, whose time series have a step for each second; those of longer ones are coarser."""
_STEPS_NS: Final = (
    *(10**6 * factor for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(10**9 * factor for factor in (1, 2, 5, 10, 30, 60, 300, 600, 3600)),
)


@frozen(eq=False)
class ReplayPlan:
    """Sessions, split into ranges that are aggregated in parallel."""

    sessions: tuple[Session, ...]
    segments: tuple[Segments, ...]
    """Of each session."""
    grids: tuple[TimeGrid, ...]
    """Of each session."""
    range_records: int
    """Records that are aggregated at a time."""
    seen: tuple[Sequence[LastSeen], ...]
    """Of each session the replicas that its master had when its recording before ended."""

    @property
    def ranges(self) -> int:
        """Number of ranges of all sessions."""
        return sum(
            -(-segment.records // self.range_records) for found in self.segments for segment in found.segments
        )

    def runs(self, *, run_ranges: int = 1) -> Iterator[Run]:
        """Runs of at most `run_ranges` ranges that cover all sessions, one session after the other."""
        for index, session in enumerate(self.sessions):
            yield from runs_of(
                index,
                session.path,
                self.segments[index].segments,
                self.grids[index],
                range_records=self.range_records,
                run_ranges=run_ranges,
            )


def plan_replay(sessions: Iterable[str | Path], *, range_records: int = RANGE_RECORDS) -> ReplayPlan:
    """Open `sessions` (session folders, folders of them, archives) and list their segments.

    Raises StoreError or ArchiveError if a path is not a session.
    """
    opened = tuple(open_session(path) for path in find_recordings(sessions))
    found = tuple(read_segments(session) for session in opened)
    grids = tuple(_grid(session, segments) for session, segments in zip(opened, found, strict=True))
    return ReplayPlan(opened, found, grids, range_records, _seen_before(opened))


def _seen_before(sessions: Sequence[Session]) -> tuple[Sequence[LastSeen], ...]:
    """Of each session the replicas that its master had when its recording before ended, less than `LOST_NS`
    before this one began."""
    latest: dict[tuple[str, str, int], Session] = {}
    seen: dict[Path, Sequence[LastSeen]] = {}
    for session in sorted(sessions, key=lambda one: one.wall_ns):
        node = session.identity
        whose = (node.cluster_name, node.broker_name, node.broker_id)
        before = latest.get(whose)
        latest[whose] = session
        if before is not None and not (before.is_slave or session.is_slave):
            seen[session.path] = [
                one for one in last_seen(before) if 0 <= session.wall_ns - one.lost_wall_ns < LOST_NS
            ]
    return tuple(seen.get(session.path, ()) for session in sessions)


def _grid(session: Session, segments: Segments) -> TimeGrid:
    """Steps from the session's first record to its last readable one."""
    first_ns = segments.segments[0].base_ts_ns if segments.segments else 0
    last_ns = first_ns
    for segment in reversed(segments.segments):
        records = read_segment(session, segment, first=max(0, segment.records - 1), count=1).array
        if len(records):
            last_ns = max(first_ns, int(records["ts_ns"][-1]))
            break
    return series_grid(first_ns, last_ns, wall_ns=session.wall_of(first_ns))


def series_grid(first_ns: int, last_ns: int, *, wall_ns: int) -> TimeGrid:
    """Steps that divide the seconds of the wall clock, which was `wall_ns` at `first_ns`."""
    span_ns = last_ns - first_ns
    wanted_ns = max(span_ns // CURVE_STEPS, 1)
    if wanted_ns > 10**9:
        # Tables have a row for each second, within a limit.
        wanted_ns = max(10**9, span_ns // SECONDS_MAX)
    step_ns = next((step for step in _STEPS_NS if step >= wanted_ns), _STEPS_NS[-1])
    origin_ns = first_ns - wall_ns % step_ns
    return TimeGrid(origin_ns, step_ns, (last_ns - origin_ns) // step_ns + 1)

"""Replay of a monitor's recording: its observations make the state that the live source makes of them.

Theory of operation. A view of a moment needs the state after all observations up to it. A cursor goes forward
through the blocks of the recording, and makes the views while time goes on. Meanwhile `_scan` goes through
all of them once, for events and the lag under the axis, and leaves checkpoints: copies of the state, at equal
distances, of which every second one is dropped when there are too many. To go back, or far ahead, the cursor
goes on from a copy of the checkpoint before. A moment that has not been scanned is searched: it is shown when
the scan is there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import define, evolve

from trioha.errors import RemoteProtocolError, StoreError
from trioha.replica_verdict import Verdict
from trioha_monitor.answer_file import Block, BlockReader
from trioha_monitor.answer_lines import decode, decode_start
from trioha_monitor.faults import BOUNDARY
from trioha_monitor.observations import Gap, Observation
from trioha_monitor.replay.event_log import EventLog
from trioha_monitor.replay.played import NS_PER_MS, NS_PER_S, Replay
from trioha_monitor.replay.search import AtLag
from trioha_monitor.series import BUCKETS_MAX, Series, SeriesRecorder, bucket_ms_for
from trioha_monitor.view import ClusterView
from trioha_monitor.watched import Start, Watched

CHECKPOINTS_MAX: Final = 128
"""Checkpoints of the scan."""
RECENT_MAX: Final = 16
"""Checkpoints before a moment to which the cursor went back: time may run backward."""
DECODED_MAX: Final = 8
"""Blocks whose observations are kept: the last ones that were used."""


class AnswerReader:
    """The observations of a recording, block by block."""

    def __init__(self, path: Path) -> None:
        """Raises StoreError for a file that is not a recording of the monitor."""
        self._file = BlockReader(path)
        self._decoded: OrderedDict[int, list[Observation]] = OrderedDict()
        try:
            self.start: Start = decode_start((self._file.lines(self.blocks[0]) or [b""])[0])
        except ValueError as error:
            raise StoreError(f"not a recording of the monitor: {error}", path=path) from error

    @property
    def blocks(self) -> list[Block]:
        """The blocks that are known, at least one."""
        return self._file.blocks

    @property
    def end_ms(self) -> int:
        """Time of the last observation."""
        return self.blocks[-1].last_ms

    def refresh(self) -> bool:
        """Find blocks that were added; returns whether there are any."""
        with suppress(StoreError):
            return self._file.refresh()
        return False

    def block_at(self, at_ms: int) -> int:
        """Number of the last block that begins at `at_ms` or before; 0 without one."""
        return max(0, bisect_right(self.blocks, at_ms, key=_first_ms) - 1)

    def observations(self, number: int) -> list[Observation]:
        """The observations of a block, in the order of time; what cannot be read is a `Gap`."""
        found = self._decoded.get(number)
        if found is None:
            found = self._decoded[number] = list(self._decode(number))
            while len(self._decoded) > DECODED_MAX:
                self._decoded.popitem(last=False)
        self._decoded.move_to_end(number)
        return found

    def _decode(self, number: int) -> Iterator[Observation]:
        block = self.blocks[number]
        at_ms = block.first_ms
        lines: list[bytes] = []
        done = 0
        try:
            lines = self._file.lines(block)
            for done, line in enumerate(lines):
                if number == done == 0:
                    continue
                seen = decode(line)
                if seen is None:
                    continue
                if number or seen.at_ms >= block.first_ms:
                    # A recording begins with answers that are older than it; all others are in order.
                    at_ms = min(max(at_ms, seen.at_ms), block.last_ms)
                    seen = seen if seen.at_ms == at_ms else evolve(seen, at_ms=at_ms)
                yield seen
        except ValueError as error:
            yield Gap(max(at_ms, block.first_ms), max(0, block.lines - done), str(error))
        if number == len(self.blocks) - 1 and self._file.damage:
            yield Gap(block.last_ms, 0, self._file.damage)


@define(eq=False)
class _Cursor:
    """A state, and how far it is in the recording."""

    reader: AnswerReader
    state: Watched
    block: int = 0
    place: int = 0
    """Observations of the block that the state has."""
    time_ms: int = 0
    """Time of the last of them."""

    def step(self, *, until_ms: int) -> Observation | None:
        """Handle the next observation of the block, if it is not later than `until_ms`; else None."""
        seen = self.reader.observations(self.block)
        if self.place >= len(seen):
            return None
        one = seen[self.place]
        if one.at_ms > until_ms:
            return None
        self.place += 1
        self.time_ms = max(self.time_ms, one.at_ms)
        # What the live source does: an impossible answer is not kept, a fault of this program is logged.
        with BOUNDARY.around("recording"), suppress(RemoteProtocolError):
            self.state.observe(one)
        return one

    def enter_next(self, *, until_ms: int) -> bool:
        """Go on to the next block after the last observation of one; returns whether it begins until then."""
        blocks, following = self.reader.blocks, self.block + 1
        if (
            self.place < len(self.reader.observations(self.block))
            or following >= len(blocks)
            or blocks[following].first_ms > until_ms
        ):
            return False
        self.block, self.place = following, 0
        return True


class AnswerReplay(Replay):
    """A monitor's recording as a source of views, with a player."""

    def __init__(self, path: Path, *, clock_s: Callable[[], float]) -> None:
        """Raises StoreError for a file that is not a recording of the monitor."""
        self._reader = AnswerReader(path)
        start = self._reader.start
        super().__init__(start.at_ms * NS_PER_MS, self._reader.end_ms * NS_PER_MS, clock_s=clock_s)
        self._checkpoints: dict[int, Watched] = {0: Watched(start)}
        """States before blocks, by the block."""
        self._spacing = 1
        """Blocks from one to the next."""
        self._recent: OrderedDict[int, Watched] = OrderedDict()
        """States before blocks to which the cursor went back."""
        self._cursor = self._cursor_at(0)
        self._scanned = self._cursor_at(0)
        self._scanned_blocks = 0
        self._event_log = EventLog()
        self._events = 0
        """Number of the last event that is in the log."""
        self._lags = self._lags_of(Series())
        self._work = self._scan()

    def _cursor_at(self, block: int) -> _Cursor:
        """A new cursor at the checkpoint before a block."""
        state = self._recent.get(block) or self._checkpoints[block]
        before_ms = self._reader.blocks[block - 1].last_ms if block else 0
        return _Cursor(self._reader, state.copy(), block, time_ms=before_ms)

    # -- views ---------------------------------------------------------------------------------------------

    def view_at(self, at_ns: int) -> ClusterView:
        """The view of any moment, nanoseconds since 1970. May read the disk for some milliseconds."""
        at_ms = max(at_ns // NS_PER_MS, self._reader.start.at_ms)
        self._move_cursor(at_ms)
        return evolve(self._cursor.state.view(at_ms), interval_s=0.0, is_live=False)

    def _move_cursor(self, at_ms: int) -> None:
        goal = self._reader.block_at(at_ms)
        nearest = max(block for block in (*self._checkpoints, *self._recent) if block <= goal)
        goes_back = self._cursor.time_ms > at_ms
        if goes_back or nearest > self._cursor.block + 1:
            self._cursor = self._cursor_at(nearest)
        cursor = self._cursor
        while True:
            while cursor.step(until_ms=at_ms) is not None:
                pass
            if not cursor.enter_next(until_ms=at_ms):
                return
            if goes_back and goal - cursor.block < RECENT_MAX:
                self._recent[cursor.block] = cursor.state.copy()
                while len(self._recent) > RECENT_MAX:
                    self._recent.popitem(last=False)

    # -- the scan ------------------------------------------------------------------------------------------

    @property
    def event_log(self) -> EventLog:
        """All events that have been read."""
        return self._event_log

    @property
    def overview_share(self) -> float:
        """How much has been read for lag, ticks and events, 0 to 1; at 1 they are exact."""
        return self._scanned_blocks / len(self._reader.blocks)

    def _scan(self) -> Iterator[None]:
        """Read all blocks that have not been read; yields after each."""
        cursor = self._scanned
        while self._scanned_blocks < len(self._reader.blocks):
            cursor.enter_next(until_ms=self._reader.end_ms)
            if cursor.block % self._spacing == 0 and cursor.block not in self._checkpoints:
                self._add_checkpoint(cursor)
            while (seen := cursor.step(until_ms=self._reader.end_ms)) is not None:
                self._add_lag(cursor.state, max(seen.at_ms, self._reader.start.at_ms))
            events = cursor.state.events()
            self._event_log.add(event for event in events if event.number > self._events)
            self._events = events[-1].number if events else 0
            self._scanned_blocks += 1
            yield

    def _add_checkpoint(self, cursor: _Cursor) -> None:
        self._checkpoints[cursor.block] = cursor.state.copy()
        if len(self._checkpoints) > CHECKPOINTS_MAX:
            self._spacing *= 2
            self._checkpoints = {
                block: state for block, state in self._checkpoints.items() if block % self._spacing == 0
            }

    def _add_lag(self, state: Watched, at_ms: int) -> None:
        lags = [lag for lag in state.lags() if lag.verdict is not Verdict.OBSERVER]
        if lags:
            worst = max(lag.lag_bytes for lag in lags)
            self._lags.add(worst, max(lag.verdict.severity for lag in lags), at_ms=at_ms)

    def _lags_of(self, known: Series) -> SeriesRecorder:
        """The lag over the whole axis, with what is `known` of it."""
        lags = SeriesRecorder(bucket_ms_for(self._reader.end_ms - self._reader.start.at_ms), 2 * BUCKETS_MAX)
        for number, bucket in enumerate(known.buckets, start=known.first):
            if bucket is not None:
                lags.add(bucket.value, bucket.severity, at_ms=number * known.bucket_ms)
        return lags

    def _worst_lag(self) -> Series:
        return self._lags.freeze()

    def check_growth(self) -> None:
        """Read what was added to the recording; a player at the end stays at the end."""
        if not self._reader.refresh():
            return
        position, end_ns = self.player.position, self._reader.end_ms * NS_PER_MS
        self._lags = self._lags_of(self._lags.freeze())
        self._lag = None
        self.player.extend(end_ns)
        if position.at_ns == position.end_ns:
            self.player.jump(end_ns)
        if self._work is None:
            self._work = self._scan()

    # -- searches ------------------------------------------------------------------------------------------

    def _search_time(self, at_ns: int) -> Iterator[int | None]:
        goal = self._reader.block_at(at_ns // NS_PER_MS)
        while self._scanned_blocks < min(goal, len(self._reader.blocks)):
            # `work` goes on with the scan between the steps of a search.
            yield None
        yield at_ns

    def _search_lag(self, goal: AtLag, *, from_ns: int, forward: bool) -> Iterator[int | None]:
        while self.overview_share < 1.0:
            yield None
        from_ms = from_ns // NS_PER_MS
        here = self._reader.block_at(from_ms)
        starts = sorted(self._checkpoints)
        place = bisect_right(starts, here) - 1
        if forward:
            for found_ms in self._begins(goal, starts[place], self._reader.end_ms):
                if found_ms is None or found_ms > from_ms:
                    yield None if found_ms is None else found_ms * NS_PER_MS
            return
        until_ms = from_ms - 1
        for start in reversed(starts[: place + 1]):
            last_ms = None
            for found_ms in self._begins(goal, start, until_ms):
                last_ms = last_ms if found_ms is None else found_ms
                yield None
            if last_ms is not None:
                yield last_ms * NS_PER_MS
                return
            until_ms = self._reader.blocks[start - 1].last_ms if start else 0

    def _begins(self, goal: AtLag, block: int, until_ms: int) -> Iterator[int | None]:
        """When a lag begins to fulfil `goal` from the checkpoint at a block on; None after each block."""
        cursor = self._cursor_at(block)
        held = _holding(goal, cursor.state)
        while True:
            while (seen := cursor.step(until_ms=until_ms)) is not None:
                before, held = held, _holding(goal, cursor.state)
                if held - before:
                    yield max(seen.at_ms, self._reader.start.at_ms)
            yield None
            if not cursor.enter_next(until_ms=until_ms):
                return


def _holding(goal: AtLag, state: Watched) -> frozenset[int]:
    """Keys of the replicas whose lag fulfils `goal`."""
    return frozenset(
        lag.key
        for lag in state.lags()
        if goal.of in lag.names
        and (
            goal.holds(lag.lag_bytes)
            if not goal.is_time
            else lag.lag_s is not None and goal.holds(round(lag.lag_s * NS_PER_S))
        )
    )


def _first_ms(block: Block) -> int:
    return block.first_ms

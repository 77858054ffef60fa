"""Values bucket by bucket over a whole replay: how long logs were, and how far replicas were behind.

Times are nanoseconds on the reel's axis, buckets are numbers of equal stretches of it. What a lane says of a
bucket is the worst of all its moments, also of those in which nothing of the connection was recorded: its ack
stays then, while the log may grow and what it lacks gets older.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import define, field

from trioha.recording.state_arrays import Array, Ints, log_ends
from trioha_monitor.replay.replay_timeline import SessionRun

UNKNOWN: Final = -1
_NEVER: Final = np.iinfo(np.int64).max


@define(eq=False)
class Curve:
    """A value of each bucket, in an array that grows."""

    first: int
    """Number of the first bucket."""
    values: Ints = field(factory=lambda: np.full(16, UNKNOWN, np.int64))
    """-1 without any; longer than what is in use."""
    used: int = 0

    def reserve(self, last: int) -> None:
        """Have room for the buckets up to the number `last`."""
        count = last + 1 - self.first
        if count > len(self.values):
            longer = np.full(max(count, 2 * len(self.values)), UNKNOWN, np.int64)
            longer[: self.used] = self.values[: self.used]
            self.values = longer
        self.used = max(self.used, count)

    def carry_to(self, last: int) -> None:
        """Let the last value stand to the bucket `last`."""
        if self.first <= last and last + 1 - self.first > self.used:
            begin, value = self.used, self.values[self.used - 1]
            self.reserve(last)
            self.values[begin : self.used] = value

    def raise_at(self, buckets: Ints, values: Ints) -> None:
        """Make each of `buckets`, which ascend, no less than its values."""
        begins = np.flatnonzero(np.diff(buckets, prepend=-1))
        places = buckets[begins] - self.first
        self.values[places] = np.maximum(self.values[places], np.maximum.reduceat(values, begins))

    def raise_between(self, begin: int, end: int, values: Ints) -> None:
        """Make the buckets from the number `begin` to before `end` no less than `values`."""
        part = self.values[begin - self.first : end - self.first]
        np.maximum(part, values, out=part)

    def part(self, first: int, count: int) -> Ints:
        """A copy of `count` buckets from the number `first` on, -1 where there is no value."""
        found = np.full(count, UNKNOWN, np.int64)
        begin = self.first - first
        own = self.values[: self.used][max(0, -begin) : max(0, count - begin)]
        found[max(0, begin) : max(0, begin) + len(own)] = own
        return found


class LogEndHistory:
    """How long the log of one session's node was, and when it came to be so."""

    def __init__(self, run: SessionRun, *, bucket_ns: int) -> None:
        self._session_run = run
        self._bucket_ns = bucket_ns
        self.curve: Curve | None = None
        """Its length at the end of each bucket; None before the first record that tells it."""
        self._times = self._ends = np.zeros(0, np.int64)
        """Of the last two pieces of records: when it was how long, both ascending."""
        self._last = 0
        """How many of these are of the last piece."""
        self._knows_all = True
        """Whether these are all that there were."""

    def take_in(self, records: Array) -> None:
        """Take in the records that come next."""
        places, own = log_ends(records)
        if not len(own):
            return
        ts_ns = records["ts_ns"][places]
        buckets = self.buckets(ts_ns)
        curve = self.curve
        if curve is None:
            curve = self.curve = Curve(int(buckets[0]))
        begun = max(0, curve.used - 1)
        curve.reserve(int(buckets[-1]))
        curve.raise_at(buckets, own)
        grown = curve.values[begun : curve.used]
        np.maximum.accumulate(grown, out=grown)
        kept = len(self._times) - self._last
        self._knows_all = self._knows_all and not kept
        times, ends = ts_ns + self._session_run.wall_of(0), own
        self._times = np.maximum.accumulate(np.concatenate((self._times[kept:], times)))
        self._ends = np.maximum.accumulate(np.concatenate((self._ends[kept:], ends)))
        self._last = len(ts_ns)

    def buckets(self, ts_ns: Ints) -> Ints:
        """Bucket of each time of the session; where a damaged clock goes back, that of the one before."""
        buckets: Ints = (ts_ns + self._session_run.wall_of(0)) // self._bucket_ns
        if self.curve is not None:
            np.maximum(buckets, self.curve.first, out=buckets)
        return np.maximum.accumulate(buckets)

    def passed_ns(self, offsets: Ints) -> Ints:
        """When the log first went beyond each offset, on the axis; far in the future where it has not.

        Exact for what was put in the last two pieces of records, else the begin of its bucket.
        """
        curve = self.curve
        if curve is None:
            return np.full(len(offsets), _NEVER)
        places = np.searchsorted(self._ends, offsets, side="right")
        known = places < len(self._times)
        passed = np.full(len(offsets), _NEVER)
        passed[known] = self._times[places[known]]
        older = places == 0
        if not self._knows_all and older.any():
            found = np.searchsorted(curve.values[: curve.used], offsets[older], side="right")
            passed[older] = np.minimum(passed[older], (curve.first + found) * self._bucket_ns)
        return passed


@define(eq=False)
class LagHistory:
    """How far one connection was behind, bucket by bucket: in bytes, and in nanoseconds of age."""

    log_end_history: LogEndHistory
    bucket_ns: int
    lag: Curve
    """Worst lag in bytes."""
    age: Curve
    """Greatest age of the oldest byte that was not acknowledged, in nanoseconds."""
    ack: int = UNKNOWN
    """After its last event."""
    is_open: bool = True
    has_moved: bool = False
    """Whether its ack ever moved: an observer's does not."""

    @classmethod
    def at(cls, log_end_history: LogEndHistory, first: int, *, bucket_ns: int) -> LagHistory:
        """An empty one whose first bucket has this number."""
        return cls(log_end_history, bucket_ns, Curve(first), Curve(first))

    @property
    def lasted_ns(self) -> int:
        """For how long there is something of it."""
        return self.lag.used * self.bucket_ns

    @property
    def next_bucket(self) -> int:
        """The last one that has a value; what comes next is not before it."""
        return self.lag.first + max(0, self.lag.used - 1)

    def take_in(self, buckets: Ints, at_ns: Ints, *, worst: Ints, ack_before: Ints, ack: Ints) -> None:
        """Add events in their order: bucket and time of each, worst lag at it, ack just before and after.

        While a connection has no events, its ack stays.
        """
        begun = self.next_bucket
        is_new = not self.lag.used
        for curve in (self.lag, self.age):
            curve.reserve(int(buckets[-1]))
        snapshot = np.concatenate(([self.ack], ack[:-1]))
        passed_ns = self.log_end_history.passed_ns(snapshot)
        for gap in np.flatnonzero(np.diff(buckets, prepend=buckets[0] if is_new else begun) > 0).tolist():
            begin = int(buckets[gap - 1]) if gap else begun
            self._stay(begin, int(buckets[gap]), int(snapshot[gap]), int(passed_ns[gap]))
        self.lag.raise_at(buckets, worst)
        ages = np.where(ack_before >= 0, at_ns - self.log_end_history.passed_ns(ack_before), 0)
        self.age.raise_at(buckets, np.maximum(ages, 0))
        self.has_moved = self.has_moved or bool((ack != (ack[0] if is_new else self.ack)).any())
        self.ack = int(ack[-1])

    def carry_to(self, last: int) -> None:
        """Say what stands to the bucket `last`, if it is still open."""
        curve = self.log_end_history.curve
        if self.is_open and self.lag.used and curve is not None:
            curve.carry_to(last)
            begun = self.next_bucket
            if last >= begun:
                self.lag.reserve(last)
                self.age.reserve(last)
                passed_ns = self.log_end_history.passed_ns(np.array([self.ack], np.int64))
                self._stay(begun, last + 1, self.ack, int(passed_ns[0]))

    def _stay(self, begin: int, end: int, ack: int, passed_ns: int) -> None:
        """Nothing but puts from the bucket `begin` to before `end`; when the log went beyond `ack`."""
        curve = self.log_end_history.curve
        if curve is None:
            return
        length = curve.values[begin - curve.first : end - curve.first]
        self.lag.raise_between(begin, begin + len(length), length - ack)
        ends_ns = np.arange(begin + 1, end + 1, dtype=np.int64) * self.bucket_ns
        self.age.raise_between(begin, end, np.maximum(ends_ns - passed_ns, 0))

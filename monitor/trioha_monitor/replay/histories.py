"""Histories of a whole replay: the end of each node's log and the lag of each connection, bucket by bucket.

Times are nanoseconds on the replay's axis. A bucket is one of equal parts of the axis, identified by its
number. A `LagHistory` has the worst of all moments in a bucket, also of moments without a record of the
connection: its ack stays then, while the log may grow and the bytes that it lacks grow older.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import define, field

from trioha.recording.state import UNKNOWN
from trioha_monitor.replay.replay_timeline import SessionRun
from trioha_sessions.state_arrays import Array, Ints, first_beyond, log_ends

_NEVER: Final = np.iinfo(np.int64).max


@define(eq=False)
class Curve:
    """A value of each bucket, in an array that grows."""

    first: int
    """Number of the first bucket."""
    values: Ints = field(factory=lambda: np.full(16, UNKNOWN, np.int64))
    """`UNKNOWN` without a value; only the first `used` are in use."""
    used: int = 0

    def reserve(self, last: int) -> None:
        """Make room for the buckets up to the number `last`."""
        count = last + 1 - self.first
        if count > len(self.values):
            longer = np.full(max(count, 2 * len(self.values)), UNKNOWN, np.int64)
            longer[: self.used] = self.values[: self.used]
            self.values = longer
        self.used = max(self.used, count)

    def extend_to(self, last: int) -> None:
        """Repeat the last value up to the bucket `last`."""
        if self.first <= last and last + 1 - self.first > self.used:
            begin, value = self.used, self.values[self.used - 1]
            self.reserve(last)
            self.values[begin : self.used] = value

    def raise_at(self, buckets: Ints, values: Ints) -> None:
        """Raise each of the ascending `buckets` to at least its values."""
        begins = np.flatnonzero(np.diff(buckets, prepend=-1))
        places = buckets[begins] - self.first
        self.values[places] = np.maximum(self.values[places], np.maximum.reduceat(values, begins))

    def raise_between(self, begin: int, end: int, values: Ints) -> None:
        """Raise the buckets from the number `begin` to before `end` to at least `values`."""
        part = self.values[begin - self.first : end - self.first]
        np.maximum(part, values, out=part)

    def part(self, first: int, count: int) -> Ints:
        """A copy of `count` buckets from the number `first` on, `UNKNOWN` where there is no value."""
        found = np.full(count, UNKNOWN, np.int64)
        begin = self.first - first
        own = self.values[: self.used][max(0, -begin) : max(0, count - begin)]
        found[max(0, begin) : max(0, begin) + len(own)] = own
        return found


class LogEndHistory:
    """Times and end offsets of the log of one session's node."""

    def __init__(self, run: SessionRun, *, bucket_ns: int) -> None:
        self.run = run
        self._bucket_ns = bucket_ns
        self.curve: Curve | None = None
        """End of the log at the end of each bucket; None before the first record that names it."""
        self._times = self._ends = np.zeros(0, np.int64)
        """Times and log ends of the last two batches of records, both ascending."""
        self._last_count = 0
        """How many of these are of the last batch."""
        self._has_all = True
        """Whether no earlier batch was dropped."""

    def add(self, records: Array) -> None:
        """Add the batch of records that follows."""
        places, ends = log_ends(records)
        if not len(ends):
            return
        ts_ns = records["ts_ns"][places]
        buckets = self.buckets(ts_ns)
        curve = self.curve
        if curve is None:
            curve = self.curve = Curve(int(buckets[0]))
        last_used = max(0, curve.used - 1)
        curve.reserve(int(buckets[-1]))
        curve.raise_at(buckets, ends)
        changed = curve.values[last_used : curve.used]
        np.maximum.accumulate(changed, out=changed)
        dropped = len(self._times) - self._last_count
        self._has_all = self._has_all and not dropped
        times = ts_ns + self.run.wall_of(0)
        self._times = np.maximum.accumulate(np.concatenate((self._times[dropped:], times)))
        self._ends = np.maximum.accumulate(np.concatenate((self._ends[dropped:], ends)))
        self._last_count = len(ts_ns)

    def buckets(self, ts_ns: Ints) -> Ints:
        """Bucket of each of the session's times; where a damaged clock goes back, the bucket before it."""
        buckets: Ints = (ts_ns + self.run.wall_of(0)) // self._bucket_ns
        if self.curve is not None:
            np.maximum(buckets, self.curve.first, out=buckets)
        return np.maximum.accumulate(buckets)

    def stored_ns(self, offsets: Ints) -> Ints:
        """When the log first went beyond each offset, on the axis; far in the future where it has not.

        Exact for the last two batches of records, else the start of its bucket.
        """
        curve = self.curve
        if curve is None:
            return np.full(len(offsets), _NEVER)
        places = first_beyond(self._ends, offsets)
        known = places < len(self._times)
        stored_ns = np.full(len(offsets), _NEVER)
        stored_ns[known] = self._times[places[known]]
        older = places == 0
        if not self._has_all and older.any():
            found = first_beyond(curve.values[: curve.used], offsets[older])
            stored_ns[older] = np.minimum(stored_ns[older], (curve.first + found) * self._bucket_ns)
        return stored_ns


@define(eq=False)
class LagHistory:
    """Lag of one connection, bucket by bucket: in bytes, and as the age of the oldest byte that it lacks."""

    log_ends: LogEndHistory
    bucket_ns: int
    lag: Curve
    """Worst lag in bytes."""
    age: Curve
    """Greatest age of the oldest byte that was not acknowledged, in nanoseconds."""
    ack: int = UNKNOWN
    """After the last event."""
    is_open: bool = True
    has_moved: bool = False
    """Whether the ack ever moved: an observer's does not."""

    @classmethod
    def starting_at(cls, first: int, *, log_ends: LogEndHistory, bucket_ns: int) -> LagHistory:
        """An empty history whose first bucket has the number `first`."""
        return cls(log_ends, bucket_ns, Curve(first), Curve(first))

    @property
    def duration_ns(self) -> int:
        """How much time has values."""
        return self.lag.used * self.bucket_ns

    @property
    def last_bucket(self) -> int:
        """Number of the last bucket that has a value; the next event is not before it."""
        return self.lag.first + max(0, self.lag.used - 1)

    def add(self, buckets: Ints, at_ns: Ints, *, worst: Ints, ack_before: Ints, ack: Ints) -> None:
        """Add the events that follow: bucket and time of each, worst lag at it, ack just before and after.

        While a connection has no events, its ack stays.
        """
        last_bucket = self.last_bucket
        is_new = not self.lag.used
        for curve in (self.lag, self.age):
            curve.reserve(int(buckets[-1]))
        earlier = np.concatenate(([self.ack], ack[:-1]))
        stored_ns = self.log_ends.stored_ns(earlier)
        steps = np.diff(buckets, prepend=buckets[0] if is_new else last_bucket)
        for gap in np.flatnonzero(steps > 0).tolist():
            begin = int(buckets[gap - 1]) if gap else last_bucket
            self._fill(begin, int(buckets[gap]), int(earlier[gap]), int(stored_ns[gap]))
        self.lag.raise_at(buckets, worst)
        ages = np.where(ack_before >= 0, at_ns - self.log_ends.stored_ns(ack_before), 0)
        self.age.raise_at(buckets, np.maximum(ages, 0))
        self.has_moved = self.has_moved or bool((ack != (ack[0] if is_new else self.ack)).any())
        self.ack = int(ack[-1])

    def extend_to(self, last: int) -> None:
        """Extend the history of an open connection to the bucket `last`."""
        curve = self.log_ends.curve
        if self.is_open and self.lag.used and curve is not None:
            curve.extend_to(last)
            last_bucket = self.last_bucket
            if last >= last_bucket:
                self.lag.reserve(last)
                self.age.reserve(last)
                stored_ns = self.log_ends.stored_ns(np.array([self.ack], np.int64))
                self._fill(last_bucket, last + 1, self.ack, int(stored_ns[0]))

    def _fill(self, begin: int, end: int, ack: int, stored_ns: int) -> None:
        """Fill the buckets from `begin` to before `end`, in which the ack stays.

        `stored_ns` is when the log first went beyond `ack`.
        """
        curve = self.log_ends.curve
        if curve is None:
            return
        ends = curve.values[begin - curve.first : end - curve.first]
        self.lag.raise_between(begin, begin + len(ends), ends - ack)
        ends_ns = np.arange(begin + 1, end + 1, dtype=np.int64) * self.bucket_ns
        self.age.raise_between(begin, end, np.maximum(ends_ns - stored_ns, 0))

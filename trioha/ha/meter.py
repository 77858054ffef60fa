"""Meters of HA connections: speed, lag in seconds, ack latency, frame sizes; flow control."""

from __future__ import annotations

from collections import deque

from trioha.distribution import Distribution, distribution_of

WINDOW_S = 1.0
DISTRIBUTION_WINDOW_S = 2.0
VALUES_MAX = 1024
SAMPLE_INTERVAL_S = 0.01
SAMPLES_MAX = 8192


class RateMeter:
    """Bytes per second in the last complete second, as RocketMQ's flow monitor shows it."""

    def __init__(self, now_s: float) -> None:
        self._window_start_s = now_s
        self._bytes = 0
        self._last_bytes_per_s = 0.0

    def add(self, count: int, now_s: float) -> None:
        """`count` bytes were transferred now."""
        if now_s - self._window_start_s >= WINDOW_S:
            self._roll(now_s)
        self._bytes += count

    def bytes_per_s(self, now_s: float) -> int:
        """Speed in the last complete window; 0 if nothing was transferred in two windows."""
        if now_s - self._window_start_s >= WINDOW_S:
            self._roll(now_s)
        return round(self._last_bytes_per_s)

    def _roll(self, now_s: float) -> None:
        elapsed_s = now_s - self._window_start_s
        self._last_bytes_per_s = self._bytes / elapsed_s if elapsed_s < 2 * WINDOW_S else 0.0
        self._window_start_s = now_s
        self._bytes = 0


class LagClock:
    """Lag in seconds: the age of the oldest byte that is not acknowledged.

    Keeps samples of the log's end over time. Samples closer than 10 ms are joined; whenever there are 8192,
    the interval doubles until half of the samples are left. So samples stay even in time, ages are exact to
    the interval, and memory is bounded however long a replica lags.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[int, float]] = deque()
        """End offset of bytes, and when the first of them was appended; oldest first."""
        self._interval_s = SAMPLE_INTERVAL_S
        """Least time between samples."""

    def appended(self, end_offset: int, now_s: float) -> None:
        """The log now ends at `end_offset`."""
        samples = self._samples
        if samples:
            last_end, last_s = samples[-1]
            if end_offset <= last_end:
                return
            if now_s - last_s < self._interval_s:
                samples[-1] = (end_offset, last_s)
                return
        samples.append((end_offset, now_s))
        if len(samples) > SAMPLES_MAX:
            self._thin()

    def acknowledged(self, offset: int) -> None:
        """Everything before `offset` is acknowledged."""
        samples = self._samples
        while samples and samples[0][0] <= offset:
            samples.popleft()
        if not samples:
            self._interval_s = SAMPLE_INTERVAL_S

    @property
    def oldest_s(self) -> float | None:
        """When the oldest unacknowledged byte was appended; None if all are acknowledged."""
        return self._samples[0][1] if self._samples else None

    def unacked_for_s(self, now_s: float, *, acked_s: float) -> float:
        """How long an ack has been due, where the last one came at `acked_s`; 0 if none is due.

        An ack is due since the last one, or since the oldest unacknowledged byte was appended, whichever is
        later.
        """
        return now_s - max(self._samples[0][1], acked_s) if self._samples else 0.0

    def age_s(self, now_s: float) -> float:
        """Age of the oldest unacknowledged byte; 0 if all are acknowledged."""
        return now_s - self._samples[0][1] if self._samples else 0.0

    def age_from_s(self, offset: int, now_s: float) -> float:
        """Age of the oldest byte from `offset` on of a log that ends after it; searches all samples.

        Each sent frame adds a sample of the log's end. Bytes after the last sample are younger than that
        sample, so its age is returned for them.
        """
        for end_offset, seen_s in self._samples:
            if end_offset > offset:
                return now_s - seen_s
        return now_s - self._samples[-1][1] if self._samples else 0.0

    def _thin(self) -> None:
        """Join samples closer than a longer interval: the later end, the earlier time."""
        samples = list(self._samples)
        while len(samples) > SAMPLES_MAX // 2:
            self._interval_s *= 2
            kept = samples[:1]
            for end_offset, seen_s in samples[1:]:
                if seen_s - kept[-1][1] < self._interval_s:
                    kept[-1] = (end_offset, kept[-1][1])
                else:
                    kept.append((end_offset, seen_s))
            samples = kept
        self._samples = deque(samples)


class DistributionMeter:
    """The distribution of the values of the last `DISTRIBUTION_WINDOW_S`: adding one is cheap, reading sorts.

    A window ends with the first read after `DISTRIBUTION_WINDOW_S`. Of more than `VALUES_MAX` values in a
    window only the last count.
    """

    def __init__(self, now_s: float) -> None:
        self._window_start_s = now_s
        self._values: deque[float] = deque(maxlen=VALUES_MAX)
        self._last: Distribution[int] | None = None
        self.add = self._values.append
        """Add a value: the deque's own method, since each frame adds some."""

    def distribution(self, now_s: float, *, per_unit: float = 1.0) -> Distribution[int] | None:
        """The values of the last complete window, of the current one while there is none; None without any.

        Each value is multiplied by `per_unit` and rounded.
        """
        if now_s - self._window_start_s >= DISTRIBUTION_WINDOW_S:
            self._last = distribution_of(self._values, per_unit=per_unit)
            self._window_start_s = now_s
            self._values.clear()
        return distribution_of(self._values, per_unit=per_unit) if self._last is None else self._last


class ConnectionMeter:
    """What a master measures of one connection: lag, speed, ack latency, frame sizes."""

    def __init__(self, now_s: float) -> None:
        self.lag_clock = LagClock()
        self.rate = RateMeter(now_s)
        """Of bodies."""
        self.ack_latency_s = DistributionMeter(now_s)
        """From sending a frame to its ack, of one frame in flight at a time."""
        self.frame_bytes = DistributionMeter(now_s)
        """Of bodies."""
        self._timed_offset = -1
        """End of the frame whose ack is being timed; -1 while none is."""
        self._timed_s = now_s
        """When that frame was sent."""

    def frame_sent(self, end_offset: int, body_bytes: int, max_offset: int, now_s: float) -> None:
        """A frame that ends at `end_offset` is sent of a log that ends at `max_offset`."""
        self.lag_clock.appended(max_offset, now_s)
        self.rate.add(body_bytes, now_s)
        self.frame_bytes.add(body_bytes)
        if self._timed_offset < 0:
            self._timed_offset, self._timed_s = end_offset, now_s

    def acknowledged(self, offset: int, now_s: float) -> None:
        """The slave acknowledged everything before `offset`."""
        self.lag_clock.acknowledged(offset)
        if 0 <= self._timed_offset <= offset:
            self.ack_latency_s.add(now_s - self._timed_s)
            self._timed_offset = -1


class FlowControl:
    """Limits the bytes of each second, like RocketMQ's flow monitor, but with bodies counted.

    RocketMQ counts only headers, and at the limit sends empty frames in a tight loop
    (docs/protocol/ha.md#flow-control).
    """

    def __init__(self, bytes_per_s: int, *, now_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._window_start_s = now_s
        self._spent_bytes = 0

    @property
    def next_window_s(self) -> float:
        """When the next second begins."""
        return self._window_start_s + WINDOW_S

    def allowed_bytes(self, now_s: float) -> int:
        """Bytes that may still be sent in the current second."""
        if now_s >= self.next_window_s:
            self._window_start_s = now_s
            self._spent_bytes = 0
        return self._bytes_per_s - self._spent_bytes

    def spend(self, count: int) -> None:
        """`count` bytes are sent now."""
        self._spent_bytes += count

"""Where a replay stands on its axis, and how it moves. Pure: the clock is given, nothing is read.

Speeds are 0.25 to 64 times real time, forward or backward. Moving backward is no trick: every moment can be
asked for by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from trioha_monitor.source import SPEEDS

INTERVAL_NS = 100_000_000
"""A step by interval: what the live monitor asks in, 0.1 s."""


@frozen
class PlaybackPosition:
    """Where a player stands and how it moves, at one moment."""

    at_ns: int
    """Nanoseconds since 1970."""
    start_ns: int
    end_ns: int
    is_playing: bool
    speed: float
    """One of `SPEEDS`."""
    is_reverse: bool

    @property
    def share(self) -> float:
        """How much of the axis lies before it, 0 to 1."""
        span_ns = self.end_ns - self.start_ns
        return (self.at_ns - self.start_ns) / span_ns if span_ns > 0 else 1.0


class Player:
    """Moves along an axis from `start_ns` to `end_ns`, both included. Paused at the start of the axis at
    first.

    `clock_s` is a monotonic clock in seconds.
    """

    def __init__(self, start_ns: int, end_ns: int, *, clock_s: Callable[[], float]) -> None:
        assert start_ns <= end_ns, "an axis does not go back"
        self._start_ns, self._end_ns = start_ns, end_ns
        self._clock_s = clock_s
        self._at_ns = start_ns
        self._speed = SPEEDS.index(1.0)
        self._is_reverse = False
        self._since_s: float | None = None
        """When it stood at `_at_ns`; None while it stands still."""

    @property
    def position(self) -> PlaybackPosition:
        """Now. Reaching an end stops it."""
        at_ns = self._now_ns()
        return PlaybackPosition(
            at_ns,
            self._start_ns,
            self._end_ns,
            self._since_s is not None,
            SPEEDS[self._speed],
            self._is_reverse,
        )

    def play(self) -> None:
        """Go on; from the end that it would run into, begin at the other one."""
        if self._now_ns() == (self._start_ns if self._is_reverse else self._end_ns):
            self._at_ns = self._end_ns if self._is_reverse else self._start_ns
        self._since_s = self._clock_s()

    def pause(self) -> None:
        """Stand still."""
        self._now_ns()
        self._since_s = None

    def toggle(self) -> None:
        """Play or pause."""
        if self._since_s is None:
            self.play()
        else:
            self.pause()

    def change_speed(self, steps: int) -> None:
        """Up (or down, if negative) so many of the `SPEEDS`."""
        self._settle()
        self._speed = min(max(self._speed + steps, 0), len(SPEEDS) - 1)

    def turn(self) -> None:
        """The other direction."""
        self._settle()
        self._is_reverse = not self._is_reverse

    def jump(self, at_ns: int) -> None:
        """Stand at `at_ns`, or at the nearer end; playing goes on from there."""
        self._settle()
        self._at_ns = min(max(at_ns, self._start_ns), self._end_ns)

    def step(self, intervals: int) -> None:
        """Stand still so many `INTERVAL_NS` farther (back, if negative), at a multiple of it."""
        self.pause()
        number = self._at_ns // INTERVAL_NS
        if intervals < 0 and self._at_ns % INTERVAL_NS:
            # Back to the multiple just before is a step already.
            number += 1
        self.jump((number + intervals) * INTERVAL_NS)

    def extend(self, end_ns: int) -> None:
        """The axis is longer now: a session that still grows."""
        self._settle()
        self._end_ns = max(self._end_ns, end_ns)

    def _settle(self) -> None:
        """Count what has passed, so that another speed or place counts from here."""
        self._now_ns()
        if self._since_s is not None:
            self._since_s = self._clock_s()

    def _now_ns(self) -> int:
        if self._since_s is not None:
            now_s = self._clock_s()
            passed_ns = round((now_s - self._since_s) * 1e9 * SPEEDS[self._speed])
            at_ns = self._at_ns + (-passed_ns if self._is_reverse else passed_ns)
            self._at_ns = min(max(at_ns, self._start_ns), self._end_ns)
            self._since_s = now_s
            if self._at_ns == (self._start_ns if self._is_reverse else self._end_ns):
                self._since_s = None
        return self._at_ns

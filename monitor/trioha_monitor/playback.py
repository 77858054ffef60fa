"""How screens steer a replay, and what moves it; how screens record.

A live source is a `ViewFeed` (`trioha_monitor.view`) only. A replay is a `ViewFeed` and a `Playback`: its
feed shows a view whenever its position, speed or overview changes, and the screens call `Playback.state` with
each view. Playback and `Recording` are called in the feed's thread and return at once.

`Player` is a replay's position on its axis. Pure: the clock is given. Speeds are 0.25 to 64 times real time,
forward or backward; every moment can be shown by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from trioha.severity import Severity
from trioha_monitor.series import Series

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Speeds of a replay: seconds of the session in a second."""


@frozen
class Tick:
    """A mark on a replay's time axis."""

    time_ms: int
    """On the axis of `ClusterView.time_ms`."""
    severity: Severity


@frozen
class PlaybackState:
    """State of a replay. Times are on the axis of `ClusterView.time_ms`."""

    start_ms: int
    """First moment of the sessions."""
    end_ms: int
    """Last moment of the sessions."""
    time_ms: int
    """The moment that is shown."""
    speed: float = 1.0
    """One of `SPEEDS`."""
    is_backward: bool = False
    """Whether time runs backward."""
    is_playing: bool = False
    goal: str = ""
    """The condition of a running search; empty without one."""
    note: str = ""
    """Result of the last search if it found nothing; else empty."""
    lag: Series = field(factory=Series, repr=False)
    """Worst lag in bytes over the whole session, as far as it has been read."""
    ticks: tuple[Tick, ...] = field(default=(), repr=False)
    """Events of the whole session that have been read; the same object until there are more."""


class Playback(Protocol):
    """Steers a replay."""

    def state(self) -> PlaybackState:
        """The state."""

    def toggle(self) -> None:
        """Play or pause; ends a search."""

    def change_speed(self, steps: int) -> None:
        """The next faster (1) or slower (-1) of `SPEEDS`."""

    def turn(self) -> None:
        """Reverse the direction."""

    def step(self, steps: int) -> None:
        """Pause and move by `steps` small steps, back if negative."""

    def seek(self, time_ms: int) -> None:
        """Go to a moment; before and after the sessions, to their start or end."""

    def seek_event(self, steps: int) -> None:
        """Go to the next (1) or previous (-1) event."""

    def parse(self, condition: str) -> object:
        """What `run_until` would look for. Raises TriohaError if it is not understood."""

    def run_until(self, condition: str) -> None:
        """Go to where `condition` holds, as fast as possible. Raises TriohaError if it is not understood."""


class Recording(Protocol):
    """Records what the source observes."""

    def start(self) -> Path:
        """Start a recording; returns its file. Raises TriohaError or OSError if it cannot be made."""

    def stop(self) -> Path:
        """End the recording; returns its file. Raises TriohaError or OSError if it is not complete."""


INTERVAL_NS = 100_000_000
"""A small step: the live monitor's interval, 0.1 s."""


@frozen
class PlaybackPosition:
    """Position of a player and how it moves."""

    at_ns: int
    """Nanoseconds since 1970."""
    start_ns: int
    end_ns: int
    is_playing: bool
    speed: float
    """One of `SPEEDS`."""
    is_reverse: bool


class Player:
    """A position that moves along an axis from `start_ns` to `end_ns`; at first paused at the start.

    `clock_s` is a monotonic clock in seconds.
    """

    def __init__(self, start_ns: int, end_ns: int, *, clock_s: Callable[[], float]) -> None:
        assert start_ns <= end_ns, "an axis has no negative length"
        self._start_ns, self._end_ns = start_ns, end_ns
        self._clock_s = clock_s
        self._at_ns = start_ns
        self._speed = SPEEDS.index(1.0)
        self._is_reverse = False
        self._since_s: float | None = None
        """Time of the clock at `_at_ns`; None while paused."""

    @property
    def position(self) -> PlaybackPosition:
        """The present position. The player pauses at the ends."""
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
        """Play; at the end of the axis, from its other end."""
        if self._now_ns() == (self._start_ns if self._is_reverse else self._end_ns):
            self._at_ns = self._end_ns if self._is_reverse else self._start_ns
        self._since_s = self._clock_s()

    def pause(self) -> None:
        """Pause."""
        self._now_ns()
        self._since_s = None

    def toggle(self) -> None:
        """Play or pause."""
        if self._since_s is None:
            self.play()
        else:
            self.pause()

    def change_speed(self, steps: int) -> None:
        """Choose a speed so many `SPEEDS` faster, or slower if negative."""
        self._settle()
        self._speed = min(max(self._speed + steps, 0), len(SPEEDS) - 1)

    def turn(self) -> None:
        """Reverse the direction."""
        self._settle()
        self._is_reverse = not self._is_reverse

    def jump(self, at_ns: int) -> None:
        """Go to `at_ns`, or to the nearer end; a playing player goes on from there."""
        self._settle()
        self._at_ns = min(max(at_ns, self._start_ns), self._end_ns)

    def step(self, intervals: int) -> None:
        """Pause, and move to a multiple of `INTERVAL_NS` so many intervals on, back if negative."""
        self.pause()
        number = self._at_ns // INTERVAL_NS
        if intervals < 0 and self._at_ns % INTERVAL_NS:
            # Moving back to the multiple just before is one step.
            number += 1
        self.jump((number + intervals) * INTERVAL_NS)

    def extend(self, end_ns: int) -> None:
        """Extend the axis: a session has grown."""
        self._settle()
        self._end_ns = max(self._end_ns, end_ns)

    def _settle(self) -> None:
        """Update the position, so that another speed or place counts from now."""
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

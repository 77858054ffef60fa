"""What screens ask of a source beside its views: how a replay is steered, and how a recording is made.

A live source is a `ViewFeed` (`trioha_monitor.view`) and nothing else. A replay is a `ViewFeed` and a
`Playback`: its feed shows a view whenever the moment it stands at, its speed or its overview changes, and
the screens ask `Playback.state` with each of them. Everything here is called in the feed's thread and
returns at once.

Where a replay stands on its axis, and how it moves. Pure: the clock is given, nothing is read.

Speeds are 0.25 to 64 times real time, forward or backward. Moving backward is no trick: every moment can be
asked for by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from attrs import field, frozen

from trioha_monitor.series import Series, Severity
from trioha_monitor.view import ClusterView

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""How fast a replay plays: seconds of the session in a second."""


@frozen
class Tick:
    """A mark on a replay's time axis."""

    time_ms: int
    """On the axis of `ClusterView.time_ms`."""
    severity: Severity


@frozen
class PlaybackState:
    """Where a replay stands and what it does. Times are on the axis of `ClusterView.time_ms`."""

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
    """The condition that it runs to as fast as it can; empty if it does not."""
    note: str = ""
    """What became of the last request where that is worth saying: "no later event"."""
    lag: Series = field(factory=Series, repr=False)
    """Worst lag in bytes over the whole session, as far as it is known."""
    ticks: tuple[Tick, ...] = field(default=(), repr=False)
    """Events of the whole session, as far as they are known; the same object until there are more."""


class Playback(Protocol):
    """Steers a replay."""

    def state(self) -> PlaybackState:
        """Where it stands."""

    def toggle(self) -> None:
        """Play, or pause. Ends a run to a goal."""

    def change_speed(self, steps: int) -> None:
        """The next faster (1) or slower (-1) of `SPEEDS`."""

    def turn(self) -> None:
        """Play the other way."""

    def step(self, steps: int) -> None:
        """Pause and go `steps` small steps on, or back if it is negative."""

    def seek(self, time_ms: int) -> None:
        """Go to a moment; one outside of the sessions is their start or end."""

    def seek_event(self, steps: int) -> None:
        """Go to the next (1) or previous (-1) event."""

    def run_until(self, condition: str) -> None:
        """Run as fast as possible until `condition` holds. Raises TriohaError if it is not understood."""


class Recording(Protocol):
    """Records what the monitor sees, as a session that can be replayed."""

    def start(self) -> Path:
        """Begin a new session; returns where. Raises TriohaError or OSError if that cannot be."""

    def note(self, view: ClusterView) -> None:
        """Record what `view` says; called with every view while it is on."""

    def stop(self) -> Path:
        """End the session and return where it is. Raises TriohaError or OSError if it is not whole."""


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

"""What screens ask of a source beside its views: how a replay is steered, and how a recording is made.

A live source is a `ViewFeed` (`trioha_monitor.view`) and nothing else. A replay is a `ViewFeed` and a
`Playback`: its feed shows a view whenever the moment it stands at, its speed or its overview changes, and
the screens ask `Playback.state` with each of them. Everything here is called in the feed's thread and
returns at once.
"""

from __future__ import annotations

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

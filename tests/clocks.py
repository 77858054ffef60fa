"""A clock that tests move."""

from __future__ import annotations

from attrs import define


@define
class Clock:
    """Returns `now`, in the unit of what reads it: seconds, or milliseconds of the time of day."""

    now: float = 0

    def __call__(self) -> float:
        """What it shows."""
        return self.now

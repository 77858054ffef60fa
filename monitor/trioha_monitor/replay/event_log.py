"""All events of a replay, in order and bounded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from attrs import evolve

from trioha_monitor.playback import Tick
from trioha_monitor.view import EventKind, TimelineEvent

NS_PER_MS: Final = 1_000_000
EVENTS_SHOWN_MAX: Final = 2000
"""Events of a view: the last ones."""
EVENTS_MAX: Final = 50_000
"""Events of the whole time; beyond it events that are close together are merged."""
THIN_MS_MIN, THIN_MS_MAX = 1000, 2**62
"""How close together merged events are, in milliseconds: doubled from the first to the second."""


class EventLog:
    """All events of a replay that are known so far."""

    def __init__(self) -> None:
        self._events: list[TimelineEvent] = []
        self._times_ms: list[int] = []
        self._is_sorted = True
        self._thinned_ms = 0
        """Events of one node and kind are no closer than this; 0 while all are kept."""
        self._shown: tuple[TimelineEvent, ...] = ()
        self._shown_key = (0, 0)
        self._ticks: tuple[Tick, ...] = ()

    def add(self, events: Iterable[TimelineEvent]) -> None:
        """Add events, in any order."""
        before = len(self._events)
        self._events += events
        self._is_sorted = self._is_sorted and len(self._events) == before
        if len(self._events) > EVENTS_MAX:
            self._thin()

    def _thin(self) -> None:
        """Merge events of one node and kind that are close together, until half of `EVENTS_MAX` are left.

        Of merged events the worst one stays, of equally bad ones the first.
        """
        while len(self._events) > EVENTS_MAX // 2:
            self._thinned_ms = max(THIN_MS_MIN, 2 * self._thinned_ms)
            kept: dict[tuple[int, EventKind, str], TimelineEvent] = {}
            for event in sorted(self._events, key=_time_ms):
                place = (event.time_ms // self._thinned_ms, event.kind, event.node)
                earlier = kept.get(place)
                if earlier is None:
                    kept[place] = event
                else:
                    worst = event if event.severity > earlier.severity else earlier
                    kept[place] = evolve(worst, more=earlier.more + event.more + 1)
            self._events = list(kept.values())
            if self._thinned_ms >= THIN_MS_MAX:
                break
        self._ticks = ()

    def events(self) -> list[TimelineEvent]:
        """All events, in the order of their times."""
        if not self._is_sorted:
            self._events.sort(key=_time_ms)
            self._times_ms = [event.time_ms for event in self._events]
            self._is_sorted = True
            self._shown_key = (0, 0)
        return self._events

    def until(self, at_ns: int) -> tuple[TimelineEvent, ...]:
        """The last events up to `at_ns`, numbered; the same object until there is another event."""
        events = self.events()
        count = bisect_right(self._times_ms, at_ns // NS_PER_MS)
        if self._shown_key != (count, len(events)):
            first = max(0, count - EVENTS_SHOWN_MAX)
            self._shown = tuple(
                evolve(event, number=number)
                for number, event in enumerate(events[first:count], start=first + 1)
            )
            self._shown_key = (count, len(events))
        return self._shown

    def ticks(self) -> tuple[Tick, ...]:
        """The events as marks on the axis; the same object until there are more."""
        events = self.events()
        if len(self._ticks) != len(events):
            self._ticks = tuple(Tick(event.time_ms, event.severity) for event in events)
        return self._ticks


def _time_ms(event: TimelineEvent) -> int:
    return event.time_ms

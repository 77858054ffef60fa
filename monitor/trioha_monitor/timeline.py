"""What happened, in order and bounded: the list behind the Events screen and the ticks of the graphs."""

from __future__ import annotations

from collections import deque

from trioha_monitor.series import Severity
from trioha_monitor.view import EventKind, TimelineEvent

EVENTS_MAX = 2000
"""Events that are kept: the oldest give way."""


class Timeline:
    """Collects events; `freeze` gives those that are kept."""

    def __init__(self, *, events_max: int = EVENTS_MAX) -> None:
        self._events: deque[TimelineEvent] = deque(maxlen=events_max)
        self._count = 0
        self._frozen: tuple[TimelineEvent, ...] | None = ()

    def add(
        self,
        kind: EventKind,
        text: str,
        *,
        at_ms: int,
        node: str = "",
        replica: str = "",
        severity: Severity = Severity.NOTICE,
    ) -> None:
        """Note that something happened at `at_ms`; an earlier time than the last event's counts as that."""
        if self._events:
            at_ms = max(at_ms, self._events[-1].time_ms)
        self._count += 1
        self._events.append(TimelineEvent(at_ms, kind, node, replica, text, severity, self._count))
        self._frozen = None

    def freeze(self) -> tuple[TimelineEvent, ...]:
        """The events that are kept, oldest first: the same object until the next one."""
        if self._frozen is None:
            self._frozen = tuple(self._events)
        return self._frozen

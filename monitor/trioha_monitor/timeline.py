"""The live view's events, in order and bounded, for the Events screen and the ticks of graphs.

No source can flood it. Of a source that causes more than `BURST_MAX` events at once, and then more than one
in `REFILL_MS`, events are dropped, and the next listed one says how many; when the list is full, the oldest
event of the source with the most events is dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from copy import copy
from typing import Final

from attrs import define, evolve

from trioha.severity import Severity
from trioha_monitor.view import EventKind, TimelineEvent

EVENTS_MAX: Final = 2000
"""Events that are kept."""
BURST_MAX: Final = 600
"""Events of one source that are listed at once: all its connections may come and go."""
REFILL_MS: Final = 1000
"""After a burst one more event is listed in so many milliseconds."""


@define(eq=False)
class _Budget:
    """How many more events of a source are listed."""

    left: float
    at_ms: int
    left_out: int = 0


class Timeline:
    """Collects events; `freeze` returns those that are kept."""

    def __init__(self, *, events_max: int = EVENTS_MAX) -> None:
        self._events_max = events_max
        self._events: deque[tuple[str, TimelineEvent]] = deque()
        self._listed: Counter[str] = Counter()
        """Events that are kept, by their source."""
        self._budgets: dict[str, _Budget] = {}
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
        source: str = "",
    ) -> None:
        """Add an event of the time `at_ms`, or of the last event's time if that is later.

        `source` is the address of the node that caused it, empty for none. Texts and labels cannot identify a
        source: a node chooses them.
        """
        if self._events:
            at_ms = max(at_ms, self._events[-1][1].time_ms)
        event = TimelineEvent(at_ms, kind, node, replica, text, severity)
        if source:
            budget = self._budget_of(source, at_ms=at_ms)
            if budget.left < 1:
                budget.left_out += 1
                return
            budget.left -= 1
            if budget.left_out:
                words = f"{budget.left_out} events of this node were left out: too many at once"
                budget.left_out = 0
                self._append(TimelineEvent(at_ms, EventKind.MARK, node, "", words, Severity.WARNING), source)
        self._append(event, source)

    def forget(self, source: str) -> None:
        """Drop the state of a source that is not watched any more; its events stay."""
        self._budgets.pop(source, None)

    def __deepcopy__(self, memo: object) -> Timeline:
        """A copy, which shares the events."""
        other = copy(self)
        other._events, other._listed = self._events.copy(), self._listed.copy()
        other._budgets = {source: copy(budget) for source, budget in self._budgets.items()}
        return other

    def freeze(self) -> tuple[TimelineEvent, ...]:
        """The events that are kept, oldest first: the same object until the next one."""
        if self._frozen is None:
            self._frozen = tuple(event for _, event in self._events)
        return self._frozen

    def _budget_of(self, source: str, *, at_ms: int) -> _Budget:
        budget = self._budgets.get(source)
        if budget is None:
            budget = self._budgets[source] = _Budget(BURST_MAX, at_ms)
        budget.left = min(BURST_MAX, budget.left + (at_ms - budget.at_ms) / REFILL_MS)
        budget.at_ms = at_ms
        return budget

    def _append(self, event: TimelineEvent, source: str) -> None:
        if len(self._events) >= self._events_max:
            most = max(self._listed.values())
            place = next(i for i, (of, _) in enumerate(self._events) if self._listed[of] == most)
            dropped, _ = self._events[place]
            del self._events[place]
            self._listed[dropped] -= 1
            if not self._listed[dropped]:
                del self._listed[dropped]
        self._count += 1
        self._listed[source] += 1
        self._events.append((source, evolve(event, number=self._count)))
        self._frozen = None

"""Rules that compare a record with an earlier one of the same connection, wait or node.

Theory of operation. Of each key (a connection, the request id of a wait, the whole node) some records tell
something (they are told by `sets`), and some are judged by the last such record before them (`checks`). A
record that may be both is judged first. A part that begins in the middle of a session keeps its judged
records that come before the first telling one of their key (`head`), and the last telling record of each key
(`last`); who joins two parts judges the later one's head by the earlier one's last. There are about as many
of these as frames are in flight, or connections are open.

Where events were dropped or are missing, what was told before is not believed any more, and what is judged
by it is passed over, unless the rule outlives that (`outlives_holes`): an ack that goes back does so whatever
happened between. So a hole never makes a violation, and never hides one that both sides of it show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from attrs import field, frozen

from trioha.recording.invariants.event_batch import Columns, EventBatch, EventStream, SessionSettings
from trioha.recording.invariants.findings import Findings
from trioha.recording.state_arrays import Array, Bools, Ints

_FEW: Final = 1000
"""For so few records nothing is worked out for all of them."""

Fault = Callable[[Columns, Columns, SessionSettings], Bools]
"""Which of the judged records (first) break the rule, given what each is judged by (second)."""


def _codes(codes: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(int, codes))


@frozen(eq=False)
class PrecedingEvents:
    """What a rule knows of some records."""

    head: Array
    """Judged records that nothing before them was told of, in their order."""
    last: Array
    """The last telling record of each key, by key."""
    has_hole: bool
    findings: Findings
    checked: int
    """How many records were judged."""


@frozen
class PrecedingEventRule:
    """Judges records of the kinds `checks` by the last one of the kinds `sets` with the same `key`."""

    fault: Fault
    checks: tuple[int, ...] = field(converter=_codes)
    """Kinds (codes of a `EventBatch`)."""
    sets: tuple[int, ...] = field(converter=_codes, default=())
    """Kinds; without any, a record is judged by itself alone."""
    key: str | None = None
    """`conn`, `aux` (of waits), or None for the node as a whole."""
    outlives_holes: bool = False
    needs_origin: bool = False
    """Whether a record that nothing was told of is a violation, in a session that has its begin."""
    opens: int | None = None
    """If given, only records of this kind are judged by, and each by at most one record: waits."""

    def judge(self, batch: EventBatch) -> PrecedingEvents:
        """What the records of a part say."""
        records, grouped = batch.records, batch.grouped(self.key)
        checks = grouped.stream(self.checks)
        if batch.repeated is not None:
            checks = EventStream(grouped, checks.rows[~batch.repeated[checks.places]])
        if not self.sets:
            broken = checks.places[self.fault(checks, checks, batch.settings)]
            none = records[:0]
            return PrecedingEvents(
                none, none, False, Findings.of(records[broken], records[broken]), len(checks)
            )
        sets = grouped.stream(self.sets)
        told, is_told = _references(checks, sets)
        last = sets.bounds[1:][np.diff(sets.bounds) > 0] - 1
        holes = np.zeros(0, np.int64) if self.outlives_holes else batch.holes
        if len(holes):
            # How many holes lie before each.
            checks_behind = np.searchsorted(holes, checks.places, side="right")
            sets_behind = np.searchsorted(holes, sets.places, side="right")
            is_told[is_told] = sets_behind[told[is_told]] == checks_behind[is_told]
            last = last[sets_behind[last] == len(holes)]
        if self.opens is not None:
            is_open = sets["kind"] == self.opens
            is_told[is_told] = is_open[told[is_told]]
            last = last[is_open[last]]
        head = checks.places[~is_told & (checks_behind == 0) if len(holes) else ~is_told]
        findings = Findings.none(records.dtype)
        if len(sets):
            broken = np.flatnonzero(self.fault(checks, Columns(sets, told), batch.settings) & is_told)
            findings = Findings.of(records[checks.places[broken]], records[sets.places[told[broken]]])
        return PrecedingEvents(
            records[np.sort(head)],
            records[sets.places[last]],
            bool(len(holes)),
            findings,
            int(np.count_nonzero(is_told)),
        )

    def join(
        self, earlier: PrecedingEvents, later: PrecedingEvents, settings: SessionSettings, *, gap: bool
    ) -> PrecedingEvents:
        """What two parts that follow each other say together; `gap`: records between them are missing."""
        findings, checked = earlier.findings + later.findings, earlier.checked + later.checked
        if not self.sets:
            return PrecedingEvents(earlier.head, earlier.last, False, findings, checked)
        if gap and not self.outlives_holes:
            return PrecedingEvents(earlier.head, later.last, True, findings, checked)
        name = self.key
        known = earlier.last[name] if name else np.zeros(len(earlier.last), np.int64)
        asked = later.head[name] if name else np.zeros(len(later.head), np.int64)
        place = np.searchsorted(known, asked)
        is_told = place < len(known)
        is_told[is_told] = known[place[is_told]] == asked[is_told]
        if self.opens is not None:
            # A second end of the same wait finds nothing to end.
            _, first = np.unique(asked, return_index=True)
            is_first = np.zeros(len(asked), np.bool_)
            is_first[first] = True
            is_told &= is_first
        new, old = later.head[is_told], earlier.last[place[is_told]]
        broken = self.fault(Columns(new), Columns(old), settings)
        head = earlier.head
        if not earlier.has_hole:
            head = np.concatenate((head, later.head[~is_told]))
        last = later.last
        if not later.has_hole:
            kept = earlier.last
            if self.opens is not None:
                kept = np.delete(kept, place[is_told])
            kept = kept[~np.isin(kept[name], later.last[name])] if name else kept[: 1 - len(later.last)]
            last = np.concatenate((kept, later.last))
            if name:
                last = last[np.argsort(last[name], kind="stable")]
        return PrecedingEvents(
            head,
            last,
            earlier.has_hole or later.has_hole,
            findings + Findings.of(new[broken], old[broken]),
            checked + len(new),
        )

    def finish(self, trail: PrecedingEvents, *, is_whole: bool) -> tuple[Findings, int]:
        """Violations and how many records were judged; `is_whole`: the session's begin is among them."""
        if not (self.needs_origin and is_whole):
            return trail.findings, trail.checked
        return trail.findings + Findings.of(trail.head, trail.head), trail.checked + len(trail.head)


def _references(checks: EventStream, sets: EventStream) -> tuple[Ints, Bools]:
    """Of each judged row, place in `sets` of the last row before it, and whether it is of its group."""
    if len(checks) == len(sets) and (checks.rows == sets.rows).all():
        told = np.arange(-1, len(checks) - 1)
    else:
        told = (
            sets.before[checks.rows] - 1
            if len(checks) > _FEW
            else np.searchsorted(sets.rows, checks.rows) - 1
        )
    begins = np.repeat(sets.bounds[:-1], np.diff(checks.bounds))
    return told, told >= begins

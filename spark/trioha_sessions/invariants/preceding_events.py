"""Rules that compare a record with an earlier one of the same connection, wait or node.

Theory of operation. Of each key (a connection, the request id of a wait, the node) some records are
references (`sets`), and some are checked by the last reference before them (`checks`). A record that is both
is checked first. A part that begins within a session keeps its checked records before the first reference of
their key (`head`), and the last reference of each key (`last`). The join of two parts checks the later one's
head by the earlier one's last references. There are about as many of these as frames in flight, or open
connections.

Where events were dropped or are missing, earlier references are not used any more, and the records that need
them are not checked, unless the rule outlives holes (`outlives_holes`): an ack that goes back does so
independently of the events in between. So a hole never makes a violation, and never hides one that both sides
of it show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from attrs import evolve, field, frozen

from trioha_sessions.invariants.event_batch import Columns, EventBatch, EventStream, SessionSettings
from trioha_sessions.invariants.findings import Findings
from trioha_sessions.state_arrays import Array, Bools, Ints

_FEW: Final = 1000
"""Up to so many checked records, references are searched for each instead of counted for all rows."""

KEPT_MAX: Final = 50_000
"""Records that a part keeps for its join, of each of `head` (the first) and `last` (the latest): far more
than frames in flight, waits or open connections. Where there are more, the part has a hole."""

Fault = Callable[[Columns, Columns, SessionSettings], Bools]
"""Which of the checked records (first) break the rule, given the reference of each (second)."""


def _codes(codes: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(int, codes))


@frozen(eq=False)
class PrecedingEvents:
    """State of a rule after some records."""

    head: Array
    """Checked records without a reference before them, in their order."""
    last: Array
    """The last reference of each key, sorted by key."""
    has_hole: bool
    findings: Findings
    checked: int
    """Number of records that were checked."""

    def bounded(self) -> PrecedingEvents:
        """These with at most `KEPT_MAX` records in each of `head` and `last`.

        What is left out is not checked, as around a hole of the recording.
        """
        if len(self.head) <= KEPT_MAX and len(self.last) <= KEPT_MAX:
            return self
        last = self.last
        if len(last) > KEPT_MAX:
            last = last[np.sort(np.argsort(last["seq"], kind="stable")[-KEPT_MAX:])]
        return evolve(self, head=self.head[:KEPT_MAX], last=last, has_hole=True)


@frozen
class PrecedingEventRule:
    """Checks records of the kinds `checks` by the last record of the kinds `sets` with the same `key`."""

    fault: Fault
    checks: tuple[int, ...] = field(converter=_codes)
    """Kinds (codes of an `EventBatch`)."""
    sets: tuple[int, ...] = field(converter=_codes, default=())
    """Kinds; without any, each record is checked by itself."""
    key: str | None = None
    """`conn`, `aux` (of waits), or None for the node as a whole."""
    outlives_holes: bool = False
    needs_origin: bool = False
    """Whether a missing reference is a violation, if the session is complete from its start."""
    opens: int | None = None
    """If given, only references of this kind count, and each for at most one checked record (waits)."""

    def check(self, batch: EventBatch) -> PrecedingEvents:
        """Check the records of a part."""
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
        reference, has_reference = _references(checks, sets)
        last = sets.bounds[1:][np.diff(sets.bounds) > 0] - 1
        holes = np.zeros(0, np.int64) if self.outlives_holes else batch.holes
        if len(holes):
            # Number of holes before each.
            holes_before_checks = np.searchsorted(holes, checks.places, side="right")
            holes_before_sets = np.searchsorted(holes, sets.places, side="right")
            has_reference[has_reference] = (
                holes_before_sets[reference[has_reference]] == holes_before_checks[has_reference]
            )
            last = last[holes_before_sets[last] == len(holes)]
        if self.opens is not None:
            is_open = sets["kind"] == self.opens
            has_reference[has_reference] = is_open[reference[has_reference]]
            last = last[is_open[last]]
        head = checks.places[~has_reference & (holes_before_checks == 0) if len(holes) else ~has_reference]
        findings = Findings.none(records.dtype)
        if len(sets):
            broken = np.flatnonzero(
                self.fault(checks, Columns(sets, reference), batch.settings) & has_reference
            )
            findings = Findings.of(records[checks.places[broken]], records[sets.places[reference[broken]]])
        return PrecedingEvents(
            records[np.sort(head)],
            records[sets.places[last]],
            bool(len(holes)),
            findings,
            int(np.count_nonzero(has_reference)),
        ).bounded()

    def join(
        self, earlier: PrecedingEvents, later: PrecedingEvents, settings: SessionSettings, *, gap: bool
    ) -> PrecedingEvents:
        """Join two parts that follow each other; `gap`: records between them are missing."""
        findings, checked = earlier.findings + later.findings, earlier.checked + later.checked
        if not self.sets:
            return PrecedingEvents(earlier.head, earlier.last, False, findings, checked)
        if gap and not self.outlives_holes:
            return PrecedingEvents(earlier.head, later.last, True, findings, checked)
        name = self.key
        known = earlier.last[name] if name else np.zeros(len(earlier.last), np.int64)
        wanted = later.head[name] if name else np.zeros(len(later.head), np.int64)
        place = np.searchsorted(known, wanted)
        has_reference = place < len(known)
        has_reference[has_reference] = known[place[has_reference]] == wanted[has_reference]
        if self.opens is not None:
            # A second end of the same wait has no reference.
            _, first = np.unique(wanted, return_index=True)
            is_first = np.zeros(len(wanted), np.bool_)
            is_first[first] = True
            has_reference &= is_first
        new, old = later.head[has_reference], earlier.last[place[has_reference]]
        broken = self.fault(Columns(new), Columns(old), settings)
        head = earlier.head
        if not earlier.has_hole:
            head = np.concatenate((head, later.head[~has_reference]))
        last = later.last
        if not later.has_hole:
            kept = earlier.last
            if self.opens is not None:
                kept = np.delete(kept, place[has_reference])
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
        ).bounded()

    def finish(self, events: PrecedingEvents, *, is_whole: bool) -> tuple[Findings, int]:
        """Violations, and how many records were checked; `is_whole`: from the session's start on."""
        if not (self.needs_origin and is_whole):
            return events.findings, events.checked
        return events.findings + Findings.of(events.head, events.head), events.checked + len(events.head)


def _references(checks: EventStream, sets: EventStream) -> tuple[Ints, Bools]:
    """For each checked row the place in `sets` of the last row before it, and whether it is of its group."""
    if len(checks) == len(sets) and (checks.rows == sets.rows).all():
        reference = np.arange(-1, len(checks) - 1)
    else:
        reference = (
            sets.before[checks.rows] - 1
            if len(checks) > _FEW
            else np.searchsorted(sets.rows, checks.rows) - 1
        )
    begins = np.repeat(sets.bounds[:-1], np.diff(checks.bounds))
    return reference, reference >= begins

"""Checks sessions: from records to violations, in parts that are checked apart and joined.

`check` checks some records of a session, `combine` joins the states of parts that follow each other. It
is associative: a session can be cut anywhere and checked in parallel with the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from trioha.recording.events import NO_CONNECTION
from trioha.recording.reader import Session
from trioha.severity import Severity
from trioha_sessions.invariants.event_batch import EventBatch, SessionSettings
from trioha_sessions.invariants.rules import INVARIANTS, Invariant
from trioha_sessions.records import read_segment, record_dtype
from trioha_sessions.segments import read_segments

PART_RECORDS: Final = 500_000
"""Records that are checked at a time."""

_BY_NAME = {invariant.name: invariant for invariant in INVARIANTS}


@frozen(eq=False)
class CheckState:
    """State of all rules after some records of one session."""

    settings: SessionSettings
    first_seq: int
    """Of the first record; -1 without any."""
    last_seq: int
    carries: Mapping[str, Any]
    """State of each invariant's rule, by the invariant's name."""


@frozen
class Violation:
    """A record that breaks an invariant."""

    invariant: str
    severity: Severity
    seq: int
    ts_ns: int
    conn: int | None
    sentence: str


@frozen
class InvariantResult:
    """One invariant in one session."""

    invariant: Invariant
    applies: bool
    """False if the session is of another role, or has not the settings that are needed."""
    checked: int
    """Number of records that were checked."""
    count: int
    """Number of violations."""
    violations: tuple[Violation, ...]
    """The first violations."""


def check(records: NDArray[np.void], settings: SessionSettings, *, is_first: bool = False) -> CheckState:
    """Check `records` of one session, in the order of their seq; `is_first`: no records came before."""
    return check_batch(EventBatch(records, settings, is_first))


def check_batch(batch: EventBatch) -> CheckState:
    """As `check`, of records that other rules share."""
    records, settings = batch.raw, batch.settings
    carries = {
        invariant.name: invariant.rule.check(batch)
        for invariant in INVARIANTS
        if invariant.applies_to(settings)
    }
    seqs = (int(records["seq"][0]), int(records["seq"][-1])) if len(records) else (-1, -1)
    return CheckState(settings, *seqs, carries)


def combine(parts: Iterable[CheckState]) -> CheckState:
    """Join the states of `parts` of one session, at least one, that follow each other."""
    return reduce(_combine, parts)


def _combine(earlier: CheckState, later: CheckState) -> CheckState:
    if later.first_seq < 0:
        return earlier
    if earlier.first_seq < 0:
        return later
    gap = later.first_seq != earlier.last_seq + 1
    carries = {
        name: _BY_NAME[name].rule.join(carry, later.carries[name], earlier.settings, gap=gap)
        for name, carry in earlier.carries.items()
    }
    return CheckState(earlier.settings, earlier.first_seq, later.last_seq, carries)


def check_session(session: Session) -> tuple[InvariantResult, ...]:
    """The results of a whole session, read part by part. Raises StoreError if a segment was removed."""
    settings = SessionSettings.of(session)
    state = check(np.zeros(0, record_dtype(session)), settings)
    for segment in read_segments(session).segments:
        for first in range(0, segment.records, PART_RECORDS):
            records = read_segment(session, segment, first=first, count=PART_RECORDS).array
            state = combine([state, check(records, settings, is_first=state.first_seq < 0)])
    return results_of(state)


def results_of(state: CheckState) -> tuple[InvariantResult, ...]:
    """The results of each invariant, when all of a session was checked."""
    return tuple(_result(invariant, state) for invariant in INVARIANTS)


def _result(invariant: Invariant, state: CheckState) -> InvariantResult:
    if invariant.name not in state.carries:
        return InvariantResult(invariant, False, 0, 0, ())
    findings, checked = invariant.rule.finish(state.carries[invariant.name], is_whole=state.first_seq == 0)
    violations = tuple(
        Violation(
            invariant=invariant.name,
            severity=invariant.severity,
            seq=int(new["seq"]),
            ts_ns=int(new["ts_ns"]),
            conn=None if new["conn"] == NO_CONNECTION else int(new["conn"]),
            sentence=invariant.says(new, old, state.settings),
        )
        for new, old in zip(findings.new, findings.old, strict=True)
    )
    return InvariantResult(invariant, True, checked, findings.count, violations)

"""Judges sessions: from records to violations, in parts that are judged apart and joined.

`judge` judges some records of a session, `combine` joins the judgements of parts that follow each other. It
is associative: a session can be cut anywhere and judged in parallel with the same verdicts.
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
"""Records that are judged at a time."""

_BY_NAME = {invariant.name: invariant for invariant in INVARIANTS}


@frozen(eq=False)
class Judgement:
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
class Verdict:
    """One invariant in one session."""

    invariant: Invariant
    is_judged: bool
    """False if the session is of another role, or has not the settings that are needed."""
    checked: int
    """Number of records that were judged."""
    count: int
    """Number of violations."""
    violations: tuple[Violation, ...]
    """The first violations."""


def judge(records: NDArray[np.void], settings: SessionSettings, *, is_first: bool = False) -> Judgement:
    """Judge `records` of one session, in the order of their seq; `is_first`: no records came before."""
    return judge_batch(EventBatch(records, settings, is_first))


def judge_batch(batch: EventBatch) -> Judgement:
    """As `judge`, of records that other rules share."""
    records, settings = batch.raw, batch.settings
    carries = {
        invariant.name: invariant.rule.judge(batch)
        for invariant in INVARIANTS
        if invariant.applies_to(settings)
    }
    seqs = (int(records["seq"][0]), int(records["seq"][-1])) if len(records) else (-1, -1)
    return Judgement(settings, *seqs, carries)


def combine(parts: Iterable[Judgement]) -> Judgement:
    """Join the judgements of `parts` of one session, at least one, that follow each other."""
    return reduce(_combine, parts)


def _combine(earlier: Judgement, later: Judgement) -> Judgement:
    if later.first_seq < 0:
        return earlier
    if earlier.first_seq < 0:
        return later
    gap = later.first_seq != earlier.last_seq + 1
    carries = {
        name: _BY_NAME[name].rule.join(carry, later.carries[name], earlier.settings, gap=gap)
        for name, carry in earlier.carries.items()
    }
    return Judgement(earlier.settings, earlier.first_seq, later.last_seq, carries)


def judge_session(session: Session) -> tuple[Verdict, ...]:
    """The verdicts on a whole session, read part by part. Raises StoreError if a segment was removed."""
    settings = SessionSettings.of(session)
    judgement = judge(np.zeros(0, record_dtype(session)), settings)
    for segment in read_segments(session).segments:
        for first in range(0, segment.records, PART_RECORDS):
            records = read_segment(session, segment, first=first, count=PART_RECORDS).array
            judgement = combine([judgement, judge(records, settings, is_first=judgement.first_seq < 0)])
    return verdicts(judgement)


def verdicts(judgement: Judgement) -> tuple[Verdict, ...]:
    """The verdict on each invariant, when all of a session was judged."""
    return tuple(_verdict(invariant, judgement) for invariant in INVARIANTS)


def _verdict(invariant: Invariant, judgement: Judgement) -> Verdict:
    if invariant.name not in judgement.carries:
        return Verdict(invariant, False, 0, 0, ())
    findings, checked = invariant.rule.finish(
        judgement.carries[invariant.name], is_whole=judgement.first_seq == 0
    )
    violations = tuple(
        Violation(
            invariant=invariant.name,
            severity=invariant.severity,
            seq=int(new["seq"]),
            ts_ns=int(new["ts_ns"]),
            conn=None if new["conn"] == NO_CONNECTION else int(new["conn"]),
            sentence=invariant.says(new, old, judgement.settings),
        )
        for new, old in zip(findings.new, findings.old, strict=True)
    )
    return Verdict(invariant, True, checked, findings.count, violations)

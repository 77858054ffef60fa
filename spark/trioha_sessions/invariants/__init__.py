"""Invariants of recorded sessions, and the check of a session. Not for a node, which has no NumPy."""

from trioha_sessions.invariants.event_batch import SessionSettings
from trioha_sessions.invariants.judge import (
    Judgement,
    Verdict,
    Violation,
    combine,
    judge,
    judge_batch,
    judge_session,
    verdicts,
)
from trioha_sessions.invariants.rules import INVARIANTS, Invariant

__all__ = [
    "INVARIANTS",
    "Invariant",
    "Judgement",
    "SessionSettings",
    "Verdict",
    "Violation",
    "combine",
    "judge",
    "judge_batch",
    "judge_session",
    "verdicts",
]

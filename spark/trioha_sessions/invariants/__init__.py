"""Invariants of recorded sessions, and the check of a session. Not for a node, which has no NumPy."""

from trioha_sessions.invariants.event_batch import SessionSettings
from trioha_sessions.invariants.rules import INVARIANTS, Invariant
from trioha_sessions.invariants.session_check import (
    CheckState,
    InvariantResult,
    Violation,
    check,
    check_batch,
    check_session,
    combine,
    results_of,
)

__all__ = [
    "INVARIANTS",
    "CheckState",
    "Invariant",
    "InvariantResult",
    "SessionSettings",
    "Violation",
    "check",
    "check_batch",
    "check_session",
    "combine",
    "results_of",
]

"""What must hold in a recorded session, and whether it does. Not for a node, which has no NumPy."""

from trioha.recording.judging.judge import (
    Judgement,
    Verdict,
    Violation,
    combine,
    judge,
    judge_scene,
    judge_session,
    verdicts,
)
from trioha.recording.judging.rules import INVARIANTS, Invariant, Severity
from trioha.recording.judging.scene import Setting

__all__ = [
    "INVARIANTS",
    "Invariant",
    "Judgement",
    "Setting",
    "Severity",
    "Verdict",
    "Violation",
    "combine",
    "judge",
    "judge_scene",
    "judge_session",
    "verdicts",
]

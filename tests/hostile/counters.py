"""What came of hostile frames: counts for the summary, and what must not have happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from attrs import define, field, frozen

from tests.hostile.frame import Frame, Manner

SUSPECTS_NAMED_MAX = 12


@frozen
class Finding:
    """Something that must not happen."""

    what: str
    suspects: tuple[Frame, ...] = ()
    """Frames one of which is the cause."""
    is_of_an_answer: bool = False
    """Whether an answer says it: then it holds also of a node that is killed or stopped meanwhile."""

    def __str__(self) -> str:
        if not self.suspects:
            return self.what
        named = "; ".join(str(frame) for frame in self.suspects[:SUSPECTS_NAMED_MAX])
        more = len(self.suspects) - SUSPECTS_NAMED_MAX
        return f"{self.what}: {named}" + (f"; and {more} more" if more > 0 else "")


@define
class ConnectionCounters:
    """Counts of one run."""

    frames: Counter[str] = field(factory=Counter)
    """By kind."""
    codes: Counter[str] = field(factory=Counter)
    """Answers by the name of their code."""
    connections: Counter[str] = field(factory=Counter)
    """Made to a node, by lane."""
    hasty: Counter[str] = field(factory=Counter)
    """Of them, ended without a word or by a reset: they may be gone before they are accepted."""
    outcomes: Counter[tuple[str, str]] = field(factory=Counter)
    """Frames that were sent, by lane and by what must come of them."""
    findings: list[Finding] = field(factory=list)
    in_flight: set[Frame] = field(factory=set)
    """Sent, or about to be, and not yet judged: the suspects when a node ends."""

    @property
    def done(self) -> int:
        """Frames that were judged."""
        return self.frames.total()

    def begin(self, frames: Iterable[Frame]) -> None:
        """These are on their way."""
        self.in_flight.update(frames)

    def connected(self, frame: Frame) -> None:
        """A connection was made, of which this is the first frame."""
        self.connections[frame.lane] += 1
        self.hasty[frame.lane] += frame.manner is Manner.RESET or not any(frame.steps)

    def end(self, frames: Iterable[Frame]) -> None:
        """These have been judged."""
        for frame in frames:
            self.in_flight.discard(frame)
            self.frames[frame.kind] += 1
            self.outcomes[frame.lane, frame.outcome] += 1

    def start_counting(self) -> None:
        """Forget what the summary shows; findings stay, and so does what nodes count from their start."""
        self.frames.clear()
        self.codes.clear()

    def find(self, what: str, *suspects: Frame, is_of_an_answer: bool = False) -> None:
        """Note what must not have happened."""
        self.findings.append(Finding(what, suspects, is_of_an_answer))

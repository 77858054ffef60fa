"""One hostile frame, or one short script of a hostile peer: what it is, and what may come of it."""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen


class Lane(StrEnum):
    """Where a frame goes."""

    MASTER = "master"
    """The listen port of a master."""
    SLAVE = "slave"
    """The listen port of a slave."""
    HA_MASTER = "ha-master"
    """The HA port of a master."""
    HA_SLAVE = "ha-slave"
    """The HA port of a slave, which serves slaves too."""
    TRANSFER = "transfer"
    """A slave node, from a hostile HA master."""


class Outcome(StrEnum):
    """What must come of a frame."""

    ANSWERED = "answered"
    """One response with its opaque; the connection stays."""
    SILENT = "silent"
    """No response; the connection stays."""
    CLOSED = "closed"
    """The node closes the connection, without waiting for more."""
    ANY = "any"
    """The node may answer, wait for more or close; it closes when the peer has closed its side."""


class Manner(StrEnum):
    """How a peer behaves."""

    WHOLE = "whole"
    """Sends all at once, reads what comes."""
    DRIBBLE = "dribble"
    """Sends a few bytes at a time."""
    RESET = "reset"
    """Sends, and resets the connection at once."""
    DEAF = "deaf"
    """Sends the same again and again, and reads nothing."""
    IDLE = "idle"
    """Connects, sends what it has, and stays a while."""


@frozen
class Relative:
    """A report that depends on what the master has sent on this connection."""

    delta: int
    """Added to the end of what was received so far."""


Step = bytes | Relative


@frozen
class Frame:
    """What is sent, and what must come of it."""

    seed: int
    index: int
    lane: Lane
    kind: str
    """One of few names, for summaries."""
    detail: str
    """What is wrong with it, in short."""
    outcome: Outcome
    steps: tuple[Step, ...] = ()
    """What is sent: for all but the HA lanes a single piece of bytes."""
    manner: Manner = Manner.WHOLE
    opaque: int = 0
    """Of the request, where there is to be a response."""
    must_be_refused: bool = False
    """Whether the response must not say that a message was stored, or that all is well."""

    @property
    def data(self) -> bytes:
        """All literal bytes."""
        return b"".join(step for step in self.steps if isinstance(step, bytes))

    @property
    def name(self) -> str:
        """How it is replayed: SEED:INDEX."""
        return f"{self.seed}:{self.index}"

    def __str__(self) -> str:
        return f"{self.name} ({self.lane}, {self.kind}: {self.detail})"

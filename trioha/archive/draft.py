"""The next head of an archive, while a step of the archiver makes it."""

from __future__ import annotations

from attrs import define, evolve, field

from trioha.archive.layout import Generation, Head


@define(kw_only=True)
class Draft:
    """What a step has stored and changed so far. Nothing of it is visible before its head is created."""

    head: Head
    objects: int = 0
    """New log objects."""
    log_bytes: int = 0
    """Bytes of the log in them."""
    stored_bytes: int = 0
    """Bytes that were sent for them, and for merged ones."""
    merged: int = 0
    """Objects that merged ones have replaced."""
    recorded: int = 0
    """New segments of recordings."""
    began: str | None = None
    """Why a generation began."""
    is_more_waiting: bool = False
    """Whether the log goes on after what is archived."""
    is_more_recorded: bool = False
    """Whether segments are left."""
    dropped: list[str] = field(factory=list)
    """Keys that the next head does not refer to any more."""

    @property
    def generation(self) -> Generation:
        """The one that grows."""
        return self.head.generations[-1]

    @generation.setter
    def generation(self, value: Generation) -> None:
        self.head = evolve(self.head, generations=(*self.head.generations[:-1], value))

"""Event sinks for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

from trioha.recording.events import NO_CONNECTION, Kind


class SingleEvents(ABC):
    """A sink that gets each event by `emit`, also those of puts, which nodes report together."""

    @abstractmethod
    def emit(
        self,
        kind: int,
        *,
        conn: int = NO_CONNECTION,
        offset: int = 0,
        aux: int = 0,
        size: int = 0,
        flags: int = 0,
    ) -> None:
        """Take one event."""

    def put_and_wait(self, *, offset: int, size: int, request_id: int, copies: int) -> None:
        self.emit(Kind.PUT, offset=offset, aux=request_id, size=size)
        self.emit(Kind.WAIT_BEGIN, offset=offset, aux=request_id, size=copies)

    def puts_and_waits(self, *, start_offset: int, ends: list[int], request_id: int, copies: int) -> None:
        for number, (start, end) in enumerate(pairwise([start_offset, *ends])):
            self.put_and_wait(offset=end, size=end - start, request_id=request_id + number, copies=copies)

    def waits_ended(self, *, ends: list[int], request_id: int, took_us: int, status: int) -> None:
        for number, end in enumerate(ends):
            self.emit(Kind.WAIT_END, offset=end, aux=request_id + number, size=took_us, flags=status)

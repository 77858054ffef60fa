"""Event sinks for tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from struct import iter_unpack

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

    def puts_and_waits(self, *, put_offsets: bytes, end_offset: int, request_id: int, copies: int) -> None:
        for number, (start, end) in enumerate(stretches(put_offsets, end_offset), request_id):
            self.put_and_wait(offset=end, size=end - start, request_id=number, copies=copies)

    def waits_ended(
        self, *, put_offsets: bytes, end_offset: int, request_id: int, took_us: int, status: int
    ) -> None:
        for number, (_, end) in enumerate(stretches(put_offsets, end_offset), request_id):
            self.emit(Kind.WAIT_END, offset=end, aux=number, size=took_us, flags=status)


def stretches(put_offsets: bytes, end_offset: int) -> list[tuple[int, int]]:
    """Start and end of each put of a run."""
    starts = [start for start, _ in iter_unpack(">qq", put_offsets)]
    return [*pairwise([*starts, end_offset])]

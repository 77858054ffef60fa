"""The bytes a master has given out: the reference that every log and every frame is compared with."""

from __future__ import annotations

from trioha.store.commit_log import CommitLog


class History:
    """The master's log as the simulation saw it grow, and what it was before a power loss cut it."""

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self._data = bytearray()
        self.boundaries = {first_offset}
        """Offsets at which a record or a file ends."""
        self.version = 0
        """Counts how often the log came back shorter."""
        self.earlier: list[bytes] = []
        """What the log was when it was cut, from `first_offset` on."""

    @property
    def end_offset(self) -> int:
        return self.first_offset + len(self._data)

    def grow(self, log: CommitLog) -> None:
        """Take what one append has added to the master's log."""
        end_offset = self.end_offset
        file_end = end_offset - end_offset % log.file_bytes + log.file_bytes
        if log.max_offset > file_end:
            self.boundaries.add(file_end)
        self.boundaries.add(log.max_offset)
        self._data += bytes_of(log, end_offset, log.max_offset)

    def cut(self, end_offset: int) -> None:
        """The master came back from a power loss with a log that ends at `end_offset`."""
        if end_offset < self.end_offset:
            self.earlier.append(bytes(self._data))
            del self._data[end_offset - self.first_offset :]
            self.boundaries = {offset for offset in self.boundaries if offset <= end_offset}
        self.version += 1

    def part(self, start_offset: int, end_offset: int) -> bytes:
        """Bytes `[start_offset, end_offset)`; fewer if the log does not have them all."""
        start = start_offset - self.first_offset
        return bytes(self._data[start : end_offset - self.first_offset]) if start >= 0 else b""

    def holds(self, start_offset: int, data: bytes) -> bool:
        """Whether the log has `data` at `start_offset`."""
        return self.part(start_offset, start_offset + len(data)) == data

    def held(self, start_offset: int, data: bytes) -> bool:
        """Whether the log has, or had before a power loss, `data` at `start_offset`."""
        start = start_offset - self.first_offset
        if self.holds(start_offset, data):
            return True
        return start >= 0 and any(known[start : start + len(data)] == data for known in self.earlier)


def bytes_of(log: CommitLog, start_offset: int, end_offset: int) -> bytes:
    """Bytes `[start_offset, end_offset)` of a log, across its files."""
    parts = []
    while start_offset < end_offset:
        part = bytes(log.read(start_offset, end_offset - start_offset))
        if not part:
            break
        parts.append(part)
        start_offset += len(part)
    return b"".join(parts)

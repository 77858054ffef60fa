"""The own log of a slave as it follows its master's: the checks that both protocols share."""

from __future__ import annotations

from typing import Final

from trioha.errors import TriohaError
from trioha.ha.bodies import Frame
from trioha.numbers import I64
from trioha.recording.events import CloseReason
from trioha.store.commit_log import CommitLog
from trioha.store.record import RecordError
from trioha.store.replica import ReplicaAppender

EMPTY_HEARTBEATS_MAX: Final = 2
"""So many heartbeats where bytes must follow prove that the master does not have the bytes."""


class ReplicationError(TriohaError):
    """The master's log does not continue the own one, as seen at `offset`."""

    def __init__(self, reason: CloseReason, message: str, *, offset: int) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(message)


class FollowedLog:
    """Appends a master's records to the own log, and compares its bytes with the own tail."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._log = commit_log
        self._appender = ReplicaAppender(commit_log)

    @property
    def next_offset(self) -> int:
        """End of the log and of the part of a record that waits for its rest."""
        return self._appender.next_offset

    def discard(self) -> None:
        """Discard the part of a record that waits for its rest: another connection begins."""
        self._appender.discard()

    def append(self, data: memoryview) -> None:
        """Append the next bytes, as far as their records are whole.

        Raises ReplicationError for bytes that are no records, StoreError if the own disk refuses them.
        """
        try:
            self._appender.append(data)
        except RecordError as error:
            raise ReplicationError(CloseReason.BAD_RECORD, str(error), offset=self._log.max_offset) from error

    def compare(self, data: memoryview, *, offset: int, end_offset: int) -> int:
        """Compare bytes of the master from `offset` on with the own ones, which are there up to `end_offset`.

        Returns how many were compared. Raises ReplicationError at the first byte that differs.
        """
        compared = 0
        while (left_bytes := min(len(data) - compared, end_offset - offset - compared)) > 0:
            with self._log.read(offset + compared, left_bytes) as slice_:
                own = bytes(slice_)
            theirs = bytes(data[compared : compared + len(own)])
            if own != theirs:
                at = next(index for index in range(len(own)) if own[index] != theirs[index])
                differs_at = offset + compared + at
                raise ReplicationError(
                    CloseReason.DIVERGED,
                    f"own log and the master's must be the same up to {end_offset}, but differ at offset "
                    f"{differs_at}",
                    offset=differs_at,
                )
            compared += len(own)
        return compared

    def tail_start(self, end_offset: int, *, check_bytes: int) -> int:
        """Start of a record up to `check_bytes` before `end_offset`, in the same file, or of the last record.

        Never 0, which would request the master's last file, or its first byte. From 1 the whole log is
        compared, its first record included. `check_bytes` of 0 gives `end_offset`.
        """
        log = self._log
        file_start = (end_offset - 1) - (end_offset - 1) % log.file_bytes
        wanted = max(end_offset - check_bytes, file_start, 1)
        if wanted == 1:
            return 1
        start = log.starts.first_from(wanted)
        if start >= end_offset and check_bytes:
            # The last record or blank is longer than the check, which would compare nothing else.
            return max(log.starts.last(before=end_offset), 1)
        return start

    def check_offset(self, frame: Frame) -> None:
        """Raise ReplicationError for an offset that no log has: a report cannot hold the end of its file."""
        if frame.offset > I64.high - 2 * self._log.file_bytes:
            raise ReplicationError(
                CloseReason.BAD_SIZE, f"frame at {frame.offset}: no log is so long", offset=frame.offset
            )

    def check_end(self, frame: Frame) -> None:
        """Raise ReplicationError for a body that crosses a file's end."""
        if frame.offset % self._log.file_bytes + frame.body_bytes > self._log.file_bytes:
            raise ReplicationError(
                CloseReason.BAD_SIZE,
                f"frame of {frame.body_bytes} bytes at {frame.offset} crosses a file's end",
                offset=frame.offset,
            )


def offset_mismatch(frame: Frame, *, expected: int) -> ReplicationError:
    """The error of a frame that does not continue the own log, and does not show why."""
    return ReplicationError(
        CloseReason.OFFSET_MISMATCH,
        f"master pushed offset not equal the max phy offset in slave, SLAVE: {expected} "
        f"MASTER: {frame.offset}",
        offset=frame.offset,
    )

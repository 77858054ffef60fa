"""The rules by which a slave replicates its master's log, without I/O.

Theory of operation. A slave requests bytes from `begin()` on and passes frames to the session. A connection
has three phases:

1. Tail check. A slave that has a log requests from a record up to `tail_check_bytes` before its own end, or
   from its last record, and compares the frames with its own bytes: so a master that was restored from
   elsewhere, or that lost its tail in a crash and went on, is found before any new byte is appended. Nothing
   beyond the request is acknowledged in this phase. An unmodified master sees a slave that lags a little.
2. New bytes, appended as whole records, each checked as `verify` requires.
3. Heartbeats, while there are no new bytes.

An empty slave starts as `start` requires. RocketMQ serves an empty slave (report 0) from the last file only,
but serves any offset above 0 (docs/protocol/ha.md#where-a-master-starts). So `EARLIEST` requests from offset
1 and restores byte 0, which is zero in every first record below 16 MiB; the first record is checked like any
other before anything is acknowledged. A master without its first files sends nothing from there: then the
slave searches for the first file that is served, halving the range with each connection (PROBED), and starts
there. A master takes each request for an ack. So the search requests the start of a later file only when no
put before it can wait any more: `WAITED_S` after the master was seen to have a later one.

A frame that does not continue the own log raises `ReplicationError` with a `CloseReason`:

| reason | evidence |
|---|---|
| DIVERGED | a byte of the tail differs |
| AHEAD | the master's log ends before the own end or start: a heartbeat at a lower offset, or two in a row |
| GAP | the master's log starts after the request: a heartbeat at a higher offset, or two before any byte |
| OFFSET_MISMATCH, BAD_SIZE, BAD_RECORD | the peer does not speak the protocol, or sends damaged records |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

import trio
from attrs import define, frozen

from trioha.config.keys.ha import StartFrom
from trioha.ha.followed_log import EMPTY_HEARTBEATS_MAX, FollowedLog, ReplicationError, offset_mismatch
from trioha.ha.frames import FrameHeader
from trioha.ha.set_aside import has_set_aside
from trioha.recording.events import CloseReason
from trioha.store.commit_log import CommitLog

WAITED_S: Final = 60.0
"""No put waits for an ack so long."""
FIRST_BYTE: Final = b"\0"
"""Byte 0 of a log whose first record is shorter than 16 MiB."""


@frozen
class ReplicationSettings:
    """How a slave starts and what it checks."""

    tail_check_bytes: int = 64 * 1024
    """trioha.haTailCheck: how much of the own end is compared, but always the last record; 0 compares
    nothing."""
    start: StartFrom | int | None = None
    """trioha.haStartFrom, for an empty log; an offset is rounded down to its file's start. None: the last
    file, or all history after a log was set aside, so that the replica holds no less than before."""


@define
class _FirstFileSearch:
    """Binary search for the first file of a master that does not report it (a RocketMQ master).

    Report 0 gives the last file. Then each connection requests one file start: data shows that the file is
    there, a heartbeat that it is not. A master that sent nothing from file 0 before may have it by now, so it
    is requested again (from offset 1, since 0 requests the last file).
    """

    file_bytes: int
    found_offset: int | None = None
    """Start of the first file, None during the search."""
    _missing: int = -1
    """Highest number of a file that is known to be gone."""
    _served: int | None = None
    """Lowest number of a file that is known to be there."""
    _waited_until_s: float | None = None
    """From then on no put waits that is before the first file that was known to be there."""

    def request_offset(self, now_s: float) -> int:
        """What to request on the next connection; 0 to look again later."""
        if self._served is None:
            return 0
        if self._waited_until_s is None:
            self._waited_until_s = now_s + WAITED_S
        if now_s < self._waited_until_s:
            # Offset 1 acknowledges no put.
            return 1 if self._missing < 0 else 0
        return max((self._missing + self._served) // 2 * self.file_bytes, 1)

    def handle_answer(self, header: FrameHeader, *, request_offset: int) -> None:
        """Narrow the range by the first header after a request."""
        number = header.offset // self.file_bytes
        if self._served is not None and request_offset == 0:
            # The master's last file, which may be a later one by now.
            return
        if self._served is None or header.body_bytes:
            self._served = number
        else:
            self._missing = number
        if self._served - self._missing <= 1:
            self.found_offset = self._served * self.file_bytes


class ReplicationSession:
    """Replicates a master's log into the own one, over one connection after the other."""

    def __init__(
        self,
        commit_log: CommitLog,
        settings: ReplicationSettings,
        *,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        """`clock` has seconds."""
        self._log = commit_log
        self._clock = clock
        self._settings = settings
        self._own = FollowedLog(commit_log)
        self._request_offset = 0
        """The first report of the connection: until the tail check is over only this may be acknowledged."""
        self._compared_offset = 0
        """Next byte of the tail check; the log's end when it is over."""
        self._empty_heartbeats = 0
        self._restores_first_byte = False
        self._search: _FirstFileSearch | None = None
        """For the master's first file; lasts over connections."""
        self._is_searching = False

    def begin(self, *, at_most: int | None = None) -> int:
        """Begin a new connection; returns its first report, which is at most `at_most` if that is given."""
        log = self._log
        self._own.discard()
        self._empty_heartbeats = 0
        self._restores_first_byte = False
        self._is_searching = False
        self._request_offset = self._empty_start() if log.is_empty else self._tail_start()
        if at_most is not None:
            # Not 0, which would request the last file; not before the own log, where nothing can be compared
            # and the master may have nothing either.
            self._request_offset = max(min(self._request_offset, at_most), log.min_offset, 1)
        self._compared_offset = min(self._request_offset, log.max_offset)
        return self._request_offset

    def _empty_start(self) -> int:
        start = self._settings.start
        log = self._log
        if log.max_offset:
            # An earlier connection started at a file start and received nothing.
            return log.max_offset
        if start is None:
            start = StartFrom.EARLIEST if has_set_aside(log.directory) else StartFrom.LAST_FILE
        if start is StartFrom.LAST_FILE:
            return 0
        if self._search is not None:
            if self._search.found_offset is None:
                self._is_searching = True
                return self._search.request_offset(self._clock())
            log.start_at(self._search.found_offset)
            return self._search.found_offset
        if start is StartFrom.EARLIEST or start < log.file_bytes:
            self._restores_first_byte = True
            return 1
        offset = start - start % log.file_bytes
        log.start_at(offset)
        return offset

    def _tail_start(self) -> int:
        """Where the tail check starts."""
        return self._own.tail_start(self._log.max_offset, check_bytes=self._settings.tail_check_bytes)

    @property
    def ack_offset(self) -> int:
        """What may be acknowledged now: during the tail check only the request."""
        return self._log.max_offset if self.is_checked else self._request_offset

    @property
    def is_checked(self) -> bool:
        """Whether the tail check is over: the own tail equals the master's, or the own log is empty."""
        return self._compared_offset >= self._log.max_offset or self._log.is_empty

    @property
    def next_offset(self) -> int:
        """Offset that the next frame must have."""
        if self._restores_first_byte:
            return 1
        if self._is_searching:
            return self._request_offset
        return self._own.next_offset if self.is_checked else self._compared_offset

    def receive_header(self, header: FrameHeader) -> None:
        """Check the header of the next frame. Raises ReplicationError if the frame does not continue the
        log."""
        if self._is_searching:
            assert self._search is not None
            self._search.handle_answer(header, request_offset=self._request_offset)
            if self._search.found_offset == 0:
                # The first file is there after all, or the log is empty: report 0 would request the last
                # file.
                self._search = None
            raise ReplicationError(
                CloseReason.PROBED,
                f"looked for the master's first file at {self._request_offset}",
                offset=header.offset,
            )
        self._own.check_offset(header)
        if header.offset != self.next_offset:
            self._handle_other_offset(header)
        self._own.check_end(header)
        if header.body_bytes:
            self._empty_heartbeats = 0
        elif not self.is_checked or self._restores_first_byte:
            self._handle_missing_bytes(header.offset)

    def _handle_other_offset(self, header: FrameHeader) -> None:
        """Handle another offset than the next one: an empty log may start there, or it shows what is
        wrong."""
        log = self._log
        expected = self.next_offset
        if self._restores_first_byte and header.body_bytes == 0 and header.offset % log.file_bytes == 0:
            # A trioha master answers with the start of its log.
            self._search = _FirstFileSearch(log.file_bytes, found_offset=header.offset)
            raise ReplicationError(
                CloseReason.PROBED, f"the master's log begins at {header.offset}", offset=header.offset
            )
        if log.is_empty and not self._restores_first_byte and self._own.next_offset == log.max_offset:
            if header.body_bytes == 0 and header.offset < expected:
                self._handle_end_before_start(header.offset)
            if header.offset % log.file_bytes == 0 and header.offset > expected:
                log.start_at(header.offset)
                self._compared_offset = header.offset
                return
        elif header.body_bytes == 0 and header.offset < expected:
            # A trioha master answers a request beyond its log with the end of its log.
            raise ReplicationError(
                CloseReason.AHEAD,
                f"own log ends at {log.max_offset}, the master's at {header.offset}",
                offset=header.offset,
            )
        elif header.body_bytes == 0 and header.offset > expected and not self.is_checked:
            raise ReplicationError(
                CloseReason.GAP,
                f"the master's log begins at {header.offset}, asked was {expected}",
                offset=header.offset,
            )
        raise offset_mismatch(header, expected=expected)

    def _handle_end_before_start(self, master_end_offset: int) -> NoReturn:
        """The master's log ends before the start of the empty own one."""
        log = self._log
        start = self._settings.start
        if isinstance(start, int) and start - start % log.file_bytes == log.max_offset:
            raise ReplicationError(
                CloseReason.AHEAD,
                f"told to begin at {start}, the master's log ends at {master_end_offset}",
                offset=master_end_offset,
            )
        # That start is of an earlier connection, and nothing was received since: a new request loses nothing.
        # To continue on this connection would make reports go back.
        log.start_at(0)
        raise ReplicationError(
            CloseReason.PROBED,
            f"the master's log ends at {master_end_offset}, before the start of the empty own one",
            offset=master_end_offset,
        )

    def _handle_missing_bytes(self, offset: int) -> None:
        """Handle a heartbeat where bytes must follow: the own tail may be missing in the master's log."""
        self._empty_heartbeats += 1
        if self._empty_heartbeats < EMPTY_HEARTBEATS_MAX:
            return
        if self._restores_first_byte:
            self._search = _FirstFileSearch(self._log.file_bytes)
            raise ReplicationError(
                CloseReason.PROBED, "the master's first file is gone, or it is empty", offset=1
            )
        if offset == self._request_offset:
            raise ReplicationError(
                CloseReason.GAP,
                f"the master has nothing at {offset}, where the own log goes on to {self._log.max_offset}: "
                "its log begins behind that or ends before it",
                offset=offset,
            )
        raise ReplicationError(
            CloseReason.AHEAD,
            f"own log ends at {self._log.max_offset}, the master's at {offset}",
            offset=offset,
        )

    def receive_body(self, data: memoryview) -> None:
        """Compare or append bytes of the frame. Raises ReplicationError if they differ from the own ones or
        are not records, StoreError if the own disk refuses them.
        """
        if self._restores_first_byte:
            self._restores_first_byte = False
            self._append(memoryview(FIRST_BYTE))
        elif not self.is_checked:
            data = data[self._compare(data) :]
        if data:
            self._append(data)

    def _append(self, data: memoryview) -> None:
        self._own.append(data)
        self._compared_offset = self._log.max_offset

    def _compare(self, data: memoryview) -> int:
        """Compare with the own tail; returns the number of bytes compared."""
        compared = self._own.compare(data, offset=self._compared_offset, end_offset=self._log.max_offset)
        self._compared_offset += compared
        return compared

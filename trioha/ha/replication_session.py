"""What a slave takes from its master, decided without I/O.

Theory of operation. A slave asks its master for bytes from `begin()` on and hands over what comes. Three
stretches follow each other:

1. The tail check. A slave that has a log asks from a record up to `tail_check_bytes` before its own end, or
   from its last record, and compares what comes with what it holds: a master that was restored from
   elsewhere, or that lost its tail in a crash and went on, is found out before anything new is taken.
   Nothing is acknowledged here beyond what was asked from. Unmodified masters serve this: to them it is a
   slave that is a little behind.
2. New bytes, appended as whole records, each checked as `verify` says.
3. Heartbeats, when there is nothing more.

An empty slave takes the log as `start` says. RocketMQ serves an empty slave (report 0) from the last file
only, but serves any offset above 0 (spec ha 2.2). So `EARLIEST` asks from offset 1 and puts back byte 0, a
zero in every first record below 16 MiB; the first record is checked like every other before anything is
acknowledged. Where the master's first files are gone nothing comes from there: then the slave looks for the
first file that is served, halving the range with each connection (PROBED), and begins at its start.

What does not fit raises `ReplicationError` with a `CloseReason`:

| reason | how it shows |
|---|---|
| DIVERGED | a byte of the tail differs |
| AHEAD | the master's log ends before the own end or start: it says a lower offset, or twice nothing |
| GAP | the master's log begins behind what was asked for: it says a higher offset, or twice nothing at all |
| OFFSET_MISMATCH, BAD_SIZE, BAD_RECORD | the peer does not speak the protocol, or sends damaged records |
"""

from __future__ import annotations

from typing import NoReturn

from attrs import define, frozen

from trioha.config.model import HaVerify, StartFrom
from trioha.errors import TriohaError
from trioha.ha.frames import FrameHeader
from trioha.numbers import I64
from trioha.recording.events import CloseReason
from trioha.store.commit_log import CommitLog
from trioha.store.record import RecordError
from trioha.store.replica import ReplicaAppender

EMPTY_HEARTBEATS_MAX = 2
"""So many heartbeats without the bytes that must be there prove that they are not."""
FIRST_BYTE = b"\0"
"""Byte 0 of a log whose first record is shorter than 16 MiB."""


class ReplicationError(TriohaError):
    """The master's log does not continue the own one; `offset` is where that shows."""

    def __init__(self, reason: CloseReason, message: str, *, offset: int) -> None:
        self.reason = reason
        self.offset = offset
        super().__init__(message)


@frozen
class ReplicationSettings:
    """How a slave begins."""

    tail_check_bytes: int = 64 * 1024
    """trioha.haTailCheck: how much of the own end is compared at most, but the last record always; 0 compares
    nothing."""
    start: StartFrom | int = StartFrom.LAST_FILE
    """trioha.haStartFrom: for an empty log; an offset is rounded down to its file's start."""
    verify: HaVerify = HaVerify.RECORD
    """trioha.haVerify: what is checked before bytes are appended."""


@define
class _FirstFileSearch:
    """Where the log of a master begins that serves any offset from its first byte on and does not tell it.

    Each connection asks for one file start: its data shows that the file is there, a heartbeat that it is
    not. Before that, report 0 gives the last file. What showed before does not count: a master that had
    nothing may have its first file by now: it is asked for again (from offset 1, since 0 means the last).
    """

    file_bytes: int
    found_offset: int | None = None
    """Start of the first file that is there, None while it is looked for."""
    _missing: int = -1
    """Highest file number known to be gone."""
    _served: int | None = None
    """Lowest file number known to be there."""

    @property
    def ask_offset(self) -> int:
        """What to ask for on the next connection."""
        if self._served is None:
            return 0
        return max((self._missing + self._served) // 2 * self.file_bytes, 1)

    def learn(self, header: FrameHeader) -> None:
        """The answer to `ask_offset`."""
        number = header.offset // self.file_bytes
        if self._served is None or header.body_bytes:
            self._served = number
        else:
            self._missing = number
        if self._served - self._missing <= 1:
            self.found_offset = self._served * self.file_bytes


class ReplicationSession:
    """One connection's worth of a master's log, taken into the own one."""

    def __init__(self, commit_log: CommitLog, settings: ReplicationSettings) -> None:
        self._log = commit_log
        self._settings = settings
        self._appender = ReplicaAppender(commit_log, boundaries_only=settings.verify is HaVerify.FRAME)
        self._asked_offset = 0
        """What the first report said; nothing before it was promised by this connection's master."""
        self._compared_offset = 0
        """Next byte of the tail check; the log's end when it is over."""
        self._empty_heartbeats = 0
        self._restores_first_byte = False
        self._search: _FirstFileSearch | None = None
        """Looks for the master's first file; kept from connection to connection."""
        self._probes = False

    def begin(self, *, at_most: int | None = None) -> int:
        """The first report of a new connection: the offset to go on from, if given not beyond `at_most`."""
        log = self._log
        self._appender.discard()
        self._empty_heartbeats = 0
        self._restores_first_byte = False
        self._probes = False
        self._asked_offset = self._empty_start() if log.is_empty else self._tail_start()
        if at_most is not None:
            # Byte 1 is not 0, which would ask for the last file, and behind no record's end; what comes
            # before the own log cannot be compared, and the master may not have it either.
            self._asked_offset = max(min(self._asked_offset, at_most), log.min_offset, 1)
        self._compared_offset = min(self._asked_offset, log.max_offset)
        return self._asked_offset

    def _empty_start(self) -> int:
        start = self._settings.start
        log = self._log
        if log.max_offset:
            # It began at a file start before, and got nothing yet.
            return log.max_offset
        if start is StartFrom.LAST_FILE:
            return 0
        if self._search is not None:
            if self._search.found_offset is None:
                self._probes = True
                return self._search.ask_offset
            log.start_at(self._search.found_offset)
            return self._search.found_offset
        if start is StartFrom.EARLIEST or start < log.file_bytes:
            self._restores_first_byte = True
            return 1
        offset = start - start % log.file_bytes
        log.start_at(offset)
        return offset

    def _tail_start(self) -> int:
        """A record near the log's end, in its last file, and not at 0, which would ask for the last file."""
        log = self._log
        end_offset = log.max_offset
        file_start = (end_offset - 1) - (end_offset - 1) % log.file_bytes
        wanted = max(end_offset - self._settings.tail_check_bytes, file_start, 1)
        # A log that is compared whole is compared from byte 1: its first record counts, too.
        start = wanted if wanted == 1 else log.first_record_from(wanted)
        if start == end_offset and self._settings.tail_check_bytes:
            # The last record or blank is longer than the check: without it nothing would be compared.
            return max(log.last_record_offset(), 1)
        return start

    @property
    def ack_offset(self) -> int:
        """What may be acknowledged now: during the tail check no more than what was asked from."""
        return self._log.max_offset if self.is_checked else self._asked_offset

    @property
    def is_checked(self) -> bool:
        """Whether the own tail was found to be the master's, or there is none."""
        return self._compared_offset >= self._log.max_offset or self._log.is_empty

    @property
    def next_offset(self) -> int:
        """Offset that the next frame must have."""
        if self._restores_first_byte:
            return 1
        if self._probes:
            return self._asked_offset
        return self._appender.next_offset if self.is_checked else self._compared_offset

    def receive_header(self, header: FrameHeader) -> None:
        """A frame begins; raises ReplicationError if it cannot be taken."""
        log = self._log
        if self._probes:
            assert self._search is not None
            self._search.learn(header)
            if self._search.found_offset == 0:
                # It has its first file after all, or nothing at all yet: report 0 would ask for the last one.
                self._search = None
            raise ReplicationError(
                CloseReason.PROBED,
                f"looked for the master's first file at {self._asked_offset}",
                offset=header.offset,
            )
        file_bytes = log.file_bytes
        if header.offset > I64.high - 2 * file_bytes:
            # The end of its file would be no offset that a report can say.
            raise ReplicationError(
                CloseReason.BAD_SIZE, f"frame at {header.offset}: no log is so long", offset=header.offset
            )
        if header.offset != self.next_offset:
            self._handle_other_offset(header)
        if header.offset % file_bytes + header.body_bytes > file_bytes:
            raise ReplicationError(
                CloseReason.BAD_SIZE,
                f"frame of {header.body_bytes} bytes at {header.offset} crosses a file's end",
                offset=header.offset,
            )
        if header.body_bytes:
            self._empty_heartbeats = 0
        elif not self.is_checked or self._restores_first_byte:
            self._take_empty_heartbeat(header.offset)

    def _handle_other_offset(self, header: FrameHeader) -> None:
        """Another offset than the next one: an empty log may begin there; a heartbeat may say why not."""
        log = self._log
        expected = self.next_offset
        if self._restores_first_byte and header.body_bytes == 0 and header.offset % log.file_bytes == 0:
            # A trioha master says where its log begins.
            self._search = _FirstFileSearch(log.file_bytes, found_offset=header.offset)
            raise ReplicationError(
                CloseReason.PROBED, f"the master's log begins at {header.offset}", offset=header.offset
            )
        if log.is_empty and not self._restores_first_byte and self._appender.next_offset == log.max_offset:
            if header.body_bytes == 0 and header.offset < expected:
                self._take_end_before_start(header.offset)
            if header.offset % log.file_bytes == 0 and header.offset > expected:
                log.start_at(header.offset)
                self._compared_offset = header.offset
                return
        elif header.body_bytes == 0 and header.offset < expected:
            # A trioha master says where its log ends before it sends away who asks for more.
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
        raise ReplicationError(
            CloseReason.OFFSET_MISMATCH,
            f"master pushed offset not equal the max phy offset in slave, SLAVE: {expected} "
            f"MASTER: {header.offset}",
            offset=header.offset,
        )

    def _take_end_before_start(self, master_end_offset: int) -> NoReturn:
        """The master's log ends before the empty own one begins."""
        log = self._log
        start = self._settings.start
        if isinstance(start, int) and start - start % log.file_bytes == log.max_offset:
            raise ReplicationError(
                CloseReason.AHEAD,
                f"told to begin at {start}, the master's log ends at {master_end_offset}",
                offset=master_end_offset,
            )
        # It was given that start before it got anything. Nothing is lost by asking anew; to go on from here
        # on this connection would make the reports go back.
        log.start_at(0)
        raise ReplicationError(
            CloseReason.PROBED,
            f"the master's log ends at {master_end_offset}, before the start of the empty own one",
            offset=master_end_offset,
        )

    def _take_empty_heartbeat(self, offset: int) -> None:
        """Nothing where bytes must be: the own tail is not in the master's log."""
        self._empty_heartbeats += 1
        if self._empty_heartbeats < EMPTY_HEARTBEATS_MAX:
            return
        if self._restores_first_byte:
            self._search = _FirstFileSearch(self._log.file_bytes)
            raise ReplicationError(
                CloseReason.PROBED, "the master's first file is gone, or it is empty", offset=1
            )
        if offset == self._asked_offset:
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
        """Some bytes of the frame; raises ReplicationError where they differ from the own ones or are no
        records.

        StoreError if the own disk refuses them.
        """
        if self._restores_first_byte:
            self._restores_first_byte = False
            self._append(memoryview(FIRST_BYTE))
        elif not self.is_checked:
            data = data[self._compare(data) :]
        if data:
            self._append(data)

    def _append(self, data: memoryview) -> None:
        try:
            self._appender.append(data)
        except RecordError as error:
            raise ReplicationError(CloseReason.BAD_RECORD, str(error), offset=self._log.max_offset) from error
        self._compared_offset = self._log.max_offset

    def _compare(self, data: memoryview) -> int:
        """Compare with the own tail; returns how many bytes of `data` belonged to it."""
        offset = self._compared_offset
        taken = 0
        while taken < len(data) and offset < self._log.max_offset:
            with self._log.read(offset, len(data) - taken) as slice_:
                own = bytes(slice_)
            theirs = bytes(data[taken : taken + len(own)])
            if own != theirs:
                differs_at = next(index for index in range(len(own)) if own[index] != theirs[index])
                raise ReplicationError(
                    CloseReason.DIVERGED,
                    f"own log and the master's differ at offset {offset + differs_at}",
                    offset=offset + differs_at,
                )
            offset += len(own)
            taken += len(own)
        self._compared_offset = offset
        return taken

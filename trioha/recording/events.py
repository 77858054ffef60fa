"""The events of a recorded session, and the sink that receives them.

An event is one 48-byte little-endian record (`RECORD`):

| offset | type | field  | meaning |
|---|---|---|---|
| 0  | i64 | ts_ns  | monotonic clock |
| 8  | i64 | seq    | gapless number of the record; what was dropped is one DROPPED record with its count |
| 16 | u8  | kind   | `Kind` |
| 17 | u8  | flags  | state, status, direction or reason code of the kind |
| 18 | u16 | node   | brokerId |
| 20 | i32 | conn   | connection number, -1 for none |
| 24 | i64 | offset | the kind's own offset, bytes |
| 32 | i64 | aux    | on every connection record of a master: the master's max offset at that moment |
| 40 | i32 | size   | bytes or a count |
| 44 | u32 | check  | xor of the other eleven 32-bit words |

Mirrors the session format, version 1 (docs/session-format.md).
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, Protocol

from trioha.store.put_status import PutStatus as PutStatus  # noqa: PLC0414 (re-exported)

RECORD = Struct("<qqBBHiqqiI")
RECORD_BYTES = 48
assert RECORD.size == RECORD_BYTES

NO_CONNECTION = -1
"""`conn` of an event that belongs to no connection."""


class Kind(IntEnum):
    """Kind of an event. Readers ignore unknown kinds."""

    PUT = 1
    """offset: end after the append; aux: request id; size: record bytes."""
    FLUSHED = 2
    """offset: flushed offset; aux: duration in ns."""
    DISPATCHED = 3
    """offset: dispatched offset; size: records."""
    STATE = 10
    """offset: own max (slave) or ack offset (master); aux: master max; flags: the new `HaState`."""
    REQUESTED = 11
    """offset: first report of a slave; aux: master max."""
    TRANSFER = 12
    """offset: start of the frame; aux: master max; size: body bytes."""
    HEARTBEAT = 13
    """offset: next offset of the master's, reported offset of the slave's; aux: master max; flags:
    `Direction`."""
    ACK = 14
    """offset: acknowledged offset; aux: master max."""
    REFUSED = 15
    """offset: the offset or size that was refused; aux: master max; flags: `CloseReason`."""
    CLOSED = 16
    """offset: last ack (master) or own max (slave); aux: master max; flags: `CloseReason`."""
    WAIT_BEGIN = 20
    """offset: waited for; aux: request id; size: copies needed, the master's included."""
    WAIT_END = 21
    """offset: waited for; aux: request id; size: waiting time in us; flags: `PutStatus`."""
    RECEIVED = 30
    """offset: start of the frame; aux: own max after the append; size: body bytes."""
    REPORTED = 31
    """offset: offset reported; aux: own max."""
    METADATA = 40
    """offset: data version counter; aux: duration in ns; size: entries; flags: which table, and whether it
    changed."""
    LINK = 50
    """aux: bytes per second; size: pause before the next try in ms; flags: `LinkEvent`."""
    KEYFRAME = 60
    """offset, aux: as of the kind that it stands for; size: likewise, of STATE and HEARTBEAT their flags;
    flags: that kind."""
    DROPPED = 61
    """aux: how many events were dropped here."""
    ROLE = 70
    """offset: end of the log; aux: the master's epoch, -1 without a role; size: id from the controllers, -1
    without one; flags: the new `GroupRole`, and the former one times 16."""
    EPOCH = 71
    """offset: where it begins; aux: epoch; size: id from the controllers; flags: own `GroupRole`."""
    SYNC_STATE_SET = 72
    """offset: confirm offset; aux: set epoch; size: members; flags: `SetEvent`."""
    CONFIRMED = 73
    """offset: confirm offset; aux: end of the log."""
    LOG_CUT = 74
    """offset: begin of the bytes of one epoch that were cut; aux: their end; size: the epoch."""
    CONTROLLER = 75
    """flags: `ControllerEvent`."""


class HaState(IntEnum):
    """State of an HA connection: RocketMQ's names and ordinals."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


class Direction(IntEnum):
    """Direction of a heartbeat, seen from the recording node."""

    SENT = 0
    RECEIVED = 1


class LinkEvent(IntEnum):
    """Event of a slave's link to its master (LINK)."""

    CONNECTING = 0
    CONNECTED = 1
    BACK_OFF = 2
    """The connection was lost or refused; aux is 0, size the pause before the next try in ms."""


class GroupRole(IntEnum):
    """Role that controllers gave to a broker (ROLE, EPOCH)."""

    NONE = 0
    MASTER = 1
    SLAVE = 2


OLD_ROLE_SHIFT = 4
"""Bits by which the former role of a ROLE is shifted in `flags`."""


class SetEvent(IntEnum):
    """What happened to the sync-state set (SYNC_STATE_SET)."""

    CHANGED = 0
    """The controllers have this set; also the first one of a master."""
    PROPOSED = 1
    """The master asked for it; aux is the set epoch that it knows."""
    REFUSED = 2
    """It is not the controllers' set: they refused it, or were not asked."""
    UNDECIDED = 3
    """No answer came, or none that decides: it may be the controllers' set."""


class ControllerEvent(IntEnum):
    """What happened to the leading controller, as a broker knows it (CONTROLLER)."""

    LOST = 0
    LEADER = 1
    """The fact before it has its address."""


class CloseReason(IntEnum):
    """Why an HA connection ended. Expected ends are values, not exceptions."""

    NONE = 0
    EOF = 1
    """The peer closed its side."""
    IO_ERROR = 2
    """Reset, broken pipe, or another failure of the socket."""
    HOUSEKEEPING = 3
    """No bytes were read for haHousekeepingInterval."""
    SHUTDOWN = 4
    """This node stops."""
    ACK_BEYOND_SENT = 5
    """The slave acknowledged more than it was sent on this connection."""
    ACK_WENT_BACK = 6
    """The slave acknowledged less than before."""
    OFFSET_MISMATCH = 7
    """The master pushed an offset that is not this slave's max."""
    BAD_SIZE = 8
    """A frame of negative or oversized length, or one that crosses a file end."""
    REQUEST_ABOVE_MAX = 9
    """The slave requested bytes beyond the master's log: it is ahead, or has another log."""
    REQUEST_BELOW_MIN = 10
    """The slave requested bytes that the master has deleted."""
    MASTER_CHANGED = 11
    """The slave's master address changed."""
    BAD_RECORD = 12
    """A record whose length, magic, position or CRC is wrong."""
    CONNECT_FAILED = 13
    """No connection could be made."""
    STORE_ERROR = 14
    """The disk refused the bytes: the slave's to store them, or the master's to read them."""
    GAP = 15
    """The master no longer has the bytes after the end of the slave's log."""
    AHEAD = 16
    """The slave's log ends after the master's."""
    DIVERGED = 17
    """The slave holds other bytes than the master."""
    NOT_ALLOWED = 18
    """The peer is not in the allow-list, or too many connections are open."""
    PROBED = 19
    """The slave connected only to find where the master's log starts, and has found it."""
    NO_REQUEST = 20
    """The peer sent no request in time."""
    LOG_RESTARTED = 21
    """The log that this connection served was archived, or starts at another offset now."""
    INTERNAL_ERROR = 22
    """A fault of this program ended the connection."""
    REPLACED = 23
    """A newer connection of the same broker took its place (controller mode)."""
    NO_EPOCH = 24
    """The slave requested bytes that no epoch of the master's log names (controller mode)."""
    CUT_REFUSED = 25
    """The slave would have to cut what was confirmed to producers, and keeps it (controller mode)."""
    OTHER_MASTER = 26
    """The broker at the master's address has another name or another file size: nothing was copied."""


def code_name(names: type[IntEnum], code: int) -> str:
    """Name of a code of a record; a code that is new here is shown by its number."""
    try:
        return names(code).name
    except ValueError:
        return str(code)


PUT_OFFSETS_BYTES: Final = 16
"""Of a put in the `put_offsets` of a run: physical offset and queue offset, as big-endian i64."""


def first_offset(put_offsets: bytes) -> int:
    """Physical offset of the first put."""
    return int.from_bytes(put_offsets[:8], "big", signed=True)


class EventSink(Protocol):
    """Receives events as they happen: a recorder, or nothing. Its methods never block and never fail."""

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
        """Report one event, stamped with the monotonic clock now."""

    def put_and_wait(self, *, offset: int, size: int, request_id: int, copies: int) -> None:
        """Report PUT and WAIT_BEGIN of one put with one call, and one reading of the clock.

        `offset` is the end after the append, `size` that of the record in bytes, `copies` what is needed, the
        master's included.
        """

    def puts_and_waits(self, *, put_offsets: bytes, end_offset: int, request_id: int, copies: int) -> None:
        """As `put_and_wait` of each put of a run that is stored without a gap, up to `end_offset`.

        `put_offsets` is what the append has returned, `PUT_OFFSETS_BYTES` for each put; `request_id` is of
        the first.
        """

    def waits_ended(
        self, *, put_offsets: bytes, end_offset: int, request_id: int, took_us: int, status: int
    ) -> None:
        """Report WAIT_END of each put of a run that has waited for `took_us` and has this status."""

    def fact(self, type_: str, **fields: object) -> None:
        """Report what does not fit an event: a connection's addresses, a changed setting, a note."""


class NoSink:
    """Discards events: the sink of a node that does not record."""

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
        """Discard an event."""

    def put_and_wait(self, *, offset: int, size: int, request_id: int, copies: int) -> None:
        """Discard two events."""

    def puts_and_waits(self, *, put_offsets: bytes, end_offset: int, request_id: int, copies: int) -> None:
        """Discard two events of each put."""

    def waits_ended(
        self, *, put_offsets: bytes, end_offset: int, request_id: int, took_us: int, status: int
    ) -> None:
        """Discard an event of each put."""

    def fact(self, type_: str, **fields: object) -> None:
        """Discard a fact."""

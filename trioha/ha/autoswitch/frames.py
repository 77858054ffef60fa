"""The HA wire format of controller mode, all integers big-endian.

See docs/protocol/ha.md#controller-mode-frames.

| direction | bytes | layout |
|---|---|---|
| slave to master, handshake | 16 | i32 1, i16 is sync from last file, i16 is async learner, i64 broker id |
| slave to master, report | 12 | i32 2, i64 the slave's max offset |
| master to slave, handshake | 20 + 12 n | i32 1, i32 12 n, i64 the master's max offset, i32 its last epoch; n times i32 epoch, i64 its start offset |
| master to slave, data or heartbeat | 36 + size | i32 2, i32 size, i64 offset, i32 epoch, i64 the epoch's start offset, i64 confirm offset; `size` bytes of commit log |

The first number is the sender's `HaState`. The slave's handshake comes first; the master's is the answer. A
frame's bytes are all of one epoch, but the one that reaches the end of an epoch names the next epoch instead
of its own (docs/protocol/ha.md#handshake-and-transfer). A master without a log sends heartbeats at offset -1.
"""  # noqa: E501 - lines of a table

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from attrs import frozen

from trioha.errors import RemoteProtocolError
from trioha.ha.bodies import BodyPart, FrameDecoder
from trioha.recording.events import HaState
from trioha.store.epochs import EpochEntry

SLAVE_HANDSHAKE = Struct(">ihhq")
SLAVE_HANDSHAKE_BYTES = 16
REPORT = Struct(">iq")
REPORT_BYTES = 12
MASTER_HANDSHAKE = Struct(">iiqi")
MASTER_HANDSHAKE_BYTES = 20
ENTRY = Struct(">iq")
ENTRY_BYTES = 12
TRANSFER_HEADER = Struct(">iiqiqq")
TRANSFER_HEADER_BYTES = 36
_STATE = Struct(">i")
_STATE_BYTES = 4

HANDSHAKE = int(HaState.HANDSHAKE)
TRANSFER = int(HaState.TRANSFER)

NO_OFFSET = -1
"""Offset of the heartbeats of a master that has no log file yet."""
BODY_BYTES_MAX = 4 * 1024 * 1024 - TRANSFER_HEADER_BYTES
"""Longest body that fits the 4 MiB buffer of a RocketMQ slave."""
EPOCHS_MAX = 10_000
"""Most epochs that a handshake may list. RocketMQ's master cannot send more than 1,000
(docs/protocol/ha.md#controller-mode-frames)."""


@frozen
class SlaveHandshake:
    """What a slave says first."""

    is_sync_from_last_file: bool
    """syncFromLastFile: whether an empty slave starts with the last file, not with the first."""
    is_async_learner: bool
    """asyncLearner: whether the slave stays outside of the sync-state set."""
    broker_id: int
    """The slave's id in its group, which the controller gave it."""


@frozen
class SlaveReport:
    """A slave's report or heartbeat."""

    max_offset: int
    """End of the slave's log."""


@frozen
class MasterHandshake:
    """A master's answer to a slave's handshake."""

    max_offset: int
    """End of the master's log."""
    last_epoch: int
    """The master's newest epoch, -1 if it has none."""
    epochs: tuple[EpochEntry, ...]
    """The epochs of the master's log, oldest first."""


class TransferHeader(NamedTuple):
    """Header of a master's frame; a heartbeat if `body_bytes` is 0. A tuple, since a GB has 30,000 frames."""

    offset: int
    """Where the body begins in the log; -1 in heartbeats of a master that has no log file yet."""
    body_bytes: int
    epoch: int
    """The epoch of the body, or the next one (docs/protocol/ha.md#handshake-and-transfer)."""
    epoch_start_offset: int
    """Where that epoch begins."""
    confirm_offset: int
    """End of what all of the sync-state set hold, as the master knew it."""


def encode_slave_handshake(handshake: SlaveHandshake) -> bytes:
    """A slave's handshake."""
    return SLAVE_HANDSHAKE.pack(
        HANDSHAKE, handshake.is_sync_from_last_file, handshake.is_async_learner, handshake.broker_id
    )


def encode_slave_report(max_offset: int) -> bytes:
    """A slave's report or heartbeat."""
    return REPORT.pack(TRANSFER, max_offset)


def encode_master_handshake(handshake: MasterHandshake) -> bytes:
    """A master's answer to a handshake."""
    epochs = handshake.epochs
    return b"".join(
        (
            MASTER_HANDSHAKE.pack(
                HANDSHAKE, len(epochs) * ENTRY_BYTES, handshake.max_offset, handshake.last_epoch
            ),
            *(ENTRY.pack(entry.epoch, entry.start_offset) for entry in epochs),
        )
    )


def encode_transfer_header(header: TransferHeader) -> bytes:
    """Header of a master's frame; 0 body bytes make it a heartbeat."""
    return TRANSFER_HEADER.pack(
        TRANSFER,
        header.body_bytes,
        header.offset,
        header.epoch,
        header.epoch_start_offset,
        header.confirm_offset,
    )


class SlaveStreamDecoder:
    """Decodes what a slave sends, from a stream that may be cut anywhere. It buffers 15 bytes at most."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_between_frames(self) -> bool:
        """Whether no incomplete frame is buffered."""
        return not self._rest

    def feed(self, data: bytes) -> Sequence[SlaveHandshake | SlaveReport]:
        """The frames that are complete now, in order.

        Raises RemoteProtocolError at bytes that are no frame of a slave; the decoder cannot be used further.
        """
        buffer = self._rest + data if self._rest else data
        frames: list[SlaveHandshake | SlaveReport] = []
        at = 0
        end = len(buffer)
        while end - at >= _STATE_BYTES:
            (state,) = _STATE.unpack_from(buffer, at)
            if state == TRANSFER:
                if end - at < REPORT_BYTES:
                    break
                frames.append(SlaveReport(REPORT.unpack_from(buffer, at)[1]))
                at += REPORT_BYTES
            elif state == HANDSHAKE:
                if end - at < SLAVE_HANDSHAKE_BYTES:
                    break
                _, from_last_file, learner, broker_id = SLAVE_HANDSHAKE.unpack_from(buffer, at)
                if from_last_file not in {0, 1} or learner not in {0, 1} or broker_id < 0:
                    raise RemoteProtocolError(
                        f"handshake with flags {from_last_file} and {learner} of broker {broker_id}"
                    )
                frames.append(SlaveHandshake(bool(from_last_file), bool(learner), broker_id))
                at += SLAVE_HANDSHAKE_BYTES
            else:
                raise RemoteProtocolError(f"frame of a slave in state {state}, only 1 and 2 have frames")
        self._rest = buffer[at:]
        return frames


class MasterStreamDecoder(FrameDecoder[TransferHeader]):
    """Decodes the frames of a master of controller mode.

    The first event is a MasterHandshake, all others are headers and parts of bodies. Bodies are joined within
    one epoch.
    """

    _header_bytes = TRANSFER_HEADER_BYTES

    def __init__(
        self,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        epochs_max: int = EPOCHS_MAX,
        joined_within_bytes: int = 0,
    ) -> None:
        """As of `FrameDecoder`; a handshake lists at most `epochs_max` epochs."""
        super().__init__(body_bytes_max=body_bytes_max, joined_within_bytes=joined_within_bytes)
        self._epochs_max = epochs_max
        self._wanted_bytes = MASTER_HANDSHAKE_BYTES
        """Length at which `_partial` is decoded."""
        self._is_handshaken = False

    def next_event(self) -> MasterHandshake | TransferHeader | BodyPart[TransferHeader] | None:
        """The handshake, the next header or the next part of a body; None if more bytes are needed.

        Raises RemoteProtocolError for a state, offset or size that no master sends, and for a body or a list
        of epochs longer than allowed.
        """
        while self._at < len(self._data):
            if self._body_left_bytes:
                return self._next_body_part()
            if not self._fill_partial(self._wanted_bytes):
                return None
            if self._is_handshaken:
                return self._decode_header()
            if self._wanted_bytes == MASTER_HANDSHAKE_BYTES:
                self._wanted_bytes += self._check_handshake()
            if len(self._partial) == self._wanted_bytes:
                return self._decode_handshake()
        return None

    def _check_handshake(self) -> int:
        """Check the fixed part of the handshake; returns the bytes that its epochs take."""
        state, body_bytes, max_offset, last_epoch = MASTER_HANDSHAKE.unpack_from(self._partial)
        if state != HANDSHAKE:
            raise RemoteProtocolError(f"first frame of a master in state {state}, {HANDSHAKE} is a handshake")
        if body_bytes % ENTRY_BYTES or not 0 <= body_bytes <= self._epochs_max * ENTRY_BYTES:
            raise RemoteProtocolError(
                f"handshake with {body_bytes} bytes of epochs, 0 to {self._epochs_max} times {ENTRY_BYTES} "
                "are allowed"
            )
        if max_offset < 0:
            raise RemoteProtocolError(f"handshake of a master whose log ends at {max_offset}")
        if last_epoch < -1:
            raise RemoteProtocolError(f"handshake of a master in epoch {last_epoch}")
        return int(body_bytes)

    def _decode_handshake(self) -> MasterHandshake:
        partial = self._partial
        _, _, max_offset, last_epoch = MASTER_HANDSHAKE.unpack_from(partial)
        epochs = tuple(
            EpochEntry(*entry) for entry in ENTRY.iter_unpack(memoryview(partial)[MASTER_HANDSHAKE_BYTES:])
        )
        self._partial = bytearray()
        self._wanted_bytes = TRANSFER_HEADER_BYTES
        self._is_handshaken = True
        return MasterHandshake(max_offset, last_epoch, epochs)

    def _decode_header(self) -> TransferHeader:
        state, body_bytes, offset, epoch, epoch_start_offset, confirm_offset = TRANSFER_HEADER.unpack(
            self._partial
        )
        if state != TRANSFER:
            raise RemoteProtocolError(f"frame of a master in state {state} after its handshake")
        if offset < 0 and (offset != NO_OFFSET or body_bytes):
            raise RemoteProtocolError(f"frame of {body_bytes} bytes at negative offset {offset}")
        return self._begin_frame(
            TransferHeader(offset, body_bytes, epoch, epoch_start_offset, confirm_offset)
        )

    def _continuation(self, frame: TransferHeader, at: int) -> TransferHeader | None:
        state, body_bytes, offset, epoch, start_offset, confirm_offset = TRANSFER_HEADER.unpack_from(
            self._data, at
        )
        if (
            state != TRANSFER
            or offset != frame.offset + frame.body_bytes
            or (epoch, start_offset) != (frame.epoch, frame.epoch_start_offset)
        ):
            return None
        return TransferHeader(offset, body_bytes, epoch, start_offset, confirm_offset)

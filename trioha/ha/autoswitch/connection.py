"""The master's side of a slave's connection in controller mode (docs/protocol/ha.md#handshake-and-transfer).

Theory of operation. The tasks, timers and buffers are those of `HaConnection`; the frames differ, and the
handshake that comes before the first report. The slave's handshake names its broker id: from then on its acks
are that id's. The answer leaves at once, with the epochs of the log, by which the slave cuts its own; its
first report says where it then ends.

| slave sends | before its handshake | after it | after its first report |
|---|---|---|---|
| handshake | answered | the same one: ignored, the answer is under way; another: BAD_SIZE | BAD_SIZE |
| report | BAD_SIZE | request | ack or heartbeat |

RocketMQ's master has a buffer for 1,000 epochs and fails at more. Here the newest `EPOCHS_MAX` are sent, in
as many bytes as they need: a slave finds the newest that both logs have, which is among them unless it was
away for that many elections. Then it finds none, and has to begin anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import structlog
import trio
from attrs import evolve

from trioha.errors import RemoteProtocolError
from trioha.ha.autoswitch.epoch_progress import EpochProgress
from trioha.ha.autoswitch.frames import (
    EPOCHS_MAX,
    TRANSFER,
    TRANSFER_HEADER_BYTES,
    MasterHandshake,
    SlaveHandshake,
    SlaveReport,
    SlaveStreamDecoder,
    TransferHeader,
    encode_master_handshake,
    encode_transfer_header,
)
from trioha.ha.connection import HaConnection, PeerIdentity
from trioha.ha.frames import ReportDecoder
from trioha.ha.set_commit import SetReplicas
from trioha.ha.settings import HaSettings
from trioha.recording.events import CloseReason, EventSink, HaState
from trioha.store.commit_log import CommitLog
from trioha.store.epochs import EpochTable

log = structlog.get_logger(__name__)

_TRANSFER_STATE: Final = TRANSFER.to_bytes(4, "big")


class Admit(Protocol):
    """What a master decides about a handshake."""

    def __call__(
        self, connection: AutoSwitchHaConnection, handshake: SlaveHandshake
    ) -> CloseReason | None: ...


class _SlaveReader(ReportDecoder):
    """Decodes a slave's frames, as reports; calls back with everything else."""

    def __init__(
        self,
        on_handshake: Callable[[SlaveHandshake], bool],
        on_error: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._frames = SlaveStreamDecoder()
        self._on_handshake = on_handshake
        self._on_error = on_error
        self._is_handshaken = False

    @property
    def is_between_reports(self) -> bool:
        return self._frames.is_between_frames

    def feed(self, data: bytes) -> int | None:
        try:
            frames: Sequence[SlaveHandshake | SlaveReport] = self._frames.feed(data)
        except RemoteProtocolError as error:
            self._on_error(str(error))
            return None
        report = None
        for frame in frames:
            if isinstance(frame, SlaveHandshake):
                if report is not None or not self._on_handshake(frame):
                    return None
                self._is_handshaken = True
            elif self._is_handshaken:
                report = frame.max_offset
            else:
                self._on_error("a report before the handshake")
                return None
        return report


class AutoSwitchHaConnection(HaConnection):
    """The master's side of one connection in controller mode. `run` is its whole life."""

    _header_bytes = TRANSFER_HEADER_BYTES

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        peer: PeerIdentity,
        commit_log: CommitLog,
        replicas: SetReplicas,
        settings: HaSettings,
        sink: EventSink,
        on_state: Callable[[HaState], None],
        epochs: Callable[[], EpochTable],
        admit: Admit,
    ) -> None:
        """`epochs` returns the log's epochs as of now. `admit` returns why a handshake is refused."""
        self._epoch_progress = EpochProgress(
            settings, file_bytes=commit_log.file_bytes, now_s=trio.current_time(), epochs=epochs
        )
        super().__init__(
            stream,
            peer=peer,
            commit_log=commit_log,
            replicas=replicas,
            progress=self._epoch_progress,
            decoder=_SlaveReader(self._handle_handshake, self._handle_garbage),
            settings=settings,
            sink=sink,
            on_state=on_state,
        )
        self._set_replicas = replicas
        self.handshake: SlaveHandshake | None = None
        """The slave's; None before it came."""
        self._epochs = epochs
        self._admit = admit
        self._handshaken = trio.Event()

    def _handle_garbage(self, detail: str) -> None:
        """The peer sent something that no slave sends now."""
        if self.handshake is not None:
            log.warning(f"slave[{self.peer.address}] refused: {detail}")
        self.progress.end(CloseReason.BAD_SIZE)

    def _handle_handshake(self, handshake: SlaveHandshake) -> bool:
        """Answer a handshake; returns whether the connection goes on."""
        progress = self.progress
        if not progress.is_open:
            return False
        if self.handshake is not None:
            if handshake == self.handshake and progress.request_offset < 0:
                return True
            self._handle_garbage(f"another handshake, of broker {handshake.broker_id}")
            return False
        refusal = self._admit(self, handshake)
        if refusal is not None:
            progress.end(refusal)
            return False
        self.handshake = handshake
        broker_id = handshake.broker_id
        self.peer = evolve(self.peer, replica=f"broker {broker_id}", is_stable=True)
        self._sink.fact("replica", conn=self._id, brokerId=broker_id)
        self._epoch_progress.handshaken(
            is_from_last_file=handshake.is_sync_from_last_file,
            bound_offset=self._set_replicas.bound(broker_id),
            now_s=trio.current_time(),
        )
        self._set_replicas.connected(self._id, broker_id=broker_id, is_learner=handshake.is_async_learner)
        table = self._epochs()
        self._outbox.put(
            encode_master_handshake(
                MasterHandshake(self._log.max_offset, table.last_epoch, table.entries[-EPOCHS_MAX:])
            )
        )
        self._handshaken.set()
        return True

    def _acknowledge(self, ack_offset: int, now_s: float) -> None:
        self._set_replicas.acknowledge(
            self._id, ack_offset=ack_offset, lag_clock=self._meter.lag_clock, now_s=now_s
        )

    def _encode_header(self, offset: int, body_bytes: int) -> bytes:
        epoch = self._epoch_progress.cursor.at(offset)
        # Only a refusal's header may be outside of all epochs.
        number, start_offset = (-1, 0) if epoch is None else epoch[:2]
        return encode_transfer_header(
            TransferHeader(offset, body_bytes, number, start_offset, self._set_replicas.set.confirm_offset)
        )

    async def _write_log(self) -> None:
        await self._handshaken.wait()
        with self._ended_by_errors():
            await self._outbox.flush()
            await super()._write_log()

    def _close(self) -> None:
        self._set_replicas.ended(self._id, sent_offset=self.progress.sent_offset)
        super()._close()

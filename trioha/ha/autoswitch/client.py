"""The slave's side of its connection to the master in controller mode (RocketMQ: AutoSwitchHAClient).

See docs/protocol/ha.md#handshake-and-transfer.

Theory of operation. The tasks, timers and buffers are those of `HaClient`; the frames differ, and the
handshake that comes before the first report. A connection is in HANDSHAKE until the master has listed its
epochs, and in TRANSFER then. `EpochSession` has the rules. The first report leaves at once after the
handshake; RocketMQ's slave waits haSendHeartbeatInterval with it, 5 s at each change of the master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

import trio
from attrs import frozen

from trioha.ha.autoswitch.epoch_session import CutStep, EpochSession
from trioha.ha.autoswitch.frames import (
    BODY_BYTES_MAX,
    MasterHandshake,
    MasterStreamDecoder,
    SlaveHandshake,
    TransferHeader,
    encode_slave_handshake,
    encode_slave_report,
)
from trioha.ha.bodies import BodyPart
from trioha.ha.client import HaClient
from trioha.recording.events import CloseReason, HaState
from trioha.store.commit_log import CommitLog

RunBlocking = Callable[[CutStep], Awaitable[None]]
HANDSHAKE_TIMEOUT_S: Final = 5.0
"""RocketMQ's slave sends its handshake again after so long. An answer that is late on a connection that loses
nothing will not come: here another connection is made."""


@frozen
class SlaveIdentity:
    """What a slave tells its master of itself."""

    broker_id: int
    """The id that the controller gave it."""
    is_async_learner: bool = False
    """asyncLearner: it stays outside of the sync-state set."""
    is_sync_from_last_file: bool = False
    """syncFromLastFile: while its log is empty it starts with the master's last file, not the first."""


class AutoSwitchHaClient(HaClient):
    """A slave's connection in controller mode."""

    first_state: ClassVar = HaState.HANDSHAKE

    def __init__(
        self,
        stream: trio.abc.Stream,
        *,
        session: EpochSession,
        commit_log: CommitLog,
        identity: SlaveIdentity,
        run_blocking: RunBlocking,
        **options: Any,
    ) -> None:
        """`run_blocking` has a cut put on disk. `options` are those of `HaClient`."""
        super().__init__(stream, session=session, commit_log=commit_log, **options)
        self._replication = session
        self._identity = identity
        self._handshaken = trio.Event()
        self._run_blocking = run_blocking
        self._ended_frames: Sequence[TransferHeader] = ()
        """Of the body with which a cut began."""
        self._decoder = MasterStreamDecoder(
            body_bytes_max=min(BODY_BYTES_MAX, commit_log.file_bytes),
            joined_within_bytes=commit_log.file_bytes,
        )

    def _first_report(self) -> int:
        """Begin the session; what is requested is known after the handshake."""
        return self._replication.begin()

    def _encode_report(self, offset: int) -> bytes:
        return encode_slave_report(offset)

    @property
    def _ack_offset(self) -> int:
        """Nothing may be acknowledged before the handshake."""
        return super()._ack_offset if self._handshaken.is_set() else -1

    async def _write_reports(self) -> None:
        """Send the handshake; when it is answered, reports and heartbeats."""
        identity = self._identity
        self._outbox.put(
            encode_slave_handshake(
                SlaveHandshake(
                    is_sync_from_last_file=identity.is_sync_from_last_file,
                    # An observer acknowledges nothing, so it must never be waited for.
                    is_async_learner=identity.is_async_learner or self._is_observer,
                    broker_id=identity.broker_id,
                )
            )
        )
        with trio.move_on_after(HANDSHAKE_TIMEOUT_S), self._ended_by_errors():
            await self._outbox.flush()
            await self._handshaken.wait()
        if not self._handshaken.is_set():
            self._end(CloseReason.NO_REQUEST)
            return
        await super()._write_reports()

    def _receive(self, data: memoryview) -> None:
        """Append what `data` completes. Raises ReplicationError at a frame that does not continue the log."""
        self._decoder.feed(data)
        self._handle_events()

    async def _settle(self) -> None:
        """Complete a cut that `_receive` began, and handle what came after it.

        Nothing ends it halfway: what a new role stored would be cut by the next start.
        """
        session = self._replication
        while self._is_unsettled:
            with trio.CancelScope(shield=True):
                while (step := session.cut_step) is not None:
                    await self._run_blocking(step)
                    session.cut_step_done()
            self._is_unsettled = False
            ended, self._ended_frames = self._ended_frames, ()
            self._after_body(ended)
            self._handle_events()

    def _handle_events(self) -> None:
        """Handle what was received, up to the beginning of a cut."""
        decoder, session = self._decoder, self._replication
        while not self._is_unsettled and (event := decoder.next_event()) is not None:
            match event:
                case TransferHeader():
                    session.receive_header(event)
                    self._after_header(event.offset, event.body_bytes)
                case BodyPart():
                    session.receive_body(event.data, confirm_offset=event.newest.confirm_offset)
                    if session.cut_step is None:
                        self._after_body(event.ended)
                    else:
                        self._ended_frames = event.ended
                case MasterHandshake():
                    self._handle_handshake(event)
            self._is_unsettled = session.cut_step is not None

    def _handle_handshake(self, handshake: MasterHandshake) -> None:
        self._request_offset = self._replication.receive_handshake(
            handshake, at_most=self._requested_at_most()
        )
        if self._replication.is_checked:
            self._verdict.clear()
            self._tail_checked.set()
        self._has_moved = True
        self._enter(HaState.TRANSFER)
        self._handshaken.set()

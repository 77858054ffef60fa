"""The rules by which a slave follows the master of an epoch, without I/O but the store's.

See docs/protocol/ha.md#handshake-and-transfer, docs/protocol/ha.md#truncation.

Theory of operation. Masters change; each one's bytes are an epoch of the log. On each connection the master
lists its epochs, and the session makes the own log a prefix of the master's in these steps:

| step | state of the own log | ends |
|---|---|---|
| 1 handshake | as it was | `receive_handshake` finds the consistent point: before it both logs are the same by their epochs |
| 2 tail check | as it was | the bytes before the consistent point equal the master's |
| 3 cut | ends at the consistent point, on disk; epochs of cut bytes are dropped | at once |
| 4 new bytes | grows by whole, checked records | with the connection |

Invariants, at each moment and after each crash:

- Nothing is cut before the bytes before it were compared: a peer with other bytes (another group, a restored
  disk) ends the connection at step 2 as DIVERGED, and the own log is as it was. RocketMQ trusts equal epochs.
  Only at the start of a file is nothing compared, since a master may have deleted the file before.
- Nothing is acknowledged beyond what was compared, nor anything that will be cut: until step 4 the report is
  where the tail check starts.
- With allAckInSyncStateSet nothing is cut that may have been confirmed to a producer (`Kept`): a master without
  it has lost it, in a power loss or with its disk. CUT_REFUSED ends the connection, the slave stays outside of
  the set with its log as it is, and an operator decides (trioha.haAcceptCut). RocketMQ's slave cuts it.
- The cut is on disk before anything new is: a cut that fails ends the node (`failed_cut`).
- An epoch's entry is on disk before its first byte is in the log, so no byte ever counts as another epoch's;
  entries beyond the log's end are dropped when a connection begins.

Where no byte is in common, but both logs begin at byte 0 of older epochs, the whole log would be cut: then
`LOG_RESTARTED` ends the connection, and the slave sets the log aside in place of a cut. Where nothing is known
to be in common (no epoch is in both lists), a GAP_REASON does, and trioha.haGapPolicy says what happens. A log
without epochs is one of a broker that had no controller: it follows if its tail equals the master's.

Epochs come from the master's handshake, which lists them all. RocketMQ takes them from the headers of frames
instead, where an epoch that arrives in exactly one frame has no header of its own
(docs/protocol/ha.md#handshake-and-transfer): the frame that reaches its end names the next one. Here a header
only has to name a known epoch, or a new one that begins with this very frame; any other ends the connection,
and the next handshake says what there is (PROBED).
"""  # noqa: E501 - lines of a table

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import structlog

from trioha.errors import RemoteProtocolError, StoreError
from trioha.ha.autoswitch.consistent_point import ConsistentPoint, Kept, epochs_text
from trioha.ha.autoswitch.frames import NO_OFFSET, MasterHandshake, TransferHeader
from trioha.ha.followed_log import EMPTY_HEARTBEATS_MAX, FollowedLog, ReplicationError, offset_mismatch
from trioha.ha.replication_session import ReplicationSettings
from trioha.ha.set_link import JOIN_LAG_BYTES
from trioha.numbers import I64
from trioha.recording.events import CloseReason
from trioha.store.commit_log import CommitLog
from trioha.store.epochs import EpochEntry, EpochLog, EpochTable

log = structlog.get_logger(__name__)

BEHIND_BYTES_MAX: Final = JOIN_LAG_BYTES
"""A slave that had caught up has done so no more when it is farther behind the confirm offset."""
CutStep = Callable[[], None]
"""A part of a cut that blocks."""
NEVER = I64.high
"""Beyond every offset."""


class EpochSession:
    """Replicates the logs of changing masters into the own one, over one connection after the other."""

    def __init__(
        self,
        commit_log: CommitLog,
        settings: ReplicationSettings,
        *,
        epochs: EpochLog,
        cut: Callable[[int], Iterator[CutStep]],
        on_confirm: Callable[[int], None],
        on_epoch: Callable[[EpochEntry], None],
        kept: Kept | None = None,
    ) -> None:
        """`cut` is `Cutter.steps`. `on_confirm` is called with each other confirm offset,
        `on_epoch` with each epoch of the master that begins in the own log now.

        `kept` is that of a group with allAckInSyncStateSet; None where confirm offsets promise nothing.

        Of `settings`, `start` is not used: the master decides where an empty slave starts.
        """
        self._log = commit_log
        self._epochs = epochs
        self._cut = cut
        self._on_confirm = on_confirm
        self._on_epoch = on_epoch
        self._point = ConsistentPoint(commit_log, epochs, kept=kept)
        self._tail_check_bytes = settings.tail_check_bytes
        self._own = FollowedLog(commit_log)
        self.cut_step: CutStep | None = None
        """What a cut waits for: while it is not None, call it in a worker thread, then `cut_step_done`, and
        nothing else."""
        self._cut_steps: Iterator[CutStep] = iter(())
        self._held_body: tuple[memoryview, int] | None = None
        """Bytes after the consistent point that came before the cut has ended, and the confirm offset."""
        self.failed_cut: StoreError | None = None
        """Why a cut could not be completed: the log must not be used any more."""
        self.confirm_offset = -1
        """End of what all of the sync-state set hold, as far as the own log has it; -1 before the first."""
        self.has_caught_up = False
        """Whether the own log has had, on this connection, what the master had at the handshake and has
        confirmed, and is close to that since."""
        self._known = EpochTable()
        """The master's epochs."""
        self._master_end_offset = 0
        """End of the master's log at the handshake."""
        self._label = (-1, -1)
        """Epoch and start of the last header, which is known."""
        self._adopts_at_offset = NEVER
        """Where the next epoch begins that the own list does not have yet."""
        self._request_offset = 0
        """The first report of the connection: until step 4 only this may be acknowledged."""
        self._consistent_offset = 0
        """Both logs are the same before it, by their epochs; the own log is cut here."""
        self._compared_offset = 0
        """Next byte of the tail check."""
        self._is_joined = False
        """Whether the own log is a prefix of the master's: steps 1 to 3 are over."""
        self._awaited_end_offset = 0
        """End of the master's log at the handshake, until the first bytes after it: they must come."""
        self._empty_heartbeats = 0
        """Heartbeats in their place."""

    def begin(self) -> int:
        """Begin a new connection; returns the end of the own log. Raises StoreError."""
        log_ = self._log
        if self.failed_cut is not None:
            raise self.failed_cut
        assert self.cut_step is None, "a cut ends before its connection does"
        self._own.discard()
        if self._is_joined:
            self._point.acknowledged(log_.max_offset, master_epoch=self._known.last_epoch)
        self._is_joined = False
        self.has_caught_up = False
        self._empty_heartbeats = 0
        self._request_offset = 0
        self._label = (-1, -1)
        if log_.is_empty and log_.max_offset:
            # An earlier master began here and sent nothing.
            log_.start_at(0)
        # The master ended before the first byte of an epoch came.
        self._epochs.truncate_suffix(0 if log_.is_empty else log_.max_offset + 1)
        return log_.max_offset

    @property
    def ack_offset(self) -> int:
        """What may be acknowledged now: until the logs are joined only the request."""
        return self._log.max_offset if self._is_joined else self._request_offset

    @property
    def is_checked(self) -> bool:
        """Whether the own log is a prefix of the master's."""
        return self._is_joined

    @property
    def next_offset(self) -> int:
        """Offset that the next frame must have."""
        return self._own.next_offset if self._is_joined else self._compared_offset

    # -- handshake -----------------------------------------------------------------------------------------

    def receive_handshake(self, handshake: MasterHandshake, *, at_most: int | None = None) -> int:
        """Find the consistent point; returns the first report, which is at most `at_most` if that is given.

        Raises RemoteProtocolError for epochs that no log has, ReplicationError if the own log cannot be cut
        to a prefix of the master's, StoreError.
        """
        log_ = self._log
        self._known = _checked_epochs(handshake, file_bytes=log_.file_bytes)
        self._awaited_end_offset = self._master_end_offset = handshake.max_offset
        self._consistent_offset = self._point.find(self._known, handshake.max_offset)
        if log_.is_empty:
            self._request_offset = 0
        else:
            self._request_offset = self._tail_start()
            if at_most is not None:
                self._request_offset = max(min(self._request_offset, at_most), log_.min_offset, 1)
        self._compared_offset = min(self._request_offset, self._consistent_offset)
        if self._compared_offset == self._consistent_offset:
            self._join()
        return self._request_offset

    def _tail_start(self) -> int:
        """Where the tail check starts, in the file that ends at or holds the consistent point."""
        end_offset = self._consistent_offset
        if end_offset % self._log.file_bytes == 0:
            # The master need not have the file before, if its log begins here.
            return end_offset
        return self._own.tail_start(end_offset, check_bytes=self._tail_check_bytes)

    def _join(self) -> None:
        """Cut the own log to the consistent point, on disk; what follows are the master's bytes."""
        log_ = self._log
        offset = self._consistent_offset
        if not log_.is_empty:
            if offset < log_.max_offset:
                log.warning(
                    "log is cut to the consistent point",
                    end_offset=offset,
                    bytes=log_.max_offset - offset,
                    own=epochs_text(self._epochs.table),
                    master=epochs_text(self._known),
                )
                self._cut_steps = self._cut(offset)
                self.cut_step_done()
                return
            if any(
                entry.start_offset >= offset and entry not in self._known.entries
                for entry in self._epochs.entries
            ):
                self._epochs.truncate_suffix(offset)
        self._begin_new_bytes()

    def cut_step_done(self) -> None:
        """Go on with a cut whose `cut_step` has ended, or begin it. Raises what `receive_body` does."""
        try:
            self.cut_step = next(self._cut_steps, None)
        except StoreError as error:
            self.cut_step, self.failed_cut = None, error
            raise
        if self.cut_step is not None:
            return
        if self.confirm_offset > self._consistent_offset:
            self._confirm(self._consistent_offset)
        self._begin_new_bytes()
        held, self._held_body = self._held_body, None
        if held is not None:
            self.receive_body(held[0], confirm_offset=held[1])

    def _begin_new_bytes(self) -> None:
        log_ = self._log
        self._is_joined = True
        # Before the first frame, which an idle master sends after a heartbeat interval.
        self.has_caught_up = log_.max_offset >= self._master_end_offset
        self._find_next_epoch()
        if not log_.is_empty:
            self._adopt_epochs(log_.max_offset)

    # -- epochs --------------------------------------------------------------------------------------------

    def _check_label(self, header: TransferHeader) -> None:
        """The header must name a known epoch, or a new one that begins with its frame."""
        entry = EpochEntry(header.epoch, header.epoch_start_offset)
        if entry in self._known.entries:
            return
        if not self._known.entries and header.body_bytes == 0 and header.epoch < 0:
            # A master without epochs has nothing to name.
            return
        if header.epoch_start_offset != max(header.offset, 0) or header.epoch <= self._known.last_epoch:
            raise ReplicationError(
                CloseReason.PROBED,
                f"the master's {entry} is not in its handshake, and does not begin with its frame at "
                f"{header.offset}: another handshake lists its epochs",
                offset=header.offset,
            )
        try:
            self._known = self._known.append(entry.epoch, entry.start_offset)
        except ValueError as error:
            raise RemoteProtocolError(f"frame at {header.offset}: {error}") from error
        if self._is_joined:
            self._find_next_epoch()

    def _find_next_epoch(self) -> None:
        """Find the first of the master's epochs that the own list does not have."""
        last_epoch = self._epochs.last_epoch
        self._adopts_at_offset = next(
            (entry.start_offset for entry in self._known.entries if entry.epoch > last_epoch), NEVER
        )

    def _adopt_epochs(self, end_offset: int) -> None:
        """Put the epochs that begin up to `end_offset` on disk, before their bytes are in the log."""
        if end_offset < self._adopts_at_offset:
            return
        own, known = self._epochs.table, self._known
        if not own.entries:
            # Of a log that begins later, not those of bytes before it.
            known = known.truncate_prefix(self._log.min_offset)
        for entry in known.entries:
            if entry.epoch > own.last_epoch and entry.start_offset <= end_offset:
                self._epochs.append(entry.epoch, entry.start_offset)
                self._on_epoch(entry)
        self._find_next_epoch()

    # -- frames --------------------------------------------------------------------------------------------

    def receive_header(self, header: TransferHeader) -> None:
        """Check the header of the next frame. Raises ReplicationError if the frame does not continue the log,
        RemoteProtocolError, StoreError."""
        log_ = self._log
        offset = header.offset
        self._own.check_offset(header)
        if offset == NO_OFFSET:
            if not log_.is_empty:
                raise ReplicationError(
                    CloseReason.AHEAD, f"own log ends at {log_.max_offset}, the master has none", offset=0
                )
        elif offset != self.next_offset:
            self._handle_other_offset(header)
        label = (header.epoch, header.epoch_start_offset)
        if label != self._label:
            self._check_label(header)
            self._label = label
        if offset == NO_OFFSET:
            return
        self._own.check_end(header)
        if header.body_bytes:
            self._awaited_end_offset = 0
            return
        if not log_.is_empty and offset < self._awaited_end_offset:
            self._handle_missing_bytes()
        if self._is_joined:
            if not log_.is_empty:
                self._adopt_epochs(log_.max_offset)
            self.receive_confirm(header.confirm_offset)

    def _handle_other_offset(self, header: TransferHeader) -> None:
        """An empty log begins where the master does; any other must be continued."""
        log_ = self._log
        offset, expected = header.offset, self.next_offset
        if log_.is_empty and offset > expected == log_.max_offset and offset % log_.file_bytes == 0:
            log_.start_at(offset)
            self._find_next_epoch()
            return
        if header.body_bytes == 0 and not log_.is_empty:
            # A trioha master answers a request outside of its log with the end that is nearer.
            raise ReplicationError(
                CloseReason.GAP if offset > expected else CloseReason.AHEAD,
                f"asked the master for {expected}, its log {'begins' if offset > expected else 'ends'} at "
                f"{offset}; own log ends at {log_.max_offset}",
                offset=offset,
            )
        raise offset_mismatch(header, expected=expected)

    def _handle_missing_bytes(self) -> None:
        """Handle a heartbeat where bytes must follow first: the master may have deleted them."""
        self._empty_heartbeats += 1
        if self._empty_heartbeats >= EMPTY_HEARTBEATS_MAX:
            raise ReplicationError(
                CloseReason.GAP,
                f"the master has nothing at {self.next_offset}, although its log goes on to "
                f"{self._awaited_end_offset}: it begins behind that",
                offset=self.next_offset,
            )

    def receive_body(self, data: memoryview, *, confirm_offset: int) -> None:
        """Compare or append bytes of the frame. Raises ReplicationError if they differ from the own ones or
        are not records, StoreError if the own disk refuses them or the cut.
        """
        if not self._is_joined:
            compared = self._own.compare(
                data, offset=self._compared_offset, end_offset=self._consistent_offset
            )
            self._compared_offset += compared
            data = data[compared:]
            if self._compared_offset < self._consistent_offset:
                return
            self._join()
            if self.cut_step is not None:
                self._held_body = (data, confirm_offset)
                return
        if data:
            self._adopt_epochs(self._own.next_offset + len(data))
            self._own.append(data)
        self.receive_confirm(confirm_offset)

    def receive_confirm(self, confirm_offset: int) -> None:
        """The master's confirm offset, of which the own log may have less."""
        max_offset = self._log.max_offset
        if max_offset >= max(confirm_offset, self._master_end_offset):
            self.has_caught_up = True
        elif confirm_offset - max_offset > BEHIND_BYTES_MAX:
            self.has_caught_up = False
        offset = min(confirm_offset, max_offset)
        if offset != self.confirm_offset and offset >= 0:
            self._confirm(offset)

    def _confirm(self, offset: int) -> None:
        self.confirm_offset = offset
        self._point.confirmed(offset)
        self._on_confirm(offset)


def _checked_epochs(handshake: MasterHandshake, *, file_bytes: int) -> EpochTable:
    """The epochs of a master's handshake. Raises RemoteProtocolError for those that no log has."""
    try:
        known = EpochTable(handshake.epochs)
    except ValueError as error:
        raise RemoteProtocolError(f"handshake of a master: {error}") from error
    end_offset = handshake.max_offset
    if end_offset > I64.high - 2 * file_bytes:
        raise RemoteProtocolError(f"handshake of a master whose log ends at {end_offset}")
    if known.entries and known.entries[-1].start_offset > end_offset:
        raise RemoteProtocolError(
            f"handshake of a master whose log ends at {end_offset}, before its {known.entries[-1]}"
        )
    return known

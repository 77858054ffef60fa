"""The consistent point: both logs have the same bytes before it, by their epochs.

See docs/protocol/ha.md#truncation. A slave cuts its own log there, if it may: with allAckInSyncStateSet
nothing is cut that may have been confirmed to a producer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
from attrs import frozen

from trioha.ha.followed_log import ReplicationError
from trioha.recording.events import CloseReason
from trioha.store.commit_log import CommitLog
from trioha.store.epochs import EpochLog, EpochTable

log = structlog.get_logger(__name__)

_SHOWN_MAX: Final = 8


@frozen
class Kept:
    """What a slave does not cut to follow a master.

    All before the confirm offset is held by each member of the sync-state set, so a master that was elected
    from it has that, unless its disk lost it. The slave learns the confirm offset with the frame after the
    ack that moved it. So what it has acknowledged counts, too, where the master is of the same epoch: it sent
    these bytes, and within an epoch a log does not become shorter.
    """

    confirmed_offset: Callable[[], int]
    """End of what was confirmed, as the node knows it: from its checkpoint or an earlier term."""
    counts_acks: bool = True
    """Whether this slave's acks may have confirmed a put: not those of a learner."""
    accepted_cut: int | None = None
    """trioha.haAcceptCut: the offset of the one cut below it that an operator has allowed."""


class ConsistentPoint:
    """Finds where the own log and a master's part; refuses a cut there that would lose confirmed bytes."""

    def __init__(self, commit_log: CommitLog, epochs: EpochLog, *, kept: Kept | None) -> None:
        self._log = commit_log
        self._epochs = epochs
        self._kept = kept
        self._kept_offset = 0 if kept is None else kept.confirmed_offset()
        """End of what was confirmed; goes back only with an accepted cut."""
        self._acked = (-1, 0)
        """The master's epoch, and the log's end, when the last connection that was joined had ended."""

    def confirmed(self, offset: int) -> None:
        """Everything before `offset` is confirmed."""
        self._kept_offset = max(self._kept_offset, offset)

    def acknowledged(self, end_offset: int, *, master_epoch: int) -> None:
        """The own log was acknowledged up to `end_offset` to the master of this epoch."""
        self._acked = (master_epoch, end_offset)

    def find(self, known: EpochTable, master_end_offset: int) -> int:
        """The consistent point of the own log and one that ends at `master_end_offset`, with the epochs
        `known`.

        Raises ReplicationError if the own log cannot, or must not, be cut there.
        """
        log_ = self._log
        if log_.is_empty:
            return log_.max_offset
        max_offset = log_.max_offset
        own = self._epochs.table
        if not own.entries:
            # The log of a broker that had no controller.
            if max_offset > master_end_offset:
                raise ReplicationError(
                    CloseReason.AHEAD,
                    f"own log has no epochs and ends at {max_offset}, the master's at {master_end_offset}",
                    offset=master_end_offset,
                )
            return max_offset
        offset = own.consistent_offset(max_offset, known.entries, master_end_offset)
        if offset is None:
            self._handle_nothing_in_common(known)
            offset = 0
        self._check_kept(offset, known.last_epoch)
        if offset <= log_.min_offset:
            raise ReplicationError(
                CloseReason.LOG_RESTARTED,
                f"own log [{log_.min_offset}, {max_offset}) and the master's differ from {offset} on",
                offset=offset,
            )
        if log_.starts.first_from(offset) != offset:
            raise ReplicationError(
                CloseReason.DIVERGED,
                f"own log must be cut at {offset} to follow the master's, where no record of it starts",
                offset=offset,
            )
        return offset

    def _check_kept(self, offset: int, master_epoch: int) -> None:
        """Refuse to cut at `offset` what may have been confirmed, unless an operator allowed it."""
        kept = self._kept
        if kept is None:
            return
        end_offset = self._kept_offset
        if kept.counts_acks and self._acked[0] == master_epoch:
            end_offset = max(end_offset, self._acked[1])
        end_offset = min(end_offset, self._log.max_offset)
        if offset >= end_offset:
            return
        if offset == kept.accepted_cut:
            log.warning(
                "cut below the confirm offset, as trioha.haAcceptCut allows",
                end_offset=offset,
                confirmed_offset=end_offset,
                hint="remove the setting: it is for this cut alone",
            )
            self._kept_offset, self._acked = offset, (-1, 0)
            return
        raise ReplicationError(
            CloseReason.CUT_REFUSED,
            f"to follow this master the log must be cut at {offset}, but everything before {end_offset} may "
            f"have been confirmed to producers: {end_offset - offset} bytes that the master has lost. This "
            f"slave keeps them and stays outside of the sync-state set. To give them up, start it with "
            f"trioha.haAcceptCut={offset}",
            offset=offset,
        )

    def _handle_nothing_in_common(self, known: EpochTable) -> None:
        """No epoch is in both lists. Returns if that is because the own epochs are none of the master's."""
        log_ = self._log
        own = self._epochs.table
        if known.entries:
            first = known.entries[0]
            if first.start_offset == log_.min_offset == 0 and first.epoch > own.last_epoch:
                # The master was elected before any byte of the own epochs reached it.
                return
            if first.start_offset > log_.max_offset:
                raise ReplicationError(
                    CloseReason.GAP,
                    f"the epochs that the master knows begin at {first.start_offset}, own log ends at "
                    f"{log_.max_offset}",
                    offset=first.start_offset,
                )
        raise ReplicationError(
            CloseReason.DIVERGED,
            f"no epoch in common: own {epochs_text(own)}, the master's {epochs_text(known)}",
            offset=log_.max_offset,
        )


def epochs_text(table: EpochTable) -> str:
    """The newest epochs of a table, for a log line."""
    entries = [f"{entry.epoch}-{entry.start_offset}" for entry in table.entries[-_SHOWN_MAX:]]
    return " ".join((["..."] if len(table.entries) > _SHOWN_MAX else []) + entries) or "none"

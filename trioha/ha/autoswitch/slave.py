"""The slave's side of replication in controller mode: follows the master of an epoch.

See docs/protocol/ha.md#handshake-and-transfer.

Theory of operation. All of `trioha.ha.slave` holds: one connection after the other, each within a boundary,
with back-offs. The protocol differs: `AutoSwitchHaClient` is the slave's side of a connection, `EpochSession`
has the rules.

A slave is made for one master and lives until the controller names another role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import trio

from trioha.ha.autoswitch.client import AutoSwitchHaClient, RunBlocking, SlaveIdentity
from trioha.ha.autoswitch.consistent_point import Kept
from trioha.ha.autoswitch.epoch_session import CutStep, EpochSession
from trioha.ha.replication_session import ReplicationSettings
from trioha.ha.slave import HaSlave
from trioha.net.threads import run_in_thread
from trioha.recording.events import CloseReason
from trioha.store.commit_log import CommitLog
from trioha.store.epochs import EpochEntry, EpochLog


def _ignore(_offset: int) -> None:
    """The confirm offset of a slave whose node does not use it."""


def _ignore_epoch(_entry: EpochEntry) -> None:
    """An epoch of a slave that does not record them."""


class AutoSwitchSlave(HaSlave):
    """Keeps this node's log a prefix of its master's while masters change."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        epochs: EpochLog,
        cut: Callable[[int], Iterator[CutStep]],
        identity: SlaveIdentity,
        replication: ReplicationSettings | None = None,
        on_confirm: Callable[[int], None] = _ignore,
        on_epoch: Callable[[EpochEntry], None] = _ignore_epoch,
        kept: Kept | None = None,
        run_blocking: RunBlocking = run_in_thread,
        **options: Any,
    ) -> None:
        """`epochs` are the store's, `cut` is its `Cutter.steps`; `options` are those of `HaSlave`.

        `on_confirm` is called with each other confirm offset, which is never beyond the own log's end. It may
        go back, with a cut or with another master. `on_epoch` is called with each epoch that is adopted.
        `kept` is that of `EpochSession`. `run_blocking` puts cuts on disk: by default in a worker thread,
        which virtual time would leap over.
        """
        self._replication = EpochSession(
            commit_log,
            replication or ReplicationSettings(),
            epochs=epochs,
            cut=cut,
            on_confirm=on_confirm,
            on_epoch=on_epoch,
            kept=kept,
        )

        def make_client(stream: trio.abc.Stream, **rest: Any) -> AutoSwitchHaClient:
            return AutoSwitchHaClient(
                stream, session=self._replication, identity=identity, run_blocking=run_blocking, **rest
            )

        super().__init__(commit_log=commit_log, replication=replication, make_client=make_client, **options)

    @property
    def confirm_offset(self) -> int:
        """End of what all of the sync-state set hold, as far as the own log has it; -1 if not known."""
        return self._replication.confirm_offset

    def has_caught_up(self) -> bool:
        """Whether the own log has what the master had confirmed, or is close to that."""
        return self.is_connected() and self._replication.has_caught_up

    def _check_store(self) -> None:
        """As `HaSlave`: a cut that could not be completed, which the next start of the node completes."""
        if self._replication.failed_cut is not None:
            raise self._replication.failed_cut

    def _sets_log_aside(self, reason: CloseReason) -> bool:
        """Also a log of which nothing would be left by the cut that the protocol requires."""
        return reason is CloseReason.LOG_RESTARTED or super()._sets_log_aside(reason)

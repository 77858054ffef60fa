"""The master's side of replication in controller mode: serves slaves by RocketMQ's AutoSwitch HA protocol.

Theory of operation. Listeners, admission, TLS and probes are those of `HaMaster`; the connections have
handshakes and epochs (`ha.autoswitch.connection`), and a replica is its broker id. Each id has one
connection. A newer connection takes the place of an older one (REPLACED): a slave that was cut off connects
again before the silence of its old connection is noticed, and must not wait for that. With TLS the id belongs
to the certificate of its open connection; a peer with another certificate, or with the master's own id, is
refused.

A master lasts for one term of its role: its connections end with it, and what it sent is forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import structlog
import trio

from trioha.ha.autoswitch.connection import AutoSwitchHaConnection
from trioha.ha.autoswitch.frames import SlaveHandshake
from trioha.ha.connection import HaConnection, PeerIdentity
from trioha.ha.master import HaMaster
from trioha.ha.set_commit import SetReplicas
from trioha.ha.sync_state_set import Proposal, SyncStateSet
from trioha.recording.events import CloseReason, HaState
from trioha.store.epochs import EpochTable

log = structlog.get_logger(__name__)

FIRST_TICK_S: Final = 3.0
"""When the set is looked at first (docs/protocol/ha.md#sync-state-set)."""


class AutoSwitchMaster(HaMaster):
    """Serves the log to slaves in controller mode."""

    def __init__(
        self,
        *,
        replicas: SetReplicas,
        epochs: Callable[[], EpochTable],
        is_master: bool = True,
        **options: Any,
    ) -> None:
        """`epochs` returns the log's epochs as of now; the last one is the master's. `options` are those of
        `HaMaster`.

        Without `is_master` every handshake is refused: a slave, or a node without a role yet, has no epoch to
        serve, and a peer that dials it by mistake would cut its log by a list of epochs that is not the
        master's. RocketMQ's slaves answer.
        """
        super().__init__(replicas=replicas, **options)
        self._set_replicas = replicas
        self._epochs = epochs
        self._is_master = is_master

    def _connection(
        self, stream: trio.abc.Stream, *, peer: PeerIdentity, on_state: Callable[[HaState], None]
    ) -> HaConnection:
        return AutoSwitchHaConnection(
            stream,
            peer=peer,
            commit_log=self._log,
            replicas=self._set_replicas,
            settings=self._settings,
            sink=self._sink,
            on_state=on_state,
            epochs=self._epochs,
            admit=self._admit,
        )

    def _admit(self, connection: AutoSwitchHaConnection, handshake: SlaveHandshake) -> CloseReason | None:
        """Why the handshake is refused; None if not, then `connection` is the only one of its broker id."""
        broker_id, peer = handshake.broker_id, connection.peer
        if not self._is_master:
            log.warning(f"slave[{peer.address}] refused: this node is not the master", broker_id=broker_id)
            return CloseReason.NOT_ALLOWED
        if broker_id == self._set_replicas.set.own_id:
            log.warning(f"slave[{peer.address}] refused: it has this master's broker id {broker_id}")
            return CloseReason.NOT_ALLOWED
        for other in self._connections.values():
            if (
                other is connection
                or not isinstance(other, AutoSwitchHaConnection)
                or other.handshake is None
                or other.handshake.broker_id != broker_id
                or not other.progress.is_open
            ):
                continue
            if peer.certificate != other.peer.certificate:
                log.warning(
                    f"slave[{peer.address}] refused: broker {broker_id} has another certificate",
                    certificate=peer.certificate,
                    connected=other.peer.certificate,
                )
                return CloseReason.NOT_ALLOWED
            self._set_replicas.ended(other.peer.connection_id, sent_offset=other.progress.sent_offset)
            other.end(CloseReason.REPLACED)
        return None


class SetDecision(Protocol):
    """What a controller has."""

    @property
    def members(self) -> frozenset[int]:
        """Broker ids."""
        ...

    @property
    def set_epoch(self) -> int:
        """Its epoch."""
        ...

    @property
    def is_confirmed(self) -> bool:
        """Whether the leading controller said so after it was asked for the proposal."""
        ...


Alter = Callable[[frozenset[int], int], Awaitable[SetDecision | None]]
"""Asks the controller for a set, given the set epoch that it must have. Returns what the controller has after
that: the new set, or the one of the known epoch if it refused or was not asked at all. None if no answer
came, or none that decides: it may have accepted."""


class SetKeeper:
    """Asks the controller for the sets that a `SyncStateSet` proposes, and keeps that set's time."""

    def __init__(self, *, check_interval_s: float = 5.0) -> None:
        """`check_interval_s`: checkSyncStateSetPeriod, between two looks for members that fell back."""
        self._check_interval_s = check_interval_s
        self._proposal: Proposal | None = None
        """The next one to ask for."""
        self._proposed = trio.Event()
        self._joined = trio.Event()

    def propose(self, proposal: Proposal) -> None:
        """For `SyncStateSet`: ask the controller for this set."""
        self._proposal = proposal
        self._proposed.set()

    def joined(self) -> None:
        """For `SyncStateSet`: a replica joins, until `joins_until_s` of the set."""
        self._joined.set()

    async def run(self, sync_state_set: SyncStateSet, alter: Alter) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick, sync_state_set)
            nursery.start_soon(self._end_joins, sync_state_set)
            while True:
                await self._proposed.wait()
                self._proposed = trio.Event()
                proposal, self._proposal = self._proposal, None
                if proposal is not None and proposal == sync_state_set.open_proposal:
                    await self._ask(sync_state_set, proposal, alter)

    @staticmethod
    async def _ask(sync_state_set: SyncStateSet, proposal: Proposal, alter: Alter) -> None:
        asked_s = trio.current_time()
        decision = await alter(proposal.members, proposal.known_epoch)
        now_s = trio.current_time()
        if decision is None:
            log.warning("no controller decided about a sync-state set", members=sorted(proposal.members))
            sync_state_set.lost(proposal, now_s=now_s)
        elif decision.set_epoch > proposal.known_epoch:
            sync_state_set.decided(decision.members, decision.set_epoch)
            # A set without this master decides nothing here; the role that goes with it will come.
            sync_state_set.refused(proposal, confirmed_s=None, now_s=now_s)
        else:
            confirmed_s = asked_s if decision.is_confirmed else None
            sync_state_set.refused(proposal, confirmed_s=confirmed_s, now_s=now_s)

    async def _end_joins(self, sync_state_set: SyncStateSet) -> None:
        """Let replicas join for no longer than they may: puts wait for them."""
        while True:
            self._joined = trio.Event()
            until_s = sync_state_set.joins_until_s
            if until_s is None:
                await self._joined.wait()
            else:
                await trio.sleep_until(until_s)
                sync_state_set.end_joins(trio.current_time())

    async def _tick(self, sync_state_set: SyncStateSet) -> None:
        await trio.sleep(FIRST_TICK_S)
        while True:
            sync_state_set.tick(trio.current_time())
            await trio.sleep(self._check_interval_s)

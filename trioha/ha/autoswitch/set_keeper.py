"""Asks the controllers for the sets that a master proposes (docs/protocol/ha.md#sync-state-set).

Theory of operation. `SyncStateSet` has the rules and does no I/O. `SetKeeper` observes it, and notes what is
to be done. `run` has the tasks: a request at a time for the newest open proposal, a look at all replicas
each checkSyncStateSetPeriod, and the end of joins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import structlog
import trio

from trioha.ha.sync_state_set import Proposal, SetObserver, SyncStateSet

log = structlog.get_logger(__name__)

FIRST_TICK_S: Final = 3.0
"""When the set is looked at first (docs/protocol/ha.md#sync-state-set)."""


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


class SetKeeper(SetObserver):
    """Asks the controller for the sets that a `SyncStateSet` proposes, and keeps that set's time."""

    def __init__(self, *, check_interval_s: float = 5.0) -> None:
        """`check_interval_s`: checkSyncStateSetPeriod, between two looks for members that fell back."""
        self._check_interval_s = check_interval_s
        self._proposal: Proposal | None = None
        """The next one to ask for."""
        self._proposed = trio.Event()
        self._joined = trio.Event()

    def proposed(self, _sync_state_set: SyncStateSet, proposal: Proposal) -> None:
        """As `SetObserver`."""
        self._proposal = proposal
        self._proposed.set()

    def joined(self, _sync_state_set: SyncStateSet) -> None:
        """As `SetObserver`."""
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

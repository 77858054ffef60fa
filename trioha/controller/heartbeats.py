"""Heartbeats of one broker to its controllers, and when there are none.

A broker that hangs, its disk or a change of its role, sends none until that is over: the controllers elect
another (`node.hang_watch`). The heartbeats of a broker that resigns have expired when they arrive
(`trioha.controller.agent`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from trioha.controller.agent_status import AgentSettings, Offsets
from trioha.controller.header import to_request
from trioha.controller.protocol import Heartbeat
from trioha.controller.role import Role
from trioha.remoting.command import RemotingCommand

log = structlog.get_logger(__name__)

RESIGNED_TIMEOUT_MS: Final = -86_400_000
"""Timeout in a heartbeat that has expired when it arrives. JRaft controllers compare their clock with that of
the broker, hence a whole day."""


class Heartbeats:
    """Makes the heartbeats of one broker."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        broker_id: Callable[[], int | None],
        role: Callable[[], Role | None],
        offsets: Callable[[], Offsets],
        hanging: Callable[[], str | None],
    ) -> None:
        """All four say what is now; `hanging` what of this broker hangs, None if nothing does."""
        self._settings = settings
        self._broker_id = broker_id
        self._role = role
        self._offsets = offsets
        self._hanging = hanging
        self.hang: str | None = None
        """What hung at the last heartbeat."""
        self.resigns = False
        """Whether the controllers take this broker for the master of a doubtful epoch."""

    def next(self) -> RemotingCommand | None:
        """The heartbeat now; None before the first id, and while this broker hangs."""
        broker_id = self._broker_id()
        if broker_id is None or self._note_hang():
            return None
        settings, offsets = self._settings, self._offsets()
        heartbeat = Heartbeat(
            cluster_name=settings.cluster_name,
            broker_name=settings.broker_name,
            broker_id=broker_id,
            broker_address=settings.broker_address,
            epoch=offsets.epoch,
            max_offset=offsets.max_offset,
            confirm_offset=offsets.confirm_offset,
            timeout_ms=RESIGNED_TIMEOUT_MS if self.resigns else settings.heartbeat_timeout_ms,
            election_priority=settings.election_priority,
        )
        return to_request(heartbeat, oneway=True)

    def _note_hang(self) -> bool:
        """Whether this broker hangs; its beginning and its end are logged."""
        hang, before = self._hanging(), self.hang
        self.hang = hang
        if hang is not None and before is None:
            role = self._role()
            log.error(
                "no heartbeats to the controllers: this broker hangs",
                reason=hang,
                role="none" if role is None else "master" if role.is_master else "slave",
                hint="they elect another master; look at the disk, and restart this node if it stays so",
            )
        elif hang is None and before is not None:
            log.warning("heartbeats to the controllers go on: this broker does not hang any more")
        return hang is not None

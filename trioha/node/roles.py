"""The roles that a node may have, the one that it is to have, and what it has of the controllers in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from attrs import evolve, field, frozen

from trioha.config.broker import BrokerConfig, BrokerRole

if TYPE_CHECKING:
    from trioha.controller.agent import ControllerAgent
    from trioha.controller.role import Role


@frozen
class NodeRole:
    """A role that a node may have."""

    broker_role: BrokerRole
    broker_id: int
    """0 on a master."""
    ha_master_address: str | None = None
    """`host:port` that a slave dials; None if it has to ask for it."""
    master_address: str | None = None
    """`host:port` at which a slave asks for metadata; None for that of the configuration."""
    epoch: int | None = None
    """Of the master, in controller mode: a later one is another role."""
    control: Role | None = field(default=None, eq=False)
    """What the controllers decided. Another sync-state set is no other role."""

    def of(self, config: BrokerConfig) -> BrokerConfig:
        """`config` for a node in this role."""
        return evolve(
            config,
            broker_role=self.broker_role,
            broker_id=self.broker_id,
            ha_master_address=self.ha_master_address,
            master_address=self.master_address or config.master_address,
        )


WAITING: Final = NodeRole(BrokerRole.SLAVE, 0)
"""Of a node to which the controllers gave no role since its start: it serves what is stored."""


class Roles:
    """The role that a node is to have."""

    def __init__(self, first: NodeRole) -> None:
        self._current = first
        self._changed = trio.Event()

    @property
    def current(self) -> NodeRole:
        """The role that was set last."""
        return self._current

    def set(self, role: NodeRole) -> None:
        """Have the node change to `role`; nothing happens if it is the current one."""
        if role != self._current:
            self._current = role
            self._changed.set()
            self._changed = trio.Event()

    async def other_than(self, role: NodeRole) -> None:
        """Wait until the role is not `role`."""
        while self._current == role:
            await self._changed.wait()


@frozen(kw_only=True)
class Control:
    """What a term of a node in controller mode has of the controllers."""

    agent: ControllerAgent
    role: Role | None = None
    """None before the first role of this start."""
    former: Role | None = None
    """The role of the term before; None if it had none, or there was none."""

"""Roles of a running node: one life after the other (see `trioha.node.role_life`).

Theory of operation. `Roles` holds the role that the node is to have; its source (a controller's notices, a
test) sets it. `live_roles` compares it with the role that the node has, and closes the gap:

```
          roles.current == role                       roles.current != role
        +----------------------+                    +------------------------+
        v                      |                    v                        |
   PREPARE(role)  ----->  LIVE(role)  ----->  ENDING (drains)  ----->  PREPARE(roles.current)
                               |
                               +-- stopping: ENDING, then the node ends
```

| step | what happens | invariant after it |
|---|---|---|
| PREPARE | store and metadata take the role; a master dispatches | no room exists; nothing is appended |
| LIVE | rooms are built for the role, ports are served | every part of the node has this role |
| ENDING | see `role_life`, Ends | no part of the node has a role |

Several changes during one PREPARE or ENDING are one: only the last role counts. A role that is set again
changes nothing.

In controller mode a role may be past when a life has ended for it: the slave's session of that life has
received records of a later epoch. The node is then prepared for no role, and waits for the next one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio
from attrs import evolve, field, frozen

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.model import HaVerify
from trioha.controller.role import Role
from trioha.net.threads import run_in_thread
from trioha.node.role_life import Control, NodeParts, Ready, live
from trioha.node.store_room import watch_progress

log = structlog.get_logger(__name__)


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


async def live_roles(
    parts: NodeParts, config: BrokerConfig, roles: Roles, *, on_ready: Callable[[Ready], None]
) -> None:
    """Live in each role of `roles` until the node stops; `on_ready` is called in the first one.

    The store was opened for `roles.current`. Raises as `live` does.
    """
    role = wanted = roles.current
    base_address = config.master_address
    while True:
        if parts.control is not None:
            parts = evolve(parts, control=_control_of(parts.control, role.control))
        async with trio.open_nursery() as changes:
            ending = trio.Event()
            changes.start_soon(_set_after, ending, parts.stopping.wait)
            changes.start_soon(_set_after, ending, partial(roles.other_than, wanted))
            config = await live(parts, role.of(config), ending=ending, on_ready=on_ready)
            changes.cancel_scope.cancel()
        if parts.stopping.is_set():
            return
        wanted = roles.current
        role = _role_for(parts, wanted)
        config = evolve(config, master_address=base_address)
        await _prepare(parts, role.of(config), role.control)
        on_ready = _report


def _control_of(control: Control, role: Role | None) -> Control:
    """`control` for a life in `role`."""
    return evolve(control, role=role, former=control.role)


def _role_for(parts: NodeParts, wanted: NodeRole) -> NodeRole:
    """`wanted`, or in controller mode no role if the log has a later epoch than `wanted`."""
    epochs = parts.store.epochs
    if wanted.control is None or epochs is None or epochs.last_epoch <= wanted.control.epoch:
        return wanted
    from trioha.node.controller_room import WAITING  # noqa: PLC0415

    log.error(
        "the role is past, waiting for the next one",
        epoch=wanted.control.epoch,
        log_epoch=epochs.last_epoch,
        hint="if none comes, restore the state of the controllers, or remove this store",
    )
    return WAITING


async def _set_after(event: trio.Event, wait: Callable[[], Awaitable[object]]) -> None:
    await wait()
    event.set()


async def _prepare(parts: NodeParts, config: BrokerConfig, control: Role | None) -> None:
    """Have store and metadata go on in the role of `config`. Takes as long as the log was not dispatched."""
    is_slave = config.broker_role is BrokerRole.SLAVE
    log.info("changing role", role=config.broker_role.value, broker_id=config.broker_id)
    if control is not None and control.is_master:
        from trioha.node.controller_room import take_epoch  # noqa: PLC0415

        await run_in_thread(partial(take_epoch, parts.store, control, config))
    await run_in_thread(
        partial(
            parts.store.take_role,
            is_slave=is_slave,
            check_crc=is_slave and config.ha_verify is HaVerify.FRAME,
            on_progress=watch_progress(),
        )
    )
    parts.metadata.take_role(is_slave=is_slave)
    if control is not None and control.is_master:
        from trioha.node.controller_room import adopt_topics  # noqa: PLC0415

        adopt_topics(parts.metadata.topics, parts.store.queues.queue_offsets())
        # Name servers compare it: the entry of a later master replaces that of an earlier one.
        topics = parts.metadata.topics
        topics.version = evolve(topics.version, state_version=control.epoch)


def _report(ready: Ready) -> None:
    """Log that the node serves in another role."""
    log.info(
        "serving",
        role=ready.role,
        listen=str(ready.listen),
        ha=str(ready.ha),
        max_offset=ready.max_offset,
        session=None if ready.session is None else str(ready.session),
    )

"""Roles of a running node: one term after the other (see `trioha.node.term`).

Theory of operation. `Roles` holds the role that the node is to have; its source (a controller's notices, a
test) sets it. `serve_roles` compares it with the role that the node has, and closes the gap:

```
          roles.current == role                       roles.current != role
        +----------------------+                    +------------------------+
        v                      |                    v                        |
   PREPARE(role)  ----->  TERM(role)  ----->  ENDING (drains)  ----->  PREPARE(roles.current)
                               |
                               +-- stopping: ENDING, then the node ends
```

| state | what happens | invariant after it |
|---|---|---|
| PREPARE | changeToMaster or changeToSlave, below | no part of a term exists; no append |
| TERM | parts are built for the role, ports are served | every part of the node has this role |
| ENDING | see `term`, Ends | no part of the node has a role |

changeToMaster (`_change_to_master`):

| step | what happens | invariant after it |
|---|---|---|
| FLUSH | with SYNC_FLUSH the log is put on disk | nobody reads or confirms what a power cut may take |
| EPOCH | epochs without bytes are dropped, the role's is put on disk, at the log's end | it is the log's last one: each byte from here on is this master's |
| DISPATCH | queues are built to the log's end; puts are accepted when they are there | the next message of each queue has an offset of its own |
| OFFSETS | offsets of groups beyond their queues are set back | no group passes over what takes a lost message's place |
| METADATA | the tables are a master's; topics that were not copied are added from the log | each stored message can be asked for |
| ANNOUNCE | the epoch is the state version of the topics | name servers prefer this master to earlier ones, and later ones to it |

EPOCH, the topics of METADATA and ANNOUNCE are of controller mode. A master that goes on in its epoch, with others
in its set, builds queues to the confirm offset only, and does the rest of DISPATCH, without OFFSETS, in TERM.

changeToSlave (`_change_to_slave`). The log is as it was: the session compares it with the master's first, in
TERM, and cuts it (`trioha.ha.autoswitch.epoch_session`).

| step | what happens | invariant after it |
|---|---|---|
| STORE | the store takes no puts | whatever is appended is the master's |
| METADATA | the tables are a slave's | the master's replace them at the next copy |

A crash, or a stop, between two steps leaves what is on disk by then. All of them can be taken again, and are, with
the role of the next start. An epoch before the log's last one is refused in both changes, as RocketMQ does.

Several changes during one PREPARE or ENDING are one: only the last role counts. A role that is set again
changes nothing.

In controller mode a role may be past when a term has ended for it: the slave's session of that term has
received records of a later epoch. The node is then prepared for no role, and waits for the next one.
"""  # noqa: E501 - lines of a table

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog
import trio
from attrs import evolve

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.keys.store import FlushDiskType
from trioha.controller.role import Role
from trioha.metadata.table import wall_clock_ms
from trioha.net.threads import run_in_thread
from trioha.node.promotion import adopt_topics, offsets_beyond, set_back, stored_topics, take_epoch
from trioha.node.roles import WAITING, Control, NodeRole, Roles
from trioha.node.store_tasks import flush_rest, watch_progress
from trioha.node.term import NodeParts, Ready, serve_term
from trioha.store.message_store import MessageStore

log = structlog.get_logger(__name__)

_CHANGE: Final = "a change of the role"


async def serve_roles(
    parts: NodeParts, config: BrokerConfig, roles: Roles, *, on_ready: Callable[[Ready], None]
) -> None:
    """Serve in each role of `roles` until the node stops; `on_ready` is called in the first one.

    The store was opened for `roles.current`. Raises as `serve_term` does.
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
            changes.start_soon(_watch_change, parts, ending)
            config = await serve_term(parts, role.of(config), ending=ending, on_ready=on_ready)
            changes.cancel_scope.cancel()
        if parts.stopping.is_set():
            return
        wanted = roles.current
        role = _role_for(parts, wanted)
        config = evolve(config, master_address=base_address)
        with parts.hangs.working(_CHANGE) as change:
            await _prepare_unless_stopped(parts, role.of(config), role.control, on_step=change.step)
        if parts.stopping.is_set():
            return
        on_ready = Ready.log


def _control_of(control: Control, role: Role | None) -> Control:
    """`control` for a term in `role`."""
    return evolve(control, role=role, former=control.role)


def _role_for(parts: NodeParts, wanted: NodeRole) -> NodeRole:
    """`wanted`, or in controller mode no role if the log has a later epoch than `wanted`."""
    epochs = parts.store.epochs
    if wanted.control is None or epochs is None or epochs.last_epoch <= wanted.control.epoch:
        return wanted
    log.error(
        "the role is past, waiting for the next one",
        epoch=wanted.control.epoch,
        log_epoch=epochs.last_epoch,
        hint="if none comes, restore the state of the controllers, or remove this store",
    )
    return WAITING


async def _watch_change(parts: NodeParts, ending: trio.Event) -> None:
    """The end of a term for another role, until cancelled: it is a part of the change."""
    await ending.wait()
    if parts.stopping.is_set():
        return
    with parts.hangs.working(_CHANGE):
        await trio.sleep_forever()


async def _prepare_unless_stopped(
    parts: NodeParts, config: BrokerConfig, control: Role | None, *, on_step: Callable[[], None]
) -> None:
    """`_prepare`, ended within a moment when the node stops: a start does the rest."""
    async with trio.open_nursery() as nursery:

        async def end_when_stopped() -> None:
            await parts.stopping.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end_when_stopped)
        await _prepare(parts, config, control, on_step=on_step)
        nursery.cancel_scope.cancel()


async def _set_after(event: trio.Event, wait: Callable[[], Awaitable[object]]) -> None:
    await wait()
    event.set()


async def _prepare(
    parts: NodeParts, config: BrokerConfig, control: Role | None, *, on_step: Callable[[], None]
) -> None:
    """Have store and metadata go on in the role of `config`. Takes as long as the log was not dispatched.

    `on_step` is called while that goes on. Cancelled, it leaves a store whose next start does the rest.
    """
    log.info("changing role", role=config.broker_role.value, broker_id=config.broker_id)
    if config.broker_role is BrokerRole.SLAVE:
        await _change_to_slave(parts, on_step=on_step)
    else:
        await _change_to_master(parts, config, control, on_step=on_step)


async def _change_to_master(
    parts: NodeParts, config: BrokerConfig, control: Role | None, *, on_step: Callable[[], None]
) -> None:
    """The steps of changeToMaster, in the order of the module's table."""
    store, metadata = parts.store, parts.metadata
    if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
        # All of it is dispatched, and in controller mode confirmed if the new master is alone.
        await flush_rest(store, on_step=on_step)
    if control is not None:
        await run_in_thread(partial(take_epoch, store, control, config))
    await _take_role(store, is_slave=False, on_step=on_step)
    if store.dispatcher.position >= store.commit_log.max_offset:
        consumers = metadata.consumer_offsets
        queue_end = store.reads.max_offset
        set_back(consumers, await run_in_thread(lambda: offsets_beyond(consumers, queue_end)))
    topics = metadata.topics
    changed_ms = topics.version.timestamp_ms
    metadata.take_role(is_slave=False)
    if control is not None:
        known = frozenset(topics.entries)
        find_stored = partial(stored_topics, store, known=known, since_ms=changed_ms)
        adopt_topics(topics, await run_in_thread(find_stored))
        # Name servers compare it: the entry of a later master replaces that of an earlier one. Its time is of
        # this master's clock from now on, as the records are.
        topics.version = evolve(topics.version, state_version=control.epoch, timestamp_ms=wall_clock_ms())


async def _change_to_slave(parts: NodeParts, *, on_step: Callable[[], None]) -> None:
    """The steps of changeToSlave, in the order of the module's table."""
    await _take_role(parts.store, is_slave=True, on_step=on_step)
    parts.metadata.take_role(is_slave=True)


async def _take_role(store: MessageStore, *, is_slave: bool, on_step: Callable[[], None]) -> None:
    progress = watch_progress(on_step)
    await run_in_thread(partial(store.take_role, is_slave=is_slave, on_progress=progress))

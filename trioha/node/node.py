"""A node: store, replication and remoting server of one broker, in one nursery tree.

```
run_node
+- HTTP port                      (only with trioha.metricsPort) probes from the start, metrics of each term
+- services                       of the whole node; end last
   +- metadata                    writes topics, groups and offsets
   +- lock                        ends the process if another one may have opened the store
   +- security                    reads rules of access control and certificates when they change
   +- name server                 (only with trioha.withNamesrv)
   +- controllers                 (only with enableControllerMode) the agent that gets the node its roles
   +- archive                     (only with trioha.archiveUrl) has the archiver work, a process of its own
   +- a term                      `trioha.node.term`: everything else, in one role
```

Stopping drains: when `stopping` is set, the term ends as it says there, then the services are
cancelled, then the store is flushed and closed. Cancelling `run_node` does the same without draining.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
import trio

from trioha.broker.health import Health
from trioha.config.broker import BrokerConfig
from trioha.config.update import ConfigFile
from trioha.node.archive import Archive, check_archive
from trioha.node.budget import descriptor_budget
from trioha.node.hang_watch import HangWatch
from trioha.node.lock_watch import watch_lock
from trioha.node.metadata import open_metadata
from trioha.node.metrics import http_port
from trioha.node.name_servers import open_name_server
from trioha.node.ports import Ports
from trioha.node.roles import WAITING, Control, Roles
from trioha.node.security import Security
from trioha.node.store_tasks import close_store, open_store
from trioha.node.term import NodeParts, Ready, serve_term
from trioha.remoting.client import ClientSecurity
from trioha.store.message_store import MessageStore
from trioha.unwritten import Unwritten

__all__ = ["Ready", "run_node"]

log = structlog.get_logger(__name__)


async def run_node(
    config: BrokerConfig,
    *,
    on_ready: Callable[[Ready], None],
    warnings: tuple[str, ...] = (),
    config_file: ConfigFile | None = None,
    stopping: trio.Event | None = None,
    roles: Roles | None = None,
    health: Health | None = None,
) -> None:
    """Run one node until `stopping` is set, or until cancelled; calls `on_ready` once, when it is ready.

    `warnings` of the configuration are part of the node's status; administrators change `config_file`. The
    node has one role, that of `config`, or with `roles` one after the other. `health` gets to know how it is.
    Cancellation while the store is being opened takes effect within a second.

    Raises StoreError if the store cannot be opened or its disk fails later; ConfigError if the node cannot
    listen on its addresses, may not open the files that it needs, or lacks what an archive needs.
    """
    check_archive(config)
    if config.enable_controller_mode and roles is None:
        roles = Roles(WAITING)
    if roles is not None:
        config = roles.current.of(config)
    budget = descriptor_budget(config, changes_role=roles is not None)
    if budget.lowered is not None and budget.is_short:
        log.warning(budget.lowered)
        warnings = (*warnings, budget.lowered)
    elif budget.lowered is not None:
        log.info(budget.lowered)
    security = await Security.open(config)
    await Ports(config).check()
    health = Health() if health is None else health
    async with (
        http_port(config, health=health, budget=budget) as http,
        _opened_store(config, queue_files=budget.queue_files) as store,
        open_metadata(config, unwritten=store.unwritten) as metadata,
    ):
        security = await security.with_users(config)
        name_server = await open_name_server(config, budget=budget, tls=security.tls)
        archive = Archive.build(config, store)
        ports = Ports(config, are_kept=roles is not None)
        with ports.closed():
            async with trio.open_nursery() as services:
                services.start_soon(metadata.run)
                services.start_soon(watch_lock, store)
                services.start_soon(security.run, config)
                name_server_address = None
                if name_server is not None:
                    name_server_address = await services.start(
                        partial(name_server.run, gate=budget.client_gate())
                    )
                hangs = HangWatch(config.hang_timeout / 1000)
                control = None
                if config.enable_controller_mode and roles is not None:
                    control = await _join_controllers(
                        config,
                        store,
                        roles,
                        services,
                        ports=ports,
                        security=security.client,
                        hanging=hangs.hanging,
                    )
                parts = NodeParts(
                    store=store,
                    metadata=metadata,
                    security=security,
                    archive=archive,
                    name_server=name_server,
                    name_server_address=name_server_address,
                    ports=ports,
                    budget=budget,
                    hangs=hangs,
                    stopping=trio.Event() if stopping is None else stopping,
                    health=health,
                    http=http,
                    warnings=warnings,
                    config_file=config_file,
                    control=control,
                )

                def ready(first: Ready) -> None:
                    on_ready(first)
                    if archive is not None:
                        services.start_soon(archive.service.run)

                if roles is None:
                    await serve_term(parts, config, ending=parts.stopping, on_ready=ready)
                else:
                    from trioha.node.role_changes import serve_roles  # noqa: PLC0415

                    await serve_roles(parts, config, roles, on_ready=ready)
                services.cancel_scope.cancel()


@asynccontextmanager
async def _opened_store(config: BrokerConfig, *, queue_files: int) -> AsyncIterator[MessageStore]:
    """The store, which is closed at the end of the block. Raises StoreError."""
    store = await open_store(config, queue_files=queue_files, unwritten=Unwritten())
    try:
        yield store
    finally:
        await close_store(store)


async def _join_controllers(
    config: BrokerConfig,
    store: MessageStore,
    roles: Roles,
    services: trio.Nursery,
    *,
    ports: Ports,
    security: ClientSecurity,
    hanging: Callable[[], str | None],
) -> Control:
    """Start the agent that gets the node its roles. Raises StoreError for an identity that is not usable."""
    from trioha.node.controller_agent import open_agent, run_agent  # noqa: PLC0415

    # The controllers' notices come to the port for clients.
    async with ports.open() as opened:
        listen = opened.clients_address
    agent = await open_agent(config, store, listen=listen, security=security, hanging=hanging)
    await services.start(run_agent, agent, roles)
    return Control(agent=agent)

"""One term of a node: all that it does in one role, from the recorder to the last answer.

Theory of operation. A node that changes its role begins another term. No part ever changes its role: a term
makes every part that depends on the role, runs them in nurseries of its own, and ends them. What does not
depend on it is opened once (`NodeParts`): store, metadata, security, name server, archive, and the listeners
of all ports. A node without controller mode has one term, `trioha.node.role_changes` has one follow the
other.

```
serve_term
+- recorder                       (only with trioha.recordDir; ends last and records the ends of all others)
   +- services                    end after the connections of clients
      +- store                    flush, dispatch, the next log file, retention
      +- replication              group commit, a nursery per slave, on a slave the session with its master
      +- metrics                  (only with trioha.metricsPort) has them for the node's HTTP port
      +- pending                  counts timers that wait, and pops of a RocketMQ master; not on a slave
      +- metadata copies          asks the master for topics, groups and offsets; not on a master
      +- registration             a task for each name server of namesrvAddr
      +- clients
         +- status updates
         +- consumers             ends pulls in time, lets silent members go
         +- delayed messages      delivers them when they are due; not on a slave
         +- timers                delivers messages with a time of delivery; not on a slave
         +- pops                  hands out messages, gives again what is not acknowledged; not on a slave
         +- administration        samples the statistics of topics and groups
         +- transactions          checks those that are not decided; not on a slave
         +- remoting server       a nursery per client
```

Ends. When the node stops, a term drains: the broker unregisters with its name servers, accepts no more
connections and requests of clients and answers the sends that wait for slaves or the disk, while replication
and store go on, for `DRAIN_S` at most. Then the clients' nursery is cancelled, then the services'.

When the node changes its role, a term ends in the same order, with these differences. Nothing is stored from
then on: a slave's session with its master ends first. Sends that wait for slaves are answered
FLUSH_SLAVE_TIMEOUT at once, which is true: they are stored here, and that others have them is not known. The
name servers keep the entry until the next term replaces it. The ports stay open: clients connect again at
once, and are served by the next term.

Invariants, which the next term relies on:

| when `serve_term` has returned | since |
|---|---|
| nothing is appended to the log | puts are refused before the drain; all tasks that append have ended |
| no open connection waits for an answer | the drain closes each after its answers, or cuts it |
| nothing of this term is attached to the store | `MessageStore.attachments` |
| the session is closed | the recorder ends last |
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio
from attrs import frozen

from trioha.broker.health import CHANGING_ROLE, STOPPING, Facts, Health
from trioha.broker.info import PartStatuses
from trioha.broker.slave_reads import always
from trioha.broker_status import ControlStatus
from trioha.config.broker import BrokerConfig
from trioha.config.update import ConfigFile
from trioha.ha.replicas import ConnectedReplicas
from trioha.metadata.metadata_store import MetadataStore
from trioha.node.archive import Archive
from trioha.node.broker_service import BrokerService
from trioha.node.budget import DescriptorBudget
from trioha.node.hang_watch import HangWatch
from trioha.node.late_imports import import_late
from trioha.node.metadata import MetadataCopy, master_address, master_check
from trioha.node.metrics import facts_of, sources_of
from trioha.node.name_servers import registration_of
from trioha.node.pending_messages import PendingCounter
from trioha.node.ports import OpenPorts, Ports
from trioha.node.replication import Replication
from trioha.node.roles import Control
from trioha.node.security import Security
from trioha.node.session_recording import recording
from trioha.node.store_tasks import StoreTasks
from trioha.recording.events import EventSink
from trioha.remoting.address import Address
from trioha.remoting.serving import Handler
from trioha.store.message_store import MessageStore
from trioha.store.record import Host
from trioha.store.retention import EVERYTHING

if TYPE_CHECKING:
    from trioha.broker.registration import BrokerRegistration
    from trioha.metrics.port import HttpPort
    from trioha.metrics.sources import Sources
    from trioha.namesrv.server import NameServer

log = structlog.get_logger(__name__)

REGISTERED_WITHIN_S: Final = 1.0
"""How long a node waits, before it is ready, until it is registered with its own name server."""
DRAIN_S: Final = 3.0
"""How long a term that ends waits for its last answers: the default of RocketMQ's slaveTimeout."""


@frozen
class Ready:
    """Addresses and store of a node that is ready."""

    role: str
    listen: Address
    """Address for clients."""
    ha: Address
    """Address for slaves."""
    store: Path
    max_offset: int
    session: Path | None
    """Folder of the recording, None if nothing is recorded."""
    name_server: Address | None = None
    """Where the embedded name server is reached, None if there is none."""
    metrics: Address | None = None
    """Where Prometheus gets metrics and probes ask, None without trioha.metricsPort."""

    def line(self) -> str:
        """The ready line for stdout: `ready` and `key=value` pairs, quoted as for a shell."""
        pairs = {
            "role": self.role,
            "listen": str(self.listen),
            "ha": str(self.ha),
            "store": str(self.store),
            "max_offset": str(self.max_offset),
        }
        if self.session is not None:
            pairs["session"] = str(self.session)
        if self.name_server is not None:
            pairs["namesrv"] = str(self.name_server)
        if self.metrics is not None:
            pairs["metrics"] = str(self.metrics)
        return " ".join(["ready", *(f"{key}={shlex.quote(value)}" for key, value in pairs.items())])

    def log(self) -> None:
        """Log that the node serves."""
        log.info(
            "serving",
            role=self.role,
            listen=str(self.listen),
            ha=str(self.ha),
            max_offset=self.max_offset,
            session=None if self.session is None else str(self.session),
        )


@frozen
class NodeParts:
    """What a node opens once, for all its terms."""

    store: MessageStore
    metadata: MetadataStore
    security: Security
    archive: Archive | None
    name_server: NameServer | None
    name_server_address: Address | None
    ports: Ports
    budget: DescriptorBudget
    hangs: HangWatch
    """Syncs of the disk and changes of the role: a node that hangs sends no heartbeats to controllers."""
    stopping: trio.Event
    """Set when the node is to stop."""
    health: Health
    """Says whether the node is ready."""
    http: HttpPort | None = None
    """Of trioha.metricsPort."""
    warnings: tuple[str, ...] = ()
    """Of the configuration; part of the status."""
    config_file: ConfigFile | None = None
    """Where administrators' changes of the configuration are written."""
    control: Control | None = None
    """Of controller mode; its role is that of the term."""


async def serve_term(
    parts: NodeParts, config: BrokerConfig, *, ending: trio.Event, on_ready: Callable[[Ready], None]
) -> BrokerConfig:
    """Serve in the role of `config` until `ending` is set; calls `on_ready` once, when clients are served.

    The term is the last one if `parts.stopping` is set then. Returns `config` as administrators have changed
    it. Raises StoreError when the disk fails; ConfigError if a port cannot be opened.
    """
    with parts.store.attachments():
        async with (
            recording(config, unwritten=parts.store.unwritten) as (sink, session),
            parts.ports.open() as ports,
        ):
            term = _build(parts, config, ports, sink=sink)
            ready = Ready(
                role=config.broker_role.value,
                listen=ports.clients_address,
                ha=ports.slaves_address,
                store=config.store_path_root_dir,
                max_offset=parts.store.commit_log.max_offset,
                session=session,
                name_server=parts.name_server_address,
                metrics=None if parts.http is None else parts.http.address,
            )
            await _serve(
                parts, config, ports, term, sink=sink, ending=ending, on_ready=lambda: on_ready(ready)
            )
            return term.broker.admin.config.config


@frozen(kw_only=True)
class _Term:
    """The parts of a node in one role."""

    store: StoreTasks
    ha: Replication
    copies: MetadataCopy
    pending: PendingCounter
    registration: BrokerRegistration | None
    broker: BrokerService
    facts: Facts
    """Of the node's readiness."""
    metrics: Sources | None
    """Of the metrics of `NodeParts.http`."""


def _build(parts: NodeParts, config: BrokerConfig, ports: OpenPorts, *, sink: EventSink) -> _Term:
    """The parts for the role of `config`."""
    store, metadata, security = parts.store, parts.metadata, parts.security
    archive, budget, control = parts.archive, parts.budget, parts.control
    # Records have the port that clients dial, also if listenPort is 0.
    store.commit_log.store_host = Host.parse(config.broker_ip1, ports.clients_address.port)
    master = master_address(config, own=ports.clients_address)
    ha = Replication.build(
        config,
        store,
        sink=sink,
        budget=budget,
        control=control,
        security=security.client,
        tls=security.ha,
        check_master=master_check(config, master, security=security.client).refusal,
    )
    store_tasks = StoreTasks.build(
        config,
        store,
        sink=sink,
        retention_floor=ha.master.retention_floor,
        archived_offset=(lambda: EVERYTHING) if archive is None else archive.service.archived_offset,
        working=partial(parts.hangs.stepping, "a sync of the log"),
    )
    copies = MetadataCopy.build(
        config,
        store,
        metadata,
        master=master,
        security=security,
        has_caught_up=always if ha.slave is None else ha.slave.has_caught_up,
    )
    pending = PendingCounter(config, store, metadata)
    registration = None
    # Before its first role nobody may take the node for a master or a slave.
    if control is None or control.role is not None:
        registration = registration_of(
            config,
            metadata.topics,
            listen=ports.clients_address,
            ha_address=ports.slaves_address,
            on_master=ha.master_location.receive,
            on_master_address=master.receive,
            security=security.client,
        )
    broker = BrokerService.build(
        config,
        store,
        metadata=metadata,
        ha=ha,
        security=security,
        listen=ports.clients_address,
        ha_address=ports.slaves_address,
        sink=sink,
        budget=budget,
        warnings=parts.warnings,
        retention=store_tasks.retention,
        readers=store_tasks.readers,
        config_file=parts.config_file,
        handlers={
            **_control_handlers(config, store, control, ha_address=ports.slaves_address),
            **_user_handlers(config, security),
        },
        parts=PartStatuses(
            metadata=copies.status,
            clock_doubt=lambda: store_tasks.retention.doubt,
            archive=(lambda: None) if archive is None else partial(archive.status, store_tasks.retention),
            control=_control_status(config, store, control, ha.replicas),
            pending=lambda: pending.status,
        ),
        pending=pending,
        registration=registration,
    )
    return _Term(
        store=store_tasks,
        ha=ha,
        copies=copies,
        pending=pending,
        registration=registration,
        broker=broker,
        facts=facts_of(config, broker=broker, store=store_tasks, hangs=parts.hangs),
        metrics=None
        if parts.http is None
        else sources_of(
            config, parts.http, broker=broker, metadata=metadata, ha=ha, store=store_tasks, budget=budget
        ),
    )


async def _serve(
    parts: NodeParts,
    config: BrokerConfig,
    ports: OpenPorts,
    term: _Term,
    *,
    sink: EventSink,
    ending: trio.Event,
    on_ready: Callable[[], None],
) -> None:
    """Run the parts of a term until `ending` is set; then drain."""
    store, budget, control = parts.store, parts.budget, parts.control
    broker, registration = term.broker, term.registration
    async with trio.open_nursery() as services:
        if control is not None and config.record_dir is not None:
            from trioha.node.role_recording import (  # noqa: PLC0415
                record_changes,
                record_completed_cut,
                record_role,
            )

            record_role(sink, store, control)
            record_completed_cut(sink, store)
            services.start_soon(record_changes, sink, store, control, config)
        services.start_soon(term.store.run)
        if not broker.puts.is_slave:
            services.start_soon(term.pending.run)
        await services.start(partial(term.ha.run, ports.slaves, gate=budget.ha_gate()))
        if parts.http is not None and term.metrics is not None:
            await services.start(parts.http.run_metrics, term.metrics)
        async with trio.open_nursery() as clients:
            clients.start_soon(broker.updates.run, broker.server.connections.push)
            clients.start_soon(broker.consumers.run)
            clients.start_soon(broker.admin.run)
            await clients.start(
                partial(broker.server.serve_listeners, ports.clients, gate=budget.client_gate())
            )
            if broker.delivery is not None:
                clients.start_soon(broker.delivery.run)
            clients.start_soon(broker.timers.run)
            clients.start_soon(broker.pops.run)
            clients.start_soon(broker.transactions.run)
            services.start_soon(term.copies.run)
            if registration is not None:
                services.start_soon(registration.run)
                if parts.name_server is not None:
                    # Clients of a node that is ready find it at its own name server.
                    with trio.move_on_after(REGISTERED_WITHIN_S):
                        await registration.registered.wait()
            with parts.health.serving(term.facts):
                on_ready()
                clients.start_soon(import_late)
                await ending.wait()
            is_last = parts.stopping.is_set()
            parts.health.ends(STOPPING if is_last else CHANGING_ROLE)
            if is_last:
                parts.ports.end()
            else:
                term.ha.stop_following()
                broker.puts.refuse_all("this broker is changing its role")
                term.ha.group_commit.end_replica_waits()
            # Pulls that wait for messages are answered that there are none.
            broker.consumers.polls.end_all()
            broker.pops.end_all()
            async with trio.open_nursery() as ends:
                if registration is not None and is_last:
                    ends.start_soon(registration.stop)
                ends.start_soon(partial(broker.server.drain, timeout_s=DRAIN_S))
            if parts.name_server is not None and is_last:
                await parts.name_server.drain()
            clients.cancel_scope.cancel()
        services.cancel_scope.cancel()


def _control_status(
    config: BrokerConfig, store: MessageStore, control: Control | None, replicas: ConnectedReplicas
) -> Callable[[], ControlStatus | None]:
    """What says the status of controller mode; None outside of it."""
    if control is None:
        return lambda: None
    from trioha.node.control_status import control_status  # noqa: PLC0415

    return partial(control_status, config, store, control, replicas)


def _user_handlers(config: BrokerConfig, security: Security) -> Mapping[int, Handler]:
    """Requests about users; none without them."""
    if security.users is None:
        return {}
    from trioha.node.users import user_handlers  # noqa: PLC0415

    return user_handlers(config, security.users)


def _control_handlers(
    config: BrokerConfig, store: MessageStore, control: Control | None, *, ha_address: Address
) -> Mapping[int, Handler]:
    """Requests of controllers, their tools and slaves; none outside of controller mode."""
    if control is None:
        return {}
    from trioha.node.controller_agent import controller_processor  # noqa: PLC0415

    return controller_processor(config, store, control.agent, ha_address=ha_address).handlers

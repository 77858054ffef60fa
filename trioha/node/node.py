"""A node: store, replication and remoting server of one broker, in one nursery tree.

```
run_node
+- recorder                       (only with trioha.recordDir; ends last and records the ends of all others)
   +- services                    end after the connections of clients
      +- metadata                 writes topics, groups and offsets
      +- security                 reads the rules of access control when they change
      +- store                    flush, dispatch, the next log file, retention
      +- replication              group commit, a nursery per slave, on a slave the session with its master
      +- name server              (only with trioha.withNamesrv)
      +- metadata copies          asks the master for topics, groups and offsets; not on a master
      +- registration             a task for each name server of namesrvAddr
      +- archive                  (only with trioha.archiveUrl) has the archiver work, a process of its own
      +- metrics                  (only with trioha.metricsPort) serves them to Prometheus until the end
      +- clients
         +- status updates
         +- consumers             ends pulls in time, lets silent members go
         +- delayed messages      delivers them when they are due; not on a slave
         +- administration        samples the statistics of topics and groups
         +- transactions          checks those that are not decided; not on a slave
         +- remoting server       a nursery per client
```

Stopping drains: when `stopping` is set, the broker unregisters with its name servers, accepts no more
connections and requests of clients and answers the sends that wait for slaves or the disk, while replication
and store go on, for `DRAIN_S` at most.
Then the clients' nursery is cancelled, then the services', then the store is flushed and closed. Cancelling
`run_node` does the same without draining.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio
from attrs import frozen

from trioha.config.broker import BrokerConfig
from trioha.config.update import ConfigFile
from trioha.metadata.metadata_store import MetadataStore
from trioha.node.addresses import announced
from trioha.node.archive_room import ArchiveRoom, check_archive
from trioha.node.broker_room import BrokerRoom
from trioha.node.budget import DescriptorBudget, descriptor_budget
from trioha.node.ha_room import HaRoom, listen_for_slaves
from trioha.node.late_imports import import_late
from trioha.node.metadata_room import MetadataCopyRoom, open_metadata
from trioha.node.metrics_room import MetricsRoom
from trioha.node.namesrv_room import open_name_server, registration_of
from trioha.node.recording_room import recording
from trioha.node.security_room import SecurityRoom
from trioha.node.store_room import StoreRoom, close_store, open_store
from trioha.recording.events import EventSink
from trioha.remoting.address import Address
from trioha.store.message_store import MessageStore
from trioha.store.record import Host
from trioha.store.retention import EVERYTHING

log = structlog.get_logger(__name__)

REGISTERED_WITHIN_S: Final = 1.0
"""How long a node waits, before it is ready, until it is registered with its own name server."""
DRAIN_S: Final = 3.0
"""How long a stopping node waits for its last answers: the default of RocketMQ's slaveTimeout."""


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
    """Where Prometheus gets metrics, None without trioha.metricsPort."""

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


async def run_node(
    config: BrokerConfig,
    *,
    on_ready: Callable[[Ready], None],
    warnings: tuple[str, ...] = (),
    config_file: ConfigFile | None = None,
    stopping: trio.Event | None = None,
) -> None:
    """Run one node until `stopping` is set, or until cancelled; calls `on_ready` once, when it is ready.

    `warnings` of the configuration are part of the node's status; administrators change `config_file`.
    Cancellation while the store is being opened takes effect within a second.

    Raises StoreError if the store cannot be opened or its disk fails later; ConfigError if the node cannot
    listen on its addresses, may not open the files that it needs, or lacks what an archive needs.
    """
    check_archive(config)
    budget = descriptor_budget(config)
    if budget.lowered is not None and budget.is_short:
        log.warning(budget.lowered)
        warnings = (*warnings, budget.lowered)
    elif budget.lowered is not None:
        log.info(budget.lowered)
    security = await SecurityRoom.open(config)
    store = await open_store(config, queue_files=budget.queue_files)
    try:
        async with open_metadata(config) as metadata, recording(config) as (sink, session):
            await _serve(
                config,
                store,
                metadata=metadata,
                security=security,
                sink=sink,
                session=session,
                budget=budget,
                on_ready=on_ready,
                warnings=warnings,
                config_file=config_file,
                stopping=trio.Event() if stopping is None else stopping,
            )
    finally:
        await close_store(store)


async def _serve(
    config: BrokerConfig,
    store: MessageStore,
    *,
    metadata: MetadataStore,
    security: SecurityRoom,
    sink: EventSink,
    session: Path | None,
    budget: DescriptorBudget,
    on_ready: Callable[[Ready], None],
    warnings: tuple[str, ...],
    config_file: ConfigFile | None,
    stopping: trio.Event,
) -> None:
    """Run the rooms of a node, whose store is open, until `stopping` is set; then drain."""
    ha = HaRoom.build(config, store, sink=sink, budget=budget)
    name_server = await open_name_server(config, budget=budget, tls=security.tls)
    archive = ArchiveRoom.build(config, store)
    store_room = StoreRoom.build(
        config,
        store,
        sink=sink,
        retention_floor=ha.master.retention_floor,
        archived_offset=(lambda: EVERYTHING) if archive is None else archive.service.archived_offset,
    )
    ha_listeners, ha_address = await listen_for_slaves(config)
    broker = BrokerRoom.build(
        config,
        store,
        metadata=metadata,
        ha=ha,
        security=security,
        ha_address=ha_address,
        sink=sink,
        budget=budget,
        warnings=warnings,
        retention=store_room.retention,
        config_file=config_file,
    )
    copies = MetadataCopyRoom.build(config, store, metadata, security=security.client)
    broker.info.metadata_status = copies.status
    if archive is not None:
        broker.info.archive_status = partial(archive.status, store_room.retention)
    metrics = MetricsRoom.build(config, broker=broker, ha=ha, store=store_room, budget=budget)
    name_server_address: Address | None = None
    metrics_address: Address | None = None
    async with trio.open_nursery() as services:
        services.start_soon(store_room.run)
        services.start_soon(metadata.run)
        services.start_soon(security.run)
        await services.start(partial(ha.run, ha_listeners, gate=budget.ha_gate()))
        if name_server is not None:
            name_server_address = await services.start(partial(name_server.run, gate=budget.client_gate()))
        if metrics is not None:
            # Its connections are few and in the budget: an operator sees a shortage of descriptors.
            metrics_address = await services.start(partial(metrics.run, gate=budget.ha_gate()))
        async with trio.open_nursery() as clients:
            clients.start_soon(broker.updates.run, broker.server.push)
            clients.start_soon(broker.consumers.run)
            clients.start_soon(broker.admin.run)
            listening = await clients.start(
                partial(
                    broker.server.serve,
                    host=config.bind_address,
                    port=config.listen_port,
                    vip_port=config.vip_port,
                    gate=budget.client_gate(),
                )
            )
            listen_port = listening[0][1]
            # Records have the port that clients dial, also if listenPort is 0.
            store.commit_log.set_store_host(Host.parse(config.broker_ip1, listen_port))
            if broker.delivery is not None:
                clients.start_soon(broker.delivery.run)
            clients.start_soon(broker.transactions.run)
            listen = Address(announced(config.bind_address, config.broker_ip1), listen_port)
            broker.admin.offsets.address = copies.master.own = str(listen)
            services.start_soon(copies.run)
            registration = registration_of(
                config,
                metadata.topics,
                listen=listen,
                ha_address=ha_address,
                on_master=ha.master_location.receive,
                on_master_address=copies.master.receive,
                security=security.client,
            )
            if registration is not None:
                broker.admin.set_registration(registration)
                services.start_soon(registration.run)
                if name_server is not None:
                    # Clients of a node that is ready find it at its own name server.
                    with trio.move_on_after(REGISTERED_WITHIN_S):
                        await registration.registered.wait()
            on_ready(
                Ready(
                    role=config.broker_role.value,
                    listen=listen,
                    ha=ha_address,
                    store=config.store_path_root_dir,
                    max_offset=store.commit_log.max_offset,
                    session=session,
                    name_server=name_server_address,
                    metrics=metrics_address,
                )
            )
            if archive is not None:
                services.start_soon(archive.service.run)
            clients.start_soon(import_late)
            await stopping.wait()
            # Pulls that wait for messages are answered that there are none.
            broker.consumers.polls.end_all()
            async with trio.open_nursery() as ends:
                if registration is not None:
                    ends.start_soon(registration.stop)
                ends.start_soon(partial(broker.server.drain, timeout_s=DRAIN_S))
            if name_server is not None:
                await name_server.drain()
            clients.cancel_scope.cancel()
        services.cancel_scope.cancel()

"""A simulated broker in controller mode: a process that runs the node's own code, from crash to crash.

Real are the store with its cuts, the agent and its identity, the changes of roles (`serve_roles`), each life
of a role (`live`, with replication, the sync-state set, group commit, flush and dispatch) and the requests of
controllers and slaves. In place of sockets there are links; in place of servers for clients there are
producers that put messages, and no metadata is copied (`surroundings`).
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import trio
from attrs import define, evolve

from tests.controller.group import CLUSTER, NAME
from tests.simulation.failover.controllers import PORT as CONTROLLER_PORT
from tests.simulation.failover.disk import Disk, Image
from tests.simulation.failover.network import Port
from tests.simulation.failover.processes import CURRENT, Crash, Process
from tests.simulation.history import bytes_of
from tests.simulation.node import NodeSink
from trioha.broker.health import Health
from trioha.broker.puts import PutResult, PutService
from trioha.config.broker import BrokerConfig
from trioha.config.loading import check_config
from trioha.controller.agent import ControllerAgent
from trioha.controller.identity import IdentityFiles
from trioha.controller.role import Role
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.net.threads import run_in_thread
from trioha.node.budget import DescriptorBudget
from trioha.node.controller_agent import agent_settings, offsets_of, run_agent
from trioha.node.hang_watch import HangWatch
from trioha.node.metadata import metadata_settings
from trioha.node.ports import OpenPorts
from trioha.node.replication import Replication
from trioha.node.role_changes import serve_roles
from trioha.node.roles import WAITING, Control, Roles
from trioha.node.security import Security
from trioha.node.store_tasks import open_store
from trioha.node.term import NodeParts
from trioha.recording.events import NO_CONNECTION, Kind
from trioha.remoting.address import Address
from trioha.remoting.client import NO_SECURITY
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.serving import Handler
from trioha.store.commit_log import CommitLog
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.store_settings import StoreSettings

if TYPE_CHECKING:
    from tests.simulation.failover.world import World

CLIENT_PORT = 10911
HA_PORT = 10912
BUDGET = DescriptorBudget(
    limit=4096, clients=64, clients_per_peer=64, ha_connections=16, queue_files=16, name_server_clients=0,
    metrics_connections=0, reserve=8, lowered=None, is_short=False,
)  # fmt: skip


class Sink(NodeSink):
    """A broker's events; of a flush without its duration, which is the machine's."""

    def emit(
        self,
        kind: int,
        *,
        conn: int = NO_CONNECTION,
        offset: int = 0,
        aux: int = 0,
        size: int = 0,
        flags: int = 0,
    ) -> None:
        aux = 0 if kind == Kind.FLUSHED else aux
        super().emit(kind, conn=conn, offset=offset, aux=aux, size=size, flags=flags)


@define(eq=False)
class Request:
    """A request that a broker's process handles when it runs."""

    command: RemotingCommand
    answer: RemotingCommand | None = None
    done: trio.Event | None = None


@define(eq=False)
class Life:
    """What the broker does in one role."""

    config: BrokerConfig
    ha: Replication
    puts: PutService
    role: Role | None
    """None while the controllers gave none."""
    handlers: Mapping[int, Handler]
    is_over: bool = False

    @property
    def is_master(self) -> bool:
        return self.role is not None and self.role.is_master


class Broker:
    """One broker of the group."""

    def __init__(self, number: int, world: World, folder: Path) -> None:
        plan = world.plan
        self.number = number
        self.name = f"b{number}"
        self.host = f"10.0.0.{number}"
        self.address = f"{self.host}:{CLIENT_PORT}"
        self.world = world
        self.process = Process(self.name)
        self.disk = Disk(folder / self.name, random.Random(f"{plan.seed}/{self.name}/disk"))
        self.rng = random.Random(f"{plan.seed}/{self.name}")
        self.config = _config(world, self)
        self.ha_port = Port()
        self.store: MessageStore | None = None
        self.agent: ControllerAgent | None = None
        self.next_role: Role | None = None
        """Of the life that is being built, or of the one that is there."""
        self.life: Life | None = None
        self.statuses: Counter[str] = Counter()
        self.starts = 0
        self.boots = 1
        """How often its machine has started."""
        self.pending = 0
        """Puts without an answer."""
        self.interrupts_cut: tuple[int, bool] | None = None
        """After how many more syncs it crashes, and whether by a power cut: it has begun to cut its log."""
        self.cuts_to: int | None = None
        """Where the log is being cut now."""
        self.safe: bytes | None = None
        """After a crash: what is surely in the log."""
        self._ends: tuple[set[int], int, bytes] | None = None
        """After a crash: where a cut ends the log; from where on it may end otherwise; and its bytes."""
        self.settings: StoreSettings | None = None
        self._scope = trio.CancelScope()
        self._image: Image | None = None
        self._is_synced = False
        self._restart_after_s = 0.0
        self._requests: deque[Request] = deque()
        self._more_requests = trio.Event()

    def note(self, what: str) -> None:
        """Something happened to this broker."""
        self.world.trace.note(self.name, what)

    def fail(self, what: str) -> None:
        self.world.fail(f"{self.name}: {what}")

    @property
    def is_up(self) -> bool:
        return self.store is not None and self._image is None

    @property
    def log(self) -> CommitLog:
        return self.store.commit_log

    @property
    def id(self) -> int | None:
        return None if self.agent is None else self.agent.broker_id

    # -- life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live, crash and live again, until cancelled."""
        CURRENT.set(self)
        while True:
            self._scope = trio.CancelScope()
            try:
                with self._scope:
                    await self._live()
            except* Crash:
                pass
            except* StoreError as group:
                if self._image is None:
                    self.fail(f"ended with {group.exceptions}")
            finally:
                self._go_down()
            await trio.sleep(self._restart_after_s)

    async def _live(self) -> None:
        """As `trioha.node.node.run_node` does it in controller mode."""
        config = self.config
        self.starts += 1
        self.note(f"start {self.starts}")
        self.ha_port = Port()
        roles = Roles(WAITING)
        config = roles.current.of(config)
        self.store = store = await open_store(config, queue_files=16)
        self.settings = store.settings
        self._check_recovered()
        metadata = MetadataStore.open(metadata_settings(config))
        hangs = HangWatch(config.hang_timeout / 1000)
        agent = self.agent = ControllerAgent(
            agent_settings(config, listen=Address(self.host, CLIENT_PORT)),
            IdentityFiles.open(config.store_path_broker_identity, cluster_name=CLUSTER, broker_name=NAME),
            offsets=lambda: offsets_of(store),
            connect=self._connect_to_controller,
            run_blocking=run_in_thread,
            clock_ms=lambda: round(trio.current_time() * 1000),
            hanging=hangs.hanging,
            doubtful_epoch=store.doubtful_epoch,
        )
        parts = NodeParts(
            store=store,
            metadata=metadata,
            security=Security(tls=None, acl=None, client=NO_SECURITY),
            archive=None,
            name_server=None,
            name_server_address=None,
            ports=_Ports(self),
            budget=BUDGET,
            stopping=trio.Event(),
            health=Health(),
            hangs=hangs,
            control=Control(agent=agent),
        )
        async with trio.open_nursery() as services:
            services.start_soon(self._watch_roles, agent)
            services.start_soon(self._handle_requests)
            await services.start(run_agent, agent, roles)
            await serve_roles(parts, config, roles, on_ready=lambda _: None)

    def crash(self, *, power: bool, restart_after_s: float) -> None:
        """Be killed, or lose power, now. Nothing happens to a process that is down."""
        if not self.is_up:
            return
        self.interrupts_cut = None
        self.note(f"crash {power=} restart_after_s={restart_after_s:.3f}")
        log = self.log
        # Of a log that is being cut the cut bytes may be there or not: never a part of them.
        cuts_to = self.cuts_to
        self.cuts_to = None
        data = self._data_before_cut if cuts_to is not None else bytes_of(log, 0, log.max_offset)
        safe_end = min(log.flushed.offset, len(data)) if power else len(data)
        ends: set[int] = set() if cuts_to is None else {cuts_to}
        self.safe = data[: min([safe_end, *ends])]
        self._ends = (ends, safe_end, data)
        self._image = self.disk.after_power_cut() if power else self.disk.after_kill()
        if (cut_offset := self._image.cut_offset) is not None:
            # From the moment that the mark is on disk the log is cut.
            self._ends = ({cut_offset}, len(data) + 1, data)
        self._is_synced = power
        self.boots += power
        self._restart_after_s = restart_after_s
        self.ha_port.close()
        if power:
            for link in self.world.network.links(frozenset((self.name,))):
                link.silence()
        self.world.network.kill(self.name)
        self.process.resume()
        self._scope.cancel()

    _data_before_cut = b""

    def _go_down(self) -> None:
        self.ha_port.close()
        self.life = self.agent = None
        self.pending = 0
        for request in self._requests:
            if request.done is not None:
                request.done.set()
        self._requests.clear()
        store, self.store = self.store, None
        if store is not None:
            store.release()
        if self._image is None:
            # Ended by itself.
            self._image, self._is_synced = self.disk.after_kill(), False
        self.disk.restore(self._image, is_synced=self._is_synced)
        self.down_log = self._image.log()
        self._image = None

    down_log = b""
    """The log's bytes while the broker is down; zeros may follow."""

    def _check_recovered(self) -> None:
        """After a crash the log is what it was, or ends where it was being cut."""
        log = self.log
        end = log.max_offset
        epochs = () if self.store is None or self.store.epochs is None else self.store.epochs.entries
        self.note(f"log [{log.min_offset}, {end}) {[(one.epoch, one.start_offset) for one in epochs]}")
        if self._ends is None:
            return
        (ends, safe_end, data), self._ends = self._ends, None
        if log.min_offset or bytes_of(log, 0, end) != data[:end] or end > len(data):
            self.fail(f"recovery found other bytes than were written, up to {end} of {len(data)}")
        if end not in ends and end < safe_end:
            self.fail(f"recovery found {end}, safe was {safe_end}, cut to {sorted(ends)}")
        self.safe = None

    async def _watch_roles(self, agent: ControllerAgent) -> None:
        last = None
        with agent.changes() as changes:
            async for role in changes:
                if last is None or role.epoch != last.epoch:
                    self.world.role_given(self, role, last)
                last = role

    # -- what it holds -------------------------------------------------------------------------------------

    def holds(self, start: int, data: bytes) -> bool:
        """Whether the log has these bytes, up or down; on disk where that is promised."""
        end = start + len(data)
        if self.is_up:
            log = self.log
            if self.world.plan.is_durable and log.flushed.offset < end:
                return False
            return log.max_offset >= end and bytes_of(log, start, end) == data
        if self.safe is not None:
            return self.safe[start:end] == data
        return self.down_log[start:end] == data

    def data(self) -> bytes:
        return bytes_of(self.log, 0, self.log.max_offset)

    @property
    def confirm_offset(self) -> int:
        """What this broker takes for confirmed: 0 if it does not know."""
        life = self.life
        if life is None:
            return 0
        if life.is_master:
            found: int = life.ha.replicas.set.confirm_offset
            return found
        slave = life.ha.slave
        return 0 if slave is None else max(slave.confirm_offset, 0)

    # -- requests ------------------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        """A request arrives at the port for clients."""
        if not self.is_up:
            if request.done is not None:
                request.done.set()
            return
        self._requests.append(request)
        self._more_requests.set()

    async def _handle_requests(self) -> None:
        while True:
            while not self._requests:
                self._more_requests = trio.Event()
                await self._more_requests.wait()
            request = self._requests.popleft()
            life = self.life
            if life is not None:
                handler = life.handlers[request.command.code]
                with suppress(BadRequestError):
                    request.answer = handler(request.command, None)
            if request.done is not None:
                request.done.set()

    def _connect_to_controller(self, address: str) -> Any:
        return self.world.controller_client(self, address)

    # -- puts ----------------------------------------------------------------------------------------------

    async def produce(self, life: Life) -> None:
        plan, rng = self.world.plan, self.rng
        while True:
            await trio.sleep(rng.expovariate(1 / plan.pause_s))
            if self.world.produces:
                await self.put(life)

    async def put(self, life: Life) -> PutStatus:
        plan, rng = self.world.plan, self.rng
        size = round(plan.body_bytes_max ** rng.random())
        message = Message(
            topic=f"Topic{rng.randint(0, 1)}",
            queue_id=rng.randint(0, 1),
            body=rng.randbytes(size),
            properties=b"" if rng.random() < 0.7 else b"KEYS\x01" + rng.randbytes(4).hex().encode() + b"\x02",
        )
        log = self.log
        before = log.max_offset
        outcome = life.puts.put_and_wait(message)
        end = log.max_offset
        data = bytes_of(log, before, end)
        self.pending += 1
        if isinstance(outcome, PutResult):
            result = outcome
        else:
            await outcome.settled()
            result = life.puts.result(outcome)
        if not self.is_up:
            return result.status
        self.pending -= 1
        self.statuses[result.status.name] += 1
        if end != before:
            self.note(f"put [{before}, {end}) {result.status.name}")
            if not life.is_master or life.is_over:
                self.fail(f"stored a put at {before} in a life that has no master's role")
        elif result.status is PutStatus.PUT_OK:
            self.fail("a put is PUT_OK and was not stored")
        if result.status is PutStatus.PUT_OK:
            self.world.put_ok(self, life, before, data)
        return result.status


def _config(world: World, broker: Broker) -> BrokerConfig:
    plan = world.plan
    settings = {
        "brokerClusterName": CLUSTER,
        "brokerName": NAME,
        "trioha.bindAddress": broker.host,
        "brokerIP1": broker.host,
        "brokerIP2": broker.host,
        "listenPort": CLIENT_PORT,
        "haListenPort": HA_PORT,
        "storePathRootDir": broker.disk.root,
        "enableControllerMode": "true",
        "namesrvAddr": "10.0.1.1:9876",
        "controllerAddr": ";".join(f"{name}:{CONTROLLER_PORT}" for name in world.controllers.ports),
        "mappedFileSizeCommitLog": plan.file_bytes,
        "maxMessageSize": plan.file_bytes // 2,
        "mappedFileSizeConsumeQueue": 400,
        "maxHashSlotNum": 53,
        "maxIndexNum": 100,
        "flushDiskType": "SYNC_FLUSH" if plan.is_durable else "ASYNC_FLUSH",
        "trioha.haAckMode": "flushed" if plan.is_durable else "written",
        "allAckInSyncStateSet": str(plan.all_ack).lower(),
        "inSyncReplicas": plan.in_sync_replicas,
        "minInSyncReplicas": plan.min_in_sync_replicas,
        "totalReplicas": 3,
        "slaveTimeout": round(plan.slave_timeout_s * 1000),
        "haMaxTimeSlaveNotCatchup": round(plan.not_caught_up_s * 1000),
        "haSendHeartbeatInterval": round(plan.heartbeat_interval_s * 1000),
        "haHousekeepingInterval": round(plan.housekeeping_interval_s * 1000),
        "haTransferBatchSize": plan.batch_bytes,
        "trioha.haTailCheck": plan.tail_check_bytes,
        "trioha.haGapPolicy": plan.gap_policy,
        "trioha.busyPoll": 0,
        "asyncLearner": str(plan.learner == broker.number).lower(),
        "syncBrokerMetadataPeriod": round(plan.metadata_period_s * 1000),
        "brokerHeartbeatInterval": 1000,
        "controllerHeartBeatTimeoutMills": round(plan.dead_after_s * 1000),
    }
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return evolve(check_config(b"", file="simulated", overrides=overrides).config, namesrv_addr=())


class _Ports:
    """In place of `trioha.node.ports.Ports`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OpenPorts]:
        await trio.lowlevel.checkpoint()
        host = self._broker.host
        yield OpenPorts(
            clients=[],
            clients_address=Address(host, CLIENT_PORT),
            slaves=[cast("Any", self._broker.ha_port)],
            slaves_address=Address(host, HA_PORT),
        )

    def end(self) -> None:
        """They end with the process."""

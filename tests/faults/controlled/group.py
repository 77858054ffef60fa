"""A group of nodes in controller mode, its controller, its links and its producers, for one run.

Theory of operation, besides that of `tests.faults.nodes`. Each node has ports that stay, and links to all
that it dials: its controller, and the client's and HA port of each other node. Controllers and masters answer
with addresses; on their way through a link they become those of the links of that node (`Link.words`). So
each pair can be cut off from each other, in each direction. Producers dial nodes directly: a master that is
cut off from all others is still reached by its clients.

One producer follows the master, as the controller or a name server says who that is. Each node has another
one, which sends to it whatever its role: a node that is no master has to refuse it.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import trio
from attrs import evolve, frozen

from tests.faults import disks
from tests.faults.controlled.controllers import Controller, open_controller
from tests.faults.controlled.faults import Mend, Side, Who
from tests.faults.controlled.invariants import (
    IMPOSSIBLE_ENDS,
    History,
    check_epoch_files,
    check_group_roles,
    read_epochs,
)
from tests.faults.controlled.plan import GroupPlan
from tests.faults.invariants import check_sessions
from tests.faults.keeper import Node
from tests.faults.nodes import POLL_S, Nodes
from tests.faults.pops import DRAINED_WITHIN_S, PopLoad
from tests.faults.producer import Producer, Promise
from tests.faults.proxy import BOTH, Link
from tests.faults.trio_thread import TrioThread
from tests.interop.controller import CLUSTER, ask
from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT
from trioha.controller import protocol
from trioha.controller.bodies import EpochCache, MemberSet
from trioha.controller.header import to_request
from trioha.controller.protocol import ReplicaInfo
from trioha.errors import PeerError, RemoteProtocolError, TriohaError
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.name_server import fetch_broker_groups

BEGUN_WITHIN_S = 60.0
SETTLED_WITHIN_S = 90.0
"""A controller may have to start, and the last of several elections may have to be waited for."""
KEPT_FOR_S = 3.0
"""How long nodes without a controller are looked at until all are equal, before it is let back."""
FIND_EVERY_S = 0.2
ASK_TIMEOUT_S = 1.0
STUBBORN_RATE = 20.0
DIRECT = "127.0.0.1"

LinkName = tuple[str, str, str]
"""What it leads to (`CONTROLLER`, `CLIENT` or `HA`), who dials, and whose port that is."""
CONTROLLER = "controller"
CLIENT = "client"
HA = "ha"


@frozen
class NodePorts:
    """Where a node listens, over all its starts."""

    listen: int
    ha: int

    @property
    def address(self) -> str:
        return f"{DIRECT}:{self.listen}"


@frozen
class Seen:
    """What the controller said last."""

    epoch: int
    master: str | None
    """Name of the node; None while there is none."""
    members: frozenset[int]


class _World(TrioThread):
    """Links and producers, in a trio thread of their own."""

    def __init__(
        self,
        plan: GroupPlan,
        ports: Mapping[str, NodePorts],
        *,
        broker_name: str,
        controller: str,
        name_server: str | None,
    ) -> None:
        self._plan = plan
        self._ports = ports
        self._names = {one.address: name for name, one in ports.items()}
        self._broker_name = broker_name
        self._controller = controller
        self._name_server = name_server
        self._produced = trio.Event()
        self._finding = trio.CancelScope()
        self.links: dict[LinkName, Link] = {}
        self.targets: dict[LinkName, tuple[str, int]] = {}
        self.seen = Seen(0, None, frozenset())
        self.masters: dict[int, set[str]] = {}
        """Of each epoch, as the controller said it."""
        load = plan.setup.load
        self.follower = Producer(load, seed=plan.seed << 4, commits=False)
        stubborn = evolve(load, concurrency=2, rate=STUBBORN_RATE)
        self.producers = [
            self.follower,
            *(
                Producer(stubborn, seed=(plan.seed << 4) + number, commits=False)
                for number in range(1, plan.setup.members + 1)
            ),
        ]
        self.pops = PopLoad(seed=plan.seed, broker=broker_name, master_stays=False) if plan.pops else None
        super().__init__()

    async def _begin(self, nursery: trio.Nursery) -> None:
        host, _, port = self._controller.rpartition(":")
        for dialler in self._ports:
            self.targets[CONTROLLER, dialler, ""] = (host, int(port))
            for other, ports in self._ports.items():
                if other != dialler:
                    self.targets[CLIENT, dialler, other] = (DIRECT, ports.listen)
                    self.targets[HA, dialler, other] = (DIRECT, ports.ha)
        for number, (name, target) in enumerate(self.targets.items()):
            link = self.links[name] = Link(seed=self._plan.seed + number)
            link.target = target
            await nursery.start(link.serve)
        for dialler in self._ports:
            words = {
                f"{DIRECT}:{target[1]}".encode(): self.links[name].address.encode()
                for name, target in self.targets.items()
                if name[1] == dialler and name[0] != CONTROLLER
            }
            for name, link in self.links.items():
                if name[1] == dialler and name[0] != HA:
                    link.words = words
        nursery.start_soon(self._watch_controller)

    async def _watch_controller(self) -> None:
        """Ask the controller for the master, again and again."""
        while True:
            with suppress(PeerError, RemoteProtocolError):
                async with open_client(self._controller, connect_timeout_s=ASK_TIMEOUT_S) as client:
                    while True:
                        await self._look(client)
                        await trio.sleep(POLL_S)
            await trio.sleep(POLL_S)

    async def _look(self, client: RemotingClient) -> None:
        asked = to_request(protocol.ReplicaInfoRequest(broker_name=self._broker_name))
        answer = await client.request(asked, timeout_s=ASK_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return  # nobody has registered yet
        info = ReplicaInfo.of(answer.ext_fields)
        has_master = info.master_id is not None and info.master_id > 0 and info.master_address
        master = self._names.get(str(info.master_address)) if has_master else None
        self.seen = Seen(info.master_epoch or 0, master, MemberSet.of_body(answer.body).members)
        if master is not None:
            self.masters.setdefault(self.seen.epoch, set()).add(master)

    async def produce(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._find)
            async with trio.open_nursery() as producers:
                for producer in self.producers:
                    producers.start_soon(producer.run)
                if self.pops is not None:
                    producers.start_soon(self.pops.run)
                for producer, ports in zip(self.producers[1:], self._ports.values(), strict=True):
                    producer.use(ports.address)
            nursery.cancel_scope.cancel()
        self._produced.set()

    async def wait_produced(self) -> None:
        """End the load; returns when all answers are there."""
        for producer in self.producers:
            producer.stop()
        if self.pops is not None:
            self.pops.stop()
        await self._produced.wait()

    async def _find(self) -> None:
        """Lead the producer that follows the master to it."""
        used: str | None = None
        while True:
            found = self._ports[self.seen.master].address if self.seen.master is not None else None
            if self._name_server is not None:
                found = await self._registered_master(self._name_server)
            if found is not None and found != used:
                used = found
                # A new address counts when the connection to the old one has ended: that ends here.
                self.follower.use(found)
                self.follower.leave()
                if self.pops is not None:
                    self.pops.use(found)
            await trio.sleep(FIND_EVERY_S)

    async def _registered_master(self, name_server: str) -> str | None:
        try:
            async with open_client(name_server, connect_timeout_s=ASK_TIMEOUT_S) as client:
                groups = await fetch_broker_groups(client, timeout_s=ASK_TIMEOUT_S)
        except (PeerError, RemoteProtocolError):
            return None
        return next((one.addresses.get(0) for one in groups if one.broker_name == self._broker_name), None)


class Group(Nodes):
    """Nodes in controller mode, and everything else that a run is about."""

    MENDS_AS_PLANNED: ClassVar = False  # some faults wait for an election
    plan: GroupPlan

    def __init__(
        self,
        plan: GroupPlan,
        folder: Path,
        *,
        controller: str | None = None,
        programs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`controller` names a real one (`controllers.ControllerService.arguments`); None: a scripted one."""
        super().__init__(plan, folder, programs=programs)
        self.settled_within_s = SETTLED_WITHIN_S
        """How long it may take at the end until all nodes are in the set."""
        self.passed_over = 0
        """Faults that found nothing to break."""
        self.deaths = 0
        """Nodes that died at a call that they were armed for."""
        self.history = History()
        self._broken: set[str] = set()
        self._is_controller_up = True
        self._broker_name = f"faults-{plan.seed}"
        self.ports = {name: self._reserve_ports() for name in plan.setup.nodes}
        self.controller: Controller = open_controller(controller, folder=folder, run=str(plan.seed))
        self._stack.callback(self.controller.close)
        name_server = self._start_name_server() if plan.setup.finds_master_by == "name server" else None
        self._name_server_address = name_server or f"{DIRECT}:9"
        self.world = _World(
            plan,
            self.ports,
            broker_name=self._broker_name,
            controller=self.controller.address,
            name_server=name_server,
        )
        self._stack.callback(self.world.close)

    # -- what there is -------------------------------------------------------------------------------------

    @property
    def promises(self) -> list[Promise]:
        """What was answered PUT_OK so far, by anybody."""
        return [promise for producer in self.world.producers for promise in list(producer.promises)]

    @property
    def statuses(self) -> dict[str, int]:
        return dict(self.world.follower.statuses)

    def figures(self) -> dict[str, Any]:
        return {
            "controller": self.controller.name,
            # Epochs that had a master, as the controller said.
            "elections": len(self.world.masters),
            "deaths": self.deaths,
            "passed_over": self.passed_over,
            **({} if self.world.pops is None else self.world.pops.figures()),
        }

    def broker_id(self, name: str) -> int | None:
        """The id that the controller gave a node; None if it has none yet."""
        try:
            return int((self.store(name) / "brokerIdentity").read_text().rpartition("#")[2])
        except FileNotFoundError:
            return None

    def epochs(self, name: str) -> EpochCache:
        """The epochs of a node's log. Raises TriohaError."""
        answer = ask(self.ports[name].address, request(RequestCode.GET_BROKER_EPOCH_CACHE))
        return EpochCache.of_body(answer.body)

    def _reserve_ports(self) -> NodePorts:
        """Ports that stay this run's, also while the node is down: bound, but not listened on."""
        listen = free_port()
        for port in (listen, listen + 1):
            place = self._stack.enter_context(socket.socket())
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind((DIRECT, port))
        return NodePorts(listen, listen + 1)

    # -- nodes ---------------------------------------------------------------------------------------------

    def _make(self, name: str, *, on_spawned: Callable[[subprocess.Popen[str]], None]) -> Node:
        setup, number = self.plan.setup, self.plan.setup.nodes.index(name)
        shim = [sys.executable, "-m", "tests.faults.controlled.dying"]
        options = self._options(name) | {
            "program": self._programs.get(
                name, [*shim, str(self._disk_file(name)), str(self._death_file(name))]
            ),
            "brokerId": -1,
            "brokerClusterName": CLUSTER,
            "brokerName": self._broker_name,
            "listenPort": self.ports[name].listen,
            "namesrvAddr": self._name_server_address,
            "enableControllerMode": "true",
            "controllerAddr": self.world.links[CONTROLLER, name, ""].address,
            "allAckInSyncStateSet": "true",
            "inSyncReplicas": 1,
            "minInSyncReplicas": setup.min_in_sync_replicas,
            "flushDiskType": setup.flush_disk_types[number],
            "flushIntervalCommitLog": 50,
            "haMaxTimeSlaveNotCatchup": setup.not_caught_up_ms,
            "syncBrokerMetadataPeriod": 500,
            "syncControllerMetadataPeriod": 1000,
            "brokerHeartbeatInterval": 200,
            "controllerHeartBeatTimeoutMills": setup.silent_ms,
            "trioha.haAckMode": setup.ack_mode,
            "trioha.haTailCheck": setup.tail_check_bytes,
        }
        return Node(
            self.store(name), on_spawned=on_spawned, role="SLAVE", ha_port=self.ports[name].ha, **options
        )

    def _on_ready(self, name: str, node: Node) -> None:
        """The links lead to a node already, whether it is ready or not."""

    def take(self, who: Who, which: int) -> str | None:
        """A node in that role that nothing is the matter with: it is for one fault from now on."""
        master = self.world.seen.master
        free = [
            name
            for name in self.keepers
            if (name == master) == (who is Who.MASTER) and name not in self._broken
        ]
        if not free:
            return None
        name = free[which % len(free)]
        self._broken.add(name)
        return name

    def take_elected(self, *, not_name: str, within_s: float) -> str | None:
        """The master that is elected in place of a node, if one is in time."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if self.world.seen.master not in {None, not_name}:
                return self.take(Who.MASTER, 0)
            self.pause(POLL_S / 5)
        return None

    def release(self, name: str) -> None:
        self._broken.discard(name)

    def kill(self, name: str) -> None:
        self.keepers[name].kill()
        self._ended(name, is_clean=False)

    def _ended(self, name: str, *, is_clean: bool) -> None:
        """A node has ended: what epochs did its log have?"""
        self.history.note_epochs(name, read_epochs(self.store(name)))

    def _death_file(self, name: str) -> Path:
        return self.folder / f"{name}.death"

    def arm(self, name: str, doing: str, at_call: int) -> None:
        """Let a node die at a call to its disk while it does something: see `controlled.dying`."""
        self._death_file(name).write_text(f"{doing} {at_call}")

    def disarm(self, name: str, *, within_s: float) -> bool:
        """Whether the node died of it, waiting for that until it follows its master again."""
        file = self._death_file(name)
        deadline_s = time.monotonic() + within_s
        while file.exists() and time.monotonic() < deadline_s and not self._follows(name):
            self.pause(POLL_S)
        try:
            file.unlink()
        except FileNotFoundError:
            self.keepers[name].reap()
            self._ended(name, is_clean=False)
            self.deaths += 1
            return True
        return False

    def _follows(self, name: str) -> bool:
        node = self.keepers[name].ready_node
        if node is None:
            return False
        try:
            client = node.status().client
        except (TriohaError, AssertionError):
            return False
        return client is not None and client.state == "TRANSFER"

    def set_disk(self, name: str, *, is_full: bool) -> None:
        """Leave a node's disk no space, or give it some. The node must be there."""
        disks.set_fault(self._disk_file(name), disks.FULL if is_full else disks.HEALTHY)
        self.keepers[name].node()

    # -- links ---------------------------------------------------------------------------------------------

    def link(self, link: LinkName, call: str, *arguments: Any, **options: Any) -> None:
        self.world.call(getattr(self.world.links[link], call), *arguments, **options)

    def links_of(self, name: str, side: Side) -> Iterator[LinkName]:
        """Links between a node and others; first that to its controller, to which it reports what ends."""
        for link in sorted(self.world.links, key=lambda link: link[0] != CONTROLLER):
            kind, *ends = link
            if name in ends and side in {Side.BOTH, Side.CONTROLLER if kind == CONTROLLER else Side.MEMBERS}:
                yield link

    def cut_off(self, name: str, side: Side, *, is_silent: bool) -> None:
        """Cut a node off: bytes do not arrive, or connections end and are refused."""
        for link in self.links_of(name, side):
            if is_silent:
                self.link(link, "freeze", *BOTH)
            else:
                self.world.call(setattr, self.world.links[link], "target", None)
                self.link(link, "cut", reset=True)

    def heal(self, name: str) -> None:
        for link in self.links_of(name, Side.BOTH):
            self.world.call(setattr, self.world.links[link], "target", self.world.targets[link])
            self.link(link, "heal")

    def replication_links(self, which: int) -> list[LinkName]:
        """The link of a slave to its master; none while there is no master."""
        master = self.world.seen.master
        slaves = [name for name in self.keepers if name != master]
        return [] if master is None else [(HA, slaves[which % len(slaves)], master)]

    # -- controller and name server ------------------------------------------------------------------------

    def stop_controller(self) -> Mend | None:
        """`kill -9` of the controller; returns what starts it again, None if it is down."""
        if not self._is_controller_up:
            return None
        self._is_controller_up = False
        self.controller.kill()
        return self._start_controller

    def _start_controller(self) -> None:
        self.controller.start()
        self._is_controller_up = True

    def designate(self, which: int) -> None:
        """Ask the controller to elect a slave; it may refuse, and it may be down."""
        slaves = [name for name in self.keepers if name != self.world.seen.master]
        broker_id = self.broker_id(slaves[which % len(slaves)])
        if broker_id is None:
            return
        wish = protocol.ElectRequest(
            cluster_name=CLUSTER,
            broker_name=self._broker_name,
            broker_id=broker_id,
            is_designated=True,
            invoke_time_ms=time.time_ns() // 1_000_000,
        )
        with suppress(TriohaError):
            ask(self.controller.address, to_request(wish))

    def _start_name_server(self) -> str:
        port = free_port()
        with (self.folder / "name-server.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    *(sys.executable, "-m", "trioha", "namesrv", "--port", str(port)),
                    *("--set", f"kvConfigPath={self.folder / 'kvConfig.json'}"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return f"{DIRECT}:{port}"

    # -- the course of a run -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all nodes and the load, and wait until all are in the sync-state set and puts are kept."""
        for keeper in self.keepers.values():
            keeper.start()
        for keeper in self.keepers.values():
            keeper.node()
        self._begin_archive()
        self.world.spawn(self.world.produce)
        self.expect(lambda: self.promises and self._all_in_sync(), "a set of all, and a put", BEGUN_WITHIN_S)

    def expect(self, holds: Callable[[], object], what: str, within_s: float) -> None:
        """Wait for something. Raises AssertionError with what the controller and producers say."""
        self.wait(
            holds,
            lambda: f"{what}; the controller said {self.world.seen}, puts were answered {self.statuses}",
            within_s,
        )

    def settle(self) -> int:
        """Mend everything, end the load, and wait until all are equal; returns the end of the log.

        The controller is out of reach then: roles, set and epochs are kept.
        """
        for name, keeper in self.keepers.items():
            self.heal(name)
            if not keeper.is_up:
                keeper.start()
        if not self._is_controller_up:
            self._start_controller()
        for keeper in self.keepers.values():
            keeper.node()
        # The last puts go to a whole group, which must store some of them after all its faults.
        kept = len(self.world.follower.promises)
        self.expect(
            lambda: len(self.world.follower.promises) > kept, "a put after all faults", SETTLED_WITHIN_S
        )
        self.pause(0.2)
        self.world.run(self.world.wait_produced, within_s=SETTLED_WITHIN_S + DRAINED_WITHIN_S)
        deadline_s = time.monotonic() + SETTLED_WITHIN_S
        while True:
            self.expect(self._all_in_sync, "all are in the sync-state set", self.settled_within_s)
            for name in self.keepers:
                self.cut_off(name, Side.CONTROLLER, is_silent=False)
            try:
                self.expect(self._is_equal, "all logs are equal", KEPT_FOR_S)
            except AssertionError:
                assert time.monotonic() < deadline_s, self.differences()
                for name in self.keepers:
                    self.heal(name)
                self.pause(1.0)
            else:
                return self.epochs(self.plan.setup.nodes[0]).max_offset

    def _all_in_sync(self) -> bool:
        ids = {self.broker_id(name) for name in self.keepers}
        return self.world.seen.master is not None and self.world.seen.members == ids

    def _is_equal(self) -> bool:
        return not self.differences()

    def differences(self) -> str:
        """In what the nodes are not equal yet; empty if they are."""
        found = {}
        for name, keeper in self.keepers.items():
            try:
                epochs, status = self.epochs(name), keeper.node().status()
            except TriohaError as problem:
                return f"{name}: {problem}"
            found[name] = (
                epochs.max_offset,
                status.dispatched_offset,
                tuple((one.epoch, one.start_offset) for one in epochs.epochs),
            )
        (first, *others) = found.values()
        if first[0] == first[1] and all(one == first for one in others):
            return ""
        return f"logs, queues and epochs end at {found}"

    def end(self) -> None:
        master = self.world.seen.master
        for name in sorted(self.keepers, key=lambda name: name == master):
            self.stop(name)

    def _check_end(self, stores: list[Path], end_offset: int) -> list[str]:
        violations = check_epoch_files(stores, end_offset=end_offset)
        if self.world.pops is not None:
            violations += self.world.pops.violations(stores[0])
        if not violations:
            violations += self._check_history(stores[0])
        for name, keeper in self.keepers.items():
            violations += check_sessions(
                self.recordings(name), unclean_ends=keeper.kills, impossible_ends=IMPOSSIBLE_ENDS
            )
        return violations + check_group_roles(map(self.recordings, self.keepers))

    def _check_history(self, store: Path) -> list[str]:
        """Each epoch had one master and one begin, whoever says so; `store` is one of the equal ones."""
        history = self.history
        for epoch, names in self.world.masters.items():
            for name in names:
                history.note_master(epoch, name, "the controller")
        for name in self.keepers:
            history.note_log(name, self.log_file(name).read_text(errors="replace"))
            history.note_epochs(name, read_epochs(self.store(name)))
        names_by_address = {ports.address: name for name, ports in self.ports.items()}
        history.note_promises(self.promises, read_epochs(store), names_by_address)
        return history.violations()

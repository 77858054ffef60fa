"""A master, its slaves behind faulty links, and a producer, for one run."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import trio

from tests.faults import disks
from tests.faults.disks import SmallDisk
from tests.faults.faults import MASTER, ClockJump, DiskFull, FailingSync, IndexFull, Mend, slave_name
from tests.faults.invariants import (
    check_failed_sync,
    check_last_store_time,
    check_promises,
    check_recordings,
)
from tests.faults.keeper import Node
from tests.faults.liar import GROWTH_KB_MAX, PAGES_IN_A_ROW_MAX, Liar, peak_kb
from tests.faults.metadata import (
    COPY_PERIOD_S,
    Copy,
    CopyWatch,
    Queue,
    check_offsets,
    fetch_last_success,
    fetch_tables,
    file_differences,
    last_taken,
    last_write_s,
    metadata_differences,
    read_offsets,
)
from tests.faults.nodes import Nodes, exit_on_sigterm
from tests.faults.peers import Guest, Impostor, harass, occupy, pose, visit
from tests.faults.plan import Plan
from tests.faults.pops import DRAINED_WITHIN_S, PopLoad
from tests.faults.producer import Producer, Promise
from tests.faults.proxy import Link
from tests.faults.trio_thread import TrioThread
from tests.hostile.counters import ConnectionCounters
from tests.interop.controller import ask
from trioha.errors import StoreError
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.store.mapped_file import file_name

__all__ = ["Cluster", "exit_on_sigterm"]
LOST_WITHIN_S = 5.0
CUT_FILES_BEHIND = 4
"""A file is cut that many files are behind, all of them on disk."""
CUT_FILE_BYTES = 4096
"""What is left of it."""
LOCK_LOST_WITHIN_S = 30.0
"""A node looks at its lock file each second."""
CAUGHT_UP_WITHIN_S = 30.0
"""A slave that was refused again and again waits up to 5 s before it dials once more."""
METADATA_WITHIN_S = 60.0
"""Copies and writes begin every 0.3 s."""
WRITES_SEEN_EVERY_S = 0.05
WORLD_WITHIN_S = 10.0


class _World(TrioThread):
    """Links, producer and peers, in a trio thread of their own."""

    def __init__(self, plan: Plan, *, master_store: Path, violations: list[str]) -> None:
        """What is found out here is added to `violations`."""
        self._plan = plan
        self._master_store = master_store
        self._violations = violations
        self._produced = trio.Event()
        self._guests = 0
        self._guests_gone = trio.Event()
        self._guests_gone.set()
        self.links: list[Link] = []
        self.metadata_links: list[Link] = []
        """To the remoting ports; no fault is theirs, and a node has another port after each start."""
        self.copies = [CopyWatch(partial(self._check_copy, index)) for index in range(plan.setup.slaves)]
        """What passes them."""
        self.producer = Producer(plan.setup.load, seed=plan.seed)
        self.pops = PopLoad(seed=plan.seed) if plan.pops else None
        self._impostors: dict[int, trio.CancelScope] = {}
        self._liars: dict[int, tuple[Liar, trio.CancelScope]] = {}
        super().__init__()

    async def _begin(self, nursery: trio.Nursery) -> None:
        for index in range(self._plan.setup.slaves):
            link = Link(seed=self._plan.seed + index)
            await nursery.start(link.serve)
            self.links.append(link)
            metadata_link = Link(watch=self.copies[index].connection)
            await nursery.start(metadata_link.serve)
            self.metadata_links.append(metadata_link)
        nursery.start_soon(self._watch_writes)

    async def _watch_writes(self) -> None:
        while True:
            written_s = last_write_s(self._master_store)
            if written_s is not None:
                self.producer.ledger.note_write(written_s)
            await trio.sleep(WRITES_SEEN_EVERY_S)

    def _check_copy(self, index: int, copy: Copy) -> None:
        """What the master had acknowledged when it was asked is in its answer."""
        if self._plan.setup.upstream(index) == MASTER:
            acknowledged = self.producer.ledger.acknowledged_before(copy.asked_s)
            where = f"the answer to {slave_name(index)}"
            self._violations += check_offsets(copy.offsets, acknowledged, where=where)

    def invite(self, stay: Callable[[], Awaitable[None]]) -> None:
        """Start a peer that leaves by itself."""
        self.call(self._invite, stay)

    def _invite(self, stay: Callable[[], Awaitable[None]]) -> None:
        if not self._guests:
            self._guests_gone = trio.Event()
        self._guests += 1
        self._nursery.start_soon(self._attend, stay)

    async def _attend(self, stay: Callable[[], Awaitable[None]]) -> None:
        try:
            await stay()
        finally:
            self._guests -= 1
            if not self._guests:
                self._guests_gone.set()

    async def wait_guests_gone(self) -> None:
        await self._guests_gone.wait()

    async def produce(self) -> None:
        await self.producer.run()
        self._produced.set()

    async def wait_produced(self) -> None:
        self.producer.stop()
        await self._produced.wait()

    async def drain_pops(self) -> None:
        """All that was sent is popped and acknowledged."""
        if self.pops is not None:
            await self.pops.drain()

    def use(self, address: str | None) -> None:
        """The master is there now; None while it is down."""
        self.producer.use(address)
        if self.pops is not None:
            self.pops.use(address)

    async def mislead(self, index: int, kind: Impostor, seed: int) -> None:
        scope = self._impostors[index] = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[int]) -> None:
            with scope:
                await pose(kind, seed=seed, task_status=task_status)

        port = await self._nursery.start(run)
        self.links[index].target = ("127.0.0.1", port)
        self.links[index].cut(reset=False)

    def lead_back(self, index: int, target: tuple[str, int] | None) -> None:
        self._impostors.pop(index).cancel()
        self.links[index].target = target
        self.links[index].cut(reset=False)

    async def lie(self, index: int) -> None:
        """A slave copies metadata from a liar from now on."""
        liar, scope = Liar(), trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
            with scope:
                await liar.serve(task_status=task_status)

        address = await self._nursery.start(run)
        self._liars[index] = liar, scope
        self.metadata_links[index].target = address
        self.metadata_links[index].cut(reset=False)

    def liar(self, index: int) -> Liar:
        """The one that a slave copies from."""
        return self._liars[index][0]

    def end_lie(self, index: int, target: tuple[str, int] | None) -> Liar:
        """It copies from a node again, if that is up."""
        liar, scope = self._liars.pop(index)
        scope.cancel()
        self.metadata_links[index].target = target
        self.metadata_links[index].cut(reset=False)
        return liar


class Cluster(Nodes):
    """A master, its slaves, and everything else that a run is about."""

    MENDS_AS_PLANNED: ClassVar = True  # plans leave room between faults of one thing
    plan: Plan

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        small_disks: bool = False,
        programs: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """With `small_disks`, disks that fill up are real ones: see `disks.private_mounts`."""
        super().__init__(plan, folder, programs=programs)
        self.offset_checks = 0
        """How often the offsets of a slave were checked when the node that it copies from had ended."""
        self.checked_copies: dict[str, Copy] = {}
        """The last copy that a slave had surely taken at that time, by slave."""
        self.cut_log_files = 0
        """Log files that lost their ends for a while."""
        self.lied_pages = 0
        """Pages that liars have served."""
        self.metadata_within_s = METADATA_WITHIN_S
        """How long it may take at the end until all tables are equal and on all disks."""
        self._hung: set[str] = set()
        self._targets: dict[str, tuple[str, int]] = {}
        """HA ports of the nodes that are up."""
        self._hostile = ConnectionCounters()
        """What came of hostile frames."""
        self._misled: set[int] = set()
        self._listens: dict[str, tuple[str, int]] = {}
        """Remoting ports of the nodes that are up."""
        self._peaks_kb: dict[int, int] = {}
        """Memory of the slaves that a liar has, before it came."""
        self._guard = threading.Lock()
        """Over where links lead: a keeper's thread knows first that its node is up again."""
        filling = plan.nodes_with(DiskFull)
        self._small_disks = {name: SmallDisk(self.store(name)) for name in filling if small_disks}
        for disk in self._small_disks.values():
            self._stack.callback(disk.close)
        self._jumping = plan.nodes_with(ClockJump)
        self._shimmed = (
            self._jumping
            | plan.nodes_with(FailingSync)
            | plan.nodes_with(IndexFull)
            | (filling - self._small_disks.keys())
        )
        self._world = _World(plan, master_store=self.store(MASTER), violations=self.violations)
        self._stack.callback(self._world.close)

    # -- nodes ---------------------------------------------------------------------------------------------

    def _make(self, name: str, *, on_spawned: Callable[[subprocess.Popen[str]], None]) -> Node:
        setup = self.plan.setup
        options = self._options(name)
        program = options["program"]
        if name in self._shimmed:
            clock_file = self._clock_file(name) if name in self._jumping else None
            defect = self._programs[name][-1] if name in self._programs else ""
            program = disks.program(self._disk_file(name), clock_file=clock_file, defect=defect)
        options |= {
            "program": [*_with_descriptors(setup.descriptors_max), *program],
            "haSendHeartbeatInterval": setup.heartbeat_ms,
            "flushConsumerOffsetInterval": 300,
            "flushDelayOffsetInterval": 300,
        }
        if name == MASTER:
            options |= {
                "role": setup.role,
                "inSyncReplicas": setup.in_sync_replicas,
                "totalReplicas": setup.slaves + 1,
                "flushDiskType": setup.flush_disk_type,
            }
        else:
            index = setup.nodes.index(name) - 1
            options |= {
                "role": "SLAVE",
                "brokerId": index + 1,
                "ha_master_address": self._world.links[index].address,
                "flushDiskType": setup.slave_flush_disk_type,
                "flushIntervalCommitLog": 50,
                "trioha.haAckMode": setup.ack_mode,
                "trioha.haStartFrom": setup.start_from,
                "trioha.haGapPolicy": setup.gap_policy,
                "trioha.haTailCheck": setup.tail_check_bytes,
                "trioha.masterAddress": self._world.metadata_links[index].address,
                "trioha.metadataSyncFirst": 100,
                "trioha.metadataSyncPeriod": round(COPY_PERIOD_S * 1000),
            }
        return Node(self.store(name), on_spawned=on_spawned, **options)

    def _on_ready(self, name: str, node: Node) -> None:
        self._lead(name, ("127.0.0.1", node.ha_port), node.listen_address)

    def _lead(self, name: str, target: tuple[str, int] | None, listen_address: str | None) -> None:
        """A node is up, at these addresses, or down: lead those who follow it, or send to it."""
        with self._guard:
            if target is None:
                self._targets.pop(name, None)
            else:
                self._targets[name] = target
            host, _, port = (listen_address or "").rpartition(":")
            listens = (host, int(port)) if port else None
            if listens is None:
                self._listens.pop(name, None)
            else:
                self._listens[name] = listens
            for index in self.plan.setup.followers(name):
                if index not in self._misled:
                    self._world.call(setattr, self._world.links[index], "target", target)
                if index not in self._peaks_kb:
                    self._world.call(setattr, self._world.metadata_links[index], "target", listens)
            if name == MASTER:
                self._world.call(self._world.use, listen_address)

    def kill(self, names: Iterable[str]) -> None:
        """`kill -9` of these nodes, one right after the other. After the master's: are its promises kept?"""
        names = tuple(names)
        for name in names:
            self.keepers[name].kill()
        for name in names:
            self._lead(name, None, None)
        if MASTER in names:
            self._check_promises_on_slaves()
        for name in names:
            self._ended(name, is_clean=False)

    def replace_lock(self, name: str, *, is_removed: bool) -> None:
        """Remove or replace a node's lock file: the node ends, and has promised nothing more."""
        keeper, lock = self.keepers[name], self.store(name) / "lock"
        keeper.node()
        if is_removed:
            lock.unlink()
        else:
            other = lock.with_name("lock~")
            other.touch()
            other.rename(lock)
        keeper.wait_lock_lost(within_s=LOCK_LOST_WITHIN_S)
        self._lead(name, None, None)
        if name == MASTER:
            self._check_promises_on_slaves()
        self._ended(name, is_clean=False)

    def hang(self, name: str) -> None:
        super().hang(name)
        self._hung.add(name)

    def resume(self, name: str) -> None:
        super().resume(name)
        self._hung.discard(name)

    def lose_log(self, name: str) -> None:
        """Empty the store of a node that is down; what was promised is void."""
        assert not self.keepers[name].is_up, f"{name} is up"
        self._world.call(self._world.producer.forget)
        for path in self.store(name).iterdir():
            if path.name == disks.BALLAST:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    # -- clocks and disks ------------------------------------------------------------------------------------

    def _clock_file(self, name: str) -> Path:
        return self.folder / f"{name}.clock"

    def jump_clock(self, name: str, jump_s: int) -> None:
        """Let a node's wall clock show so much more than it is; 0 corrects it."""
        self.keepers[name].node()
        disks.set_fault(self._clock_file(name), str(jump_s))

    def cut_log_file(self, name: str) -> Mend | None:
        """Cut the oldest log file of a node, and read what is lost; returns what puts it back.

        The node must answer with an error that names the file, and go on.
        """
        node = self.keepers[name].node()
        archived = None if self.plan.archive is None else self.plan.archive.node
        status, file_bytes = node.status(), self.plan.setup.file_bytes
        start = status.min_offset
        if name == archived or status.flushed_offset < start + CUT_FILES_BEHIND * file_bytes:
            return None  # an archiver ends when it cannot read
        path = self.store(name) / "commitlog" / file_name(start)
        data = path.read_bytes()
        os.truncate(path, CUT_FILE_BYTES)
        self.cut_log_files += 1
        fields = {"offset": str(start + file_bytes // 2)}
        answer = ask(node.listen_address, request(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields=fields))
        if answer.code != ResponseCode.SYSTEM_ERROR or str(path) not in answer.remark:
            self.violations.append(f"{name} read what is lost of {path}: {answer.code} {answer.remark}")

        def put_back() -> None:
            self.keepers[name].node()
            with path.open("r+b") as file:
                file.seek(CUT_FILE_BYTES)
                file.write(data[CUT_FILE_BYTES:])

        return put_back

    def fill_index(self, name: str) -> None:
        self.keepers[name].node()
        disks.set_fault(self._disk_file(name), disks.INDEX_FULL)

    def free_index(self, name: str) -> None:
        """Give the index room. The queues must have gone on without it, up to the log's end of now."""
        node = self.keepers[name].node()
        end_offset = node.max_offset
        self.wait(
            lambda: (node.status().dispatched_offset or 0) >= end_offset,
            lambda: f"{name} has no room for its index, queues at {end_offset}\n{node.log()}",
            CAUGHT_UP_WITHIN_S,
        )
        disks.set_fault(self._disk_file(name), disks.HEALTHY)

    def fill_disk(self, name: str) -> None:
        self.keepers[name].node()
        if name in self._small_disks:
            self._small_disks[name].fill()
        else:
            disks.set_fault(self._disk_file(name), disks.FULL)

    def free_disk(self, name: str) -> None:
        """Give it space. The node must still be there."""
        if name in self._small_disks:
            self._small_disks[name].free()
        else:
            disks.set_fault(self._disk_file(name), disks.HEALTHY)
        self.keepers[name].node()

    def fail_syncs(self, name: str, *, ends_within_s: float) -> None:
        """Let a node's syncs fail until it has ended, and check that it promised nothing more."""
        keeper = self.keepers[name]
        keeper.node()
        disks.set_fault(self._disk_file(name), disks.FSYNC)
        try:
            ended = keeper.wait_failed(within_s=ends_within_s)
        finally:
            disks.set_fault(self._disk_file(name), disks.HEALTHY)
        self._lead(name, None, None)
        if name == MASTER:
            self._check_promises_on_slaves()
        self._ended(name, is_clean=False)
        if ended:
            setup = self.plan.setup
            promises_disk = name == MASTER and setup.flush_disk_type == "SYNC_FLUSH"
            self.violations += check_failed_sync(
                self.store(name),
                log_file=self.log_file(name),
                promises=self.promises if promises_disk else [],
                recordings=self.recordings(name) if name != MASTER and setup.ack_mode == "flushed" else None,
            )

    # -- links and peers -----------------------------------------------------------------------------------

    def link(self, index: int, call: str, *arguments: Any, **options: Any) -> None:
        self._world.call(getattr(self._world.links[index], call), *arguments, **options)

    def metadata_link(self, index: int, call: str, *arguments: Any) -> None:
        """Call a method of the link through which a slave copies metadata."""
        self._world.call(getattr(self._world.metadata_links[index], call), *arguments)

    def mislead(self, index: int, kind: Impostor, *, seed: int) -> None:
        with self._guard:
            self._misled.add(index)
            self._world.run(self._world.mislead, index, kind, seed, within_s=WORLD_WITHIN_S)

    def lead_back(self, index: int) -> None:
        with self._guard:
            self._misled.discard(index)
            target = self._targets.get(self.plan.setup.upstream(index))
            self._world.call(self._world.lead_back, index, target)

    def lie(self, index: int) -> None:
        """Let a slave copy its metadata from a liar."""
        pid = self.keepers[slave_name(index)].node().pid
        with self._guard:
            self._peaks_kb[index] = peak_kb(pid)
            self._world.run(self._world.lie, index, within_s=WORLD_WITHIN_S)

    def liar(self, index: int) -> Liar:
        return self._world.liar(index)

    def end_lie(self, index: int) -> None:
        """End it. The slave must have stopped reading, within a bound of memory."""
        slave = slave_name(index)
        growth_kb = peak_kb(self.keepers[slave].node().pid) - self._peaks_kb[index]
        with self._guard:
            del self._peaks_kb[index]
            target = self._listens.get(self.plan.setup.upstream(index))
            liar = self._world.call(self._world.end_lie, index, target)
        self.lied_pages += liar.pages
        if liar.in_a_row > PAGES_IN_A_ROW_MAX:
            self.violations.append(f"{slave} asked a liar for {liar.in_a_row} pages of 8 MiB in one copy")
        if growth_kb > GROWTH_KB_MAX:
            self.violations.append(f"{slave} took {growth_kb // 1024} MiB more memory for a liar's topics")

    def _invite(self, name: str, stay: Callable[[Node], Callable[[], Awaitable[None]]]) -> None:
        """Send a peer to a node that is up."""
        keeper = self.keepers[name]
        if keeper.is_up:
            self._world.invite(stay(keeper.node()))

    def visit(self, name: str, kind: Guest, *, seed: int, stay_s: float) -> None:
        self._invite(name, lambda node: partial(visit, kind, port=node.ha_port, seed=seed, stay_s=stay_s))

    def harass(self, name: str, *, seed: int, stay_s: float) -> None:
        self._invite(
            name,
            lambda node: partial(
                harass,
                listen_port=_port(node.listen_address),
                ha_port=node.ha_port,
                seed=seed,
                stay_s=stay_s,
                counters=self._hostile,
            ),
        )

    def occupy(self, name: str, *, is_at_ha_port: bool, connections: int, stay_s: float) -> None:
        """Let strangers take all connections of a port."""
        self._invite(
            name,
            lambda node: partial(
                occupy,
                port=node.ha_port if is_at_ha_port else _port(node.listen_address),
                connections=connections,
                stay_s=stay_s,
            ),
        )

    # -- the course of a run -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all nodes and the load, and wait until every slave has taken something."""
        for keeper in self.keepers.values():
            keeper.start()
        nodes = [keeper.node() for keeper in self.keepers.values()]
        if self.plan.setup.start_from == "lastFile":
            # Before there is a second file. Who wants all asks an empty master again and again.
            for name, node in zip(self.keepers, nodes, strict=True):
                node.wait(connections=len(self.plan.setup.followers(name)), within_s=CAUGHT_UP_WITHIN_S)
        self._begin_archive()
        self.produce()
        for node in nodes[1:]:
            node.wait(max_offset=1, within_s=CAUGHT_UP_WITHIN_S)

    def produce(self) -> None:
        self._world.spawn(self._world.produce)
        if self._world.pops is not None:
            self._world.spawn(self._world.pops.run)

    def settle(self) -> int:
        """Mend everything, end the load, and wait until all are equal; returns the end of the log."""
        for index in range(self.plan.setup.slaves):
            self.link(index, "heal")
        for keeper in self.keepers.values():
            if not keeper.is_up:
                keeper.start()
        nodes = {name: keeper.node() for name, keeper in self.keepers.items()}
        # One that came late may still have messages stored.
        self._world.run(self._world.wait_guests_gone, within_s=CAUGHT_UP_WITHIN_S)
        # The last puts go to a whole cluster, which must store some of them after all its faults.
        kept = len(self.promises)
        self.wait(
            lambda: len(self.promises) > kept,
            lambda: f"a put is answered PUT_OK: {self.statuses}",
            CAUGHT_UP_WITHIN_S,
        )
        self.pause(0.2)
        self._world.run(self._world.wait_produced, within_s=CAUGHT_UP_WITHIN_S)
        self._drain_pops()
        end_offset = nodes[MASTER].max_offset
        for name, node in nodes.items():
            self._wait_end(name, node, end_offset)
        for name, node in nodes.items():
            self._wait_all_acked(node, end_offset, followers=len(self.plan.setup.followers(name)))
        # The tables of all nodes are equal, and on their disks.
        self.wait(
            lambda: not self._metadata_differences(nodes),
            lambda: "; ".join(self._metadata_differences(nodes)),
            self.metadata_within_s,
        )
        return end_offset

    def _drain_pops(self) -> None:
        """Wait until all is acknowledged, and nothing waits for its time any more."""
        pops = self._world.pops
        if pops is None:
            return
        try:
            self._world.run(self._world.drain_pops, within_s=DRAINED_WITHIN_S)
        except trio.TooSlowError:
            raise AssertionError(
                f"not popped within {DRAINED_WITHIN_S:.0f} s: {sorted(pops.missing)}"
            ) from None

    def _metadata_differences(self, nodes: dict[str, Node]) -> list[str]:
        consumed = self.consumed
        tables = {name: trio.run(fetch_tables, node.listen_address) for name, node in nodes.items()}
        return [
            *(
                f"{name}: {difference}"
                for name in nodes
                if name != MASTER
                for difference in metadata_differences(tables[MASTER], tables[name], consumed)
            ),
            *file_differences([self.store(name) for name in nodes], consumed),
        ]

    def _wait_end(self, name: str, node: Node, end_offset: int) -> None:
        node.wait(max_offset=end_offset, within_s=CAUGHT_UP_WITHIN_S)
        # A slave whose master lost its log may still have the old one, and then nothing for a moment.
        self.wait(
            lambda: node.max_offset == end_offset,
            lambda: f"{name} ends at {node.max_offset}, not {end_offset}\n{node.log()}",
            CAUGHT_UP_WITHIN_S if self.plan.loses_log else 0.0,
        )

    def _wait_all_acked(self, node: Node, end_offset: int, *, followers: int) -> None:
        self.wait(
            lambda: [one.ack_offset for one in node.status().connections] == [end_offset] * followers,
            lambda: f"acks of {followers} slaves at {end_offset}: {node.status().connections}\n{node.log()}",
            CAUGHT_UP_WITHIN_S,
        )

    def end(self) -> None:
        names = self.plan.setup.nodes
        for name in names if self.plan.master_stops_first else reversed(names):
            self.stop(name)

    @property
    def pops(self) -> PopLoad | None:
        return self._world.pops

    @property
    def promises(self) -> list[Promise]:
        return list(self._world.producer.promises)

    @property
    def consumed(self) -> dict[Queue, int]:
        """Where the producer's group goes on, by topic and queue: at the end all of it is committed."""
        return dict(self._world.producer.consumed)

    @property
    def metadata_copies(self) -> int:
        return sum(len(watch.copies) for watch in self._world.copies)

    @property
    def statuses(self) -> dict[str, int]:
        return dict(self._world.producer.statuses)

    def figures(self) -> dict[str, Any]:
        return {
            "metadata_copies": self.metadata_copies,
            "offset_checks": self.offset_checks,
            "failed_syncs": sum(keeper.failed_syncs for keeper in self.keepers.values()),
            "hostile_frames": self._hostile.done,
            **({} if self._world.pops is None else self._world.pops.figures()),
        }

    def _check_end(self, stores: list[Path], end_offset: int) -> list[str]:
        # What answers to hostile frames said that no answer may say.
        violations = [str(finding) for finding in self._hostile.findings if finding.is_of_an_answer]
        violations += file_differences(stores, self.consumed)
        violations += check_last_store_time(self.store(MASTER))
        if self._world.pops is not None:
            violations += self._world.pops.violations(self.store(MASTER))
        for name, keeper in self.keepers.items():
            violations += check_recordings(
                self.recordings(name),
                copies_needed=self.plan.setup.copies_needed if name == MASTER else 0,
                end_offset=end_offset,
                unclean_ends=keeper.kills + keeper.failed_syncs,
                has_impostors=self.plan.has_impostors,
                loses_log=self.plan.loses_log,
            )
        return violations

    def _check_promises_on_slaves(self) -> None:
        self._world.run(self._world.producer.wait_lost, within_s=LOST_WITHIN_S)
        setup = self.plan.setup
        self.violations += check_promises(
            self.promises,
            [self.store(slave_name(index)) for index in range(setup.slaves)],
            copies=setup.copies_needed,
            when="right after the master was killed",
        )

    def _ended(self, name: str, *, is_clean: bool) -> None:
        """A node has ended: are the offsets on its disk, and at the slaves that copy from it?"""
        if is_clean:
            self._lead(name, None, None)
        if name == MASTER:
            self._world.run(self._world.producer.wait_lost, within_s=LOST_WITHIN_S)
            self._check_offsets_on_disk(is_clean=is_clean)
        for index in self.plan.setup.followers(name):
            slave = slave_name(index)
            node = self.keepers[slave].ready_node
            found = None if node is None or slave in self._hung else self._last_success(node)
            if found is None:
                continue
            succeeded_s, offsets = found
            copy = last_taken(self._world.copies[index].copies, succeeded_s)
            if copy is not None:
                self.offset_checks += 1
                self.checked_copies[slave] = copy
                where = f"{slave}, when {name} had ended"
                self.violations += check_offsets(offsets, copy.offsets, where=where)

    def _last_success(self, node: Node) -> tuple[float, dict[Queue, int]] | None:
        return trio.run(fetch_last_success, node.listen_address)

    def _check_offsets_on_disk(self, *, is_clean: bool) -> None:
        store, ledger = self.store(MASTER), self._world.producer.ledger
        written_s = last_write_s(store)
        try:
            held = read_offsets(store)
        except StoreError as error:
            self.violations.append(str(error))
            return
        if is_clean:
            wanted = ledger.acknowledged_before(float("inf"))
        else:
            wanted = ledger.written(float("-inf") if written_s is None else written_s)
        self.violations += check_offsets(held, wanted, where="the disk of the master, when it had ended")
        self._world.call(ledger.restart, held)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _with_descriptors(limit: int | None) -> list[str]:
    """What to put before a command that may have so many open files; None for as many as this process."""
    if limit is None:
        return []
    # Soft and hard: a node raises its own soft limit.
    return ["sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"]

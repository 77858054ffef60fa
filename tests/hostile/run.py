"""A run: live nodes in both roles, honest peers that go on, and hostile frames on every lane.

Theory of operation. A synchronous master, its slave, and a second slave that follows a hostile master are
processes. An honest producer sends to the master all the time. One task makes frames, in the order of their
indices, and hands each to its lane; a few strangers serve each lane. First comes a warm-up with other frames,
after which the nodes' memory, descriptors and threads are noted; when the run is over they must be back
where they were. Then the nodes are stopped, and their logs and stores judged as `tests.faults` does.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field

from tests.faults.invariants import (
    check_clean_store,
    check_logs_equal,
    check_process_logs,
    check_promises,
)
from tests.faults.producer import PUT_OK, LoadSettings, Producer
from tests.faults.rebuilt import Shape, check_rebuilt
from tests.hostile.counters import ConnectionCounters, Finding
from tests.hostile.frame import Frame, Lane, Outcome
from tests.hostile.generator import frame_of
from tests.hostile.health import Health
from tests.hostile.hostile_master import HostileMaster
from tests.hostile.strangers import HANG_S, PROBE_CODE, Batches, NodeGone, Target, attack, besiege
from tests.node_process import TriohaNode
from tests.users import ADMIN, ALICE, CHECKED, PROVIDERS, STATUS_CODES, asked, create_user, entry, put_acl
from tests.waiting import until
from trioha.broker.info import CLIENTS_PREFIX
from trioha.broker_status import BrokerStatus
from trioha.errors import TriohaError
from trioha.remoting.client import NO_SECURITY, ClientSecurity, open_client
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.runtime_table import parse_runtime_info
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import IndexShape
from trioha.store.tags import DelayLevels

FILE_BYTES: Final = 256 * 1024
MESSAGE_BYTES_MAX: Final = 60_000
QUEUES: Final = ConsumeQueueSettings(file_bytes=20_000)
INDEX: Final = IndexShape(hash_slots=5000, index_num=20_000)
SLAVE_TIMEOUT_S: Final = 10.0
"""slaveTimeout of the master: longer than usual, for machines that have other things to do."""
HONEST: Final = LoadSettings(
    concurrency=4, rate=60.0, body_bytes_max=2000, answer_timeout_s=SLAVE_TIMEOUT_S + 2
)
WARM_UP_SEED: Final = (1 << 23) - 1
WARM_UP_FRAMES_MAX: Final = 50_000
"""CPython keeps an arena while one object in it lives: a node's memory is what its largest bursts have
needed, of which the first ones come in a run's first tens of thousands of frames."""
SETTLE_WITHIN_S: Final = 30.0
"""Strangers that are gone are forgotten, and idle worker threads have ended (ten seconds)."""
LANE_BUFFER: Final = 100
WORKERS: Final = {
    Lane.MASTER: 6,
    Lane.SLAVE: 4,
    Lane.HA_MASTER: 3,
    Lane.HA_SLAVE: 2,
}
"""Strangers on each lane. A master admits eight HA connections of a host; the honest slave has one."""
DELAY_S_MAX: Final = 2
"""The longest delay of a message, in s."""
DELAY_LEVELS: Final = " ".join(f"{delay_s}s" for delay_s in range(1, DELAY_S_MAX + 1))
_DELETED_TOPIC = re.compile(r"topic deleted.*topic=(\S+)")


SETTINGS: Final[dict[str, Any]] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": QUEUES.file_bytes,
    "maxHashSlotNum": INDEX.hash_slots,
    "maxIndexNum": INDEX.index_num,
    "maxMessageSize": MESSAGE_BYTES_MAX,
    # What frames have stored for later comes while the run looks on; half messages are not checked.
    "messageDelayLevel": DELAY_LEVELS,
    "transactionCheckInterval": 3_600_000,
    # Pops that are never acknowledged meet the limit.
    "enablePopMessageThreshold": True,
    "popInflightMessageThreshold": 64,
    **PROVIDERS,
}
USERS: Final = {**CHECKED, "authenticationWhitelist": f"{STATUS_CODES},{PROBE_CODE}"}
"""Settings of nodes that check users: all but the status and the strangers' own request is signed."""


@define
class Result:
    """How a run went."""

    seed: int
    seconds: float = 0.0
    counters: ConnectionCounters = field(factory=ConnectionCounters)
    honest: dict[str, int] = field(factory=dict)
    """Puts of the honest producer by status."""
    honest_slowest_ms: int = 0
    """The longest that one of them waited for its answer."""
    health: dict[str, tuple[Health, Health]] = field(factory=dict)
    """Each node before and after."""
    violations: list[str] = field(factory=list)
    """Violated invariants."""

    @property
    def findings(self) -> list[str]:
        """All that must not have happened, a line each."""
        return [str(finding) for finding in self.counters.findings] + self.violations


class Nodes:
    """The nodes of a run, by name."""

    def __init__(self, folder: Path, stack: ExitStack, *, with_users: bool = False) -> None:
        self.folder = folder
        self.with_users = with_users
        """Whether they check users."""
        self.by_name: dict[str, TriohaNode] = {}
        self._stack = stack
        self.master = self._start("master", role="SYNC_MASTER", slaveTimeout=round(SLAVE_TIMEOUT_S * 1000))
        # It copies the tables that the frames have changed at the master.
        copies = {"trioha.masterAddress": self.master.listen_address, "trioha.metadataSyncPeriod": 500}
        self.slave = self._start("slave", role="SLAVE", ha_master_address=self.master.ha_address, **copies)

    def start_misled(self, port: int) -> TriohaNode:
        """A slave of the hostile master at `port`."""
        return self._start("misled", role="SLAVE", ha_master_address=f"127.0.0.1:{port}")

    def _start(self, name: str, **options: Any) -> TriohaNode:
        options |= {"trioha.recordDir": self.folder / "recordings" / name}
        users = USERS if self.with_users else {}
        node = self.by_name[name] = TriohaNode(self.folder / name, **{**SETTINGS, **users, **options})
        self._stack.callback(lambda: node.kill() if node.is_running else None)
        return node

    def log_file(self, name: str) -> Path:
        """stderr of a node."""
        return self.folder / f"{name}.log"


def run_frames(
    seed: int,
    frames: Iterable[Frame],
    folder: Path,
    *,
    warm_up: int,
    with_users: bool = False,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> Result:
    """Send these frames to fresh nodes in `folder` and check everything.

    `with_users`: the nodes check users.
    """
    result = Result(seed)
    began_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        nodes = Nodes(folder, stack, with_users=with_users)
        if with_users:
            asked(
                nodes.master.listen_address,
                create_user(ALICE),
                put_acl(ALICE, entry("Topic:*", "All"), entry("Group:g*", "All"), entry("*", "Get", "List")),
            )
        world = _World(nodes, result, on_progress=on_progress)
        try:
            trio.run(world.run, frames, warm_up)
            world.judge_stopped()
        except (AssertionError, TriohaError) as problem:
            result.violations.append(str(problem))
        finally:
            world.close()
    result.violations += check_process_logs(nodes.log_file(name) for name in nodes.by_name)
    result.seconds = time.monotonic() - began_s
    return result


def run_seed(
    seed: int,
    count: int,
    folder: Path,
    *,
    with_users: bool = False,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> Result:
    """The first `count` frames of a seed; see `run_frames`."""
    frames = (frame_of(seed, index, is_signed=with_users) for index in range(count))
    warm_up = min(count // 5, WARM_UP_FRAMES_MAX)
    return run_frames(seed, frames, folder, warm_up=warm_up, with_users=with_users, on_progress=on_progress)


class _World:
    """Everything that goes on between the start of the nodes and their end."""

    def __init__(self, nodes: Nodes, result: Result, *, on_progress: Callable[[int], None]) -> None:
        self._nodes = nodes
        self._result = result
        self._counters = result.counters
        self._on_progress = on_progress
        self._hostile_master = HostileMaster(nodes.folder / "truth", file_bytes=FILE_BYTES)
        security = ClientSecurity(ADMIN) if nodes.with_users else NO_SECURITY
        self._producer = Producer(HONEST, seed=result.seed, security=security)
        self._end_offset = -1

    def close(self) -> None:
        """Leave no file open."""
        self._hostile_master.close()

    async def run(self, frames: Iterable[Frame], warm_up: int) -> None:
        """Warm up, note the nodes' health, send the frames, and compare."""
        to_master, for_slave = trio.open_memory_channel[Frame](0)
        async with trio.open_nursery() as nursery:
            port = await nursery.start(self._hostile_master.run, for_slave, self._counters)
            # Not in a worker thread: the kernel ends a node with the thread that made it.
            misled = self._nodes.start_misled(port)
            self._producer.use(self._nodes.master.listen_address)
            produced = trio.Event()

            async def produce() -> None:
                await self._producer.run()
                produced.set()

            nursery.start_soon(produce)
            nursery.start_soon(self._watch_nodes, nursery.cancel_scope)
            await self._put_is_ok()
            await self._misled_is_there(for_slave)
            # What was answered before the slave was there says nothing.
            self._producer.statuses.clear()
            first = self._health()
            if warm_up:
                await self._send(
                    (
                        frame_of(WARM_UP_SEED, index, is_signed=self._nodes.with_users)
                        for index in range(warm_up)
                    ),
                    to_master,
                    is_last=False,
                )
                self._counters.start_counting()
            await self._misled_is_there(for_slave)
            before = await self._health_without_strangers(first)
            await self._send(frames, to_master, is_last=True)
            await self._put_is_ok()
            after = await self._health_as_before(before)
            self._result.health = {name: (before[name], after[name]) for name in before}
            self._producer.stop()
            await produced.wait()
            await self._judge_running(misled)
            nursery.cancel_scope.cancel()

    async def _watch_nodes(self, run: trio.CancelScope) -> None:
        """End the run as soon as a node has ended."""
        while True:
            for name, node in self._nodes.by_name.items():
                if not node.is_running:
                    suspects = tuple(self._counters.in_flight)
                    log = self._nodes.log_file(name).read_text(errors="replace")
                    last = " | ".join(line.strip() for line in log.splitlines()[-3:])
                    self._counters.findings.append(Finding(f"the node {name!r} ended: {last}", suspects))
                    run.cancel()
                    return
            await trio.sleep(0.05)

    async def _put_is_ok(self) -> None:
        """The honest producer's next put is answered PUT_OK: the slave is there."""
        before = len(self._producer.promises)
        await until(lambda: len(self._producer.promises) > before, within_s=HANG_S)

    async def _misled_is_there(self, frames: trio.MemoryReceiveChannel[Frame]) -> None:
        """The slave of the hostile master is connected, and waits for the next frame."""
        await until(lambda: frames.statistics().tasks_waiting_receive, within_s=HANG_S)

    async def _send(
        self, frames: Iterable[Frame], to_hostile_master: trio.MemorySendChannel[Frame], *, is_last: bool
    ) -> None:
        """Hand all frames to their lanes, and return when the last of them is judged."""
        channels: dict[Lane, trio.MemorySendChannel[Any]] = {}
        batches = {Lane.MASTER: Batches(), Lane.SLAVE: Batches()}
        async with trio.open_nursery() as aside, trio.open_nursery() as lanes:
            for lane, workers in WORKERS.items():
                send, receive = trio.open_memory_channel[Any](LANE_BUFFER)
                channels[lane] = send
                for _ in range(workers):
                    lanes.start_soon(self._work, lane, receive.clone(), aside)
                receive.close()
            send, receive = trio.open_memory_channel[Frame](math.inf)
            channels[Lane.TRANSFER] = send
            lanes.start_soon(self._transfer, receive, to_hostile_master, is_last)
            for frame in frames:
                channel = channels[frame.lane]
                if frame.lane in batches:
                    for batch in batches[frame.lane].add(frame):
                        await channel.send(batch)
                else:
                    await channel.send(frame)
                if frame.index % 100 == 0:
                    # Others get their turn, too, where no channel is full.
                    await trio.lowlevel.checkpoint()
                    self._on_progress(self._counters.done)
            for lane, grouped in batches.items():
                for batch in grouped.rest():
                    await channels[lane].send(batch)
            for send in channels.values():
                send.close()

    async def _transfer(
        self,
        frames: trio.MemoryReceiveChannel[Frame],
        to_hostile_master: trio.MemorySendChannel[Frame],
        is_last: bool,
    ) -> None:
        async for frame in frames:
            await to_hostile_master.send(frame)
        if is_last:
            to_hostile_master.close()

    async def _work(self, lane: Lane, frames: trio.MemoryReceiveChannel[Any], aside: trio.Nursery) -> None:
        nodes = self._nodes
        try:
            match lane:
                case Lane.MASTER | Lane.SLAVE:
                    node = nodes.master if lane is Lane.MASTER else nodes.slave
                    port = int(node.listen_address.rpartition(":")[2])
                    await attack(Target(str(lane), port), frames, self._counters, aside)
                case Lane.HA_MASTER | Lane.HA_SLAVE:
                    node = nodes.master if lane is Lane.HA_MASTER else nodes.slave
                    await besiege(Target(str(lane), node.ha_port), frames, self._counters, aside)
        except NodeGone as gone:
            self._counters.find(str(gone), *self._counters.in_flight)
            # `_watch_nodes` ends the run if the node has ended; else this lane is not served any more.
            await frames.aclose()

    # -- checks --------------------------------------------------------------------------------------------

    def _health(self) -> dict[str, Health]:
        return {name: Health.of(node.pid) for name, node in self._nodes.by_name.items()}

    async def _health_without_strangers(self, first: dict[str, Health]) -> dict[str, Health]:
        """The nodes' health as soon as they have no more connections than at `first`."""
        deadline_s = trio.current_time() + SETTLE_WITHIN_S
        while True:
            now = self._health()
            if all(now[name].sockets <= first[name].sockets for name in now) or (
                trio.current_time() > deadline_s  # judged at the end of the run
            ):
                return now
            await trio.sleep(0.1)

    async def _health_as_before(self, before: dict[str, Health]) -> dict[str, Health]:
        """The nodes' health as soon as it is where it was; what does not come back is a violation."""
        deadline_s = trio.current_time() + SETTLE_WITHIN_S
        while True:
            now = self._health()
            grown = [
                f"{name}: {problem}"
                for name, health in now.items()
                for problem in health.growth_beyond(before[name], files_max=self._files_max(name))
            ]
            if not grown or trio.current_time() > deadline_s:
                self._result.violations += grown
                return now
            await trio.sleep(0.1)

    def _files_max(self, name: str) -> int:
        """How many files may be open beyond those before: one for each that the store has."""
        return sum(1 for path in (self._nodes.folder / name).rglob("*") if path.is_file())

    async def _judge_running(self, misled: TriohaNode) -> None:
        """All that is asked of nodes that are still there: equal ends, one and the same honest slave."""
        nodes = self._nodes
        master, slave = nodes.master, nodes.slave
        end_offset = await self._final_offset()
        await trio.to_thread.run_sync(lambda: slave.wait(max_offset=end_offset, within_s=HANG_S))
        await trio.to_thread.run_sync(lambda: master.wait(ack_offset=end_offset, within_s=HANG_S))
        status: BrokerStatus = await trio.to_thread.run_sync(slave.status)
        violations = self._result.violations
        if status.client is None or status.client.reconnects:
            violations.append(f"the honest slave was disconnected: {status.client}")
        violations += await self._judge_clients(master, Lane.MASTER)
        violations += await self._judge_clients(slave, Lane.SLAVE)
        true_end = self._hostile_master.max_offset
        await trio.to_thread.run_sync(lambda: misled.wait(max_offset=true_end, within_s=HANG_S))
        for name, node in self._nodes.by_name.items():
            status: BrokerStatus = await trio.to_thread.run_sync(node.status)
            violations += self._judge_ended(name, status)
            if status.dispatch_fault:
                violations.append(f"{name}: dispatch fault: {status.dispatch_fault}")
        self._end_offset = end_offset

    async def _final_offset(self) -> int:
        """The master's end when delayed messages have come, and no popped one is given again for a moment."""
        end_offset = -1
        with trio.fail_after(4 * HANG_S):
            while True:
                now = (await trio.to_thread.run_sync(self._nodes.master.status)).max_offset
                if now == end_offset:
                    return now
                end_offset = now
                await trio.sleep(DELAY_S_MAX + 1)

    def _judge_ended(self, name: str, status: BrokerStatus) -> list[str]:
        """Every HA connection that was made is counted as ended, by its reason, once."""
        if name == "misled":
            return []
        lane = Lane.HA_MASTER if name == "master" else Lane.HA_SLAVE
        made = self._counters.connections[lane]
        # Those that asked for something, and those that did not.
        ended = sum(status.ended_connections.values())
        ended += sum(sum(reasons.values()) for reasons in status.probes.values())
        # One that is reset may be gone before it is accepted.
        if made - self._counters.hasty[lane] <= ended <= made:
            return []
        return [f"{name}: {made} HA connections were made by strangers, {ended} are counted as ended"]

    async def _judge_clients(self, node: TriohaNode, lane: Lane) -> list[str]:
        """What a node counts of its clients adds up with what strangers did."""
        counters = self._counters
        deadline_s = trio.current_time() + HANG_S
        async with open_client(node.listen_address) as client:
            while True:
                response = await client.request(
                    request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=HANG_S
                )
                table = parse_runtime_info(response.body)
                counted = {
                    key.removeprefix(CLIENTS_PREFIX): int(value)
                    for key, value in table.items()
                    if key.startswith(CLIENTS_PREFIX)
                }
                # The last strangers, and those who asked for the status, may have left just now.
                if counted["connectionsOpen"] == 1 or trio.current_time() > deadline_s:
                    break
                await trio.sleep(0.1)
        wrong = [f"{counted[key]} {key}" for key in ("bugs", "handlerErrors", "shortages") if counted[key]]
        if counted["connectionsOpen"] != 1:
            wrong.append(f"{counted['connectionsOpen']} connectionsOpen when all but one are closed")
        made = counters.connections[lane]
        if counted["connectionsAccepted"] + counted["connectionsRefused"] < made - counters.hasty[lane]:
            wrong.append(f"{counted['connectionsAccepted']} connectionsAccepted of {made} made")
        sure, possible = counters.outcomes[lane, Outcome.CLOSED], counters.outcomes[lane, Outcome.ANY]
        if not sure <= counted["protocolErrors"] <= sure + possible:
            wrong.append(f"{counted['protocolErrors']} protocolErrors, {sure} to {sure + possible} were made")
        return [f"{lane}: {problem}" for problem in wrong]

    def judge_stopped(self) -> None:
        """Stop the nodes, and check the stores that they leave."""
        result = self._result
        result.honest = dict(self._producer.statuses)
        result.honest_slowest_ms = round(self._producer.slowest_s * 1000)
        result.violations += [
            f"{number} honest puts were answered {status}"
            for status, number in self._producer.statuses.items()
            if status != PUT_OK
        ]
        if self._end_offset < 0:
            return
        for node in self._nodes.by_name.values():
            node.stop()
        folder = self._nodes.folder
        stores = [folder / "master", folder / "slave"]
        result.violations += check_promises(self._producer.promises, stores, copies=2, when="at the end")
        result.violations += check_logs_equal(stores, end_offset=self._end_offset)
        true_end = self._hostile_master.max_offset
        deleted_topics = frozenset(_DELETED_TOPIC.findall(self._nodes.log_file("master").read_text()))
        shape = Shape(
            log_file_bytes=FILE_BYTES,
            queues=QUEUES,
            index=INDEX,
            dispatch=DispatchSettings(delay_levels=DelayLevels(DELAY_LEVELS)),
            deleted_topics=deleted_topics,
        )
        ends = {"master": self._end_offset}
        if true_end:
            ends["misled"] = true_end
            truth = self._hostile_master.root
            result.violations += check_logs_equal([truth, folder / "misled"], end_offset=true_end)
        for name, end_offset in ends.items():
            result.violations += check_rebuilt(folder / name, shape)
            result.violations += check_clean_store(
                folder / name, file_bytes=FILE_BYTES, end_offset=end_offset
            )

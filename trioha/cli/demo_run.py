"""What `trioha demo` does: a synchronous pair that loses its slave, and the proof that nothing else is lost.

With real processes on free ports of loopback:

1. A name server, a SYNC_MASTER and a SLAVE start and find each other. A producer and a consumer
   (`trioha/cli/demo_clients.py`) begin, and go on to the end of step 4.
2. Messages are sent: every put waits for the slave.
3. More are sent, at an even rate. Early in it SIGKILL ends the slave; a while later it is started again on
   the same store, and catches up while the messages keep coming. What the master answers is counted.
4. More are sent: every put waits for the slave again. What the producer sent is compared with what the
   consumer received.
5. The status of both nodes is kept, then SIGTERM stops them.
6. Both commit logs are compared, and the recorded sessions of all three node starts are replayed on Spark.

Each step is bounded in time. Every process is on a `ParentDeathPipe` and is stopped where it was started,
so none of them outlives the demo, however it ends.
"""

from __future__ import annotations

import json
import random
import shlex
import socket
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field, frozen

from trioha.broker_status import BrokerStatus
from trioha.cli.demo_clients import (
    ClientKind,
    ClientLedger,
    chosen_clients,
    clients_name,
    make_topic,
    open_clients,
)
from trioha.cli.load import PUT_OK, Load, LoadPlan, LoadResult
from trioha.cli.parent_death_pipe import ParentDeathPipe, stop
from trioha.cli.patience import patience
from trioha.client.cluster import open_cluster
from trioha.config.properties_file import PropertiesDocument
from trioha.errors import PeerError, TriohaError
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import open_client
from trioha.remoting.status_reader import fetch_status

POLL_INTERVAL_S: Final = 0.05
READY_LINE_BYTES_MAX: Final = 64 * 1024
LOG_LINES_SHOWN: Final = 5
CONCURRENCY: Final = 16
BODY_BYTES: Final = (100, 2000)

SETTINGS: Final = {
    "brokerClusterName": "DemoCluster",
    "brokerName": "demo",
    "trioha.bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": str(4 * 1024 * 1024),
    "maxMessageSize": "65536",
    "slaveTimeout": "1000",
}
"""What both nodes share: small log files, so that they roll, and a short wait for a slave that is gone."""
MASTER_SETTINGS: Final = {"brokerRole": "SYNC_MASTER", "brokerId": "0", "listenPort": "0"}
# Its port for slaves of its own is any: the one after its listenPort may be taken when it starts again.
SLAVE_SETTINGS: Final = {"brokerRole": "SLAVE", "brokerId": "1", "haListenPort": "0"}

PORTS_TO_COME_BACK_TO: Final = range(6_100, 12_000)
"""Below those that systems give to outgoing connections, and for port 0: while a node on one of these is
away, no connection gets its port. Tests give out those from 12,000 on."""

CHECKS: Final = 13
"""Of a demo that runs to its end."""
BEFORE: Final = "before"
DURING: Final = "during"
AFTER: Final = "after"
HONEST_WITHOUT_SLAVE: Final = frozenset((PUT_OK, "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"))
"""Put statuses of a SYNC_MASTER while its only slave is away or catching up."""


@frozen
class Pace:
    """How long the acts take."""

    whole_s: float | None
    """Shortest time for the puts before, and for those after; None for no limit of their rate."""
    broken_s: float
    """Shortest time for the puts during which the slave is killed."""
    away_s: float
    """From the kill of the slave to its next start."""


BRISK: Final = Pace(whole_s=None, broken_s=4.0, away_s=1.0)
WATCHED: Final = Pace(whole_s=6.0, broken_s=16.0, away_s=4.0)
"""Slow enough for eyes."""


@frozen
class Plan:
    """What to do."""

    folder: Path
    """Empty; settings, stores, sessions and logs go there."""
    report: Path
    """The HTML file to write."""
    count: int
    """Messages."""
    pace: Pace = BRISK
    watch: bool = False
    """Give the terminal to the monitor until it is quit."""
    clients: ClientKind = ClientKind.AUTO
    """Which producer and consumer."""


@frozen
class Check:
    """One claim of the demo."""

    name: str
    held: bool
    seen: str
    """The figures of the verdict."""


@define
class DemoRun:
    """Results so far."""

    log: Callable[[str], None]
    """Receives a line for each step."""
    on_terminal_released: Callable[[], None] = lambda: None
    """Called when the monitor has ended: lines that were logged meanwhile may be shown."""
    puts: dict[str, LoadResult] = field(factory=dict)
    """By act: before, during and after the slave's absence."""
    load: Load | None = None
    """The load of the current act."""
    clients: ClientLedger = field(factory=ClientLedger)
    clients_name: str = ""
    """Which producer and consumer filled `clients`."""
    is_producer_finished: bool = False
    checks: list[Check] = field(factory=list)
    sessions: list[Path] = field(factory=list)
    """Recorded sessions, in the order of the node starts."""

    def check(self, name: str, held: bool, seen: str) -> None:
        self.checks.append(Check(name, held, seen))
        self.log(f"{'ok' if held else 'FAILED'}: {name}: {seen}")

    @property
    def all_held(self) -> bool:
        """Whether there were checks, and each of them held."""
        return bool(self.checks) and all(check.held for check in self.checks)

    @property
    def statuses(self) -> Counter[str]:
        """Puts of all acts and of the producer by status, as counted by their senders."""
        total = self.clients.statuses
        for result in self.puts.values():
            total.update(result.statuses)
        return total

    @property
    def messages_sent(self) -> int:
        """Messages of the loads that have ended so far."""
        ended = sum(result.count for result in self.puts.values())
        return ended if self.load is None else ended + self.load.ended


async def run_demo(plan: Plan, demo_run: DemoRun) -> None:
    """Run the demo and put its results into `demo_run`. Raises TriohaError where it cannot go on.

    Cancellation stops every process first.
    """
    jars = await chosen_clients(plan.clients, log=demo_run.log)
    demo_run.clients_name = clients_name(jars)
    with ParentDeathPipe() as death_pipe:
        master, slave = await _replicate(plan, demo_run, death_pipe, jars=jars)
        await _verify(plan, demo_run, death_pipe, max_offset=master.max_offset)
        await _replay(plan, demo_run, death_pipe, master=master, slave=slave)


@frozen
class _Node:
    """A running node process."""

    name: str
    process: trio.Process
    listen: Address
    ha: str
    max_offset: int
    """End of its log at its start."""
    session: Path


def port_to_come_back_to() -> int:
    """A listenPort that is free, as its VIP port is, and should be so when a node starts there again."""
    host = SETTINGS["trioha.bindAddress"]
    for port in random.sample(PORTS_TO_COME_BACK_TO, k=100):
        with suppress(OSError), socket.socket() as clients, socket.socket() as vip:
            clients.bind((host, port))
            vip.bind((host, port - 2))
            return port
    tried = PORTS_TO_COME_BACK_TO
    raise TriohaError(f"none of 100 ports between {tried.start} and {tried.stop} is free on {host}")


def _store(plan: Plan, name: str) -> Path:
    return plan.folder / name / "store"


@asynccontextmanager
async def _node(
    plan: Plan, demo_run: DemoRun, death_pipe: ParentDeathPipe, name: str, **settings: str
) -> AsyncIterator[_Node]:
    """Start a node and wait until it is ready; leaving the context stops it."""
    conf, log = plan.folder / f"{name}.conf", plan.folder / f"{name}.log"
    document = PropertiesDocument.parse(b"")
    places = {
        "storePathRootDir": str(_store(plan, name)),
        "trioha.recordDir": str(plan.folder / name / "sessions"),
    }
    for key, value in (SETTINGS | places | settings).items():
        document.set(key, value)
    conf.write_bytes(document.to_bytes())
    with log.open("ab") as stderr:
        process = await death_pipe.start(
            "node", "-c", conf, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
        )
    try:
        assert process.stdout is not None, "asked for as a pipe"
        async with patience(f"the {name} to serve", log=demo_run.log):
            ready = _ready_pairs(await _first_line(process.stdout))
        if ready is None:
            raise TriohaError(f"the {name} did not start; its log ends:\n{_log_tail(log)}")
        node = _Node(
            name=name,
            process=process,
            listen=parse_address(ready["listen"]),
            ha=ready["ha"],
            max_offset=int(ready["max_offset"]),
            session=Path(ready["session"]),
        )
        demo_run.sessions.append(node.session)
        demo_run.log(f"{name} serves on {node.listen}, max offset {node.max_offset:,}")
        yield node
    finally:
        await stop(process)


def _log_tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])


async def _first_line(stream: trio.abc.ReceiveStream) -> str:
    """The first line, cut at the end of the stream."""
    line = b""
    while b"\n" not in line and len(line) < READY_LINE_BYTES_MAX:
        part = await stream.receive_some()
        if not part:
            break
        line += part
    return line.partition(b"\n")[0].decode(errors="replace")


def _ready_pairs(line: str) -> Mapping[str, str] | None:
    """The `key=value` pairs of a node's ready line, None for any other."""
    if not line.startswith("ready "):
        return None
    return dict(pair.split("=", 1) for pair in shlex.split(line)[1:])


@asynccontextmanager
async def _name_server(
    plan: Plan, death_pipe: ParentDeathPipe, *, log_line: Callable[[str], None]
) -> AsyncIterator[str]:
    """The address of a name server, which runs until the end of the block."""
    log = plan.folder / "namesrv.log"
    with log.open("ab") as stderr:
        process = await death_pipe.start(
            "namesrv", "--port", "0", "-p", f"kvConfigPath={plan.folder / 'kvConfig.json'}",
            "-p", "bindAddress=127.0.0.1",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    try:
        assert process.stdout is not None, "asked for as a pipe"
        async with patience("the name server to serve", log=log_line):
            ready = _ready_pairs(await _first_line(process.stdout))
        if ready is None:
            raise TriohaError(f"the name server did not start; its log ends:\n{_log_tail(log)}")
        yield ready["listen"]
    finally:
        await stop(process)


async def _replicate(
    plan: Plan, demo_run: DemoRun, death_pipe: ParentDeathPipe, *, jars: Path | None
) -> tuple[BrokerStatus, BrokerStatus]:
    """Steps 1 to 5; the last status of master and slave."""
    async with (
        _name_server(plan, death_pipe, log_line=demo_run.log) as name_server,
        _node(plan, demo_run, death_pipe, "master", **MASTER_SETTINGS, namesrvAddr=name_server) as master,
        AsyncExitStack() as slaves,
    ):
        settings = SLAVE_SETTINGS | {
            "haMasterAddress": master.ha,
            "namesrvAddr": name_server,
            "listenPort": str(port_to_come_back_to()),
        }
        slave = await slaves.enter_async_context(_node(plan, demo_run, death_pipe, "slave", **settings))
        ledger = demo_run.clients
        async with _monitor(plan, demo_run, death_pipe, master, slave):
            await _caught_up(master, slave, log=demo_run.log)
            async with open_cluster(name_servers=(name_server,)) as cluster:
                await make_topic(cluster, log=demo_run.log)
            async with open_clients(
                ledger, jars=jars, name_server=name_server, folder=plan.folder, log=demo_run.log
            ) as clients:
                demo_run.log(f"producer and consumer run on {name_server}")
                slave = await _put_and_break(
                    plan, demo_run, death_pipe, slaves, master=master, slave=slave, settings=settings
                )
                await clients.finish()
                demo_run.is_producer_finished = True
                await ledger.wait_received()
            check_clients(demo_run)
        live = await _caught_up(master, slave, log=demo_run.log)
        statuses = {status: count for status, count in live[0].put_statuses.items() if count}
        demo_run.check(
            "the master counted the puts as their senders did",
            held=statuses == dict(demo_run.statuses),
            seen=_counts(statuses),
        )
        await _stop(demo_run, slave, master)
        return live


async def _put_and_break(
    plan: Plan,
    demo_run: DemoRun,
    death_pipe: ParentDeathPipe,
    slaves: AsyncExitStack,
    *,
    master: _Node,
    slave: _Node,
    settings: Mapping[str, str],
) -> _Node:
    """Steps 2 to 4; the slave that runs at their end, in `slaves`."""
    first, second = plan.count // 4, plan.count // 2
    await _put(plan, demo_run, master, BEFORE, first)

    load = demo_run.load = _load(master, count=second, seconds=plan.pace.broken_s)
    async with trio.open_nursery() as sending:
        sending.start_soon(load.run)
        await trio.sleep(plan.pace.broken_s / 8)
        slave.process.kill()
        await slave.process.wait()
        demo_run.log("slave killed with SIGKILL")
        await trio.sleep(plan.pace.away_s)
        # On its old port, so that the monitor finds it again.
        slave = await slaves.enter_async_context(_node(plan, demo_run, death_pipe, "slave", **settings))
    check_puts(demo_run, DURING, load.result())
    status, _ = await _caught_up(master, slave, log=demo_run.log)
    demo_run.check(
        "the slave resumed where it was and caught up",
        held=0 < slave.max_offset <= status.max_offset,
        seen=f"from offset {slave.max_offset:,} to the master's {status.max_offset:,}",
    )
    await _put(plan, demo_run, master, AFTER, plan.count - first - second)
    return slave


async def _put(plan: Plan, demo_run: DemoRun, master: _Node, act: str, count: int) -> None:
    load = demo_run.load = _load(master, count=count, seconds=plan.pace.whole_s)
    await load.run()
    check_puts(demo_run, act, load.result())


def _load(master: _Node, *, count: int, seconds: float | None) -> Load:
    low, high = BODY_BYTES
    return Load(
        LoadPlan(
            broker=master.listen,
            topic="TopicDemo",
            count=count,
            size_bytes_min=low,
            size_bytes_max=high,
            concurrency=CONCURRENCY,
            rate=None if seconds is None else count / seconds,
        )
    )


def check_puts(demo_run: DemoRun, act: str, result: LoadResult) -> None:
    """Check the puts of one act."""
    demo_run.puts[act], demo_run.load = result, None
    statuses = result.statuses
    if act == DURING:
        demo_run.check(
            "while the slave was away, the master said so",
            held=result.complete and set(statuses) <= HONEST_WITHOUT_SLAVE and set(statuses) != {PUT_OK},
            seen=_counts(statuses),
        )
    else:
        demo_run.check(f"every put {act} that was PUT_OK", held=result.all_ok, seen=_counts(statuses))


def check_clients(demo_run: DemoRun) -> None:
    """Check what the producer sent and the consumer received."""
    ledger = demo_run.clients
    demo_run.check(
        "the producer was answered about every message",
        held=ledger.produced > 0 and set(ledger.statuses) <= HONEST_WITHOUT_SLAVE,
        seen=f"{ledger.produced:,} produced: {_counts(ledger.statuses)}",
    )
    demo_run.check(
        "the consumer received every stored message once",
        held=ledger.consumed > 0 and not ledger.lost and not ledger.duplicated,
        seen=f"{ledger.consumed:,} consumed, {ledger.lost:,} lost, {ledger.duplicated:,} duplicated",
    )
    demo_run.check(
        "it received the messages of each queue in their order",
        held=ledger.queues > 0 and not ledger.out_of_order and not ledger.misplaced,
        seen=f"{ledger.queues} queues, {ledger.out_of_order:,} out of order, "
        f"{ledger.misplaced:,} not at the offset of its send",
    )


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in statuses.items()) or "none"


async def _status(node: _Node) -> BrokerStatus:
    async with open_client(node.listen) as client:
        return await fetch_status(client)


async def _caught_up(
    master: _Node, slave: _Node, *, log: Callable[[str], None]
) -> tuple[BrokerStatus, BrokerStatus]:
    """The status of both when the slave has the whole log and the master its ack."""
    async with patience("the slave to have its master's log", log=log):
        while True:
            # A node that does not answer yet is asked again.
            with suppress(PeerError):
                one, other = await _status(master), await _status(slave)
                acks = [connection.ack_offset for connection in one.connections]
                if [one.max_offset] == acks and other.max_offset == one.max_offset:
                    return one, other
            await trio.sleep(POLL_INTERVAL_S)


async def _stop(demo_run: DemoRun, *nodes: _Node) -> None:
    start_s = trio.current_time()
    codes = [await stop(node.process) for node in nodes]
    demo_run.check(
        "both nodes stopped cleanly on SIGTERM",
        held=not any(codes),
        seen=f"exit codes {codes} within {trio.current_time() - start_s:.1f} s",
    )


@asynccontextmanager
async def _monitor(
    plan: Plan, demo_run: DemoRun, death_pipe: ParentDeathPipe, *nodes: _Node
) -> AsyncIterator[None]:
    """With `watch`, run the monitor on this terminal until it is quit."""
    if not plan.watch:
        yield
        return
    # It reads the keyboard, so it stays in the terminal's foreground group.
    terminal = termios.tcgetattr(sys.stdin)
    process = await death_pipe.start("monitor", *(str(node.listen) for node in nodes), own_group=False)

    async def until_quit() -> None:
        await process.wait()
        demo_run.on_terminal_released()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_quit)
            yield
    finally:
        if process.poll() is None:
            await stop(process)
            termios.tcsetattr(sys.stdin, termios.TCSANOW, terminal)
            # Leave the alternate screen, show the cursor, end mouse and bracketed paste modes.
            print("\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l", end="", file=sys.stderr)
        demo_run.on_terminal_released()


async def _run_json(
    plan: Plan, demo_run: DemoRun, death_pipe: ParentDeathPipe, command: str, *arguments: str | Path
) -> tuple[int, Any]:
    """Run another command with `--json`; its exit code and its output."""
    log = plan.folder / f"{command}.log"
    with log.open("ab") as stderr:
        process = await death_pipe.start(
            command,
            *arguments,
            "--json",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    printed = bytearray()
    try:
        assert process.stdout is not None, "asked for as a pipe"
        async with patience(f"trioha {command}", log=demo_run.log):
            async for part in process.stdout:
                printed += part
            code = await process.wait()
    finally:
        await stop(process)
    try:
        return code, json.loads(printed)
    except ValueError:
        raise TriohaError(f"trioha {command} ended with exit code {code}:\n{_log_tail(log)}") from None


async def _verify(plan: Plan, demo_run: DemoRun, death_pipe: ParentDeathPipe, *, max_offset: int) -> None:
    code, report = await _run_json(
        plan, demo_run, death_pipe, "verify", _store(plan, "master"), "--against", _store(plan, "slave"),
    )  # fmt: skip
    records = {store["records"] for store in report["stores"]}
    demo_run.check(
        "both commit logs are whole and byte-identical",
        held=code == 0 and report["ok"] and report["compared"] == [0, max_offset] and len(records) == 1,
        seen="; ".join(report["problems"])
        or f"{records.pop():,} records, offsets {report['compared'][0]} to {report['compared'][1]:,}",
    )


async def _replay(
    plan: Plan, demo_run: DemoRun, death_pipe: ParentDeathPipe, *, master: BrokerStatus, slave: BrokerStatus
) -> None:
    demo_run.log("replaying the recorded sessions on Spark")
    code, replayed = await _run_json(
        plan, demo_run, death_pipe, "replay", *demo_run.sessions, "--report", plan.report
    )
    if code != 0:
        raise TriohaError(f"trioha replay ended with exit code {code}")
    check_replay(demo_run, replayed, master=master, slave=slave)


def check_replay(
    demo_run: DemoRun, replayed: Mapping[str, Any], *, master: BrokerStatus, slave: BrokerStatus
) -> None:
    """Compare the result of `trioha replay --json` with the last status of the nodes."""
    sessions = {row["session"]: row for row in replayed["sessions"]}
    # The session of the killed slave ends with the last block that it wrote.
    of_master, of_slave = demo_run.sessions[0].name, demo_run.sessions[-1].name
    sent = _last_connection(replayed, of_master)
    received = _last_connection(replayed, of_slave)
    live_sent = [(one.connection_id, one.sent_offset, one.ack_offset) for one in master.connections]
    live_reported = None if slave.client is None else slave.client.reported_offset
    differences = [
        f"{what}: live {live}, replayed {again}"
        for what, live, again in (
            ("the master's max offset", master.max_offset, sessions[of_master]["maxOffset"]),
            (
                "connection, sent and acknowledged",
                live_sent,
                [(sent["conn"], sent["sentOffset"], sent["ackOffset"])],
            ),
            ("the slave's max offset", slave.max_offset, sessions[of_slave]["maxOffset"]),
            ("received", slave.max_offset, received["receivedOffset"]),
            ("reported", live_reported, received["reportedOffset"]),
        )
        if live != again
    ]
    demo_run.check(
        "the replayed offsets are those that the nodes reported live",
        held=not differences,
        seen="; ".join(differences)
        or f"sent, acknowledged, received and reported up to {master.max_offset:,}",
    )
    waits = {row["status"]: row["count"] for row in replayed["waits"] if row["session"] == of_master}
    demo_run.check(
        "the replayed group commits are the puts that were sent",
        held=waits == dict(demo_run.statuses),
        seen=_counts(waits),
    )
    events = sum(row["events"] for row in sessions.values())
    missing = sum(row["dropped"] + row["lost"] for row in sessions.values())
    demo_run.check(
        "no recording dropped or lost an event",
        held=missing == 0,
        seen=f"{events:,} events in {len(sessions)} sessions, {missing:,} of them missing",
    )


def _last_connection(replayed: Mapping[str, Any], session: str) -> Mapping[str, Any]:
    rows = [row for row in replayed["connections"] if row["session"] == session]
    if not rows:
        raise TriohaError(f"the replay found no connection in session {session}")
    last: Mapping[str, Any] = max(rows, key=lambda row: row["conn"])
    return last

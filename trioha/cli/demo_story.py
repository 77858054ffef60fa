"""What `trioha demo` does: a synchronous pair that loses its slave, and the proof that nothing else was lost.

With real processes on free ports of loopback:

1. A SYNC_MASTER and a SLAVE start and find each other.
2. Messages are sent: every put waits for the slave.
3. More are sent, at an even rate. Early in it SIGKILL ends the slave; a while later it is started again on
   the same store, and catches up while the messages keep coming. What the master answers is counted.
4. More are sent: every put waits for the slave again.
5. What both nodes say of their offsets is noted, then SIGTERM stops them.
6. Both commit logs are compared, and the recorded sessions of all three node starts are replayed on Spark.

Each step is bounded in time. Every process hangs on a `ParentDeathPipe` and is stopped where it was started,
so however the story ends, none of them outlives it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, field, frozen

from trioha.broker_status import BrokerStatus
from trioha.cli.load import PUT_OK, Load, LoadPlan, LoadResult
from trioha.cli.parent_death_pipe import ParentDeathPipe, stop
from trioha.config.properties_file import PropertiesDocument
from trioha.errors import PeerError, TriohaError
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import open_client
from trioha.remoting.status_reader import fetch_status

START_TIMEOUT_S: Final = 30.0
"""For a node to serve."""
CATCH_UP_TIMEOUT_S: Final = 60.0
"""For a slave to hold all that its master has."""
VERIFY_TIMEOUT_S: Final = 60.0
REPLAY_TIMEOUT_S: Final = 180.0
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
SLAVE_SETTINGS: Final = {"brokerRole": "SLAVE", "brokerId": "1"}

BEFORE: Final = "before"
DURING: Final = "during"
AFTER: Final = "after"
HONEST_WITHOUT_SLAVE: Final = frozenset((PUT_OK, "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"))
"""What a SYNC_MASTER may answer while its only slave is away or coming back."""


@frozen
class Pace:
    """How fast the story is told."""

    whole_s: float | None
    """At least so long for the puts before, and for those after; None for as fast as it goes."""
    broken_s: float
    """At least so long for the puts during which the slave is killed."""
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


@frozen
class Check:
    """Something that the demo proves, or fails to."""

    name: str
    held: bool
    seen: str
    """The figures it was judged by."""


@define
class Story:
    """What was seen so far, told line by line to `tell`."""

    tell: Callable[[str], None]
    terminal_is_back: Callable[[], None] = lambda: None
    """Called when the monitor has given the terminal back: what was told meanwhile may be shown."""
    puts: dict[str, LoadResult] = field(factory=dict)
    """By act: before, during and after the slave's absence."""
    checks: list[Check] = field(factory=list)
    sessions: list[Path] = field(factory=list)
    """Recorded sessions, in the order of the node starts."""

    def check(self, name: str, held: bool, seen: str) -> None:
        self.checks.append(Check(name, held, seen))
        self.tell(f"{'ok' if held else 'FAILED'}: {name}: {seen}")

    @property
    def all_held(self) -> bool:
        """There were checks, and each of them held."""
        return bool(self.checks) and all(check.held for check in self.checks)

    @property
    def statuses(self) -> Counter[str]:
        """Puts by status, all acts together, as those who sent them counted."""
        total: Counter[str] = Counter()
        for result in self.puts.values():
            total.update(result.statuses)
        return total


async def tell_story(plan: Plan, story: Story) -> None:
    """Run the demo; what it found is in `story`. Raises TriohaError where it cannot go on.

    Cancellation stops every process before it goes through.
    """
    with ParentDeathPipe() as death_pipe:
        master, slave = await _replicate(plan, story, death_pipe)
        await _verify(plan, story, death_pipe, max_offset=master.max_offset)
        await _replay(plan, story, death_pipe, master=master, slave=slave)


@frozen
class _Node:
    """A node process that serves."""

    name: str
    process: trio.Process
    listen: Address
    ha: str
    max_offset: int
    """Where its log ended when it began to serve."""
    session: Path


def _store(plan: Plan, name: str) -> Path:
    return plan.folder / name / "store"


@asynccontextmanager
async def _node(
    plan: Plan, story: Story, death_pipe: ParentDeathPipe, name: str, **settings: str
) -> AsyncIterator[_Node]:
    """Start a node and wait until it serves; leaving stops it."""
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
        said = _ready_pairs(await _first_line(process.stdout))
        if said is None:
            raise TriohaError(f"the {name} did not start; its log ends:\n{_log_tail(log)}")
        node = _Node(
            name=name,
            process=process,
            listen=parse_address(said["listen"]),
            ha=said["ha"],
            max_offset=int(said["max_offset"]),
            session=Path(said["session"]),
        )
        story.sessions.append(node.session)
        story.tell(f"{name} serves on {node.listen}, max offset {node.max_offset:,}")
        yield node
    finally:
        await stop(process)


def _log_tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])


async def _first_line(stream: trio.abc.ReceiveStream) -> str:
    """The first line, or what there is of it at the end of the stream or after `START_TIMEOUT_S`."""
    line = b""
    with trio.move_on_after(START_TIMEOUT_S):
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


async def _replicate(
    plan: Plan, story: Story, death_pipe: ParentDeathPipe
) -> tuple[BrokerStatus, BrokerStatus]:
    """Acts 1 to 5; what master and slave said at the end."""
    async with (
        _node(plan, story, death_pipe, "master", **MASTER_SETTINGS) as master,
        AsyncExitStack() as slaves,
    ):
        settings = SLAVE_SETTINGS | {"haMasterAddress": master.ha}
        slave = await slaves.enter_async_context(
            _node(plan, story, death_pipe, "slave", **settings, listenPort="0")
        )
        async with _monitor(plan, story, death_pipe, master, slave):
            await _caught_up(master, slave)
            first, second = plan.count // 4, plan.count // 2
            await _put(plan, story, master, BEFORE, first)

            load = _load(master, count=second, seconds=plan.pace.broken_s)
            async with trio.open_nursery() as sending:
                sending.start_soon(load.run)
                await trio.sleep(plan.pace.broken_s / 8)
                slave.process.kill()
                await slave.process.wait()
                story.tell("slave killed with SIGKILL")
                await trio.sleep(plan.pace.away_s)
                # Where it was before, so that whoever watches it finds it again.
                slave = await slaves.enter_async_context(
                    _node(plan, story, death_pipe, "slave", **settings, listenPort=str(slave.listen.port))
                )
            judge_puts(story, DURING, load.result())
            status, _ = await _caught_up(master, slave)
            story.check(
                "the slave resumed where it was and caught up",
                held=0 < slave.max_offset <= status.max_offset,
                seen=f"from offset {slave.max_offset:,} to the master's {status.max_offset:,}",
            )
            await _put(plan, story, master, AFTER, plan.count - first - second)
        live = await _caught_up(master, slave)
        statuses = {status: count for status, count in live[0].put_statuses.items() if count}
        story.check(
            "the master counted the puts as their senders did",
            held=statuses == dict(story.statuses),
            seen=_counts(statuses),
        )
        await _stop(story, slave, master)
        return live


async def _put(plan: Plan, story: Story, master: _Node, act: str, count: int) -> None:
    load = _load(master, count=count, seconds=plan.pace.whole_s)
    await load.run()
    judge_puts(story, act, load.result())


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


def judge_puts(story: Story, act: str, result: LoadResult) -> None:
    """Judge the puts of one act."""
    story.puts[act] = result
    statuses = result.statuses
    if act == DURING:
        story.check(
            "while the slave was away, the master said so",
            held=result.complete and set(statuses) <= HONEST_WITHOUT_SLAVE and set(statuses) != {PUT_OK},
            seen=_counts(statuses),
        )
    else:
        story.check(f"every put {act} that was PUT_OK", held=result.all_ok, seen=_counts(statuses))


def _counts(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {status}" for status, count in statuses.items()) or "none"


async def _status(node: _Node) -> BrokerStatus:
    async with open_client(node.listen, connect_timeout_s=START_TIMEOUT_S) as client:
        return await fetch_status(client)


async def _caught_up(master: _Node, slave: _Node) -> tuple[BrokerStatus, BrokerStatus]:
    """Wait until the slave has all that the master has, and the master knows it; what they say then."""
    seen = "nothing"
    with trio.move_on_after(CATCH_UP_TIMEOUT_S):
        while True:
            try:
                one, other = await _status(master), await _status(slave)
            except PeerError as error:
                seen = str(error)
            else:
                acks = [connection.ack_offset for connection in one.connections]
                if [one.max_offset] == acks and other.max_offset == one.max_offset:
                    return one, other
                seen = f"master at {one.max_offset:,}, slave at {other.max_offset:,}, acknowledged {acks}"
            await trio.sleep(POLL_INTERVAL_S)
    raise TriohaError(f"the slave did not catch up within {CATCH_UP_TIMEOUT_S:g} s: {seen}")


async def _stop(story: Story, *nodes: _Node) -> None:
    start_s = trio.current_time()
    codes = [await stop(node.process) for node in nodes]
    story.check(
        "both nodes stopped cleanly on SIGTERM",
        held=not any(codes),
        seen=f"exit codes {codes} within {trio.current_time() - start_s:.1f} s",
    )


@asynccontextmanager
async def _monitor(
    plan: Plan, story: Story, death_pipe: ParentDeathPipe, *nodes: _Node
) -> AsyncIterator[None]:
    """With `watch`: the monitor on this terminal meanwhile, and until it is quit."""
    if not plan.watch:
        yield
        return
    # It reads the keyboard, so it stays in the terminal's foreground group.
    terminal = termios.tcgetattr(sys.stdin)
    process = await death_pipe.start("monitor", *(str(node.listen) for node in nodes), own_group=False)

    async def until_quit() -> None:
        await process.wait()
        story.terminal_is_back()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_quit)
            yield
    finally:
        if process.poll() is None:
            await stop(process)
            termios.tcsetattr(sys.stdin, termios.TCSANOW, terminal)
            # Back from the alternate screen, cursor shown, mouse and pasted text as they come.
            print("\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?2004l", end="", file=sys.stderr)
        story.terminal_is_back()


async def _run_json(
    plan: Plan, death_pipe: ParentDeathPipe, command: str, *arguments: str | Path, timeout_s: float
) -> tuple[int, Any]:
    """Run another command with `--json` to its end; its exit code and what it printed."""
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
    code = None
    try:
        assert process.stdout is not None, "asked for as a pipe"
        with trio.move_on_after(timeout_s):
            async for part in process.stdout:
                printed += part
            code = await process.wait()
    finally:
        await stop(process)
    if code is None:
        raise TriohaError(f"trioha {command} did not end within {timeout_s:g} s")
    try:
        return code, json.loads(printed)
    except ValueError:
        raise TriohaError(f"trioha {command} ended with exit code {code}:\n{_log_tail(log)}") from None


async def _verify(plan: Plan, story: Story, death_pipe: ParentDeathPipe, *, max_offset: int) -> None:
    code, report = await _run_json(
        plan, death_pipe, "verify", _store(plan, "master"), "--against", _store(plan, "slave"),
        timeout_s=VERIFY_TIMEOUT_S,
    )  # fmt: skip
    records = {store["records"] for store in report["stores"]}
    story.check(
        "both commit logs are whole and byte-identical",
        held=code == 0 and report["ok"] and report["compared"] == [0, max_offset] and len(records) == 1,
        seen="; ".join(report["problems"])
        or f"{records.pop():,} records, offsets {report['compared'][0]} to {report['compared'][1]:,}",
    )


async def _replay(
    plan: Plan, story: Story, death_pipe: ParentDeathPipe, *, master: BrokerStatus, slave: BrokerStatus
) -> None:
    story.tell("replaying the recorded sessions on Spark")
    code, replayed = await _run_json(
        plan, death_pipe, "replay", *story.sessions, "--report", plan.report, timeout_s=REPLAY_TIMEOUT_S
    )
    if code != 0:
        raise TriohaError(f"trioha replay ended with exit code {code}")
    judge_replay(story, replayed, master=master, slave=slave)


def judge_replay(
    story: Story, replayed: Mapping[str, Any], *, master: BrokerStatus, slave: BrokerStatus
) -> None:
    """Hold what `trioha replay --json` found against what the nodes said before they stopped."""
    sessions = {row["session"]: row for row in replayed["sessions"]}
    # The killed slave said nothing at its end, and its session ends with the last block it wrote.
    of_master, of_slave = story.sessions[0].name, story.sessions[-1].name
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
    story.check(
        "the replayed offsets are those that the nodes reported live",
        held=not differences,
        seen="; ".join(differences)
        or f"sent, acknowledged, received and reported up to {master.max_offset:,}",
    )
    waits = {row["status"]: row["count"] for row in replayed["waits"] if row["session"] == of_master}
    story.check(
        "the replayed group commits are the puts that were sent",
        held=waits == dict(story.statuses),
        seen=_counts(waits),
    )
    events = sum(row["events"] for row in sessions.values())
    missing = sum(row["dropped"] + row["lost"] for row in sessions.values())
    story.check(
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

"""Takes the pictures of the monitor in docs/images, from nodes that really run.

    python docs/make_screenshots.py [FOLDER] [--only slaves|roles]

Of `slaves`: starts a master and two slaves on free ports, sends messages for about a minute, which two groups
consume until one of them hangs, makes one slave stumble and kills the other, and saves what the monitor shows
at the end on each of its screens, and what it shows of the recorded sessions.

Of `roles`: starts three of RocketMQ's controllers, as the tests do (Java, and Maven's packages), and three
nodes under them; kills the master under load, starts it again, kills the leading controller, and saves the
Roles screen.

Needs the extra `monitor`. Look at the pictures before you keep them.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.cells import cell_len
from textual.pilot import Pilot

from trioha_monitor.app import MonitorApp
from trioha_monitor.live import LiveSettings, live_views
from trioha_monitor.rendering import LIGHT
from trioha_monitor.replay import open_replay
from trioha_monitor.view import ClusterView, NodeView

SIZE = (120, 33)
ROLES_SIZE = (120, 40)
CELL_WIDTH = 12.2
"""Width of a character in the pictures, in their own units."""
TRIOHA = (sys.executable, "-m", "trioha")
CONFIG = """\
brokerClusterName = DefaultCluster
brokerName = broker-a
listenPort = 0
trioha.bindAddress = 127.0.0.1
brokerIP1 = 127.0.0.1
brokerIP2 = 127.0.0.1
mappedFileSizeCommitLog = 67108864
maxMessageSize = 1048576
inSyncReplicas = 2
totalReplicas = 3
trioha.haDistinctBy = connection
namesrvAddr = {name_server}
"""


GROUP_CONFIG = """\
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = -1
enableControllerMode = true
controllerAddr = {controllers}
namesrvAddr = {name_server}
allAckInSyncStateSet = true
trioha.bindAddress = 127.0.0.1
brokerIP1 = 127.0.0.1
brokerIP2 = 127.0.0.1
mappedFileSizeCommitLog = 67108864
"""
ROCKETMQ = "5.5.0"
"""Version of the controllers."""
WITHIN_S = 90.0
"""For each step of a failover; most take a few seconds."""


def main(arguments: Sequence[str]) -> int:
    """Take the pictures; 0 if all went well."""
    parser = argparse.ArgumentParser(description="Takes the pictures of the monitor.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--only", choices=("slaves", "roles"), help="take these only")
    wanted = parser.parse_args(arguments)
    wanted.folder.mkdir(parents=True, exist_ok=True)
    for name, take in (("slaves", take_slaves), ("roles", take_roles)):
        if wanted.only not in {None, name}:
            continue
        with tempfile.TemporaryDirectory(prefix="trioha-screenshots-") as work, ExitStack() as processes:
            for file_name, svg in take(Path(work), processes).items():
                (wanted.folder / file_name).write_text(svg)
                print(wanted.folder / file_name)
    return 0


def take_slaves(work: Path, processes: ExitStack) -> dict[str, str]:
    """The pictures of a master and two slaves: file name to SVG."""
    config = work / "broker.conf"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        name_server = f"127.0.0.1:{probe.getsockname()[1]}"
    config.write_text(CONFIG.format(name_server=name_server))
    master, listen, ha = start_node(
        processes, config, "brokerRole=SYNC_MASTER", "brokerId=0", "trioha.withNamesrv=true", name="0"
    )
    stumbling, first, _ = start_slave(processes, config, broker_id=1, master=ha)
    dying, second, _ = start_slave(processes, config, broker_id=2, master=ha)
    load = start_load(processes, listen)
    consume(processes, name_server, group="billing")
    hanging = consume(processes, name_server, group="audit")
    pictures = asyncio.run(watch((listen, first, second), stumbling=stumbling, dying=dying, hanging=hanging))
    assert master.poll() is None, "the master ended"
    for process in (load, stumbling, master):
        end(process)
    return pictures | asyncio.run(watch_again(sorted((work / "sessions").iterdir())))


def take_roles(work: Path, processes: ExitStack) -> dict[str, str]:
    """The picture of a group whose master was killed and came back: file name to SVG."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.interop.controller import Consensus, controllers  # noqa: PLC0415 - needs Java
    from tests.interop.rocketmq import missing_tools  # noqa: PLC0415
    from tests.ports import free_port  # noqa: PLC0415

    if lacking := missing_tools():
        raise SystemExit(f"no picture of roles: {lacking}")
    group = processes.enter_context(
        controllers(ROCKETMQ, folder=work / "controllers", number=3, consensus=Consensus.JRAFT)
    )
    config = work / "broker.conf"
    name_server = start_name_server(processes, work, port=free_port())
    config.write_text(GROUP_CONFIG.format(controllers=group.setting, name_server=name_server))
    ports = [free_port() for _ in range(3)]
    starts = [
        partial(start_node, processes, config, f"listenPort={port}", f"haListenPort={port + 1}", name=name)
        for name, port in zip("abc", ports, strict=True)
    ]
    brokers = [start()[0] for start in starts]
    addresses = [f"127.0.0.1:{port}" for port in ports]

    def start_again() -> None:
        starts[0]()

    def kill_leader() -> None:
        group.process_at(group.leader()).kill()

    return asyncio.run(
        watch_failover(
            addresses,
            send_to=partial(start_load, processes),
            kill_master=brokers[0].kill,
            start_again=start_again,
            kill_leader=kill_leader,
        )
    )


def start_name_server(processes: ExitStack, work: Path, *, port: int) -> str:
    """A running name server; returns its address."""
    server = subprocess.Popen(  # noqa: S603 - our own command
        (
            *TRIOHA, "namesrv", "-p", f"listenPort={port}", "-p", "trioha.bindAddress=127.0.0.1",
            "-p", f"kvConfigPath={work / 'kvConfig.json'}",
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    processes.callback(end, server)
    return f"127.0.0.1:{port}"


def start_load(processes: ExitStack, broker: str) -> subprocess.Popen[bytes]:
    """A producer that sends to one broker until it is gone."""
    load = subprocess.Popen(  # noqa: S603 - our own command
        (
            *TRIOHA, "load", "--broker", broker, "--topic", "Orders", "--count", "200000",
            "--size", "200..3000", "--concurrency", "16", "--rate", "700", "--json",
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    processes.callback(end, load)
    return load


def consume(processes: ExitStack, name_server: str, *, group: str) -> subprocess.Popen[bytes]:
    """A member of a consumer group, which has no other."""
    member = subprocess.Popen(  # noqa: S603 - our own command
        (
            *TRIOHA, "consume", "Orders", "--namesrv", name_server, "--group", group,
            "--from", "first", "--follow",
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    processes.callback(end, member)
    return member


def start_slave(
    processes: ExitStack, config: Path, *, broker_id: int, master: str
) -> tuple[subprocess.Popen[str], str, str]:
    """As `start_node`: a slave of the master at an HA address."""
    settings = ("brokerRole=SLAVE", f"brokerId={broker_id}", f"haMasterAddress={master}")
    return start_node(processes, config, *settings, name=str(broker_id))


def start_node(
    processes: ExitStack, config: Path, *settings: str, name: str
) -> tuple[subprocess.Popen[str], str, str]:
    """A running node, its listen address and its HA address; its files have its name."""
    own = (
        f"storePathRootDir={config.parent / name}",
        f"trioha.recordDir={config.parent / 'sessions' / name}",
    )
    options = [word for setting in (*own, *settings) for word in ("-p", setting)]
    log = processes.enter_context((config.parent / f"{name}.log").open("a"))
    node = subprocess.Popen(  # noqa: S603 - our own command
        (*TRIOHA, "node", "-c", str(config), *options), stdout=subprocess.PIPE, stderr=log, text=True
    )
    processes.callback(end, node)
    assert node.stdout is not None
    line = node.stdout.readline()
    if not line.startswith("ready "):
        raise SystemExit(f"node {name} did not start: {Path(log.name).read_text()}")
    said = dict(word.partition("=")[::2] for word in shlex.split(line)[1:])
    return node, said["listen"], said["ha"]


def end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Stop a process in any state."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


async def watch(
    addresses: Sequence[str],
    *,
    stumbling: subprocess.Popen[str],
    dying: subprocess.Popen[str],
    hanging: subprocess.Popen[bytes],
) -> dict[str, str]:
    """What the monitor shows after a lively minute: file name to SVG."""
    settings = LiveSettings()
    app = MonitorApp(live_views(addresses, settings=settings), demand=settings.demand)
    pictures: dict[str, str] = {}
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("minus")
        for calm_s, stopped_s in ((9.0, 0.7), (6.0, 1.6), (8.0, 4.2), (11.0, 1.0)):
            await asyncio.sleep(calm_s)
            stumbling.send_signal(signal.SIGSTOP)
            await asyncio.sleep(stopped_s)
            stumbling.send_signal(signal.SIGCONT)
        hanging.send_signal(signal.SIGSTOP)
        await asyncio.sleep(8.0)
        dying.kill()
        await asyncio.sleep(9.0)
        for name, key in (("monitor", "1"), ("slave", "2"), ("log", "3"), ("events", "4"), ("groups", "5")):
            await pilot.press(key)
            await pilot.pause(6.0 if name == "groups" else 0.5)
            pictures[f"{name}.svg"] = pin_words(app.export_screenshot())
        app.theme = LIGHT.name
        await pilot.press("1")
        await pilot.pause(0.5)
        pictures["monitor-light.svg"] = pin_words(app.export_screenshot())
    if app.failure is not None:
        raise SystemExit(f"no picture: {app.failure}")
    return pictures


async def watch_failover(
    addresses: Sequence[str],
    *,
    send_to: Callable[[str], object],
    kill_master: Callable[[], None],
    start_again: Callable[[], None],
    kill_leader: Callable[[], None],
) -> dict[str, str]:
    """What the monitor shows of a group whose first broker is killed and comes back: file name to SVG."""
    settings = LiveSettings()
    app = MonitorApp(live_views(addresses, settings=settings), demand=settings.demand)
    async with app.run_test(size=ROLES_SIZE) as pilot:
        await pilot.press("minus", "6")
        first = await wait_for(pilot, app, lambda view: master_with(view, members=3))
        send_to(first.address)
        await asyncio.sleep(26.0)
        kill_master()
        second = await wait_for(pilot, app, lambda view: master_with(view, members=2, other_than=first))
        send_to(second.address)
        await asyncio.sleep(9.0)
        await asyncio.to_thread(start_again)
        whole = await wait_for(pilot, app, lambda view: master_with(view, members=3, other_than=first))
        await asyncio.sleep(4.0)
        await asyncio.to_thread(kill_leader)
        lost = leader_of(whole)
        await wait_for(
            pilot, app, lambda view: all_have(view, lambda node: leader_of(node) not in {None, lost})
        )
        await asyncio.sleep(5.0)
        # The new master: rows are in the order of the addresses.
        await pilot.press(*["down"] * addresses.index(whole.address))
        await pilot.pause(1.0)
        picture = pin_words(app.export_screenshot())
    if app.failure is not None:
        raise SystemExit(f"no picture: {app.failure}")
    return {"roles.svg": picture}


async def wait_for(
    pilot: Pilot[None], app: MonitorApp, find: Callable[[ClusterView], NodeView | None]
) -> NodeView:
    """The first node that `find` finds in a view."""
    deadline_s = asyncio.get_running_loop().time() + WITHIN_S
    while asyncio.get_running_loop().time() < deadline_s:
        view = app.monitor_screen.view
        found = None if view is None else find(view)
        if found is not None:
            return found
        await pilot.pause(0.1)
    raise SystemExit(f"not within {WITHIN_S:g} s: {app.monitor_screen.view}")


def master_with(view: ClusterView, *, members: int, other_than: NodeView | None = None) -> NodeView | None:
    """The master whose set has so many members."""
    for node in view.nodes:
        control = node.control
        if (
            control is not None
            and control.role == "master"
            and len(control.sync_state_set) == members
            and (other_than is None or node.address != other_than.address)
        ):
            return node
    return None


def all_have(view: ClusterView, holds: Callable[[NodeView], bool]) -> NodeView | None:
    """The first node, if all of them are so."""
    return view.nodes[0] if all(map(holds, view.nodes)) else None


def leader_of(node: NodeView) -> str | None:
    """The leading controller that it knows."""
    return None if node.control is None else node.control.leader


async def watch_again(sessions: Sequence[Path]) -> dict[str, str]:
    """The recorded sessions of the same minute, at its worst moment."""
    source = open_replay(list(sessions))
    app = MonitorApp(source, playback=source)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("minus", "right_square_bracket", "right_square_bracket")
        while source.overview_share < 1:
            await pilot.pause(0.1)
        source.run_until("47%")
        await pilot.pause(0.3)
        source.toggle()
        await pilot.pause(0.6)
        picture = pin_words(app.export_screenshot())
    if app.failure is not None:
        raise SystemExit(f"no picture: {app.failure}")
    return {"replay.svg": picture}


def pin_words(svg: str) -> str:
    """Give every word its own place.

    A viewer whose font is a little narrower than the one the picture was made for, and that knows no
    `textLength` or swallows blanks, would shift all text after them.
    """

    def split(match: re.Match[str]) -> str:
        head, x, middle, tail, text = match.groups()
        cells = html.unescape(text)
        return "".join(
            f'{head}x="{float(x) + cell_len(cells[: word.start()]) * CELL_WIDTH:.1f}"{middle}'
            f'textLength="{cell_len(word.group()) * CELL_WIDTH:.1f}"{tail}'
            f"{html.escape(word.group(), quote=False)}</text>"
            for word in re.finditer(r"\S+", cells)
        )

    text_element = r'(<text class="[^"]*" )x="([^"]*)"( y="[^"]*" )textLength="[^"]*"([^>]*>)([^<]*)</text>'
    return re.sub(text_element, split, svg)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Takes the pictures of the monitor in docs/images, from nodes that really run.

    python docs/make_screenshots.py [FOLDER]

Starts a master and two slaves on free ports, sends messages for about a minute, which two groups consume
until one of them hangs, makes one slave stumble and kills the other, and saves what the monitor shows at the
end on each of its screens, and what it shows of the recorded sessions. Needs the extra `monitor`. Look at the
pictures before you keep them.
"""

from __future__ import annotations

import asyncio
import html
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.cells import cell_len

from trioha_monitor.app import MonitorApp
from trioha_monitor.live import LiveSettings, live_views
from trioha_monitor.rendering import LIGHT
from trioha_monitor.replay import open_replay

SIZE = (120, 33)
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


def main(arguments: Sequence[str]) -> int:
    """Take the pictures; 0 if all went well."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trioha-screenshots-") as work, ExitStack() as processes:
        config = Path(work) / "broker.conf"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            name_server = f"127.0.0.1:{probe.getsockname()[1]}"
        config.write_text(CONFIG.format(name_server=name_server))
        master, listen, ha = start_node(
            processes, config, "trioha.withNamesrv=true", role="SYNC_MASTER", broker_id=0
        )
        stumbling, first, _ = start_node(processes, config, role="SLAVE", broker_id=1, master=ha)
        dying, second, _ = start_node(processes, config, role="SLAVE", broker_id=2, master=ha)
        load = subprocess.Popen(  # noqa: S603 - our own command
            (
                *TRIOHA, "load", "--broker", listen, "--topic", "Orders", "--count", "200000",
                "--size", "200..3000", "--concurrency", "16", "--rate", "700", "--json",
            ),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        processes.callback(end, load)
        consume(processes, name_server, group="billing")
        hanging = consume(processes, name_server, group="audit")
        pictures = asyncio.run(
            watch((listen, first, second), stumbling=stumbling, dying=dying, hanging=hanging)
        )
        assert master.poll() is None, "the master ended"
        for process in (load, stumbling, master):
            end(process)
        pictures |= asyncio.run(watch_again(sorted((Path(work) / "sessions").iterdir())))
    for name, svg in pictures.items():
        (folder / name).write_text(svg)
        print(folder / name)
    return 0


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


def start_node(
    processes: ExitStack, config: Path, *more: str, role: str, broker_id: int, master: str | None = None
) -> tuple[subprocess.Popen[str], str, str]:
    """A running node, its listen address and its HA address."""
    settings = [
        f"brokerRole={role}",
        f"brokerId={broker_id}",
        f"storePathRootDir={config.parent / str(broker_id)}",
        f"trioha.recordDir={config.parent / 'sessions' / str(broker_id)}",
        *more,
    ]
    if master is not None:
        settings.append(f"haMasterAddress={master}")
    options = [word for setting in settings for word in ("-p", setting)]
    log = processes.enter_context((config.parent / f"{broker_id}.log").open("w"))
    node = subprocess.Popen(  # noqa: S603 - our own command
        (*TRIOHA, "node", "-c", str(config), *options), stdout=subprocess.PIPE, stderr=log, text=True
    )
    processes.callback(end, node)
    assert node.stdout is not None
    line = node.stdout.readline()
    if not line.startswith("ready "):
        raise SystemExit(f"{role} did not start: {Path(log.name).read_text()}")
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

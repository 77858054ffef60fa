"""The short benchmark of every CI run: CPU time of common work beside the landed figures.

| work | what is measured |
|---|---|
| dispatch | consume queues and index of a log with a UNIQ_KEY, a key and a tag in each record |
| walk | checks of records of 1 KiB, with and without their CRC, a MiB a call |
| HA frame | a frame of one record: received, checked, stored and acknowledged by a slave |
| remoting request | a small send to a server without a store, one after the other |
| send | one of 16 sends of 1 KiB in flight at a SYNC pair: CPU time of master and slave |
| pull | one of 4 pulls of 32 messages in flight at the master: its CPU time |
| start | a node, from its process to its ready line, on an empty store |

It needs no JVM and takes less than a minute. CPU times are divided by that of a fixed loop (`calibrate`), so
that a slower machine, or a slower hour, does not count: "expected" is the landed figure as this machine
should have it. It reports and never fails, since some noise is left; what takes 20 % more is named. Figures
of plain Python and of the compiled kernel are landed apart.

    make bench-report
    python tests/benchmarks/bench_report.py [--rounds N] [--json]
    python tests/benchmarks/bench_report.py --rounds 9 --land       # on an idle machine
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import multiprocessing
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import structlog
import trio
from attrs import frozen
from rich.console import Console
from rich.table import Table

# The benchmarks are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.bench_sends import Pair, Variant, measure, start_pair
from tests.benchmarks.rivals.logs import FILE_BYTES, dispatch, make_log, open_log
from tests.benchmarks.rivals.rounds import conditions
from tests.benchmarks.rivals.sides import TriohaSide
from trioha.ha.frames import HEADER, REPORT_BYTES, ReportDecoder
from trioha.ha.settings import HaSettings
from trioha.ha.slave import HaSlave
from trioha.net.transport import SocketTransport
from trioha.recording.events import NoSink
from trioha.remoting.client import open_client
from trioha.remoting.command import RemotingCommand
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    send_request,
    send_response,
)
from trioha.remoting.server import Peer, RemotingServer
from trioha.store import compiled
from trioha.store.commit_log import CommitLog
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record_layout import scan_records

LANDED: Final = Path(__file__).with_name("landed.json")
WORSE: Final = 1.2
"""A work that takes more than this multiple of its expected CPU time is named as worse."""
ROUNDS: Final = 5
LAST_ROUND_AFTER_S: Final = 40.0
"""No round begins later, so that a busy machine does not hold a CI run up."""
RECEIVED_BYTES: Final = 1 << 20


@frozen
class Sizes:
    """How much work there is in a round."""

    records: int = 50_000
    frames: int = 10_000
    requests_s: float = 0.5
    """How long requests are sent."""
    calibration_loops: int = 60_000


QUICK: Final = Sizes(records=500, frames=50, requests_s=0.1, calibration_loops=2_000)


@frozen
class Work:
    """Something that is measured."""

    name: str
    unit: str
    measure: Callable[[], float]
    """One round: CPU time in the unit."""


def calibrate(loops: int) -> float:
    """CPU seconds of a fixed loop of what trioha's Python does most: calls, dicts, structs and bytes."""
    header = struct.Struct(">iiqq")
    table: dict[int, bytes] = {}

    def step(number: int, data: bytes) -> int:
        first, second, third, fourth = header.unpack(data)
        table[number & 1023] = data[4:20]
        return (first ^ second) + (third ^ fourth)

    total = 0
    began_s = time.process_time()
    for number in range(loops):
        data = header.pack(number & 0xFFFF, 7, number, total & 0xFFFF)
        total += step(number, data)
    return time.process_time() - began_s


def walk_s_per_gb(view: memoryview, *, check_crc: bool) -> float:
    """Check every record of a log, as a slave does with what it receives."""
    at, end = 0, len(view)
    began_s = time.process_time()
    while at < end:
        at = scan_records(view, at, min(at + RECEIVED_BYTES, end), at, check_crc=check_crc).at
    return (time.process_time() - began_s) / end * 1e9


def dispatch_us(log: CommitLog, folder: Path, *, records: int) -> float:
    """Build queues and index anew."""
    began_s = time.process_time()
    dispatch(log, folder, records=records)
    return (time.process_time() - began_s) / records * 1e6


async def frame_us(folder: Path, *, number: int) -> float:
    """A slave's side of replication, one record at a time; a bare socket plays the master."""
    message = Message(topic="Bench", queue_id=0, body=bytes(1024))
    with closing(open_log(folder / "master")) as origin, closing(open_log(folder / "slave")) as log:
        for _ in range(number):
            origin.append(message)
        record_bytes = origin.max_offset // number
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]

        async def connect(_dialing: object) -> trio.abc.Stream:
            return SocketTransport.from_stream(await trio.open_tcp_stream("127.0.0.1", port))

        slave = HaSlave(
            master_address="bench",
            connect=connect,
            commit_log=log,
            settings=HaSettings(
                heartbeat_interval_s=60.0, housekeeping_interval_s=60.0, transfer_batch_bytes=32768
            ),
            sink=NoSink(),
        )
        reports = ReportDecoder()
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(slave.run)
            with trio.fail_after(60):
                master = (await listener.accept()).socket
                with master:
                    assert await master.recv(REPORT_BYTES) == bytes(REPORT_BYTES)
                    began_s = time.process_time()
                    for offset in range(0, origin.max_offset, record_bytes):
                        record = origin.read(offset, record_bytes)
                        await master.send(HEADER.pack(offset, record_bytes) + record)
                        while reports.feed(await master.recv(4096)) != offset + record_bytes:
                            pass
                    took_s = time.process_time() - began_s
                    nursery.cancel_scope.cancel()
    return took_s / number * 1e6


HEADER_OF_SENDS: Final = SendMessageRequestHeader(
    producer_group="PG_BENCH", topic="TopicBench", default_topic=DEFAULT_TOPIC, default_topic_queue_nums=4,
    queue_id=1, sys_flag=0, born_timestamp_ms=1_795_234_734_922, flag=0,
    properties="UNIQ_KEY\x01FD00000000000000000000000000000221C14E0E2F2A67EC3B4A0000\x02WAIT\x01true\x02",
)  # fmt: skip


def answer(asked: RemotingCommand, _peer: Peer) -> RemotingCommand:
    """As a broker answers a send, without a store."""
    header = SendMessageRequestHeader.of(asked)
    stored = SendMessageResponseHeader("7F0000010000A8670000000000003494", header.queue_id, 12345)
    return send_response(asked, PutStatus.PUT_OK, header=stored)


def serve(pipe: Connection) -> None:
    """Say the port, answer until the pipe says something, and say the CPU time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(partial(RemotingServer(answer).serve, host="127.0.0.1", port=0))
            began_s = time.process_time()
            pipe.send(addresses[0][1])
            await trio.to_thread.run_sync(pipe.recv)
            pipe.send(time.process_time() - began_s)
            nursery.cancel_scope.cancel()

    trio.run(main)


def remoting_us(*, seconds: float) -> float:
    """The server's part of a request."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,))
    server.start()

    async def ask(port: int) -> int:
        number, end_s = 0, trio.current_time() + seconds
        async with open_client(f"127.0.0.1:{port}") as client:
            while trio.current_time() < end_s:
                answered = await client.request(send_request(HEADER_OF_SENDS, b"x" * 100))
                assert answered.code == 0, answered
                number += 1
        return number

    number = trio.run(ask, ours.recv())
    ours.send(None)
    used_s = ours.recv()
    server.join()
    return used_s / number * 1e6


def send_us(pair: Pair, *, seconds: float) -> float:
    """Master's and slave's part of a send."""
    done = measure(pair, "many", seconds=seconds)
    return (done.master_s + done.slave_s) / done.requests * 1e6


def pull_us(pair: Pair, *, seconds: float) -> float:
    """The master's part of a pull."""
    done = measure(pair, "pull", seconds=seconds)
    return done.master_s / done.requests * 1e6


def start_s(side: TriohaSide, folder: Path) -> float:
    """A node's start, with that of Python and its imports."""
    return side.start(folder / "store", file_bytes=FILE_BYTES).cpu_s


@contextmanager
def works(sizes: Sizes) -> Iterator[list[Work]]:
    """All of them, with a folder that is removed at the end."""
    with ExitStack() as opened:
        root = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-")))
        ids = itertools.count()
        log = opened.enter_context(closing(make_log(root / "log", records=sizes.records)))
        data = bytes(log.read(0, log.max_offset))
        assert len(data) == log.max_offset
        view = memoryview(data)
        side = opened.enter_context(closing(TriohaSide(root / "side")))
        pair = start_pair(opened, root / "pair", Variant("this", is_pure=not compiled.IS_COMPILED))
        # What is pulled.
        measure(pair, "batch", seconds=sizes.requests_s)

        def new_folder() -> Path:
            return root / f"{next(ids)}"

        yield [
            Work("dispatch", "us/record", lambda: dispatch_us(log, new_folder(), records=sizes.records)),
            Work("walk", "s/GB", partial(walk_s_per_gb, view, check_crc=False)),
            Work("walk with CRC", "s/GB", partial(walk_s_per_gb, view, check_crc=True)),
            Work("HA frame", "us", lambda: trio.run(partial(frame_us, new_folder(), number=sizes.frames))),
            Work("remoting request", "us", partial(remoting_us, seconds=sizes.requests_s)),
            Work("send", "us", partial(send_us, pair, seconds=sizes.requests_s)),
            Work("pull", "us", partial(pull_us, pair, seconds=sizes.requests_s)),
            Work("start", "s", lambda: start_s(side, new_folder())),
        ]


def run(sizes: Sizes, *, rounds: int, last_round_after_s: float) -> dict[str, dict[str, Any]]:
    """By work: its unit, its CPU time, that in calibration loops, and the rounds.

    The least of all rounds, as of all calibrations: what else runs on a machine only adds to CPU time.
    """
    took: dict[str, list[float]] = {}
    loop_s = math.inf
    last_round_s = time.monotonic() + last_round_after_s
    with works(sizes) as all_works:
        for number in range(rounds):
            if number and time.monotonic() > last_round_s:
                break
            for work in all_works:
                loop_s = min(loop_s, calibrate(sizes.calibration_loops) / sizes.calibration_loops)
                took.setdefault(work.name, []).append(work.measure())
    return {
        work.name: {
            "unit": work.unit,
            "value": min(took[work.name]),
            "loops": min(took[work.name]) / loop_s,
            "rounds": len(took[work.name]),
        }
        for work in all_works
    }


@frozen
class Compared:
    """A figure beside the landed one."""

    name: str
    unit: str
    value: float
    expected: float | None
    """The landed figure as this machine should have it; None for one that was not landed."""

    @property
    def change(self) -> float | None:
        """How many times the expected one; None without that."""
        return None if self.expected is None else self.value / self.expected

    @property
    def is_worse(self) -> bool:
        """Whether it takes so much more that it is named."""
        return self.change is not None and self.change > WORSE


def compare(
    figures: Mapping[str, Mapping[str, Any]], landed: Mapping[str, Mapping[str, Any]]
) -> list[Compared]:
    """Each figure beside the landed one of its name, in calibration loops."""
    return [
        Compared(
            name,
            figure["unit"],
            figure["value"],
            figure["value"] / figure["loops"] * landed[name]["loops"] if name in landed else None,
        )
        for name, figure in figures.items()
    ]


def table(compared: list[Compared], *, title: str) -> Table:
    """For a terminal or a log."""
    shown = Table(title=title)
    shown.add_column("CPU time of")
    for heading in ("unit", "expected", "now", "change", ""):
        shown.add_column(heading, justify="right")
    for one in compared:
        shown.add_row(
            one.name,
            one.unit,
            "" if one.expected is None else f"{one.expected:.3g}",
            f"{one.value:.3g}",
            "" if one.change is None else f"{one.change - 1:+.0%}",
            "WORSE" if one.is_worse else "",
        )
    return shown


def main() -> None:
    """Measure, and print what got worse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--land", action="store_true", help=f"keep the figures in {LANDED.name}")
    parser.add_argument("--quick", action="store_true", help="tiny works, which show that they run")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most")
    options = parser.parse_args()
    if options.land and options.quick:
        parser.error("figures of --quick are not landed")
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    began_s = time.monotonic()
    figures = run(
        QUICK if options.quick else Sizes(),
        rounds=options.rounds,
        last_round_after_s=math.inf if options.land else LAST_ROUND_AFTER_S,
    )
    rounds = min(figure["rounds"] for figure in figures.values())
    here = conditions()
    # Without the reason why it is pure.
    mode = str(here["kernel"]).partition(",")[0]
    all_landed = json.loads(LANDED.read_text()) if LANDED.exists() else {}
    landed = all_landed.get(mode, {})
    if options.land:
        all_landed[mode] = {**here, "works": figures}
        LANDED.write_text(json.dumps(all_landed, indent=2) + "\n")
    if options.json:
        print(json.dumps({**here, "works": figures}))
        return
    compared = compare(figures, landed.get("works", {}))
    console = Console(width=100 if not sys.stdout.isatty() else None)
    console.print(table(compared, title=f"trioha's CPU time, kernel: {mode}"))
    took_s = time.monotonic() - began_s
    if landed:
        print(
            f"Expected: as landed on {landed['date']} with CPython {landed['python']}, times this machine's "
            f"speed. This is CPython {here['python']}; the least of {rounds} rounds, {took_s:.0f} s."
        )
    else:
        print(f"No figures were landed for kernel: {mode}; {took_s:.0f} s.")
    worse = [f"{one.name} {one.change - 1:+.0%}" for one in compared if one.is_worse and one.change]
    print(f"Worse by more than {WORSE - 1:.0%}: {', '.join(worse) or 'nothing'}.")


if __name__ == "__main__":
    main()

"""Catch-up of a RocketMQ slave, by sender: RocketMQ's master, trioha's, and raw senders that only send.

All send to stores in the same JVM, in turn, round by round, in reversed order in every other round. Beside
the speed it shows CPU seconds for each GB: the sender's, the whole slave's, and those of the slave's two busy
threads, which store what comes and build queues of it. The clock depends on what else the machine does. The
slave's CPU time depends on whether the pages of its new file were in use before, so memory is used before
each catch-up (`use_memory`), and a slave's files are unmapped after it.

`--raw KIB[xFRAMES[xSEND_KIB[xUNSENT_KIB]]],...` names raw senders: length of frames, frames to a call,
SO_SNDBUF and TCP_NOTSENT_LOWAT (0: the system's).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from attrs import frozen
from rich.console import Console
from rich.table import Table

# The rivals are modules of the tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.machine import await_requests, use_memory
from tests.benchmarks.rivals.sides import (
    RAW_SENDER,
    JavaSide,
    Master,
    TriohaSide,
    open_raw_sender,
    remove,
)
from tests.benchmarks.rivals.works import (
    ALONE_WITHIN_MS,
    BODY_BYTES,
    CATCH_UP_WITHIN_MS,
    FILE_BYTES,
    MEMORY_FOR_LOG,
    Turns,
)
from tests.interop.rocketmq import ALL_VERSIONS, missing_tools

STORING = "DefaultHAClient"
DISPATCHING = "ReputMessageSer"
"""As the kernel has the names of threads: 15 bytes."""
COLUMNS = ("MB/s", "lowest", "highest", "sender", "slave", "storing", "dispatching")


@frozen
class Sender:
    """Who sends, and how."""

    name: str
    master: Master
    sending: Mapping[str, int]
    """Options of a raw sender."""


def raw_options(text: str) -> dict[str, int]:
    """The options of a raw sender from `KIB[xFRAMES[xSEND_KIB[xUNSENT_KIB]]]`."""
    numbers = [int(part) for part in text.split("x")]
    frame_kib, frames, send_kib, unsent_kib = numbers + [1, 1, 0, 0][len(numbers) :]
    return {
        "frame_bytes": frame_kib * 1024,
        "frames_per_call": frames,
        "send_buffer_bytes": send_kib * 1024,
        "unsent_bytes_max": unsent_kib * 1024,
    }


def cpu_s_by_thread(pid: int) -> dict[str, float]:
    """CPU time of each thread of a process so far, by name: those of one name together."""
    found: dict[str, float] = defaultdict(float)
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            found[name] += int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            # The thread has ended meanwhile.
            continue
    return found


def catch_up(sender: Sender, java: JavaSide, folder: Path, *, log_bytes: int) -> dict[str, float]:
    """One catch-up of an empty slave: the figures of `COLUMNS` that one has."""
    driver = sender.master.driver
    driver.resume()
    sender.master.call("alone", millis=ALONE_WITHIN_MS)
    caught_up = driver.submit(
        "catchUp",
        store=sender.master.store,
        slaves=1,
        millis=CATCH_UP_WITHIN_MS,
        sending=dict(sender.sending),
    )
    driver.pause()
    try:
        slaves = java.slaves(folder, ha_port=sender.master.ha_port, number=1, file_bytes=FILE_BYTES)
        with slaves as (slave_pid,):
            await_requests(sender.master.ha_port, 1)
            use_memory(folder.parent, round(MEMORY_FOR_LOG * log_bytes))
            pids = {"sender": driver.pid, "slave": slave_pid}
            before = {side: cpu_s_by_thread(pid) for side, pid in pids.items()}
            driver.resume()
            said = caught_up.result(CATCH_UP_WITHIN_MS / 1000 + 5)
            after = {side: cpu_s_by_thread(pid) for side, pid in pids.items()}
    finally:
        driver.resume()
        remove(folder)
    driver.pause()
    gigabytes = said["bytes"] / 1e9
    used = {side: sum(after[side].values()) - sum(before[side].values()) for side in pids}
    for column, thread in (("storing", STORING), ("dispatching", DISPATCHING)):
        used[column] = after["slave"][thread] - before["slave"].get(thread, 0.0)
    return {
        "MB/s": 1000 * gigabytes / said["seconds"],
        **{column: used_s / gigabytes for column, used_s in used.items()},
    }


def table(figures: Mapping[str, Sequence[Mapping[str, float]]], *, title: str) -> Table:
    """Medians of the rounds of each sender."""
    shown = Table(
        title=title, caption="CPU seconds for each GB; storing and dispatching are threads of the slave"
    )
    shown.add_column("sender")
    for column in COLUMNS:
        shown.add_column(column, justify="right")
    for name, rounds in figures.items():
        speeds = [found["MB/s"] for found in rounds]
        cells = [f"{value:,.0f}" for value in (statistics.median(speeds), min(speeds), max(speeds))]
        cells += [f"{statistics.median(found[column] for found in rounds):.2f}" for column in COLUMNS[3:]]
        shown.add_row(name, *cells)
    return shown


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="that count")
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before them, which do not count")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--raw", default="32,128,1024", help="raw senders, split by commas")
    parser.add_argument("--rocketmq", metavar="VERSION", default=ALL_VERSIONS[-1], choices=ALL_VERSIONS)
    options = parser.parse_args()
    if (missing := missing_tools()) is not None:
        print(f"not measured against RocketMQ: {missing}", file=sys.stderr)
        return
    log_bytes = options.megabytes * 10**6
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="trioha-bench-") as temporary:
        folder = Path(temporary)
        with (
            closing(TriohaSide(folder / "trioha")) as trioha,
            closing(JavaSide(folder / "rocketmq", version=options.rocketmq)) as java,
        ):
            senders = []
            for side in (java, trioha):
                master = side.open_master(folder / f"{side.name}-master", file_bytes=FILE_BYTES)
                filled = master.call("fill", bodyBytes=BODY_BYTES, bytes=log_bytes)
                master.driver.pause()
                senders.append(Sender(f"{side.name}'s master", master, {}))
            log = folder / f"{trioha.name}-master" / "commitlog" / f"{0:020}"
            raw = open_raw_sender(folder / "raw", log, log_bytes=filled["maxOffset"])
            raw.driver.pause()
            senders += [
                Sender(f"{RAW_SENDER}, {text} KiB", raw, raw_options(text)) for text in options.raw.split(",")
            ]
            turns = Turns()
            for number in range(options.warm_up + options.rounds):
                for sender in turns.order(senders):
                    found = catch_up(sender, java, folder / "slave", log_bytes=log_bytes)
                    print(f"{sender.name}: {found['MB/s']:.0f} MB/s", file=sys.stderr)
                    if number >= options.warm_up:
                        figures[sender.name].append(found)
            raw.driver.close()
    shown = table(
        {sender.name: figures[sender.name] for sender in senders}, title=f"a slave of {java.name} catches up"
    )
    Console(width=None if sys.stdout.isatty() else 130).print(shown)


if __name__ == "__main__":
    main()

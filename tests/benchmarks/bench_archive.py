"""Archive and restore of a log, to a folder beside `cp`, and to an S3 server beside `rclone`.

    python tests/benchmarks/bench_archive.py [--gigabytes 0.5] [--rounds 3] [--json] [--folder DIR]
    python tests/benchmarks/bench_archive.py --puts [--rounds 20] [--json]

Each round makes an archive of the same store, restores it, and copies the log there and back with the other
program, all as child processes. Printed are medians over the rounds: seconds, MB/s of the log, CPU seconds of
the process (the server's are not in it), and the greatest private memory (RssAnon, sampled). Half of each
message is random, so that zstd saves about half. `cp` is followed by `sync`, as archives are synced.

The S3 server is moto's, in Python on the same machine, with its objects in files: it limits both sides.
rclone is that on PATH, or that of Debian's package, which is fetched to the cache folder of the user; without
it the S3 part has no other side.

`--puts` measures what archiving costs a node. Two ASYNC_MASTERs, one with `trioha.archiveUrl`, get 256 sends
of 100 bytes in flight in turn, for a second each. Compared are puts for each second of the node's CPU; that
of its archiver, a process with a low priority, is shown beside it, until everything is archived.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import trio
from attrs import asdict, frozen

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.archiver import archived_offset
from tests.benchmarks.bench_monitored import run_load, start_helper, start_node
from tests.benchmarks.bench_recorded import process_cpu_s
from tests.benchmarks.rivals.machine import anonymous_bytes
from tests.s3 import S3Bucket, S3Server, s3_server
from trioha.remoting.client import open_client
from trioha.remoting.status_reader import fetch_status
from trioha.store.commit_log import CommitLog
from trioha.store.messages import Message
from trioha.store.record import Host

FILE_BYTES = 256 << 20
BODY_BYTES = 4096
BODIES = 2_000
SAMPLE_S = 0.01
SERVER_BUFFER_BYTES = 1 << 16
TRIOHA = (sys.executable, "-m", "trioha")
RCLONE_FETCH = """
set -e
cd "$1"
timeout 120 apt-get download -q rclone
dpkg --fsys-tarfile rclone_*.deb | tar -xO ./usr/bin/rclone >rclone
chmod +x rclone
./rclone version >/dev/null
"""


@frozen(kw_only=True)
class Run:
    """One command."""

    what: str
    seconds: float
    cpu_s: float
    private_bytes: int
    """The most that it had at a time."""


def make_store(store: Path, *, log_bytes: int) -> int:
    """A store with a log of about so many bytes; returns its exact end."""
    chance = random.Random(1)
    text = json.dumps({"order": 12345, "state": "paid", "lines": list(range(20))}).encode()
    half = BODY_BYTES // 2
    bodies = [chance.randbytes(half) + (text * (1 + half // len(text)))[:half] for _ in range(BODIES)]
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    log = CommitLog(
        folder, file_bytes=FILE_BYTES, message_bytes_max=4 << 20, store_host=Host.parse("127.0.0.1", 1)
    )
    number = 0
    while log.max_offset < log_bytes:
        log.append(
            Message(
                topic=f"Topic{number % 16}", queue_id=number % 4, body=bodies[number % BODIES], properties=b""
            )
        )
        number += 1
    end = log.max_offset
    log.close()
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text("{}")
    (store / "abort").touch()
    os.sync()
    return end


def measure(what: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Run:
    """Run a command to its end. Raises SystemExit if it fails."""
    began_s = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # rclone ends at once with certificates of its own; the server here has none.
            env={key: value for key, value in os.environ.items() if key != "AWS_CA_BUNDLE"}
            | dict(environment or {}),
        )
        greatest = 0
        ended = threading.Event()

        def sample() -> None:
            nonlocal greatest
            while not ended.wait(SAMPLE_S):
                try:
                    greatest = max(greatest, anonymous_bytes(process.pid))
                except (OSError, AssertionError):
                    return  # it has ended

        sampler = threading.Thread(target=sample)
        sampler.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began_s
        ended.set()
        sampler.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}\n{output.read().decode()}")
    return Run(what=what, seconds=seconds, cpu_s=usage.ru_utime + usage.ru_stime, private_bytes=greatest)


def folder_round(store: Path, work: Path) -> Iterator[Run]:
    """An archive in a folder, and `cp`."""
    url = f"file://{work}/archive"
    yield measure("archive to file://", [*TRIOHA, "archive", str(store), "--to", url])
    yield measure("restore from file://", [*TRIOHA, "restore", url, "--into", str(work / "restored")])
    copy = ["sh", "-c", 'cp -r "$1" "$2" && sync "$2"/*', "sh", str(store / "commitlog"), str(work / "copy")]
    yield measure("cp and sync", copy)


def s3_round(store: Path, work: Path, server: S3Server, rclone: str | None) -> Iterator[Run]:
    """An archive on an S3 server, and `rclone`."""
    bucket: S3Bucket = server.bucket()
    variables = bucket.environment
    yield measure("archive to s3://", [*TRIOHA, "archive", str(store), "--to", bucket.url], variables)
    restored = str(work / "restored-s3")
    yield measure("restore from s3://", [*TRIOHA, "restore", bucket.url, "--into", restored], variables)
    if rclone is None:
        return
    options = ["--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth"]
    options += ["--s3-endpoint", bucket.endpoint, "--s3-region", "us-east-1", "--s3-no-check-bucket"]
    remote = f":s3:{bucket.name}/rclone"
    up = [rclone, "copy", *options, str(store / "commitlog"), remote]
    yield measure("rclone to s3://", up, variables)
    down = [rclone, "copy", *options, remote, str(work / "rclone")]
    yield measure("rclone from s3://", down, variables)


@frozen(kw_only=True)
class PutsRun:
    """All stretches of load on one node."""

    node: str
    puts: int
    seconds: float
    node_cpu_s: float
    archiver_cpu_s: float

    @property
    def puts_per_s(self) -> float:
        """While there was load."""
        return self.puts / self.seconds


def children(pid: int) -> list[int]:
    """Processes that this one has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


async def max_offset(address: str) -> int:
    """Where a node's log ends."""
    async with open_client(address) as client:
        return (await fetch_status(client)).max_offset


def measure_puts(work: Path, *, rounds: int, seconds: float) -> list[PutsRun]:
    """Load two nodes in turn, then wait until the archive has everything."""
    with ExitStack() as processes:
        nodes: dict[str, tuple[int, str, Connection]] = {}
        for name in ("plain", "archived"):
            folder = work / name
            folder.mkdir()
            archive = {"trioha.archiveUrl": f"file://{folder}/archive", "trioha.archiveInterval": 1000}
            node, listen, _ = start_node(
                processes,
                folder,
                "master",
                role="ASYNC_MASTER",
                settings=archive if name == "archived" else {},
            )
            nodes[name] = node.pid, listen, start_helper(processes, run_load, listen)
        for _, _, load in nodes.values():
            load.send(1.0)
            load.recv()
        archivers = {name: children(pid) for name, (pid, _, _) in nodes.items()}
        assert [len(one) for one in archivers.values()] == [0, 1], archivers
        before = {
            name: (process_cpu_s(pid), sum(map(process_cpu_s, archivers[name])))
            for name, (pid, _, _) in nodes.items()
        }
        done = dict.fromkeys(nodes, (0, 0.0))
        for number in range(rounds):
            for name in (*nodes,)[:: 1 if number % 2 else -1]:
                load = nodes[name][2]
                load.send(seconds)
                puts, took_s = load.recv()
                done[name] = done[name][0] + puts, done[name][1] + took_s
        end = trio.run(max_offset, nodes["archived"][1])
        while archived_offset(f"file://{work}/archived/archive") < end:
            time.sleep(0.1)
        return [
            PutsRun(
                node=name,
                puts=done[name][0],
                seconds=done[name][1],
                node_cpu_s=process_cpu_s(pid) - before[name][0],
                archiver_cpu_s=sum(map(process_cpu_s, archivers[name])) - before[name][1],
            )
            for name, (pid, _, _) in nodes.items()
        ]


def print_puts(runs: Sequence[PutsRun]) -> None:
    """The table of `--puts`."""
    print(f"{'':10}{'puts/s':>9}{'us of CPU a put':>17}{'of it the archiver':>20}")
    for run in runs:
        whole_s = run.node_cpu_s + run.archiver_cpu_s
        print(
            f"{run.node:10}{run.puts_per_s:9,.0f}{whole_s / run.puts * 1e6:17.1f}"
            f"{run.archiver_cpu_s / run.puts * 1e6:20.1f}"
        )
    plain, archived = runs
    loss = 1 - (plain.node_cpu_s / plain.puts) / (archived.node_cpu_s / archived.puts)
    print(f"archiving takes {loss:.1%} of the puts that the node's process can answer in a second of CPU")


def find_rclone() -> str | None:
    """rclone of PATH or of the cache, where it is fetched to; None if it cannot be had."""
    if found := shutil.which("rclone"):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trioha-rclone"
    if not (cache / "rclone").exists() and shutil.which("apt-get"):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            done = subprocess.run(
                ["bash", "-c", RCLONE_FETCH, "sh", folder], check=False, capture_output=True
            )
            if done.returncode == 0:
                (Path(folder) / "rclone").rename(cache / "rclone")
    return str(cache / "rclone") if (cache / "rclone").exists() else None


@contextmanager
def server_with_files() -> Iterator[S3Server]:
    """An S3 server whose objects are in files."""
    os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = str(SERVER_BUFFER_BYTES)
    with s3_server() as server:
        yield server


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of the log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the disk is that is measured")
    parser.add_argument("--no-s3", action="store_true", help="only the folder")
    parser.add_argument("--puts", action="store_true", help="what archiving costs a node, instead")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.puts:
        with tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=args.folder) as name:
            of_nodes = measure_puts(Path(name), rounds=args.rounds, seconds=1.0)
        if args.json:
            print(json.dumps([asdict(run) for run in of_nodes]))
        else:
            print_puts(of_nodes)
        return
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=args.folder) as name:
        store = Path(name) / "store"
        log_bytes = make_store(store, log_bytes=round(args.gigabytes * 1e9))
        rclone = None if args.no_s3 else find_rclone()
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory(dir=name) as work:
                runs += folder_round(store, Path(work))
            if not args.no_s3:
                with tempfile.TemporaryDirectory(dir=name) as work, server_with_files() as server:
                    runs += s3_round(store, Path(work), server, rclone)
    if args.json:
        print(json.dumps({"logBytes": log_bytes, "runs": [asdict(run) for run in runs]}))
        return
    print(f"a log of {log_bytes / 1e9:.2f} GB, medians of {args.rounds} rounds")
    print(f"{'':22}{'s':>8}{'MB/s':>8}{'CPU s':>8}{'private MiB':>13}")
    for what in dict.fromkeys(run.what for run in runs):
        these = [run for run in runs if run.what == what]
        seconds, cpu_s = (
            statistics.median(getattr(run, key) for run in these) for key in ("seconds", "cpu_s")
        )
        most = max(run.private_bytes for run in these) / (1 << 20)
        print(f"{what:22}{seconds:8.2f}{log_bytes / seconds / 1e6:8.0f}{cpu_s:8.2f}{most:13.1f}")
    if rclone is None and not args.no_s3:
        print("no rclone: it cannot be fetched here")


if __name__ == "__main__":
    main()

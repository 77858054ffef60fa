"""The archive of one node of a cluster: written while the run goes on, restored and compared at its end."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from tests.archiver import ArchiverProcess
from tests.interop.logs import log_files, read_log
from tests.s3 import S3Bucket, s3_server
from tests.s3_proxy import s3_proxy
from trioha.metadata.pretty_json import parse_pretty

COMMAND_WITHIN_S: Final = 120.0
FAULTY_REQUESTS: Final = 0.1
OFFSET_FILES: Final = ("consumerOffset.json", "delayOffset.json")
CONFIG_FILES: Final = ("topics.json", "subscriptionGroup.json", *OFFSET_FILES)


@frozen(kw_only=True)
class ArchivePlan:
    """Whose store is archived, and where to."""

    node: str
    target: Literal["file", "s3"]
    """A folder, or an S3 server that one request in ten fails at."""
    kills_at_s: tuple[float, ...]
    """When the archiver is killed and started again, in seconds since the load began."""
    seed: int


def draw_archive(seed: int, nodes: Sequence[str], *, last_kill_s: float) -> ArchivePlan | None:
    """What is archived in the run of a seed: in half of all runs one node. Drawn apart from the rest."""
    chance = random.Random(f"archive {seed}")
    target = chance.choice((None, None, "file", "s3"))
    if target is None:
        return None
    return ArchivePlan(
        node=chance.choice(nodes),
        target=target,
        kills_at_s=tuple(sorted(chance.uniform(0.5, last_kill_s) for _ in range(chance.randint(0, 2)))),
        seed=seed,
    )


class NodeArchive:
    """An archiver beside a node's store, killed now and then."""

    def __init__(
        self, plan: ArchivePlan, *, store: Path, folder: Path, program: tuple[str, ...] = ()
    ) -> None:
        """`program`: what runs in place of `trioha`, one of `tests.faults.planted`."""
        self._plan = plan
        self._store = store
        self._folder = folder
        self._program = program or (sys.executable, "-m", "trioha")
        self._stack = ExitStack()
        self._environment: dict[str, str] = {}
        self._url = f"file://{folder}/archive"
        self._archiver: ArchiverProcess | None = None
        if plan.target == "s3":
            server = self._stack.enter_context(s3_server())
            proxy = self._stack.enter_context(s3_proxy(server.port))
            bucket = S3Bucket(name=server.make_bucket(), endpoint=proxy.endpoint)
            self._environment = bucket.environment
            self._url = bucket.url
            proxy.strike_at_random(seed=plan.seed, share=FAULTY_REQUESTS)

    @property
    def log_file(self) -> Path:
        return self._folder / "archiver.log"

    def start(self) -> None:
        """Begin to archive, or go on with it."""
        self._archiver = ArchiverProcess(
            self._store,
            self._url,
            log_file=self.log_file,
            interval="0.2s",
            program=self._program,
            environment=self._environment,
        )

    def restart(self) -> None:
        self._expect_running(self._archiver)
        self._archiver.kill()
        self.start()

    def finish(self, *, end_offset: int, file_bytes: int) -> list[str]:
        """After the node's clean stop: archive the rest, restore everything, and compare. What differs."""
        if self._archiver is not None:
            self._expect_running(self._archiver)
            self._archiver.stop()
        steps = self._run(*self._program, "archive", str(self._store), "--to", self._url, "--json")
        archived = json.loads(steps.splitlines()[-1])["archivedOffset"]
        if archived != end_offset:
            return [f"{self._url} ends at {archived}, the log at {end_offset}"]
        restored = self._folder / "restored"
        said = self._run(
            sys.executable, "-m", "trioha", "restore", self._url, "--into", str(restored), "--json"
        )
        document = json.loads(said)
        return [
            *log_differences(
                restored,
                self._store,
                start=document["firstOffset"],
                end=document["endOffset"],
                expected_end=end_offset,
                file_bytes=file_bytes,
            ),
            *config_differences(restored, self._store, clamped=document["offsetsClamped"]),
        ]

    def close(self) -> None:
        try:
            if self._archiver is not None:
                self._archiver.kill()
        finally:
            self._stack.close()

    def _expect_running(self, archiver: ArchiverProcess) -> None:
        assert archiver.is_running, f"the archiver has ended by itself\n{archiver.log()}"

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_WITHIN_S,
            check=False,
            env={**os.environ, **self._environment},
        )
        assert done.returncode == 0, f"{' '.join(command[3:])} ended with {done.returncode}\n{done.stderr}"
        return done.stdout


def log_differences(
    restored: Path, store: Path, *, start: int, end: int, expected_end: int, file_bytes: int
) -> list[str]:
    """Where a restored log is not that of the store, byte by byte; nothing may be beyond its end."""
    first = min(log_files(store))
    if (start, end) != (first, expected_end):
        return [f"{restored} has offsets {start} to {end}, {store} has {first} to {expected_end}"]
    want = read_log(store, start=start, end=end, file_bytes=file_bytes)
    have = read_log(restored, start=start, end=end, file_bytes=file_bytes)
    differences = []
    if have != want:
        at = next(index for index, pair in enumerate(zip(have, want, strict=True)) if pair[0] != pair[1])
        differences.append(f"{restored} differs from {store} from offset {start + at} on")
    files = log_files(restored)
    whole = read_log(restored, start=end, end=max(files) + file_bytes, file_bytes=file_bytes)
    if any(whole):
        differences.append(f"{restored} has bytes beyond offset {end}")
    return differences


def config_differences(restored: Path, store: Path, *, clamped: int) -> list[str]:
    """Which config files say something else; `clamped` offsets, beyond their queues' ends, are lower."""
    differences, lowered = [], 0
    for name in CONFIG_FILES:
        found = _parsed(restored / "config" / name)
        lower = _lowered(found, _parsed(store / "config" / name), are_offsets=name in OFFSET_FILES)
        if lower is None:
            differences.append(f"{restored / 'config' / name} is not that of {store}")
        lowered += lower or 0
    if not differences and lowered != clamped:
        differences.append(f"{restored} has {lowered} offsets that are lower than in {store}, not {clamped}")
    return differences


def _lowered(restored: object, stored: object, *, are_offsets: bool) -> int | None:
    """How many numbers of a document are lower than before; None if it differs in anything else."""
    if restored == stored:
        return 0
    if isinstance(restored, dict) and isinstance(stored, dict) and restored.keys() == stored.keys():
        lowered = [_lowered(restored[key], stored[key], are_offsets=are_offsets) for key in stored]
        return None if None in lowered else sum(filter(None, lowered))
    is_lower = isinstance(restored, int) and isinstance(stored, int) and restored < stored
    return 1 if are_offsets and is_lower else None


def _parsed(path: Path) -> object:
    return parse_pretty(path.read_text()) if path.exists() else None

"""The shell blocks of a page, run as they stand there: one after the other in one shell."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.processes import DIE_WITH_PARENT, environment_of_ours
from tests.terminals import read_until, terminal
from tests.waiting import wait_until

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""Blocks of other languages, and without one, are samples."""
NAME = re.compile(r"^((?:export )?(\w+)=)([^$\s]+)(?=\s|$)", re.MULTILINE)
"""A line of a page's first block whose value an installation chooses; values of others are derived."""
BLOCK_WITHIN_S = 240.0
"""For a block: JVMs start and stop, and a copy of offsets comes each 10 s."""


def blocks_of(page: str) -> list[str]:
    """The shell blocks of a page of `docs`."""
    return BLOCK.findall((DOCS / page).read_text())


def with_values(names: str, values: Mapping[str, object]) -> str:
    """The block of names with these values, each of which it must have, and no other that is not derived."""
    assert {name for _, name, _ in NAME.findall(names)} == set(values)
    return NAME.sub(lambda found: found[1] + shlex.quote(str(values[found[2]])), names)


class Shell:
    """One shell in which the page's blocks run after each other, and what they print."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._log_path = folder / "shell.log"
        self._names = folder / "names.sh"
        self._number = 0
        self.environment = {**environment_of_ours(), "PATH": f"{programs}:{os.environ['PATH']}"}
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-e"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=self.environment,
                start_new_session=True,
            )

    def name(self, block: str) -> None:
        """Set names of a page, beside those of the pages before it."""
        with self._names.open("a") as names:
            names.write(block)
        self.run(block)

    def run(self, block: str) -> str:
        """Run a block to its end, in which every command must succeed; what it printed."""
        self._number += 1
        script, done = (self._folder / f"block-{self._number}.{end}" for end in ("sh", "done"))
        script.write_text(block)
        printed = len(self.log())
        assert self._process.stdin is not None
        self._process.stdin.write(f". {script} < /dev/null; touch {done}\n".encode())
        self._process.stdin.flush()
        try:
            wait_until(
                lambda: done.exists() or self._process.poll() is not None, block, within_s=BLOCK_WITHIN_S
            )
            assert done.exists(), f"a command failed in:\n{block}"
        except AssertionError as problem:
            raise AssertionError(f"{problem}\n{self.log()[printed:]}\n{self._logs()}") from None
        return self.log()[printed:]

    def run_on_terminal(self, block: str, *steps: tuple[bytes, bytes]) -> None:
        """Run a block on a terminal, press a key as soon as it shows what stands before it, step by step, and
        wait until it has ended well."""
        command = ["bash", "-e", "-c", f". {self._names}\n{block}"]
        with terminal(command, environment=self.environment) as (process, descriptor):
            for wanted, key in steps:
                read_until(descriptor, wanted, timeout_s=60)
                os.write(descriptor, key)
            read_until(descriptor, None, timeout_s=60)
            assert process.wait(60) == 0

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def _logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in (self._folder / "logs").glob("*")
        )

    def close(self) -> None:
        """End it and all that it has started."""
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)


@contextmanager
def shell(folder: Path, programs: Path) -> Iterator[Shell]:
    started = Shell(folder, programs)
    try:
        yield started
    finally:
        started.close()


def program(path: Path, lines: str) -> None:
    """An executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def trioha_program(folder: Path) -> None:
    """`trioha` of this checkout, and its `python`, for the PATH of a shell."""
    python = shlex.join([*DIE_WITH_PARENT, sys.executable])
    program(folder / "trioha", f'exec {python} -m trioha "$@"')
    program(folder / "python", f'exec {python} "$@"')


@contextmanager
def pair_of_start(folder: Path) -> Iterator[tuple[Shell, list[str]]]:
    """The pair of docs/start.md with free ports, in `folder / "pair"`; and the blocks that follow there."""
    trioha_program(folder / "bin")
    names, start, *rest = blocks_of("start.md")
    ports = {name: free_port() for name in ("MASTER_PORT", "HA_PORT", "SLAVE_PORT", "NAMES_PORT")}
    with shell(folder, folder / "bin") as run:
        run.name(
            with_values(
                names.replace("$HOME/trioha-start", "/srv/trioha-start"), {"FOLDER": folder / "pair", **ports}
            )
        )
        run.run(start)
        yield run, rest

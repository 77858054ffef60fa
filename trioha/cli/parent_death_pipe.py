"""Processes that end with the one that started them, even if that is killed with SIGKILL.

A `ParentDeathPipe` is a pipe whose write end only the starting process holds. Each process started on it
(`python -m trioha.cli.parent_death_pipe FD COMMAND ...`) is the `trioha` command with one more thread, which
reads the pipe. At its end of file the starting process has ended, and the thread kills the process and the
process group that it leads, with its children (a JVM). Unlike a parent-death signal this works on every POSIX
system and does not depend on which thread started the process.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self

import trio

from trioha.cli import main

STOP_TIMEOUT_S: Final = 5.0
"""How long a process may take to stop after SIGTERM; then SIGKILL ends it."""


class ParentDeathPipe:
    """The write end, in the starting process. Leaving the context kills the processes that still run."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._write_fd)
        os.close(self._read_fd)

    async def start(self, *arguments: str | Path, own_group: bool = True, **options: Any) -> trio.Process:
        """Start `trioha ARGUMENTS`; `options` are those of `subprocess.Popen`.

        With `own_group` it leads a process group of its own, so that Ctrl-C on the terminal does not reach it
        and `stop` ends its children, too. The caller must call `stop`.
        """
        command = [
            sys.executable,
            "-m",
            "trioha.cli.parent_death_pipe",
            str(self._read_fd),
            *map(str, arguments),
        ]
        return await trio.lowlevel.open_process(
            command, pass_fds=(self._read_fd,), start_new_session=own_group, **options
        )


async def stop(process: trio.Process, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
    """Stop `process` with SIGTERM, after `timeout_s` with SIGKILL, and its group with it; its return code.

    Cancellation neither ends this early nor leaves the process running.
    """
    if process.poll() is None:
        process.terminate()
        with trio.move_on_after(timeout_s, shield=True):
            await process.wait()
    if process.poll() is None:
        process.kill()
    end_group_of(process.pid)
    with trio.CancelScope(shield=True):
        await process.wait()
    code = process.returncode
    assert code is not None, "wait() has returned"
    return code


def end_group_of(pid: int) -> None:
    """Kill the remaining processes of the group that `pid` leads or led, if any."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _end_with(read_fd: int) -> None:
    while os.read(read_fd, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.exit(main(sys.argv[2:]))

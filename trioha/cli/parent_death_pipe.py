"""Processes that end with the one that started them, even if that is killed with SIGKILL.

A `ParentDeathPipe` is a pipe whose write end only the starting process holds. Each process started on it
(`python -m trioha.cli.parent_death_pipe FD COMMAND ...`) is the `trioha` command with one more thread, which
reads the pipe: its end of file means that the other side is gone, however it went, and ends the process and
the process group that it leads, children of its own (a JVM) included. Unlike a parent-death signal this works
on every POSIX system and does not depend on which thread started the process.
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
    """The starting side: what holds on to processes. Leaving the context lets all of them go down."""

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
        and `stop` ends its children, too. Whoever starts a process calls `stop`, whatever happens.
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
    assert code is not None, "it has been waited for"
    return code


def end_group_of(pid: int) -> None:
    """Kill what is left of the process group that `pid` leads or led; nothing if it never led one."""
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

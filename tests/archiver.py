"""`trioha archive --follow` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.processes import DIE_WITH_PARENT
from trioha.archive.heads import read_head
from trioha.archive.objects import ObjectFolder

END_WITHIN_S = 90.0


class ArchiverProcess:
    """Archives a store until it is stopped or killed; its output is in a file."""

    def __init__(
        self,
        store: Path,
        url: str,
        *,
        log_file: Path,
        interval: str = "1s",
        program: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        more: tuple[str, ...] = (),
    ) -> None:
        """`program`: another one in place of `trioha`; `environment`: variables besides the present ones;
        `more`: arguments."""
        self._log_file = log_file
        with log_file.open("ab") as log:
            self._log_bytes = log.tell()
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    *(program or (sys.executable, "-m", "trioha")),
                    *("archive", str(store), "--to", url, "--follow", "--interval", interval, *more),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait(END_WITHIN_S)

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        return self._process.wait(END_WITHIN_S)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it cleanly. Raises AssertionError if it does not end with 0.

        One that has said nothing yet may still be importing, and end of the signal.
        """
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(END_WITHIN_S)
        is_starting = self._log_file.stat().st_size == self._log_bytes and code == -signal.SIGTERM
        assert code == 0 or is_starting, f"the archiver ended with {code}:\n{self.log()}"

    def log(self) -> str:
        """What it wrote."""
        return self._log_file.read_text(errors="replace")


def wait_archived(archiver: ArchiverProcess, url: str, offset: int, *, within_s: float = 90.0) -> None:
    """Wait until the archive reaches so far."""
    deadline_s = time.monotonic() + within_s
    while (end := archived_offset(url)) < offset:
        assert archiver.is_running, f"the archiver has ended:\n{archiver.log()}"
        assert time.monotonic() < deadline_s, f"archived up to {end}, not {offset}:\n{archiver.log()}"
        time.sleep(0.1)
    assert end == offset, f"archived up to {end}, beyond {offset}"


def archived_offset(url: str) -> int:
    """Where the archive ends; -1 if there is none."""
    head = read_head(ObjectFolder.open(url, create=True))
    return -1 if head is None or not head.generations else head.generations[-1].end_offset

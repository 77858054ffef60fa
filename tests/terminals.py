"""A process on a pseudo terminal, and what it writes there."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def terminal(
    command: Sequence[str], *, columns: int = 100, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a pseudo terminal of 30 lines, until the block ends; and our end of the terminal.

    The terminal does not control the process's session.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        with suppress(OSError):  # a test may have closed it
            os.close(ours)


def read_until(descriptor: int, wanted: bytes | None, *, timeout_s: float = 20.0) -> bytes:
    """What the terminal got until `wanted` appeared, or until its other end closed if that is None."""
    deadline = time.monotonic() + timeout_s
    seen = b""
    while wanted is None or wanted not in seen:
        # Not select(), which knows no descriptor above 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"{wanted!r} did not appear in: {seen[-2000:]!r}")
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # Linux: the other end of the terminal is closed
            data = b""
        if not data:
            assert wanted is None, f"ended before {wanted!r}: {seen[-2000:]!r}"
            return seen
        seen += data
    return seen

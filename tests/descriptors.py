"""Descriptors of this process: what a test leaves open, and what is to be closed after it."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

FOLDER = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
PATH_BYTES_MAX = 1024
"""Longest path that F_GETPATH of macOS gives."""
TYPE_MASK = 0o170000

Descriptors = dict[int, tuple[int, int, int]]
"""Number to device, inode and file type: the same number for another file is another descriptor."""


class Closeable(Protocol):
    """Anything with `close`, which may be called twice."""

    def close(self) -> object:
        """Give up what it holds."""
        ...


C = TypeVar("C", bound=Closeable)

_after_test: list[ExitStack] = []


def close_after_test(resource: C) -> C:
    """Close `resource` at the end of the innermost `resources_closed`, else of the test; returns it.

    For what the helpers of tests open.
    """
    release_after_test(resource.close)
    return resource


def release_after_test(release: Callable[[], object]) -> None:
    """As `close_after_test`, for what has another method for it."""
    assert _after_test, "no test is running: a fixture of a module or a session needs resources_closed"
    _after_test[-1].callback(release)


@contextmanager
def resources_closed() -> Iterator[None]:
    """Closes what is given to `close_after_test` inside of it, the newest first.

    Around each test there is one. A test that opens the same many times over has one of its own around each
    time, as context manager or decorator; so has a fixture of a module or a session.
    """
    with ExitStack() as stack:
        _after_test.append(stack)
        try:
            yield
        finally:
            _after_test.pop()


def open_descriptors() -> Descriptors:
    """All that this process has open. Costs about 2 us for each descriptor."""
    found = {}
    for name in os.listdir(FOLDER):  # noqa: PTH208 - called twice for each test
        try:
            status = os.fstat(int(name))
        except OSError:
            # The listing's own descriptor, closed by now.
            continue
        found[int(name)] = (status.st_dev, status.st_ino, status.st_mode & TYPE_MASK)
    return found


def left_open(before: Descriptors) -> list[str]:
    """One line for each descriptor that is open now and was not `before`; empty if there is none.

    Those that the garbage collector closes are named, too: they were in a reference cycle and nothing closed
    them. The collector runs only where there is a difference.
    """
    after = open_descriptors()
    if after.keys() <= before.keys() and all(before[fd] == identity for fd, identity in after.items()):
        return []
    opened = {fd: _path(fd) for fd, identity in after.items() if before.get(fd) != identity}
    gc.collect()
    still = open_descriptors()
    return [
        f"{fd}: {path}" + ("" if still.get(fd) == after[fd] else " (closed by the garbage collector only)")
        for fd, path in sorted(opened.items())
    ]


def _path(fd: int) -> str:
    try:
        if sys.platform == "darwin":
            return fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(PATH_BYTES_MAX)).rstrip(b"\0").decode()
        return str(Path(FOLDER, str(fd)).readlink())
    except OSError as error:
        return f"a descriptor without a path ({error.strerror})"

"""A node that dies at a call of its choice: `python -m tests.faults.controlled.dying DISK FILE ARGUMENTS`.

It is `trioha ARGUMENTS` on a disk with the faults of DISK (`tests.faults.disks`), whose process kills itself
(SIGKILL) as FILE says: `cut 3` before the third call that changes something on the disk while the log is cut,
`role 2` before the second one while the node prepares for another role. Without the file, or with another
word, it lives. The file is removed when the node dies of it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attrs import define

CUT = "cut"
ROLE = "role"
_CHANGES = (
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "mkdir",
    "posix_fallocate",
    "pwrite",
    "rename",
    "replace",
    "unlink",
)
"""Functions of `os` that change what is on a disk; `pathlib` calls these, too."""


@define
class Death:
    """Counts calls while something goes on."""

    file: Path
    doing: str | None = None
    left: int = 0

    def begin(self, what: str) -> None:
        """From now on calls count, if the file names `what`."""
        try:
            word, _, number = self.file.read_text().partition(" ")
        except FileNotFoundError:
            return
        if word == what:
            self.doing, self.left = what, int(number)

    def end(self) -> None:
        self.doing = None

    def reach(self) -> None:
        """A call is about to be made."""
        if self.doing is None:
            return
        self.left -= 1
        if self.left <= 0:
            self.doing = None  # also for the next call
            try:
                self.file.unlink()
            except FileNotFoundError:
                return  # disarmed meanwhile
            os.kill(os.getpid(), signal.SIGKILL)


def install(file: Path) -> None:
    from trioha.node import role_changes
    from trioha.store.cutting import Cutter
    from trioha.store.message_store import MessageStore

    death = Death(file)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            death.reach()
            return real(*arguments, **options)

        return call

    def within(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            death.begin(what)
            try:
                return real(*arguments, **options)
            finally:
                death.end()

        return call

    def within_steps(steps: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def call(*arguments: Any) -> Iterator[Any]:
            death.begin(CUT)
            try:
                yield from steps(*arguments)
            finally:
                death.end()

        return call

    for name in _CHANGES:
        if hasattr(os, name):  # not on every platform
            setattr(os, name, counted(getattr(os, name)))
    for owner, name, what in (
        (MessageStore, "take_role", ROLE),
        (role_changes, "take_epoch", ROLE),
    ):
        setattr(owner, name, within(what, getattr(owner, name)))
    setattr(Cutter, "steps", within_steps(Cutter.steps))  # noqa: B010 - a method is replaced


def main() -> int:
    """Run `trioha` with this death before it, on a disk with faults (`tests.faults.disks`)."""
    from tests.faults import disks

    disks.install(Path(sys.argv.pop(1)))
    install(Path(sys.argv.pop(1)))
    from trioha.cli import main as trioha

    return trioha()


if __name__ == "__main__":
    sys.exit(main())

"""The file of the rules of access control, and its changes.

Theory of operation. Every `CHECK_INTERVAL_S` the file's identity (inode, size, time of its last write) is
compared with that of the rules in use. A file is read when it has changed and was the same in two checks one
after the other, so that a file that is just being written is not read. A file that cannot be used is
reported once; the rules stay as they were until it changes again. All calls of the file system are made in
worker threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog
import trio
from attrs import frozen

from trioha.broker.acl_rules import AclRules, parse_acl
from trioha.config.yaml_file import read_file
from trioha.errors import ConfigError
from trioha.net.threads import run_in_thread

log = structlog.get_logger(__name__)

CHECK_INTERVAL_S: Final = 0.5
"""As RocketMQ's."""

InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call; tests replace it."""


@frozen
class FileIdentity:
    """Changes with each change of a file."""

    inode: int = 0
    size_bytes: int = 0
    modified_ns: int = 0
    error: str | None = None
    """Why there is no file."""

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        """Of the file that is there now. Blocks."""
        try:
            found = path.stat()
        except OSError as error:
            return cls(error=error.strerror)
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


def load_acl(path: Path) -> AclRules:
    """The rules of a file. Blocks. Raises ConfigError."""
    return parse_acl(read_file(path), file=path)


class AclFile:
    """Keeps the rules in use those of the file; made by `open`."""

    def __init__(self, path: Path, rules: AclRules, identity: FileIdentity, *, in_thread: InThread) -> None:
        self._path = path
        self.rules = rules
        """As they were read last."""
        self._identity = identity
        self._in_thread = in_thread

    @classmethod
    async def open(cls, path: Path, *, in_thread: InThread | None = None) -> AclFile:
        """Read the file. Raises ConfigError."""
        in_thread = in_thread or partial(run_in_thread, abandon_on_cancel=True)
        # First the identity: a change during the reading must be noticed later.
        identity = await in_thread(partial(FileIdentity.of, path))
        return cls(path, await in_thread(partial(load_acl, path)), identity, in_thread=in_thread)

    async def run(self) -> None:
        """Read the file again whenever it has changed, until cancelled."""
        last = self._identity
        while True:
            await trio.sleep(CHECK_INTERVAL_S)
            now = await self._in_thread(partial(FileIdentity.of, self._path))
            if now == last != self._identity:
                self._identity = now
                await self._reload()
            last = now

    async def _reload(self) -> None:
        try:
            self.rules = await self._in_thread(partial(load_acl, self._path))
        except ConfigError as error:
            log.error(f"the rules of access control stay as they were: {error}")
            return
        log.info(
            "the rules of access control have changed",
            file=str(self._path),
            accounts=len(self.rules.accounts),
        )

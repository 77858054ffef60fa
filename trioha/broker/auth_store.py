"""The users and access control lists of a node: their file, and its changes.

The file is `config/triohaAuth.json` in the store, for its owner alone: passwords are in it in clear, as
signatures need them. It is read at the start and replaced as a whole at each change, in worker threads. What
requests see changes when the file is on disk, so that a change that was answered is there after a crash.
"""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import structlog
import trio

from trioha.auth.model import User
from trioha.auth.stored import FILE_NAME, decode_file, encode_file
from trioha.auth.tables import AuthTables
from trioha.errors import StoreError
from trioha.metadata.metadata_store import FOLDER
from trioha.net.threads import run_in_thread
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.store.atomic_file import load_file, replace_file

log = structlog.get_logger(__name__)

FILE_MODE: Final = 0o600

InThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a blocking call; tests replace it."""
Change: TypeAlias = Callable[[AuthTables], AuthTables]


def auth_file(store: Path) -> Path:
    """The file of the store with this root."""
    return store / FOLDER / FILE_NAME


def read_tables(path: Path) -> AuthTables | None:
    """The tables of a file, or of its `.bak` where that is damaged; None if there is neither. Blocks.

    Raises StoreError.
    """
    try:
        return load_file(path, decode_file)
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise StoreError(
            f"has users that cannot be used: {error}",
            path=path,
            hint="put back a copy of the file, or remove it and its .bak to begin without users",
        ) from None


def write_tables(path: Path, tables: AuthTables) -> None:
    """Replace the file. Blocks. Raises OSError."""
    replace_file(path, encode_file(tables), mode=FILE_MODE)


class AuthStore:
    """The tables in use; made by `open`."""

    def __init__(self, path: Path, tables: AuthTables, *, in_thread: InThread) -> None:
        self._path = path
        self.tables = tables
        """As they are on disk."""
        self._in_thread = in_thread
        self._lock = trio.Lock()

    @classmethod
    async def open(cls, path: Path, first: Change, *, in_thread: InThread = run_in_thread) -> AuthStore:
        """Read the file, and make the change `first`: users that the configuration wants to be there.

        Raises StoreError if the file cannot be used or written.
        """
        tables = await in_thread(partial(read_tables, path))
        await in_thread(partial(_close_to_others, path))
        store = cls(path, tables or AuthTables(), in_thread=in_thread)
        changed = first(store.tables)
        if changed != store.tables:
            try:
                await store._write(changed)
            except OSError as error:
                raise StoreError(f"cannot be written: {error.strerror}", path=path) from error
        return store

    async def change(self, change: Change) -> None:
        """Make a change, and wait until it is on disk.

        Cancelled, it is on disk and in use, or neither. Raises BadRequestError if the change is refused or
        cannot be written; the tables are the old ones then.
        """
        async with self._lock:
            changed = change(self.tables)
            if changed == self.tables:
                return
            with trio.CancelScope(shield=True):
                try:
                    await self._write(changed)
                except OSError as error:
                    reason = f"users cannot be written: {error.strerror}"
                    log.error(reason, path=str(self._path))
                    raise BadRequestError(reason, code=ResponseCode.SYSTEM_ERROR) from error

    async def _write(self, tables: AuthTables) -> None:
        await self._in_thread(partial(write_tables, self._path, tables))
        self.tables = tables


def with_users(users: Iterable[User], tables: AuthTables) -> AuthTables:
    """With those of `users` that are not there; those that are keep their passwords."""
    missing = {user.name: user for user in users if user.name not in tables.users}
    return AuthTables({**tables.users, **missing}, tables.acls) if missing else tables


def _close_to_others(path: Path) -> None:
    """Take from all others what they may do with the file."""
    try:
        mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            path.chmod(FILE_MODE)
            log.warning("the file of users could be read by others; it is closed to them", path=str(path))
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"cannot be closed to others: {error.strerror}", path=path) from error

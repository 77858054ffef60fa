"""`trioha auth`: users and access control lists, from a store to a broker, and between stores."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import Parameter

from trioha.auth.tables import AuthTables
from trioha.broker.auth_store import auth_file, read_tables, write_tables
from trioha.broker.rocksdb_users import locked, read_rocksdb, write_rocksdb
from trioha.broker.user_push import Pushed, push
from trioha.cli.console import out, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.errors import ConfigError, StoreError
from trioha.remoting.address import parse_address
from trioha.remoting.client import ClientSecurity, open_client
from trioha.unit_texts import counted


class Action(StrEnum):
    """What to do."""

    PUSH = "push"
    EXPORT = "export"
    IMPORT = "import"


def auth(
    action: Action,
    target: Annotated[str, Parameter(name="TARGET")],
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    replace: bool = False,
    json: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Move users and access control lists of RocketMQ 5 (docs/auth.md).

    `push HOST:PORT --from STORE` sends those of a trioha store to a running broker, trioha's or RocketMQ's.
    `export STORE` writes them as a RocketMQ broker keeps them, into the stopped store itself, and `import
    STORE` reads them as a RocketMQ broker has kept them there.

    Parameters
    ----------
    action
        push, export or import.
    target
        Of push a listen address; else a storePathRootDir.
    from_
        Of push: the storePathRootDir with the users.
    replace
        Replace users that export or import find where they write.
    json
        Print one JSON object.
    """
    if action is not Action.PUSH:
        if from_ is not None:
            raise ConfigError("is for push alone", key="--from")
        moved = _export(Path(target), replace) if action is Action.EXPORT else _import(Path(target), replace)
        _print({"users": len(moved.users), "acls": len(moved.acls)}, f"{action}ed", target, as_json=json)
        return 0
    if from_ is None:
        raise ConfigError("is missing", key="--from", hint="name the storePathRootDir with the users")
    address = str(parse_address(target))
    pushed = trio.run(_push, address, _tables(from_), security.read())
    _print(
        {
            "users": pushed.users_made + pushed.users_changed,
            "acls": pushed.acls,
            "usersMade": pushed.users_made,
            "usersChanged": pushed.users_changed,
        },
        "pushed",
        address,
        as_json=json,
    )
    return 0


async def _push(address: str, tables: AuthTables, security: ClientSecurity) -> Pushed:
    async with open_client(address, security=security) as client:
        return await push(client, tables)


def _export(store: Path, replace: bool) -> AuthTables:
    with locked(store):
        tables = _tables(store)
        write_rocksdb(store, tables, replace=replace)
    return tables


def _import(store: Path, replace: bool) -> AuthTables:
    path = auth_file(store)
    with locked(store):
        if path.exists() and not replace:
            raise StoreError("is there already", path=path, hint="--replace replaces it")
        tables = read_rocksdb(store)
        try:
            write_tables(path, tables)
        except OSError as error:
            raise StoreError(f"cannot be written: {error.strerror}", path=path) from error
    return tables


def _tables(store: Path) -> AuthTables:
    tables = read_tables(auth_file(store))
    if tables is None:
        raise StoreError("is not there: the store has no users", path=auth_file(store))
    return tables


def _print(numbers: dict[str, int], what: str, where: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"ok": True, **numbers})
        return
    users, acls = counted(numbers["users"], "user"), counted(numbers["acls"], "access control list")
    out().print(f"{what} {users} and {acls}: {where}")

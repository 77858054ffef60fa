"""The key-value table of a name server, and its file, RocketMQ's kvConfig.json.

The file is `{"configTable":{NAMESPACE:{KEY:VALUE}}}`. RocketMQ itself knows one namespace,
ORDER_TOPIC_CONFIG: queues of ordered topics by topic, as `broker:queues;broker:queues`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio

from trioha.errors import RemoteProtocolError, StoreError
from trioha.metadata.registration import check_name
from trioha.net.threads import run_in_thread
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.remoting.fastjson import as_text, parse_json
from trioha.store.atomic_file import load_file, replace_file

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
TABLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the whole table as it is in its file."""
ENTRIES_MAX: Final = 20_000
"""Keys of all namespaces, and namespaces: each change writes all of them."""

Table = Mapping[str, Mapping[str, str]]


class KvConfig:
    """A table that is on disk before a change of it is answered."""

    def __init__(self, path: Path, table: Table) -> None:
        self._path = path
        self._table = table
        self._changing = trio.Lock()

    @classmethod
    def load(cls, path: Path) -> KvConfig:
        """The table of the file; empty if there is none. Blocks. Raises StoreError."""
        try:
            table = load_file(path, _parse)
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
        except ValueError as error:
            raise StoreError(
                f"is damaged: {error}", path=path, hint="move it away to begin with an empty table"
            ) from error
        return cls(path, {} if table is None else table)

    def get(self, namespace: str, key: str) -> str | None:
        """The value; None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Keys and values; None if nothing was ever put there."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises BadRequestError if it is too large or the disk refuses it."""
        try:
            check_name(namespace, "namespace")
            check_name(key, "key")
            value.encode()
        except (RemoteProtocolError, UnicodeEncodeError) as error:
            raise BadRequestError(str(error)) from None
        async with self._changing:
            known = self._table.get(namespace)
            if known is None or key not in known:
                entries = sum(map(len, self._table.values())) + len(self._table)
                if entries + 1 + (known is None) > ENTRIES_MAX:
                    raise BadRequestError(
                        f"this name server takes {ENTRIES_MAX} key-value entries and namespaces, "
                        f"and has {entries}"
                    )
            await self._replace({**self._table, namespace: {**(known or {}), key: value}})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if there is one; its namespace stays. Raises BadRequestError."""
        async with self._changing:
            members = dict(self._table.get(namespace, {}))
            if members.pop(key, None) is not None:
                await self._replace({**self._table, namespace: members})

    async def _replace(self, table: Table) -> None:
        """Put `table` on disk, then use it. Cancelled, it may be on disk and is not used."""

        def write() -> None:
            data = json.dumps({"configTable": table}, separators=(",", ":")).encode()
            if len(data) > TABLE_BYTES_MAX:
                raise BadRequestError(
                    f"this name server takes {TABLE_BYTES_MAX} bytes of key-value entries, not {len(data)}"
                )
            replace_file(self._path, data)

        try:
            await run_in_thread(write)
        except OSError as error:
            raise BadRequestError(
                f"{self._path} cannot be written: {error.strerror}", code=ResponseCode.SYSTEM_ERROR
            ) from error
        self._table = table


def _parse(data: bytes) -> dict[str, dict[str, str]]:
    try:
        whole = parse_json(data, limits=None)
        table = whole.get("configTable", {}) if isinstance(whole, dict) else None
        if not isinstance(table, dict):
            raise RemoteProtocolError("there is no configTable in it")
        parsed = {}
        for namespace, members in table.items():
            if not isinstance(members, dict):
                raise RemoteProtocolError(f"namespace {as_text(namespace)!r} is not an object")
            parsed[as_text(namespace)] = {as_text(key): as_text(value) for key, value in members.items()}
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error
    return parsed

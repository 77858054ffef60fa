"""What a slave's master keeps in RocksDB, where no slave has a copy: said while it lives, and remembered.

A slave learns it from the settings of its master, before it copies the log. When the slave is the master
itself, the other one may be gone: `config/triohaMaster.json` has those settings of the last one that it
followed, `{"rocksdb":["popConsumerKVServiceEnable"]}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from attrs import define

from trioha.metadata.files import read_metadata, write_metadata
from trioha.net.threads import run_in_thread
from trioha.store.rocksdb_stores import MASTER_KEYS, keys_of, stores_of_master

log = structlog.get_logger(__name__)

FILE_NAME: Final = "triohaMaster.json"


@define
class MasterStores:
    """The memory of a slave."""

    _folder: Path
    """`config` in the store."""

    async def note(self, settings: Mapping[str, str]) -> None:
        """The settings of the master that is followed from now on."""
        keys = keys_of(settings)
        if keys:
            log.warning(
                "the master keeps in RocksDB what no slave has, and what is lost with it",
                stores=", ".join(stores_of_master(keys)),
                hint="a take-over goes without it: switch these settings off at the master first",
            )
        await run_in_thread(partial(self._write, keys))

    def _write(self, keys: tuple[str, ...]) -> None:
        path = self._folder / FILE_NAME
        try:
            if keys or path.exists():
                write_metadata(path, json.dumps({"rocksdb": keys}))
        except OSError as error:
            log.error("cannot be written", path=str(path), reason=error.strerror)


def remembered_keys(folder: Path) -> tuple[str, ...]:
    """The keys of `MASTER_KEYS` that the last master had, by the file in `folder`.

    Blocks. Raises StoreError.
    """
    return read_metadata(folder / FILE_NAME, _keys) or ()


def _keys(value: object) -> tuple[str, ...]:
    named = value.get("rocksdb") if isinstance(value, dict) else None
    if not isinstance(named, list):
        raise ValueError("rocksdb is not a list")  # noqa: TRY004
    return tuple(key for key in MASTER_KEYS if key in named)

"""Users and access control lists in the RocksDB stores of a RocketMQ broker, read and written.

See docs/protocol/acl2.md#where-it-is-stored, docs/auth.md#take-over-from-rocketmq-and-back.

Needs the extra `rocksdb`. Tables have format version 5: the RocksDB of 5.5.0 opens no newer ones. What is
read is a copy, since opening a store writes into it. What is written replaces a store when it is whole. All
functions block.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from trioha.auth.stored import decode_value, encode_value, tables_of, values_of
from trioha.auth.tables import AuthTables
from trioha.errors import StoreError, TriohaError
from trioha.extras import how_to_install
from trioha.metadata.metadata_store import FOLDER
from trioha.store.lock import StoreLock
from trioha.store.syncing import sync_directory, sync_whole

EXTRA: Final = "rocksdb"
FORMAT_VERSION: Final = 5
USERS: Final = "users"
ACLS: Final = "acls"
_ONE_LIBRARY_FILE: Final = "rocksdict-config.json"
"""Of the library, in a store that it has opened: RocksDB does not know it."""


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """Lock a store, which no broker or node may use meanwhile. Raises StoreError."""
    if not (store / FOLDER).is_dir():
        raise StoreError("there is no folder config: not a store of a broker", path=store)
    lock = StoreLock(store)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def read_rocksdb(store: Path) -> AuthTables:
    """The tables of a broker's stores. Raises StoreError, and TriohaError without the extra."""
    folder = store / FOLDER
    if not (folder / USERS / "CURRENT").is_file():
        raise StoreError("there is no store of users of a RocketMQ 5 broker", path=folder / USERS)
    try:
        users, acls = (_values(folder / name) for name in (USERS, ACLS))
        return tables_of(users, acls)
    except ValueError as error:
        raise StoreError(f"has users that cannot be used: {error}", path=folder) from None
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=folder) from error


def write_rocksdb(store: Path, tables: AuthTables, *, replace: bool) -> None:
    """Write a broker's stores; those that are there only with `replace`.

    Raises StoreError, and TriohaError without the extra.
    """
    folder = store / FOLDER
    for name in (USERS, ACLS):
        if (folder / name).exists() and not replace:
            raise StoreError("is there already", path=folder / name, hint="--replace replaces it")
    try:
        with TemporaryDirectory(dir=folder, prefix=".users-") as new:
            for name, values in zip((USERS, ACLS), values_of(tables), strict=True):
                _write(Path(new, name), values)
            for name in (USERS, ACLS):
                old = Path(new, f"{name}.old")
                if (folder / name).exists():
                    (folder / name).rename(old)
                Path(new, name).rename(folder / name)
            sync_directory(folder)
    except OSError as error:
        raise StoreError(f"cannot be written: {error.strerror}", path=folder) from error


def _values(path: Path) -> dict[str, object]:
    """All values of a store; none without it."""
    if not (path / "CURRENT").is_file():
        return {}
    library = _library()
    # Passwords: for this user alone, as all folders of this kind.
    with TemporaryDirectory(dir=path.parent, prefix=".users-") as folder:
        copy = Path(folder, "copy")
        # With the broker's own options the library does not open it: they are of another writer.
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("LOCK", "OPTIONS-*", _ONE_LIBRARY_FILE))
        try:
            opened = library.Rdict(str(copy), library.Options(raw_mode=True))
        except Exception as error:  # noqa: BLE001 - the library raises no narrower one
            raise StoreError(f"RocksDB cannot open it: {str(error)[:200]}", path=path) from None
        try:
            return {bytes(key).decode(): decode_value(bytes(value)) for key, value in opened.items()}
        finally:
            opened.close()


def _write(path: Path, values: Mapping[str, object]) -> None:
    library = _library()
    tables = library.BlockBasedOptions()
    tables.set_format_version(FORMAT_VERSION)
    options = library.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(library.DBCompressionType.none())
    path.mkdir(mode=0o700)
    opened = library.Rdict(str(path), options)
    try:
        for key, value in values.items():
            opened[key.encode("utf-8", "surrogatepass")] = encode_value(value)
        opened.flush()
    finally:
        opened.close()
    (path / _ONE_LIBRARY_FILE).unlink(missing_ok=True)
    for file in path.iterdir():
        file.chmod(0o600)
        with file.open("rb") as synced:
            sync_whole(synced.fileno())
    sync_directory(path)


def _library() -> Any:
    try:
        import rocksdict  # noqa: PLC0415 - of an extra
    except ImportError:
        raise TriohaError(f"RocksDB stores need rocksdict; {how_to_install(EXTRA)}") from None
    return rocksdict

"""RocksDB stores in the folder of a RocketMQ 5 broker. trioha reads none of them; it names what it finds.

| folder in the store | what RocketMQ 5.5 keeps there | when |
|---|---|---|
| `consumequeue`, `consumequeue_rocksdb` | consume queues | storeType=defaultRocksDB |
| `kvStore` | popped messages | popConsumerKVServiceEnable |
| `rocksdbstore` | timers, transactions, index | always made; used by timerRocksDBEnable and others |
| `config/topics`, `subscriptionGroups`, `consumerOffsets` | these tables | storeType=defaultRocksDB |
| `config/users`, `config/acls` | access control 2.0 | authenticationEnabled |

A folder with `CURRENT` and `MANIFEST-*` is a RocksDB store, whatever its name. It is named if it holds data;
consume queues always, since what they list is not counted: their data is in memory only until a clean stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from trioha.errors import StoreError

QUEUE_FOLDERS: Final = ("consumequeue", "consumequeue_rocksdb")
CONTENTS: Final = {
    **dict.fromkeys(QUEUE_FOLDERS, "consume queues"),
    "kvStore": "popped messages",
    "rocksdbstore": "timers, transactions or index",
    "config/topics": "topics",
    "config/subscriptionGroups": "consumer groups",
    "config/consumerOffsets": "consumer offsets",
    "config/users": "users of access control 2.0",
    "config/acls": "rules of access control 2.0",
}
MASTER_KEYS: Final = {
    "popConsumerKVServiceEnable": "popped messages",
    "timerRocksDBEnable": "timers that have left the log",
    "transRocksDBEnable": "open transactions",
}
"""Settings of a master that keeps something in RocksDB only. A slave builds consume queues of its own."""
_DATA_ENDINGS: Final = (".sst", ".log")


def rocksdb_stores(root: Path) -> tuple[str, ...]:
    """The RocksDB stores under a store's root that hold something: `kvStore (popped messages)`.

    Looks at the folders of the root, and those in them. Blocks. Raises StoreError.
    """
    try:
        return tuple(f"{name} ({CONTENTS.get(name, 'RocksDB')})" for name in sorted(_names(root)))
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=error.filename or root) from error


def keys_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of `MASTER_KEYS` that the settings of a master switch on."""
    return tuple(key for key in MASTER_KEYS if settings.get(key, "").lower() == "true")


def stores_of_master(keys: Iterable[str]) -> tuple[str, ...]:
    """What only a master with these settings has: `popped messages (... of the master)`."""
    return tuple(f"{MASTER_KEYS[key]} ({key} of the master)" for key in keys)


def has_only_rocksdb_queues(folder: Path) -> bool:
    """Whether a folder of consume queues is a RocksDB store without any plain queue. Blocks."""
    return _is_store(folder) and not _folders(folder)


def _names(root: Path) -> Iterator[str]:
    for folder in _folders(root):
        if _is_store(folder) and (folder.name in QUEUE_FOLDERS or _has_data(folder)):
            yield folder.name
        elif folder.name not in {*QUEUE_FOLDERS, "commitlog"}:
            yield from (
                f"{folder.name}/{one.name}" for one in _folders(folder) if _is_store(one) and _has_data(one)
            )


def _folders(parent: Path) -> list[Path]:
    try:
        return [path for path in parent.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        # A node that has not stored anything yet, or a folder that was removed meanwhile.
        return []


def _is_store(folder: Path) -> bool:
    return (folder / "CURRENT").is_file() and any(folder.glob("MANIFEST-*"))


def _has_data(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.iterdir() if path.name.endswith(_DATA_ENDINGS))

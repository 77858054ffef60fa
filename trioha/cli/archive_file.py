"""What `trioha archive` archives: one store of the command line, or the stores of a TOML file.

| key of `[archive]` | value |
|---|---|
| `interval`, `keep` | as the options, for each store that has no value of its own |
| `stores` | tables `[[archive.stores]]`: `store` and `to`, and if wanted `interval`, `keep`, `commit-log`, `recordings`, `cluster`, `broker` |

Other tables of the file are not read.
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from trioha.archive.settings import ArchiveSettings
from trioha.config.toml_table import read_table, table_of
from trioha.errors import ConfigError, StoreError

TABLE: Final = "archive"
STORES_MAX: Final = 64
"""Of one file: each has a thread, and up to 64 MiB of its log in memory."""
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_NEEDED: Final = ("store", "to")
_OWN: Final = (*_NEEDED, "interval", "keep", "commit-log", "recordings", "cluster", "broker")
_HINT: Final = 'write [[archive.stores]], and below it store = "/store" and to = "s3://bucket/broker"'


@frozen(kw_only=True)
class ArchiveJob:
    """A store and where it is archived to."""

    store: Path
    url: str
    settings: ArchiveSettings
    commit_log: Path | None = None
    """None for the folder commitlog of the store."""
    recordings: Path | None = None
    cluster: str | None = None
    broker: str | None = None
    """Names in a new archive."""

    def check(self) -> None:
        """Raise StoreError if a folder of the store is not there."""
        for folder in (self.store, self.commit_log):
            if folder is not None and not folder.is_dir():
                raise StoreError("there is no such folder", path=folder)


def read_jobs(path: Path) -> list[ArchiveJob]:
    """The stores of a file. Blocks. Raises ConfigError."""
    table = read_table(path, TABLE, ("interval", "keep", "stores"))
    key = f"{TABLE}.stores"
    stores = table.get("stores", [])
    if not isinstance(stores, list) or not 1 <= len(stores) <= STORES_MAX:
        raise ConfigError(f"has not between 1 and {STORES_MAX} tables", file=path, key=key, hint=_HINT)
    common = {name: table[name] for name in ("interval", "keep") if name in table}
    jobs = [_job(common, store, f"{key}[{number}]", file=path) for number, store in enumerate(stores)]
    for name, values in (("store", [job.store for job in jobs]), ("to", [job.url for job in jobs])):
        if len(set(values)) < len(values):
            raise ConfigError(f"two stores have the same {name}", file=path, key=key)
    return jobs


def _job(common: Mapping[str, Any], value: Any, key: str, *, file: Path) -> ArchiveJob:
    table = {**common, **table_of(value, key, _OWN, file=file)}
    for name, text in table.items():
        if not isinstance(text, str) or not text:
            raise ConfigError("is not a text", file=file, key=f"{key}.{name}", hint=f'write {name} = "..."')
    for name in _NEEDED:
        if name not in table:
            raise ConfigError("is missing", file=file, key=f"{key}.{name}", hint=_HINT)
    folders = {name: Path(table[name]) for name in ("commit-log", "recordings") if name in table}
    try:
        settings = settings_of(table.get("interval"), table.get("keep"), prefix="")
    except ConfigError as error:
        raise ConfigError(error.reason, file=file, key=f"{key}.{error.key}", hint=error.hint) from None
    return ArchiveJob(
        store=Path(table["store"]),
        url=table["to"].rstrip("/"),
        settings=settings,
        commit_log=folders.get("commit-log"),
        recordings=folders.get("recordings"),
        cluster=table.get("cluster"),
        broker=table.get("broker"),
    )


def settings_of(interval: str | None, keep: str | None, *, prefix: str = "--") -> ArchiveSettings:
    """Settings with these durations, None for the defaults. Raises ConfigError about prefix + name."""
    return ArchiveSettings(
        interval_s=parse_duration_s("10s" if interval is None else interval, key=f"{prefix}interval"),
        keep_s=None if keep is None else parse_duration_s(keep, key=f"{prefix}keep"),
    )


def parse_duration_s(text: str, *, key: str) -> float:
    """Seconds of a duration as 10s, 5m, 12h, 30d or 4w. Raises ConfigError about the option `key`."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw])", text.strip())
    value = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if value <= 0:
        raise ConfigError(f"{text[:80]!r} is not a duration", key=key, hint="write 10s, 5m, 12h, 30d or 4w")
    return value

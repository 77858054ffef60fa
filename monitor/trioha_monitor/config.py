"""The monitor's configuration file: the table `[monitor]` of a TOML file.

| key | value |
|---|---|
| `addresses` | nodes, `host:port` each, as the command takes them |
| `namesrv` | name servers, `host:port` each, as `--namesrv` |
| `thresholds` | a table of the numbers of `Thresholds`, in seconds, with `-` for `_`: `group-lag-s = 30` |

Other tables of the file are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

from attrs import fields, frozen

from trioha.config.toml_table import read_table, table_of
from trioha.errors import ConfigError
from trioha.remoting.address import parse_address

TABLE: Final = "monitor"


@frozen(kw_only=True)
class Thresholds:
    """Ages in seconds that the screens point out. Limits of replication are the brokers' own."""

    group_lag_s: float = 60.0
    """Age of the oldest message that waits for a consumer group."""
    group_age_s: float = 15.0
    """Age of the figures of a consumer group."""
    metadata_age_s: float = 60.0
    """Age of a slave's copy of metadata, which it renews every 10 s (trioha.metadataSyncPeriod)."""
    controller_silence_s: float = 15.0
    """Time without a leading controller's answer: it is asked each syncBrokerMetadataPeriod, 5 s, and three
    answers are missing then."""


DEFAULT_THRESHOLDS: Final = Thresholds()


@frozen
class MonitorConfig:
    """Content of a configuration file."""

    addresses: tuple[str, ...] = ()
    """Nodes, `host:port`."""
    name_servers: tuple[str, ...] = ()
    """`host:port`."""
    thresholds: Thresholds = DEFAULT_THRESHOLDS


def read_config(path: Path) -> MonitorConfig:
    """Read a configuration file. Blocks. Raises ConfigError."""
    table = read_table(path, TABLE, ("addresses", "namesrv", "thresholds"))
    return MonitorConfig(
        _addresses(table, "addresses", file=path),
        _addresses(table, "namesrv", file=path),
        _thresholds(table.get("thresholds", {}), file=path),
    )


def _addresses(table: Mapping[str, Any], name: str, *, file: Path) -> tuple[str, ...]:
    key, value = f"{TABLE}.{name}", table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        hint = f'write {name} = ["10.0.0.5:10911"]'
        raise ConfigError("is not a list of addresses", file=file, key=key, hint=hint)
    try:
        return tuple(str(parse_address(text)) for text in value)
    except ConfigError as error:
        raise ConfigError(error.reason, file=file, key=key, hint=error.hint) from None


def _thresholds(value: Any, *, file: Path) -> Thresholds:
    key = f"{TABLE}.thresholds"
    names = {field.name.replace("_", "-"): field.name for field in fields(Thresholds)}
    table = table_of(value, key, tuple(names), file=file)
    for name, number in table.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < inf:
            hint = f"write {name} = 30"
            raise ConfigError(f"{number!r} is no time", file=file, key=f"{key}.{name}", hint=hint)
    return Thresholds(**{names[name]: float(number) for name, number in table.items()})

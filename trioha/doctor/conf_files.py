"""Reads a broker.conf as both RocketMQ and trioha read it."""

from __future__ import annotations

from pathlib import Path

from trioha.config.broker import LoadedConfig, check_config, read_config_file
from trioha.config.properties_file import PropertiesDocument
from trioha.doctor.facts import ConfFacts, ConfValue
from trioha.errors import ConfigError


def read_conf(path: Path) -> ConfFacts:
    """The facts of the file at `path`. Blocks. Raises ConfigError for one that cannot be read."""
    return conf_facts(read_config_file(path), path=str(path))


def conf_facts(data: bytes, *, path: str) -> ConfFacts:
    """The facts of a broker.conf with the content `data`."""
    values: dict[str, ConfValue] = {}
    for entry in PropertiesDocument.parse(data).entries:
        text = entry.value.strip()
        values[entry.key] = ConfValue(
            key=entry.key, value=text, line=entry.line, has_blanks=text != entry.value
        )
    loaded: LoadedConfig | ConfigError
    try:
        loaded = check_config(data, file=path)
    except ConfigError as error:
        loaded = error
    return ConfFacts(path=path, values=values, loaded=loaded)

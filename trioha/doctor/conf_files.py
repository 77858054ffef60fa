"""Reads a broker.conf as both RocketMQ and trioha read it, and in controller mode files of its store."""

from __future__ import annotations

from os import environ
from pathlib import Path

from attrs import evolve

from trioha.broker.security_files import problems_of_files
from trioha.config.loading import ROCKETMQ_VARIABLES, LoadedConfig, check_config, read_config_file
from trioha.config.properties_file import PropertiesDocument
from trioha.controller.identity import read_identity
from trioha.doctor.facts import ConfFacts, ConfValue, EpochFileFacts, IdentityFacts
from trioha.errors import ConfigError, StoreError
from trioha.numbers import NATURAL64, parse_int
from trioha.store.epochs import FILE_NAME, EpochTable


def read_conf(path: Path) -> ConfFacts:
    """The facts of the file at `path`. Blocks. Raises ConfigError for one that cannot be read."""
    facts = conf_facts(read_config_file(path), path=str(path))
    if isinstance(facts.loaded, LoadedConfig):
        facts = evolve(facts, file_problems=problems_of_files(facts.loaded.config))
    if (value := facts.values.get("enableControllerMode")) is None or value.value.lower() != "true":
        return facts
    return evolve(facts, identity=_identity(facts), epoch_file=_epoch_file(facts))


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
        # Variables of keys are those of a node's process, not of this one.
        variables = {name: environ[name] for name in ROCKETMQ_VARIABLES if name in environ}
        loaded = check_config(data, file=path, environment=variables)
    except ConfigError as error:
        loaded = error
    return ConfFacts(path=path, values=values, loaded=loaded)


def _store_path(facts: ConfFacts, key: str, name: str) -> Path:
    """The path that the file gives by `key`, else `name` in the store."""
    if (given := facts.values.get(key)) is not None and given.value:
        return Path(given.value).expanduser()
    root = facts.values.get("storePathRootDir")
    return (Path("~/store") if root is None or not root.value else Path(root.value)).expanduser() / name


def _identity(facts: ConfFacts) -> IdentityFacts | None:
    path = _store_path(facts, "storePathBrokerIdentity", "brokerIdentity")
    try:
        found = read_identity(path)
    except StoreError as error:
        return IdentityFacts(path=str(path), error=error.reason)
    if found is None:
        return None
    cluster_name, broker_name, broker_id = found
    return IdentityFacts(
        path=str(path), cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id
    )


def _epoch_file(facts: ConfFacts) -> EpochFileFacts | None:
    path = _store_path(facts, "storePathEpochFile", FILE_NAME)
    try:
        table = EpochTable.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        return EpochFileFacts(path=str(path), error=error.strerror or str(error))
    except ValueError as error:
        return EpochFileFacts(path=str(path), error=str(error))
    last = table.entries[-1]
    return EpochFileFacts(
        path=str(path),
        last_epoch=last.epoch,
        last_start_offset=last.start_offset,
        log_end_max=_log_end_max(_store_path(facts, "storePathCommitLog", "commitlog")),
    )


def _log_end_max(folder: Path) -> int | None:
    """Where the last file of a log ends: files have the offset of their first byte for a name."""
    try:
        ends = [
            parse_int(path.name.lstrip("0") or "0", NATURAL64) + path.stat().st_size
            for path in folder.iterdir()
            if path.name.isascii() and path.name.isdigit()
        ]
    except (OSError, ValueError):
        # The log is not here, or is not one: nothing is known of its end.
        return None
    return max(ends, default=None)

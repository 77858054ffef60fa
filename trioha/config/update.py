"""A running broker's configuration: its text for administrators, and changes of its broker.conf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from os import environ
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from trioha.config.broker import SETTINGS, BrokerConfig, find_setting
from trioha.config.environment import variable_given
from trioha.config.loading import check_config, read_config_file
from trioha.config.properties_file import PropertiesDocument
from trioha.config.rocketmq_keys import ROCKETMQ_KEYS
from trioha.config.values import InvalidValue
from trioha.errors import ConfigError


@frozen
class ConfigFile:
    """The broker.conf that a node was started with."""

    path: Path
    overrides: Sequence[str] = ()
    """`key=value` of `-p`, which replace the file's values at every start."""


@frozen
class ConfigChange:
    """A change that may be made."""

    config: BrokerConfig
    """The settings of the running broker after it."""
    attributes: frozenset[str]
    """Names of the settings that it changes."""
    file: bytes
    """The content of the broker.conf after it."""


class RefusedChange(Exception):  # noqa: N818 - says what was refused
    """A setting that cannot be changed while the broker runs; `str()` names it."""


def config_text(config: BrokerConfig) -> bytes:
    """All settings but the secret ones as a properties text, by key."""
    pairs = sorted(
        (setting.key, value_text(getattr(config, attribute)))
        for attribute, setting in SETTINGS.items()
        if not setting.is_secret
    )
    return "".join(f"{key}={value}\n" for key, value in pairs).encode("utf-8", "replace")


def value_text(value: Any) -> str:
    """A setting's value as a broker.conf has it."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case StrEnum():
            return value.value
        case frozenset():
            return ";".join(f"{hour:02d}" for hour in sorted(value))
        case (str(), *_):
            return ";".join(value)
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def plan_change(
    file: ConfigFile, config: BrokerConfig, wanted: Mapping[str, str], *, at_run_time: frozenset[str]
) -> ConfigChange:
    """What it takes to set the keys of `wanted` in the running broker and in its file. Blocks.

    Keys that the file has stay as they are, with its comments and order. `at_run_time` names the settings
    that a running broker can change; for others only the value that they have is accepted. Raises
    RefusedChange for a key that cannot be changed, ConfigError for a value that cannot be used.
    """
    document = PropertiesDocument.parse(read_config_file(file.path))
    overridden = {override.partition("=")[0].strip() for override in file.overrides}
    changes: dict[str, Any] = {}
    for key, text in wanted.items():
        found = find_setting(key)
        if found is None:
            if key in ROCKETMQ_KEYS:
                raise RefusedChange(f"{key} is not used by trioha")
            raise ConfigError("is not a key of RocketMQ or trioha", key=key)
        attribute, setting = found
        if setting.is_secret:
            # Also for the value that it has: an answer must not confirm a guess.
            raise RefusedChange(f"{key} can only be changed by a restart: edit {file.path}")
        try:
            value = setting.parse(text.strip())
        except InvalidValue as refused:
            raise ConfigError(refused.reason, key=key, hint=refused.hint) from None
        if value == getattr(config, attribute):
            continue
        if attribute not in at_run_time:
            raise RefusedChange(f"{key} can only be changed by a restart: edit {file.path}")
        names = (setting.key, *setting.aliases)
        if not overridden.isdisjoint(names):
            raise RefusedChange(
                f"{key} was given as -p on the command line, which replaces the file's value at every start"
            )
        if (variable := variable_given(setting.key, environ)) is not None:
            raise RefusedChange(
                f"{key} was given as ${variable}, which replaces the file's value at every start"
            )
        document.set(next((name for name in names if document.entry(name) is not None), key), text.strip())
        changes[attribute] = value
    data = document.to_bytes()
    # Also combinations: the next start must accept the file.
    check_config(data, file=file.path, overrides=file.overrides)
    return ConfigChange(evolve(config, **changes), frozenset(changes), data)

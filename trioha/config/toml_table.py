"""A table of a TOML file, for commands that have a file of their own."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from trioha.errors import ConfigError


def read_table(path: Path, name: str, known: Collection[str]) -> Mapping[str, Any]:
    """The table `[name]` of a file, which has no other keys than `known`. Other tables are not read.

    Blocks. Raises ConfigError.
    """
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8", file=path, hint="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}", file=path) from None
    if name not in document:
        raise ConfigError(f"has no table [{name}]", file=path, hint=f"write [{name}] above its keys")
    return table_of(document[name], name, known, file=path)


def table_of(value: Any, key: str, known: Collection[str], *, file: Path) -> Mapping[str, Any]:
    """The value of `key`, which is a table without other keys than `known`. Raises ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError("is not a table", file=file, key=key, hint=f"write [{key}]")
    for name in value:
        if name not in known:
            raise ConfigError("is unknown", file=file, key=f"{key}.{name}", hint=f"use {', '.join(known)}")
    return value

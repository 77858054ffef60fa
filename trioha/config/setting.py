"""One setting of a node: its key in RocketMQ's spelling, and the parser of its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import frozen

T = TypeVar("T")

_SETTING: Final = "setting"


@frozen
class Setting:
    """The key of an attribute, its older or other names, and its parser."""

    key: str
    aliases: tuple[str, ...]
    parse: Callable[[str], object]
    is_secret: bool = False
    """Whether its value must not be shown."""


def setting(
    key: str,
    parse: Callable[[str], T],
    *,
    default: T | Any,
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> T:
    """The attrs field of a setting."""
    metadata = {_SETTING: Setting(key, aliases, parse, is_secret)}
    return cast("T", attrs.field(default=default, repr=not is_secret, metadata=metadata))


def settings_of(kind: type[attrs.AttrsInstance]) -> dict[str, Setting]:
    """The settings of a class by attribute."""
    return {field.name: field.metadata[_SETTING] for field in attrs.fields(kind)}

"""Reads YAML files of RocketMQ's tools and of its access control, with the line of each value.

Only what such files need: mappings, sequences and scalars, which stay text (`0123` and `on` are no numbers
and no booleans here; the reader of a key decides). Aliases are refused, nesting and size are limited, so a
file of any content ends in values or in one ConfigError.

Values are built from the events of the parser. `yaml.compose` would give nodes with their lines, but it
follows aliases, and with libyaml it recurses, before PyYAML 6.0.4 without a limit: 100,000 open brackets end
the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml
from attrs import define, field, frozen

from trioha.errors import ConfigError

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
DEPTH_MAX: Final = 8
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml, where PyYAML was built with it: about twenty times as fast."""
_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))


@frozen
class YamlText:
    """A scalar."""

    value: str | None
    """None for an empty or null one."""
    line: int
    """From 1."""


@define
class YamlList:
    """A sequence."""

    line: int
    items: list[YamlNode] = field(factory=list)


@define
class YamlMap:
    """A mapping with text keys."""

    line: int
    items: dict[str, YamlNode] = field(factory=dict)
    """By key, in the order of the file."""


YamlNode: TypeAlias = "YamlText | YamlList | YamlMap"


def read_file(path: Path) -> bytes:
    """The content of a file, at most one byte more than is accepted. Blocks. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None


def parse_yaml(data: bytes, *, file: Path) -> YamlNode | None:
    """The document in `data`; None for an empty one. `file` is named in errors. Raises ConfigError."""
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"has more than {FILE_BYTES_MAX} bytes", file=file)
    try:
        return _Builder(file).build(yaml.parse(data, Loader=_LOADER))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigError(
            f"is not YAML: {error.problem or error.context}",
            file=file,
            line=None if mark is None else mark.line + 1,
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {' '.join(str(error).split())[:200]}", file=file) from None
    except UnicodeDecodeError:
        raise ConfigError("is not YAML: its text is not UTF-8", file=file) from None


class _Builder:
    """Builds one document from the events of the parser."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._root: YamlNode | None = None
        self._open: list[YamlList | YamlMap] = []
        """The collections around the current event, outermost first."""
        self._keys: list[tuple[str, int] | None] = []
        """For each of them: a mapping's key that has no value yet, and its line."""
        self._documents = 0

    def build(self, events: Iterator[Any]) -> YamlNode | None:
        """The only document of `events`."""
        for event in events:
            line = event.start_mark.line + 1
            match event:
                case yaml.DocumentStartEvent():
                    self._documents += 1
                    if self._documents > 1:
                        raise self._problem("has more than one document", line)
                case yaml.AliasEvent():
                    raise self._problem("aliases are not supported", line)
                case yaml.ScalarEvent():
                    is_null = event.implicit[0] and event.value in _NULLS
                    self._add(YamlText(None if is_null else event.value, line))
                case yaml.SequenceStartEvent():
                    self._begin(YamlList(line))
                case yaml.MappingStartEvent():
                    self._begin(YamlMap(line))
                case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                    self._open.pop()
                    self._keys.pop()
        return self._root

    def _begin(self, node: YamlList | YamlMap) -> None:
        if len(self._open) == DEPTH_MAX:
            raise self._problem(f"is nested deeper than {DEPTH_MAX} levels", node.line)
        self._add(node)
        self._open.append(node)
        self._keys.append(None)

    def _add(self, node: YamlNode) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if isinstance(parent, YamlList):
            parent.items.append(node)
            return
        key = self._keys[-1]
        if key is not None:
            parent.items[key[0]] = node
            self._keys[-1] = None
            return
        if not isinstance(node, YamlText) or node.value is None:
            raise self._problem("has a key that is not text", node.line)
        if node.value in parent.items:
            raise self._problem(f"{node.value[:60]!r} is given twice", node.line)
        self._keys[-1] = (node.value, node.line)

    def _problem(self, reason: str, line: int) -> ConfigError:
        return ConfigError(reason, file=self._file, line=line)


@frozen
class YamlFields:
    """The fields of one mapping of known keys. Readers raise ConfigError with the place of the value."""

    node: YamlMap
    file: Path

    @classmethod
    def of(cls, node: YamlNode, *, file: Path, keys: frozenset[str], what: str) -> YamlFields:
        """The fields of `node`, which must be a mapping with no other keys than `keys`."""
        if not isinstance(node, YamlMap):
            raise ConfigError(f"{what} is not a mapping of keys", file=file, line=node.line)
        for key, value in node.items.items():
            if key not in keys:
                raise ConfigError(
                    "is not a key of " + what, file=file, line=value.line, key=key[:60], hint=_one_of(keys)
                )
        return cls(node, file)

    def text(self, key: str) -> str | None:
        """A scalar; None for a missing or empty one."""
        value = self.node.items.get(key)
        if value is None:
            return None
        if not isinstance(value, YamlText):
            raise self.problem(key, "is not a single value")
        return value.value

    def needed(self, key: str) -> str:
        """A scalar that must be there."""
        value = self.text(key)
        if value is None:
            raise self.problem(key, "is missing")
        return value

    def flag(self, key: str) -> bool:
        """A boolean; False for a missing one."""
        value = self.text(key)
        if value is None or value.lower() in {"false", "no", "off"}:
            return False
        if value.lower() in {"true", "yes", "on"}:
            return True
        raise self.problem(key, "is neither true nor false")

    def nodes(self, key: str) -> list[YamlNode]:
        """A sequence; empty for a missing one."""
        value = self.node.items.get(key)
        if value is None or (isinstance(value, YamlText) and value.value is None):
            return []
        if not isinstance(value, YamlList):
            raise self.problem(key, "is not a list")
        return value.items

    def texts(self, key: str) -> list[YamlText]:
        """A sequence of scalars; empty for a missing one."""
        found = []
        for item in self.nodes(key):
            if not isinstance(item, YamlText) or item.value is None:
                raise ConfigError("has an entry that is not text", file=self.file, line=item.line, key=key)
            found.append(item)
        return found

    def problem(
        self, key: str, reason: str, *, hint: str | None = None, line: int | None = None
    ) -> ConfigError:
        """An error at the place of `key`, or of the whole mapping."""
        value = self.node.items.get(key)
        at = self.node.line if value is None else value.line
        return ConfigError(reason, file=self.file, line=line or at, key=key, hint=hint)


def _one_of(keys: frozenset[str]) -> str:
    return f"known are {', '.join(sorted(keys))}"

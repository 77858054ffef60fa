"""Loads a broker.conf and reports all its problems at once, each with its place.

| what gives a setting | |
|---|---|
| `-p key=value` | replaces all others |
| the variable of the key (`trioha.config.environment`) | replaces the file's |
| the broker.conf | |
| NAMESRV_ADDR and ROCKETMQ_HOME, as RocketMQ's brokers read them | where nothing else gives the key |
| the file of `tls.config.file` | for keys of TLS that nothing else gives |

RocketMQ ignores unknown keys and keeps the default of a value that it cannot parse. Here both are refused: a
broker that replicates with other settings than its operator wrote may lose messages silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen

from trioha.config.broker import SETTINGS, BrokerConfig, find_setting
from trioha.config.checks import contradictions, doubts
from trioha.config.environment import KEYS, settings_in, unknown_in
from trioha.config.properties_file import PropertiesDocument
from trioha.config.rocketmq_keys import REMOVED_KEYS, RETIRED_KEYS, ROCKETMQ_KEYS, similar_key
from trioha.config.values import InvalidValue, directory
from trioha.errors import ConfigError

ROCKETMQ_VARIABLES: Final = {"NAMESRV_ADDR": "namesrvAddr", "ROCKETMQ_HOME": "rocketmqHome"}
"""Keys that RocketMQ's brokers read from their environment, too, by variable."""
TLS_PREFIX: Final = "tls."
FILE_BYTES_MAX: Final = 1024 * 1024
"""A broker.conf has a page or two: a larger file was given by mistake and is not read into memory."""


class InvalidConfig(ConfigError):  # noqa: N818 - says what is invalid
    """Several problems of one configuration; `str()` has a line for each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        first = problems[0]
        super().__init__(first.reason, file=first.file, line=first.line, key=first.key, hint=first.hint)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@frozen
class LoadedConfig:
    """A valid configuration and its warnings."""

    config: BrokerConfig
    warnings: tuple[str, ...]
    """One line each, which starts with the file and line, the `-p`, or the variable."""


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a broker.conf and the environment, apply `overrides`, and check everything.

    Without a `path` there is no file. `overrides` are `key=value` of `-p`; later ones win. Raises
    `ConfigError`: the problem itself, or an `InvalidConfig` with all of them where there are several.
    """
    data = b"" if path is None else read_config_file(Path(path))
    return check_config(data, file=path, overrides=overrides)


def check_config(
    data: bytes,
    *,
    file: str | Path | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """The configuration of a broker.conf with the content `data`, which errors name `file`.

    `environment` is that of the process by default. Raises `ConfigError` as `load_config`.
    """
    variables = environ if environment is None else environment
    loading = _Loading(file=None if file is None else str(file))
    loading.read_file(data)
    loading.read_variables(variables)
    for override in overrides:
        loading.read_override(override)
    loading.read_rocketmq_variables(variables)
    loading.read_tls_file()
    config = loading.config()
    if not loading.problems:
        return LoadedConfig(config, tuple(loading.warnings))
    # In the order of the file; problems without a line come last.
    problems = sorted(loading.problems, key=lambda problem: (problem.line is None, problem.line or 0))
    raise problems[0] if len(problems) == 1 else InvalidConfig(problems)


def read_config_file(path: Path) -> bytes:
    """The content of a broker.conf. Blocks. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}", file=path, hint="give the path of a broker.conf"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX} bytes: not a broker.conf", file=path)
    return data


@frozen
class _Given:
    """A value with its place: a line of the file, or (line None) a `-p` or a variable."""

    key: str
    value: str
    file: str | None
    line: int | None

    def problem(self, reason: str, hint: str | None = None) -> ConfigError:
        # The name of a `-p` has the key, and a variable is that of its key.
        key = self.key if self.line is not None else None
        return ConfigError(reason, file=self.file, line=self.line, key=key, hint=hint)

    @property
    def place(self) -> str:
        return str(self.file) if self.line is None else f"{self.file}:{self.line}: {self.key}"


@define
class _Loading:
    """One configuration while it is loaded."""

    file: str | None
    """The broker.conf; None without one."""
    keys: set[str] = field(factory=set)
    """Of the file, also those that are not known."""
    given: dict[str, _Given] = field(factory=dict)
    """By attribute."""
    unused: list[str] = field(factory=list)
    """RocketMQ's keys that trioha does not use yet, in the order of the file."""
    problems: list[ConfigError] = field(factory=list)
    warnings: list[str] = field(factory=list)

    def read_file(self, data: bytes) -> None:
        document = PropertiesDocument.parse(data)
        self.keys |= {entry.key for entry in document.entries}
        for given in self._entries(document, self.file):
            last = document.entry(given.key)
            if last is not None and last.line != given.line:
                self.warnings.append(f"{given.place}: is overridden by line {last.line}")
            else:
                self._add(given)

    def read_override(self, override: str) -> None:
        key, equals, value = override.partition("=")
        given = _Given(key.strip(), value.strip(), f"-p {key.strip()}", None)
        if equals:
            self._add(given)
        else:
            self.problems.append(given.problem("is not of the form key=value"))

    def read_variables(self, variables: Mapping[str, str]) -> None:
        """Read the variables of keys, which replace what the file says."""
        for name, value in settings_in(variables).items():
            self._add(_Given(KEYS[name], value.strip(), f"${name}", None))
        for name, meant in unknown_in(variables).items():
            given = _Given("", "", f"${name}", None)
            if meant is None:
                self.warnings.append(f"{given.place}: is the variable of no key")
            else:
                self.problems.append(given.problem("is the variable of no key", f"did you mean {meant}?"))

    def read_rocketmq_variables(self, variables: Mapping[str, str]) -> None:
        """Read what RocketMQ's brokers read from their environment, unless it is given otherwise."""
        for variable, key in ROCKETMQ_VARIABLES.items():
            if (value := variables.get(variable)) and not self._has(key):
                self._add(_Given(key, value, f"${variable}", None))

    def read_tls_file(self) -> None:
        """Read the file of `tls.config.file`, whose settings file and overrides may replace."""
        given = self.given.get("tls_config_file")
        if given is None or not given.value:
            return
        try:
            path = directory(given.value)
            document = PropertiesDocument.parse(read_config_file(path))
        except (InvalidValue, ConfigError) as error:
            self.problems.append(given.problem(error.reason, "give the path of a properties file"))
            return
        keys = {entry.key for entry in document.entries}
        replaced = {key for key in keys if self._has(key)}
        for found in self._entries(document, str(path), prefix=TLS_PREFIX):
            if found.key not in replaced:
                self._add(found)

    def config(self) -> BrokerConfig:
        """The configuration, with the default of each value that cannot be parsed."""
        values: dict[str, Any] = {}
        for attribute, given in self.given.items():
            try:
                values[attribute] = SETTINGS[attribute].parse(given.value)
            except InvalidValue as refused:
                self.problems.append(given.problem(refused.reason, refused.hint))
        config = BrokerConfig(**values)
        invalid = self.given.keys() - values
        for found in contradictions(config, self.given.keys()):
            if invalid.isdisjoint(found.attributes):
                self.problems.append(self._problem(found.attributes[0], found.reason, found.hint))
        if not self.problems:
            self.warnings += (
                f"{self.given[attribute].place}: {text}"
                for attribute, text in doubts(config, self.given.keys())
            )
        if self.unused:
            unused = ", ".join(self.unused)
            self.warnings.append(
                f"{self.file or 'settings'}: known to RocketMQ, not used by trioha yet: {unused}"
            )
        return config

    def _entries(
        self, document: PropertiesDocument, file: str | None, *, prefix: str = ""
    ) -> Iterator[_Given]:
        """The lines whose key starts with `prefix`; those that cannot be read are problems."""
        for entry in document.entries:
            if not entry.key.startswith(prefix):
                continue
            given = _Given(entry.key, entry.value.strip(), file, entry.line)
            if entry.problem is None:
                yield given
            else:
                self.problems.append(given.problem(entry.problem, "a backslash itself is written \\\\"))

    def _has(self, key: str) -> bool:
        """Whether the setting of a key was given."""
        known = find_setting(key)
        return known is not None and known[0] in self.given

    def _add(self, given: _Given) -> None:
        known = find_setting(given.key)
        if known is None:
            self._add_unknown(given)
            return
        attribute, _ = known
        other = self.given.get(attribute)
        if other is not None and given.line is not None and other.value != given.value:
            # Two names of one setting in one file: the intended value is not known.
            self.problems.append(
                given.problem(f"contradicts {other.key} in line {other.line}, another name of it", "keep one")
            )
            return
        self.given[attribute] = given

    def _add_unknown(self, given: _Given) -> None:
        if given.key in ROCKETMQ_KEYS:
            self.unused.append(given.key if given.line is not None else str(given.file))
        elif (instead := RETIRED_KEYS.get(given.key)) is not None:
            effect = f"; {instead} has its effect" if instead else ""
            self.warnings.append(f"{given.place}: is read by no broker{effect}")
        elif (now := REMOVED_KEYS.get(given.key)) is not None:
            self.warnings.append(f"{given.place}: has no effect any more: {now}")
        else:
            own_keys = [key for setting in SETTINGS.values() for key in (setting.key, *setting.aliases)]
            similar = similar_key(given.key, own_keys, ROCKETMQ_KEYS, given=self.keys)
            hint = f"did you mean {similar}?" if similar else None
            self.problems.append(given.problem("is not a key of RocketMQ or trioha", hint))

    def _problem(self, attribute: str, reason: str, hint: str) -> ConfigError:
        """A problem at the place of `attribute`, or of the whole file if `attribute` was not given."""
        given = self.given.get(attribute)
        if given is None:
            return ConfigError(reason, file=self.file, key=SETTINGS[attribute].key, hint=hint)
        return given.problem(reason, hint)

"""Loads a broker.conf and reports all its problems at once, each with its place.

RocketMQ ignores unknown keys and keeps the default of a value that it cannot parse. Here both are refused: a
broker that replicates with other settings than its operator wrote may lose messages silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import environ
from pathlib import Path
from typing import Any, Final

from attrs import define, field, frozen

from trioha.config.model import (
    FILE_END_BYTES_MIN,
    FRAME_BYTES_BESIDE_BODY,
    RECORD_BYTES_MIN,
    RECORDED_BROKER_ID_MAX,
    BrokerConfig,
    BrokerRole,
    ClientAuth,
    DistinctBy,
    FlushDiskType,
    HaRole,
    LogFormat,
    Setting,
    TlsMode,
    broker_settings,
    client_bytes_needed,
)
from trioha.config.properties_file import PropertiesDocument
from trioha.config.rocketmq_keys import REMOVED_KEYS, RETIRED_KEYS, ROCKETMQ_KEYS, similar_key
from trioha.config.values import PORT_MAX, InvalidValue, directory
from trioha.errors import ConfigError

__all__ = [
    "BrokerConfig",
    "BrokerRole",
    "DistinctBy",
    "FlushDiskType",
    "InvalidConfig",
    "LoadedConfig",
    "LogFormat",
    "load_config",
]

NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"
HOME_VARIABLE: Final = "ROCKETMQ_HOME"
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
    """One line each, which starts with the file and line, or the `-p`."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a broker.conf, apply `overrides` (`key=value` of `-p`, later ones win), and check everything.

    Raises `ConfigError`: the problem itself, or an `InvalidConfig` with all of them where there are several.
    """
    return check_config(read_config_file(Path(path)), file=path, overrides=overrides)


def check_config(data: bytes, *, file: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """The configuration of a broker.conf with the content `data`, which errors name `file`.

    Raises `ConfigError` as `load_config`.
    """
    loading = _Loading(file=str(file))
    loading.read_file(data)
    for override in overrides:
        loading.read_override(override)
    loading.read_environment(environ)
    loading.read_tls_file()
    loading.parse()
    if not loading.problems:
        return loading.checked()
    # In the order of the file; problems without a line come last.
    problems = sorted(loading.problems, key=lambda problem: (problem.line is None, problem.line or 0))
    raise problems[0] if len(problems) == 1 else InvalidConfig(problems)


def find_setting(key: str) -> tuple[str, Setting] | None:
    """Attribute and setting of a key or of another name of it; None for a key that is not used."""
    return _BY_KEY.get(key)


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
    """A value with its place: a line of the file, or (line None) a `-p`."""

    key: str
    value: str
    file: str
    line: int | None

    def problem(self, reason: str, hint: str | None = None) -> ConfigError:
        # The name of a `-p` has the key.
        key = self.key if self.line is not None else None
        return ConfigError(reason, file=self.file, line=self.line, key=key, hint=hint)

    @property
    def place(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}: {self.key}"


_SETTINGS: Final = broker_settings()
_BY_KEY: Final[dict[str, tuple[str, Setting]]] = {
    key: (attribute, setting)
    for attribute, setting in _SETTINGS.items()
    for key in (setting.key, *setting.aliases)
}


_OF_OTHER_MODE: Final[dict[bool, tuple[str, ...]]] = {
    True: ("ha_start_from", "ha_gap_policy"),
    False: ("controller_addr", "async_learner", "sync_from_last_file", "ha_accept_cut", "hang_timeout"),
}
"""Settings that have no effect, by `enable_controller_mode`."""


@define
class _Loading:
    """One configuration while it is loaded."""

    file: str
    keys: set[str] = field(factory=set)
    """Of the file, also those that are not known."""
    given: dict[str, _Given] = field(factory=dict)
    """By attribute."""
    unused: list[str] = field(factory=list)
    """RocketMQ's keys that trioha does not use yet, in the order of the file."""
    values: dict[str, Any] = field(factory=dict)
    """Parsed, by attribute: arguments of `BrokerConfig`."""
    problems: list[ConfigError] = field(factory=list)
    warnings: list[str] = field(factory=list)

    def read_file(self, data: bytes) -> None:
        document = PropertiesDocument.parse(data)
        self.keys |= {entry.key for entry in document.entries}
        for entry in document.entries:
            given = _Given(entry.key, entry.value.strip(), self.file, entry.line)
            if entry.problem is not None:
                self.problems.append(given.problem(entry.problem, "a backslash itself is written \\\\"))
                continue
            last = document.entry(entry.key)
            if last is not None and last.line != entry.line:
                self.warnings.append(f"{given.place}: is overridden by line {last.line}")
                continue
            self._add(given)

    def read_override(self, override: str) -> None:
        key, equals, value = override.partition("=")
        given = _Given(key.strip(), value.strip(), f"-p {key.strip()}", None)
        if not equals:
            self.problems.append(given.problem("is not of the form key=value"))
            return
        self._add(given)

    def read_environment(self, variables: Mapping[str, str]) -> None:
        """Read what RocketMQ's brokers read from their environment, unless file or overrides have it."""
        name_servers = variables.get(NAME_SERVERS_VARIABLE)
        if name_servers and "namesrv_addr" not in self.given:
            self._add(_Given("namesrvAddr", name_servers, f"${NAME_SERVERS_VARIABLE}", None))
        home = variables.get(HOME_VARIABLE)
        if home and "rocketmq_home" not in self.given:
            self._add(_Given("rocketmqHome", home, f"${HOME_VARIABLE}", None))

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
        for entry in document.entries:
            if not entry.key.startswith(TLS_PREFIX):
                continue
            found = _Given(entry.key, entry.value.strip(), str(path), entry.line)
            if entry.problem is not None:
                self.problems.append(found.problem(entry.problem, "a backslash itself is written \\\\"))
                continue
            known = _BY_KEY.get(entry.key)
            if known is None or known[0] not in self.given or self.given[known[0]].file == str(path):
                self._add(found)

    def _add(self, given: _Given) -> None:
        if given.key not in _BY_KEY:
            if given.key in ROCKETMQ_KEYS:
                self.unused.append(given.key if given.line is not None else given.file)
            elif (instead := RETIRED_KEYS.get(given.key)) is not None:
                effect = f"; {instead} has its effect" if instead else ""
                self.warnings.append(f"{given.place}: is read by no broker{effect}")
            elif (now := REMOVED_KEYS.get(given.key)) is not None:
                self.warnings.append(f"{given.place}: has no effect any more: {now}")
            else:
                similar = similar_key(given.key, _BY_KEY, ROCKETMQ_KEYS, given=self.keys)
                hint = f"did you mean {similar}?" if similar else None
                self.problems.append(given.problem("is not a key of RocketMQ or trioha", hint))
            return
        attribute, _ = _BY_KEY[given.key]
        other = self.given.get(attribute)
        if other is not None and given.line is not None and other.value != given.value:
            # Two names of one setting in one file: the intended value is not known.
            self.problems.append(
                given.problem(f"contradicts {other.key} in line {other.line}, another name of it", "keep one")
            )
            return
        self.given[attribute] = given

    def parse(self) -> None:
        for attribute, given in self.given.items():
            try:
                self.values[attribute] = _SETTINGS[attribute].parse(given.value)
            except InvalidValue as refused:
                self.problems.append(given.problem(refused.reason, refused.hint))
        self.problems.extend(self._cross_checks(self._config()))

    def checked(self) -> LoadedConfig:
        config = self._config()
        warnings = [*self.warnings, *_warnings(config, self.given)]
        if self.unused:
            warnings.append(
                f"{self.file}: known to RocketMQ, not used by trioha yet: {', '.join(self.unused)}"
            )
        return LoadedConfig(config, tuple(warnings))

    def _config(self) -> BrokerConfig:
        return BrokerConfig(**self.values)

    def _cross_checks(self, config: BrokerConfig) -> Iterator[ConfigError]:
        """Problems of settings that are valid one by one but cannot be used together."""

        def sound(*attributes: str) -> bool:
            """Whether none of them has an invalid value."""
            return all(attribute in self.values or attribute not in self.given for attribute in attributes)

        if config.enable_controller_mode:
            yield from self._controller_checks(config, sound)
        elif sound("broker_role", "broker_id", "enable_controller_mode"):
            if config.broker_id < 0:
                yield self._problem(
                    "broker_id", f"is {config.broker_id}, but enableControllerMode is false", "give 0 or more"
                )
            elif config.broker_role is BrokerRole.SLAVE:
                if config.broker_id == 0:
                    yield self._problem(
                        "broker_id", "is 0, which is the master's, but brokerRole is SLAVE", "give 1 or more"
                    )
            elif config.broker_id != 0:
                yield self._problem(
                    "broker_id",
                    f"is {config.broker_id}, but brokerRole is {config.broker_role}",
                    "a master has brokerId 0; a slave has brokerRole=SLAVE",
                )
        if (
            sound("broker_role", "ha_master_address")
            and not config.enable_controller_mode
            and config.broker_role is BrokerRole.SLAVE
            and config.ha_master_address is None
            and sound("namesrv_addr")
            and not config.namesrv_addr
        ):
            yield self._problem(
                "ha_master_address",
                "is missing, but brokerRole is SLAVE",
                "give HOST:PORT of the master's HA service, or namesrvAddr to learn it there",
            )
        yield from self._security_checks(config, sound)
        if sound("listen_port", "ha_listen_port"):
            if config.ha_listen_port > PORT_MAX:
                yield self._problem(
                    "listen_port",
                    "leaves no port for haListenPort, which is listenPort + 1 by default",
                    "give haListenPort",
                )
            elif config.ha_listen_port == config.listen_port != 0:
                yield self._problem(
                    "ha_listen_port", f"is {config.ha_listen_port}, and so is listenPort", "give another port"
                )
            elif config.ha_listen_port == config.vip_port:
                yield self._problem(
                    "ha_listen_port",
                    f"is {config.ha_listen_port}, the second port for clients, listenPort - 2",
                    "give another port",
                )
        if sound("metrics_port", "listen_port", "ha_listen_port") and config.metrics_port:
            others = {
                config.listen_port: "listenPort",
                config.ha_listen_port: "haListenPort",
                config.vip_port: "the second port for clients, listenPort - 2",
            }
            if (other := others.get(config.metrics_port)) is not None:
                yield self._problem(
                    "metrics_port", f"is {config.metrics_port}, and so is {other}", "give another port"
                )
        if (
            sound("in_sync_replicas", "total_replicas")
            and {"in_sync_replicas", "total_replicas"} <= self.given.keys()
            and config.in_sync_replicas > config.total_replicas
        ):
            yield self._problem(
                "in_sync_replicas",
                f"is {config.in_sync_replicas}, but totalReplicas is only {config.total_replicas}",
                "raise totalReplicas",
            )
        if (
            sound("in_sync_replicas", "min_in_sync_replicas")
            # There it is the least size of the sync-state set, whatever a put waits for.
            and not config.enable_controller_mode
            and config.min_in_sync_replicas
            > max(config.in_sync_replicas, 2 if config.broker_role is BrokerRole.SYNC_MASTER else 1)
        ):
            yield self._problem(
                "min_in_sync_replicas",
                f"is {config.min_in_sync_replicas}, but inSyncReplicas is only {config.in_sync_replicas}",
                "raise inSyncReplicas",
            )
        yield from self._memory_checks(config, sound)
        tls = ("ha_tls_cert", "ha_tls_key", "ha_tls_ca")
        missing = [attribute for attribute in tls if attribute not in self.given]
        if 0 < len(missing) < len(tls):
            yield self._problem(missing[0], "is missing, mutual TLS needs all three files", "give it, too")
        if (
            sound("broker_id", "record_dir")
            and config.record_dir is not None
            and config.broker_id > RECORDED_BROKER_ID_MAX
        ):
            yield self._problem(
                "broker_id",
                f"is {config.broker_id}, which a recorded session cannot hold",
                f"give at most {RECORDED_BROKER_ID_MAX} or leave out trioha.recordDir",
            )

    def _controller_checks(self, config: BrokerConfig, sound: Callable[..., bool]) -> Iterator[ConfigError]:
        """Problems of controller mode, where the controllers give id and role."""
        if sound("controller_addr") and not config.controller_addr:
            yield self._problem(
                "controller_addr",
                "is missing, but enableControllerMode is true",
                "give HOST:PORT of each controller, split by ;",
            )
        if sound("namesrv_addr") and not config.namesrv_addr:
            yield self._problem(
                "namesrv_addr",
                "is missing, but enableControllerMode is true",
                "give the name servers: clients and slaves find the master there",
            )
        if "broker_id" in self.given and sound("broker_id") and config.broker_id != -1:
            yield self._problem(
                "broker_id",
                f"is {config.broker_id}, but with enableControllerMode the controllers give the id",
                "give -1 or leave it out",
            )
        if (
            "broker_role" in self.given
            and sound("broker_role")
            and config.broker_role is not BrokerRole.SLAVE
        ):
            yield self._problem(
                "broker_role",
                f"is {config.broker_role}, but with enableControllerMode the controllers give the role",
                "give SLAVE or leave it out",
            )
        for attribute in ("ha_master_address", "master_address"):
            if sound(attribute) and getattr(config, attribute) is not None:
                yield self._problem(
                    attribute, "names a master, but enableControllerMode is true", "leave it out"
                )
        if sound("ha_role") and config.ha_role is HaRole.OBSERVER:
            yield self._problem(
                "ha_role",
                "is observer, but enableControllerMode is true",
                "asyncLearner=true makes a copy that is never elected",
            )
        for attribute in ("broker_cluster_name", "broker_name"):
            if sound(attribute) and "#" in getattr(config, attribute):
                yield self._problem(
                    attribute,
                    "has a #, which splits the fields of brokerIdentity",
                    "give a name without it",
                )
        if (
            sound("broker_heartbeat_interval", "controller_heart_beat_timeout_mills")
            and config.broker_heartbeat_interval >= config.controller_heart_beat_timeout_mills
        ):
            yield self._problem(
                "broker_heartbeat_interval",
                f"is {config.broker_heartbeat_interval}, not below controllerHeartBeatTimeoutMills="
                f"{config.controller_heart_beat_timeout_mills}: this node would count as dead",
                "lower it",
            )

    def _security_checks(self, config: BrokerConfig, sound: Callable[..., bool]) -> Iterator[ConfigError]:
        """Problems of access control and of TLS for clients."""
        if sound("acl_enable", "acl_file") and config.acl_enable and config.acl_file is None:
            yield self._problem(
                "acl_file", "is missing, but aclEnable is true", "give the path of a plain_acl.yml"
            )
        for attribute, other in (("access_key", "secret_key"), ("secret_key", "access_key")):
            if getattr(config, attribute) is not None and getattr(config, other) is None:
                yield self._problem(other, f"is missing beside {_SETTINGS[attribute].key}", "give both")
        files = ("tls_server_cert_path", "tls_server_key_path")
        missing = [attribute for attribute in files if getattr(config, attribute) is None]
        if not sound("tls_server_mode", *files):
            return
        if len(missing) == 1:
            yield self._problem(missing[0], "is missing, TLS needs a certificate and its key", "give both")
        elif missing and config.tls_server_mode is TlsMode.ENFORCING:
            yield self._problem(
                missing[0], "is missing, but tls.server.mode is enforcing", "give certificate and key"
            )
        if config.tls_server_mode is TlsMode.ENFORCING and config.with_name_server and not config.tls_enable:
            yield self._problem(
                "tls_enable",
                "is false, but tls.server.mode is enforcing, also for the node's own name server",
                "give tls.enable=true",
            )
        if config.tls_client_auth_server and config.tls_client_trust_cert_path is None:
            yield self._problem(
                "tls_client_trust_cert_path",
                "is missing, but tls.client.authServer is true",
                "give the authorities of the name servers' certificates",
            )
        verifies = config.tls_server_auth_client and config.tls_server_trust_cert_path is not None
        if config.tls_server_auth_client and config.tls_server_trust_cert_path is None:
            yield self._problem(
                "tls_server_trust_cert_path",
                "is missing, but tls.server.authClient is true",
                "give the authorities of the clients' certificates",
            )
        elif config.tls_server_need_client_auth is ClientAuth.REQUIRE and not verifies:
            yield self._problem(
                "tls_server_need_client_auth",
                "is require, but certificates of clients are not verified",
                "give tls.server.authClient=true and tls.server.trustCertPath",
            )

    def _memory_checks(self, config: BrokerConfig, sound: Callable[..., bool]) -> Iterator[ConfigError]:
        """Problems of memory limits that are too small for another setting."""
        frame_bytes_needed = config.max_message_size + FRAME_BYTES_BESIDE_BODY
        if sound("frame_bytes_max", "max_message_size") and config.frame_bytes_max < frame_bytes_needed:
            yield self._problem(
                "frame_bytes_max",
                f"is {config.frame_bytes_max}, too little for a message of maxMessageSize="
                f"{config.max_message_size}",
                f"give at least {frame_bytes_needed} or lower maxMessageSize",
            )
        elif sound(
            "frame_bytes_max", "max_message_size", "client_bytes_max"
        ) and config.client_bytes_max < client_bytes_needed(config.frame_bytes_max):
            yield self._problem(
                "client_bytes_max",
                f"is {config.client_bytes_max}, too little for trioha.frameBytesMax={config.frame_bytes_max}",
                f"give at least {client_bytes_needed(config.frame_bytes_max)} or lower trioha.frameBytesMax",
            )

    def _problem(self, attribute: str, reason: str, hint: str) -> ConfigError:
        """A problem at the place of `attribute`, or of the whole file if `attribute` was not given."""
        given = self.given.get(attribute)
        if given is None:
            return ConfigError(reason, file=self.file, key=_SETTINGS[attribute].key, hint=hint)
        return given.problem(reason, hint)


def _warnings(config: BrokerConfig, given: dict[str, _Given]) -> Iterator[str]:
    """Warnings of settings that are valid but unlikely to be intended."""

    def at(attribute: str, text: str) -> str:
        return f"{given[attribute].place}: {text}"

    sync_master = config.broker_role is BrokerRole.SYNC_MASTER
    if sync_master and "in_sync_replicas" in given and config.in_sync_replicas == 1:
        yield at(
            "in_sync_replicas",
            "a SYNC_MASTER still waits for one slave; to wait for none, set brokerRole=ASYNC_MASTER",
        )
    if sync_master and "total_replicas" in given and config.total_replicas == 1:
        yield at(
            "total_replicas", "a SYNC_MASTER needs a slave: without one every put is SLAVE_NOT_AVAILABLE"
        )
    if config.consume_replicated_only and config.broker_role is BrokerRole.ASYNC_MASTER:
        yield at("consume_replicated_only", "has no effect: an ASYNC_MASTER waits for no slave")
    if config.archive_url is None:
        for attribute in ("archive_interval", "archive_keep", "archive_before_delete"):
            if attribute in given:
                yield at(attribute, "has no effect without trioha.archiveUrl")
    for attribute in _OF_OTHER_MODE[config.enable_controller_mode]:
        if attribute in given and getattr(config, attribute):
            without = "with" if config.enable_controller_mode else "without"
            yield at(attribute, f"has no effect {without} enableControllerMode=true")
    if config.broker_role is not BrokerRole.SLAVE and config.ha_master_address is not None:
        yield at("ha_master_address", f"is not used by a {config.broker_role}")
    body_bytes_max = config.mapped_file_size_commit_log - RECORD_BYTES_MIN - FILE_END_BYTES_MIN
    if config.max_message_size > body_bytes_max:
        attribute = "max_message_size" if "max_message_size" in given else "mapped_file_size_commit_log"
        yield at(
            attribute,
            f"a file of {config.mapped_file_size_commit_log} bytes has no room for maxMessageSize="
            f"{config.max_message_size}: bodies beyond {body_bytes_max} bytes will be MESSAGE_ILLEGAL",
        )
    for per_peer, in_all in (
        ("connections_per_peer", "connections_max"),
        ("ha_connections_per_peer", "ha_connections_max"),
    ):
        if per_peer in given and getattr(config, per_peer) > getattr(config, in_all):
            yield at(
                per_peer,
                f"is above {_SETTINGS[in_all].key}={getattr(config, in_all)}: "
                "one address may take all places",
            )
    if config.tls_server_auth_client and config.tls_server_need_client_auth is ClientAuth.NONE:
        yield at(
            "tls_server_auth_client",
            "clients are not asked for certificates: tls.server.need.client.auth is none",
        )
    if config.ha_housekeeping_interval <= config.ha_send_heartbeat_interval:
        attribute = (
            "ha_housekeeping_interval"
            if "ha_housekeeping_interval" in given
            else "ha_send_heartbeat_interval"
        )
        yield at(
            attribute,
            f"haHousekeepingInterval={config.ha_housekeeping_interval} is not above haSendHeartbeatInterval="
            f"{config.ha_send_heartbeat_interval}: idle connections will be closed again and again",
        )

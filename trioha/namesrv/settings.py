"""A name server's settings: RocketMQ's keys of a namesrv.conf, and one of our own.

Keys that RocketMQ's name server has and this one does not use are accepted with a warning; any other key, and
a value that its key cannot have, is refused.
"""

# ruff: noqa: RUF009 - `_setting` is a field specifier of attrs

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import Factory, evolve, frozen

from trioha.config import values
from trioha.config.keys.security import TlsMode
from trioha.config.properties_file import PropertiesDocument
from trioha.config.values import LONG_MAX, PORT_MAX, InvalidValue
from trioha.errors import ConfigError
from trioha.remoting.codec import FRAME_BYTES_MAX
from trioha.remoting.memory import bytes_max_for

T = TypeVar("T")

DEFAULT_PORT: Final = 9876
UNUSED_KEYS: Final = frozenset(
    (
        "clientRequestThreadPoolNums", "clientRequestThreadPoolQueueCapacity", "clusterTest",
        "configBlackList", "configStorePath", "controllerStorePath", "defaultThreadPoolNums",
        "defaultThreadPoolQueueCapacity", "enableAllTopicList", "enableControllerInNamesrv",
        "enableShutdownGracefully", "enableTopicList", "needWaitForService", "notifyMinBrokerIdChanged",
        "productEnvName", "rocketmqHome", "serverAsyncSemaphoreValue", "serverCallbackExecutorThreads",
        "serverNettyWorkerGroupEnable", "serverOnewaySemaphoreValue", "serverPooledByteBufAllocatorEnable",
        "serverSelectorThreads", "serverSocketBacklog", "serverSocketRcvBufSize", "serverSocketSndBufSize",
        "serverWorkerThreads", "shutdownWaitTimeSeconds", "unRegisterBrokerQueueCapacity",
        "useEpollNativeSelector", "waitSecondsForService", "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
    )
)  # fmt: skip
"""Of RocketMQ's name server."""
FILE_BYTES_MAX: Final = 1024 * 1024


def _setting(
    key: str,
    parse: Callable[[str], T],
    *,
    default: T | Any,
    at_run_time: bool = False,
    is_secret: bool = False,
) -> T:
    metadata = {"key": key, "parse": parse, "at_run_time": at_run_time}
    return cast("T", attrs.field(default=default, repr=not is_secret, metadata=metadata))


@frozen(kw_only=True)
class NameServerSettings:
    """The settings of one name server."""

    listen_port: int = _setting("listenPort", values.integer(low=0, high=PORT_MAX), default=DEFAULT_PORT)
    """Port that clients and brokers dial; 0 takes any free port. RocketMQ default: 9876."""

    bind_address: str = _setting(
        "bindAddress",
        values.name,
        default="0.0.0.0",  # noqa: S104 - RocketMQ's default
    )
    """Address that it listens on. RocketMQ default: all of IPv4."""

    kv_config_path: Path = _setting(
        "kvConfigPath",
        values.directory,
        default=Factory(lambda: Path.home() / "namesrv" / "kvConfig.json"),
    )
    """File of the key-value table. RocketMQ default: $HOME/namesrv/kvConfig.json."""

    order_message_enable: bool = _setting(
        "orderMessageEnable", values.boolean, default=False, at_run_time=True
    )
    """Whether routes of ordered topics carry their queues of ORDER_TOPIC_CONFIG. RocketMQ default: false."""

    return_order_topic_config_to_broker: bool = _setting(
        "returnOrderTopicConfigToBroker", values.boolean, default=True, at_run_time=True
    )
    """Whether brokers get ORDER_TOPIC_CONFIG when they register. RocketMQ default: true."""

    support_acting_master: bool = _setting(
        "supportActingMaster", values.boolean, default=False, at_run_time=True
    )
    """Whether routes show a slave that acts as its group's master as one. RocketMQ default: false."""

    delete_topic_with_broker_registration: bool = _setting(
        "deleteTopicWithBrokerRegistration", values.boolean, default=False, at_run_time=True
    )
    """Whether a registration deletes the broker's topics that it lacks. RocketMQ default: false."""

    scan_not_active_broker_interval: int = _setting(
        "scanNotActiveBrokerInterval", values.integer(low=1), default=5000, at_run_time=True
    )
    """Milliseconds between two looks for silent brokers. RocketMQ default: 5000."""

    idle_timeout_s: int = _setting("serverChannelMaxIdleTimeSeconds", values.integer(low=1), default=120)
    """Seconds without a byte from or to a peer after which its connection is closed.

    RocketMQ default: 120.
    """

    connections_max: int = _setting("trioha.connectionsMax", values.integer(low=1), default=1024)
    """Connections at a time, half of them of one address.

    Lowered where the process may not open so many files.
    """

    brokers_max: int = _setting("trioha.brokersMax", values.integer(low=1), default=1024)
    """Brokers at a time, of all clusters: one more is refused."""

    topics_max: int = _setting("trioha.topicsMax", values.integer(low=1), default=200_000)
    """Topics, counted once for each broker name that has them: a registration with more is refused.

    Each takes some 500 bytes.
    """

    client_bytes_max: int = _setting(
        "trioha.clientBytesMax",
        values.integer(low=bytes_max_for(FRAME_BYTES_MAX), high=LONG_MAX),
        default=128 * 1024 * 1024,
    )
    """Bytes held for all peers: requests, whole or not, and answers not yet sent."""

    tls_server_mode: TlsMode = _setting("tls.server.mode", values.one_of(TlsMode), default=TlsMode.PERMISSIVE)
    """What the port does with TLS, if there is a certificate. RocketMQ default: permissive."""

    tls_server_cert_path: Path | None = _setting(
        "tls.server.certPath", values.optional_directory, default=None
    )
    """PEM file of the certificate. RocketMQ default: none; it makes one that no client can verify."""

    tls_server_key_path: Path | None = _setting("tls.server.keyPath", values.optional_directory, default=None)
    """PEM file of the certificate's key."""

    tls_server_key_password: str | None = _setting(
        "tls.server.keyPassword", values.optional_text, default=None, is_secret=True
    )
    """Password of that file."""


_FIELDS: Final[Mapping[str, attrs.Attribute[Any]]] = {
    field.metadata["key"]: field for field in attrs.fields(NameServerSettings)
}


@frozen
class LoadedSettings:
    """Settings that may be used, and what their author should know about them."""

    settings: NameServerSettings
    warnings: tuple[str, ...]


def load_settings(path: Path | None, overrides: Sequence[str] = ()) -> LoadedSettings:
    """Read a namesrv.conf, if there is one, and apply `overrides` (`key=value`). Raises ConfigError."""
    given: dict[str, tuple[str, str, int | None]] = {}
    if path is not None:
        for entry in PropertiesDocument.parse(_read(path)).entries:
            if entry.problem is not None:
                raise ConfigError(entry.problem, file=path, line=entry.line, key=entry.key)
            given[entry.key] = (entry.value.strip(), str(path), entry.line)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError("is not of the form key=value", file=f"-p {key.strip()}")
        given[key.strip()] = (value.strip(), f"-p {key.strip()}", None)
    parsed: dict[str, Any] = {}
    unused = []
    for key, (value, file, line) in given.items():
        field = _FIELDS.get(key)
        if field is None:
            if key not in UNUSED_KEYS:
                raise ConfigError("is not a key of RocketMQ's name server", file=file, line=line, key=key)
            unused.append(key)
            continue
        try:
            parsed[field.name] = field.metadata["parse"](value)
        except InvalidValue as refused:
            raise ConfigError(refused.reason, file=file, line=line, key=key, hint=refused.hint) from None
    warnings = (f"known to RocketMQ, not used by trioha: {', '.join(unused)}",) if unused else ()
    return LoadedSettings(NameServerSettings(**parsed), warnings)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX} bytes: not a namesrv.conf", file=path)
    return data


class FixedSettingError(Exception):
    """A setting that cannot be changed while the name server runs."""


def updated(settings: NameServerSettings, text: bytes) -> NameServerSettings:
    """`settings` with those of a properties text; keys that are not ours are ignored, as RocketMQ does.

    Raises FixedSettingError for a setting that needs a restart, InvalidValue for a value that its key cannot
    have.
    """
    changes: dict[str, Any] = {}
    for entry in PropertiesDocument.parse(text).entries:
        field = _FIELDS.get(entry.key)
        if entry.problem is not None:
            raise InvalidValue(f"{entry.key}: {entry.problem}")
        if field is None and entry.key not in {"configStorePath", "configBlackList"}:
            continue
        if field is None or not field.metadata["at_run_time"]:
            raise FixedSettingError(entry.key)
        try:
            changes[field.name] = field.metadata["parse"](entry.value.strip())
        except InvalidValue as refused:
            raise InvalidValue(f"{entry.key}: {refused.reason}") from None
    return evolve(settings, **changes)


def settings_text(settings: NameServerSettings) -> bytes:
    """All settings as a properties text, by key, without secrets and those that have no value."""
    lines = []
    for key, field in sorted(_FIELDS.items()):
        value = getattr(settings, field.name)
        if value is None or not field.repr:
            continue
        lines.append(f"{key}={str(value).lower() if isinstance(value, bool) else value}\n")
    return "".join(lines).encode()

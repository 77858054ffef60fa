"""Scenarios: the settings of a recording, and a grid of changes to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import product
from typing import Any, Final, TypeVar

from attrs import evolve, field, frozen

from trioha.config.broker import SETTINGS, BrokerRole
from trioha.config.keys.ha import AckMode
from trioha.config.keys.store import FlushDiskType
from trioha.config.values import InvalidValue
from trioha.errors import ConfigError, StoreError
from trioha.numbers import Range, parse_int
from trioha.recording.layout import SESSION_FILE
from trioha.recording.reader import Session
from trioha_sessions.sync import SyncRule

_Names = TypeVar("_Names", bound=Enum)

KNOWN_SETTINGS: Final = {
    "brokerRole": "role",
    "inSyncReplicas": "in_sync_replicas",
    "minInSyncReplicas": "min_in_sync_replicas",
    "allAckInSyncStateSet": "all_ack_in_sync_state_set",
    "enableAutoInSyncReplicas": "enable_auto_in_sync_replicas",
    "slaveTimeout": "slave_timeout_ms",
    "syncFlushTimeout": "sync_flush_timeout_ms",
    "flushDiskType": "flush_disk_type",
    "haTransferBatchSize": "transfer_batch_bytes",
    "trioha.haTransferBatchMax": "transfer_batch_bytes_max",
    "trioha.haAckMode": "ack_mode",
    "haMaxGapNotInSync": "gap_bytes_max",
    "haMaxTimeSlaveNotCatchup": "silence_ms_max",
}
"""Modelled settings: field of `Scenario` by broker.conf key."""

SLAVES_MAX: Final = 64
WRITERS_MAX: Final = 100_000
POINTS_MAX: Final = 1000
"""Maximum number of points of a grid."""
_SCALES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_AMOUNT: Final = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,15})?)(?P<unit>[kmg]i?)?", re.IGNORECASE)
_TIME: Final = re.compile(r"(?P<number>[0-9]{1,15}(?:\.[0-9]{1,15})?)(?P<unit>us|ms|s)?")
_TIME_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@frozen
class Scenario:
    """Settings of a simulation."""

    role: BrokerRole = BrokerRole.SYNC_MASTER
    """SYNC_MASTER or ASYNC_MASTER."""
    slaves: int = 1
    """Slaves that are connected all the time."""
    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    all_ack_in_sync_state_set: bool = False
    enable_auto_in_sync_replicas: bool = False
    slave_timeout_ms: int = 3000
    sync_flush_timeout_ms: int = 5000
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    transfer_batch_bytes: int = 32768
    transfer_batch_bytes_max: int = 1 << 20
    ack_mode: AckMode = AckMode.WRITTEN
    gap_bytes_max: int = 256 << 20
    silence_ms_max: int = 15_000
    """haMaxTimeSlaveNotCatchup: how long a slave with unacknowledged bytes counts as in sync."""
    bandwidth_bytes_per_s: float | None = None
    """Of each slave's link, each way; None for that of the recording."""
    rtt_s: float = 0.0
    """Round trip that is added to each slave's link."""
    writers: int | None = None
    """Closed-loop writers; None for those of the recording."""
    rate_per_s: float | None = None
    """Puts per second of open-loop producers; None for those of the recording."""

    def copies_needed(self, in_sync: int) -> int:
        """Slaves that must acknowledge a put while so many are in sync."""
        if self.role is not BrokerRole.SYNC_MASTER:
            return 0
        need = max(1, self.in_sync_replicas - 1)
        if self.all_ack_in_sync_state_set:
            need = max(need, in_sync)
        if self.enable_auto_in_sync_replicas:
            need = max(min(need, in_sync), self.min_in_sync_replicas - 1)
        return need

    @property
    def sync_rule(self) -> SyncRule:
        """Rule by which a slave counts as in sync."""
        return SyncRule(self.gap_bytes_max, self.silence_ms_max * 10**6)

    @property
    def is_sync_flush(self) -> bool:
        """Whether puts wait for the master's disk."""
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH


@frozen
class Change:
    """A value of a command-line option."""

    label: str
    """`key=value`."""
    values: Mapping[str, Any]
    """Changed fields of `Scenario`."""


@frozen
class Point:
    """A combination of changes."""

    label: str
    """`key=value key=value`."""
    scenario: Scenario
    changes: Mapping[str, str] = field(factory=dict)
    """The values by key, as given."""


def recorded_scenario(session: Session, *, slaves: int, ack_mode: AckMode = AckMode.WRITTEN) -> Scenario:
    """The settings of a master's session, with RocketMQ's defaults for those that it does not name.

    `slaves`: number of connected slaves; `ack_mode`: theirs.
    """
    settings = session.identity.settings
    parsers = {setting.key: setting.parse for setting in SETTINGS.values()}
    values: dict[str, Any] = {}
    for key, name in KNOWN_SETTINGS.items():
        if key in settings and key != "trioha.haAckMode":
            values[name] = _parsed(parsers[key], key, str(settings[key]))
    values["role"] = _named(BrokerRole, session, "role", session.identity.role)
    return Scenario(slaves=slaves, ack_mode=ack_mode, **values)


def ack_mode_of(session: Session) -> AckMode:
    """What a slave's session says that its acks promise."""
    key = "trioha.haAckMode"
    return _named(AckMode, session, key, session.identity.settings.get(key, AckMode.WRITTEN.value))


def _named(names: type[_Names], session: Session, key: str, value: object) -> _Names:
    try:
        return names(value)
    except ValueError:
        reason = f"{key} {value!r} is none of {', '.join(one.value for one in names)}"
        raise StoreError(reason, path=session.path / SESSION_FILE) from None


def setting_axes(options: Iterable[str]) -> list[list[Change]]:
    """An axis of the grid for each key in `options` (`KEY=VALUE[,VALUE ...]`), in their order.

    A key that is given again adds its values to its axis. Raises ConfigError for a key that there is not or
    that is not modelled, and for a value that does not fit it.
    """
    settings = {key: setting for setting in SETTINGS.values() for key in (setting.key, *setting.aliases)}
    axes: dict[str, list[Change]] = {}
    for option in options:
        key, equals, texts = option.partition("=")
        if not equals:
            raise ConfigError(f"{option!r} is not KEY=VALUE", key="--set", hint="as in inSyncReplicas=2")
        setting = settings.get(key)
        if setting is None:
            raise ConfigError("there is no such setting", key=key, hint=f"one of {', '.join(KNOWN_SETTINGS)}")
        name = KNOWN_SETTINGS.get(setting.key)
        if name is None:
            raise ConfigError("is not modelled", key=key, hint=f"one of {', '.join(KNOWN_SETTINGS)}")
        for text in texts.split(","):
            value = _parsed(setting.parse, key, text.strip())
            if value is BrokerRole.SLAVE:
                raise ConfigError("is not modelled", key=f"{key}=SLAVE", hint="SYNC_MASTER or ASYNC_MASTER")
            change = Change(f"{setting.key}={text.strip()}", {name: value})
            axis = axes.setdefault(setting.key, [])
            if change not in axis:
                axis.append(change)
    return list(axes.values())


def bandwidth_axis(options: Iterable[str]) -> list[Change]:
    """The axis of `--bandwidth`: bytes per second with k, M, G, Ki, Mi or Gi. Raises ConfigError."""
    return [
        Change(f"bandwidth={text}", {"bandwidth_bytes_per_s": parse_amount("--bandwidth", text)})
        for text in _texts(options)
    ]


def rtt_axis(options: Iterable[str]) -> list[Change]:
    """The axis of `--rtt`: us, ms (as a bare number is) or s. Raises ConfigError."""
    return [Change(f"rtt={text}", {"rtt_s": parse_time_s("--rtt", text)}) for text in _texts(options)]


def count_axis(option: str, name: str, texts: Iterable[str], *, low: int, high: int) -> list[Change]:
    """The axis of an option that counts something. Raises ConfigError."""
    return [
        Change(f"{option}={text}", {name: _count(f"--{option}", text, low=low, high=high)})
        for text in _texts(texts)
    ]


def rate_axis(options: Iterable[str]) -> list[Change]:
    """The axis of `--rate`: puts per second. Raises ConfigError."""
    return [
        Change(f"rate={text}", {"rate_per_s": parse_amount("--rate", text), "writers": None})
        for text in _texts(options)
    ]


def grid(recorded: Scenario, axes: Sequence[Sequence[Change]]) -> list[Point]:
    """All combinations of the axes' changes to `recorded`; one as_recorded point without any axis.

    Raises ConfigError if there are more than `POINTS_MAX`.
    """
    axes = [axis for axis in axes if axis]
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > POINTS_MAX:
        raise ConfigError(f"{count} combinations are too many", key="grid", hint=f"at most {POINTS_MAX}")
    points = []
    for combination in product(*axes):
        scenario = recorded
        for change in combination:
            scenario = evolve(scenario, **change.values)
        labels = [change.label for change in combination]
        points.append(
            Point(
                " ".join(labels) or "as recorded",
                scenario,
                {label.partition("=")[0]: label.partition("=")[2] for label in labels},
            )
        )
    return points


def parse_amount(option: str, text: str) -> float:
    """A number above 0 with k, M, G, Ki, Mi or Gi. Raises ConfigError."""
    found = _AMOUNT.fullmatch(text)
    value = float(found["number"]) * _SCALES[(found["unit"] or "").lower()] if found else 0.0
    if value <= 0:
        raise ConfigError(
            f"{text!r} is not an amount above 0",
            key=option,
            hint="a number, with k, M, G, Ki, Mi or Gi if you like",
        )
    return value


def parse_time_s(option: str, text: str) -> float:
    """A time of 0 or more in us, ms (as a bare number is) or s. Raises ConfigError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is not a time", key=option, hint="as in 5ms, 200us or 0.1s")
    return float(found["number"]) * _TIME_S[found["unit"] or "ms"]


def _texts(options: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text.strip() for option in options for text in option.split(",")))


def _count(option: str, text: str, *, low: int, high: int) -> int:
    try:
        return parse_int(text, Range(low, high))
    except ValueError:
        raise ConfigError(f"{text!r} is not a number from {low} to {high}", key=option) from None


def _parsed(parse: Any, key: str, text: str) -> Any:
    try:
        return parse(text)
    except InvalidValue as refused:
        raise ConfigError(refused.reason, key=key, hint=refused.hint) from None

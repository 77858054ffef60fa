"""The runtime table and the configuration of a broker: answers to requests 28 and 26.

See docs/protocol/remoting.md#runtime-info.

Both are text of a foreign broker. A value that is missing or makes no sense is None in what is made of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trioha.broker_status import BrokerRuntimeInfo, BrokerSettings
from trioha.errors import RemoteProtocolError
from trioha.numbers import NATURAL64, parse_int
from trioha.remoting.fastjson import ANSWER_LIMITS, JsonLimits, as_text, parse_json
from trioha.remoting.ha_runtime_info import SETTING_KEYS

_CAPACITY = re.compile(r"Total\s*:\s*([0-9.]+)\s*(\w+),\s*Free\s*:\s*([0-9.]+)\s*(\w+)")
_RUNTIME = re.compile(
    r"\[ ([0-9]{1,7}) days, ([0-9]{1,2}) hours, ([0-9]{1,2}) minutes, ([0-9]{1,2}) seconds \]"
)
_DECIMAL = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?")
"""A number as Java's `Double.toString` and formats write it; `float` alone would also accept other digits,
blanks, underscores and `nan`."""
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}


def parse_runtime_info(body: bytes | memoryview, *, limits: JsonLimits = ANSWER_LIMITS) -> Mapping[str, str]:
    """The table in an answer to GET_BROKER_RUNTIME_INFO.

    `limits` are those of `parse_json`. Raises RemoteProtocolError for a body without a table.
    """
    whole = parse_json(body, limits=limits)
    table = whole.get("table") if isinstance(whole, dict) else None
    if not isinstance(table, dict):
        raise RemoteProtocolError("runtime info: no table in it")
    return {as_text(name): as_text(value) for name, value in table.items()}


def settings_of(config: Mapping[str, str]) -> BrokerSettings:
    """The settings in the configuration of a RocketMQ broker."""
    settings = {name: natural_of(config, key) for name, key in SETTING_KEYS.items()}
    if settings["gap_bytes_max"] is None:
        settings["gap_bytes_max"] = natural_of(config, "haSlaveFallbehindMax")
    return BrokerSettings(**settings)


def runtime_info_of(table: Mapping[str, str]) -> BrokerRuntimeInfo:
    """The figures in a runtime table."""
    earliest_ms = natural_of(table, "earliestMessageTimeStamp")
    capacity = _CAPACITY.search(table.get("commitLogDirCapacity", ""))
    ratio = _float(table.get("commitLogDiskRatio", ""))
    return BrokerRuntimeInfo(
        booted_ms=natural_of(table, "bootTimestamp"),
        earliest_ms=earliest_ms or None,
        put_messages_per_s=_float(table.get("putTps", "").partition(" ")[0]),
        puts_total=natural_of(table, "putMessageTimesTotal"),
        puts_failed=natural_of(table, "putMessageFailedTimes"),
        unflushed_bytes=_size(*table.get("remainHowManyDataToFlush", "").partition(" ")[::2]),
        disk_ratio=ratio if ratio is not None and ratio <= 1 else None,
        disk_total_bytes=None if capacity is None else _size(capacity[1], capacity[2]),
        disk_free_bytes=None if capacity is None else _size(capacity[3], capacity[4]),
    )


def uptime_s_of(table: Mapping[str, str]) -> int | None:
    """How long the broker has run by a runtime table, in whole seconds, rounded down."""
    found = _RUNTIME.search(table.get("runtime", ""))
    if found is None:
        return None
    days, hours, minutes, seconds = map(int, found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def natural_of(pairs: Mapping[str, str], key: str) -> int | None:
    """The number from 0 to the largest Java long of that key, None if there is none."""
    try:
        return parse_int(pairs.get(key), NATURAL64)
    except ValueError:
        return None


def _float(text: str) -> float | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    value = float(text)
    # A figure above the largest Java long makes no sense.
    return value if value < 2**63 else None


def _size(number: str, unit: str) -> int | None:
    count, factor = _float(number), _UNITS.get(unit)
    return None if count is None or factor is None else round(count * factor)

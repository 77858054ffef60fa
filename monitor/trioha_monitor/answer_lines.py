"""A recording of the monitor, line by line: each line is the JSON of one observation.

| `kind` | beside `at_ms` |
|---|---|
| `start` | the first line: `format`, `version`, `program`, and the fields of `Start` |
| `answer` | `node`: its address; `status`: the fields of `trioha.broker_status.BrokerStatus` |
| `no-answer` | `node`, `reason` |
| `listing` | `name_server`, `brokers`, `invalid` (`Listing`) |
| `no-listing` | `name_server`, `reason` |
| `clock` | `by_ms` (`ClockStep`) |
| `gap` | `answers`: how many are missing before it, `reason` (`Gap`) |

A field of `status` that is None or empty is left out; numbers and booleans are always there. Lines are
checked as a peer's answers are: types and sizes here, values by `trioha_monitor.answers`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, get_args, get_origin

from attrs import Factory, fields, resolve_types
from cattrs import Converter
from cattrs.gen import make_dict_unstructure_fn, override

from trioha import __version__
from trioha.broker_status import (
    ArchiveStatus,
    BrokerRuntimeInfo,
    BrokerSettings,
    BrokerStatus,
    ConnectionStatus,
    ControllerLinkStatus,
    ControlStatus,
    MemberStatus,
    MetadataStatus,
    PendingStatus,
    SlaveStatus,
    TableCopyStatus,
)
from trioha.errors import RemoteProtocolError
from trioha.numbers import I64, NATURAL32, Range, parse_int
from trioha.remoting.fastjson import JsonLimits, parse_json, shown
from trioha_monitor.cluster import NODES_MAX, Sample
from trioha_monitor.observations import ClockStep, Gap, Listing, Observation
from trioha_monitor.watched import Start

FORMAT: Final = "trioha-monitor"
VERSION: Final = 1
LINE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest line."""
TIME_MS: Final = Range(0, 2**42)
"""Times that are accepted, milliseconds since 1970: to the year 2109."""
_LIMITS: Final = JsonLimits(containers_max=50_000, dialect_chars_max=0, values_max=400_000)
_BROKERS_MAX: Final = 100_000
_EMPTY: Final = (None, "", (), BrokerSettings(), BrokerRuntimeInfo())
_INTERVAL_MS: Final = Range(1, 3_600_000)


def encode_start(start: Start) -> bytes:
    """The first line."""
    return _line(
        {
            "kind": "start",
            "at_ms": start.at_ms,
            "format": FORMAT,
            "version": VERSION,
            "program": __version__,
            "interval_ms": start.interval_ms,
            "named": start.named[:NODES_MAX],
            "name_servers": start.name_servers[:NODES_MAX],
            "shown": start.shown[:NODES_MAX],
        }
    )


def encode(seen: Observation) -> bytes:
    """The line of an observation."""
    match seen:
        case Sample(address=node, at_ms=at_ms, status=None, fault=fault):
            return _line({"kind": "no-answer", "at_ms": at_ms, "node": node, "reason": fault or ""})
        case Sample(address=node, at_ms=at_ms, status=status):
            status_fields = _CONVERTER.unstructure(status)
            return _line({"kind": "answer", "at_ms": at_ms, "node": node, "status": status_fields})
        case Listing(name_server=address, at_ms=at_ms, brokers=None, fault=fault):
            return _line({"kind": "no-listing", "at_ms": at_ms, "name_server": address, "reason": fault})
        case Listing(name_server=address, at_ms=at_ms, brokers=brokers, invalid=invalid):
            values = {"name_server": address, "brokers": brokers, "invalid": invalid}
            return _line({"kind": "listing", "at_ms": at_ms, **values})
        case ClockStep(at_ms=at_ms, by_ms=by_ms):
            return _line({"kind": "clock", "at_ms": at_ms, "by_ms": by_ms})
        case Gap(at_ms=at_ms, count=count, reason=reason):
            return _line({"kind": "gap", "at_ms": at_ms, "answers": count, "reason": reason})


def _line(values: Mapping[str, object]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def decode_start(line: bytes) -> Start:
    """The first line. Raises ValueError, with one line of text, for any other."""
    values = _values(line)
    if values.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    if values.get("version") != VERSION:
        raise ValueError(f"it has version {shown(values.get('version'))}, this trioha reads {VERSION}")
    return Start(
        at_ms=parse_int(values.get("at_ms"), TIME_MS),
        interval_ms=parse_int(values.get("interval_ms"), _INTERVAL_MS),
        named=_texts(values.get("named"), at_most=NODES_MAX),
        name_servers=_texts(values.get("name_servers"), at_most=NODES_MAX),
        shown=_texts(values.get("shown"), at_most=NODES_MAX),
    )


def decode(line: bytes) -> Observation | None:
    """The observation in a line; None for a kind that this version does not know.

    Raises ValueError, with one line of text, for a line that has none.
    """
    values = _values(line)
    at_ms = parse_int(values.get("at_ms"), TIME_MS)
    match values.get("kind"):
        case "answer":
            return Sample(_text(values.get("node")), at_ms, _status(values.get("status")))
        case "no-answer":
            return Sample(_text(values.get("node")), at_ms, fault=_text(values.get("reason")))
        case "listing":
            name_server, invalid = _text(values.get("name_server")), values.get("invalid")
            brokers = _texts(values.get("brokers"), at_most=_BROKERS_MAX)
            return Listing(name_server, at_ms, brokers, parse_int(invalid, NATURAL32))
        case "no-listing":
            return Listing(_text(values.get("name_server")), at_ms, fault=_text(values.get("reason")))
        case "clock":
            return ClockStep(at_ms, parse_int(values.get("by_ms"), I64))
        case "gap":
            return Gap(at_ms, parse_int(values.get("answers"), NATURAL32), _text(values.get("reason")))
    return None


def _values(line: bytes) -> dict[str, Any]:
    try:
        values = parse_json(line, limits=_LIMITS)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from error
    if not isinstance(values, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one error for all that is not a line
    return values


def _status(value: object) -> BrokerStatus:
    if not isinstance(value, dict):
        raise ValueError("not a status")  # noqa: TRY004 - as above
    try:
        status: BrokerStatus = _CONVERTER.structure(value, BrokerStatus)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a status: {type(error).__name__} {str(error)[:60]}") from error
    return status


def _texts(value: object, *, at_most: int) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > at_most:
        raise ValueError("not a list of addresses")
    return tuple(map(_text, value))


# -- the converter of statuses ----------------------------------------------------------------------------


Hook = Callable[[Any, Any], Any]
"""Makes a value of a JSON value and its type. Raises ValueError."""
HookFactory = Callable[[Any, Converter], Hook]


def _is_a(generic: object, kind: Any) -> bool:
    return get_origin(kind) is generic


def _text(value: object, _: object = None) -> str:
    if type(value) is not str:
        raise ValueError("not a text")
    return value


def _boolean(value: object, _: object) -> bool:
    if type(value) is not bool:
        raise ValueError("not true or false")
    return value


def _number(value: object, _: object) -> float:
    if type(value) not in {int, float} or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError("not a number")
    return float(value)  # type: ignore[arg-type]


def _array_hook(kind: Any, converter: Converter) -> Hook:
    item_kind = get_args(kind)[0]
    structure_item = converter.get_structure_hook(item_kind)

    def structure(value: object, _: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("not a list")  # noqa: TRY004 - as above
        return tuple([structure_item(item, item_kind) for item in value])

    return structure


def _mapping_hook(kind: Any, converter: Converter) -> Hook:
    member_kind = get_args(kind)[1]
    structure_member = converter.get_structure_hook(member_kind)

    def structure(value: object, _: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError("not an object")  # noqa: TRY004 - as above
        return {_text(name): structure_member(member, member_kind) for name, member in value.items()}

    return structure


def _literal_hook(kind: Any, _: Converter) -> Hook:
    def structure(value: object, _: object) -> object:
        if value not in get_args(kind):
            raise ValueError(f"not one of {', '.join(get_args(kind))}")
        return value

    return structure


def _is_empty(default: object) -> bool:
    """Whether this default of a field means that there is nothing: such a field is left out."""
    return default in _EMPTY or isinstance(default, type(Factory(dict)))


def _converter() -> Converter:
    converter = Converter(detailed_validation=False)
    converter.register_structure_hook(int, lambda value, _: parse_int(value, I64))
    converter.register_structure_hook(bool, _boolean)
    converter.register_structure_hook(str, _text)
    converter.register_structure_hook(float, _number)
    factories: tuple[tuple[object, HookFactory], ...] = (
        (tuple, _array_hook),
        (Mapping, _mapping_hook),
        (Literal, _literal_hook),
    )
    for generic, factory in factories:
        converter.register_structure_hook_factory(partial(_is_a, generic), factory)
    for kind in (
        ConnectionStatus,
        SlaveStatus,
        BrokerSettings,
        BrokerRuntimeInfo,
        TableCopyStatus,
        MetadataStatus,
        ArchiveStatus,
        ControllerLinkStatus,
        MemberStatus,
        ControlStatus,
        PendingStatus,
        BrokerStatus,
    ):
        overrides = {
            one.name: override(omit_if_default=_is_empty(one.default)) for one in fields(resolve_types(kind))
        }
        converter.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, converter, **overrides))  # type: ignore[arg-type]
    return converter


_CONVERTER: Final = _converter()

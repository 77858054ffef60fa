"""Values of attrs classes as typed Arrow values and back: how parts and results of a replay travel.

| value | Arrow type |
|---|---|
| `int`, `float`, `bool`, `str` | int64, double, bool, string |
| an enum | that of its values |
| array of int64 | list of int64 |
| array of records | binary: the records as the session has them (`Session.fields`) |
| attrs class | struct of its fields |
| `tuple[X, ...]`, `Sequence[X]`, `frozenset[X]` | list |
| `tuple[X, Y]` | struct of `_1`, `_2` |
| `Mapping[K, V]` | list of structs of `key` and `value`, in its order |
| `Mapping[str, Any]`: fields of a fact | string: JSON |
| `X | None` | that of X, or null |
| path | struct of `text` and, of an object storage, `location` |
| `Session`, `SessionSettings` | of the session that the value belongs to: not encoded |
| `Invariant`, `GroupInvariant` | string: its name |

`SPECIAL` has the classes that are more than the struct of their fields.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from trioha.archive.access import Location
from trioha.archive.session_paths import ObjectPath
from trioha.recording.reader import Session
from trioha_analysis.session_replay import ConnectionReplay, Reconnect, SessionReplay
from trioha_sessions.invariants import INVARIANTS, CheckState, Invariant, SessionSettings
from trioha_sessions.invariants.adjacent_events import BatchEdges
from trioha_sessions.invariants.copies import AckTable, Copies
from trioha_sessions.invariants.group import GROUP_INVARIANTS, GroupInvariant
from trioha_sessions.invariants.preceding_events import PrecedingEvents
from trioha_sessions.records import record_dtype
from trioha_sessions.state_arrays import Ints

T = TypeVar("T")

_SCALARS: Final[Mapping[Any, pa.DataType]] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
}


@attrs.frozen
class Codec:
    """How values of a type are Arrow values."""

    type: pa.DataType
    encode: Callable[[Any, Session | None], Any]
    """A value as `pa.array` takes it; the session is the one that the value belongs to."""
    decode: Callable[[Any, Session | None], Any]
    """A value from an Arrow scalar that is not null."""


def arrow_type(of: Any) -> pa.DataType:
    """The Arrow type of a class, or of another type of the table above. Raises TypeError for others."""
    return codec_of(of).type


def to_arrow(values: Sequence[Any], of: Any, session: Session | None = None) -> pa.Array:
    """Values of the type `of`, which belong to `session`, as an Arrow array of `arrow_type(of)`."""
    codec = codec_of(of)
    return pa.array([None if one is None else codec.encode(one, session) for one in values], codec.type)


def from_arrow(found: pa.Scalar, of: type[T], session: Session | None = None) -> T:
    """A value of the type `of` that belongs to `session`. Its arrays are read-only."""
    codec = codec_of(cast("Any", of))
    value: T = codec.decode(found, session)
    return value


@cache
def codec_of(of: Any) -> Codec:
    """The codec of a type. Raises TypeError for one that is not of the table above."""
    if of in SPECIAL:
        return SPECIAL[of]()
    if of in _SCALARS:
        return Codec(_SCALARS[of], _as_is, _as_py)
    origin, arguments = get_origin(of), get_args(of)
    if (alias := getattr(origin, "__value__", None)) is not None:
        # NDArray, which NumPy makes a type alias of the language from 2.5 on.
        return codec_of(alias[arguments])
    if origin in {Union, types.UnionType}:
        (known,) = (one for one in arguments if one is not types.NoneType)
        return _optional(codec_of(known))
    if origin is np.ndarray:
        return _array_codec(of)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _pair_codec(arguments)
    if origin in {tuple, frozenset, Sequence}:
        return _list_codec(origin, codec_of(arguments[0]))
    if origin is Mapping:
        return JSON if arguments == (str, Any) else _mapping_codec(*map(codec_of, arguments))
    if isinstance(of, type) and issubclass(of, Enum):
        return Codec(
            _SCALARS[type(next(iter(of)).value)], lambda one, _: one.value, lambda one, _: of(one.as_py())
        )
    if attrs.has(origin or of):
        return _class_codec(of)
    raise TypeError(f"{of} has no Arrow type")


def _as_is(value: Any, _session: Session | None) -> Any:
    return value


def _as_py(scalar: Any, _session: Session | None) -> Any:
    return scalar.as_py()


JSON: Final = Codec(
    pa.string(),
    lambda value, _: json.dumps(value, separators=(",", ":")),
    lambda scalar, _: json.loads(scalar.as_py()),
)


def _optional(codec: Codec) -> Codec:
    return Codec(
        codec.type,
        lambda value, session: None if value is None else codec.encode(value, session),
        lambda scalar, session: codec.decode(scalar, session) if scalar.is_valid else None,
    )


def _array_codec(of: Any) -> Codec:
    (scalar_type,) = get_args(get_args(of)[1])
    if scalar_type is np.void:
        return Codec(pa.binary(), _encode_records, _decode_records)
    if scalar_type is np.int64:
        return Codec(
            pa.list_(pa.int64()),
            lambda value, _: np.asarray(value, np.int64),
            lambda scalar, _: scalar.values.to_numpy(),
        )
    raise TypeError(f"{of} has no Arrow type")


def _encode_records(records: NDArray[np.void], session: Session | None) -> bytes:
    dtype = _dtype_of(session)
    # Where NumPy has joined arrays, it has left out the bytes between the fields.
    return (records if records.dtype == dtype else records.astype(dtype)).tobytes()


def _decode_records(scalar: Any, session: Session | None) -> NDArray[np.void]:
    return np.frombuffer(scalar.as_buffer() or b"", _dtype_of(session))


def _dtype_of(session: Session | None) -> np.dtype[np.void]:
    assert session is not None, "records belong to a session"
    return record_dtype(session)


def _pair_codec(arguments: Sequence[Any]) -> Codec:
    return _struct({f"_{number}": codec_of(one) for number, one in enumerate(arguments, 1)}, _items, _tuple)


def _items(value: tuple[Any, ...]) -> dict[str, Any]:
    return {f"_{number}": one for number, one in enumerate(value, 1)}


def _tuple(fields: dict[str, Any], _session: Session | None) -> tuple[Any, ...]:
    return tuple(fields.values())


def _list_codec(origin: Any, item: Codec) -> Codec:
    make = frozenset if origin is frozenset else tuple
    return Codec(
        pa.list_(item.type),
        lambda value, session: [item.encode(one, session) for one in value],
        lambda scalar, session: make(item.decode(one, session) for one in scalar.values),
    )


def _mapping_codec(key: Codec, value: Codec) -> Codec:
    item = _struct({"key": key, "value": value}, lambda pair: {"key": pair[0], "value": pair[1]}, _tuple)
    return Codec(
        pa.list_(item.type),
        lambda found, session: [item.encode(one, session) for one in found.items()],
        lambda scalar, session: dict(item.decode(one, session) for one in scalar.values),
    )


def _struct(
    codecs: Mapping[str, Codec],
    fields_of: Callable[[Any], Mapping[str, Any]],
    make: Callable[[dict[str, Any], Session | None], Any],
) -> Codec:
    """A struct; `fields_of` gives the fields of a value, `make` makes a value of them."""

    def encode(value: Any, session: Session | None) -> dict[str, Any]:
        found = fields_of(value)
        return {name: codec.encode(found[name], session) for name, codec in codecs.items()}

    def decode(scalar: Any, session: Session | None) -> Any:
        return make({name: codec.decode(scalar[name], session) for name, codec in codecs.items()}, session)

    return Codec(pa.struct([(name, codec.type) for name, codec in codecs.items()]), encode, decode)


def _class_codec(of: Any) -> Codec:
    return _struct(field_codecs(of), _AttributesOf, maker_of(of))


def field_codecs(of: Any) -> dict[str, Codec]:
    """Codecs of the fields of an attrs class, without those that the session has."""
    cls = get_origin(of) or of
    given = dict(zip(getattr(cls, "__parameters__", ()), get_args(of), strict=False))
    hints = get_type_hints(cls)
    named = {one.name: given.get(hints[one.name], hints[one.name]) for one in attrs.fields(cls)}
    return {name: codec_of(hint) for name, hint in named.items() if hint not in _OF_SESSION}


class _AttributesOf(Mapping[str, Any]):
    """The attributes of a value by name."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getitem__(self, name: str) -> Any:
        return getattr(self._value, name)

    def __iter__(self) -> Any:
        return iter(one.name for one in attrs.fields(type(self._value)))

    def __len__(self) -> int:
        return len(attrs.fields(type(self._value)))


_OF_SESSION: Final[Mapping[Any, Callable[[Session], Any]]] = {
    Session: lambda session: session,
    SessionSettings: SessionSettings.of,
}
"""What the session has of a value's fields, by their type."""


def maker_of(of: Any) -> Callable[[dict[str, Any], Session | None], Any]:
    """What makes a value of an attrs class of its decoded fields, and of those that the session has."""
    cls = get_origin(of) or of
    missing = {name: _OF_SESSION[hint] for name, hint in get_type_hints(cls).items() if hint in _OF_SESSION}

    def make(fields: dict[str, Any], session: Session | None) -> Any:
        for name, of_session in missing.items():
            assert session is not None, f"{cls.__name__} belongs to a session"
            fields[name] = of_session(session)
        return cls(**fields)

    return make


@attrs.frozen
class _PathValue:
    """A path: of a file system, or below the location of an object storage."""

    text: str
    location: Location | None


def _path_codec() -> Codec:
    codec = codec_of(_PathValue)

    def encode(path: Any, session: Session | None) -> Any:
        is_object = isinstance(path, ObjectPath)
        value = _PathValue(path.key, path.location) if is_object else _PathValue(str(path), None)
        return codec.encode(value, session)

    def decode(scalar: Any, session: Session | None) -> Any:
        value = codec.decode(scalar, session)
        return Path(value.text) if value.location is None else ObjectPath(value.location, value.text)

    return Codec(codec.type, encode, decode)


_STATES: Final = (BatchEdges, PrecedingEvents, Copies)
"""Kinds of states of invariants, in the order of `_CheckStateValue`."""


@attrs.frozen(eq=False)
class _CheckStateValue:
    """A `CheckState` whose states are sorted by kind."""

    settings: SessionSettings
    first_seq: int
    last_seq: int
    edges: Mapping[str, BatchEdges]
    preceding: Mapping[str, PrecedingEvents]
    copies: Mapping[str, Copies]


def _check_state_codec() -> Codec:
    codec = codec_of(_CheckStateValue)

    def encode(one: CheckState, session: Session | None) -> Any:
        by_kind: dict[type, dict[str, Any]] = {kind: {} for kind in _STATES}
        for name, state in one.carries.items():
            by_kind[type(state)][name] = state
        value = _CheckStateValue(one.settings, one.first_seq, one.last_seq, *by_kind.values())
        return codec.encode(value, session)

    def decode(scalar: Any, session: Session | None) -> CheckState:
        value: _CheckStateValue = codec.decode(scalar, session)
        states = {**value.edges, **value.preceding, **value.copies}
        carries = {one.name: states[one.name] for one in INVARIANTS if one.name in states}
        return CheckState(value.settings, value.first_seq, value.last_seq, carries)

    return Codec(codec.type, encode, decode)


@attrs.frozen(eq=False)
class _AckTableValue:
    """An `AckTable` whose rows are one after the other."""

    moments: int
    conns: Ints
    acks: Ints


def _ack_table_codec() -> Codec:
    codec = codec_of(_AckTableValue)

    def encode(one: AckTable, session: Session | None) -> Any:
        return codec.encode(_AckTableValue(len(one.acks), one.conns, one.acks.ravel()), session)

    def decode(scalar: Any, session: Session | None) -> AckTable:
        value: _AckTableValue = codec.decode(scalar, session)
        return AckTable(value.conns, value.acks.reshape(value.moments, len(value.conns)))

    return Codec(codec.type, encode, decode)


@attrs.frozen
class _ReconnectValue:
    """A `Reconnect` by the numbers of its connections."""

    conn: int
    previous: int | None


def _session_replay_codec() -> Codec:
    """Reconnects are those of the connections beside them."""
    codecs = field_codecs(SessionReplay) | {"reconnects": codec_of(tuple[_ReconnectValue, ...])}
    make_replay = maker_of(SessionReplay)

    def fields_of(one: SessionReplay) -> dict[str, Any]:
        numbers = tuple(
            _ReconnectValue(
                each.connection.figures.conn, None if each.previous is None else each.previous.figures.conn
            )
            for each in one.reconnects
        )
        return {**_AttributesOf(one), "reconnects": numbers}

    def make(fields: dict[str, Any], session: Session | None) -> Any:
        by_conn: dict[int | None, ConnectionReplay] = {one.figures.conn: one for one in fields["connections"]}
        reconnects = tuple(
            Reconnect(by_conn[each.conn], by_conn.get(each.previous)) for each in fields["reconnects"]
        )
        return make_replay({**fields, "reconnects": reconnects}, session)

    return _struct(codecs, fields_of, make)


def _named_codec(known: Sequence[Any]) -> Codec:
    by_name = {one.name: one for one in known}
    return Codec(pa.string(), lambda one, _: one.name, lambda one, _: by_name[one.as_py()])


SPECIAL: Final[Mapping[Any, Callable[[], Codec]]] = {
    Path: _path_codec,
    AckTable: _ack_table_codec,
    CheckState: _check_state_codec,
    SessionReplay: _session_replay_codec,
    Invariant: lambda: _named_codec(INVARIANTS),
    GroupInvariant: lambda: _named_codec(GROUP_INVARIANTS),
}

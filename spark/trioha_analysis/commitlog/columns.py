"""Decodes records into the requested Arrow columns, without a loop over records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trioha.store.record_layout import BORN_HOST_V6, HOSTS_V6, MAGIC_V2, STORE_HOST_V6
from trioha_analysis.commitlog.layout import HEADS, Indexes, gather
from trioha_analysis.commitlog.walk import Columns

TYPES: Final[Mapping[str, pa.DataType]] = {
    "physical_offset": pa.int64(),
    "size_bytes": pa.int32(),
    "version": pa.int32(),
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "flag": pa.int32(),
    "sys_flag": pa.int32(),
    "born_timestamp_ms": pa.int64(),
    "born_host": pa.string(),
    "born_port": pa.int32(),
    "store_timestamp_ms": pa.int64(),
    "store_host": pa.string(),
    "store_port": pa.int32(),
    "reconsume_times": pa.int32(),
    "prepared_transaction_offset": pa.int64(),
    "body_crc": pa.int32(),
    "body_bytes": pa.int32(),
    "body": pa.binary(),
    "properties": pa.binary(),
}
"""Columns in their order. `size_bytes`: of the record; `version`: 1 or 2; body and properties as stored."""

_HEAD_FIELDS: Final = {
    "physical_offset": "physical_offset",
    "size_bytes": "total_size",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "flag": "flag",
    "sys_flag": "sys_flag",
    "born_timestamp_ms": "born_timestamp",
    "body_crc": "body_crc",
}
"""Fields before the hosts: at the positions of `HEAD_V4`."""
_HOST_FIELDS: Final = {
    "born_port": "born_port",
    "store_timestamp_ms": "store_timestamp",
    "store_port": "store_port",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset",
}
"""Fields after a host: at other positions in records with IPv6."""


def decode(rows: Columns, names: Sequence[str]) -> list[pa.Array]:
    """The columns `names` (of `TYPES`) of `rows`."""
    return [_column(rows, name) for name in names]


def topics_of(rows: Columns) -> pa.Array:
    """Topic of each row. Invalid UTF-8 is replaced, as by a Java broker."""
    raw = _slices(rows, rows.topic_at, rows.topic_at + rows.topic_bytes)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([text.decode(errors="replace") for text in raw.to_pylist()], pa.string())


def _column(rows: Columns, name: str) -> pa.Array:
    if name in _HEAD_FIELDS:
        return _number(rows.heads[_HEAD_FIELDS[name]], TYPES[name])
    if name in _HOST_FIELDS:
        return _number(_after_host(rows, _HOST_FIELDS[name]), TYPES[name])
    return _OTHERS[name](rows)


def _number(values: NDArray[Any], type_: pa.DataType) -> pa.Array:
    return pa.array(np.ascontiguousarray(values, type_.to_pandas_dtype()), type_)


def _after_host(rows: Columns, field: str) -> NDArray[Any]:
    values = rows.heads[field]
    if not rows.host_flags.any():
        return values
    values = values.copy()
    for flags in np.unique(rows.host_flags):
        which = np.flatnonzero(rows.host_flags == flags)
        values[which] = gather(rows.data, rows.start[which], HEADS[int(flags)])[field]
    return values


def _hosts(rows: Columns, side: str, ipv6_flag: int) -> pa.Array:
    """Addresses as text. Few hosts write a log, so each distinct address is formatted once."""
    codes = np.zeros(len(rows), np.int64)
    texts: list[str] = []
    ipv6 = rows.host_flags & ipv6_flag != 0
    for wanted in (0, ipv6_flag):
        which = np.flatnonzero(ipv6) if wanted else np.flatnonzero(~ipv6)
        if not len(which):
            continue
        if wanted or rows.host_flags.any():
            packed = np.zeros((len(which), 16 if wanted else 4), np.uint8)
            for flags in (flags for flags in HEADS if flags & ipv6_flag == wanted):
                some = np.flatnonzero(rows.host_flags[which] == flags)
                packed[some] = gather(rows.data, rows.start[which[some]], HEADS[flags])[side]
        else:
            packed = np.ascontiguousarray(rows.heads[side])
        keys = packed.view(np.uint32).ravel() if not wanted else packed.view("V16").ravel()
        if not wanted and (keys == keys[0]).all():
            distinct, inverse = keys[:1], np.zeros(len(keys), np.int64)
        else:
            distinct, inverse = np.unique(keys, return_inverse=True)
        codes[which] = inverse + len(texts)
        texts += [str(ip_address(key.tobytes())) for key in distinct]
    return pa.array(texts, pa.string()).take(pa.array(codes))


def _slices(rows: Columns, start: Indexes, end: Indexes) -> pa.Array:
    """The bytes `[start, end)` of each row, as binary.

    The file's bytes become an Arrow array of which every second value is selected, so that Arrow copies them
    without a Python loop.
    """
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    base, top = int(start[0]), int(end[-1])
    offsets = np.empty(2 * count, np.int64)
    offsets[0::2] = start
    offsets[1::2] = end
    offsets -= base
    slices = pa.Array.from_buffers(
        pa.large_binary(),
        2 * count - 1,
        [None, pa.py_buffer(offsets), pa.py_buffer(rows.data[base:top])],
    )
    return slices.take(pa.array(np.arange(0, 2 * count, 2))).cast(pa.binary())


_OTHERS: Final[Mapping[str, Callable[[Columns], pa.Array]]] = {
    "version": lambda rows: _number(1 + (rows.heads["magic"] == MAGIC_V2), pa.int32()),
    "topic": topics_of,
    "born_host": lambda rows: _hosts(rows, "born_address", BORN_HOST_V6),
    "store_host": lambda rows: _hosts(rows, "store_address", STORE_HOST_V6),
    "body_bytes": lambda rows: _number(rows.body_bytes, pa.int32()),
    "body": lambda rows: _slices(rows, rows.body_at, rows.body_at + rows.body_bytes),
    "properties": lambda rows: _slices(rows, rows.properties_at, rows.end),
}
assert set(_OTHERS) | set(_HEAD_FIELDS) | set(_HOST_FIELDS) == set(TYPES)
assert set(HEADS) == {0, BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6}


def only_topics(rows: Columns, topics: frozenset[str]) -> Columns:
    """The rows of these topics."""
    mask = pc.is_in(topics_of(rows), value_set=pa.array(sorted(topics), pa.string()))
    return rows.take(np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_))


def only_times(rows: Columns, *, from_ms: int | None, to_ms: int | None) -> Columns:
    """The rows with store timestamps `[from_ms, to_ms)`, in ms since 1970; None: no limit."""
    stored_ms = _after_host(rows, "store_timestamp").astype(np.int64)
    wanted = np.ones(len(rows), np.bool_)
    if from_ms is not None:
        wanted &= stored_ms >= from_ms
    if to_ms is not None:
        wanted &= stored_ms < to_ms
    return rows.take(wanted)

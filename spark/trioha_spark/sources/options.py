"""Checks of the data sources' options and schemas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trioha.archive.access import is_remote
from trioha.errors import TriohaError
from trioha.numbers import I64, Range, parse_int
from trioha.recording.paths import absolute_path
from trioha.times import TIME_HINT, MomentError, parse_time_ms

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


STORAGE_PREFIX: Final = "storage."
"""Of options that are settings of the object storage."""


class SourceError(TriohaError):
    """Invalid options or schema of a data source."""


def path_option(options: Mapping[str, str]) -> str | Path:
    """What is given to `load`: a URL of an object storage (`s3://...`), or a folder as an absolute path,
    because executors have other working directories.

    Raises SourceError without either, StoreError for any other URL.
    """
    path = options.get("path")
    if not path:
        raise SourceError("no folder was given: load(FOLDER), or option path")
    return path if is_remote(path) else absolute_path(path)


def storage_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Settings of the object storage: `storage.aws_region` is its `aws_region`."""
    return {
        name[len(STORAGE_PREFIX) :].lower(): value
        for name, value in options.items()
        if name.lower().startswith(STORAGE_PREFIX)
    }


def time_option(options: Mapping[str, str], name: str) -> int | None:
    """A time as all of trioha reads it (`trioha.times`), in ms since 1970; None if it is not set.

    Without a zone it is the driver's local time.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        return parse_time_ms(text)
    except MomentError as error:
        raise SourceError(f"option {name}: {error}; write {TIME_HINT}") from None


def number_option(options: Mapping[str, str], name: str, *, least: int = 0) -> int | None:
    """An integer; None if it is not set."""
    text = options.get(name)
    if text is None:
        return None
    try:
        return parse_int(text, Range(least, I64.high))
    except ValueError:
        raise SourceError(f"option {name}: {text!r} is not a whole number of at least {least}") from None


def flag_option(options: Mapping[str, str], name: str) -> bool:
    """`true` or `false` (also if not set)."""
    text = options.get(name, "false").strip().lower()
    if text not in {"true", "false"}:
        raise SourceError(f"option {name}: {text!r} is neither true nor false")
    return text == "true"


def names_option(options: Mapping[str, str], name: str) -> list[str]:
    """Names separated by commas; empty if not set."""
    return [part for part in (part.strip() for part in options.get(name, "").split(",")) if part]


def refuse_unknown(options: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise SourceError for an unknown, probably misspelt option."""
    names = {name.lower() for name in known} | {"path"}
    for name in options:
        if name.lower() not in names and not name.lower().startswith(STORAGE_PREFIX):
            raise SourceError(f"there is no option {name!r}; there are {', '.join(sorted(known))}")


def check_schema(schema: StructType, ours: pa.Schema, what: str) -> pa.Schema:
    """The Arrow schema of the user's `schema`: any of our columns, in any order."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    wanted: Any = to_arrow_schema(schema, timezone="UTC")
    for column in wanted:
        index = ours.get_field_index(column.name)
        if index < 0:
            raise SourceError(f"{what} has no column {column.name!r}; there are {', '.join(ours.names)}")
        if ours.field(index).type != column.type:
            raise SourceError(
                f"column {column.name!r} of {what} is {ours.field(index).type}, not {column.type}"
            )
    return wanted


def ddl(schema: pa.Schema) -> str:
    """The schema as Spark DDL."""
    names = {
        "int64": "long",
        "int32": "int",
        "string": "string",
        "binary": "binary",
        "timestamp[us, tz=UTC]": "timestamp",
    }
    return ", ".join(f"{column.name} {names[str(column.type)]}" for column in schema)

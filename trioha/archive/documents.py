"""Documents of an archive: heads, pages and metadata as compressed JSON, read within bounds."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import zstandard
from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from cattrs.v import format_exception

from trioha.archive.bounds import COSTS, Document, check_cost, check_numbers
from trioha.archive.errors import ArchiveError
from trioha.archive.layout import (
    FORMAT,
    VERSION,
    Generation,
    Head,
    LogObject,
    MetadataContent,
    MetadataObject,
    Page,
    PageContent,
    RecordedSegment,
    RecordedSession,
    Writer,
    is_key,
)
from trioha.archive.objects import ObjectFolder
from trioha.numbers import NATURAL64, parse_int

T = TypeVar("T", Head, PageContent, MetadataContent)

_FAULTS_SHOWN: Final = 3
_NAMES: Final = {Head: "a head", PageContent: "a page", MetadataContent: "metadata"}


def read_document(folder: ObjectFolder, key: str, kind: type[T]) -> T:
    """The head, page or metadata that a key has. Raises ArchiveError, MissingObjectError if there is none."""
    try:
        return decode(folder.get(key), kind)
    except ValueError as error:
        raise ArchiveError(f"not {_NAMES[kind]}: {error}", url=folder.url, key=key) from error


def document_for(folder: ObjectFolder, key: str, value: Document) -> bytes:
    """What is to be stored under a key. Raises ArchiveError for a value that no reader would accept."""
    try:
        return encode(value)
    except ValueError as error:
        raise ArchiveError(
            f"{error}: no reader would accept that",
            url=folder.url,
            key=key,
            hint="drop what is old (--keep), or begin another archive",
        ) from error


def encode(value: Document) -> bytes:
    """JSON of a value, compressed; with a checksum, which `decode` checks.

    Raises ValueError if it costs a reader more than `bounds` has.
    """
    text = json.dumps(_CONVERTER.unstructure(value), separators=(",", ":"), ensure_ascii=False).encode()
    check_cost(text, type(value))
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text)


def decode(data: bytes, kind: type[T]) -> T:
    """A `Head`, `PageContent` or `MetadataContent` from its compressed JSON.

    Raises ValueError, with one line of text, for everything that is not one.
    """
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size > COSTS[kind].json_bytes:
            raise ValueError(f"has more than {COSTS[kind].json_bytes} bytes of JSON")
        # As a whole, since a stream that is cut in its checksum is no error.
        text = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
    check_cost(text, kind)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if kind is Head:
        _check_format(value)
    try:
        found = _CONVERTER.structure(value, kind)
    except Exception as error:
        # cattrs raises groups of whatever went wrong in any part.
        faults = transform_error(error, path=kind.__name__, format_exception=_fault)
        raise ValueError("; ".join(faults[:_FAULTS_SHOWN])) from error
    check_numbers(found)
    return found


def _check_format(value: object) -> None:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"not the head of an archive: its format is not {FORMAT}")
    if value.get("version") != VERSION:
        raise ValueError(f"has version {value.get('version')!r}; this trioha reads {VERSION}")


def _fault(error: BaseException, kind: type[Any] | None) -> str:
    return str(error) if type(error) is ValueError else format_exception(error, kind)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _converter() -> Converter:
    """Names in JSON are in camel case, as in all of RocketMQ's; unknown ones are ignored."""
    converter = Converter()
    converter.register_structure_hook(int, lambda value, _: parse_int(value, NATURAL64))
    converter.register_structure_hook(str, lambda value, _: _text(value))
    converter.register_structure_hook(bool, lambda value, _: _bool(value))
    for kind in (
        LogObject,
        MetadataObject,
        Page,
        PageContent,
        Generation,
        Writer,
        RecordedSegment,
        RecordedSession,
        Head,
        MetadataContent,
    ):
        names: dict[str, Any] = {
            one.name: override(rename=_camel_case(one.name)) for one in kind.__attrs_attrs__
        }
        if "key" in names:
            names["key"] = override(struct_hook=lambda value, _: _key(value))
        converter.register_unstructure_hook(kind, make_dict_unstructure_fn(kind, converter, **names))
        converter.register_structure_hook(kind, make_dict_structure_fn(kind, converter, **names))
    return converter


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} is not a text")  # noqa: TRY004 (bad data, not a bad call)
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{type(value).__name__} is neither true nor false")  # noqa: TRY004 (see above)
    return value


def _key(value: object) -> str:
    """A key below the archive's URL: nothing that leads out of it."""
    text = _text(value)
    if not is_key(text):
        raise ValueError(f"{text[:100]!r} is not a key of an archive")
    return text


_CONVERTER: Final = _converter()

"""Frames of the remoting protocol, of which every byte can be made wrong.

See docs/protocol/remoting.md#frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack
from typing import Final

from tests.hostile.values import quoted

JSON: Final = 0
BINARY: Final = 1
RESPONSE: Final = 1
ONEWAY: Final = 2


def frame(header: bytes, body: bytes = b"", *, serialization: int = JSON) -> bytes:
    """A frame whose lengths are right."""
    return pack(">II", 4 + len(header) + len(body), serialization << 24 | len(header)) + header + body


def json_object(members: Iterable[tuple[str, str]]) -> str:
    """A JSON object of (name, JSON text) pairs, in their order; names may come twice."""
    return "{" + ",".join(f"{quoted(name)}:{value}" for name, value in members) + "}"


def json_head(
    code: str,
    opaque: str,
    *,
    ext: Iterable[tuple[str, str]] = (),
    flag: str = "0",
    more: Iterable[tuple[str, str]] = (),
) -> list[tuple[str, str]]:
    """The members of a header; all values are JSON texts."""
    return [
        ("code", code),
        ("extFields", json_object(ext)),
        ("flag", flag),
        ("language", '"JAVA"'),
        ("opaque", opaque),
        ("serializeTypeCurrentRPC", '"JSON"'),
        ("version", "407"),
        *more,
    ]


def text_bytes(text: str) -> bytes:
    """UTF-8; lone surrogates as the three bytes that Java's older encoders make of them."""
    return text.encode("utf-8", "surrogatepass")


def binary_ext(fields: Iterable[tuple[str, str]]) -> bytes:
    """Ext fields of a binary header; a key longer than the format allows is cut."""
    parts = []
    for name, value in fields:
        key, data = text_bytes(name)[:32767], text_bytes(value)
        parts.append(pack(">h", len(key)) + key + pack(">i", len(data)) + data)
    return b"".join(parts)


def binary_head(
    code: int,
    opaque: int,
    *,
    ext: bytes = b"",
    flag: int = 0,
    remark: bytes = b"",
    language: int = 0,
    version: int = 407,
    remark_length: int | None = None,
    ext_length: int | None = None,
) -> bytes:
    """A binary header; `remark_length` and `ext_length` may lie."""
    return (
        pack(">hbhii", code, language, version, opaque, flag)
        + pack(">i", len(remark) if remark_length is None else remark_length)
        + remark
        + pack(">i", len(ext) if ext_length is None else ext_length)
        + ext
    )

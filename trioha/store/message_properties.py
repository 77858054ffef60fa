"""The properties string of a message (docs/protocol/store.md#properties).

`name \\x01 value \\x02 name \\x01 value \\x02 ...` in UTF-8, without escaping. 4.9 writes no last `\\x02`,
5.3 does; readers accept both. On duplicate names the last wins.
"""

from __future__ import annotations

from collections.abc import Mapping

PROPERTY_SEPARATOR = b"\x02"

PROPERTIES_BYTES_MAX = 32767
"""The length field is a signed 16-bit number."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The string as 5.3 writes it: each property ends with `\\x02`; no properties give no bytes.

    Raises ValueError for a name or value that the format cannot hold (with a separator in it, or empty):
    readers would drop or misread it.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if not name or not value:
            raise ValueError(f"property {name!r}={value!r}: neither name nor value may be empty")
        if "\x01" in name or "\x02" in name or "\x02" in value:
            raise ValueError(
                f"property {name!r}: \\x01 and \\x02 separate properties and cannot be part of one"
            )
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts).encode()


def parse_properties(raw: bytes) -> dict[str, str]:
    """The properties by name, parsed exactly as the broker does.

    A segment between two `\\x02` counts only if it has at least three characters and its first `\\x01` is
    neither its first nor its last character, so empty names and values are dropped. Bytes that are not
    UTF-8 are replaced, as Java's decoder does.
    """
    properties: dict[str, str] = {}
    for segment in raw.decode("utf-8", "replace").split("\x02"):
        if len(segment) < 3:
            continue
        separator_index = segment.find("\x01")
        if 0 < separator_index < len(segment) - 1:
            properties[segment[:separator_index]] = segment[separator_index + 1 :]
    return properties


def join_properties(raw: bytes, more: bytes) -> bytes:
    """`raw`, then the encoded properties `more`; a missing separator is put between them."""
    if raw and more and not raw.endswith(PROPERTY_SEPARATOR):
        return raw + PROPERTY_SEPARATOR + more
    return raw + more

"""Patterns of IP addresses in RocketMQ's white lists.

| form | example |
|---|---|
| any address | `*`, `*.*.*.*` |
| one address | `192.168.0.7`, `fe80::7` |
| a list of addresses | `192.168.0.7,192.168.0.8` |
| some values of a part | `192.168.0.{7,8}` |
| a range of a part, all values of a part | `192.168.1-9.*`, `fe80:0:0:0:0:0:0:1-ff` |

A part is decimal in IPv4, hexadecimal in IPv6. In a pattern of IPv6, `::` stands for parts of 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, TypeAlias

from attrs import frozen

PATTERN_CHARS_MAX: Final = 4096
_NOT_IN_BRACES: Final = re.compile(r",(?![^{]*\})")

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of values, both ends included."""


@frozen
class _Family:
    version: int
    separator: str
    parts: int
    base: int
    digits: re.Pattern[str]
    high: int


_IPV4: Final = _Family(4, ".", 4, 10, re.compile(r"[0-9]{1,3}"), 255)
_IPV6: Final = _Family(6, ":", 8, 16, re.compile(r"[0-9a-fA-F]{1,4}"), 0xFFFF)


@frozen
class AddressPattern:
    """A pattern that addresses match or not."""

    alternatives: tuple[tuple[int, tuple[Ranges, ...]], ...]
    """IP version and parts; any of them may match."""

    @classmethod
    def parse(cls, text: str) -> AddressPattern:
        """The pattern of `text`; an empty one matches nothing. Raises ValueError."""
        if len(text) > PATTERN_CHARS_MAX:
            raise ValueError(f"an address pattern of {len(text)} characters")
        found: list[tuple[int, tuple[Ranges, ...]]] = []
        for part in filter(None, (part.strip() for part in _NOT_IN_BRACES.split(text))):
            if part == "*":
                found += [_all(_IPV4), _all(_IPV6)]
            else:
                found.append(_parse(part))
        return cls(tuple(found))

    def matches(self, host: str) -> bool:
        """Whether the IP address `host` matches."""
        if not self.alternatives:
            return False
        version, values = _split(host)
        return any(
            version == of_version and all(map(_is_in, values, parts))
            for of_version, parts in self.alternatives
        )


NO_ADDRESS: Final = AddressPattern(())


def _is_in(value: int, part: Ranges) -> bool:
    return any(low <= value <= high for low, high in part)


@lru_cache(maxsize=1024)
def _split(host: str) -> tuple[int, tuple[int, ...]]:
    """IP version and parts of an address."""
    address: IPv4Address | IPv6Address = ip_address(host.split("%", 1)[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    packed = address.packed
    if address.version == 4:
        return 4, tuple(packed)
    return 6, tuple(int.from_bytes(packed[at : at + 2]) for at in range(0, 16, 2))


def _all(family: _Family) -> tuple[int, tuple[Ranges, ...]]:
    return family.version, (((0, family.high),),) * family.parts


def _parse(text: str) -> tuple[int, tuple[Ranges, ...]]:
    family = _IPV6 if ":" in text else _IPV4
    texts = _parts(text, family)
    if len(texts) != family.parts:
        raise ValueError(f"{text[:60]!r} is no address or pattern of addresses")
    return family.version, tuple(_part(part, family, text) for part in texts)


def _parts(text: str, family: _Family) -> Sequence[str]:
    before, gap, after = text.partition("::")
    if not gap or family is _IPV4:
        return text.split(family.separator)
    first = before.split(":") if before else []
    last = after.split(":") if after else []
    return [*first, *["0"] * (family.parts - len(first) - len(last)), *last]


def _part(part: str, family: _Family, text: str) -> Ranges:
    def value(digits: str) -> int:
        digits = digits.strip()
        number = int(digits, family.base) if family.digits.fullmatch(digits) else family.high + 1
        if number > family.high:
            raise ValueError(f"{text[:60]!r} has a part that is not 0 to {family.high:x}"[:120])
        return number

    if part == "*":
        return ((0, family.high),)
    if part.startswith("{") and part.endswith("}"):
        return tuple((number, number) for number in map(value, part[1:-1].split(",")))
    low, dash, high = part.partition("-")
    if not dash:
        number = value(low)
        return ((number, number),)
    if value(low) > value(high):
        raise ValueError(f"{text[:60]!r} has a range that ends before it starts")
    return ((value(low), value(high)),)

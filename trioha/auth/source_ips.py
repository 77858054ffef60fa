"""The addresses that an entry of an access control list holds for: single ones, and CIDR blocks."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

TEXT_CHARS_MAX: Final = 60
_BLOCK: Final = re.compile(r"[^/%]+(/[0-9]{1,3})?")


def is_source(text: str) -> bool:
    """Whether a text is an address or a CIDR block."""
    return _network(text) is not None


def comes_from(host: str, sources: tuple[str, ...]) -> bool:
    """Whether the IP address `host` is one of the sources, or in one of them; true where there are none."""
    if not sources:
        return True
    address = _address(host)
    return any(
        network is not None and address.version == network.version and address in network
        for network in map(_network, sources)
    )


@lru_cache(maxsize=1024)
def _address(host: str) -> IPv4Address | IPv6Address:
    address = ip_address(host.split("%", 1)[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=4096)
def _network(text: str) -> IPv4Network | IPv6Network | None:
    if len(text) > TEXT_CHARS_MAX or not _BLOCK.fullmatch(text):
        return None
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None

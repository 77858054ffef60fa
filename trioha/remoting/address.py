"""Addresses of peers: `host:port`, with brackets around an IPv6 host."""

from __future__ import annotations

from attrs import frozen

from trioha.errors import ConfigError
from trioha.host_port import HINT, split_host_port


@frozen
class Address:
    """Host and port of a peer."""

    host: str
    """Name or IP, IPv6 without brackets."""
    port: int
    """1 to 65535."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address in `host:port` or `[ipv6]:port`. Raises ConfigError."""
    try:
        return Address(*split_host_port(text))
    except ValueError as refused:
        raise ConfigError(str(refused), hint=HINT) from None

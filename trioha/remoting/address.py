"""Addresses of peers: `host:port`, with brackets around an IPv6 host."""

from __future__ import annotations

from attrs import frozen

from trioha.errors import ConfigError
from trioha.numbers import PORT, Range, parse_int

_SHOWN_CHARS_MAX = 80
_PORT = Range(1, PORT.high)
_HINT = "write HOST:PORT, as in 127.0.0.1:10911 or [::1]:10911"


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
    host, colon, port_text = text.strip().rpartition(":")
    shown = repr(text[:_SHOWN_CHARS_MAX])
    if not colon:
        raise ConfigError(f"{shown} is not an address: it has no port", hint=_HINT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{shown} is not an address: an IPv6 host stands in brackets", hint=_HINT)
    if not host or any(character.isspace() or character in "[]/" for character in host):
        raise ConfigError(f"{shown} is not an address: {host[:_SHOWN_CHARS_MAX]!r} is not a host", hint=_HINT)
    try:
        port = parse_int(port_text, _PORT)
    except ValueError:
        raise ConfigError(
            f"{shown} is not an address: {port_text[:_SHOWN_CHARS_MAX]!r} is not a port from 1 to 65535",
            hint=_HINT,
        ) from None
    return Address(host, port)

"""The reader of addresses `host:port` in command lines, settings and answers of peers."""

from __future__ import annotations

import re
from typing import Final

from trioha.numbers import PORT, Range, parse_int

HINT: Final = "write HOST:PORT, as in 127.0.0.1:10911 or [::1]:10911"
"""What to write instead of an address that is refused."""

_SHOWN_CHARS_MAX: Final = 80
_PORT: Final = Range(1, PORT.high)
_V6: Final = re.compile(r"[\w:.%-]+", re.ASCII)
_HOST: Final = re.compile(r"[^\s:/\[\]]+")


def split_host_port(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, blanks around it dropped; an IPv6 host stands in brackets.

    Raises ValueError with the reason in one line, however long the text is.
    """
    host, colon, port_text = text.strip().rpartition(":")
    shown = repr(text[:_SHOWN_CHARS_MAX])
    if not colon:
        raise ValueError(f"{shown} is not an address: it has no port")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{shown} is not an address: an IPv6 host stands in brackets")
    if not (_V6 if is_bracketed else _HOST).fullmatch(host):
        raise ValueError(f"{shown} is not an address: {host[:_SHOWN_CHARS_MAX]!r} is not a host")
    try:
        port = parse_int(port_text, _PORT)
    except ValueError:
        raise ValueError(
            f"{shown} is not an address: {port_text[:_SHOWN_CHARS_MAX]!r} is not a port from 1 to {PORT.high}"
        ) from None
    return host, port

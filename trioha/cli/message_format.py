r"""Format strings of `trioha consume --format`: kcat's, for messages of RocketMQ.

| token | value |
|---|---|
| `%s`, `%S` | the body, its length in bytes |
| `%k`, `%K` | the keys with blanks between them, their length in bytes; -1 without keys |
| `%t`, `%p`, `%o` | topic, queue, offset in the queue |
| `%b`, `%i`, `%g` | name of the broker, message id, tag |
| `%T` | when it was stored, ms since 1970 |
| `%h` | the user's properties, `name=value` with commas between them |
| `%%` | a percent sign |
| `\n`, `\t`, `\r`, `\0`, `\xNN`, `\\` | as in C |

Texts of a message are escaped (`trioha.outside_text`); with raw bodies the body is not. Nothing is added at
the end: a line feed is a part of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trioha.cli.clients import SHOWN_APART
from trioha.client.messages import ReceivedMessage
from trioha.errors import ConfigError
from trioha.outside_text import escaped

Part = Callable[[ReceivedMessage], bytes]

_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def _text(value: Callable[[ReceivedMessage], object]) -> Part:
    return lambda message: escaped(str(value(message))).encode("utf-8", "backslashreplace")


def _literal(value: bytes) -> Part:
    return lambda _message: value


def _keys(message: ReceivedMessage) -> str:
    return " ".join(message.keys)


def _properties(message: ReceivedMessage) -> str:
    own = ((name, value) for name, value in message.properties.items() if name not in SHOWN_APART)
    return ",".join(f"{name}={value}" for name, value in own)


def _raw_body(message: ReceivedMessage) -> bytes:
    return message.body


_PARTS: Final[dict[str, Part]] = {
    "s": _text(lambda message: message.body.decode(errors="backslashreplace")),
    "S": _text(lambda message: len(message.body)),
    "k": _text(_keys),
    "K": _text(lambda message: len(_keys(message).encode()) if message.keys else -1),
    "t": _text(lambda message: message.topic),
    "p": _text(lambda message: message.queue.queue_id),
    "o": _text(lambda message: message.queue_offset),
    "b": _text(lambda message: message.queue.broker_name),
    "i": _text(lambda message: message.message_id),
    "g": _text(lambda message: message.tag or ""),
    "T": _text(lambda message: message.store_timestamp_ms),
    "h": _text(_properties),
}


def parse_format(text: str, *, raw_bodies: bool) -> Part:
    """What makes the bytes of a message. Raises ConfigError for a token that there is not."""
    parts: list[Part] = []
    for found in _TOKEN.finditer(text):
        token, escape = found[1], found[2]
        if token is not None and token != "%":  # noqa: S105 - a token of the format
            if token not in _PARTS:
                raise ConfigError(
                    f"there is no token {found[0]!r}",
                    key="--format",
                    hint=f"write one of %{', %'.join(_PARTS)}",
                )
            parts.append(_raw_body if token == "s" and raw_bodies else _PARTS[token])  # noqa: S105
            continue
        if token == "%":  # noqa: S105
            literal = b"%"
        elif escape is None:
            literal = found[0].encode()
        elif escape.startswith("x") and len(escape) == 3:
            literal = bytes.fromhex(escape[1:])
        elif escape in _ESCAPES:
            literal = _ESCAPES[escape].encode()
        else:
            raise ConfigError(
                f"there is no escape {found[0]!r}", key="--format", hint=r"write \n, \t, \r, \0, \xNN or \\"
            )
        parts.append(_literal(literal))
    return lambda message: b"".join(part(message) for part in parts)

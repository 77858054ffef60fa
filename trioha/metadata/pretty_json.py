"""JSON files as RocketMQ's fastjson writes them, and reading them back.

See docs/protocol/store.md#configuration-files.

Objects have one member a line, indented by tabs. Two forms differ from other printers: arrays stand in one
line, and maps with integer keys have bare keys, all in one line but for the closing brace:

    "VecA@vec_group":{0:41,1:42
    }

`trioha.remoting.fastjson` reads the dialect, too, but slowly. Here bare keys are put in quotes first, for the
standard parser: a file of a million offsets must not hold up a start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Final

from trioha.errors import RemoteProtocolError
from trioha.remoting.fastjson import parse_json

_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL)


def encode_pretty(value: object) -> str:
    """`value` as fastjson's pretty printer writes it. Maps whose keys are `int` get bare keys.

    Raises TypeError for what JSON does not have.
    """
    parts: list[str] = []
    _write(value, "\n", parts)
    return "".join(parts)


def _write(value: object, line_start: str, parts: list[str]) -> None:
    if not isinstance(value, Mapping):
        parts.append(_inline(value))
    elif not value:
        parts.append("{}")
    elif all(type(key) is int for key in value):
        members = ",".join([f"{key}:{_inline(member)}" for key, member in value.items()])
        parts.append(f"{{{members}{line_start}}}")
    else:
        inner = line_start + "\t"
        separator = "{"
        for key, member in value.items():
            parts.append(f"{separator}{inner}{encode_basestring(key)}:")
            _write(member, inner, parts)
            separator = ","
        parts.append(line_start + "}")


def _inline(value: object) -> str:
    if type(value) is int:
        return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parse_pretty(text: str) -> object:
    """The value of a JSON text that may have bare integer keys. Keys are strings, as in standard JSON.

    Raises ValueError.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    quoted = _STRING_OR_BARE_KEY.sub(lambda found: f'{found[1]}"{found[2]}"' if found[2] else found[0], text)
    try:
        return json.loads(quoted, strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return parse_json(text, limits=None)
    except RemoteProtocolError as error:
        raise ValueError(str(error)) from None

"""A node that answers the monitor with every wrong value in every place, one answer after the other."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from tests.hostile.answering import CONFIG, HA_STATUS, RUNTIME_INFO
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to

Answer = dict[int, bytes]
"""Bodies by the code of the request."""

TEXTS = (
    "\x1b[2J\x1b[31mred\x1b[0m",
    "\x9b31m\x07\x00",
    "[red]x[/red]",
    "[@click=app.quit]quit[/]",
    "[/]",
    "[bold",
    "line\nline\r\tline",
    "\u202edesrever\u2066",
    "\u0627\u0644\u062c\u0632\u064a\u0631\u0629",
    "e" + "\u0301" * 60,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\u4e2d\u6587" * 40,
    "",
    " ",
    "name" * 250_000,
)
NUMBERS = (
    -1, 0, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, 1.5, 1e308, float("nan"),
    float("inf"), -float("inf"),
)  # fmt: skip
OTHERS: tuple[object, ...] = (
    None, True, False, [], {}, [[[[[[]]]]]], {"a": {"b": {}}}, ["x"] * 50, {"\x1b[31m": 1, "[red]": 2},
)  # fmt: skip
NESTED = (b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900, b"[" * 100_000)


def answers(seed: int, *, count: int) -> Iterator[Answer]:
    """`count` answers, each with one wrong value or malformed."""
    lot = random.Random(seed)
    whole = (b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe\x00", b"{0:1,}", *NESTED, *_crowds())
    for number in range(count):
        bodies = {
            RequestCode.GET_BROKER_HA_STATUS: deepcopy(HA_STATUS),
            RequestCode.GET_BROKER_RUNTIME_INFO: deepcopy(RUNTIME_INFO),
            RequestCode.GET_BROKER_CONFIG: deepcopy(CONFIG),
        }
        if number % 3 == 0:
            # A RocketMQ broker: its runtime table and its configuration are read.
            del bodies[RequestCode.GET_BROKER_HA_STATUS]["trioha"]
        chosen = lot.choice(list(bodies))
        values: tuple[object, ...] = lot.choice((TEXTS, NUMBERS, OTHERS))
        _replace(bodies[chosen], lot.choice(values), lot)
        encoded = {code: _encoded(code, body) for code, body in bodies.items()}
        if number % 5 == 0:
            encoded[RequestCode.GET_BROKER_HA_STATUS] = lot.choice(whole)
        yield encoded


def speaking(text: str) -> Answer:
    """A valid answer in which every text is `text`, or a prefix of it."""
    text = text[:5_000]

    def said(value: Any) -> Any:
        if isinstance(value, str):
            return text
        if isinstance(value, list):
            return [said(one) for one in value]
        if isinstance(value, dict):
            return {key: said(one) for key, one in value.items()}
        return value

    status = said(HA_STATUS)
    status["haConnectionInfo"] = status["haConnectionInfo"][:1]
    status["trioha"] |= {
        "role": "SYNC_MASTER",
        "putStatuses": {"PUT_OK": 1, text: 2},
        "endedConnections": {text: 3},
        "probes": {text: {text: 4}},
    }
    return {
        RequestCode.GET_BROKER_HA_STATUS: _encoded(RequestCode.GET_BROKER_HA_STATUS, status),
        RequestCode.GET_BROKER_RUNTIME_INFO: _encoded(RequestCode.GET_BROKER_RUNTIME_INFO, RUNTIME_INFO),
    }


def answer_to(command: RemotingCommand, answer: Answer) -> bytes:
    """The frame of an answer."""
    body = answer.get(command.code)
    if body is None:
        return encode(response_to(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    return encode(response_to(command, ResponseCode.SUCCESS, body=body))


def _replace(place: Any, value: object, lot: random.Random) -> None:
    """Set `value` somewhere in `place`, or use it as a key there."""
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = lot.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and lot.random() < 0.8:
            place = inner
            continue
        if isinstance(place, dict) and isinstance(value, str) and lot.random() < 0.2:
            place[value] = place.pop(key)
        else:
            place[key] = value
        return


def _encoded(code: int, body: Any) -> bytes:
    if code == RequestCode.GET_BROKER_CONFIG:
        return "\n".join(f"{key}={value}" for key, value in body.items()).encode("utf-8", "replace")
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _crowds() -> Iterator[bytes]:
    """Ten thousand connections, names, probes, warnings."""
    one = HA_STATUS["haConnectionInfo"][0]
    crowd = [one | {"addr": f"10.{n // 65536}.{n // 256 % 256}.{n % 256}:1"} for n in range(10_000)]
    yield json.dumps(HA_STATUS | {"haConnectionInfo": crowd}).encode()
    probes = [one | {"addr": f"10.0.0.1:{n}", "state": "HANDSHAKE"} for n in range(10_000)]
    yield json.dumps(HA_STATUS | {"haConnectionInfo": [*probes, one]}).encode()
    names = {f"NAME_{n}\x1b[31m": n for n in range(10_000)}
    trioha = HA_STATUS["trioha"]
    extras = {
        "putStatuses": names,
        "endedConnections": names,
        "probes": {name: {"EOF": 1} for name in names},
        "warnings": list(names),
    }
    yield json.dumps(HA_STATUS | {"trioha": trioha | extras}).encode()
    yield b'{"master":true,"haConnectionInfo":[' + b"{}," * 1_000_000 + b"{}]}"
    yield b'{"master":true,"x":{' + b"0:0," * 500_000 + b"0:0}}"

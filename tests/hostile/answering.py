"""Hostile answers: what a server may say to the remoting client."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import accumulate
from struct import pack
from typing import Any

from attrs import define

from tests.hostile.frame import Manner
from tests.hostile.values import deep, json_value, quoted, text_value
from tests.hostile.wire import (
    BINARY,
    ONEWAY,
    RESPONSE,
    binary_ext,
    binary_head,
    frame,
    json_head,
    json_object,
)
from tests.mutations.mutate import mutants
from trioha.remoting.codes import RequestCode, ResponseCode

HA_STATUS: dict[str, Any] = {
    "haClientRuntimeInfo": {
        "lastReadTimestamp": 1700000000000, "lastWriteTimestamp": 1700000000000,
        "masterAddr": "127.0.0.1:10912",
        "masterFlushOffset": 0, "maxOffset": 5000, "transferredByteInSecond": 100,
    },
    "haConnectionInfo": [
        {
            "addr": "127.0.0.1:40000", "ackLatencyMicros": [100, 200, 300, 4], "connectionId": 3, "diff": 100,
            "frameBytes": [100, 200, 300, 4], "heardMillis": 5, "inSync": True, "lagMillis": 7,
            "slaveAckOffset": 4900, "state": "TRANSFER", "transferFromWhere": 5000,
            "transferredByteInSecond": 9,
        },
        {"addr": "127.0.0.1:40001", "diff": 5000, "inSync": False, "slaveAckOffset": 0,
        "transferFromWhere": 0,
         "transferredByteInSecond": 0},
    ],
    "inSyncSlaveNums": 1, "master": True, "masterCommitLogMaxOffset": 5000,
    "trioha": {
        "version": "trioha 0.1.0", "role": "SYNC_MASTER", "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0, "haAddress": "127.0.0.1:10912", "settings": {"haMaxGapNotInSync": 268435456,
        "slaveTimeout": 3000, "haHousekeepingInterval": 20000, "mappedFileSizeCommitLog": 1073741824},
        "warnings": ["a warning"], "minOffset": 0, "flushedOffset": 4950, "dispatchedOffset": 5000,
        "dispatchFault": "", "files": 1, "putStatuses": {"PUT_OK": 50, "FLUSH_SLAVE_TIMEOUT": 1},
        "endedConnections": {"EOF": 2},
        "client": {"state": "TRANSFER", "reportedOffset": 4000, "reconnects": 1, "verdict": "",
                   "localAddress": "127.0.0.1:50000", "observer": False},
    },
}  # fmt: skip
"""A body of 907 with every key that the client knows, of master and slave."""
RUNTIME_INFO: dict[str, Any] = {
    "table": {
        "bootTimestamp": "1700000000000", "brokerVersionDesc": "V4_9_7", "commitLogDirCapacity":
        "Total : 100.0 GiB, Free : 50.0 GiB.", "commitLogDiskRatio": "0.5", "commitLogMaxOffset": "5000",
        "commitLogMinOffset": "0", "dispatchBehindBytes": "0", "earliestMessageTimeStamp": "1700000000000",
        "putMessageFailedTimes": "0", "putMessageTimesTotal": "50", "putTps": "5.0 1.0 0.1",
        "remainHowManyDataToFlush": "50 B", "getTransferredTps": "0.0 0.0 0.0",
    }
}  # fmt: skip
CONFIG = {
    "brokerRole": "SYNC_MASTER", "brokerName": "broker-a", "brokerClusterName": "c", "brokerId": "0",
    "brokerIP2": "127.0.0.1", "haListenPort": "10912", "haMaxGapNotInSync": "268435456",
    "slaveTimeout": "3000",
    "haHousekeepingInterval": "20000", "haSendHeartbeatInterval": "5000",
    "mappedFileSizeCommitLog": "1073741824",
    "fileReservedTime": "72", "diskMaxUsedSpaceRatio": "75",
}  # fmt: skip
CLUSTER_INFO: dict[str, Any] = {
    "brokerAddrTable": {
        "broker-a": {
            "brokerAddrs": {"0": "127.0.0.1:10911", "1": "127.0.0.1:10921"},
            "brokerName": "broker-a",
            "cluster": "c",
        }
    },
    "clusterAddrTable": {"c": ["broker-a"]},
}
SEND_RESULT = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "5"}

ASKED = (
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.SEND_MESSAGE_V2,
)
_MARK = "@hostile@"


@define
class Answer:
    """What is sent in answer to a request."""

    code: int
    """Of the request that is answered so."""
    data: bytes
    detail: str
    closes: bool = False
    """Whether the server closes the connection after it."""
    manner: Manner = Manner.WHOLE


def good_answer(
    code: int, opaque: int, *, is_trioha: bool = True, ext: dict[str, str] | None = None
) -> bytes:
    """What an honest broker answers; with `is_trioha` False, one of RocketMQ's."""
    match code:
        case RequestCode.GET_BROKER_HA_STATUS:
            status = HA_STATUS if is_trioha else {key: HA_STATUS[key] for key in HA_STATUS if key != "trioha"}
            return _response(opaque, body=json.dumps(status).encode(), ext=ext)
        case RequestCode.GET_BROKER_RUNTIME_INFO:
            return _response(opaque, body=json.dumps(RUNTIME_INFO).encode())
        case RequestCode.GET_BROKER_CONFIG:
            return _response(
                opaque, body="".join(f"{key}={value}\n" for key, value in CONFIG.items()).encode()
            )
        case RequestCode.GET_BROKER_CLUSTER_INFO:
            return _response(opaque, body=json.dumps(CLUSTER_INFO).encode())
        case RequestCode.SEND_MESSAGE_V2:
            return _response(opaque, ext=SEND_RESULT)
    return _response(opaque, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def draw_answer(chance: random.Random, opaque: int) -> tuple[str, Answer]:
    """One hostile answer and its kind; `opaque` is that of the request."""
    asked = chance.choice(ASKED)
    kind, draw = chance.choices(_NAMED, cum_weights=_WEIGHTS)[0]
    return kind, draw(chance, asked, opaque)


def _response(
    opaque: int,
    *,
    code: int = 0,
    body: bytes = b"",
    ext: dict[str, str] | None = None,
    flag: int = RESPONSE,
    remark: str | None = None,
) -> bytes:
    pairs = [(name, quoted(value)) for name, value in (ext or {}).items()]
    more = [] if remark is None else [("remark", quoted(remark))]
    return frame(
        json_object(json_head(str(code), str(opaque), ext=pairs, flag=str(flag), more=more)).encode(), body
    )


def _good(chance: random.Random, asked: int, opaque: int) -> Answer:
    return Answer(asked, good_answer(asked, opaque, is_trioha=chance.random() < 0.5), f"answer to {asked}")


def _field(chance: random.Random, asked: int, opaque: int) -> Answer:
    """A right answer with one wrong value."""
    if asked == RequestCode.SEND_MESSAGE_V2:
        return _ext(chance, asked, opaque)
    value = json_value(chance)
    if asked == RequestCode.GET_BROKER_CONFIG:
        key = chance.choice(list(CONFIG))
        value = text_value(chance)
        body = "".join(f"{name}={value if name == key else text}\n" for name, text in CONFIG.items()).encode(
            "utf-8", "surrogatepass"
        )
        return Answer(asked, _response(opaque, body=body), f"{key}={value!r:.40}")
    whole = {
        RequestCode.GET_BROKER_HA_STATUS: HA_STATUS,
        RequestCode.GET_BROKER_RUNTIME_INFO: RUNTIME_INFO,
        RequestCode.GET_BROKER_CLUSTER_INFO: CLUSTER_INFO,
    }[RequestCode(asked)]
    document = json.loads(json.dumps(whole))
    path = _replace_one(chance, document)
    text = json.dumps(document).replace(f'"{_MARK}"', value)
    if chance.random() < 0.1:
        # A key that is there twice.
        text = text.replace("{", '{"master":false,"table":5,"trioha":null,', 1)
    return Answer(
        asked, _response(opaque, body=text.encode("utf-8", "surrogatepass")), f"{path}: {value:.40}"
    )


def _replace_one(chance: random.Random, document: Any) -> str:
    """Put the mark in place of one value, or under a new key, anywhere in the document; returns where."""
    path = ""
    while True:
        if isinstance(document, dict) and document:
            key = chance.choice(list(document))
            if chance.random() < 0.08:
                key = text_value(chance)[:200]
                document[key] = _MARK
                return f"{path}.{key!r}"
        elif isinstance(document, list) and document:
            key = chance.randrange(len(document))
        else:
            return path
        path = f"{path}.{key}"
        if not isinstance(document[key], dict | list) or not document[key] or chance.random() < 0.1:
            document[key] = _MARK
            return path
        document = document[key]


def _ext(chance: random.Random, asked: int, opaque: int) -> Answer:
    """Wrong ext fields, in either header format."""
    ext = dict(SEND_RESULT) | {"triohaEveryMillis": "50", "triohaUpdates": "2"}
    for key in chance.sample(list(ext), chance.choice((1, 1, 2, 5))):
        if chance.random() < 0.1:
            del ext[key]
        else:
            ext[key] = text_value(chance)
    shown = ", ".join(f"{key}={value!r:.20}" for key, value in ext.items())
    body = json.dumps(HA_STATUS).encode()
    if chance.random() < 0.5:
        return Answer(asked, _response(opaque, body=body, ext=ext), shown)
    head = binary_head(0, opaque, ext=binary_ext(ext.items()), flag=RESPONSE)
    return Answer(asked, frame(head, body, serialization=BINARY), shown)


def _code(chance: random.Random, asked: int, opaque: int) -> Answer:
    """Any response code, any remark."""
    code = chance.choice((*ResponseCode, -1, 2**31 - 1, -(2**31), 999))
    remark = text_value(chance)
    if chance.random() < 0.5:
        return Answer(
            asked, _response(opaque, code=code, remark=remark), f"code {code}, remark {remark!r:.30}"
        )
    data = remark.encode("utf-8", "surrogatepass")
    head = binary_head(code if abs(code) < 2**15 else -1, opaque, remark=data, flag=RESPONSE)
    return Answer(asked, frame(head, serialization=BINARY), f"code {code}, remark {remark!r:.30}")


def _header(chance: random.Random, asked: int, opaque: int) -> Answer:
    """Wrong values of the header's own fields; `{"code":"--5",...}` among them."""
    name = chance.choice(("code", "opaque", "flag", "version", "language", "remark", "extFields"))
    value = json_value(chance)
    members = [pair for pair in json_head("0", str(opaque), flag="1") if pair[0] != name] + [(name, value)]
    text = json_object(members).encode("utf-8", "surrogatepass")
    return Answer(asked, frame(text, json.dumps(HA_STATUS).encode()), f"{name}: {value:.40}", closes=True)


def _body(chance: random.Random, asked: int, opaque: int) -> Answer:
    """Bodies that are no document."""
    body = chance.choice(
        (
            b"",
            b"null",
            b"[]",
            b"{}",
            b"{{{",
            b"\xff\xfe",
            deep(100_000).encode(),
            deep(900, '{"a":', "}").replace(":}", ":1}").encode(),
            json.dumps(HA_STATUS).encode()[: chance.randrange(600)],
            json.dumps(HA_STATUS).encode("utf-16"),
            json_value(chance).encode("utf-8", "surrogatepass"),
            b'{"table":' + json_value(chance).encode("utf-8", "surrogatepass") + b"}",
            b'{"haConnectionInfo":[' + b",".join([b"{}"] * 20_000) + b"]}",
            b"=\n" * 10_000,
        )
    )
    return Answer(asked, _response(opaque, body=body), f"body {body[:30]!r}")


def _frames(chance: random.Random, asked: int, opaque: int) -> Answer:
    """Frames that are none."""
    whole = good_answer(asked, opaque)
    kind = chance.randrange(7)
    match kind:
        case 0:
            (data,) = mutants(chance.getrandbits(32), [whole], 1)
        case 1:
            data = pack(">I", chance.choice((0, 3, 4, len(whole), 2**24, 2**31, 2**32 - 1))) + whole[4:]
        case 2:
            data = whole[:5] + chance.choice((0, 1, 2**24 - 1)).to_bytes(3, "big") + whole[8:]
        case 3:
            data = whole[:4] + bytes((chance.randint(2, 255),)) + whole[5:]
        case 4:
            data = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        case 5:
            data = chance.randbytes(chance.choice((1, 8, 1000)))
        case _:
            data = whole[: chance.randrange(len(whole))]
    return Answer(asked, data, f"frame {kind}, {data[:12].hex()}", closes=True)


def _unasked(chance: random.Random, asked: int, opaque: int) -> Answer:
    """Answers without a request, answers twice, and requests of the server, before the right answer."""
    whole = good_answer(asked, opaque)
    kind = chance.randrange(5)
    match kind:
        case 0:
            data = whole * 3
        case 1:
            others = (0, -1, opaque + 1, 2**31 - 1, -(2**31))
            data = b"".join(good_answer(asked, other) for other in others if other != opaque) + whole
        case 2:
            code = chance.choice(
                (RequestCode.GET_BROKER_HA_STATUS, RequestCode.GET_BROKER_RUNTIME_INFO, 40, 220, 5)
            )
            bodies = (
                b"",
                b"{",
                json_value(chance).encode("utf-8", "surrogatepass"),
                json.dumps(HA_STATUS).encode(),
            )
            pushed = _response(0, code=code, body=chance.choice(bodies), flag=ONEWAY)
            data = pushed * chance.choice((1, 100)) + whole + pushed
        case 3:
            data = _response(0, code=10, flag=0) * 10 + whole
        case _:
            promise = {"triohaEveryMillis": "50", "triohaUpdates": chance.choice(("2", "100"))}
            pushed = _response(
                0, code=RequestCode.GET_BROKER_HA_STATUS, body=json_value(chance).encode("utf-8",
                "surrogatepass"),
                flag=ONEWAY,
            )  # fmt: skip
            data = good_answer(asked, opaque, ext=promise) + pushed
    return Answer(asked, data, f"unasked {kind}")


def _gone(chance: random.Random, asked: int, opaque: int) -> Answer:
    manner = chance.choice((Manner.WHOLE, Manner.RESET))
    return Answer(asked, b"", "closes instead of an answer", closes=True, manner=manner)


def _dribble(chance: random.Random, asked: int, opaque: int) -> Answer:
    return Answer(asked, good_answer(asked, opaque), "a few bytes at a time", manner=Manner.DRIBBLE)


def _names(chance: random.Random, asked: int, opaque: int) -> Answer:
    """New names each time: a reader that keeps them must have a maximum."""
    document = json.loads(json.dumps(HA_STATUS))
    for counts in ("putStatuses", "endedConnections"):
        document["trioha"][counts] = {
            f"N{chance.getrandbits(40):X}": chance.getrandbits(chance.choice((1, 40, 70))) for _ in range(50)
        }
    document["trioha"]["warnings"] = [text_value(chance)[:2000] for _ in range(20)]
    for connection in document["haConnectionInfo"]:
        connection["addr"] = f"10.{chance.randrange(256)}.{chance.randrange(256)}.1:{chance.randrange(65536)}"
    return Answer(
        RequestCode.GET_BROKER_HA_STATUS, _response(opaque, body=json.dumps(document).encode()), "new names"
    )


def _many(chance: random.Random, asked: int, opaque: int) -> Answer:
    document = json.loads(json.dumps(HA_STATUS))
    one = document["haConnectionInfo"][0]
    document["haConnectionInfo"] = [
        {**one, "addr": f"10.0.{number // 256}.{number % 256}:5"}
        for number in range(chance.choice((300, 3000)))
    ]
    return Answer(
        RequestCode.GET_BROKER_HA_STATUS, _response(opaque, body=json.dumps(document).encode()), "crowd"
    )


KINDS: tuple[tuple[str, Callable[[random.Random, int, int], Answer], float], ...] = (
    ("answer-good", _good, 10),
    ("answer-field", _field, 40),
    ("answer-ext", _ext, 8),
    ("answer-code", _code, 8),
    ("answer-header", _header, 10),
    ("answer-body", _body, 6),
    ("answer-frame", _frames, 8),
    ("answer-unasked", _unasked, 5),
    ("answer-gone", _gone, 2),
    ("answer-dribble", _dribble, 0.5),
    ("answer-names", _names, 1.5),
    ("answer-many", _many, 0.2),
)
"""Every kind of answer, and how often it is drawn."""
_NAMED = [(name, draw) for name, draw, _ in KINDS]
_WEIGHTS = list(accumulate(weight for _, _, weight in KINDS))

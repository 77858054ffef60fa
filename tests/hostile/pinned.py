"""Frames that did harm once: each is sent in every live run, before those of the seed."""

from __future__ import annotations

from typing import Final

from tests.hostile.frame import Frame, Lane, Outcome
from tests.hostile.requesting import Call
from tests.hostile.wire import BINARY, JSON, frame
from trioha.remoting.codes import RequestCode

INDEX: Final = -1
"""Of frames that no seed gives."""
HEADERS: Final = (
    # Ended the node: `int` of a text that only looked like a number.
    '{"code":"--5","opaque":1,"flag":0,"version":0}',
    '{"code":10,"opaque":"--5","flag":0,"version":0}',
    '{"code":10,"opaque":1,"flag":"--5","version":0}',
    '{"code":"\u0665","opaque":1,"flag":0,"version":0}',
    '{"code":"\u00b2","opaque":1,"flag":0,"version":0}',
    f'{{"code":1{"0" * 5000},"opaque":1,"flag":0,"version":0}}',
    "[" * 100_000,
)
PROPERTIES: Final = (
    # SYSTEM_ERROR with a traceback in the log.
    *("DELAY\x01--5\x02", "DELAY\x01" + "9" * 5001 + "\x02", "DELAY\x01\u00b2\x02", "TAGS\x01\ud800\x02"),
)


def pinned_frames() -> list[Frame]:
    """Requests for nodes in both roles."""
    found = []
    for lane in (Lane.MASTER, Lane.SLAVE):
        found += [
            Frame(0, INDEX, lane, "pinned", text[:40], Outcome.CLOSED, (frame(text.encode()),), opaque=1)
            for text in HEADERS
        ]
        # Stored although RocketMQ knows no such number.
        found.append(_send(lane, JSON, refused=True, e="\u0665"))
        found += [_send(lane, JSON, i=text) for text in PROPERTIES]
        found.append(_send(lane, BINARY, i=PROPERTIES[-1]))
    return found


def _send(lane: Lane, serialization: int, *, refused: bool = False, **changes: str) -> Frame:
    fields = {"a": "group", "b": "Topic", "c": "TBW102", **dict.fromkeys("defgh", "0"), **changes}
    data = Call(RequestCode.SEND_MESSAGE_V2, 1, serialization, [*fields.items()], b"body").encode()
    return Frame(
        0, INDEX, lane, "pinned", f"{changes}"[:40], Outcome.ANSWERED, (data,), opaque=1,
        must_be_refused=refused,
    )  # fmt: skip

"""Hostile peers at an HA port: reports of every kind, and bytes that are not a report.

See docs/protocol/ha.md#frames.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

from attrs import define

from tests.hostile.frame import Manner, Outcome, Relative, Step
from trioha.ha.frames import REPORT

EDGES = (-1, -2, -8, -(2**31), -(2**63), 0, 1, 2, 7, 8, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1)


@define
class Script:
    """What a peer does."""

    steps: tuple[Step, ...]
    detail: str
    outcome: Outcome = Outcome.ANY
    manner: Manner = Manner.WHOLE


def draw_reports(chance: random.Random) -> tuple[str, Script]:
    """One script and its kind."""
    kind, draw = chance.choices(_NAMED, cum_weights=_WEIGHTS)[0]
    return kind, draw(chance)


def _negative(chance: random.Random) -> Script:
    offset = chance.choice((-2, -3, -8, -(2**31), -(2**63)))
    return Script((REPORT.pack(offset),), f"first report {offset}", Outcome.CLOSED)


def _beyond(chance: random.Random) -> Script:
    offset = chance.choice((2**63 - 1, 2**62, 2**50 + 1))
    return Script((REPORT.pack(offset),), f"first report {offset}", Outcome.CLOSED)


def _nothing_yet(chance: random.Random) -> Script:
    number = chance.choice((1, 10, 2000))
    return Script((REPORT.pack(-1) * number,), f"{number} reports of -1")


def _beyond_sent(chance: random.Random) -> Script:
    delta = chance.choice((1, 8, 2**20, 2**40, 2**62))
    return Script(
        (REPORT.pack(0), Relative(delta)),
        f"acknowledges {delta} bytes more than it received",
        # A little more may well be on its way.
        Outcome.CLOSED if delta >= 2**40 else Outcome.ANY,
    )


def _going_back(chance: random.Random) -> Script:
    # The acknowledgement of what was sent is right; then it takes it back.
    later = chance.choice((0, -1, 1, -(2**63)))
    return Script(
        (REPORT.pack(0), Relative(0), REPORT.pack(later)),
        f"acknowledges all, then reports {later}",
        # Of reports that come together only the last counts: then nothing was acknowledged that 0 takes back.
        Outcome.CLOSED if later < 0 else Outcome.ANY,
    )


def _half(chance: random.Random) -> Script:
    size = chance.randint(1, 7)
    steps: tuple[Step, ...] = (bytes(size),)
    if chance.random() < 0.5:
        steps = (REPORT.pack(0), Relative(0), chance.randbytes(size))
    return Script(steps, f"{size} bytes of a report, and the end")


def _flood(chance: random.Random) -> Script:
    number = chance.choice((1000, 20_000))
    return Script((REPORT.pack(0), REPORT.pack(0) * number), f"{number} times the same report")


def _edges(chance: random.Random) -> Script:
    reports = [chance.choice(EDGES) for _ in range(chance.randint(1, 5))]
    return Script(tuple(map(REPORT.pack, reports)), f"reports {reports}")


def _dribble(chance: random.Random) -> Script:
    return Script((REPORT.pack(0), Relative(0)), "a byte at a time", manner=Manner.DRIBBLE)


def _probe(_: random.Random) -> Script:
    return Script((), "connects and closes")


def _reset(chance: random.Random) -> Script:
    size = chance.choice((0, 3, 8))
    return Script((bytes(size),), f"reset after {size} bytes", manner=Manner.RESET)


def _idle(chance: random.Random) -> Script:
    data = chance.choice((b"", b"\0", REPORT.pack(0)))
    return Script((data,), f"silent after {len(data)} bytes", manner=Manner.IDLE)


def _deaf(_: random.Random) -> Script:
    return Script((REPORT.pack(0),), "asks for the log and reads nothing", manner=Manner.DEAF)


def _foreign(chance: random.Random) -> Script:
    name, data = chance.choice(
        (
            ("HTTP GET", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"),
            ("TLS hello", bytes.fromhex("1603010200010001fc0303") + b"\x5a" * 505),
            ("SSH", b"SSH-2.0-OpenSSH_9.6\r\n"),
            ("a remoting frame",
            b"\0\0\0\x6f\0\0\0\x6b" + b'{"code":907,"opaque":1,"flag":0,"version":0}' + bytes(63)),
        )
    )  # fmt: skip
    return Script((data,), name)


def _noise(chance: random.Random) -> Script:
    size = chance.choice((8, 64, 1000, 16384))
    return Script((chance.randbytes(size),), f"{size} bytes")


KINDS: tuple[tuple[str, Callable[[random.Random], Script], float], ...] = (
    ("ha-negative", _negative, 8),
    ("ha-beyond", _beyond, 8),
    ("ha-nothing-yet", _nothing_yet, 6),
    ("ha-beyond-sent", _beyond_sent, 10),
    ("ha-going-back", _going_back, 10),
    ("ha-half", _half, 10),
    ("ha-flood", _flood, 3),
    ("ha-edges", _edges, 15),
    ("ha-dribble", _dribble, 2),
    ("ha-probe", _probe, 10),
    ("ha-reset", _reset, 5),
    ("ha-idle", _idle, 1),
    ("ha-deaf", _deaf, 0.5),
    ("ha-foreign", _foreign, 5),
    ("ha-noise", _noise, 5),
)
"""Every kind of script, and how often it is drawn."""
_NAMED = [(name, draw) for name, draw, _ in KINDS]
_WEIGHTS = list(accumulate(weight for _, _, weight in KINDS))

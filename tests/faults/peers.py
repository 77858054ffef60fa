"""Peers that have no business at an HA port, and masters that are none.

A guest dials a node's HA port; an impostor is dialled by a slave in its master's stead.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from itertools import count

import trio

from tests.hostile.counters import ConnectionCounters
from tests.hostile.frame import Frame, Lane
from tests.hostile.generator import frame_of
from tests.hostile.strangers import Batches, NodeGone, Target, play, talk
from trioha.ha.frames import HEADER, HEADER_BYTES, REPORT, REPORT_BYTES

FAR_OFFSET = 1 << 50
HOSTILE_PAUSE_S = 0.01
"""Between two connections of a hostile peer: a run's own load wants its share of the machine, too."""
DIAL_PAUSE_S = 0.002


class Guest(StrEnum):
    """What a guest does."""

    HTTP = "http"
    NOISE = "noise"
    ACK_BEYOND = "ack-beyond"
    """Asks like an empty slave, then acknowledges more than anyone ever wrote."""
    ACK_AT_ONCE = "ack-at-once"
    """Its first report is far beyond the log."""
    CLAIM = "claim"
    """Requests like an empty slave, to find the end of the log; then another connection's first report
    claims all of it."""
    NEGATIVE = "negative"
    MISALIGNED = "misaligned"
    """Half a report, and no more."""
    MUTE = "mute"
    CROWD = "crowd"
    """Forty connections that ask, and take nothing."""


class Impostor(StrEnum):
    """What a false master sends to each slave that connects."""

    NOISE = "noise"
    NEGATIVE_SIZE = "negative-size"
    HUGE_SIZE = "huge-size"
    WRONG_OFFSET = "wrong-offset"
    BAD_RECORD = "bad-record"
    """A frame that fits the slave's log exactly, of bytes that are no record."""
    MUTE = "mute"


async def visit(kind: Guest, *, port: int, seed: int, stay_s: float) -> None:
    """Be a guest at 127.0.0.1:`port` for `stay_s`, or until shown out."""
    chance = random.Random(f"guest {seed}")
    if kind is Guest.CLAIM:
        with trio.move_on_after(stay_s):
            await _attend(port, _claim, False)
        return
    say: Callable[[trio.SocketStream], Awaitable[None]] = partial(_say, kind, chance)
    number = 40 if kind is Guest.CROWD else 1
    with trio.move_on_after(stay_s):
        async with trio.open_nursery() as nursery:
            for _ in range(number):
                nursery.start_soon(_attend, port, say, kind is Guest.CROWD)


async def _attend(port: int, say: Callable[[trio.SocketStream], Awaitable[None]], deaf: bool) -> None:
    try:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await say(stream)
            if deaf:
                await trio.sleep_forever()
            while await stream.receive_some():
                pass
    except (OSError, trio.BrokenResourceError):
        pass  # refused, or not listening: both are right


async def _claim(stream: trio.SocketStream) -> None:
    """Read the log to its end, and claim it on a connection that nothing is sent on."""
    await stream.send_all(REPORT.pack(0))
    buffer = b""
    while True:
        while len(buffer) < HEADER_BYTES:
            buffer += await _some(stream)
        offset, body_bytes = HEADER.unpack(buffer[:HEADER_BYTES])
        if body_bytes == 0:
            break  # a heartbeat: this is the end
        while len(buffer) < HEADER_BYTES + body_bytes:
            buffer += await _some(stream)
        buffer = buffer[HEADER_BYTES + body_bytes :]
    port = stream.socket.getpeername()[1]
    async with await trio.open_tcp_stream("127.0.0.1", port) as claim:
        await claim.send_all(REPORT.pack(offset))
        while await claim.receive_some():
            pass


async def _some(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some()
    if not data:
        raise trio.BrokenResourceError("shown out")
    return bytes(data)


async def _say(kind: Guest, chance: random.Random, stream: trio.SocketStream) -> None:
    match kind:
        case Guest.HTTP:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: broker\r\nAccept: */*\r\n\r\n")
        case Guest.NOISE:
            for _ in range(8):
                await stream.send_all(chance.randbytes(chance.randint(1, 4096)))
                await trio.sleep(0.02)
        case Guest.ACK_BEYOND:
            await stream.send_all(REPORT.pack(0))
            await trio.sleep(0.05)
            await stream.send_all(REPORT.pack(FAR_OFFSET))
        case Guest.ACK_AT_ONCE:
            await stream.send_all(REPORT.pack(FAR_OFFSET))
        case Guest.NEGATIVE:
            await stream.send_all(REPORT.pack(-1) + REPORT.pack(-2))
        case Guest.MISALIGNED:
            await stream.send_all(bytes(chance.randint(1, REPORT_BYTES - 1)))
        case Guest.CROWD:
            await stream.send_all(REPORT.pack(0))
        case Guest.MUTE | Guest.CLAIM:
            pass


async def pose(
    kind: Impostor, *, seed: int, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be a master that is none, on a port of its own (the start value), until cancelled."""
    handler = partial(_pretend, kind, random.Random(f"impostor {seed}"))
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(handler, listeners)


async def _pretend(kind: Impostor, chance: random.Random, stream: trio.SocketStream) -> None:
    try:
        report = b""
        while len(report) < REPORT_BYTES:
            data = await stream.receive_some(REPORT_BYTES - len(report))
            if not data:
                return
            report += data
        (offset,) = REPORT.unpack(report)
        match kind:
            case Impostor.NOISE:
                # Its first byte makes the first frame's offset negative or beyond every log.
                await stream.send_all(bytes((chance.randint(1, 255),)) + chance.randbytes(50_000))
            case Impostor.NEGATIVE_SIZE:
                await stream.send_all(HEADER.pack(offset, -5))
            case Impostor.HUGE_SIZE:
                await stream.send_all(HEADER.pack(offset, 2**31 - 1))
            case Impostor.WRONG_OFFSET:
                await stream.send_all(HEADER.pack(offset + chance.choice((1, 8, 1 << 30)), 0))
            case Impostor.BAD_RECORD:
                await stream.send_all(HEADER.pack(offset, 200) + chance.randbytes(200))
            case Impostor.MUTE:
                pass
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass  # the slave has had enough


async def harass(
    *, listen_port: int, ha_port: int, seed: int, stay_s: float, counters: ConnectionCounters
) -> None:
    """Send the hostile frames of a seed (`tests.hostile`) to both ports of a node for `stay_s`.

    Only what answers say is judged: the node may well be killed or hang meanwhile.
    """
    node, ha = Target("node", listen_port), Target("node", ha_port)
    batches = Batches()
    with trio.move_on_after(stay_s), suppress(NodeGone):
        for index in count():
            frame = frame_of(seed, index)
            match frame.lane:
                case Lane.MASTER | Lane.SLAVE:
                    for batch in batches.add(frame):
                        await talk(node, batch, counters)
                        await trio.sleep(HOSTILE_PAUSE_S)
                case Lane.HA_MASTER | Lane.HA_SLAVE:
                    await _play(ha, frame, counters)


async def _play(ha: Target, frame: Frame, counters: ConnectionCounters) -> None:
    await play(ha, frame, counters)
    await trio.sleep(HOSTILE_PAUSE_S)


async def occupy(*, port: int, connections: int, stay_s: float) -> None:
    """Dial a node's port so many times, and say nothing on any connection that it gives."""
    with trio.move_on_after(stay_s):
        async with trio.open_nursery() as nursery:
            for _ in range(connections):
                nursery.start_soon(_attend, port, _say_nothing, False)
                await trio.sleep(DIAL_PAUSE_S)


async def _say_nothing(_: trio.SocketStream) -> None:
    await trio.lowlevel.checkpoint()

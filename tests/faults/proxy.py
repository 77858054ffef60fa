"""A TCP proxy on loopback that breaks links on command.

Theory of operation. A `Link` listens on a port of its own and joins each connection that it accepts to one
that it makes to `target`. Of every pair, two pumps carry bytes, one for each `Direction`. A pump reads a
piece, holds it back for as long as the link says (frozen, slow), and sends it on whole: bytes are never
changed, reordered or lost while both ends live. (Only `words` are: addresses in what a target answers, so
that it leads clients to links, too.) What the link does to them:

| call | what the two ends see |
|---|---|
| `cut` | the end of the connection: in order (FIN), or with a reset |
| `cut_after` | exactly so many more bytes in one direction, then the end |
| `freeze`, `thaw` | silence in one direction or both; what was sent meanwhile comes afterwards |
| `vanish`, `appear` | a peer that is gone without a word: silence for ever, no end |
| `slow`, `full_speed` | latency, and so many bytes a second |
| `shred` | the same bytes in small pieces |

Ends of connections are held back like bytes. The same seed and the same traffic give the same pieces.
A link belongs to the trio thread that serves it.
"""

from __future__ import annotations

import random
import re
import socket
import struct
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial

import trio
from attrs import define, field

PIECE_BYTES_MAX = 64 * 1024
IN_FLIGHT_PIECES_MAX = 16
"""Pieces that are under way at a time in one direction of a slow link."""
CONNECT_TIMEOUT_S = 2.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Direction(StrEnum):
    """Which way bytes go through a link."""

    TO_TARGET = "to_target"
    """From who dialled to who was dialled."""
    TO_CLIENT = "to_client"


BOTH = (Direction.TO_TARGET, Direction.TO_CLIENT)
Watch = Callable[[Direction, bytes], None]
"""Is called with all bytes of one connection, before they are sent on."""


class Substitution:
    """Replaces words in a stream of bytes by others of their length, however the stream is cut.

    The end of a piece is kept back while it may be the begin of a word.
    """

    def __init__(self, words: Mapping[bytes, bytes]) -> None:
        assert all(len(word) == len(other) for word, other in words.items()), "frames have lengths"
        self._words = words
        self._pattern = re.compile(b"|".join(map(re.escape, words)))
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """What may be sent on after `data`; all of it if `data` is empty, which is the stream's end."""
        if not self._words:
            return data
        whole = self._pattern.sub(lambda found: self._words[found[0]], self._kept + data)
        kept_bytes = self._begun_bytes(whole) if data else 0
        self._kept = whole[len(whole) - kept_bytes :]
        return whole[: len(whole) - kept_bytes]

    def _begun_bytes(self, data: bytes) -> int:
        longest = max(map(len, self._words)) - 1
        return next(
            (
                size
                for size in range(min(longest, len(data)), 0, -1)
                if any(len(word) > size and word.startswith(data[-size:]) for word in self._words)
            ),
            0,
        )


@define(eq=False)
class _Lane:
    """What the link does to the bytes of one direction."""

    chance: random.Random
    open: trio.Event = field(factory=trio.Event)
    """Set unless frozen."""
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    """0 for as fast as it goes."""
    piece_bytes_max: int = PIECE_BYTES_MAX
    left_bytes: int | None = None
    """How much may still pass before the cut; None for no limit."""
    passed_bytes: int = 0
    """How much was sent on, over all connections."""

    def __attrs_post_init__(self) -> None:
        self.open.set()

    def piece_bytes(self) -> int:
        size = self.piece_bytes_max
        if self.bytes_per_s:
            # A piece takes at most a twentieth of a second.
            size = min(size, max(1, round(self.bytes_per_s / 20)))
        return size if size == PIECE_BYTES_MAX else self.chance.randint(1, size)


@define(eq=False)
class _Pair:
    """Two joined connections."""

    client: trio.SocketStream
    target: trio.SocketStream
    watch: Watch | None = None
    substitutions: Mapping[Direction, Substitution] = field(factory=dict)
    scope: trio.CancelScope = field(factory=trio.CancelScope)
    is_dead: bool = False
    """The ends receive nothing from each other any more."""
    resets: list[trio.SocketStream] = field(factory=list)
    """Which of the two end with a reset."""


class Link:
    """One faulty link: `serve` is its whole life."""

    def __init__(self, *, seed: int = 0, watch: Callable[[], Watch] | None = None) -> None:
        """`watch` is called for each connection that is joined."""
        self._watch = watch
        self.target: tuple[str, int] | None = None
        """Where new connections lead; None refuses them."""
        self.port = 0
        """Where the link listens on 127.0.0.1, once it serves."""
        self.accepted = 0
        """Connections that were joined to the target."""
        self.words: Mapping[bytes, bytes] = {}
        """What is replaced in that which targets of new connections send."""
        self.words_to_target: Mapping[bytes, bytes] = {}
        """What is replaced in that which they are sent."""
        self._lanes = {way: _Lane(random.Random(f"{seed} {way}")) for way in BOTH}
        self._pairs: list[_Pair] = []
        self._present = trio.Event()
        self._present.set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """Pairs that are joined now, those of a vanished peer included."""
        return len(self._pairs)

    def passed_bytes(self, way: Direction) -> int:
        return self._lanes[way].passed_bytes

    # -- faults --------------------------------------------------------------------------------------------

    def cut(self, *, reset: bool) -> None:
        """End every connection now; bytes that are held back are lost."""
        for pair in self._pairs:
            if not pair.is_dead:
                self._end(pair, resets=[pair.client, pair.target] if reset else [])

    def cut_after(self, way: Direction, number_bytes: int) -> None:
        """Let exactly `number_bytes` more pass in this direction, over all connections, then cut.

        The receiving end sees all of them and then an end in order, the sending end a reset.
        """
        assert number_bytes > 0, "to cut at once is `cut`"
        self._lanes[way].left_bytes = number_bytes

    def freeze(self, *ways: Direction) -> None:
        """Keep all bytes and ends of these directions until `thaw`."""
        for way in ways:
            if self._lanes[way].open.is_set():
                self._lanes[way].open = trio.Event()

    def thaw(self) -> None:
        for lane in self._lanes.values():
            lane.open.set()

    def vanish(self) -> None:
        """Stop all traffic of all connections without closing them.

        Their sockets stay until the link ends. Who dials waits until `appear`.
        """
        for pair in self._pairs:
            pair.is_dead = True
        if self._present.is_set():
            self._present = trio.Event()

    def appear(self) -> None:
        """Join new connections again."""
        self._present.set()

    def slow(self, *, latency_s: float, bytes_per_s: float) -> None:
        """Deliver each piece `latency_s` later than it came, and at most `bytes_per_s` in each direction."""
        for lane in self._lanes.values():
            lane.latency_s = latency_s
            lane.bytes_per_s = bytes_per_s

    def full_speed(self) -> None:
        self.slow(latency_s=0.0, bytes_per_s=0.0)

    def shred(self, piece_bytes_max: int) -> None:
        """Send on pieces of 1 to `piece_bytes_max` bytes; PIECE_BYTES_MAX ends it."""
        for lane in self._lanes.values():
            lane.piece_bytes_max = piece_bytes_max

    def heal(self) -> None:
        """End every fault. Connections that were cut or have vanished stay so."""
        self.thaw()
        self.appear()
        self.full_speed()
        self.shred(PIECE_BYTES_MAX)
        for lane in self._lanes.values():
            lane.left_bytes = None

    # -- traffic -------------------------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept connections for ever; cancelling ends them all."""
        listeners = await trio.open_tcp_listeners(self.port, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_listeners, self._join, listeners))
            task_status.started()

    async def _join(self, client: trio.SocketStream) -> None:
        # A connection to a vanished peer waits.
        await self._present.wait()
        if self.target is None:
            await _close(client, reset=True)
            return
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                target = await trio.open_tcp_stream(*self.target)
        except (OSError, trio.TooSlowError):
            await _close(client, reset=True)
            return
        self.accepted += 1
        watch = None if self._watch is None else self._watch()
        substitutions = {
            Direction.TO_CLIENT: Substitution(self.words),
            Direction.TO_TARGET: Substitution(self.words_to_target),
        }
        pair = _Pair(client, target, watch, substitutions)
        self._pairs.append(pair)
        try:
            with pair.scope:
                async with trio.open_nursery() as pumps:
                    pumps.start_soon(self._pump, pair, Direction.TO_TARGET)
                    pumps.start_soon(self._pump, pair, Direction.TO_CLIENT)
        finally:
            self._pairs.remove(pair)
            with trio.CancelScope(shield=True):
                for stream in (pair.client, pair.target):
                    await _close(stream, reset=stream in pair.resets)

    def _end(self, pair: _Pair, *, resets: list[trio.SocketStream]) -> None:
        pair.resets = resets
        pair.scope.cancel()

    async def _pump(self, pair: _Pair, way: Direction) -> None:
        """Read pieces and hand them on with the time at which each is due."""
        source = pair.client if way is Direction.TO_TARGET else pair.target
        lane = self._lanes[way]
        send, receive = trio.open_memory_channel[tuple[float, bytes]](IN_FLIGHT_PIECES_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, pair, way, receive)
            async with send:
                while True:
                    try:
                        data = await source.receive_some(lane.piece_bytes())
                    except trio.BrokenResourceError:
                        data = b""
                        pair.resets = [pair.client, pair.target]
                    is_end = not data
                    data = pair.substitutions[way].feed(bytes(data))
                    if lane.bytes_per_s:
                        await trio.sleep(len(data) / lane.bytes_per_s)
                    due_s = trio.current_time() + lane.latency_s
                    if data:
                        await send.send((due_s, bytes(data)))
                    if is_end:
                        await send.send((due_s, b""))
                        return

    async def _deliver(
        self, pair: _Pair, way: Direction, pieces: trio.MemoryReceiveChannel[tuple[float, bytes]]
    ) -> None:
        sink = pair.target if way is Direction.TO_TARGET else pair.client
        lane = self._lanes[way]
        async for due_s, piece in pieces:
            await trio.sleep_until(due_s)
            # A loop: it may be frozen again before this task runs.
            while not lane.open.is_set():
                await lane.open.wait()
            if pair.is_dead:
                # Read no more either: who writes to a vanished peer fills its own buffers.
                await trio.sleep_forever()
            data = piece
            last = False
            if data and lane.left_bytes is not None:
                data = data[: lane.left_bytes]
                lane.left_bytes -= len(data)
                last = lane.left_bytes == 0
            try:
                if data:
                    if pair.watch is not None:
                        pair.watch(way, data)
                    await sink.send_all(data)
                    lane.passed_bytes += len(data)
            except trio.BrokenResourceError:
                self._end(pair, resets=[pair.client, pair.target])
                return
            if last:
                lane.left_bytes = None
                self._end(pair, resets=[pair.client if sink is pair.target else pair.target])
                return
            if not data:
                self._end(pair, resets=pair.resets)
                return


async def _close(stream: trio.SocketStream, *, reset: bool) -> None:
    if reset and stream.socket.fileno() >= 0:
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    await trio.aclose_forcefully(stream)

"""Single frames: each alone, on nodes that are started anew when one of them has ended; and made smaller."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import trio
from attrs import evolve

from tests.faults.invariants import check_process_logs
from tests.hostile.counters import ConnectionCounters
from tests.hostile.frame import Frame, Lane, Manner, Outcome
from tests.hostile.pretenders import HostileMaster, answer_client, answer_feed
from tests.hostile.requesting import Call
from tests.hostile.run import FILE_BYTES, Nodes
from tests.hostile.strangers import HANG_S, NodeGone, Target, attack, besiege
from tests.hostile.wire import BINARY, JSON
from tests.hostile.wire import frame as frame_bytes
from trioha.errors import RemoteProtocolError
from trioha.remoting.codec import FrameDecoder

ENDS_WITHIN_S: Final = 0.3
"""A node that a frame ends has ended within this time; it only decides what a frame is blamed for."""
TRIES_MAX: Final = 400


class Bench:
    """A synchronous pair of nodes for single frames. A context manager that ends its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self._stack = ExitStack()
        self._nodes: Nodes | None = None
        self._judged_bytes: dict[Path, int] = {}
        self.counters = ConnectionCounters()
        """Of the last frame."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def judge(self, frame: Frame) -> list[str]:
        """Send one frame; returns what must not have happened."""
        counters = self.counters = ConnectionCounters()
        if frame.lane is Lane.TRANSFER:
            return self._judge_transfer(frame)
        nodes = self._running()
        trio.run(self._send, nodes, frame)
        findings = [finding.what for finding in counters.findings]
        deadline_s = time.monotonic() + ENDS_WITHIN_S
        while time.monotonic() < deadline_s and nodes.master.is_running and nodes.slave.is_running:
            time.sleep(0.02)
            if not findings:
                break
        findings += [
            f"the node {name!r} ended"
            for name, node in (("master", nodes.master), ("slave", nodes.slave))
            if not node.is_running
        ]
        return findings + self._new_tracebacks(nodes)

    def address(self, lane: Lane) -> str:
        """Where the node of this lane listens; it runs then."""
        nodes = self._running()
        return nodes.master.listen_address if lane is Lane.MASTER else nodes.slave.listen_address

    def _running(self) -> Nodes:
        nodes = self._nodes
        if nodes is None or not (nodes.master.is_running and nodes.slave.is_running):
            self._stack.close()
            self._starts += 1
            folder = self._folder / f"start-{self._starts}"
            folder.mkdir(parents=True)
            nodes = self._nodes = Nodes(folder, self._stack)
            nodes.master.wait(connections=1)
            self._judged_bytes = {}
        return nodes

    def _new_tracebacks(self, nodes: Nodes) -> list[str]:
        found = []
        for name in nodes.names:
            path = nodes.log_file(name)
            text = path.read_bytes()
            new = self._folder / f"{name}.new"
            new.write_bytes(text[self._judged_bytes.get(path, 0) :])
            self._judged_bytes[path] = len(text)
            found += check_process_logs([new])
        return found

    async def _send(self, nodes: Nodes, frame: Frame) -> None:
        send, receive = trio.open_memory_channel[Any](1)
        await send.send((frame,) if frame.lane in {Lane.MASTER, Lane.SLAVE} else frame)
        send.close()
        try:
            async with trio.open_nursery() as aside:
                match frame.lane:
                    case Lane.MASTER | Lane.SLAVE:
                        node = nodes.master if frame.lane is Lane.MASTER else nodes.slave
                        port = int(node.listen_address.rpartition(":")[2])
                        await attack(Target(str(frame.lane), port), receive, self.counters, aside)
                    case Lane.HA_MASTER | Lane.HA_SLAVE:
                        node = nodes.master if frame.lane is Lane.HA_MASTER else nodes.slave
                        await besiege(Target(str(frame.lane), node.ha_port), receive, self.counters, aside)
                    case Lane.CLIENT:
                        await answer_client(receive, self.counters)
                    case _:
                        await answer_feed(receive, self.counters)
        except* NodeGone as gone:
            self.counters.find(str(gone.exceptions[0]), frame)

    def _judge_transfer(self, frame: Frame) -> list[str]:
        self._stack.close()
        self._nodes = None
        self._starts += 1
        folder = self._folder / f"start-{self._starts}"
        folder.mkdir(parents=True)
        nodes = Nodes(folder, self._stack)
        master = HostileMaster(folder / "truth", file_bytes=FILE_BYTES)

        async def serve() -> None:
            send, receive = trio.open_memory_channel[Frame](1)
            await send.send(frame)
            async with trio.open_nursery() as nursery:
                port = await nursery.start(master.run, receive, self.counters)
                node = nodes.start_misled(self._stack, port)
                deadline_s = trio.current_time() + HANG_S
                while node.is_running and not self.counters.done:
                    assert trio.current_time() < deadline_s, f"{frame} was not taken within {HANG_S:g} s"
                    await trio.sleep(0.02)
                nursery.cancel_scope.cancel()
                if not node.is_running:
                    self.counters.find("the node 'misled' ended", frame)

        try:
            trio.run(serve)
        finally:
            master.close()
        self._judged_bytes = {}
        found = [finding.what for finding in self.counters.findings] + self._new_tracebacks(nodes)
        self._stack.close()
        return found


def shrunk(frame: Frame, fails: Callable[[Frame], bool]) -> Frame:
    """A smaller request that fails, too. Only for requests to a listen port; `frame` itself must fail.

    First whole members of a JSON header and the body are left out, then bytes of the header. The lengths are
    made right again where they were.
    """
    assert frame.lane in {Lane.MASTER, Lane.SLAVE}, "only requests can be made smaller"
    tries = 0
    best = frame

    def smaller(data: bytes) -> bool:
        nonlocal tries, best
        tries += 1
        if tries > TRIES_MAX or len(data) >= len(best.data):
            return False
        # Whether it is answered is not sure any more.
        candidate = evolve(
            frame, steps=(data,), outcome=Outcome.ANY, detail="made smaller", manner=Manner.WHOLE
        )
        if not fails(candidate):
            return False
        best = candidate
        return True

    progress = True
    while progress and tries <= TRIES_MAX:
        progress = any(smaller(data) for data in _candidates(best.data))
    return best


def _candidates(data: bytes) -> Iterator[bytes]:
    parts = _split(data)
    if parts is None:
        yield from _without_pieces(data)
        return
    serialization, header, body = parts
    build = partial(frame_bytes, serialization=serialization)
    if body:
        yield build(header, b"")
    if serialization == BINARY:
        yield from _smaller_binary(data)
    if serialization == JSON:
        yield from (build(smaller, body) for smaller in _smaller_json(header))
    yield from (build(smaller, body) for smaller in _without_pieces(header))


def _split(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Serialization, header and body of a frame whose lengths are right; None of any other."""
    if len(data) < 8 or int.from_bytes(data[:4], "big") != len(data) - 4:
        return None
    end = 8 + int.from_bytes(data[5:8], "big")
    return None if end > len(data) else (data[4], data[8:end], data[end:])


def _smaller_binary(data: bytes) -> Iterator[bytes]:
    decoder = FrameDecoder()
    decoder.feed(data)
    try:
        command = decoder.next_command()
    except RemoteProtocolError:
        return
    if command is None:
        return
    call = Call(command.code, command.opaque, BINARY, body=bytes(command.body), flag=command.flag)
    for name, value in command.ext_fields.items():
        others = [(key, text) for key, text in command.ext_fields.items() if key != name]
        yield evolve(call, ext=others).encode()
        for part in _parts(value):
            yield evolve(call, ext=[*others, (name, part)]).encode()


def _parts(text: str) -> tuple[str, ...]:
    return (text[: len(text) // 2], text[len(text) // 2 :], text[:1]) if len(text) > 1 else ()


def _smaller_json(header: bytes) -> Iterator[bytes]:
    try:
        members = json.loads(header)
    except (ValueError, RecursionError):
        return
    if not isinstance(members, dict):
        return
    for name in members:
        yield _encoded({key: value for key, value in members.items() if key != name})
    ext = members.get("extFields")
    if isinstance(ext, dict):
        for name, value in ext.items():
            others = {key: text for key, text in ext.items() if key != name}
            yield _encoded({**members, "extFields": others})
            if isinstance(value, str):
                for part in _parts(value):
                    yield _encoded({**members, "extFields": {**others, name: part}})


def _encoded(members: dict[str, object]) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


def _without_pieces(data: bytes) -> Iterator[bytes]:
    size = len(data) // 2
    while size:
        yield from (data[:at] + data[at + size :] for at in range(0, len(data), size))
        size //= 2


def narrowed(suspects: Iterable[Frame], folder: Path) -> list[tuple[Frame, list[str]]]:
    """Each suspect alone on fresh nodes: those that are guilty by themselves, and of what."""
    guilty = []
    with Bench(folder) as bench:
        for frame in suspects:
            found = bench.judge(frame)
            if found:
                guilty.append((frame, found))
    return guilty

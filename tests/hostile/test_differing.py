"""A compiled and a plain node do the same with the same bytes: whole connections, and then the stores.

Both are processes with a wall clock that stands still, at the same port of two addresses of loopback, and
each client has the same port for both: no time is to be masked. What is left out of the comparison:

- the address that a node is bound to, where it stands in an answer
- `consumeTps`, a rate by monotonic time, and with it the length of a frame
- the order of answers: opaque says what each belongs to, and those that wait may be overtaken
- the broker's own requests: how often it notifies consumers depends on monotonic time
- the requests in `FIGURES`, which are not sent: what they answer or do is a figure of a process or a disk
- how a connection ends: what a node has not read when it closes makes a reset of the close
- the lock file, and broker.conf, which names the address
- `.bak` files: what a table was one write ago depends on how many changes a write takes in
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from struct import unpack_from
from typing import Final

import pytest
import trio
from attrs import frozen

from tests.compiled_code import needs_compiled
from tests.hostile.differing import TOPICS, Connection, connection_of, preloaded
from tests.hostile.still_clock import PROGRAM
from tests.levels import by_level
from tests.node_process import TriohaNode
from tests.ports import free_port
from tests.users import PROVIDERS
from trioha.broker.info import CLIENTS_PREFIX
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.runtime_table import parse_runtime_info
from trioha.remoting.status_reader import fetch_status

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="needs all of 127.0.0.0/8"),
    needs_compiled,
]

CONNECTIONS: Final = by_level(50, 100, 100)
"""Of one seed."""
WITHIN_S: Final = 60.0
HOSTS: Final = ("127.0.0.1", "127.0.0.2")
SETTINGS: Final = {
    "brokerIP1": HOSTS[0],
    **PROVIDERS,
    # Nothing is done because of the time that has passed: one of the nodes is slower.
    **dict.fromkeys(
        (
            "transactionCheckInterval",
            "flushConsumerOffsetInterval",
            "flushDelayOffsetInterval",
            "trioha.metadataHistoryInterval",
        ),
        3_600_000,
    ),
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
    "mappedFileSizeConsumeQueue": 20_000,
}


@frozen
class Side:
    """One of the two nodes."""

    host: str
    port: int
    control: RemotingClient
    """A connection beside those that are played."""

    async def has_read(self) -> None:
        """Return when the node has read what was sent before the call, on whatever connection."""
        # It may be asked in the same turn of its loop, before the other connection; not so the second time.
        for _ in range(2):
            await self.control.request(
                request(RequestCode.GET_TOPIC_CONFIG, ext_fields={"topic": TOPICS[0]}), timeout_s=WITHIN_S
            )

    async def wait_counted(self, counter: str, number: int) -> None:
        """Wait until a counter of its clients is `number`; the control connection adds one."""
        with trio.fail_after(WITHIN_S):
            found = None
            while found != number:
                answer = await self.control.request(
                    request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=WITHIN_S
                )
                found = int(parse_runtime_info(answer.body)[f"{CLIENTS_PREFIX}{counter}"])

    async def is_at_rest(self) -> None:
        """Return when it has no other connection, and its queues have what is in its log."""
        await self.wait_counted("connectionsOpen", 1)
        with trio.fail_after(WITHIN_S):
            while True:
                status = await fetch_status(self.control, timeout_s=WITHIN_S)
                assert status.dispatched_offset is not None
                if status.dispatched_offset >= status.max_offset:
                    return

    async def play(self, connection: Connection, stream: trio.SocketStream) -> list[bytes]:
        """The frames of all answers, sorted."""
        answers: list[bytes] = []
        more = trio.Event()

        async def receive() -> None:
            nonlocal more
            buffer = bytearray()
            try:
                while data := await stream.receive_some(65536):
                    buffer += data
                    while len(buffer) >= 4 and len(buffer) >= (size := 4 + unpack_from(">I", buffer)[0]):
                        frame = bytes(buffer[:size])
                        del buffer[:size]
                        if _is_answer(frame):
                            answers.append(_masked(frame, self.host))
                            more.set()
                            more = trio.Event()
            except trio.BrokenResourceError:
                # As an end.
                pass
            assert not buffer
            assert len(answers) >= connection.answers, f"{connection.name}: {len(answers)} answers"

        with trio.fail_after(WITHIN_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                for piece in connection.pieces:
                    await stream.send_all(piece.data)
                    if piece.is_read_alone:
                        await self.has_read()
                while len(answers) < connection.answers:
                    await more.wait()
                await self._end(stream, connection.last)
        return sorted(answers)

    async def _end(self, stream: trio.SocketStream, last: bytes) -> None:
        try:
            await stream.send_all(last)
            await self.has_read()
            # What is handled when its peer ends a connection is not answered.
            await self.wait_counted("inFlight", 1)
            await stream.send_eof()
        except trio.BrokenResourceError:
            # The node has closed it.
            pass


def _masked(frame: bytes, host: str) -> bytes:
    """An answer without its length and what is expected to differ."""
    same_host = frame[4:].replace(host.encode(), HOSTS[0].encode())
    return re.sub(rb'"consumeTps":[0-9.E-]+', b'"consumeTps":0', same_host)


def _is_answer(frame: bytes) -> bool:
    decoder = FrameDecoder()
    decoder.feed(frame)
    command = decoder.next_command()
    assert command is not None
    return command.is_response


async def _dialled(side: Side, port: int) -> trio.SocketStream:
    """A connection from a port of `HOSTS[0]`; 0 for any."""
    ours = trio.socket.socket()
    ours.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)
    await ours.bind((HOSTS[0], port))
    await ours.connect((side.host, side.port))
    return trio.SocketStream(ours)


async def _play(sides: Sequence[Side], connection: Connection) -> list[list[bytes]]:
    """The answers of both nodes, which are at rest before and after."""
    found: list[list[bytes]] = [[], []]

    async def play(place: int, stream: trio.SocketStream) -> None:
        async with stream:
            found[place] = await sides[place].play(connection, stream)
        await sides[place].is_at_rest()

    first = await _dialled(sides[0], 0)
    second = await _dialled(sides[1], first.socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(play, 0, first)
        nursery.start_soon(play, 1, second)
    return found


def differences(connection: Connection, compiled_: list[bytes], plain: list[bytes]) -> list[str]:
    """What only one of the nodes has answered."""
    ours, theirs = Counter(compiled_), Counter(plain)
    return [
        f"{connection.name} ({connection.kind}): only {name}: {frame[:600]!r}"
        for name, only in (("compiled", ours - theirs), ("plain", theirs - ours))
        for frame in only
    ]


def files(store: Path) -> dict[str, bytes]:
    """All files of a store that was closed."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "lock" and path.suffix != ".bak"
    }


@pytest.mark.sized
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(by_level(1, 4, 60)))
def test_compiled_and_plain_code_answer_and_store_the_same(start_node, tmp_path, seed):
    port = free_port()
    nodes: list[TriohaNode] = [
        start_node(
            f"{name}/store",
            role="ASYNC_MASTER",
            ha_port=port + 1,
            listenPort=port,
            program=PROGRAM,
            environment={**os.environ, "TRIOHA_PURE": pure, "PYTHONHASHSEED": "0"},
            **SETTINGS,
            **{"trioha.bindAddress": host},
        )
        for name, pure, host in (("compiled", "0", HOSTS[0]), ("plain", "1", HOSTS[1]))
    ]
    kernels = [node.status().kernel for node in nodes]
    assert kernels[0] != kernels[1], kernels

    async def play_all() -> list[str]:
        found: list[str] = []
        async with AsyncExitStack() as stack:
            sides = [
                Side(host, port, await stack.enter_async_context(open_client(f"{host}:{port}")))
                for host in HOSTS
            ]
            for connection in (preloaded(), *(connection_of(seed, number) for number in range(CONNECTIONS))):
                found += differences(connection, *await _play(sides, connection))
                if found:
                    # What follows differs because of it.
                    break
        return found

    found = trio.run(play_all)
    assert not found, "\n".join(found)
    for node in nodes:
        node.stop()
    stores = [files(node.root) for node in nodes]
    assert stores[0].keys() == stores[1].keys()
    assert [name for name, data in stores[0].items() if stores[1][name] != data] == []
    assert sum(len(data) for name, data in stores[0].items() if name.startswith("commitlog/")) > 0

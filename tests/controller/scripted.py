"""A controllers' group in one object, for tests in virtual time: it answers as RocketMQ's, with faults.

One address leads; each can be down, or hang. `fault` decides for each request whether it arrives, and whether
its answer does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum
from functools import partial

import trio
import trio.lowlevel
from attrs import Factory, define, field
from trio.testing import memory_stream_pair

from tests.controller.group import CLUSTER, NAME, Group, answer_of_any, serve_frames
from trioha.controller import protocol
from trioha.remoting.client import ConnectionLostError, RemotingClient, running
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, response_to

__all__ = ["CLUSTER", "NAME", "Fault", "Group", "ScriptedControllers"]


class Fault(Enum):
    """What becomes of one request."""

    NONE = "none"
    LOST = "lost"
    """It does not arrive."""
    UNANSWERED = "unanswered"
    """It is carried out, and its answer is lost."""
    LATE = "late"
    """Its answer comes after the asker gave up."""
    CUT = "cut"
    """It is carried out, and the connection ends before the answer."""


@define(eq=False)
class ScriptedControllers:
    """Several controllers with one state."""

    nursery: trio.Nursery
    leader: str | None
    group: Group = Factory(Group)
    down: set[str] = field(factory=set)
    hanging: set[str] = field(factory=set)
    fault: Callable[[RequestCode], Fault] = lambda _: Fault.NONE
    late_s: float = 4.0
    requests: list[RequestCode] = field(factory=list)
    """All that arrived, heartbeats and questions for the leader left out."""
    heartbeats: list[tuple[float, str, protocol.Heartbeat]] = field(factory=list)
    refuse: dict[RequestCode, int] = field(factory=dict)
    """Codes with which requests are answered whatever they say."""
    _streams: dict[str, list[trio.abc.Stream]] = field(factory=dict)
    _turns: dict[trio.abc.Stream, trio.Lock] = field(factory=dict)
    """One task sends over a stream at a time."""

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator[RemotingClient]:
        """In place of dialling."""
        await trio.lowlevel.checkpoint()
        if address in self.down:
            raise ConnectionLostError("cannot connect: refused", address=address)
        ours, theirs = memory_stream_pair()
        self._streams.setdefault(address, []).append(theirs)
        self.nursery.start_soon(serve_frames, theirs, partial(self._answer, address, theirs))
        client = RemotingClient(ours, address)
        async with running(client):
            yield client

    async def end(self, address: str) -> None:
        """The controller's process ends, with its connections."""
        self.down.add(address)
        if self.leader == address:
            self.leader = None
        for stream in self._streams.pop(address, []):
            await stream.aclose()

    async def _answer(self, address: str, stream: trio.abc.Stream, command: RemotingCommand) -> None:
        if address in self.hanging:
            return
        code = RequestCode(command.code)
        if code is RequestCode.BROKER_HEARTBEAT:
            heartbeat = protocol.Heartbeat.of(command.ext_fields)
            self.heartbeats.append((trio.current_time(), address, heartbeat))
            self.group.heard(heartbeat)
            return
        if code is not RequestCode.CONTROLLER_GET_METADATA_INFO:
            self.requests.append(code)
        fault = self.fault(code)
        if fault is Fault.LOST:
            return
        answer = self.carry_out(address, code, command)
        if fault is Fault.UNANSWERED:
            return
        if fault is Fault.CUT:
            await stream.aclose()
            return
        if fault is Fault.LATE:
            await trio.sleep(self.late_s)
        async with self._turns.setdefault(stream, trio.Lock()):
            await stream.send_all(encode(answer))

    def carry_out(self, address: str, code: RequestCode, command: RemotingCommand) -> RemotingCommand:
        """The answer of the controller at `address`."""
        answer = answer_of_any(command, asked=address, leader=self.leader)
        if answer is None and code in self.refuse:
            answer = response_to(command, self.refuse[code], remark="refused")
        return answer or self.group.answer(command)

"""A blocking remoting connection: any requests, one after the other or several at once."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Self

from attrs import evolve

from tests.node.client import endpoint
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import RemotingCommand


class Wire:
    """A connection to a node."""

    def __init__(self, address: str) -> None:
        self._socket = socket.create_connection(endpoint(address), timeout=30)
        self._decoder = FrameDecoder()
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def start(self, *commands: RemotingCommand) -> list[int]:
        """Send requests, all at once; their opaques."""
        opaques = list(range(self._opaque, self._opaque + len(commands)))
        self._opaque += len(commands)
        self._socket.sendall(
            b"".join(
                encode(evolve(command, opaque=opaque))
                for opaque, command in zip(opaques, commands, strict=True)
            )
        )
        return opaques

    def answers(self, opaques: Sequence[int]) -> dict[int, RemotingCommand]:
        """Answers by opaque, as far as they come before the connection ends."""
        found: dict[int, RemotingCommand] = {}
        while not found.keys() >= set(opaques):
            command = self.next_command()
            if command is None:
                return found
            found[command.opaque] = command
        return found

    def next_command(self) -> RemotingCommand | None:
        """What the node sends next, an answer or a request of its own; None if the connection ends."""
        while (command := self._decoder.next_command()) is None:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self._decoder.feed(data)
        return command

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to one request."""
        (opaque,) = self.start(command)
        return self.answers([opaque])[opaque]

"""A blocking remoting connection: any requests, one after the other or several at once."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from tests.node.client import Connection
from trioha.remoting.codec import encode
from trioha.remoting.command import RemotingCommand


class Wire(Connection):
    """A connection to a node."""

    def __init__(self, address: str) -> None:
        super().__init__(address, timeout_s=30)

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

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to one request."""
        (opaque,) = self.start(command)
        return self.answers([opaque])[opaque]

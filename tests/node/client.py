"""A synchronous producer: one connection, one request after the other or several at once."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from attrs import evolve

from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import RemotingCommand
from trioha.remoting.send_message import SendMessageRequestHeader, put_status_name, send_request


def endpoint(address: str) -> tuple[str, int]:
    """Host and port of `host:port`."""
    host, _, port = address.rpartition(":")
    return host, int(port)


@contextmanager
def strangers(
    address: str, count: int, *, hosts: int = 4, data: bytes = b""
) -> Iterator[list[socket.socket]]:
    """Connections from several addresses that send `data`, fewer where the kernel's backlog is full, too."""
    with ExitStack() as opened:
        found = []
        for number in range(count):
            try:
                one = socket.create_connection(
                    endpoint(address), timeout=0.5, source_address=(f"127.0.0.{2 + number % hosts}", 0)
                )
            except TimeoutError:
                break
            found.append(opened.enter_context(one))
            one.sendall(data)
        yield found


class Connection:
    """A blocking connection to a node."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        """`timeout_s`: for the connect, and for each receive."""
        self._socket = socket.create_connection(endpoint(address), timeout=timeout_s)
        self._decoder = FrameDecoder()
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

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


class Client(Connection):
    """A connected producer."""

    def __init__(self, address: str, *, timeout_s: float = 15) -> None:
        super().__init__(address, timeout_s=timeout_s)

    def send(self, count: int = 1, *, body: bytes = bytes(1000)) -> Counter[str]:
        """Send messages one after the other; the counts of their statuses, or `closed`."""
        statuses: Counter[str] = Counter()
        for _ in range(count):
            try:
                self.ask(body=body)
            except ConnectionError:
                return statuses + Counter(["closed"])
            status = self.answer()
            statuses[status or "closed"] += 1
            if status is None:
                break
        return statuses

    def send_until_ok(self, *, within_s: float = 15.0, body: bytes = bytes(1000)) -> None:
        """Send a message until it is PUT_OK; retry only if the node is busy or has no space."""
        deadline = time.monotonic() + within_s
        while (statuses := self.send(body=body)) != {"PUT_OK": 1}:
            assert time.monotonic() < deadline, statuses
            time.sleep(0.05)

    def ask(self, *, body: bytes = bytes(1000)) -> None:
        """Send a message without waiting for the answer."""
        number = self._opaque = self._opaque + 1
        now_ms = time.time_ns() // 1_000_000
        header = SendMessageRequestHeader("P", f"T{number % 10}", "TBW102", 4, number % 4, 0, now_ms, 0)
        self._socket.sendall(encode(evolve(send_request(header, body), opaque=number)))

    def answer(self) -> str | None:
        """The status in the next answer; None if the node has closed the connection."""
        command = self.next_command()
        return None if command is None else put_status_name(command)

"""A master that does nothing but send: what a slave receives at most.

It maps one file of a log and sends slices of the map by `sendmsg`, as a program in C would. Reports are read
only for their last offset. There are no checks, heartbeats, timeouts or statistics. It carries out the
commands of the other drivers (`trioha_master.py`, `java/BenchDriver.java`): a line of JSON each, and one
with the answer.
"""

from __future__ import annotations

import json
import mmap
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from trioha.ha.frames import REPORT_BYTES, ReportDecoder, encode_header
from trioha.net.transport import drop_sent

RECEIVE_BYTES = 64 * 1024
FRAME_BYTES = 1 << 20


class RawSender:
    """A listening socket, and the first bytes of a file, which are sent to each slave."""

    def __init__(self, path: Path, *, log_bytes: int) -> None:
        with path.open("rb") as file:
            self._log = memoryview(mmap.mmap(file.fileno(), log_bytes, prot=mmap.PROT_READ))
        self._peer: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.ha_port: int = self._listener.getsockname()[1]

    def catch_up(self, *, within_s: float) -> dict[str, Any]:
        """Send the whole log to one slave, until it has acknowledged it."""
        self._listener.settimeout(within_s)
        peer, _ = self._listener.accept()
        # It stays open for `alone`: a slave whose connection ends would connect again.
        self._peer = peer
        peer.settimeout(within_s)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        peer.recv(REPORT_BYTES, socket.MSG_WAITALL)
        began_s = time.perf_counter()
        self._send(peer)
        return {"seconds": time.perf_counter() - began_s, "bytes": len(self._log)}

    def alone(self, *, within_s: float) -> dict[str, Any]:
        """Wait until the slave has hung up."""
        if self._peer is not None:
            with self._peer as peer:
                peer.settimeout(within_s)
                # Its socket may end with a reset.
                with suppress(ConnectionResetError):
                    while peer.recv(RECEIVE_BYTES):
                        pass
            self._peer = None
        return {}

    def _send(self, peer: socket.socket) -> None:
        """Send the log, and receive reports until the last."""
        log, log_bytes, offset, ack_offset = self._log, len(self._log), 0, 0
        decoder = ReportDecoder()
        while ack_offset < log_bytes:
            parts: list[bytes | memoryview] = []
            if body := log[offset : offset + FRAME_BYTES]:
                parts += (encode_header(offset, len(body)), body)
                offset += len(body)
            while parts:
                drop_sent(parts, peer.sendmsg(parts))
            try:
                reports = peer.recv(RECEIVE_BYTES, 0 if offset == log_bytes else socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if not reports:
                raise ConnectionError(f"the slave has ended the connection at {ack_offset}")
            ack_offset = decoder.feed(reports) or ack_offset


def perform(sender: RawSender, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command."""
    match command["do"]:
        case "catchUp":
            return sender.catch_up(within_s=command["millis"] / 1000)
        case "alone":
            return sender.alone(within_s=command["millis"] / 1000)
    raise ValueError(f"unknown command {command['do']}")


def main() -> None:
    """Open the file that the first command names, then carry out commands until stdin ends."""
    sender = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if sender is None:
                sender = RawSender(Path(command["path"]), log_bytes=command["bytes"])
                result = {"haPort": sender.ha_port}
            else:
                result = perform(sender, command)
        except Exception:  # noqa: BLE001 - the benchmark that sent the command shows it
            answer = {"id": command["id"], "error": traceback.format_exc()}
        else:
            answer = {"id": command["id"], "result": result}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

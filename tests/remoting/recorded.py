"""Recorded sessions of real brokers, frame by frame."""

from __future__ import annotations

from pathlib import Path
from struct import unpack_from

from trioha.remoting.codec import FrameDecoder
from trioha.remoting.command import RemotingCommand

VECTORS = Path(__file__).parent.parent / "vectors"
STREAMS = sorted(VECTORS.glob("remoting-*/*.bin"))
NAME_SERVER_STREAMS = sorted(VECTORS.glob("name-server/*/*.c2s.bin"))


def frames(path: Path) -> list[bytes]:
    """The frames of a recorded direction, cut by their length fields only."""
    raw = path.read_bytes()
    cut = []
    start = 0
    while start < len(raw):
        (length,) = unpack_from(">I", raw, start)
        cut.append(raw[start : start + 4 + length])
        start += 4 + length
    return cut


def header_of(frame: bytes) -> bytes:
    """The bytes of a frame's header."""
    return frame[8 : 8 + (unpack_from(">I", frame, 4)[0] & 0xFFFFFF)]


def commands(path: Path) -> list[RemotingCommand]:
    """The commands of a recorded direction."""
    decoder = FrameDecoder()
    decoder.feed(path.read_bytes())
    decoded = []
    while (command := decoder.next_command()) is not None:
        decoded.append(command)
    assert decoder.buffered_bytes == 0
    return decoded


def answers(session: str) -> dict[int, RemotingCommand]:
    """The last answer of a recorded session to each request code."""
    asked = {
        command.opaque: command.code
        for command in commands(VECTORS / f"{session}.c2s.bin")
        if not command.is_response
    }
    return {
        asked[command.opaque]: command
        for command in commands(VECTORS / f"{session}.s2c.bin")
        if command.is_response
    }

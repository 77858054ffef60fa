"""The frames, up to their bodies, of answers to pulls that find messages.

Theory of operation. The answers to the pulls of one form (`pull_forms`) differ in five numbers. The codec
encodes one of them, with numbers that nothing else in it has; what is around these is the text of all others.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trioha.remoting.codec import encode_head
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import RemotingCommand, SerializeType, response_to
from trioha.remoting.pull_message import PullResponseHeader

_HEAD = Struct(">II")
_MARKS: Final = (1_900_000_001, 1_900_000_002, 1_900_000_003, 1_900_000_004, 1_900_000_005)


class FoundHead:
    """What the answers to the pulls of one form have in common."""

    __slots__ = ("_text",)

    def __init__(self, asked: RemotingCommand, *, remark: str) -> None:
        """`asked` is a pull with a JSON header; `remark` is that of the answers."""
        assert asked.serialize_type is SerializeType.JSON
        fields = PullResponseHeader(*_MARKS[:4]).to_ext_fields(version=asked.version)
        answer = response_to(asked, ResponseCode.SUCCESS, remark=remark, ext_fields=fields)
        text = encode_head(answer, opaque=_MARKS[4])[_HEAD.size :].replace(b"%", b"%%")
        for mark in _MARKS:
            text = text.replace(str(mark).encode(), b"%d", 1)
        self._text = text

    def frame(
        self,
        suggested_broker_id: int,
        next_begin_offset: int,
        min_offset: int,
        max_offset: int,
        *,
        opaque: int,
        body_bytes: int,
    ) -> bytes:
        """The frame, without its body, of the answer to a pull of the form; as `PullResponseHeader`."""
        text = self._text % (suggested_broker_id, next_begin_offset, min_offset, max_offset, opaque)
        return _HEAD.pack(4 + len(text) + body_bytes, len(text)) + text

"""What the handlers of administrators' requests share: bodies, slices, waiting for a table's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import trio

from trioha.metadata.table import MetadataTable
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import format_json

ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one answer, below the longest frame of RocketMQ's tools."""
NO_CHANGE_ON_SLAVE: Final = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)
NO_RESET_ON_SLAVE: Final = "Can not reset offset in slave broker"
QUEUES_PER_SLICE: Final = 32
"""Queues that an answer looks at before other requests are served: each may read from the disk."""


def encoded(value: object) -> bytes:
    """The body of an answer, in fastjson's dialect. Raises BadRequestError for one that is too long."""
    # A name from JSON may have half of a pair that UTF-16 writes a character with.
    body = format_json(value, bare_keys=True).encode("utf-8", "replace")
    if len(body) > ANSWER_BYTES_MAX:
        raise BadRequestError(f"an answer of {len(body)} bytes; at most {ANSWER_BYTES_MAX} are sent")
    return body


def json_answer(request: RemotingCommand, value: object) -> RemotingCommand:
    """A successful answer. Raises BadRequestError for one that is too long."""
    return response_to(request, ResponseCode.SUCCESS, body=encoded(value))


class AnswerSize:
    """Counts the characters of an answer that is being built."""

    def __init__(self) -> None:
        self._chars = 0

    def add(self, chars: int) -> None:
        """Raises BadRequestError if the answer is too long then."""
        self._chars += chars
        if self._chars > ANSWER_BYTES_MAX:
            raise BadRequestError(f"an answer of more than {ANSWER_BYTES_MAX} bytes; ask for less at a time")


class QueueTable:
    """A map by MessageQueue, as text: it is encoded piece by piece, since it may have very many."""

    def __init__(self, broker_name: str, size: AnswerSize) -> None:
        self._broker_name = broker_name
        self._size = size
        self._parts: list[str] = []

    def add(self, topic: str, queue_id: int, value: object) -> None:
        """Add the value of one queue. Raises BadRequestError if the answer becomes too long."""
        key = {"brokerName": self._broker_name, "queueId": queue_id, "topic": topic}
        part = f"{format_json(key, bare_keys=True)}:{format_json(value, bare_keys=True)}"
        self._size.add(len(part))
        self._parts.append(part)

    @property
    def text(self) -> str:
        """The map, in fastjson's dialect."""
        return "{" + ",".join(self._parts) + "}"


def object_text(members: Mapping[str, str]) -> str:
    """An object of members whose values are encoded already."""
    return (
        "{" + ",".join(f"{format_json(name, bare_keys=True)}:{text}" for name, text in members.items()) + "}"
    )


def text_answer(request: RemotingCommand, text: str) -> RemotingCommand:
    """A successful answer with an encoded body."""
    return response_to(request, ResponseCode.SUCCESS, body=text.encode("utf-8", "replace"))


async def let_others_run(done: int) -> None:
    """Run other tasks after each `QUEUES_PER_SLICE` of the `done` steps of a long answer."""
    if done % QUEUES_PER_SLICE == 0:
        await trio.lowlevel.checkpoint()


async def when_written(table: MetadataTable, answer: RemotingCommand) -> RemotingCommand:
    """`answer`, after the table as it is now was written to its file, or the attempt has failed."""
    await table.written.reached(table.changes.offset)
    return answer


def refuse_on_slave(remark: str, *, is_slave: bool) -> None:
    """Raises BadRequestError on a slave, which has its master's tables: code and remarks of RocketMQ's."""
    if is_slave:
        raise BadRequestError(remark, code=ResponseCode.SYSTEM_ERROR)

"""VIEW_MESSAGE_BY_ID and QUERY_MESSAGE: messages by offset and by key.

See docs/protocol/remoting.md#offsets-and-queries.
"""

from __future__ import annotations

from typing import Final

from trioha.errors import StoreError
from trioha.numbers import I32, I64
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer
from trioha.store.message_store import MessageStore

UNIQUE_KEY_MESSAGES_MAX: Final = 32
"""defaultQueryMaxNum: messages in an answer to a query by unique key."""
BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of an answer to a query by key; the first message is always given."""


class QueryProcessor:
    """Answers queries."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def view(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """VIEW_MESSAGE_BY_ID: the record that starts at an offset of the log. Raises BadRequestError."""
        offset = HeaderFields(request.ext_fields).number("offset", I64)
        record = self._store.reads.record_at(offset)
        if record is None:
            raise BadRequestError(f"can not find message by the offset, {offset}")
        return response_to(request, ResponseCode.SUCCESS, body=bytes(record))

    def by_key(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """QUERY_MESSAGE: the newest messages with a key, oldest first. Raises BadRequestError."""
        fields = HeaderFields(request.ext_fields)
        topic, key = fields.text("topic"), fields.text("key")
        limit = fields.number("maxNum", I32)
        begin_ms, end_ms = fields.number("beginTimestamp", I64), fields.number("endTimestamp", I64)
        if fields.flag("_UNIQUE_KEY_QUERY"):
            limit = UNIQUE_KEY_MESSAGES_MAX
        self._store.dispatcher.catch_up()
        try:
            records = self._store.reads.by_key(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)
        except StoreError as error:
            raise BadRequestError(str(error)) from error
        body = b""
        for record in records:
            if body and len(body) + len(record) > BODY_BYTES_MAX:
                break
            body = bytes(record) + body
        index = self._store.index
        found = bool(records)
        return response_to(
            request,
            ResponseCode.SUCCESS if found else ResponseCode.QUERY_NOT_FOUND,
            remark=None if found else "can not find message, maybe time range not correct",
            ext_fields={
                "indexLastUpdateTimestamp": str(index.end_timestamp_ms if found else 0),
                "indexLastUpdatePhyoffset": str(index.end_physical_offset if found else 0),
            },
            body=body,
        )

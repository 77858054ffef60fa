"""RESET_CONSUMER_CLIENT_OFFSET: a broker lets the members of a group continue at other offsets.

An administrator asks the broker for it (`mqadmin resetOffsetByTime`); the broker sends each connected member
the new offsets, as a map by queue with objects as keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import NATURAL64, parse_int
from trioha.remoting.command import RemotingCommand
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.route import MessageQueue

_LIMITS: Final = JsonLimits(containers_max=20_000, dialect_chars_max=4 << 20)


@frozen
class OffsetReset:
    """New offsets of a group."""

    group: str
    offsets: Mapping[MessageQueue, int]

    @classmethod
    def of(cls, command: RemotingCommand) -> OffsetReset:
        """Raises RemoteProtocolError."""
        group = command.ext_fields.get("group", "")
        value = parse_json(command.body, limits=_LIMITS)
        table = value.get("offsetTable") if isinstance(value, dict) else None
        if not isinstance(table, dict):
            raise RemoteProtocolError("a reset of offsets without a map of queues")
        try:
            return cls(
                group,
                {MessageQueue.of_key(key): parse_int(offset, NATURAL64) for key, offset in table.items()},
            )
        except ValueError as error:
            raise RemoteProtocolError(f"a reset of offsets has a wrong queue or offset: {error}") from None

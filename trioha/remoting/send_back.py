"""The header of CONSUMER_SEND_MSG_BACK (36): docs/protocol/remoting.md#clients-and-groups."""

from __future__ import annotations

from attrs import frozen

from trioha.numbers import I32, I64
from trioha.remoting.command import RemotingCommand
from trioha.remoting.header_fields import HeaderFields


@frozen
class SendBackRequest:
    """Header of a request by which a consumer gives a message back that it could not consume."""

    offset: int
    """Physical offset of the message's record."""
    group: str
    delay_level: int
    """0 leaves the level to the broker; below 0, the message goes to the dead-letter topic."""
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    """The consumer's own maximum; None for the group's."""

    @classmethod
    def of(cls, command: RemotingCommand) -> SendBackRequest:
        """Of a request 36. Raises BadRequestError for a field that is missing or invalid."""
        fields = HeaderFields(command.ext_fields)
        has_max = fields.optional("maxReconsumeTimes") is not None
        return cls(
            fields.number("offset", I64),
            fields.text("group"),
            fields.number("delayLevel", I32),
            fields.flag("unitMode"),
            fields.number("maxReconsumeTimes", I32) if has_max else None,
        )

"""The headers of pulling messages, PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361).

See docs/protocol/remoting.md#pulls.
"""

from __future__ import annotations

from enum import IntFlag

from attrs import define

from trioha.numbers import I32, I64, parse_int
from trioha.remoting.codes import Version
from trioha.remoting.command import RemotingCommand
from trioha.remoting.header_fields import HeaderFields


class PullFlag(IntFlag):
    """sysFlag of a pull."""

    COMMIT_OFFSET = 1
    """commitOffset is to be kept."""
    SUSPEND = 2
    """Wait for messages where there are none."""
    SUBSCRIPTION = 4
    """The expression is in the request, not in a heartbeat."""
    CLASS_FILTER = 8
    LITE_PULL = 16


@define
class PullRequest:
    """Header of a pull. Never changed, and not frozen for the reason of `RemotingCommand`."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    messages_max: int
    flags: int
    """Bits of PullFlag."""
    commit_offset: int
    """Committed offset of the group in the queue, with COMMIT_OFFSET."""
    suspend_timeout_ms: int
    subscription: str | None = None
    """The expression, with SUBSCRIPTION."""
    expression_type: str | None = None
    subscription_version: int = 0
    bytes_max: int | None = None

    @classmethod
    def of(cls, command: RemotingCommand) -> PullRequest:
        """Of a request 11 or 361. Raises BadRequestError."""
        get = command.ext_fields.get
        group, topic, bytes_max = get("consumerGroup"), get("topic"), get("maxMsgBytes")
        if group is not None and topic is not None:
            # Without a call for each field: half the time.
            try:
                return cls(
                    group,
                    topic,
                    parse_int(get("queueId"), I32),
                    parse_int(get("queueOffset"), I64),
                    parse_int(get("maxMsgNums"), I32),
                    parse_int(get("sysFlag"), I32),
                    parse_int(get("commitOffset", 0), I64),
                    parse_int(get("suspendTimeoutMillis", 0), I64),
                    get("subscription"),
                    get("expressionType"),
                    parse_int(get("subVersion", 0), I64),
                    None if bytes_max is None else parse_int(bytes_max, I32),
                )
            except ValueError:
                # Which field it is, says the reader of each.
                pass
        return cls._of_each(HeaderFields(command.ext_fields))

    @classmethod
    def _of_each(cls, fields: HeaderFields) -> PullRequest:
        return cls(
            fields.text("consumerGroup"),
            fields.text("topic"),
            fields.number("queueId", I32),
            fields.number("queueOffset", I64),
            fields.number("maxMsgNums", I32),
            fields.number("sysFlag", I32),
            fields.number("commitOffset", I64, default=0),
            fields.number("suspendTimeoutMillis", I64, default=0),
            fields.optional("subscription"),
            fields.optional("expressionType"),
            fields.number("subVersion", I64, default=0),
            fields.number("maxMsgBytes", I32) if fields.optional("maxMsgBytes") is not None else None,
        )

    def at(self, queue_offset: int, commit_offset: int | None) -> PullRequest:
        """The same request at other offsets; None for the same commit offset."""
        return PullRequest(
            self.group,
            self.topic,
            self.queue_id,
            queue_offset,
            self.messages_max,
            self.flags,
            self.commit_offset if commit_offset is None else commit_offset,
            self.suspend_timeout_ms,
            self.subscription,
            self.expression_type,
            self.subscription_version,
            self.bytes_max,
        )

    def has(self, flag: PullFlag) -> bool:
        """Whether a bit of sysFlag is set."""
        # Not `&`: the operator of IntFlag makes a new member.
        return int.__and__(self.flags, flag) != 0


@define
class PullResponseHeader:
    """Header of the response to a pull. Never changed, as `PullRequest`."""

    suggested_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int

    def to_ext_fields(self, *, version: int) -> dict[str, str]:
        """The fields of the response to a client of `version`; 5.x has two more."""
        fields = {
            "suggestWhichBrokerId": str(self.suggested_broker_id),
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
        }
        if version >= Version.V5_0_0:
            fields |= {"topicSysFlag": "0", "groupSysFlag": "0"}
        return fields

"""Subscriptions to status updates, as two fields of request 907 and of its answer (docs/ha-status.md).

The request has the wanted interval and number of updates. A node that knows the fields answers with the
interval and number that it will send, and then sends so many one-way requests 907 with the body of an answer.
A broker that does not know the fields ignores them and answers without them.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from trioha.numbers import NATURAL32, parse_int
from trioha.remoting.command import BadRequestError

EVERY_FIELD = "triohaEveryMillis"
COUNT_FIELD = "triohaUpdates"
EVERY_MS_MIN, EVERY_MS_MAX = 50, 60_000
COUNT_MAX = 100
"""Largest number of updates that are sent to a reader that has ended or stopped reading."""


@frozen
class StatusSubscription:
    """Interval and number of updates."""

    every_ms: int
    """Updates are sent at its multiples on the node's clock; EVERY_MS_MIN to EVERY_MS_MAX milliseconds."""
    count: int
    """Number of updates, at most COUNT_MAX; 0 ends the subscription."""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> StatusSubscription | None:
        """The subscription in a command's fields, within the limits; None without these fields.

        Raises BadRequestError for fields that are not whole numbers.
        """
        if EVERY_FIELD not in fields and COUNT_FIELD not in fields:
            return None
        every_ms, count = (_whole_number(fields, name) for name in (EVERY_FIELD, COUNT_FIELD))
        return cls(max(EVERY_MS_MIN, min(every_ms, EVERY_MS_MAX)), min(count, COUNT_MAX))

    def to_fields(self) -> dict[str, str]:
        """The fields of a request or of its answer."""
        return {EVERY_FIELD: str(self.every_ms), COUNT_FIELD: str(self.count)}


def _whole_number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    try:
        return parse_int(text, NATURAL32)
    except ValueError:
        raise BadRequestError(f"{name} is not a whole number: {text[:40]!r}") from None

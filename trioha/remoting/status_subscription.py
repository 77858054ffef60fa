"""Updates of a status: what a reader asks for with request 907, and what a node promises (docs/ha-status.md).

A question may carry two fields: how often updates are wanted, and how many. A node that knows them repeats in
its answer what it will do, and then sends so many one-way requests 907 with the body of an answer. A broker
that does not know them passes over them, and promises nothing.
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
"""A reader that has gone, or stopped reading, is sent no more than these."""


@frozen
class StatusSubscription:
    """So many updates, so often."""

    every_ms: int
    """One at each multiple of this on the node's clock, EVERY_MS_MIN to EVERY_MS_MAX milliseconds."""
    count: int
    """How many, at most COUNT_MAX; 0 ends what was asked for before."""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> StatusSubscription | None:
        """What a command's fields say, within the limits; None if they say nothing of updates.

        Raises BadRequestError for fields that are no whole numbers.
        """
        if EVERY_FIELD not in fields and COUNT_FIELD not in fields:
            return None
        every_ms, count = (_whole_number(fields, name) for name in (EVERY_FIELD, COUNT_FIELD))
        return cls(max(EVERY_MS_MIN, min(every_ms, EVERY_MS_MAX)), min(count, COUNT_MAX))

    def to_fields(self) -> dict[str, str]:
        """The fields of a question, or of the answer to it."""
        return {EVERY_FIELD: str(self.every_ms), COUNT_FIELD: str(self.count)}


def _whole_number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    try:
        return parse_int(text, NATURAL32)
    except ValueError:
        raise BadRequestError(f"{name} is not a whole number: {text[:40]!r}") from None

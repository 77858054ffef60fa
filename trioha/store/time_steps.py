"""Where the log's store times go back, and what a store time may claim.

A record is stamped with the clock (docs/protocol/store.md#message-record), which may be set back, and a
master's record may claim any time. So the store times of a log rise, but for steps: a step is a record that
was stored more than `LEAD_MS_MAX` before one that the log has before it. Between two steps a search by time
is a binary search.

The dispatcher, which sees each record in the log's order, notes the steps; the file `trioha-time-steps.json`
in the store's root keeps them, `{"steps": [{"offset": ..., "fromMs": ..., "toMs": ...}]}`. RocketMQ ignores
it. It is on disk before the checkpoint names an offset beyond a step, and the next start dispatches what is
after that offset. Steps of a log that RocketMQ wrote before trioha opened it are not known, unless its queues
are built again.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
from attrs import frozen

from trioha.numbers import NATURAL64
from trioha.store.atomic_file import replace_without_backup

log = structlog.get_logger(__name__)

LEAD_MS_MAX: Final = 3000
"""A store time may lead the clock so far: the clock was set back a little, or is not its master's. A record
that leads by more is kept as it is, and moves nothing: no later store time, no due time, no claim."""
STEPS_MAX: Final = 256
"""Of a log; the oldest are forgotten first. A search by time looks between all of them."""
FILE_NAME: Final = "trioha-time-steps.json"


def leads(store_timestamp_ms: int, now_ms: int) -> bool:
    """Whether a record cannot have been stored then, by a clock that shows `now_ms`."""
    return store_timestamp_ms > now_ms + LEAD_MS_MAX


@frozen
class TimeStep:
    """A record that was stored, as it says, before one that the log has before it."""

    offset: int
    """Where the record starts."""
    from_ms: int
    """Latest store time since the step before."""
    to_ms: int
    """The record's."""


class TimeSteps:
    """A log's steps, in its order."""

    def __init__(self, steps: Sequence[TimeStep] = ()) -> None:
        self._steps = list(steps[-STEPS_MAX:])
        self.noted = 0
        """Steps found since the start."""
        self.changes = 0
        """Grows with each change."""

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def all(self) -> tuple[TimeStep, ...]:
        """The steps that are known."""
        return tuple(self._steps)

    def add(self, step: TimeStep) -> bool:
        """Add a step, unless it is known; whether it is new."""
        at = bisect_left(self._steps, step.offset, key=lambda one: one.offset)
        if at < len(self._steps) and self._steps[at].offset == step.offset:
            return False
        self._steps.insert(at, step)
        del self._steps[:-STEPS_MAX]
        self.noted += 1
        self.changes += 1
        return True

    def keep(self, start_offset: int, end_offset: int) -> None:
        """Forget the steps outside of `[start_offset, end_offset)`: the log was cut, or its files deleted."""
        kept = [one for one in self._steps if start_offset <= one.offset < end_offset]
        if len(kept) < len(self._steps):
            self._steps = kept
            self.changes += 1


def load_time_steps(root: Path) -> TimeSteps:
    """The steps in the file; none if it is missing or cannot be parsed. Raises OSError."""
    path = root / FILE_NAME
    try:
        found = json.loads(path.read_bytes())["steps"]
        steps = [TimeStep(int(one["offset"]), int(one["fromMs"]), int(one["toMs"])) for one in found]
        offsets = [one.offset for one in steps]
        if offsets != sorted(set(offsets)) or not all(0 <= one <= NATURAL64.high for one in offsets):
            raise ValueError("its offsets do not rise")
    except FileNotFoundError:
        return TimeSteps()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning(
            "where store times go back cannot be read, searches by time may be wrong there",
            path=str(path),
            reason=str(error),
        )
        return TimeSteps()
    return TimeSteps(steps)


def save_time_steps(root: Path, steps: Sequence[TimeStep]) -> None:
    """Replace the file and put it on disk. Blocks. Raises OSError."""
    listed = [{"offset": one.offset, "fromMs": one.from_ms, "toMs": one.to_ms} for one in steps]
    replace_without_backup(root / FILE_NAME, json.dumps({"steps": listed}).encode())

"""Whether a slave is in sync: the rule of `trioha.ha.replicas` for recordings.

A slave is in sync while its lag is below haMaxGapNotInSync (haSlaveFallbehindMax), and while it has not owed
an acknowledgement for haMaxTimeSlaveNotCatchup. It owes one from its last acknowledgement on, or from when
the oldest byte without an ack was stored, whichever is later. Whether the slave has acknowledged at all (an
observer never does) is not part of this rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from trioha.numbers import I64, NATURAL32, Range, parse_int

GAP_KEY: Final = "haMaxGapNotInSync"
SILENCE_KEY: Final = "haMaxTimeSlaveNotCatchup"


@frozen
class SyncRule:
    """The limits of one master. Times are ns on any one clock."""

    gap_bytes_max: int = 256 << 20
    """haMaxGapNotInSync."""
    silence_ns_max: int = 15_000_000_000
    """haMaxTimeSlaveNotCatchup."""

    @classmethod
    def of(cls, settings: Mapping[str, object]) -> SyncRule:
        """The rule by a session's settings, with RocketMQ's defaults for missing ones (older recordings)."""
        default = cls()
        gap_bytes = _number(settings, GAP_KEY, Range(1, I64.high))
        silence_ms = _number(settings, SILENCE_KEY, Range(1, NATURAL32.high))
        return cls(
            default.gap_bytes_max if gap_bytes is None else gap_bytes,
            default.silence_ns_max if silence_ms is None else silence_ms * 10**6,
        )

    def is_in_sync(self, *, lag_bytes: int, now_ns: int, acked_ns: int | None, oldest_ns: int | None) -> bool:
        """Whether a slave is in sync at `now_ns`.

        `lag_bytes`: log without its ack. `acked_ns`: its last ack, or its request. `oldest_ns`: when the
        oldest byte without an ack was stored. If one of the two times is not known (None), the other counts
        alone; without both only the lag counts.
        """
        if lag_bytes <= 0:
            return True
        if lag_bytes >= self.gap_bytes_max:
            return False
        since = [at_ns for at_ns in (acked_ns, oldest_ns) if at_ns is not None]
        return not since or now_ns - max(since) < self.silence_ns_max


def _number(settings: Mapping[str, object], key: str, within: Range) -> int | None:
    try:
        return parse_int(settings.get(key), within)
    except ValueError:
        return None

"""How a replica does, from what is known of it. Pure, and the one definition for live views and replays.

`judge` looks at one moment's `Facts` and takes the first rule that applies:

| verdict | rule |
|---|---|
| DIVERGED, GAP | the slave says so itself (a trioha slave: DIVERGED, AHEAD or GAP and where) |
| STALE | the master does not answer |
| SILENT | not connected; or connected, and nothing was heard for more than two heartbeats |
| DIVERGED | it acknowledged more than the master has |
| GAP | what it is to be sent next was deleted; an unmodified master heartbeats for ever then (spec ha 2.2) |
| OBSERVER | it says so; or it was sent more and stayed connected for 1.5 housekeeping limits without an ack |
| STALLED | bytes have waited for its ack for slaveTimeout, and the ack has not moved for as long |
| NOT IN SYNC | the master does not count it |
| FALL BEHIND | its oldest missing byte is older than slaveTimeout: puts that wait for it time out |
| OK | else |

A slave compares up to `TAIL_CHECK_BYTES` of its tail when it connects and acknowledges them again: for that
moment it is rejoining, which is OK and no lag.

Nothing flickers, by two means. FALL BEHIND, once shown, ends at half the age at which it begins. And what
`VerdictDebounce` shows changes only after the new verdict, or others than the shown one, have lasted for a
while. What does not pass by itself (GAP, DIVERGED) and what is no measurement (STALE) shows at once.
"""

from __future__ import annotations

from attrs import define, frozen

from trioha_monitor.texts import format_bytes, format_elapsed
from trioha_monitor.view import Limits, Verdict

TAIL_CHECK_BYTES = 64 * 1024
"""How much a slave in step lacks at most while it compares its tail (trioha.haTailCheck)."""
WORSE_AFTER_MS = 1000
"""How long a worse verdict must last before it is shown, in milliseconds."""
BETTER_AFTER_MS = 2000
"""How long a better one must."""
OBSERVER_HOUSEKEEPINGS = 1.5
"""Housekeeping limits after which who is connected and never acknowledges is an observer."""

_AT_ONCE = frozenset((Verdict.GAP, Verdict.DIVERGED, Verdict.STALE))
_COMPLAINTS = {"DIVERGED": Verdict.DIVERGED, "AHEAD": Verdict.DIVERGED, "GAP": Verdict.GAP}


@frozen
class Facts:
    """What is known of a replica at one moment. None: not known."""

    is_connected: bool
    """Whether its master lists it."""
    unconnected_s: float = 0.0
    """For how long it has not been connected, seconds."""
    connected_s: float = 0.0
    """For how long it has been, seconds."""
    is_master_heard: bool = True
    """Whether its master answers."""
    last_received_s: float | None = None
    """How long ago either side last heard of the other, seconds."""
    complaint: str = ""
    """What a trioha slave says keeps it from following, `GAP: ...`; empty for nothing."""
    is_observer: bool | None = None
    state: str = ""
    """RocketMQ's connection state, empty where it is not told."""
    min_offset: int | None = None
    """First byte of the master's log."""
    master_offset: int | None = None
    """End of the master's log."""
    sent_offset: int | None = None
    ack_offset: int | None = None
    in_sync: bool | None = None
    """Whether the master counts it."""
    lag_s: float | None = None
    """Age of the oldest byte that it has not acknowledged, seconds."""
    unmoved_s: float = 0.0
    """For how long its ack has not moved, seconds."""
    is_rejoining: bool = False
    """Whether all that it lacks may be the tail that it compares: see `is_rejoining`."""


@frozen
class Judgement:
    """A verdict with a few words on it."""

    verdict: Verdict
    why: str = ""
    """Empty for OK with nothing to say."""


def judge(facts: Facts, limits: Limits, *, shown: Verdict | None = None) -> Judgement:
    """The verdict of one moment by the table above; `shown` is what is being shown of the replica."""
    name, colon, said = facts.complaint.partition(":")
    if name in _COMPLAINTS:
        return Judgement(_COMPLAINTS[name], said.strip() if colon else name)
    if not facts.is_master_heard:
        return Judgement(Verdict.STALE, "its master does not answer")
    if not facts.is_connected:
        return Judgement(Verdict.SILENT, f"not connected for {format_elapsed(facts.unconnected_s)}")
    return _judge_connected(facts, limits, shown)


def _judge_connected(facts: Facts, limits: Limits, shown: Verdict | None) -> Judgement:
    master, ack, sent, lag_s = facts.master_offset, facts.ack_offset, facts.sent_offset, facts.lag_s
    if master is not None and ack is not None and ack > master:
        return Judgement(Verdict.DIVERGED, f"acknowledged {format_bytes(ack - master)} more than there are")
    if facts.min_offset is not None and sent is not None and 0 < sent < facts.min_offset:
        return Judgement(Verdict.GAP, f"wants {sent}, the log begins at {facts.min_offset}")
    if facts.last_received_s is not None and facts.last_received_s > 2 * limits.heartbeat_s:
        return Judgement(Verdict.SILENT, f"nothing heard for {format_elapsed(facts.last_received_s)}")
    if facts.is_observer:
        return Judgement(Verdict.OBSERVER, "never acknowledges, as it is meant to")
    lacks_bytes = None if master is None or ack is None else master - ack
    waits_s = min(facts.unmoved_s, lag_s or 0.0)
    if lacks_bytes and waits_s >= limits.slave_timeout_s:
        idle_timeout_s = OBSERVER_HOUSEKEEPINGS * limits.housekeeping_s
        if sent is not None and ack is not None and sent > ack and waits_s >= idle_timeout_s:
            return Judgement(Verdict.OBSERVER, f"connected and no ack for {format_elapsed(waits_s)}")
        return Judgement(
            Verdict.STALLED, f"no ack for {format_elapsed(waits_s)}, {format_bytes(lacks_bytes)} wait"
        )
    if facts.in_sync is False:
        if lacks_bytes is not None and lacks_bytes < limits.gap_bytes_max:
            return Judgement(
                Verdict.NOT_IN_SYNC, f"its master does not count it: no ack for {format_elapsed(waits_s)}"
            )
        return Judgement(Verdict.NOT_IN_SYNC, f"lacks {format_bytes(limits.gap_bytes_max)} or more")
    limit_s = limits.slave_timeout_s / (2 if shown is Verdict.FALL_BEHIND else 1)
    if facts.is_rejoining:
        return Judgement(Verdict.OK, "rejoining: compares its tail and acknowledges it again")
    if lag_s is not None and lag_s > limit_s:
        return Judgement(Verdict.FALL_BEHIND, f"lacks what came {format_elapsed(lag_s)} ago")
    return Judgement(Verdict.OK)


def is_rejoining(ack_offset: int, *, joined_at_offset: int, connected_s: float, limits: Limits) -> bool:
    """Whether a replica may have had all of its master's log when it connected, and acknowledges it again.

    `joined_at_offset` is where that log ended then. What it lacks of that is the tail that it compares, at
    most `TAIL_CHECK_BYTES`, and it has not been connected for longer than a heartbeat.
    """
    lacked_bytes = joined_at_offset - ack_offset
    return 0 < lacked_bytes <= TAIL_CHECK_BYTES and connected_s <= limits.heartbeat_s


@define(eq=False)
class VerdictDebounce:
    """What is shown of a replica while its verdict changes to and fro: see the module's text."""

    shown: Judgement | None = None
    """What is shown now; None before the first verdict."""
    _differs_since_ms: int | None = None

    def show(self, judged: Judgement, *, at_ms: int) -> Judgement:
        """Take in the verdict of a moment; returns what is to be shown from now on."""
        shown = self.shown
        if shown is None or judged.verdict is shown.verdict:
            self._differs_since_ms = None
            self.shown = judged
            return judged
        if self._differs_since_ms is None:
            self._differs_since_ms = at_ms
        is_worse = judged.verdict.severity >= shown.verdict.severity
        after_ms = WORSE_AFTER_MS if is_worse else BETTER_AFTER_MS
        if judged.verdict in _AT_ONCE or at_ms - self._differs_since_ms >= after_ms:
            self._differs_since_ms = None
            self.shown = judged
            return judged
        return shown

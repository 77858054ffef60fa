"""Verdict on a replica by its figures. Pure, and the one definition for live views and replays.

`judge` evaluates the `Facts` of one moment; the first rule that applies counts:

| verdict | rule |
|---|---|
| DIVERGED, GAP | the slave reports it (a trioha slave: DIVERGED, AHEAD or GAP with the offset) |
| STALE | the master does not answer |
| SILENT | not connected; or connected, and nothing was received for more than two heartbeats |
| DIVERGED | it acknowledged more than the master has |
| GAP | the next bytes for it were deleted; an unmodified master heartbeats for ever then (spec ha 2.2) |
| OBSERVER | it reports so; or it was sent more, and is connected for 1.5 housekeeping limits without ack |
| STALLED | bytes have waited for its ack for slaveTimeout, and the ack has not moved for as long |
| NOT IN SYNC | the master does not count it as in sync |
| FALL BEHIND | its oldest missing byte is older than slaveTimeout: puts that wait for it time out |
| OK | none of these |

A slave compares up to `TAIL_CHECK_BYTES` of its tail when it connects and acknowledges them again. Meanwhile
it is rejoining: that is OK and not a lag.

Two rules keep verdicts from flickering. FALL BEHIND, once shown, ends at half the age at which it begins. And
`VerdictDebounce` shows another verdict only after verdicts have differed from the shown one for a while; GAP,
DIVERGED and STALE are shown at once.
"""

from __future__ import annotations

from attrs import define, frozen

from trioha_monitor.texts import format_bytes, format_elapsed
from trioha_monitor.view import Limits, Verdict

TAIL_CHECK_BYTES = 64 * 1024
"""Largest lag of a slave in sync while it compares its tail (trioha.haTailCheck)."""
WORSE_AFTER_MS = 1000
"""A worse verdict is shown after so many milliseconds."""
BETTER_AFTER_MS = 2000
"""A better verdict is shown after so many milliseconds."""
OBSERVER_HOUSEKEEPINGS = 1.5
"""A peer that is connected without an ack for so many housekeeping limits is an observer."""

_AT_ONCE = frozenset((Verdict.GAP, Verdict.DIVERGED, Verdict.STALE))
_COMPLAINTS = {"DIVERGED": Verdict.DIVERGED, "AHEAD": Verdict.DIVERGED, "GAP": Verdict.GAP}


@frozen
class Facts:
    """Figures of a replica at one moment. None: not known."""

    is_connected: bool
    """Whether its master lists it."""
    unconnected_s: float = 0.0
    """Time since its connection ended, seconds."""
    connected_s: float = 0.0
    """Time since it connected, seconds."""
    master_answers: bool = True
    """Whether its master answers."""
    last_received_s: float | None = None
    """Time since either side last received something from the other, seconds."""
    complaint: str = ""
    """Why a trioha slave cannot replicate, by its own report, `GAP: ...`; empty if it can."""
    is_observer: bool | None = None
    state: str = ""
    """RocketMQ's connection state; empty if it is not known."""
    min_offset: int | None = None
    """First byte of the master's log."""
    master_offset: int | None = None
    """End of the master's log."""
    sent_offset: int | None = None
    ack_offset: int | None = None
    in_sync: bool | None = None
    """Whether the master counts it as in sync."""
    lag_s: float | None = None
    """Age of the oldest byte that it has not acknowledged, seconds."""
    unmoved_s: float = 0.0
    """Time since its ack moved, seconds."""
    is_rejoining: bool = False
    """Whether its lag may be the tail that it compares: see `is_rejoining`."""


@frozen
class Judgement:
    """A verdict with its reason."""

    verdict: Verdict
    why: str = ""
    """Reason in a few words; may be empty for OK."""


def judge(facts: Facts, limits: Limits, *, shown: Verdict | None = None) -> Judgement:
    """The verdict of one moment by the table above; `shown` is the verdict that is shown now."""
    name, colon, reason = facts.complaint.partition(":")
    if name in _COMPLAINTS:
        return Judgement(_COMPLAINTS[name], reason.strip() if colon else name)
    if not facts.master_answers:
        return Judgement(Verdict.STALE, "its master does not answer")
    if not facts.is_connected:
        return Judgement(Verdict.SILENT, f"not connected for {format_elapsed(facts.unconnected_s)}")
    return _judge_connected(facts, limits, shown)


def _judge_connected(facts: Facts, limits: Limits, shown: Verdict | None) -> Judgement:
    master, ack, sent, lag_s = facts.master_offset, facts.ack_offset, facts.sent_offset, facts.lag_s
    if master is not None and ack is not None and ack > master:
        return Judgement(
            Verdict.DIVERGED, f"acknowledged {format_bytes(ack - master)} beyond the master's log"
        )
    if facts.min_offset is not None and sent is not None and 0 < sent < facts.min_offset:
        return Judgement(Verdict.GAP, f"needs offset {sent}, the log starts at {facts.min_offset}")
    if facts.last_received_s is not None and facts.last_received_s > 2 * limits.heartbeat_s:
        return Judgement(Verdict.SILENT, f"nothing received for {format_elapsed(facts.last_received_s)}")
    if facts.is_observer:
        return Judgement(Verdict.OBSERVER, "never acknowledges, as configured")
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
                Verdict.NOT_IN_SYNC,
                f"its master does not count it as in sync: no ack for {format_elapsed(waits_s)}",
            )
        return Judgement(Verdict.NOT_IN_SYNC, f"lacks {format_bytes(limits.gap_bytes_max)} or more")
    limit_s = limits.slave_timeout_s / (2 if shown is Verdict.FALL_BEHIND else 1)
    if facts.is_rejoining:
        return Judgement(Verdict.OK, "rejoining: compares its tail and acknowledges it again")
    if lag_s is not None and lag_s > limit_s:
        return Judgement(Verdict.FALL_BEHIND, f"lacks bytes that are {format_elapsed(lag_s)} old")
    return Judgement(Verdict.OK)


def is_rejoining(ack_offset: int, *, joined_at_offset: int, connected_s: float, limits: Limits) -> bool:
    """Whether a replica may have had all of its master's log when it connected, and compares its tail.

    `joined_at_offset` is the end of the log at that time. The replica lacks at most `TAIL_CHECK_BYTES` of it,
    and has been connected for at most one heartbeat.
    """
    lacked_bytes = joined_at_offset - ack_offset
    return 0 < lacked_bytes <= TAIL_CHECK_BYTES and connected_s <= limits.heartbeat_s


@define(eq=False)
class VerdictDebounce:
    """Keeps the shown verdict while verdicts flicker: see the module's text."""

    shown: Judgement | None = None
    """The verdict that is shown; None before the first one."""
    _differs_since_ms: int | None = None

    def show(self, judged: Judgement, *, at_ms: int) -> Judgement:
        """Update with the verdict of a moment; returns the one to show."""
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

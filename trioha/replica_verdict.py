"""Verdict on a replica by its figures. Pure, and the one definition for status, live views and replays.

`judge` evaluates the `Facts` of one moment; the first rule that applies counts:

| verdict | rule |
|---|---|
| DIVERGED, GAP | the slave reports it (a trioha slave: DIVERGED, AHEAD or GAP with the offset) |
| REFUSED | the slave reports that its master does not admit it, or is another broker than it wants |
| STALE | the master does not answer |
| SILENT | not connected; or connected, and nothing was received for more than two heartbeats |
| DIVERGED | it acknowledged more than the master has |
| GAP | the next bytes for it were deleted; an unmodified master heartbeats for ever then |
| OBSERVER | it reports so; or it was sent more, and is connected for 1.5 housekeeping limits without ack |
| STALLED | bytes have waited for its ack for slaveTimeout, and the ack has not moved for as long |
| NOT IN SYNC | the master does not count it as in sync |
| FALL BEHIND | its oldest missing byte is older than slaveTimeout: puts that wait for it time out |
| OK | none of these |

A slave compares up to `TAIL_CHECK_BYTES` of its tail when it connects and acknowledges them again. Meanwhile
it is rejoining: that is OK and not a lag.

So that verdicts do not flicker, FALL BEHIND, once shown, ends at half the age at which it begins.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from trioha.broker_status import BrokerStatus, ConnectionStatus
from trioha.severity import Severity
from trioha.unit_texts import format_bytes, format_elapsed

TAIL_CHECK_BYTES = 64 * 1024
"""Largest lag of a slave in sync while it compares its tail (trioha.haTailCheck)."""
OBSERVER_HOUSEKEEPINGS = 1.5
"""A peer that is connected without an ack for so many housekeeping limits is an observer."""


class Verdict(Enum):
    """State of a replica in one word, which is the value; `Judgement.why` is the reason."""

    OK = "OK"
    """It replicates."""
    OBSERVER = "OBSERVER"
    """It receives everything and acknowledges nothing, as configured."""
    FALL_BEHIND = "FALL BEHIND"
    """Its oldest missing byte is older than puts wait for replicas (slaveTimeout)."""
    NOT_IN_SYNC = "NOT IN SYNC"
    """The master does not count it: it lacks haMaxGapNotInSync or more, or has no recent ack."""
    STALE = "STALE"
    """Not known: its master does not answer."""
    STALLED = "STALLED"
    """Connected, bytes wait for it, and its ack does not move."""
    SILENT = "SILENT"
    """Not connected, or nothing was received from it for longer than two heartbeats."""
    GAP = "GAP: below min"
    """It needs bytes that its master has deleted: it cannot replicate again by itself."""
    REFUSED = "REFUSED"
    """It is not admitted by its master, or refuses that broker: another name, other log files."""
    DIVERGED = "DIVERGED"
    """Its log differs from the master's: other bytes, or more of them."""

    @property
    def severity(self) -> Severity:
        """How bad that is."""
        return _SEVERITIES[self]


_SEVERITIES = {
    Verdict.OK: Severity.GOOD,
    Verdict.OBSERVER: Severity.NOTICE,
    Verdict.FALL_BEHIND: Severity.WARNING,
    Verdict.NOT_IN_SYNC: Severity.WARNING,
    Verdict.STALE: Severity.WARNING,
    Verdict.STALLED: Severity.CRITICAL,
    Verdict.SILENT: Severity.CRITICAL,
    Verdict.GAP: Severity.CRITICAL,
    Verdict.REFUSED: Severity.CRITICAL,
    Verdict.DIVERGED: Severity.CRITICAL,
}
_COMPLAINTS = {
    "DIVERGED": Verdict.DIVERGED,
    "AHEAD": Verdict.DIVERGED,
    "GAP": Verdict.GAP,
    "REFUSED": Verdict.REFUSED,
    "OTHER_MASTER": Verdict.REFUSED,
}


@frozen
class Limits:
    """A broker's own limits, for verdicts and for lines in graphs."""

    gap_bytes_max: int = 268_435_456
    """haMaxGapNotInSync (4.9: haSlaveFallbehindMax): a replica that lacks less counts as in sync."""
    slave_timeout_s: float = 3.0
    """slaveTimeout: how long a put waits for replicas."""
    housekeeping_s: float = 20.0
    """haHousekeepingInterval: silence after which a connection is closed."""
    heartbeat_s: float = 5.0
    """haSendHeartbeatInterval: silence after which either side sends something."""
    are_reported: bool = False
    """Whether the broker reports them; else they are RocketMQ's defaults."""

    @classmethod
    def of(
        cls,
        *,
        gap_bytes_max: float | None,
        slave_timeout_ms: float | None,
        housekeeping_ms: float | None,
        heartbeat_ms: float | None,
    ) -> Limits:
        """Limits from a broker's settings; None or 0 stands for RocketMQ's default."""
        default = cls()
        return cls(
            gap_bytes_max=int(gap_bytes_max or default.gap_bytes_max),
            slave_timeout_s=slave_timeout_ms / 1000 if slave_timeout_ms else default.slave_timeout_s,
            housekeeping_s=housekeeping_ms / 1000 if housekeeping_ms else default.housekeeping_s,
            heartbeat_s=heartbeat_ms / 1000 if heartbeat_ms else default.heartbeat_s,
            are_reported=bool(gap_bytes_max),
        )


def limits_of(status: BrokerStatus) -> Limits:
    """A broker's limits; RocketMQ's defaults for those that it does not report."""
    settings = status.settings
    return Limits.of(
        gap_bytes_max=settings.gap_bytes_max,
        slave_timeout_ms=settings.slave_timeout_ms,
        housekeeping_ms=settings.housekeeping_ms,
        heartbeat_ms=settings.heartbeat_ms,
    )


@frozen
class Facts:
    """Figures of a replica at one moment. None: not known."""

    is_connected: bool
    """Whether its master lists it."""
    unconnected_s: float | None = None
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
    unmoved_s: float | None = None
    """Time since its ack moved, seconds."""
    is_rejoining: bool = False
    """Whether its lag may be the tail that it compares: see `is_rejoining`."""


@frozen
class Judgement:
    """A verdict with its reason."""

    verdict: Verdict
    why: str = ""
    """Reason in a few words; may be empty for OK."""


def verdict_of(complaint: str) -> Verdict | None:
    """The verdict that a trioha slave's own report is (`SlaveStatus.verdict`); None if it can replicate."""
    return _COMPLAINTS.get(complaint.partition(":")[0])


def judge(facts: Facts, limits: Limits, *, shown: Verdict | None = None) -> Judgement:
    """The verdict of one moment by the table above; `shown` is the verdict that is shown now."""
    if (verdict := verdict_of(facts.complaint)) is not None:
        name, colon, reason = facts.complaint.partition(":")
        return Judgement(verdict, reason.strip() if colon else name)
    if not facts.master_answers:
        return Judgement(Verdict.STALE, "its master does not answer")
    if not facts.is_connected:
        return Judgement(Verdict.SILENT, f"not connected{_for(facts.unconnected_s)}")
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
    waits_s = min(facts.unmoved_s or 0.0, lag_s or 0.0)
    if lacks_bytes and waits_s >= limits.slave_timeout_s:
        idle_timeout_s = OBSERVER_HOUSEKEEPINGS * limits.housekeeping_s
        if sent is not None and ack is not None and sent > ack and waits_s >= idle_timeout_s:
            return Judgement(Verdict.OBSERVER, f"connected and no ack for {format_elapsed(waits_s)}")
        return Judgement(
            Verdict.STALLED, f"no ack for {format_elapsed(waits_s)}, {format_bytes(lacks_bytes)} wait"
        )
    if facts.in_sync is False:
        if lacks_bytes is not None and lacks_bytes < limits.gap_bytes_max:
            no_ack = "" if facts.unmoved_s is None else f": no ack{_for(waits_s)}"
            return Judgement(Verdict.NOT_IN_SYNC, f"its master does not count it as in sync{no_ack}")
        return Judgement(Verdict.NOT_IN_SYNC, f"lacks {format_bytes(limits.gap_bytes_max)} or more")
    limit_s = limits.slave_timeout_s / (2 if shown is Verdict.FALL_BEHIND else 1)
    if facts.is_rejoining:
        return Judgement(Verdict.OK, "rejoining: compares its tail and acknowledges it again")
    if lag_s is not None and lag_s > limit_s:
        return Judgement(Verdict.FALL_BEHIND, f"lacks bytes that are {format_elapsed(lag_s)} old")
    return Judgement(Verdict.OK)


def _for(duration_s: float | None) -> str:
    return "" if duration_s is None else f" for {format_elapsed(duration_s)}"


def end_and_lag(
    connection: ConnectionStatus, *, max_offset: int, furthest_before: int | None
) -> tuple[int, int]:
    """The end of the master's log by an answer that lists `connection`, and what of it is not acknowledged.

    The answers of RocketMQ to 907 and to 28 are of two moments: the difference in 907 fits its own acks.
    RocketMQ also reads the end of its log before its connections: an offset beyond that end is the slave's
    fault only if it is beyond it in the next answer, too. `furthest_before` is the larger of the sent and the
    acknowledged offset of the answer before, if that was beyond its end; else None.
    """
    ack = max(connection.ack_offset, 0)
    end = max(max_offset, ack + connection.lag_bytes)
    furthest = max(ack, connection.sent_offset)
    if furthest > end and (furthest_before is None or furthest_before <= end):
        return furthest, furthest - ack
    return end, connection.lag_bytes


def is_rejoining(ack_offset: int, *, joined_at_offset: int, connected_s: float, limits: Limits) -> bool:
    """Whether a replica may have had all of its master's log when it connected, and compares its tail.

    `joined_at_offset` is the end of the log at that time. The replica lacks at most `TAIL_CHECK_BYTES` of it,
    and has been connected for at most one heartbeat.
    """
    lacked_bytes = joined_at_offset - ack_offset
    return 0 < lacked_bytes <= TAIL_CHECK_BYTES and connected_s <= limits.heartbeat_s

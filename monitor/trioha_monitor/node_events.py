"""What a node's answers say has happened to it since the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from trioha.broker_status import BrokerStatus
from trioha_monitor.replicas import label_of
from trioha_monitor.series import Severity
from trioha_monitor.timeline import Timeline
from trioha_monitor.verdict import seconds
from trioha_monitor.view import EventKind

REFUSALS_EVERY_MS = 10_000
"""Refusals of one reason make one event in so many milliseconds: a peer may try again for ever."""
PUTS_QUIET_MS = 5000
"""Puts succeed again when none has failed for so long."""
PUT_OK = "PUT_OK"

_END_WORDS = {
    "EOF": "the slave closed it",
    "IO_ERROR": "the socket failed",
    "HOUSEKEEPING": "nothing was heard for haHousekeepingInterval",
    "SHUTDOWN": "the master stops",
    "ACK_BEYOND_SENT": "acknowledged more than it was sent",
    "ACK_WENT_BACK": "acknowledged less than before",
    "BAD_SIZE": "sent nonsense",
    "REQUEST_ABOVE_MAX": "asked for bytes beyond the log",
    "REQUEST_BELOW_MIN": "asked for bytes that were deleted",
    "NOT_ALLOWED": "is not allowed to connect",
    "NO_REQUEST": "asked for nothing in time",
    "LOG_RESTARTED": "the node began its own log anew",
    "INTERNAL_ERROR": "a fault of the node ended it; its log has the traceback",
}
_REFUSALS = frozenset(
    (
        "ACK_BEYOND_SENT",
        "ACK_WENT_BACK",
        "BAD_SIZE",
        "REQUEST_ABOVE_MAX",
        "REQUEST_BELOW_MIN",
        "NOT_ALLOWED",
    )
)
"""Ends for what a peer said. NO_REQUEST is none of them: a peer that says nothing is a probe."""


class NodeEvents:
    """Compares each answer of one node with the one before, and notes what changed on the timeline."""

    def __init__(self, timeline: Timeline, *, address: str) -> None:
        self._address = address
        self.label = address
        """Broker name and id; the address while they are unknown."""
        self._timeline = timeline
        self._status: BrokerStatus | None = None
        self._is_down = False
        self._ended: Counter[str] = Counter()
        """Connections that ended between the last two answers, by reason."""
        self._refused: Counter[str] = Counter()
        """Refusals that no event has told yet."""
        self._refused_told_ms: dict[str, int] = {}
        self._failed: Counter[str] = Counter()
        """Puts that failed since they began to, by status; empty while they succeed."""
        self._failed_ms = 0
        self._disk_is_full = False

    def end_reason(self) -> str:
        """Why connections that the last answer no longer lists ended: ` (EOF: ...)`, empty if not told."""
        names = sorted(self._ended)
        if not names:
            return ""
        if len(names) > 1:
            return f" ({' or '.join(names)})"
        words = _END_WORDS.get(names[0])
        return f" ({names[0]}: {words})" if words else f" ({names[0]})"

    def gone(self, reason: str, *, was_up: bool, at_ms: int) -> None:
        """It does not answer any more, or did not from the start."""
        self._is_down = True
        text = f"does not answer: {reason}" if not was_up else f"no longer answers: {reason}"
        self._add(EventKind.NODE, text, Severity.BAD, at_ms=at_ms)

    def answered(self, status: BrokerStatus, *, down_s: float | None, at_ms: int) -> None:
        """It answered; `down_s` is for how long it did not before, where it did not."""
        before, self._status = self._status, status
        self.label = label_of(status) or self.label
        self._ended = Counter()
        if before is None:
            what = " ".join(filter(None, (status.role, status.version)))
            self._add(EventKind.NODE, f"answers: {what}", Severity.GOOD, at_ms=at_ms)
        elif self._is_down:
            away = "" if down_s is None else f" after {seconds(max(0.0, down_s))}"
            self._add(EventKind.NODE, f"answers again{away}", Severity.GOOD, at_ms=at_ms)
        self._is_down = False
        if before is not None:
            self._compare(before, status, at_ms=at_ms)
        for text in status.warnings:
            if before is None or text not in before.warnings:
                self._add(EventKind.CONFIG, text, Severity.WARNING, at_ms=at_ms)
        self._tell_disk(before, status, at_ms=at_ms)

    def _compare(self, before: BrokerStatus, status: BrokerStatus, *, at_ms: int) -> None:
        restarted = before.table.booted_ms is not None and status.table.booted_ms not in {
            None,
            before.table.booted_ms,
        }
        counts_anew = _shrank(before.ended_connections, status.ended_connections) or _shrank(
            before.put_statuses, status.put_statuses
        )
        if restarted:
            self._add(EventKind.NODE, "was started anew", Severity.WARNING, at_ms=at_ms)
        if (before.role, before.broker_name, before.broker_id) != (
            status.role,
            status.broker_name,
            status.broker_id,
        ):
            was, now = (f"{label_of(each)} {each.role}".strip() for each in (before, status))
            self._add(EventKind.ROLE, f"{was} is now {now}", Severity.WARNING, at_ms=at_ms)
        if status.max_offset < before.max_offset:
            self._add(
                EventKind.GAP,
                f"its log ends at {status.max_offset}, before it ended at {before.max_offset}",
                Severity.BAD,
                at_ms=at_ms,
            )
        if not counts_anew:
            self._count_ends(before.ended_connections, status.ended_connections, at_ms=at_ms)
            self._count_puts(before.put_statuses, status.put_statuses, at_ms=at_ms)

    def _count_ends(self, before: Mapping[str, int], now: Mapping[str, int], *, at_ms: int) -> None:
        if before != now:
            self._ended = Counter({name: now[name] - before.get(name, 0) for name in now})
            self._ended += Counter()
            for name in self._ended.keys() & _REFUSALS:
                self._refused[name] += self._ended[name]
        for name, count in list(self._refused.items()):
            told_ms = self._refused_told_ms.get(name)
            if told_ms is not None and at_ms - told_ms < REFUSALS_EVERY_MS:
                continue
            del self._refused[name]
            self._refused_told_ms[name] = at_ms
            times = "" if count == 1 else f", {count} times"
            text = f"refused a peer that {_END_WORDS[name]} ({name}{times})"
            self._add(EventKind.REFUSED, text, Severity.BAD, at_ms=at_ms)

    def _count_puts(self, before: Mapping[str, int], now: Mapping[str, int], *, at_ms: int) -> None:
        if before != now:
            failed = Counter(
                {
                    name: count - before.get(name, 0)
                    for name, count in now.items()
                    if name != PUT_OK and count > before.get(name, 0)
                }
            )
            for name in failed.keys() - self._failed.keys():
                self._add(EventKind.PUTS, f"puts end with {name}", Severity.BAD, at_ms=at_ms)
            if failed:
                self._failed += failed
                self._failed_ms = at_ms
        if self._failed and at_ms - self._failed_ms >= PUTS_QUIET_MS:
            counts = ", ".join(f"{count} {name}" for name, count in sorted(self._failed.items()))
            self._failed.clear()
            text = f"no put has failed for {seconds(PUTS_QUIET_MS / 1000)}; before: {counts}"
            self._add(EventKind.PUTS, text, Severity.GOOD, at_ms=at_ms)

    def _tell_disk(self, before: BrokerStatus | None, status: BrokerStatus, *, at_ms: int) -> None:
        fault = "" if before is None else before.dispatch_fault
        if status.dispatch_fault and not fault:
            text = f"a record cannot be dispatched: {status.dispatch_fault}"
            self._add(EventKind.DISK, text, Severity.BAD, at_ms=at_ms)
        ratio, percent_max = status.table.disk_ratio, status.settings.disk_percent_max
        if ratio is None or percent_max is None:
            return
        is_full = ratio * 100 > percent_max
        if is_full == self._disk_is_full:
            return
        self._disk_is_full = is_full
        if is_full:
            text = f"disk {ratio:.0%} used, more than diskMaxUsedSpaceRatio: old files go early"
            self._add(EventKind.DISK, text, Severity.WARNING, at_ms=at_ms)
        else:
            self._add(EventKind.DISK, f"disk {ratio:.0%} used again", Severity.GOOD, at_ms=at_ms)

    def _add(self, kind: EventKind, text: str, severity: Severity, *, at_ms: int) -> None:
        self._timeline.add(kind, text, at_ms=at_ms, node=self.label, severity=severity, source=self._address)


def _shrank(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether counters began anew."""
    return before is not now and any(now.get(name, 0) < count for name, count in before.items())

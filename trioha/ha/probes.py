"""Probes: connections at the HA port that ended without a valid request.

Load balancers, monitoring and port scanners connect, perhaps send bytes of another protocol, and disconnect:
every few seconds, for months. Shown as slaves, they would bury the one slave that matters. So a probe is only
counted, by host and reason: it has no event, no row of the status, and no log line of its own. The log
has one line for the first probe of a host, and at most one a minute for all that follow; a recording gets a
fact `probes` for each count that has changed, at most once a minute. The number of hosts is bounded; probes
of further hosts are counted together.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import structlog
import trio
from attrs import frozen

from trioha.recording.events import CloseReason, EventSink

log = structlog.get_logger(__name__)

HOSTS_MAX: Final = 64
"""Hosts that are counted each for itself."""
OTHER_HOSTS: Final = "other"
"""Host name under which all others are counted."""
REPORT_INTERVAL_S: Final = 60.0


@frozen
class ProbeCount:
    """Probes of one host that ended for one reason, since the start."""

    host: str
    """IP address, or `OTHER_HOSTS`."""
    reason: CloseReason
    count: int


class Probes:
    """Counts probes; `run` reports them."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._counts: dict[str, Counter[CloseReason]] = {}
        """By host, in the order of their first probe."""
        self._reported: Counter[tuple[str, CloseReason]] = Counter()
        """Counts in the recording."""
        self._unlogged = 0
        """Probes since the last log line."""
        self._changed = trio.Event()
        """Set when a count has changed since the last report."""

    def add(self, host: str, reason: CloseReason, *, detail: str = "") -> None:
        """A connection from `host` ended without a valid request; `detail` goes to the first log line."""
        if host not in self._counts and len(self._counts) >= HOSTS_MAX:
            host = OTHER_HOSTS
        reasons = self._counts.get(host)
        if reasons is None:
            reasons = self._counts[host] = Counter()
            # A refused peer may be a slave by intention: the operator should see that.
            level = log.warning if reason is CloseReason.NOT_ALLOWED else log.info
            level(
                "probe at the HA port; further ones of this host are only counted",
                host=host,
                reason=reason.name,
                detail=detail,
            )
        else:
            self._unlogged += 1
        reasons[reason] += 1
        self._changed.set()

    def counts(self) -> tuple[ProbeCount, ...]:
        """All counts since the start, by host in the order of their first probe."""
        return tuple(
            ProbeCount(host, reason, count)
            for host, reasons in self._counts.items()
            for reason, count in sorted(reasons.items())
        )

    async def run(self) -> None:
        """Report changed counts, at once and then at most once a minute; the last ones when cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                self._report()
                await trio.sleep(REPORT_INTERVAL_S)
        finally:
            self._report()

    def _report(self) -> None:
        for one in self.counts():
            if self._reported[one.host, one.reason] != one.count:
                self._reported[one.host, one.reason] = one.count
                self._sink.fact("probes", host=one.host, reason=one.reason.name, count=one.count)
        if self._unlogged:
            log.info(
                "probes at the HA port",
                more=self._unlogged,
                total=sum(map(Counter.total, self._counts.values())),
                hosts=len(self._counts),
            )
            self._unlogged = 0

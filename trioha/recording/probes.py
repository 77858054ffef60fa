"""Probes: connections to the HA port without a request for the log (health checks, port scanners).

A connection that sends no valid request (an offset that a log can have) is a probe. Probes are counted by
host and reason. They are not shown as slaves, reconnects or events.

A node counts its probes itself, in the fact `probes`: `host`, `reason` (a `CloseReason`) and `count` since
the session began; the last fact of a host and reason counts. Older recordings have the events of each probe
(STATE, CLOSED, perhaps REFUSED) instead, without one that shows a request (`state.shows_request`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from attrs import frozen

UNKNOWN_HOST: Final = "unknown"
"""Host of a probe whose address the recording does not name."""
HOSTS_SHOWN: Final = 8
"""Hosts and reasons that one line names."""


@frozen(order=True)
class ProbeCount:
    """How many probes of one host ended for one reason."""

    host: str
    """Address without port, `other` for hosts beyond those that a node counts apart, or `UNKNOWN_HOST`."""
    reason: str
    """`CloseReason` by name; NONE if the connection was open at the end of the recording."""
    count: int


def probes_line(counts: Iterable[ProbeCount]) -> str:
    """`3,600 probes (connections that asked for nothing): 10.0.0.9 EOF 3,600`; empty without any."""
    every = list(counts)
    if not every:
        return ""
    total = sum(one.count for one in every)
    named = [f"{one.host} {one.reason} {one.count:,}" for one in every[:HOSTS_SHOWN]]
    if len(every) > HOSTS_SHOWN:
        named.append(f"others {sum(one.count for one in every[HOSTS_SHOWN:]):,}")
    what = "probe (a connection" if total == 1 else "probes (connections"
    return f"{total:,} {what} that asked for nothing): {', '.join(named)}"

"""Connections at the HA port that never asked for the log: health checks, monitoring, port scanners.

They connect, perhaps send bytes of another protocol, and are gone, all day. A connection that never sent a
valid request (an offset that a log can have) is a probe: it is counted by host and reason, and is neither a
row nor a reconnect nor an event of its own.

Nodes count them themselves: the fact `probes` has `host`, `reason` (of `CloseReason`) and `count`, of all
since the session began; the last one of a host and reason counts. Older recordings have the events of each
probe (STATE, CLOSED, perhaps REFUSED) instead; `trioha.recording.asking` tells them from a slave's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import frozen

from trioha.numbers import NATURAL64, parse_int
from trioha.recording.events import CloseReason, code_name
from trioha.recording.reader import Fact

UNKNOWN_HOST: Final = "unknown"
"""Host of a probe whose address the recording does not name."""
HOSTS_SHOWN: Final = 8
"""Hosts and reasons that one line names."""


@frozen(order=True)
class ProbeCount:
    """How many probes of one host ended for one reason."""

    host: str
    """Address without port, `other` for those that a node does not tell apart, or `UNKNOWN_HOST`."""
    reason: str
    """`CloseReason`, by name; NONE of what was open at the end of the recording."""
    count: int


def probe_counts(
    facts: Iterable[Fact], ended: Mapping[int, int], hosts: Mapping[int, str]
) -> list[ProbeCount]:
    """The probes of a session, by host and reason, most first.

    `ended`: the probes that have events of their own, with the code of their `CloseReason`; `hosts`: of
    connections, as far as the recording names them.
    """
    counted: dict[tuple[str, str], int] = {}
    for fact in facts:
        if fact.type_ == "probes":
            host, reason = fact.fields.get("host"), fact.fields.get("reason")
            try:
                count = parse_int(fact.fields.get("count"), NATURAL64)
            except ValueError:
                continue
            if isinstance(host, str) and isinstance(reason, str):
                counted[host, reason] = count
    found = Counter(counted)
    found.update(
        Counter(
            (hosts.get(conn) or UNKNOWN_HOST, code_name(CloseReason, code)) for conn, code in ended.items()
        )
    )
    counts = [ProbeCount(host, reason, count) for (host, reason), count in found.items() if count]
    return sorted(counts, key=_most_first)


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


def _most_first(one: ProbeCount) -> tuple[int, str, str]:
    return -one.count, one.host, one.reason
